"""What the annotations of a method say: the types of its parameters and of its result."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from coterie.errors import ConfigurationError
from coterie.kernel.serialization.codec import Codec, codec_for
from coterie.work.definition import refusal

if TYPE_CHECKING:
    from collections.abc import Callable

_STREAMS = (AsyncIterator, AsyncIterable, AsyncGenerator)


def hints_of(fn: Callable[..., Any], cls: type, *, what: str) -> dict[str, Any]:
    """The annotations as types, by parameter, and "return".

    Names are looked up in the module of the method; failing that, also in the class, and where the class is
    being defined: classes made inside of a function (a test) may name what is local there.
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
        hints: What `hints_of` gave.
        name: Its name there.
        what: The rpc, for errors.
        part: What it is called in errors.
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


def _local_hints(fn: Callable[..., Any], cls: type, *, what: str) -> dict[str, Any]:
    try:
        return get_type_hints(fn, localns={**locals_around(fn), **vars(cls)}, include_extras=True)
    except Exception as error:
        raise refusal(
            f"{what}: its annotations cannot be read: {error}",
            hint="annotations are needed when the program runs: import their types outside of `if TYPE_CHECKING`",
        ) from error


def locals_around(fn: Callable[..., Any]) -> dict[str, Any]:
    """The local names of the nearest caller in the method's module: the one that defines the class just now."""
    module = getattr(inspect.unwrap(fn), "__globals__", None)
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals is not module:
        frame = frame.f_back
    return {} if frame is None else dict(frame.f_locals)
