"""Which job starts next: the first ready jobs of each partition of a queue, in the order in which they start. Pure.

    hints, sweeps, refills ──▶ lane: [first, second, …] more? ──▶ open: has a job, and its partition has room
                                                                     │
               next: of the open lanes with the highest level the one that has waited longest for its turn

Within a partition jobs start in order of rank, equal ones by id (T4). Between partitions the level of the first job
decides: its priority, raised by one for each `age_s` of waiting, but not beyond the highest priority among the open
lanes. Lanes of one level take turns (T3).

A lane knows a beginning of its partition. With `more` there are jobs behind it that are not in memory: a hint of one
that belongs behind the last known job is dropped, since unknown ones may come before it.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from coterie.tasks.frames import UNRANKED_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from coterie.storage.contracts.jobs import JobHead, Partition

    Place = Callable[[JobHead], str | None]
    """Finds a runner for a job, and counts the job there; None: no runner has room for it now."""

JOBS_MOST = 50_000
"""Jobs in memory, of one queue: with many partitions each keeps its share, at least one."""
PARTS_MOST = 100_000
LANE_MOST = 4_000
"""Jobs in memory of one partition; beyond that it is cut to half."""
ORDERED_MOST = 16
"""The same where one job runs at a time: such a partition is read with each hint."""

Ranked: TypeAlias = "tuple[float, str, JobHead]"


class Pick(NamedTuple):
    """A job that starts next, and where."""

    head: JobHead
    runner: str


class LaneEntry(NamedTuple):
    """The place of a lane among the open ones."""

    task: str
    level: int
    turn: int
    priority: int


class PartitionLane:
    """The first ready jobs of a partition."""

    __slots__ = ("claimed", "entry", "is_read", "jobs", "more", "part", "picky", "read_s")

    def __init__(self, part: str) -> None:
        self.part = part
        self.jobs: list[Ranked] = []
        """In order of rank and id."""
        self.picky: list[Ranked] = []
        """The same of jobs that not any runner may take: they are overtaken while there is none for them."""
        self.more = False
        """Whether storage has, or may have, further ones."""
        self.claimed = 0
        """How many of its jobs are claimed, or are being claimed."""
        self.is_read = False
        """Whether a read of it is under way."""
        self.read_s = -math.inf
        """When all of it was compared with storage: the hint of a job in its middle may have been lost since."""
        self.entry: LaneEntry | None = None
        """None: it is not open."""

    def __len__(self) -> int:
        return len(self.jobs) + len(self.picky)

    @property
    def first(self) -> JobHead | None:
        """Its first job; one that is not picky if there is one."""
        of = self.jobs or self.picky
        return of[0][2] if of else None

    @property
    def last(self) -> tuple[float, str]:
        """Rank and id of its last job."""
        return max(each[-1][:2] for each in (self.jobs, self.picky) if each)

    def candidates(self) -> Iterator[JobHead]:
        """The jobs that may start next: a picky one if its rank says so, then the first of the others."""
        if self.picky and (not self.jobs or self.picky[0] < self.jobs[0]):
            yield self.picky[0][2]
        if self.jobs:
            yield self.jobs[0][2]


class Lanes:
    """The lanes of one queue.

    Args:
        is_picky: Whether not any runner may take a job.
        age_s: How long a job waits to gain one level.
    """

    def __init__(self, *, is_picky: Callable[[JobHead], bool], age_s: float = 3600.0) -> None:
        self.age_s = age_s
        self.part_limit: int | None = None
        """How many jobs of a partition may be claimed at a time; set by `limit`."""
        self.is_complete = False
        """Whether all partitions with ready jobs are known: else any lane may have jobs that are not in memory."""
        self.overflowed = False
        """Whether a partition was left out, since there are too many."""
        self._is_picky = is_picky
        self._lanes: dict[str, PartitionLane] = {}
        self._where: dict[str, PartitionLane] = {}
        """The lane of each job in memory, by id."""
        self._wanted: dict[str, None] = {}
        """Partitions to be read again."""
        self._open: dict[str, dict[int, list[tuple[int, str]]]] = {}
        """Turns and partitions of open lanes, by task and level of their first jobs: heaps. What is not the entry of
        its lane any more is skipped."""
        self._priorities: Counter[int] = Counter()
        """Of the first jobs of open lanes."""
        self._turn = 0
        self._leveled_s = 0.0

    def __len__(self) -> int:
        """The number of jobs in memory."""
        return len(self._where)

    def __contains__(self, job: object) -> bool:
        return job in self._where

    @property
    def parts(self) -> int:
        """The number of partitions in memory."""
        return len(self._lanes)

    @property
    def is_open(self) -> bool:
        """Whether some job may start, if a runner has room for it."""
        return self._priorities.total() > 0

    @property
    def share(self) -> int:
        """How many jobs of each partition are kept in memory, and read at once."""
        most = ORDERED_MOST if self.part_limit == 1 else LANE_MOST // 2
        return max(1, min(most, JOBS_MOST // max(1, len(self._lanes))))

    def absent(self, after: str | None, last: str | None, found: Collection[str]) -> list[str]:
        """The partitions in memory that a sweep from `after` to `last`, None being either end, did not find."""
        return [
            part
            for part, lane in self._lanes.items()
            if lane and part not in found and (after is None or part > after) and (last is None or part <= last)
        ]

    def of_tasks(self, tasks: Collection[str]) -> list[str]:
        """The jobs in memory of these tasks."""
        return [
            head.id for lane in self._lanes.values() for _, _, head in (*lane.jobs, *lane.picky) if head.task in tasks
        ]

    def tasks(self) -> set[str]:
        """The tasks of the jobs that are first in their lanes."""
        return {head.task for lane in self._lanes.values() for head in lane.candidates()}

    def claimed(self, part: str) -> int:
        """How many jobs of a partition are claimed."""
        lane = self._lanes.get(part)
        return 0 if lane is None else lane.claimed

    def oldest_due_s(self) -> float | None:
        """When that job was due that has been so longest, of those that are first in their lanes."""
        return min((self._due_s(head) for lane in self._lanes.values() for head in lane.candidates()), default=None)

    # What is ready

    def add(self, heads: Iterable[JobHead], now_s: float) -> None:
        """Add jobs that have become ready.

        Where one job of a partition runs at a time the partition is read again instead: the hint of an earlier one may
        come later (T3). Also if the rank is not known: the database's clock has set it, and the sender's may be wrong.
        """
        for head in heads:
            if head.id in self._where:
                continue
            lane = self._lane(head.part)
            if lane is None:
                continue
            if self.part_limit == 1 or head.rank_s == UNRANKED_S or (not self.is_complete and not lane):
                lane.more = True
                self.want(head.part)
            elif not (lane.more and (not lane or (head.rank_s, head.id) > lane.last)):
                self._insert(lane, head)
                self._cut(lane)
            self._settle(lane, now_s)

    def replace(self, found: Partition, now_s: float, *, but: Iterable[str] = (), new: Iterable[JobHead] = ()) -> None:
        """Compare a lane with what was read from storage. Jobs behind the last one that was read stay.

        Args:
            found: The partition as it was read, from its beginning.
            now_s: The database's clock.
            but: Jobs that were claimed, or have ended, since the read began.
            new: Jobs that have become ready since then.
        """
        lane = self._lane(found.part)
        if lane is None:
            return
        before = [*lane.jobs, *lane.picky]
        for _, id_, _ in before:
            del self._where[id_]
        lane.jobs, lane.picky = [], []
        lane.is_read = False
        heads = {head.id: head for head in found.heads}
        last = (found.heads[-1].rank_s, found.heads[-1].id) if found.more and found.heads else None
        if self.part_limit != 1:  # else it is wanted again
            ranked = [each for each in new if each.rank_s != UNRANKED_S]
            heads |= {each.id: each for each in ranked if last is None or (each.rank_s, each.id) < last}
        rest = {} if last is None else {each[1]: each[2] for each in before if each[:2] > last}
        lane.more = lane.more if rest else found.more
        if not rest:
            lane.read_s = now_s
        heads |= rest
        for gone in but:
            heads.pop(gone, None)
        for head in heads.values():
            self._insert(lane, head)
        self._cut(lane)
        self._settle(lane, now_s)

    def remove(self, job: str, now_s: float) -> JobHead | None:
        """Remove a job that is not ready any more. Returns it if it was in memory."""
        lane = self._where.pop(job, None)
        if lane is None:
            return None
        of, place = next(
            (of, place) for of in (lane.jobs, lane.picky) for place, (_, id_, _) in enumerate(of) if id_ == job
        )
        _, _, head = of.pop(place)
        self._settle(lane, now_s)
        return head

    def unread(self, parts: Iterable[str], now_s: float, *, age_s: float) -> list[str]:
        """Those of some partitions that have not been compared as a whole for so long."""
        found = (lane for part in parts if (lane := self._lanes.get(part)) is not None)
        return [lane.part for lane in found if not 0 <= now_s - lane.read_s < age_s and not lane.is_read]

    def want(self, part: str) -> None:
        """Have a partition read again."""
        self._wanted[part] = None

    @property
    def wants(self) -> bool:
        """Whether partitions are to be read again."""
        return bool(self._wanted)

    def reading(self, most: int) -> list[str]:
        """The partitions that are to be read next, which begins now: each ends in `replace`, or is wanted again."""
        parts = list(self._wanted)[:most]
        for part in parts:
            del self._wanted[part]
            if part in self._lanes:
                self._lanes[part].is_read = True
        return parts

    def read_again(self) -> None:
        """Reads that are under way came to nothing."""
        for lane in self._lanes.values():
            if lane.is_read:
                lane.is_read = False
                self.want(lane.part)

    # What runs

    def begin(self, part: str, now_s: float) -> None:
        """A job of a partition was claimed that was not picked here."""
        lane = self._lanes.setdefault(part, PartitionLane(part))  # counted, however many there are
        if not lane and not self.is_complete:
            lane.more = True
        lane.claimed += 1
        self._settle(lane, now_s)

    def end(self, part: str, now_s: float) -> None:
        """A claimed job of a partition is over."""
        lane = self._lanes[part]
        assert lane.claimed > 0, f"a job of partition {part!r} was claimed"
        lane.claimed -= 1
        self._settle(lane, now_s)

    def limit(self, part_limit: int | None, now_s: float) -> None:
        """Set how many jobs of a partition may be claimed at a time."""
        if part_limit != self.part_limit:
            self.part_limit = part_limit
            self._relevel(now_s)

    # What is next

    def pick(self, most: int, now_s: float, place: Place) -> list[Pick]:
        """Take the jobs that start next. They count as claimed from now on.

        Args:
            most: At most so many.
            now_s: The database's clock.
            place: Finds runners.
        """
        pause_s = max(self.age_s / 20, len(self._lanes) * 2e-5)  # lanes age, which must not be all that is done
        if not 0 <= now_s - self._leveled_s < pause_s:
            self._relevel(now_s)
        picks: list[Pick] = []
        full: set[str] = set()
        aside: list[PartitionLane] = []
        while len(picks) < most and (lane := self._next(full)) is not None:
            picked = next(((head, runner) for head in lane.candidates() if (runner := place(head)) is not None), None)
            if picked is not None:
                self._take(lane, picked[0], now_s)
                picks.append(Pick(*picked))
            elif lane.jobs:
                full.add(lane.jobs[0][2].task)
            else:  # no runner takes this one; there may be one for others of its task
                self._close(lane)
                aside.append(lane)
        for lane in aside:
            self._settle(lane, now_s)
        return picks

    def put_back(self, head: JobHead, now_s: float) -> None:
        """A job that was picked was not claimed: it is ready, as before."""
        lane = self._lanes[head.part]
        if head.id not in self._where:
            self._insert(lane, head)
        self.end(head.part, now_s)

    def _take(self, lane: PartitionLane, head: JobHead, now_s: float) -> None:
        of = lane.picky if lane.picky and lane.picky[0][2] is head else lane.jobs
        assert of[0][2] is head, f"job {head.id} is the first of its lane"
        del of[0]
        del self._where[head.id]
        lane.claimed += 1
        self._close(lane)  # its next turn comes after those of all others
        self._settle(lane, now_s)

    def _next(self, full: set[str]) -> PartitionLane | None:
        """The open lane whose turn it is, of those whose first job is of none of these tasks."""
        if not self._priorities:
            return None
        highest = max(self._priorities)
        best: tuple[int, int, str] | None = None
        for task, levels in list(self._open.items()):
            if task in full:
                continue
            for level, heap in list(levels.items()):
                self._skip_old(task, level, heap)
                if not heap:
                    del levels[level]
                elif best is None or (-min(level, highest), *heap[0]) < best:
                    best = (-min(level, highest), *heap[0])
            if not levels:
                del self._open[task]
        return None if best is None else self._lanes[best[2]]

    def _skip_old(self, task: str, level: int, heap: list[tuple[int, str]]) -> None:
        while heap:
            turn, part = heap[0]
            lane = self._lanes.get(part)
            if lane is not None and lane.entry is not None and lane.entry[:3] == (task, level, turn):
                return
            heapq.heappop(heap)

    # Lanes

    def _lane(self, part: str) -> PartitionLane | None:
        """The lane of a partition; None: there is no room for another one."""
        lane = self._lanes.get(part)
        if lane is None:
            if len(self._lanes) >= PARTS_MOST:
                self.is_complete, self.overflowed = False, True  # a sweep finds it later
                return None
            lane = self._lanes[part] = PartitionLane(part)
        return lane

    def _insert(self, lane: PartitionLane, head: JobHead) -> None:
        insort(lane.picky if self._is_picky(head) else lane.jobs, (head.rank_s, head.id, head))
        self._where[head.id] = lane

    def _cut(self, lane: PartitionLane) -> None:
        """Forget the last jobs of a lane that has too many."""
        if len(lane) <= self.share or (len(lane) <= LANE_MOST and len(self._where) <= JOBS_MOST):
            return
        lane.more = True
        ranked = sorted([*lane.jobs, *lane.picky])
        for _, id_, _ in ranked[self.share :]:
            del self._where[id_]
        last = ranked[self.share - 1]
        lane.jobs = [each for each in lane.jobs if each <= last]
        lane.picky = [each for each in lane.picky if each <= last]

    def _settle(self, lane: PartitionLane, now_s: float) -> None:
        """Open or close a lane, have it read, or forget it, after something about it has changed."""
        if lane.more and not lane.is_read and len(lane) <= self.share // 4:
            self.want(lane.part)
        first = lane.first
        if first is None or (self.part_limit is not None and lane.claimed >= self.part_limit):
            self._close(lane)
            if first is None and not lane.claimed and not lane.more:
                self._lanes.pop(lane.part, None)
            return
        level = first.priority + int(max(0.0, now_s - self._due_s(first)) / self.age_s)
        entry = lane.entry
        if entry is not None and (entry.task, entry.level, entry.priority) == (first.task, level, first.priority):
            return
        if entry is None:
            self._turn += 1
        self._close(lane)
        turn = self._turn if entry is None else entry.turn
        lane.entry = LaneEntry(first.task, level, turn, first.priority)
        self._priorities[first.priority] += 1
        heapq.heappush(self._open.setdefault(first.task, {}).setdefault(level, []), (turn, lane.part))

    def _close(self, lane: PartitionLane) -> None:
        entry, lane.entry = lane.entry, None
        if entry is not None:
            self._priorities[entry.priority] -= 1
            if not self._priorities[entry.priority]:
                del self._priorities[entry.priority]

    def _relevel(self, now_s: float) -> None:
        self._leveled_s = now_s
        for lane in list(self._lanes.values()):
            self._settle(lane, now_s)

    def _due_s(self, head: JobHead) -> float:
        return head.rank_s + head.priority * self.age_s
