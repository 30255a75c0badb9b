"""What is stored about crons: which ticks have their verdict, how each run went, and when a cron was paused [M8, M9].

    take ──▶ claim ──▶ note … note ──▶ ended: "ran" or "failed"
      ▲        └──▶ skipped (neighbours share a row), with a reason
      │
      ├── what a former holder has claimed and not ended: ours from now on, as the next attempt
      └── what somebody has triggered by hand

A tick is one row, which is claim, history and proof: kind, instant and a sequence number are its key, so that nobody
can claim it twice. All of it but `trigger`, `pause` and `resume` is written under the fence [C1].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from coterie.storage.interface import Claim, Written

Kind = Literal["scheduled", "manual"]
Outcome = Literal["ran", "failed", "skipped"]


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What happens to a tick, or to neighbours that are skipped for one reason."""

    at: datetime
    until: datetime
    """The last of them; of one tick the same as `at`."""
    count: int = 1
    reason: str = ""
    """Why it is skipped; empty: it runs, and this claims it."""


class TickClaim(msgspec.Struct, frozen=True):
    """Give the ticks after `last` their verdicts, all of these or none. The result is a `ClaimResult`."""

    claim: Claim
    name: str
    """Of the cron."""
    schedule: str
    """The part of our definition's fingerprint before its first colon: whose ticks these are [M8]."""
    last: datetime | None
    """The last tick that has a verdict, as we know it."""
    verdicts: tuple[Verdict, ...]
    """In order, at least one."""
    delay_s: float = 0.0
    """How long after its instant a tick is due."""

    @property
    def key(self) -> str:
        """Whose row it moves."""
        return self.claim.seat


class ClaimResult(msgspec.Struct, frozen=True, gc=False):
    """What became of a `TickClaim`.

    written     all of it is there
    fenced      the seat is not held any more
    moved       another tick is the last one: look again
    redefined   the seat has another schedule by now, and one of these ticks is not before that took effect [M8]
    paused      one of them would run, and the cron is paused
    early       one of them is not due yet, by the database's clock
    """

    told: Literal["written", "fenced", "moved", "redefined", "paused", "early"]
    now: datetime
    """The database's clock."""


class TickNote(msgspec.Struct, frozen=True):
    """How a tick that this holder runs is getting on. The result is a `Written`.

    "conflict": it has ended, or is at another attempt (perhaps because of this very write, asked before).
    """

    claim: Claim
    name: str
    kind: Kind
    at: datetime
    seq: int
    attempt: int
    """Which attempt this is about."""
    outcome: Outcome | None = None
    """How the tick has ended; None: it goes on."""
    again: bool = False
    """This attempt has failed and the next one begins; the row has that attempt's number from now on."""
    errors: tuple[str, ...] | None = None
    """Those of all attempts; None: as stored."""
    late_s: float | None = None
    """How long after it was due its first attempt began; None: as stored."""
    took_s: float | None = None
    """How long its last attempt took."""
    note: str = ""
    done: int | None = None
    total: int | None = None
    reason: str = ""
    """Why it is skipped, if that is its outcome."""

    @property
    def key(self) -> str:
        """Whose rows it writes: two of one cron go one after another."""
        return self.claim.seat


class TickRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tick as it is stored."""

    name: str
    kind: Kind
    at: datetime
    until: datetime
    count: int
    seq: int
    """Tells apart ticks that were triggered for the same instant; 0: scheduled."""
    epoch: int
    """Of the holder that runs it; 0: nobody has seen it yet."""
    attempt: int
    """The first one is 1; 0: it has not begun, or was skipped."""
    outcome: Outcome | None
    """None: it is not over."""
    reason: str
    errors: tuple[str, ...]
    runner: str
    """The name of the runner that has it, or had it last."""
    claimed_at: datetime
    ended_at: datetime | None
    late_s: float | None
    took_s: float | None
    note: str
    done: int | None
    total: int | None


class CronTakeover(msgspec.Struct, frozen=True):
    """A cron that a holder looks after."""

    claim: Claim
    name: str
    definition: str | None = None
    """What others shall be told about it, JSON; None: as stored."""


class PauseRow(msgspec.Struct, frozen=True, gc=False):
    """From when to when a cron was paused; `until` is None while it is."""

    since: datetime
    until: datetime | None


class CronBook(msgspec.Struct, frozen=True, kw_only=True):
    """All that a holder needs to know about a cron."""

    fingerprint: str
    """Of the seat's current definition."""
    effective_from: datetime
    """Since when the schedule is what it is."""
    last: datetime | None
    """The last tick that has a verdict."""
    failures: int
    """How many ticks in a row have failed, up to now."""
    failed_at: datetime | None
    """When the last of all that failed did."""
    pauses: tuple[PauseRow, ...]
    """Those that had not ended by `last` (all, if there is none), in order."""
    open: tuple[TickRow, ...]
    """What runs, or should: all of it is this holder's now. By kind, instant and sequence."""
    now: datetime
    """The database's clock."""


class CronRow(msgspec.Struct, frozen=True, kw_only=True):
    """A cron, for those who look at it from outside. There is one for each seat of a cron."""

    name: str
    definition: str
    """JSON; empty: nobody has held it yet."""
    effective_from: datetime
    last: datetime | None
    """The last tick that has a verdict."""
    runs: int
    """How many ticks have begun, ever."""
    ran_at: datetime | None
    """When the last one began."""
    error: str | None
    """The last one of all attempts, ever."""
    error_at: datetime | None
    failures: int
    failed_at: datetime | None
    paused_at: datetime | None
    """Since when it is paused; None: it is not."""
    open: int
    """How many ticks are not over."""
    beat_at: datetime | None
    """When one of these last began, or gave a sign; None: all are over."""
    latest: TickRow | None
    """Of those that ended as ran or failed the one that ended last, as far back as history is kept."""
    now: datetime


class TickStore(Protocol):
    """The crons of one cluster."""

    async def take(self, takes: Sequence[CronTakeover]) -> Mapping[str, CronBook]:
        """Look after crons: what is known of each, by name; one that is missing is not held.

        What is not over is this holder's from now on: what a former one had begun becomes the next attempt, what was
        triggered the first. Asked twice it does nothing more.
        """
        ...

    async def claim(self, write: TickClaim) -> ClaimResult:
        """Durable when it returns "written". Concurrent ones share transactions."""
        ...

    async def note(self, write: TickNote) -> Written:
        """Durable when it returns "written". Concurrent ones share transactions.

        An outcome other than "skipped" counts: "failed" is one more failure in a row, "ran" is the end of them.
        """
        ...

    async def trigger(self, name: str, *, at: datetime | None = None) -> TickRow | None:
        """Have it run once more, for an instant (None: now); its holder finds the row. None: there is no such cron."""
        ...

    async def pause(self, name: str) -> bool | None:
        """No tick begins from now on; False: it was paused already; None: there is no such cron."""
        ...

    async def resume(self, name: str) -> bool | None:
        """The end of the pause; False: it was not paused; None: there is no such cron."""
        ...

    async def get(self, name: str, kind: Kind, at: datetime, seq: int) -> TickRow | None:
        """One tick."""
        ...

    async def history(self, name: str, *, most: int, before: datetime | None = None) -> Sequence[TickRow]:
        """The last ticks, those for the latest instants first, also those that are not over; only those earlier than
        `before`, if it is given."""
        ...

    async def list(self) -> Sequence[CronRow]:
        """All crons that the cluster knows (their seats), by name."""
        ...

    async def purge(self, *, older_s: float, most: int) -> int:
        """Delete up to `most` ticks that ended longer ago than that, and pauses likewise; how many ticks it were."""
        ...
