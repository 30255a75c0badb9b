"""`cluster.queues`: list queues, pause and resume them, and change their limits while they are in use."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypedDict, Unpack

from coterie.kernel.ids import Seat
from coterie.storage.contracts.jobs import QueueLimits
from coterie.tasks.definition import count_of, default_burst, rate_of
from coterie.tasks.frames import QueueChanged
from coterie.work.definition import not_in_cluster, refusal, refuse_unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from coterie.client import Client
    from coterie.storage.contracts.jobs import QueueBacklog, QueueRow

_COUNTED_MOST = 10_000
"""Counts stop here: they are for people, and more would be read from disk for nothing."""


class QueueLimitOptions(TypedDict, total=False):
    """The limits that `cluster.queues.limits` sets. None: no limit; what is left out stays as it is."""

    concurrency: int | None
    """How many of its jobs run at once."""
    rate: str | None
    """How many start in a second, minute, hour or day: `50/s`, `10/d`."""
    burst: int | None
    """How many may start at once after a pause."""
    partition_concurrency: int | None
    """How many jobs of one partition run at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """A queue at the time it was read. Its limits are those in force; counts stop at 10,000."""

    name: str
    group: str
    concurrency: int | None
    partition_concurrency: int | None
    rate: float | None
    """Starts a second."""
    burst: float | None
    is_set: bool
    """Whether its limits were set at run time: they beat those of the definition until they are reset."""
    paused_at: datetime | None
    """When it was paused; None: it is not."""
    ready: int
    """Jobs that wait for their turn."""
    later: int
    """Jobs that are not due yet."""
    parked: int
    """Jobs that no runner can run now."""
    running: int
    dead: int
    oldest: timedelta | None
    """How long the oldest ready job has been due."""


class Queues:
    """The API of `cluster.queues`.

    Example:
        ```python
        await cluster.queues.pause("emails")
        await cluster.queues.limits("emails", concurrency=5, rate="10/s")
        await cluster.queues.resume("emails")
        ```

    Promise:
        Once `pause` has returned, no job of the queue is started; those that run end. Changed limits hold within 2 s.
        Both survive restarts and new versions of the program.

    Args:
        acting: Returns the runner or client to act through.
        writing: Likewise, for a write; called with its name.
    """

    def __init__(self, acting: Callable[[], Client], writing: Callable[[str], Client]) -> None:
        self._acting = acting
        self._writing = writing

    async def list(self) -> Sequence[QueueInfo]:
        """All queues that a runner has defined so far, by name."""
        rows = await self._rows()
        counts = await self._acting().storage.jobs.backlog([row.seat for row in rows], most=_COUNTED_MOST)
        counted = {each.seat: each for each in counts}
        return [_info(row, counted.get(row.seat)) for row in rows]

    async def get(self, name: str) -> QueueInfo:
        """One queue.

        Raises:
            ValueError: There is none of this name, or no runner has defined it yet.
        """
        return await self._shown(await self._row(name))

    async def pause(self, name: str) -> bool:
        """Start no job of a queue until `resume`.

        Returns:
            False if it was paused already.

        Raises:
            ValueError: There is no such queue.
        """
        return await self._pause(name, paused=True, what="cluster.queues.pause")

    async def resume(self, name: str) -> bool:
        """Let the jobs of a queue start again.

        Returns:
            False if it was not paused.

        Raises:
            ValueError: There is no such queue.
        """
        return await self._pause(name, paused=False, what="cluster.queues.resume")

    async def limits(self, name: str, *, reset: bool = False, **limits: Unpack[QueueLimitOptions]) -> QueueInfo:
        """Change limits of a queue, in force until they are reset, whatever programs define.

        Args:
            name: The name of the queue.
            reset: Let the limits of the definition be in force again.
            limits: See `QueueLimitOptions`.

        Raises:
            ValueError: There is no such queue.
            ConfigurationError: A limit is invalid.
        """
        what = f"queue {name!r}"
        refuse_unknown(limits, QueueLimitOptions.__annotations__, what=what)
        if reset == bool(limits):
            raise refusal(
                f"limits of {what} are {'reset and set at once' if reset else 'neither set nor reset'}",
                hint="write concurrency=5, rate=None or the like; or reset=True alone",
            )
        here, row = self._writing("cluster.queues.limits"), await self._row(name)
        changed = await here.storage.jobs.set_limits(row.seat, None if reset else _changed(row, limits, what=what))
        self._tell(here, row.seat)
        return await self._shown(changed or row)

    async def _pause(self, name: str, *, paused: bool, what: str) -> bool:
        here, row = self._writing(what), await self._row(name)
        if (row.paused_at is not None) == paused:
            return False
        await here.storage.jobs.pause(row.seat, paused=paused)
        self._tell(here, row.seat)
        return True

    def _tell(self, here: Client, seat: str) -> None:
        here.jobs.tell(seat, QueueChanged(seat))

    async def _shown(self, row: QueueRow) -> QueueInfo:
        counts = await self._acting().storage.jobs.backlog([row.seat], most=_COUNTED_MOST)
        return _info(row, counts[0] if counts else None)

    async def _row(self, name: str) -> QueueRow:
        found = None if ":" in name else await self._acting().storage.jobs.queue(Seat.queue(name))
        if found is None:
            raise not_in_cluster(name, [_name(row) for row in await self._rows()], kind="queue")
        return found

    async def _rows(self) -> Sequence[QueueRow]:
        """Those that have a name: the seats of jobs without a queue have no limits."""
        return [row for row in await self._acting().storage.jobs.queues() if ":" not in _name(row)]


def _name(row: QueueRow) -> str:
    return Seat.split(row.seat)[1]


def _changed(row: QueueRow, limits: QueueLimitOptions, *, what: str) -> QueueLimits:
    rate = row.rate
    if "rate" in limits:
        given = limits["rate"]
        rate = None if given is None else rate_of(given, what=what)
    burst = row.burst if rate == row.rate else None
    if limits.get("burst") is not None:
        if rate is None:
            raise refusal(f"{what} has burst and no rate", hint='write rate="50/s" too, or leave out burst')
        burst = count_of(limits["burst"], called="burst", what=what)

    def count(called: str, before: int | None) -> int | None:
        return count_of(limits[called], called=called, what=what) if called in limits else before  # type: ignore[literal-required]

    return QueueLimits(
        concurrency=count("concurrency", row.concurrency),
        partition_concurrency=count("partition_concurrency", row.partition_concurrency),
        rate=rate,
        burst=None if rate is None else default_burst(rate) if burst is None else float(burst),
    )


def _info(row: QueueRow, backlog: QueueBacklog | None) -> QueueInfo:
    oldest_s = None if backlog is None else backlog.oldest_s
    return QueueInfo(
        name=_name(row),
        group=row.group,
        concurrency=row.concurrency,
        partition_concurrency=row.partition_concurrency,
        rate=row.rate,
        burst=row.burst,
        is_set=row.is_set,
        paused_at=row.paused_at,
        ready=0 if backlog is None else backlog.ready,
        later=0 if backlog is None else backlog.later,
        parked=0 if backlog is None else backlog.parked,
        running=0 if backlog is None else backlog.claimed,
        dead=0 if backlog is None else backlog.dead,
        oldest=None if oldest_s is None else timedelta(seconds=oldest_s),
    )
