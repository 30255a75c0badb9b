"""The storage contract of the record of acts: what people did with the page and with commands."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 msgspec reads annotations at run time
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """An act."""

    who: str
    """Who did it, as far as that is known."""
    origin: str
    """From where: an address, or the command line."""
    act: str
    """`retry`, `drain`, …"""
    what: str
    """The thing that it was done to."""
    result: str
    """What was done, or why it was refused."""


class ActRow(Act, frozen=True, kw_only=True):
    """An act as stored."""

    id: int
    at: datetime
    """By the database's clock."""


class Activity(Protocol):
    """The record of acts."""

    async def add(self, act: Act) -> None:
        """Durable when it returns."""
        ...

    async def list(self, *, before: int | None = None, most: int = 100) -> Sequence[ActRow]:
        """Return acts, the newest first, before the one of this id."""
        ...

    async def purge(self, *, older_s: float, most: int) -> int:
        """Delete up to `most` acts that are older than that. Returns the number deleted."""
        ...
