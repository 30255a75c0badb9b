"""Idempotency keys: make the text that identifies a repeated call from the values of parameters. Pure [m9].

    order_id="7"                s:7              text; also what an explicit key="7" becomes
    order_id=7                  i:7              an integer is another key than its text
    (tenant, day)               s:acme|d:2026-03-29
    a call inside a handler     m:<message id>/2 the second one that the handler of that message awaited [M6]
    longer than 255 bytes       the SHA-256 of that text, 64 hexadecimal digits (STORE-08)

Parameter names are not part of a key: renaming one changes no key. An Enum counts as its value, as on the wire.
Instants count by the moment, in whatever zone they were given.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, date, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID  # noqa: TID251 a type of values; none is generated here

from msgspec import inspect

from coterie.errors import MalformedMessage

if TYPE_CHECKING:
    from coterie.entities.arguments import Arguments

ACCEPTED = "a key is made of text, whole numbers, UUIDs, instants, dates or an Enum of those"

_MOST_BYTES = 255 + len("s:")
"""Limit of a key as text: with the longest type and id of an entity it still fits into a PostgreSQL index entry."""
_DERIVED = "m:"
_UNSAFE = re.compile("[\\\\|\0\ud800-\udfff]")  # separators, and what a database cannot store as text
_ESCAPED = re.compile(r"\\(?:u([0-9a-f]{4})|(.))", re.DOTALL)
_PART = re.compile(r"(?:[^\\|]|\\.)+", re.DOTALL)
_KEYABLE = (
    inspect.AnyType,
    inspect.StrType,
    inspect.IntType,
    inspect.UUIDType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.EnumType,
)


class Keyed(Protocol):
    """Makes keys of arguments: an rpc, a task."""

    @property
    def what(self) -> str:
        """Its name in errors."""
        ...

    @property
    def key(self) -> tuple[str, ...]:
        """The parameters that form the key."""
        ...

    @property
    def arguments(self) -> Arguments:
        """Its arguments."""
        ...


def key_of(rpc: Keyed, payload: bytes, explicit: str | None = None) -> tuple[str | None, bytes]:
    """The key of a call as it is stored, and the digest of its arguments; None and empty bytes without a key.

    Args:
        rpc: The method or task.
            payload: The arguments, as encoded by `Arguments.encode`.
            explicit: The key of this call, which takes precedence over `key=` of the definition.

    Promise:
        Equal keys come from equal values of equal type, in every process and version. The digest leaves out
        arguments at their default, so that a caller whose method has one more parameter can repeat a call [M4].

    Not promised:
            Equal digests of sets annotated as `Any`: they travel as lists, in arbitrary order.

    Raises:
            MalformedMessage: A value cannot be a key: None, empty text, or of a type that is ambiguous as text.
            TypeError: An explicit key is not text.
    """
    if explicit is None and not rpc.key:
        return None, b""
    values, canonical = rpc.arguments.keyed(payload, rpc.key)
    key = _from_values(rpc, values) if explicit is None else _from_text(rpc, explicit)
    return key, hashlib.sha256(canonical).digest()


def derived_key(rpc: Keyed, payload: bytes, *, message_id: str, number: int) -> tuple[str, bytes]:
    """Key and digest of a persisted call without its own key that a handler awaits [M6].

    Args:
        rpc: The method that is called.
        payload: Its arguments.
        message_id: The message of the handler.
        number: The number of the call in the handler, from 1: a retry of the handler counts in the same way.
    """
    _, canonical = rpc.arguments.keyed(payload, rpc.key)
    return f"{_DERIVED}{message_id}/{number}", hashlib.sha256(canonical).digest()


def shown_key(stored: str) -> str:
    """A stored key in readable form: without tags and escapes. Two keys may look alike."""
    if ":" not in stored:
        return f"sha256 {stored}"
    if stored.startswith(_DERIVED):
        message_id, _, number = stored.removeprefix(_DERIVED).partition("/")
        return f"call {number} of message {message_id}"
    return ", ".join(_ESCAPED.sub(_unescape, part[2:]) for part in _PART.findall(stored))


def can_be_key(hint: Any) -> bool:
    """Whether a value of this annotated type can be a key, or part of one."""
    return _can_be_key(inspect.type_info(hint))


def _can_be_key(info: inspect.Type) -> bool:
    if isinstance(info, inspect.UnionType):
        return any(map(_can_be_key, info.types))
    if isinstance(info, inspect.LiteralType):
        return any(value is not None for value in info.values)
    if isinstance(info, inspect.CustomType):
        return info.cls is object or issubclass(info.cls, str | int)
    return isinstance(info, _KEYABLE)


def _from_text(rpc: Keyed, explicit: str) -> str:
    if not isinstance(explicit, str):
        raise TypeError(f"{rpc.what}: key is {explicit!r}, and an explicit key is text: write str(…)")
    return _fitted(_part(rpc, "the explicit key", explicit))


def _from_values(rpc: Keyed, values: tuple[Any, ...]) -> str:
    return _fitted("|".join(_part(rpc, name, value) for name, value in zip(rpc.key, values, strict=True)))


def _part(rpc: Keyed, name: str, value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if value is None or value == "":
        found = "nothing" if value is None else "empty text"
        hint = "give it a value: calls without one would all be taken for the same call"
        raise MalformedMessage(what=rpc.what, problem=f"{name} is {found}, which makes no key", hint=hint)
    tagged = _tagged(value)
    if tagged is None:
        problem = f"{name} is of type {type(value).__name__}, which makes no key"
        raise MalformedMessage(what=rpc.what, problem=problem, hint=ACCEPTED)
    return tagged


def _tagged(value: Any) -> str | None:
    """The value with a letter for its type; subclasses of text and numbers count as their base type."""
    if isinstance(value, str):
        return f"s:{_UNSAFE.sub(_escape, str.__str__(value))}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"i:{int.__repr__(value)}"
    if isinstance(value, UUID):
        return f"u:{value}"
    if isinstance(value, datetime):
        return f"t:{(value if value.tzinfo is None else value.astimezone(UTC)).isoformat()}"
    return f"d:{value.isoformat()}" if isinstance(value, date) else None


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if char == "\0":
        return r"\0"
    return f"\\{char}" if char in "\\|" else f"\\u{ord(char):04x}"


def _unescape(match: re.Match[str]) -> str:
    return f"\\u{match[1]}" if match[1] else match[2].replace("0", "\\0")


def _fitted(key: str) -> str:
    data = key.encode()
    return key if len(data) <= _MOST_BYTES else hashlib.sha256(data).hexdigest()
