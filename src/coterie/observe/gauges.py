"""Sets the gauges when they are about to be read, from facts that are known anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from coterie.kernel import metrics
from coterie.observe.health import Status
from coterie.work.pruner import TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.kernel.metrics import Meter
    from coterie.observe.facts import LocalFacts, QueueFacts
    from coterie.observe.health import Health

_QUEUES = (metrics.QUEUE_JOBS, metrics.QUEUE_OLDEST, metrics.QUEUE_PAUSED)


def sample(facts: LocalFacts, health: Health | None = None) -> None:
    """Set all gauges. Unknown values are not published: stale figures would be taken for current ones.

    Args:
        facts: What this runner knows of itself.
        health: The health of the whole cluster; None: unknown just now.
    """
    _sample_here(facts)
    _sample_cluster(health)


def _sample_here(facts: LocalFacts) -> None:
    _set(metrics.READY, float(facts.is_ready))
    _set(metrics.SEATS, facts.seats)
    _set(metrics.RUNNING, facts.running)
    _set(metrics.WAITING, facts.waiting)
    metrics.THREADS.of("busy").value = facts.threads_busy
    metrics.THREADS.of("waiting").value = facts.threads_waiting
    metrics.THREADS.of("stubborn").value = len(facts.stubborn)
    _set(metrics.LOOP_LAG, facts.loop_lag_s)
    _set(metrics.LEASE_LEFT, facts.lease_left_s)
    _set(metrics.STORAGE_LATENCY, facts.storage_s)
    _set(metrics.CLOCK_OFFSET, facts.clock_offset_s)
    _set(metrics.MEMORY, facts.memory_bytes)
    metrics.CPU.of().value = facts.cpu_s
    for series in list(metrics.ENTITIES.series.values()):
        series.value = 0  # the last entity of a type was deactivated
    for name, count in facts.entities.items():
        metrics.ENTITIES.of(name).value = count


def _sample_cluster(health: Health | None) -> None:
    _set(metrics.RUNNERS, None if health is None else health.runners)
    _set(metrics.HEALTHY_RUNNERS, None if health is None else health.healthy_runners)
    _set(metrics.SINGLETONS, None if health is None else health.singletons)
    _set(metrics.CRONS, None if health is None else health.crons)
    _set(metrics.DEAD_LETTERS, None if health is None else health.facts.dead)
    if health is None:
        for meter in (
            metrics.SHARDS,
            metrics.HEALTH,
            metrics.OLDEST_MESSAGE,
            metrics.OLDEST_INCOMING,
            metrics.PRUNE_OVERDUE,
            *_QUEUES,
        ):
            meter.forget()
        return
    metrics.SHARDS.of("owned").value = health.owned_shards
    metrics.SHARDS.of("orphaned").value = health.shards - health.owned_shards
    for status in get_args(Status):
        metrics.HEALTH.of(status).value = float(status == health.status)
    for table in TABLES:
        metrics.PRUNE_OVERDUE.of(table).value = health.facts.unpruned.get(table, 0.0)
    _set(metrics.OLDEST_MESSAGE, max((each.late_s for each in health.facts.overdue), default=0.0))
    _set(metrics.OLDEST_INCOMING, max((each.waited_s for each in health.facts.incoming), default=0.0))
    _sample_queues(health.facts.queues)


def _sample_queues(queues: Sequence[QueueFacts]) -> None:
    for meter in _QUEUES:
        meter.forget()  # a queue may be gone
    for each in queues:
        counts = {
            "waiting": each.ready,
            "running": each.claimed,
            "scheduled": each.later,
            "parked": each.parked,
            "dead": each.dead,
        }
        for state, count in counts.items():
            metrics.QUEUE_JOBS.of(each.name, state).value = count
        metrics.QUEUE_OLDEST.of(each.name).value = max(each.oldest_s or 0.0, 0.0)
        metrics.QUEUE_PAUSED.of(each.name).value = float(each.paused_at is not None)


def _set(meter: Meter, value: float | None) -> None:
    if value is None:
        meter.forget()
    else:
        meter.of().value = value
