"""Facts: what is known about a cluster at one moment, before anybody judges it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from coterie.kernel.supervisor import FailingTask  # noqa: TC001 msgspec reads it

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from coterie.cron.api import CronInfo
    from coterie.singletons.api import SingletonInfo
    from coterie.storage.interface import ClusterSnapshot


class ExcludedSeat(msgspec.Struct, frozen=True, kw_only=True):
    """A seat that a runner does not take for a while (`ownership.exclusion`)."""

    seat: str
    cause: str
    """`resigned`, `failed` or `refused`."""
    times: int = 1
    """How often in a row."""
    left_s: float | None = None
    """For how long; None: as long as the runner lives."""
    error: str = ""


class FailingCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of an entity type that failed on a runner, and none succeeded since the first of them."""

    calls: int
    error: str
    """The type of the last error."""
    for_s: float
    """Since the first of them."""
    ago_s: float
    """Since the last of them."""
    is_first: bool = False
    """No call of the type has succeeded on this runner before."""


class LocalFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one runner knows of itself. Crosses the wire by names: later versions may add fields, with defaults."""

    runner: str
    """Its incarnation."""
    name: str
    version: str = ""
    """Of the program that it runs."""
    up_s: float = 0.0
    is_ready: bool = False
    missing: str = ""
    """What it waits for before it is ready; empty: nothing."""
    is_draining: bool = False
    seats: int = 0
    excluded: tuple[ExcludedSeat, ...] = ()
    """Seats that it gave up or failed on, and does not take again yet."""
    entities: dict[str, int] = {}
    """Resident ones, by type."""
    failing_entities: dict[str, dict[str, int]] = {}
    """By type, how many entities could not begin when they were called last, by the type of the error."""
    failing_calls: dict[str, FailingCalls] = {}
    """By type, the calls that failed since one succeeded, by errors that no rpc declares."""
    waiting: int = 0
    """Calls in mailboxes."""
    running: int = 0
    """Handlers at work."""
    calls: int = 0
    """Handled since it started: calls, and stored messages."""
    call_times: tuple[int, ...] = ()
    """Of these, how many took how long: by the bounds of the metric `coterie_call_duration_seconds`."""
    loop_lag_s: float = 0.0
    """The longest that the loop has made a timer wait in the last seconds."""
    storage_s: float | None = None
    """How long the last answer of the database took; None: there is none, or it does not answer."""
    storage_problem: str = ""
    clock_offset_s: float | None = None
    """This machine's clock, compared with the database's."""
    lease_left_s: float | None = None
    """How long it may trust its lease; None: it has none."""
    memory_bytes: int = 0
    cpu_s: float = 0.0
    failing: tuple[FailingTask, ...] = ()
    """Its standing tasks that failed within the last minute."""
    failed_over_s: float | None = None
    """How long ago the database was found to be another server or timeline; None: it was not."""
    unreadable: tuple[str, ...] = ()
    """Rows that it could not read and has left out, the first few."""


class Overdue(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is due and waits, or is at work."""

    id: str
    what: str
    """`Account/alice.charge`."""
    seat: str
    late_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What is known about everybody."""

    now: datetime
    """The database's clock."""
    view: ClusterSnapshot
    runners: Mapping[str, LocalFacts | None]
    """What each runner says of itself, by its incarnation; None: it did not answer."""
    singletons: tuple[SingletonInfo, ...] = ()
    crons: tuple[CronInfo, ...] = ()
    overdue: tuple[Overdue, ...] = ()
    """Of each seat the message that has waited longest, those that have waited longest first; not all, if many."""
    unpruned: Mapping[str, float] = field(default_factory=dict)
    """For how many seconds the oldest row of each table should have been pruned; those without one are left out."""
    dead: int = 0
    """Messages that were given up, counted up to a bound."""
    free_s: Mapping[str, float | None] = field(default_factory=dict)
    """For how long seats are known to have had no holder; None: they have none, and nobody knows since when."""
    staleness: float = 2.0
    """After how many intervals without progress a singleton is unhealthy: the setting of whoever asks."""

    @property
    def oldest(self) -> Overdue | None:
        """The message that has waited longest of all."""
        return self.overdue[0] if self.overdue else None
