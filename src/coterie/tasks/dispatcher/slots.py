"""Which runner takes a job: the one with the most room of those that know its task. Pure.

A runner reports what is free, and what jobs of this seat use: together that is what jobs of this seat may use at most.
Jobs that were assigned and have not arrived there yet count here, not there, so they are never counted twice. What
other seats of this process have assigned since the report is known, too (`Loads`); what seats elsewhere assign is not:
what a runner cannot begin soon it gives back.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from coterie.storage.contracts.jobs import JobHead
    from coterie.tasks.frames import KnownTask, Pool, Slots

ALONE_S = 5.0
"""How long a job whose runner was lost runs before its new runner gets another one of those [C5]."""

_POOLS: Final[dict[Pool, int]] = {"loop": 0, "thread": 1, "process": 2}
"""The first one counts all jobs."""

Counts = list[int]
"""By pool."""


class Loads:
    """How many jobs of all seats of this process each runner has, by pool."""

    def __init__(self) -> None:
        self._runners: defaultdict[str, Counts] = defaultdict(lambda: [0, 0, 0])

    def of(self, runner: str) -> Counts:
        """Its counts, which change."""
        return self._runners[runner]

    def forget(self, runner: str) -> None:
        """A runner that has no jobs is gone."""
        if not any(self._runners.get(runner, ())):
            self._runners.pop(runner, None)


class RunnerRoom:
    """What one runner can take of one seat."""

    def __init__(self, load: Counts) -> None:
        self.tasks: Mapping[str, KnownTask] = {}
        self.is_draining = False
        self.heard_s: float | None = None
        """When it reported last; None: never."""
        self.mine: Counts = [0, 0, 0]
        """Jobs of the seat that it has."""
        self.suspects: dict[str, float] = {}
        """Until when they keep others from it: jobs whose runners were lost before."""
        self._load = load
        self._most: Counts = [0, 0, 0]

    def report(self, slots: Slots, now_s: float) -> None:
        """It has reported."""
        self.heard_s = now_s
        self.is_draining = slots.is_draining
        if slots.tasks is not None:
            self.tasks = slots.tasks
        reported = (slots.jobs, slots.threads, slots.processes)
        self._most = [each.free + each.mine + self._others(pool) for pool, each in enumerate(reported)]

    def free(self, pool: int) -> int:
        """How many jobs more of a pool it can take."""
        free = self._most[0] - self._load[0]
        return free if pool == 0 else min(free, self._most[pool] - self._load[pool])

    def count(self, pool: int, change: int) -> None:
        """It has another job, or one less."""
        for each in {0, pool}:
            self.mine[each] += change
            self._load[each] += change

    def _others(self, pool: int) -> int:
        return self._load[pool] - self.mine[pool]


class RunnerSlots:
    """What all runners can take of one seat.

    Args:
        me: The incarnation of this runner, which is preferred.
        loads: What they have of all seats of this process.
    """

    def __init__(self, me: str, loads: Loads) -> None:
        self._me = me
        self._loads = loads
        self._rooms: dict[str, RunnerRoom] = {}
        self._jobs: dict[str, tuple[str, int]] = {}
        """Runner and pool of each job that is counted."""
        self.now_s = 0.0
        """The loop's time, as of the last decision."""
        self.pinned: dict[str, None] = {}
        """Jobs that a runner with other parameters of the task could not read: only one with the job's takes them."""

    def __contains__(self, runner: object) -> bool:
        return runner in self._rooms

    def report(self, runner: str, slots: Slots, now_s: float) -> None:
        """A runner has reported."""
        room = self._rooms.get(runner)
        if room is None:
            room = self._rooms[runner] = RunnerRoom(self._loads.of(runner))
        room.report(slots, now_s)

    def silent(self, runners: Iterable[str], since_s: float) -> list[str]:
        """Those of the runners that have not reported since."""
        return [
            each
            for each in runners
            if (room := self._rooms.get(each)) is None or room.heard_s is None or room.heard_s < since_s
        ]

    def keep(self, runners: Collection[str]) -> list[str]:
        """Forget all runners but these. Returns the forgotten ones."""
        gone = [each for each in self._rooms if each not in runners]
        for each in gone:
            self.forget(each)
        return gone

    def forget(self, runner: str) -> None:
        """A runner is gone, and its slots with it."""
        if runner not in self._rooms:
            return
        for job in [job for job, (where, _) in self._jobs.items() if where == runner]:
            self.end(job)
        del self._rooms[runner]
        self._loads.forget(runner)

    def knows(self, task: str) -> bool:
        """Whether a runner that takes jobs knows a task."""
        return any(task in room.tasks and not room.is_draining for room in self._rooms.values())

    def is_of(self, runner: str, head: JobHead) -> bool:
        """Whether a runner knows the task of a job with its parameters."""
        room = self._rooms.get(runner)
        known = None if room is None else room.tasks.get(head.task)
        return known is not None and known.fingerprint == head.fingerprint

    def can_read(self, head: JobHead) -> bool:
        """Whether any runner does."""
        return any(self.is_of(runner, head) for runner in self._rooms)

    @property
    def is_full(self) -> bool:
        """Whether no runner can take a job."""
        return not any(room.free(0) > 0 for room in self._rooms.values() if not room.is_draining)

    def is_picky(self, head: JobHead) -> bool:
        """Whether not any runner may take a job."""
        return head.lost > 0 or head.id in self.pinned

    def place(self, head: JobHead) -> str | None:
        """The runner that takes a job, which is counted there; None: none has room."""
        found: tuple[bool, int, bool] | None = None
        chosen = ""
        for runner, room in self._rooms.items():
            known = room.tasks.get(head.task)
            if known is None or room.is_draining:
                continue
            reads = not head.fingerprint or known.fingerprint == head.fingerprint
            free = room.free(_POOLS[known.pool])
            if free <= 0 or not (reads or head.id not in self.pinned) or (head.lost and self._is_watched(room)):
                continue
            key = reads, free, runner == self._me
            if found is None or key > found:
                found, chosen = key, runner
        if found is None:
            return None
        self.begin(chosen, head.id, head.task, is_suspect=head.lost > 0)
        return chosen

    def begin(self, runner: str, job: str, task: str, *, is_suspect: bool = False) -> None:
        """A runner has another job."""
        room = self._rooms.get(runner)
        if room is None:
            return
        known = room.tasks.get(task)
        pool = 0 if known is None else _POOLS[known.pool]
        self._jobs[job] = runner, pool
        room.count(pool, 1)
        if is_suspect:
            room.suspects[job] = self.now_s + ALONE_S

    def end(self, job: str) -> None:
        """A job that a runner has is over, or was never begun."""
        runner, pool = self._jobs.pop(job, ("", 0))
        room = self._rooms.get(runner)
        if room is not None:
            room.count(pool, -1)
            room.suspects.pop(job, None)

    def next_suspect_s(self) -> float | None:
        """When a runner may get another suspect, in the loop's time."""
        return min((s for room in self._rooms.values() for s in room.suspects.values() if s > self.now_s), default=None)

    def _is_watched(self, room: RunnerRoom) -> bool:
        return any(until_s > self.now_s for until_s in room.suspects.values())
