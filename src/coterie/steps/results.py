"""How results of steps are stored: by the return annotation of their function, else as the plain values they are."""

from __future__ import annotations

import inspect
from datetime import datetime
from functools import lru_cache, partial
from hashlib import blake2b
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, get_type_hints

from coterie.errors import ConfigurationError, MalformedMessage
from coterie.kernel.serialization.codec import PLAIN, codec_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coterie.kernel.serialization.codec import Codec

_PLAIN = (str, int, float, bool, bytes, datetime, type(None))
_UNTOLD = object()


def encoded(fn: Callable[..., Any], value: Any, *, what: str) -> tuple[bytes, Any]:
    """The result of a step as bytes that are known to decode, and what they decode to.

    Raises:
        MalformedMessage: It does not fit the annotation; or there is none, and it is no plain value.
    """
    codec = _codec(_function(fn))
    if codec is not None:
        return codec.settled(value, what)
    if not _is_plain(value):
        name = getattr(fn, "__name__", "the function")
        raise MalformedMessage(
            what=what,
            problem=f"{name} returned {type(value).__name__}, and has no return annotation by which to read it again",
            hint=f"annotate it: async def {name if name.isidentifier() else 'work'}(…) -> {type(value).__name__}",
        )
    return PLAIN.settled(value, what)


def decoded(fn: Callable[..., Any], data: bytes, *, what: str) -> Any:
    """The stored result of a step."""
    return (_codec(_function(fn)) or PLAIN).decode(data, what=what)


def digest(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Of what a step is given; empty if that is not data."""
    if not args and not kwargs:
        return b""
    try:
        return blake2b(PLAIN.canonical([list(args), dict(kwargs)]), digest_size=8).digest()
    except (MalformedMessage, TypeError, ValueError):
        return b""


@lru_cache(maxsize=4096)
def _codec(fn: Callable[..., Any]) -> Codec[Any] | None:
    """None: nothing says what it returns."""
    said = getattr(fn, "__annotations__", {})
    asked = SimpleNamespace(__annotations__={name: said[name] for name in ("return",) if name in said})
    try:
        told = get_type_hints(asked, globalns=getattr(fn, "__globals__", {})).get("return", _UNTOLD)
    except (NameError, TypeError, AttributeError):
        told = _UNTOLD  # a name that exists for type checkers only
    if told is _UNTOLD or told is Any:
        return None
    try:
        return codec_for(told)
    except ConfigurationError:
        return None


def _function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind a partial, a bound method, an object that can be called."""
    if type(fn) is FunctionType and not hasattr(fn, "__wrapped__"):
        return fn
    while isinstance(fn, partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if inspect.isroutine(fn):
        return getattr(fn, "__func__", fn)
    return type(fn).__call__


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_plain(each) for each in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return type(value) in _PLAIN
