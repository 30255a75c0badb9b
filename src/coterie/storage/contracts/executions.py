"""The stored record of work on seats other than shards: the leader, its last run and its progress (S3).

Writes pass ages instead of instants, so that only the database's clock is ever compared; reads return instants.
"""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 msgspec reads annotations at run time
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.interface import Claim

Stamped = Literal["written", "fenced"]
"""The result of a stamp: stored; or the seat is no longer held, and nothing was written [m14]."""


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """A holder's report about its work, complete each time. The report itself is the sign of life."""

    claim: Claim
    runs: int = 0
    """Number of runs begun so far."""
    ran_s: float | None = None
    """How long ago the last run began; None: as stored."""
    progress_s: float | None = None
    """How long ago it last made progress; None: as stored."""
    error: str | None = None
    """The last error; None: as stored."""
    error_s: float | None = None
    note: str = ""
    done: int | None = None
    total: int | None = None

    @property
    def key(self) -> str:
        """The row it writes."""
        return self.claim.seat


class ExecutionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of the work on a seat."""

    seat: str
    epoch: int
    """The epoch of the holder that reported last."""
    leader: str
    """The name of that holder."""
    known_at: datetime
    """When the seat had a leader for the first time."""
    since_at: datetime
    """When the present leader began to lead."""
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
    """The expected interval between signs of progress; None: unknown."""
    now: datetime
    """The database's clock when this was read."""


class Executions(Protocol):
    """One row per seat, written by its holder under the fence."""

    async def begin(self, claim: Claim, *, leader: str, expected_s: float | None) -> ExecutionRecord | None:
        """Record a new holder. Returns the row, now in its name, or None if the seat is not held."""
        ...

    async def stamp(self, write: Stamp) -> Stamped:
        """Durable when it returns "written". Concurrent stamps share transactions."""
        ...

    async def list(self, prefix: str) -> Sequence[ExecutionRecord]:
        """The records of all seats whose names begin with `prefix`, in the order of the names."""
        ...
