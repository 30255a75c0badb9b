"""What is stored about the work on seats besides shards: who leads, when it last ran, how far it has come (S3).

Ages instead of instants go in, so that the database's clock is the only one that is ever compared; instants come out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from coterie.storage.interface import Claim

Stamped = Literal["written", "fenced"]
"""Of a stamp: it is there; or the seat is not held any more, and nothing was written [m14]."""


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """What a holder says about its work, all of it each time. That it can say so is the sign that it is alive."""

    claim: Claim
    runs: int = 0
    """How many have begun, ever."""
    ran_s: float | None = None
    """How long ago the last one began; None: as stored."""
    progress_s: float | None = None
    """How long ago there was progress; None: as stored."""
    error: str | None = None
    """The last one; None: as stored."""
    error_s: float | None = None
    note: str = ""
    done: int | None = None
    total: int | None = None

    @property
    def key(self) -> str:
        """Which row it writes."""
        return self.claim.seat


class ExecutionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about the work on a seat."""

    seat: str
    epoch: int
    """Of the holder that spoke last."""
    leader: str
    """Its name."""
    known_at: datetime
    """When anybody began to lead it for the first time."""
    since_at: datetime
    """When it began to lead."""
    runs: int
    ran_at: datetime | None
    progress_at: datetime | None
    alive_at: datetime
    error: str | None
    error_at: datetime | None
    note: str
    done: int | None
    total: int | None
    expected_s: float | None
    """How long there may be no progress, by half; None: nobody knows."""
    now: datetime
    """The database's clock when this was read."""


class Executions(Protocol):
    """One row a seat, written by its holder under the fence."""

    async def begin(self, claim: Claim, *, leader: str, expected_s: float | None) -> ExecutionRecord | None:
        """A new holder introduces itself; what was known, in its name. None: the seat is not held."""
        ...

    async def stamp(self, write: Stamp) -> Stamped:
        """Durable when it returns "written". Concurrent ones share transactions."""
        ...

    async def list(self, prefix: str) -> Sequence[ExecutionRecord]:
        """Those of all seats whose names begin so, in the order of the names."""
        ...
