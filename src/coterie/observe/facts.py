"""The facts about a cluster at one moment, before they are judged.

Each runner assembles its own facts on request, from data that it has anyway.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 msgspec reads annotations at run time
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from coterie.kernel import metrics
from coterie.kernel.supervisor import FailingTask  # noqa: TC001 msgspec reads it
from coterie.storage import unreadable_rows
from coterie.storage.contracts.jobs import QueueLimits
from coterie.work.threads import StubbornBody  # noqa: TC001 as above

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coterie.cron.api import CronInfo
    from coterie.entities.host.host import Host
    from coterie.ownership.membership import Membership
    from coterie.singletons.api import SingletonInfo
    from coterie.storage.contracts.pauses import Pause
    from coterie.storage.interface import ClusterSnapshot
    from coterie.work.threads import ThreadUse


class ExcludedSeat(msgspec.Struct, frozen=True, kw_only=True):
    """A seat that a runner does not claim for a while (`ownership.exclusion`)."""

    seat: str
    cause: str
    """`resigned`, `failed` or `refused`."""
    times: int = 1
    """Consecutive exclusions."""
    left_s: float | None = None
    """Time until it ends; None: it lasts as long as the runner."""
    error: str = ""


class FailingCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of an entity type that failed on a runner, with no success since the first of them."""

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
    """What one runner knows of itself. Sent by field names: later versions may add fields, with defaults."""

    runner: str
    """Its incarnation."""
    name: str
    version: str = ""
    """Version of the program that it runs."""
    up_s: float = 0.0
    is_ready: bool = False
    missing: str = ""
    """What it waits for before it is ready; empty: nothing."""
    is_draining: bool = False
    seats: int = 0
    excluded: tuple[ExcludedSeat, ...] = ()
    """Seats that it resigned or failed on, and does not claim again yet."""
    entities: dict[str, int] = {}
    """Active entities, by type."""
    failing_entities: dict[str, dict[str, int]] = {}
    """By type, the number of entities whose last activation failed, by the type of the error."""
    failing_calls: dict[str, FailingCalls] = {}
    """By type, the calls that failed since the last success, with errors that no rpc declares."""
    waiting: int = 0
    """Calls in mailboxes."""
    running: int = 0
    """Running handlers."""
    calls: int = 0
    """Calls and persisted messages handled since the start."""
    call_times: tuple[int, ...] = ()
    """Their durations as a histogram, with the buckets of the metric `coterie_call_duration_seconds`."""
    loop_lag_s: float = 0.0
    """The longest delay of a timer by the event loop in the last seconds."""
    storage_s: float | None = None
    """Duration of the last database query; None: there was none, or the database does not respond."""
    storage_problem: str = ""
    clock_offset_s: float | None = None
    """The offset of this machine's clock from the database's."""
    lease_left_s: float | None = None
    """How long it may trust its lease; None: it has none."""
    memory_bytes: int = 0
    cpu_s: float = 0.0
    failing: tuple[FailingTask, ...] = ()
    """Its background tasks that failed within the last minute."""
    failed_over_s: float | None = None
    """How long ago the database turned out to be another server or timeline; None: it did not."""
    threads_busy: int = 0
    """Plain functions that run in threads."""
    threads_waiting: int = 0
    """Plain functions that wait for a thread."""
    threads_most: int = 0
    """The setting `threads`; 0: it is not known, since the runner's version does not say it."""
    stubborn: tuple[StubbornBody, ...] = ()
    """Those that were cancelled and still run."""
    unreadable: tuple[str, ...] = ()
    """Rows that it could not read and has skipped, the first few."""


class Overdue(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is due and pending, or running."""

    id: str
    what: str
    """`Account/alice.charge`."""
    seat: str
    late_s: float


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """The call from SQL that has waited longest of those of one type, or the start of one workflow."""

    id: str
    what: str
    """`entity Account`, `workflow order`."""
    waited_s: float
    rows: int = 1
    """How many of that type wait, counted up to a bound."""


class QueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of jobs, or the tasks of a group that have no queue. Numbers are counted up to a bound."""

    name: str
    """As the program names it; `default:*` are the tasks of group `default` that have no queue."""
    group: str
    seats: tuple[str, ...]
    """Where its jobs are claimed: one, and several without a queue."""
    ready: int = 0
    later: int = 0
    """Jobs that wait for their time, or for another attempt."""
    parked: int = 0
    """Jobs of tasks that are paused, or that no living runner of the group has."""
    claimed: int = 0
    dead: int = 0
    oldest_s: float | None = None
    """How long the oldest ready job has been due; None: there is none."""
    parked_tasks: tuple[str, ...] = ()
    """Those that no runner has, of the tasks whose jobs are parked."""
    paused_tasks: tuple[str, ...] = ()
    """Those that are paused, likewise."""
    is_group_paused: bool = False
    limits: QueueLimits = QueueLimits()
    """Those in force."""
    is_set: bool = False
    """Whether they were set at run time."""
    paused_at: datetime | None = None
    expected_wait_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The facts about the whole cluster."""

    now: datetime
    """The database's clock."""
    view: ClusterSnapshot
    runners: Mapping[str, LocalFacts | None]
    """The facts of each runner, by its incarnation; None: it did not reply."""
    singletons: tuple[SingletonInfo, ...] = ()
    crons: tuple[CronInfo, ...] = ()
    overdue: tuple[Overdue, ...] = ()
    """The longest waiting message of each seat, longest waiting first; not all, if there are many."""
    incoming: tuple[Incoming, ...] = ()
    """What SQL has sent and no runner has moved yet, the longest waiting first; not all, if there are many types."""
    queues: tuple[QueueFacts, ...] = ()
    """The queues of jobs, by name."""
    pauses: tuple[Pause, ...] = ()
    """Tasks, entity types and groups that are paused; queues, crons and schedules have that themselves."""
    unpruned: Mapping[str, float] = field(default_factory=dict)
    """By table, for how many seconds its oldest row is overdue for pruning; tables without such rows are left out."""
    dead: int = 0
    """Dead messages, counted up to a bound."""
    free_s: Mapping[str, float | None] = field(default_factory=dict)
    """For how long seats are known to have had no holder; None: they have none, since an unknown time."""
    staleness: float = 2.0
    """After how many intervals without progress a singleton is unhealthy: the setting of the reading process."""

    @property
    def oldest(self) -> Overdue | None:
        """The message that has waited longest of all."""
        return self.overdue[0] if self.overdue else None


_UNREADABLE_MOST = 10
"""Number of unreadable rows that are reported; the log has all of them."""
_STUBBORN_MOST = 10
"""Number of stubborn plain functions that are reported; the log has all of them."""
_version = cache(version)  # it reads a file


class Usage(NamedTuple):
    """Resources that a process has used."""

    memory_bytes: int = 0
    cpu_s: float = 0.0


def usage() -> Usage:
    """Resource usage of this process."""
    return Usage(_memory_bytes(), time.process_time())


def facts_of(
    *,
    runner: str,
    name: str,
    up_s: float,
    missing: str,
    is_draining: bool,
    seats: int,
    host: Host | None,
    membership: Membership | None,
    used: Usage,
    failing: tuple[FailingTask, ...] = (),
    threads: ThreadUse,
    threads_most: int,
) -> LocalFacts:
    """Assemble the facts of a runner.

    Args:
        runner: Its incarnation.
        name: Its display name.
        up_s: Seconds since it was started.
        missing: What it waits for before it is ready; empty: nothing.
        is_draining: Whether it is shutting down.
        seats: The number of seats it holds.
        host: Host of its entities; None: it has no entities.
        membership: Its current membership; None: it has not joined yet.
        used: Resource usage of its process.
        failing: Its background tasks that failed within the last minute.
        threads: How its threads are used.
        threads_most: How many plain functions may run at once.
    """
    vitals = None if membership is None else membership.vitals
    trust = None if membership is None else membership.trust
    waiting, running = (0, 0) if host is None else host.queued()
    return LocalFacts(
        runner=runner,
        name=name,
        version=_version("coterie"),
        up_s=up_s,
        is_ready=not missing,
        missing=missing,
        is_draining=is_draining or (membership is not None and membership.is_leaving),
        seats=seats,
        excluded=() if membership is None else _excluded(membership),
        entities={} if host is None else host.census(),
        failing_entities={} if host is None else host.failing(),
        failing_calls={} if host is None else _failing_calls(host),
        waiting=waiting,
        running=running,
        calls=0 if host is None else host.counts.replied + host.counts.failed + host.counts.stored,
        call_times=tuple(metrics.CALL_DURATION.together()),
        loop_lag_s=0.0 if vitals is None else vitals.lag_s,
        storage_s=None if vitals is None else vitals.storage_s,
        storage_problem="" if vitals is None else vitals.storage_problem,
        clock_offset_s=None if vitals is None else vitals.clock_offset_s,
        lease_left_s=trust.left_s if trust is not None and trust.holds else None,
        memory_bytes=used.memory_bytes,
        cpu_s=used.cpu_s,
        failing=failing,
        failed_over_s=None if vitals is None else vitals.failed_over_s,
        threads_busy=threads.busy,
        threads_waiting=threads.waiting,
        threads_most=threads_most,
        stubborn=threads.stubborn[:_STUBBORN_MOST],
        unreadable=tuple(map(str, unreadable_rows.found()[:_UNREADABLE_MOST])),
    )


def _excluded(membership: Membership) -> tuple[ExcludedSeat, ...]:
    return tuple(
        ExcludedSeat(seat=seat, cause=each.cause, times=each.times, left_s=left_s, error=each.error)
        for seat, (each, left_s) in sorted(membership.excluded().items())
    )


def _failing_calls(host: Host) -> dict[str, FailingCalls]:
    return {name: FailingCalls(**streak._asdict()) for name, streak in host.defects().items()}


def _memory_bytes() -> int:
    """Resident memory now where the system reports it, else its peak."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 a tenth of the cost, for each scrape
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
