"""What an act of the page is made of: the body of its request, what it will do, and what it has done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@dataclass(frozen=True, slots=True)
class Plan:
    """What an act will do."""

    what: str
    """The thing, for the record."""
    will: str
    count: int
    do: Callable[[], Awaitable[Done]]


@dataclass(frozen=True, slots=True)
class Done:
    """What an act has done."""

    text: str
    count: int = 1


class ActBody(Struct, forbid_unknown_fields=True):
    """The body of a request."""


def counted(count: int, word: str) -> str:
    """`1 job`, `1,204 jobs`."""
    return f"1 {word}" if count == 1 else f"{count:,} {word}s"
