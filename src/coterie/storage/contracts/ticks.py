"""The storage contract of crons: decided ticks, their runs, and the pauses of a cron [M8, M9].

    take ──▶ claim ──▶ note … note ──▶ ended: "ran" or "failed"
      ▲        └──▶ skipped (neighbours share a row), with a reason
      │
      ├── ticks that a former holder has claimed and not ended: taken over as the next attempt
      └── ticks triggered by hand

A tick is one row, which is claim, history and proof: kind, instant and a sequence number are its key, so that it
cannot be claimed twice. Everything but `trigger`, `pause` and `resume` is written under the fence [C1].
"""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 msgspec reads annotations at run time
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coterie.storage.interface import Claim, Written

Kind = Literal["scheduled", "manual"]
Outcome = Literal["ran", "failed", "skipped"]


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The decision about a tick, or about consecutive ticks skipped for one reason."""

    at: datetime
    until: datetime
    """The last of these ticks; equal to `at` for a single one."""
    count: int = 1
    reason: str = ""
    """Why it is skipped; empty: it runs, and this claims it."""


class TickClaim(msgspec.Struct, frozen=True):
    """Store the verdicts of the ticks after `last`, all or none. The result is a `ClaimResult`."""

    claim: Claim
    name: str
    """The cron's name."""
    schedule: str
    """The part of the claimant's definition fingerprint before its first colon: whose ticks these are [M8]."""
    last: datetime | None
    """The last tick that has a verdict, as the claimant knows it."""
    verdicts: tuple[Verdict, ...]
    """In order, at least one."""
    delay_s: float = 0.0
    """How long after its instant a tick is due."""

    @property
    def key(self) -> str:
        """The row it updates."""
        return self.claim.seat


class ClaimResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a `TickClaim`.

    written     all verdicts are stored
    fenced      the seat is no longer held
    moved       the last tick with a verdict is another one: read again
    redefined   the seat has another schedule by now, and one of these ticks is not before that took effect [M8]
    paused      one of them would run, and the cron is paused
    early       one of them is not due yet, by the database's clock
    """

    told: Literal["written", "fenced", "moved", "redefined", "paused", "early"]
    now: datetime
    """The database's clock."""


class TickNote(msgspec.Struct, frozen=True):
    """A report on a tick that this holder runs. The result is a `Written`.

    "conflict": it has ended, or is at another attempt (perhaps by this very write, tried before).
    """

    claim: Claim
    name: str
    kind: Kind
    at: datetime
    seq: int
    attempt: int
    """The attempt that this reports."""
    outcome: Outcome | None = None
    """The final outcome; None: the tick is still running."""
    again: bool = False
    """This attempt has failed and the next one begins; the row takes that attempt's number."""
    errors: tuple[str, ...] | None = None
    """The errors of all attempts; None: as stored."""
    late_s: float | None = None
    """The delay between due time and first attempt; None: as stored."""
    took_s: float | None = None
    """The duration of the last attempt."""
    note: str = ""
    done: int | None = None
    total: int | None = None
    reason: str = ""
    """Why it is skipped, if that is its outcome."""

    @property
    def key(self) -> str:
        """The cron whose rows it writes: writes of one cron are serialised."""
        return self.claim.seat


class TickRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tick as stored."""

    name: str
    kind: Kind
    at: datetime
    until: datetime
    count: int
    seq: int
    """Distinguishes ticks triggered for the same instant; 0: scheduled."""
    epoch: int
    """The epoch of the holder that runs it; 0: no holder has seen it yet."""
    attempt: int
    """The attempt's number, from 1; 0: it has not begun, or was skipped."""
    outcome: Outcome | None = None
    """None: it has not ended."""
    reason: str = ""
    errors: tuple[str, ...] = ()
    runner: str = ""
    """The name of the runner that runs it, or ran it last."""
    claimed_at: datetime
    ended_at: datetime | None = None
    late_s: float | None = None
    took_s: float | None = None
    note: str = ""
    done: int | None = None
    total: int | None = None


class CronTakeover(msgspec.Struct, frozen=True):
    """A cron that a holder takes over."""

    claim: Claim
    name: str
    definition: str | None = None
    """A description for readers, as JSON; None: as stored."""


class PauseRow(msgspec.Struct, frozen=True, gc=False):
    """A pause of a cron; `until` is None while it is paused."""

    since: datetime
    until: datetime | None


class CronBook(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of a cron, for its holder."""

    fingerprint: str
    """The fingerprint of the seat's current definition."""
    effective_from: datetime
    """Since when the present schedule has been in effect."""
    last: datetime | None
    """The last tick that has a verdict."""
    failures: int
    """The number of ticks in a row that have failed, up to now."""
    failed_at: datetime | None
    """When a tick last failed."""
    pauses: tuple[PauseRow, ...]
    """The pauses that had not ended by `last` (all, if there is none), in order."""
    open: tuple[TickRow, ...]
    """Ticks that run, or should: all belong to this holder now. By kind, instant and sequence."""
    now: datetime
    """The database's clock."""


class CronRow(msgspec.Struct, frozen=True, kw_only=True):
    """A cron, for readers that do not hold it. There is one for each seat of a cron."""

    name: str
    definition: str
    """The description as JSON; empty: no runner has held it yet."""
    effective_from: datetime
    last: datetime | None
    """The last tick that has a verdict."""
    runs: int
    """The number of ticks begun so far."""
    ran_at: datetime | None
    """When the last run began."""
    error: str | None
    """The last error of any attempt."""
    error_at: datetime | None
    failures: int
    failed_at: datetime | None
    paused_at: datetime | None
    """Since when it has been paused; None: it is not."""
    open: int
    """The number of ticks that have not ended."""
    beat_at: datetime | None
    """When one of the open ticks last began, or reported; None: all have ended."""
    latest: TickRow | None
    """The last tick to end as ran or failed, as far back as history is kept."""
    now: datetime


class TickStore(Protocol):
    """The crons of one cluster."""

    async def take(self, takes: Sequence[CronTakeover]) -> Mapping[str, CronBook]:
        """Take over crons. Returns the book of each, by name; a cron whose seat is not held is left out.

        Ticks that have not ended belong to this holder from now on: those that a former holder had begun become the
        next attempt, triggered ones the first. Idempotent.
        """
        ...

    async def claim(self, write: TickClaim) -> ClaimResult:
        """Durable when it returns "written". Concurrent claims share transactions."""
        ...

    async def note(self, write: TickNote) -> Written:
        """Durable when it returns "written". Concurrent notes share transactions.

        An outcome other than "skipped" counts: "failed" adds one failure in a row, "ran" resets the count.
        """
        ...

    async def trigger(self, name: str, *, at: datetime | None = None) -> TickRow | None:
        """Trigger a run for an instant (None: now); the holder finds the row. Returns None if there is no such cron."""
        ...

    async def pause(self, name: str) -> bool | None:
        """Let no tick begin from now on. Returns False if it was paused already, None if there is no such cron."""
        ...

    async def resume(self, name: str) -> bool | None:
        """End the pause. Returns False if it was not paused, None if there is no such cron."""
        ...

    async def get(self, name: str, kind: Kind, at: datetime, seq: int) -> TickRow | None:
        """Return one tick."""
        ...

    async def history(self, name: str, *, most: int, before: datetime | None = None) -> Sequence[TickRow]:
        """Return the last ticks, also those that have not ended, the latest instant first; with `before` only earlier
        ones."""
        ...

    async def histories(
        self, names: Sequence[str], *, most: int, since: datetime, before: datetime
    ) -> Mapping[str, Sequence[TickRow]]:
        """Return the last ticks of these crons, as `history` does for one, without those that were over before
        `since`."""
        ...

    async def list(self) -> Sequence[CronRow]:
        """Return all crons that the cluster knows (their seats), by name."""
        ...

    async def purge(self, *, older_s: float, most: int) -> int:
        """Delete up to `most` ticks that ended longer ago than that, and such pauses. Returns the number of ticks."""
        ...
