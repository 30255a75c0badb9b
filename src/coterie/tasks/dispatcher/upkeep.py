"""Keeps what the holder of a queue's seat has in memory right: reads what waits and runs, makes ready what is due.

    refill     partitions of which too little is in memory, or whose order matters    as needed
    sweep      partitions with ready jobs, page by page                               all at first, then a page a second
    mature     jobs that are due become ready                                         when due, and each second
    compare    the claimed jobs, with those in memory                                 when jobs wait and too few start
    take back  the jobs of lost runners become ready again                            when one is lost, and each 5 s
    park       jobs of tasks that are paused, or that no live runner knows            until that changes

Nothing here is needed while all hints arrive: the second is the net for those that are lost, and for transactions that
commit late.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from coterie.errors import PersistenceError
from coterie.storage.contracts.jobs import Partition
from coterie.work.limits import set_within
from coterie.work.while_held import AWAY_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from coterie.storage.contracts.jobs import JobHead, LostJob, QueueBacklog, QueueRow
    from coterie.tasks.dispatcher.claims import Comparison
    from coterie.tasks.dispatcher.dispatcher import Dispatcher

log = logging.getLogger("coterie.tasks")

_PARTS = 500
"""Partitions of one page of a sweep, and …"""
_EACH = 4
"""… jobs of each."""
_REFILL_PARTS = 100
"""Partitions of one refill, and …"""
_REFILL_MOST = 10_000
"""… jobs of all of them: fewer partitions with as many of each as are kept, else they would be read again at once."""
_WHOLE_S = 5.0
"""How long partitions with more jobs than a sweep reads are not read as far as they are in memory."""
_MATURE_MOST = 1_000
_TAKE_BACK_MOST = 500
_PARK_MOST = 1_000
_ROUND_S = 1.0
_COMPARE_S = 10.0
"""Between two comparisons of what is claimed, while nothing seems wrong."""
_TAKE_BACK_S = 5.0
"""Between two looks for jobs of lost runners, while none is known."""
_ROW_S = 20.0
"""Between two reads of the queue's row, while jobs start."""
_REPORT_S = 3.0
"""After this time runners are asked again what they can take: they report changes for 5 s."""
_UNKNOWN_S = 3.0
"""How long a task may be unknown before its jobs are parked: runners may be starting."""


class ReadWindow:
    """What happens to jobs while partitions are read."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        """They were claimed, or have ended."""
        self.new: dict[str, JobHead] = {}
        """They have become ready."""
        self._is_open = False

    def __enter__(self) -> None:
        self.gone.clear()
        self.new.clear()
        self._is_open = True

    def __exit__(self, *_: object) -> None:
        self._is_open = False

    def came(self, heads: Iterable[JobHead]) -> None:
        """Jobs have become ready."""
        if self._is_open:
            for head in heads:
                self.new[head.id] = head
                self.gone.discard(head.id)

    def went(self, job: str) -> None:
        """A job was claimed, or has ended."""
        if self._is_open:
            self.gone.add(job)
            self.new.pop(job, None)


class Upkeep:
    """Keeps the memory of one dispatcher right."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.window = ReadWindow()
        self._of = dispatcher
        self._news = asyncio.Event()
        self._row_s = math.inf
        """When the row is to be read next, in the loop's time; likewise all below."""
        self._compare_s = math.inf
        self._compared_s = -math.inf
        self._comparing = asyncio.Lock()
        self._mature_s = -math.inf
        self._take_back_s = -math.inf
        self._sweep_s = -math.inf
        self._unpark_s = -math.inf
        self._ask_s = -math.inf
        self._park_s = math.inf
        self._after: str | None = None
        """The last partition of the last page; None: the next page is the first one."""
        self._unknown: dict[str, float] = {}
        """Since when tasks of jobs that wait are unknown to all runners; those that are paused since always."""
        self._paused: tuple[str, ...] = ()
        """The tasks that are paused, as of the row."""

    # What is to be done

    def hurry(self) -> None:
        """Partitions are to be read, or the end has come."""
        self._news.set()

    def look(self) -> None:
        """Anything may have changed in storage."""
        self._row_s = self._sweep_s = self._mature_s = -math.inf
        self.hurry()

    def look_at_row(self) -> None:
        """The queue's row has changed."""
        self._row_s = -math.inf
        self.hurry()

    def sweep_soon(self) -> None:
        """A partition that is not known may have ready jobs."""
        self._sweep_s = -math.inf
        self.hurry()

    def compare_soon(self) -> None:
        """What is claimed is not known for sure."""
        self._compare_s = min(self._compare_s, self._compared_s + _ROUND_S / 4)
        self.hurry()

    def expect(self, in_s: float) -> None:
        """A job will be due."""
        at_s = _now_s() + in_s
        if at_s < self._mature_s:
            self._mature_s = at_s
            self.hurry()

    def park_soon(self) -> None:
        """Jobs of a task that is paused wait."""
        self._park_s = -math.inf
        self.hurry()

    def adopted(self, row: QueueRow) -> None:
        """The row was read: tasks may have been paused or resumed."""
        if row.paused_tasks != self._paused:
            self._paused = row.paused_tasks
            self._unpark_s = -math.inf
            self.park_soon()

    def lost(self, runner: str) -> None:
        """A runner is gone: its jobs are to be taken back."""
        if any(each.runner == runner for each in self._of.claimed):
            self._take_back_s = -math.inf
            self.hurry()

    def poll(self, found: QueueBacklog) -> None:
        """What storage has of the seat, each second: numbers up to one."""
        of, now_s = self._of, _now_s()
        if of.row is None:
            return
        if found.ready or len(of.lanes) or len(of.claimed):
            self._ask_s = min(self._ask_s, now_s + _REPORT_S)
        if found.ready or len(of.lanes):
            self._sweep_s = min(self._sweep_s, now_s)
            of.hurry()
        if found.later:
            self._mature_s = min(self._mature_s, now_s)
        if found.claimed or len(of.claimed):
            known = len(of.claimed) > 0 and found.claimed > 0
            self._compare_s = min(self._compare_s, self._compared_s + (_COMPARE_S if known else _ROUND_S))
            self._take_back_s = min(self._take_back_s, now_s + _TAKE_BACK_S)
        if found.parked:
            self._unpark_s = min(self._unpark_s, now_s)
            if self._paused:  # the hint of a resume may be lost
                self._row_s = min(self._row_s, now_s)
        if of.is_blocked:
            self._row_s = min(self._row_s, now_s)
            self._compare_s = min(self._compare_s, self._compared_s + _ROUND_S)
        else:
            self._row_s = min(self._row_s, now_s + _ROW_S)
        self.hurry()

    # The loop

    async def live(self) -> None:
        """Do what is to be done, until the seat is given up."""
        self._of.lanes.read_again()  # an error may have interrupted a read
        while not self._of.is_closing:
            self._news.clear()
            if self._of.row is None:
                await self._news.wait()
                continue
            try:
                await self._pass()
            except PersistenceError as error:
                log.info("what waits at %s is not read, which is tried again soon: %s", self._of.seat, error)
                await asyncio.sleep(AWAY_S)
                continue
            wait_s = self._next_s() - _now_s()
            if wait_s > 0:
                await set_within(self._news, min(wait_s, 60.0))

    def _next_s(self) -> float:
        if self._of.lanes.wants:
            return -math.inf
        reads_s = self._row_s, self._compare_s, self._sweep_s, self._ask_s
        return min(*reads_s, self._mature_s, self._take_back_s, self._park_s, self._unpark_s)

    async def _pass(self) -> None:
        """Do once what is due, each with one statement: what jobs wait for comes first."""
        now_s = _now_s()
        if self._row_s <= now_s:
            await self.read_row()
        await self._refill()
        if self._mature_s <= now_s:
            await self._mature()
        if self._sweep_s <= now_s:
            await self._sweep()
        if self._compare_s <= now_s:
            await self.compare()
        if self._take_back_s <= now_s:
            await self._take_back()
        if self._ask_s <= now_s:
            await self._ask()
        if self._park_s <= now_s:
            await self._park()
        if self._unpark_s <= now_s:
            await self._unpark()

    async def read_row(self) -> None:
        """Read the row: its limits, whether it is paused, its stamp."""
        self._row_s = math.inf
        at_s = _now_s()
        row = await self._of.store.queue(self._of.seat)
        if row is not None:
            self._of.adopt(row, at_s=at_s)

    # What is ready

    async def _refill(self) -> None:
        lanes = self._of.lanes
        each = lanes.share
        parts = lanes.reading(max(1, min(_REFILL_PARTS, _REFILL_MOST // each)))
        if not parts:
            return
        with self.window:
            try:
                found = await self._of.store.refill(self._of.seat, parts, each=each)
            except PersistenceError:
                lanes.read_again()
                raise
            self._replace(found, empty=set(parts) - {each.part for each in found})

    async def _sweep(self) -> None:
        """Read a page of partitions. Until all are known, one page follows the other."""
        lanes = self._of.lanes
        self._sweep_s = math.inf
        if self._after is None:
            lanes.overflowed = False
        with self.window:
            try:
                found = await self._of.store.sweep(self._of.seat, after=self._after, parts=_PARTS, each=_EACH)
            except PersistenceError:
                self._sweep_s = -math.inf
                raise
            last = found[-1].part if len(found) == _PARTS else None
            self._replace(found, empty=lanes.absent(self._after, last, {each.part for each in found}))
        deep = lanes.unread((each.part for each in found if each.more), self._of.now_s(), age_s=_WHOLE_S)
        for part in deep[: max(1, _REFILL_MOST // lanes.share)]:
            lanes.want(part)
        self._after = last
        if last is None and not lanes.overflowed:
            lanes.is_complete = True
        if not lanes.is_complete:
            self._sweep_s = -math.inf if last is not None else _now_s() + _ROUND_S
        self._look_for_unknown()

    def _replace(self, found: Sequence[Partition], *, empty: Iterable[str]) -> None:
        of, now_s = self._of, self._of.now_s()
        new: dict[str, list[JobHead]] = {}
        for head in self.window.new.values():
            new.setdefault(head.part, []).append(head)
        for partition in (*found, *(Partition(part, (), False) for part in sorted(empty))):
            gone = [each.id for each in partition.heads if each.id in self.window.gone or not of.may_be_ready(each.id)]
            of.lanes.replace(partition, now_s, but=gone, new=new.get(partition.part, ()))
        of.hurry()

    async def _mature(self) -> None:
        self._mature_s = math.inf
        try:
            told = await self._of.store.mature(self._of.tenure.claim, most=_MATURE_MOST)
        except PersistenceError:
            self._mature_s = -math.inf
            raise
        if told.fenced:
            self._of.lose()
            return
        if told.next_in_s is not None:
            self._mature_s = min(self._mature_s, _now_s() + told.next_in_s)
        self._of.ready(told.heads)

    # What is claimed

    async def compare(self) -> None:
        """Compare the claimed jobs in memory with what is stored."""
        of = self._of
        async with self._comparing:
            self._compare_s = math.inf
            self._compared_s = _now_s()
            of.claimed.begin_reading()
            try:
                rows = await of.store.running(of.seat)
            except PersistenceError:
                self._compare_s = -math.inf
                raise
            self._learn(of.claimed.compare(rows, but=of.flying))
        of.hurry()

    def _learn(self, found: Comparison) -> None:
        of, now_s = self._of, self._of.now_s()
        for job in found.gone:
            of.is_over(job)
            of.unsure(job.id)
            self.sweep_soon()
        for job in found.moved:
            of.slots.end(job.id)
        for job in found.new:
            of.lanes.begin(job.part, now_s)
            of.lanes.remove(job.id, now_s)
        for job in (*found.moved, *found.new):
            of.slots.begin(job.runner, job.id, job.task)
            if not job.runner:
                self._take_back_s = -math.inf

    async def _take_back(self) -> None:
        of, row = self._of, self._of.row
        assert row is not None, "it was read"
        self._take_back_s = math.inf
        if not len(of.claimed):
            return
        limit = of.services.settings.loss_limit
        try:
            told = await of.store.take_back(
                of.tenure.claim, takeover_delay_s=row.takeover_delay_s, loss_limit=limit, most=_TAKE_BACK_MOST
            )
        except PersistenceError:
            self._take_back_s = _now_s() + AWAY_S
            raise
        if told.fenced:
            of.lose()
            return
        if told.next_in_s is not None:
            self._take_back_s = _now_s() + told.next_in_s
        for job in told.lost:
            self._taken_back(job)
        of.hurry()

    def _taken_back(self, job: LostJob) -> None:
        of = self._of
        log.warning(
            "job %s of task %s was lost with its runner, %d times now: it is %s", job.id, job.task, job.lost, job.state
        )
        known = of.claimed.get(job.id)
        if known is not None:
            of.claimed.end(job.id, known.claim)
            of.is_over(known)
        if job.state != "ready":
            of.ended(job.id, None)
        elif known is None:
            self.sweep_soon()
        else:
            of.lanes.want(known.part)

    # Runners and what they know

    async def _ask(self) -> None:
        """Have runners go on reporting, while there is something to be run."""
        of = self._of
        self._ask_s = math.inf
        if len(of.lanes) or len(of.claimed) or self._unpark_s < math.inf:
            await of.ask(since_s=_now_s() - _REPORT_S)
            self._ask_s = _now_s() + _REPORT_S

    def _look_for_unknown(self) -> None:
        """Find tasks of jobs that wait, and that no runner knows or that are paused."""
        now_s, slots, waiting = _now_s(), self._of.slots, self._of.lanes.tasks()
        found = [task for task in waiting if not slots.knows(task)]
        self._unknown = {task: self._unknown.get(task, now_s) for task in found}
        self._unknown |= dict.fromkeys(waiting.intersection(self._paused), -math.inf)
        self._park_s = min(self._unknown.values(), default=math.inf) + _UNKNOWN_S

    async def _park(self) -> None:
        """Set jobs aside that are paused, or that no runner can run, so that they stand before no others."""
        of, now_s = self._of, _now_s()
        self._park_s = math.inf
        self._look_for_unknown()
        tasks = [task for task, since_s in self._unknown.items() if now_s - since_s >= _UNKNOWN_S]
        if not tasks:
            return
        count = await of.store.park(of.tenure.claim, tasks, most=_PARK_MOST)
        unknown, paused = set(tasks).difference(self._paused), set(tasks).intersection(self._paused)
        if unknown:
            log.warning("jobs of %s are parked: no live runner knows %s", of.seat, ", ".join(sorted(unknown)))
        if paused and count:
            log.info("jobs of %s are parked: paused are %s", of.seat, ", ".join(sorted(paused)))
        for job in of.lanes.of_tasks(tasks):
            of.lanes.remove(job, of.now_s())
        self._park_s = -math.inf if count == _PARK_MOST else math.inf
        self._unknown = {task: since_s for task, since_s in self._unknown.items() if task not in tasks}
        if count == _PARK_MOST:
            self._unknown |= dict.fromkeys(tasks, -math.inf)

    async def _unpark(self) -> None:
        """Make jobs ready again that a live runner knows, and that are not paused."""
        of = self._of
        self._unpark_s = math.inf
        await of.ask(since_s=_now_s() - _REPORT_S)
        parked = await of.store.parked(of.seat)
        known = [task for task in parked if of.slots.knows(task) and task not in self._paused]
        if not known:
            return
        count = await of.store.unpark(of.tenure.claim, known, most=_PARK_MOST)
        log.info("%d parked jobs of %s are ready again", count, of.seat)
        if count == _PARK_MOST:
            self._unpark_s = -math.inf
        self.sweep_soon()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
