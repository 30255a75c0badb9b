"""What one runner knows of itself, put together when somebody asks, from what is there anyway."""

from __future__ import annotations

import os
import sys
import time
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

from coterie.kernel import metrics
from coterie.observe.facts import ExcludedSeat, FailingCalls, LocalFacts
from coterie.storage import unreadable_rows

if TYPE_CHECKING:
    from coterie.entities.host.host import Host
    from coterie.kernel.supervisor import FailingTask
    from coterie.ownership.membership import Membership

_UNREADABLE_MOST = 10
"""So many rows that cannot be read are told; the log has all of them."""
_version = cache(version)  # it reads a file


class Usage(NamedTuple):
    """What a process has taken of its machine."""

    memory_bytes: int = 0
    cpu_s: float = 0.0


def usage() -> Usage:
    """Of this process."""
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
) -> LocalFacts:
    """What a runner says of itself.

    Args:
        runner: Its incarnation.
        name: What people call it.
        up_s: Since it was started.
        missing: What it waits for before it is ready; empty: nothing.
        is_draining: Whether it stops.
        seats: How many it holds.
        host: Of its entities; None: it has no entities.
        membership: Of its present life; None: it has not begun to live.
        used: What its process has taken.
        failing: Its standing tasks that failed within the last minute.
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
    """Resident now where the system tells, else at its highest."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 a tenth of the cost, for each scrape
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
