"""A uniform view of user classes: which fields they have, by which names, with which defaults.

Dataclasses, msgspec Structs, attrs classes and pydantic models. pydantic is never imported here: a model can only
exist where other code has imported it.
"""

from __future__ import annotations

import dataclasses
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

ABSENT: Any = object()
"""Stands for a field without value, and for a field without default."""


class Part(NamedTuple):
    """One field of a class."""

    name: str
    """As it is encoded."""
    attribute: str
    make_default: Callable[[], Any]
    """Returns the default, or `ABSENT`."""

    def of(self, value: object) -> Any:
        """The field's value, or `ABSENT`: Struct fields can be unset, dataclass fields never assigned."""
        found = getattr(value, self.attribute, ABSENT)
        return ABSENT if found is msgspec.UNSET else found


def parts_of(kind: Any) -> tuple[Part, ...] | None:
    """The fields of a class of one of the four kinds; None for any other."""
    return _parts_of(kind)


@lru_cache(maxsize=1024)
def _parts_of(kind: type) -> tuple[Part, ...] | None:
    if issubclass(kind, msgspec.Struct):
        return tuple(_struct_part(one) for one in msgspec.structs.fields(kind))
    if dataclasses.is_dataclass(kind):
        return tuple(_dataclass_part(one) for one in dataclasses.fields(kind))
    if "__attrs_attrs__" in dir(kind):
        return tuple(_attrs_part(one) for one in kind.__attrs_attrs__)  # type: ignore[attr-defined] # just seen
    if is_model_type(kind):
        return tuple(_model_part(name, one) for name, one in kind.model_fields.items())
    return None


def is_model_type(kind: object) -> TypeGuard[Any]:
    """Whether this is a pydantic model class."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def dump_model(model: Any) -> dict[str, Any]:
    """A pydantic model as a map by field names, which change more slowly than aliases."""
    dumped: dict[str, Any] = model.model_dump(by_alias=False)
    return dumped


def make_model(kind: Any, value: object) -> Any:
    """A pydantic model from such a map, by pydantic's own rules; otherwise a `ValueError` with a readable text."""
    by_name = {"by_alias": False, "by_name": True} if _takes_names() else {}
    try:
        return kind.model_validate(value, **by_name)
    except ValueError as error:
        raise ValueError(_model_problem(error)) from error


def private_attrs_field(kind: type) -> str | None:
    """The first field of an attrs class that msgspec would silently drop: those with an underscore."""
    if "__attrs_attrs__" not in dir(kind) or issubclass(kind, msgspec.Struct):
        return None
    return next((part.name for part in parts_of(kind) or () if part.name.startswith("_")), None)


def _struct_part(one: msgspec.structs.FieldInfo) -> Part:
    return Part(one.encode_name, one.name, _default(one.default, one.default_factory, absent=msgspec.NODEFAULT))


def _dataclass_part(one: dataclasses.Field[Any]) -> Part:
    return Part(one.name, one.name, _default(one.default, one.default_factory, absent=dataclasses.MISSING))


def _attrs_part(one: Any) -> Part:
    nothing = sys.modules["attr"].NOTHING
    if hasattr(one.default, "takes_self"):  # a Factory
        factory = nothing if one.default.takes_self else one.default.factory
        return Part(one.name, one.name, _default(nothing, factory, absent=nothing))
    return Part(one.name, one.name, _default(one.default, nothing, absent=nothing))


def _model_part(name: str, one: Any) -> Part:
    if one.is_required() or getattr(one, "default_factory_takes_validated_data", False):
        return Part(name, name, lambda: ABSENT)
    return Part(name, name, lambda: one.get_default(call_default_factory=True))


def _default(default: Any, factory: Any, *, absent: Any) -> Callable[[], Any]:
    if default is not absent:
        return lambda: default
    make: Callable[[], Any] = factory if factory is not absent else lambda: ABSENT
    return make


@lru_cache(maxsize=1)
def _takes_names() -> bool:
    """Since pydantic 2.11 validation by field name can be requested; before, the model decides."""
    import inspect

    return "by_name" in inspect.signature(sys.modules["pydantic"].BaseModel.model_validate).parameters


def _model_problem(error: Any) -> str:
    if not hasattr(error, "errors"):
        return str(error)
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(step) for step in first["loc"])
    said = first["msg"][:1].lower() + first["msg"][1:]
    return f"{place}: {said}" if place else said
