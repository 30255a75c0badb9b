"""Reads the annotations of a method, and encodes the arguments of its calls.

Arguments are bound, encoded and checked by the caller, then decoded and checked again at the entity. They travel as a
map by parameter name, so that two versions of a program understand each other: the receiver drops a parameter that it
does not know, and one that the caller did not know takes its default.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from functools import partial
from inspect import Parameter
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import msgspec

from coterie.errors import ConfigurationError, MalformedMessage, quoted
from coterie.kernel.serialization.codec import Codec, canonical, codec_for
from coterie.work.definition import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_STREAMS = (AsyncIterator, AsyncIterable, AsyncGenerator)


def hints_of(fn: Callable[..., Any], cls: type | None, *, what: str) -> dict[str, Any]:
    """The annotations as types, by parameter, and "return".

    Names are looked up in the module of the function; failing that, also in its class, if it is a method, and in the
    scope that defines it: a class or function defined inside a function (a test) may use names that are local there.
    """
    try:
        return get_type_hints(fn, include_extras=True)
    except NameError:
        return _local_hints(fn, cls, what=what)
    except Exception as error:  # an annotation is code, which may raise anything
        raise refusal(f"{what}: its annotations cannot be read: {type(error).__name__}: {error}") from error


def codec_of(hints: dict[str, Any], name: str, *, what: str, part: str, example: str) -> Codec[Any]:
    """The codec of one annotated part.

    Args:
            hints: The result of `hints_of`.
            name: The name of the part in `hints`.
            what: The rpc, for errors.
            part: The name of the part in errors.
            example: What to write if the annotation is missing.
    """
    if name not in hints:
        raise refusal(f"{what}: {part} has no annotation", hint=f"write {example}, or Any if it can be anything")
    try:
        return codec_for(hints[name])
    except ConfigurationError as error:
        raise refusal(f"{what}: {part}: {error.problem}", hint=error.hint) from error


def item_hints(hints: dict[str, Any], *, what: str) -> dict[str, Any]:
    """The hints of a stream with the type of one item as "return"."""
    declared = hints.get("return")
    if get_origin(declared) not in _STREAMS:
        raise refusal(
            f"{what} is an async generator, and its result is not annotated as one",
            hint="write -> AsyncIterator[…] with the type of what it yields",
        )
    return {**hints, "return": get_args(declared)[0]}


def _local_hints(fn: Callable[..., Any], cls: type | None, *, what: str) -> dict[str, Any]:
    names = {} if cls is None else vars(cls)
    try:
        return get_type_hints(fn, localns={**locals_around(fn), **names}, include_extras=True)
    except Exception as error:
        raise refusal(
            f"{what}: its annotations cannot be read: {error}",
            hint="annotations are needed when the program runs: import their types outside of `if TYPE_CHECKING`",
        ) from error


def locals_around(fn: Callable[..., Any]) -> dict[str, Any]:
    """The local names of the nearest caller in the method's module: the one that is defining the class."""
    module = getattr(inspect.unwrap(fn), "__globals__", None)
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals is not module:
        frame = frame.f_back
    return {} if frame is None else dict(frame.f_locals)


_astuple = msgspec.structs.astuple
_NONE: dict[str, Any] = {}
_JSON_MAP = msgspec.json.Decoder(dict[str, Any]).decode
_IMMUTABLE = (str, int, float, bool, bytes, type(None))


class Arguments:
    """Encodes and decodes the arguments of one method, or of one function.

    The parameters are the fields of a Struct created once, which binds arguments to them in C: no call inspects a
    signature.

    Args:
        fn: The method or function.
        hints: Its annotations.
        what: The rpc or task, for errors.
        is_method: Whether its first parameter is self.

    Promise:
        `decode` accepts what `encode` returned, in this version of the program. Both refuse what does not fit the
        annotations.
    """

    __slots__ = ("_before", "_checked", "_decode", "_from_json", "_keywords", "_make", "_signature", "_what", "names")

    def __init__(self, fn: Callable[..., Any], hints: dict[str, Any], *, what: str, is_method: bool = True) -> None:
        self._signature = inspect.signature(fn)
        self._before = (None,) if is_method else ()
        parameters = _parameters(self._signature, what=what, is_method=is_method)
        by_keyword = [one for one in parameters if one.kind is Parameter.KEYWORD_ONLY]
        self._what = what
        self._keywords = tuple(one.name for one in by_keyword)
        self.names = tuple(one.name for one in parameters)
        self._make = _struct(parameters, by_keyword, [_field(one, hints, what=what) for one in parameters])
        codec: Codec[Any] = Codec(self._make)  # not `codec_for`: its cache would keep the Struct for ever
        self._checked, self._decode, self._from_json = codec.checked, codec.decode, codec.from_json

    @property
    def fields(self) -> Sequence[msgspec.structs.FieldInfo]:
        """The parameters with their types and defaults, for a description."""
        return msgspec.structs.fields(self._make)

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Encode arguments into bytes that are known to decode.

        Raises:
            TypeError: Too many, too few or unknown arguments, as for a plain method.
            MalformedMessage: One does not fit its annotation; which one, and why.
        """
        try:
            values = self._make(*args, **kwargs)
        except TypeError:
            self._refuse_binding(args, kwargs)
            raise
        return self._checked(values, self._what)

    def from_json(self, data: bytes) -> bytes:
        """Encode the arguments of a JSON map by parameter name, for callers that do not have the method.

        Raises:
            MalformedMessage: It is not a map, names an unknown parameter, or a value does not fit.
        """
        try:
            given = _JSON_MAP(data)
        except (ValueError, RecursionError):
            problem, hint = "its arguments are no JSON map", f"write {self._shape()}"
            raise MalformedMessage(what=self._what, problem=problem, hint=hint) from None
        unknown = next((name for name in given if name not in self.names), None)
        if unknown is not None:
            problem = f"it has no parameter {quoted(unknown)}"
            raise MalformedMessage(what=self._what, problem=problem, hint=f"write {self._shape()}")
        return self._checked(self._from_json(data, what=self._what), what=self._what)

    def _shape(self) -> str:
        return "{" + ", ".join(f'"{name}": …' for name in self.names) + "}"

    def decode(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, by position and by keyword.

        Raises:
            MalformedMessage: They do not fit.
        """
        values = _astuple(self._decode(data, self._what))
        if not self._keywords:
            return values, _NONE
        split = len(values) - len(self._keywords)
        return values[:split], dict(zip(self._keywords, values[split:], strict=True))

    def value(self, data: bytes, name: str) -> Any:
        """The value of one parameter. Raises what `decode` raises."""
        return getattr(self._decode(data, self._what), name)

    def keyed(self, data: bytes, names: Sequence[str]) -> tuple[tuple[Any, ...], bytes]:
        """The values of these parameters, and all arguments in one canonical form, for comparing [M4].

        Promise:
            Arguments at their default are left out. Those in `names` count by their position there, not by name [m9].
        """
        values = self._decode(data, self._what)
        chosen = tuple(getattr(values, name) for name in names)
        for name in names:
            setattr(values, name, msgspec.UNSET)
        return chosen, canonical(values) + canonical(chosen)

    def _refuse_binding(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise Python's own error for the wrong arguments."""
        try:
            self._signature.bind(*self._before, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._what}(): {error}") from None


def _parameters(signature: inspect.Signature, *, what: str, is_method: bool) -> Sequence[Parameter]:
    """All parameters but self."""
    found = list(signature.parameters.values())
    if is_method and (not found or found[0].kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)):
        raise refusal(
            f"{what} takes no self", hint="an rpc is a method of an entity: write self as its first parameter"
        )
    several = next((one for one in found if one.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)), None)
    if several is not None:
        raise refusal(
            f"{what} takes {str(several).split(':')[0]}, which has no type of its own for each argument",
            hint=f"name the parameters, or take one list or map: {several.name}: list[int]",
        )
    return found[1:] if is_method else found


def _struct(parameters: Sequence[Parameter], by_keyword: Sequence[Parameter], fields: list[Any]) -> Any:
    """A Struct with these fields; keyword-only ones come from a base, since a Struct has only such fields or none."""
    split = len(parameters) - len(by_keyword)
    base = msgspec.defstruct("Keywords", fields[split:], kw_only=True, gc=False)
    return msgspec.defstruct("Arguments", fields[:split], bases=(base,), gc=False)


def _field(one: Parameter, hints: dict[str, Any], *, what: str) -> Any:
    codec = codec_of(hints, one.name, what=what, part=f"parameter {one.name}", example=f"{one.name}: int")
    if one.default is Parameter.empty:
        return one.name, hints[one.name]
    return one.name, hints[one.name], _default(one, codec, what=what)


def _default(one: Parameter, codec: Codec[Any], *, what: str) -> Any:
    """The default as a field takes it: mutable defaults are copied, so that no two calls share one."""
    try:
        codec.checked(one.default, what=what)
    except MalformedMessage as error:
        problem = f"the default of parameter {one.name} does not fit its annotation: {error.problem}"
        raise refusal(f"{what}: {problem}") from error
    if isinstance(one.default, _IMMUTABLE):
        return msgspec.field(default=one.default)
    return msgspec.field(default_factory=partial(codec.copy, one.default))
