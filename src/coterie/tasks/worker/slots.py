"""The slots of a runner: how many jobs it runs at once, by pool and by the seat that sent them. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from coterie.tasks.frames import PoolSlots, Slots

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.tasks.frames import KnownTask, Pool


_FURTHER_MOST = 8
"""How many times the setting `jobs` there may be while bodies wait for other jobs."""


class SlotTable:
    """Slots in use. Each job takes one of `jobs`, and one of its pool if that is threads or processes.

    One whose body waits for another job lends its slots for that time: if all jobs did, none would be left for those
    that they wait for.

    Args:
        jobs: All jobs that run at once.
        threads: Those of them in threads.
        processes: Those of them in processes.
        busy_threads: The number of bodies in the pool of threads, those of jobs included: rpcs and ticks use it, too.
    """

    def __init__(self, *, jobs: int, threads: int, processes: int, busy_threads: Callable[[], int]) -> None:
        self._most = {"loop": jobs, "thread": threads, "process": processes}
        self._busy_threads = busy_threads
        self._used: Counter[Pool] = Counter()
        """Jobs by pool; all of them are in `jobs`."""
        self._by_seat: Counter[tuple[str, Pool]] = Counter()
        self._lent: Counter[Pool] = Counter()
        """Those of them that wait for other jobs."""
        self._in_use = 0

    @property
    def in_use(self) -> int:
        """The number of jobs that have slots."""
        return self._in_use

    def has_room(self, pool: Pool) -> bool:
        """Whether a job of this pool can begin."""
        return self._free_jobs() > 0 and (pool == "loop" or self._working(pool) < self._most[pool])

    def lend(self, pool: Pool, change: int) -> None:
        """A body begins to wait for another job (1), or goes on (-1): then more than `jobs` may run."""
        self._lent[pool] += change

    def take(self, seat: str, pool: Pool) -> None:
        """A job begins."""
        assert self.has_room(pool), f"there is no slot of pool {pool}"
        self._in_use += 1
        self._used[pool] += 1
        self._by_seat[seat, pool] += 1

    def release(self, seat: str, pool: Pool) -> None:
        """The body of a job is over."""
        assert self._by_seat[seat, pool] > 0, f"no job of {seat} runs in pool {pool}"
        self._in_use -= 1
        self._used[pool] -= 1
        self._by_seat[seat, pool] -= 1
        if not self._by_seat[seat, pool]:
            del self._by_seat[seat, pool]

    def report(self, seat: str, *, is_draining: bool, tasks: dict[str, KnownTask] | None = None) -> Slots:
        """The slots as the holder of a seat is told them."""
        threads, processes = self._by_seat[seat, "thread"], self._by_seat[seat, "process"]
        mine = self._by_seat[seat, "loop"] + threads + processes
        busy = max(self._working("thread"), self._busy_threads() - self._lent["thread"])
        return Slots(
            jobs=PoolSlots(max(0, self._free_jobs()), mine),
            threads=PoolSlots(max(0, self._most["thread"] - busy), threads),
            processes=PoolSlots(max(0, self._most["process"] - self._working("process")), processes),
            is_draining=is_draining,
            tasks=tasks,
        )

    def _working(self, pool: Pool) -> int:
        """Jobs of a pool that wait for no other one."""
        return self._used[pool] - self._lent[pool]

    def _free_jobs(self) -> int:
        most = self._most["loop"]
        return most - max(self._in_use - self._lent.total(), self._in_use - most * _FURTHER_MOST)
