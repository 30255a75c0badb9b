"""Sampling: gauges are set when somebody is about to read them, from facts that are known anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from coterie.durable.pruner import TABLES
from coterie.kernel import meters
from coterie.observe.health import Status

if TYPE_CHECKING:
    from coterie.kernel.metrics import Meter
    from coterie.observe.facts import LocalFacts
    from coterie.observe.health import Health


def sample(facts: LocalFacts, health: Health | None = None) -> None:
    """Set all gauges. What is not known is not published: a figure of yesterday would be taken for today's.

    Args:
        facts: What this runner knows of itself.
        health: How the whole cluster stands; None: nobody knows just now.
    """
    _sample_here(facts)
    _sample_cluster(health)


def _sample_here(facts: LocalFacts) -> None:
    _set(meters.READY, float(facts.is_ready))
    _set(meters.SEATS, facts.seats)
    _set(meters.RUNNING, facts.running)
    _set(meters.WAITING, facts.waiting)
    _set(meters.LOOP_LAG, facts.loop_lag_s)
    _set(meters.LEASE_LEFT, facts.lease_left_s)
    _set(meters.STORAGE_LATENCY, facts.storage_s)
    _set(meters.CLOCK_OFFSET, facts.clock_offset_s)
    _set(meters.MEMORY, facts.memory_bytes)
    meters.CPU.of().value = facts.cpu_s
    for series in list(meters.ENTITIES.series.values()):
        series.value = 0  # the last one of a type has left
    for name, count in facts.entities.items():
        meters.ENTITIES.of(name).value = count


def _sample_cluster(health: Health | None) -> None:
    _set(meters.RUNNERS, None if health is None else health.runners)
    _set(meters.HEALTHY_RUNNERS, None if health is None else health.healthy_runners)
    _set(meters.SINGLETONS, None if health is None else health.singletons)
    _set(meters.CRONS, None if health is None else health.crons)
    _set(meters.DEAD_LETTERS, None if health is None else health.facts.dead)
    if health is None:
        for meter in (meters.SHARDS, meters.HEALTH, meters.OLDEST_MESSAGE, meters.PRUNE_OVERDUE):
            meter.forget()
        return
    meters.SHARDS.of("owned").value = health.owned_shards
    meters.SHARDS.of("orphaned").value = health.shards - health.owned_shards
    for status in get_args(Status):
        meters.HEALTH.of(status).value = float(status == health.status)
    for table in TABLES:
        meters.PRUNE_OVERDUE.of(table).value = health.facts.unpruned.get(table, 0.0)
    _set(meters.OLDEST_MESSAGE, max((each.late_s for each in health.facts.overdue), default=0.0))


def _set(meter: Meter, value: float | None) -> None:
    if value is None:
        meter.forget()
    else:
        meter.of().value = value
