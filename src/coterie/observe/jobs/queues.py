"""Queues of jobs: what is read of them, the name of each, their lines in views, and what is wrong with them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from coterie.kernel.ids import Seat
from coterie.observe.facts import QueueFacts
from coterie.observe.view import QueueLine
from coterie.storage.contracts.jobs import QueueLimits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from coterie.observe.facts import ClusterFacts
    from coterie.storage.contracts.jobs import JobStore, QueueBacklog, QueueRow

COUNTED_MOST = 10_000
"""Jobs of one seat are counted so far."""
_PARKED_MOST = 20
"""Seats whose parked tasks are named."""
_NAMED = 3
_RATES = ((1, "s"), (60, "m"), (3_600, "h"), (86_400, "d"))


def rate_text(rate: float) -> str:
    """A rate as people write it: whole numbers where there are any.

    >>> rate_text(50.0), rate_text(0.5), rate_text(10 / 86_400)
    ('50/s', '30/m', '10/d')
    """
    for size, unit in _RATES:
        count = rate * size
        if count >= 1 and abs(count - round(count)) < 1e-6 * count:
            return f"{round(count)}/{unit}"
    return f"{rate:.3g}/s"


async def read(jobs: JobStore) -> tuple[QueueFacts, ...]:
    """All queues with what waits and runs, by name."""
    rows = await jobs.queues()
    if not rows:
        return ()
    backlogs = await jobs.backlog([row.seat for row in rows], most=COUNTED_MOST)
    parked = {each.seat: await jobs.parked(each.seat) for each in [b for b in backlogs if b.parked][:_PARKED_MOST]}
    found: dict[str, list[tuple[QueueRow, QueueBacklog]]] = defaultdict(list)
    for row, backlog in zip(rows, backlogs, strict=True):
        found[Seat.queue_name(row.seat)].append((row, backlog))
    return tuple(_facts(name, found[name], parked) for name in sorted(found))


def _facts(name: str, parts: list[tuple[QueueRow, QueueBacklog]], parked: dict[str, Sequence[str]]) -> QueueFacts:
    rows, backlogs = [row for row, _ in parts], [backlog for _, backlog in parts]
    first = rows[0]
    waiting = {task for row in rows for task in parked.get(row.seat, ())}
    pauses = [row.paused_at for row in rows if row.paused_at is not None]
    return QueueFacts(
        name=name,
        group=first.group,
        seats=tuple(row.seat for row in rows),
        ready=sum(each.ready for each in backlogs),
        later=sum(each.later for each in backlogs),
        parked=sum(each.parked for each in backlogs),
        claimed=sum(each.claimed for each in backlogs),
        dead=sum(each.dead for each in backlogs),
        oldest_s=max((each.oldest_s for each in backlogs if each.oldest_s is not None), default=None),
        parked_tasks=tuple(sorted(waiting.difference(first.paused_tasks))),
        paused_tasks=tuple(sorted(waiting.intersection(first.paused_tasks))),
        is_group_paused=first.is_group_paused,
        limits=QueueLimits(
            concurrency=first.concurrency,
            partition_concurrency=first.partition_concurrency,
            rate=first.rate,
            burst=first.burst,
        ),
        is_set=first.is_set,
        paused_at=max(pauses) if len(pauses) == len(rows) else None,
        expected_wait_s=first.expected_wait_s,
    )


def line(queue: QueueFacts, facts: ClusterFacts, problems: Sequence[str]) -> QueueLine:
    """A queue in views."""
    names = {row.id: row.name for row in facts.view.runners}
    holders = {seat.name: seat.holder for seat in facts.view.seats}
    held = {names[holder] for seat in queue.seats if (holder := holders.get(seat)) in names}
    return QueueLine(
        name=queue.name,
        group=queue.group,
        runners=tuple(sorted(held)),
        waiting=queue.ready,
        oldest_s=queue.oldest_s,
        running=queue.claimed,
        scheduled=queue.later,
        parked=queue.parked,
        dead=queue.dead,
        concurrency=queue.limits.concurrency,
        partition_concurrency=queue.limits.partition_concurrency,
        rate=queue.limits.rate,
        is_set=queue.is_set,
        paused_at=queue.paused_at,
        expected_wait_s=queue.expected_wait_s,
        problem="; ".join(problems),
    )


def troubles(queue: QueueFacts, *, free: int) -> Iterator[tuple[str, str]]:
    """What is wrong with a queue, each with its remedy. One that is paused, or at its limit as expected, is well.

    Args:
        queue: The queue.
        free: How many of its seats have had no holder for too long.
    """
    if queue.paused_at is not None or queue.is_group_paused:
        return
    if queue.ready and free:
        what = "no runner claims its jobs" if free == len(queue.seats) else f"{free} of {len(queue.seats)} seats free"
        hint = f"a runner that serves group {queue.group!r} claims them: coterie runners list shows who does"
        yield f"{_jobs(queue.ready)} waiting, and {what}", hint
    elif queue.expected_wait_s is not None and queue.oldest_s is not None and queue.oldest_s > queue.expected_wait_s:
        problem = f"its oldest job waits for {queue.oldest_s:.0f}s (expected within {queue.expected_wait_s:g}s)"
        yield f"{problem}; {_jobs(queue.ready)} waiting, {_running(queue)}", _slow_hint(queue)
    if queue.parked and (queue.parked_tasks or not queue.paused_tasks):
        tasks = ", ".join(queue.parked_tasks[:_NAMED])
        more = len(queue.parked_tasks) - _NAMED
        tasks += f" and {more} more" if more > 0 else ""
        hint = f"start a runner of group {queue.group!r} whose program has them, or cancel the jobs"
        yield f"{_jobs(queue.parked)} parked: no runner has task {tasks or '?'}", hint


def _slow_hint(queue: QueueFacts) -> str:
    most = queue.limits.concurrency
    if most is not None and queue.claimed >= most:
        return f"it runs as many as it may: coterie queues limits {queue.name} --concurrency {most * 2} allows more"
    if queue.limits.rate is not None:
        return f"it may start {rate_text(queue.limits.rate)}: coterie queues show {queue.name}"
    return "more runners, or more slots on each (setting jobs), start more at a time"


def _running(queue: QueueFacts) -> str:
    most = queue.limits.concurrency
    return f"{queue.claimed:,} running" if most is None else f"{queue.claimed:,} of {most:,} running"


def _jobs(count: int) -> str:
    if count >= COUNTED_MOST:
        return f"{count:,} jobs or more"
    return "1 job" if count == 1 else f"{count:,} jobs"
