"""A type as plain data, small enough for a token, and back: to check a value where its class is unknown.

`describe` returns the data, `codec_of` the codec of a type that accepts the same bytes. Checks of the class itself
(`__post_init__`, pydantic's validators) are not part of it; nor is a recursive type below its first level.
"""

from __future__ import annotations

import datetime as dt
import decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union
from uuid import UUID  # noqa: TID251 as a type

import msgspec
from msgspec import inspect

from coterie.kernel.serialization.codec import PLAIN, Codec, codec_for

if TYPE_CHECKING:
    from collections.abc import Mapping


_MOST_BYTES = 1024
"""The limit of a description: a larger one keeps only the outermost level, since links with tokens must stay short."""
_ANY = None

_PLAIN_TYPES: dict[type[inspect.Type], str] = {
    inspect.NoneType: "none",
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
    inspect.ByteArrayType: "bytes",
    inspect.MemoryViewType: "bytes",
    inspect.DateTimeType: "datetime",
    inspect.DateType: "date",
    inspect.TimeType: "time",
    inspect.TimeDeltaType: "timedelta",
    inspect.UUIDType: "uuid",
    inspect.DecimalType: "decimal",
}
_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
_OBJECTS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
_BASES = {str: "str", int: "int", float: "float"}


def describe(type: Any) -> Any:
    """The type as plain data; None: any type."""
    described = _described(inspect.type_info(type), ())
    return described if _size_bytes(described) <= _MOST_BYTES else _outermost(described)


def codec_of(description: Any) -> Codec[Any]:
    """The codec of a type that accepts what the described one accepts."""
    if description is _ANY:
        return PLAIN
    return _codec_of(msgspec.msgpack.encode(description))


def name_of(description: Any) -> str:
    """The name of the type, for display."""
    return "any value" if description is _ANY else codec_of(description).name


@lru_cache(maxsize=1024)
def _codec_of(data: bytes) -> Codec[Any]:
    return codec_for(_type_of(msgspec.msgpack.decode(data)))


# ── from a type ─────────────────────────────────────────────────────────────────────────────────────────────────


def _described(info: Any, around: tuple[Any, ...]) -> Any:
    if isinstance(info, inspect.Metadata):
        return _described(info.type, around)
    if (name := _PLAIN_TYPES.get(type(info))) is not None:
        limits = {each: value for each in _CONSTRAINTS if (value := getattr(info, each, None)) is not None}
        return [name, limits] if limits else name
    if isinstance(info, inspect.EnumType):
        return ["literal", [each.value for each in info.cls]]
    if isinstance(info, inspect.LiteralType):
        return ["literal", list(info.values)]
    if isinstance(info, inspect.UnionType):
        return ["union", [_described(each, around) for each in info.types]]
    if isinstance(info, inspect.TupleType):
        return ["tuple", [_described(each, around) for each in info.item_types]]
    if isinstance(info, inspect.CollectionType):
        return ["list", _described(info.item_type, around)]
    if isinstance(info, inspect.DictType):
        return ["dict", _described(info.key_type, around), _described(info.value_type, around)]
    if isinstance(info, _OBJECTS) and not getattr(info, "array_like", False):
        return _object(info, around)
    if isinstance(info, inspect.CustomType):
        return next((name for base, name in _BASES.items() if issubclass(info.cls, base)), _ANY)
    return _ANY


def _object(info: Any, around: tuple[Any, ...]) -> Any:
    if info.cls in around:
        return _ANY
    inside = (*around, info.cls)
    fields = [[each.encode_name, _described(each.type, inside), each.required] for each in info.fields]
    return ["object", info.cls.__name__, fields, getattr(info, "tag_field", None), getattr(info, "tag", None)]


def _outermost(described: Any) -> Any:
    if described[0] == "object":
        cut: Any = [
            "object",
            described[1],
            [[name, _ANY, required] for name, _, required in described[2]],
            *described[3:],
        ]
    else:
        cut = {"list": ["list", _ANY], "dict": ["dict", _ANY, _ANY]}.get(described[0], _ANY)
    return cut if _size_bytes(cut) <= _MOST_BYTES else _ANY


def _size_bytes(described: Any) -> int:
    return len(msgspec.msgpack.encode(described))


# ── and back ────────────────────────────────────────────────────────────────────────────────────────────────────

_TYPES: Mapping[str, Any] = {
    "none": None,
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "datetime": dt.datetime,
    "date": dt.date,
    "time": dt.time,
    "timedelta": dt.timedelta,
    "uuid": UUID,
    "decimal": decimal.Decimal,
}


def _type_of(described: Any) -> Any:
    if described is _ANY:
        return Any
    if isinstance(described, str):
        return _TYPES[described]
    name, *rest = described
    if name in _TYPES:
        return Annotated[_TYPES[name], msgspec.Meta(**rest[0])]
    return _MAKERS[name](*rest)


def _made_object(name: str, fields: list[Any], tag_field: str | None, tag: Any) -> Any:
    given: list[Any] = [
        (f"f{index}", _type_of(kind)) if required else (f"f{index}", _type_of(kind), None)
        for index, (_, kind, required) in enumerate(fields)
    ]
    names = {f"f{index}": encoded for index, (encoded, *_) in enumerate(fields)}
    return msgspec.defstruct(name, given, rename=names, tag_field=tag_field, tag=tag, kw_only=True)


_MAKERS: Mapping[str, Any] = {
    "literal": lambda values: Literal[tuple(values)],
    "union": lambda kinds: Union[tuple(_type_of(each) for each in kinds)],  # noqa: UP007 of as many as there are
    "tuple": lambda kinds: tuple[tuple(_type_of(each) for each in kinds)],  # type: ignore[misc]
    "list": lambda kind: list[_type_of(kind)],  # type: ignore[misc]
    "dict": lambda key, value: dict[_type_of(key), _type_of(value)],  # type: ignore[misc]
    "object": _made_object,
}
