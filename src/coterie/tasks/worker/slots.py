"""The slots of a runner: how many jobs it runs at once, by pool and by the seat that sent them. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from coterie.tasks.frames import PoolSlots, Slots

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.tasks.frames import KnownTask, Pool


class SlotTable:
    """Slots in use. Each job takes one of `jobs`, and one of its pool if that is threads or processes.

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
        self._in_use = 0

    @property
    def in_use(self) -> int:
        """The number of jobs that have slots."""
        return self._in_use

    def has_room(self, pool: Pool) -> bool:
        """Whether a job of this pool can begin."""
        return self._in_use < self._most["loop"] and (pool == "loop" or self._used[pool] < self._most[pool])

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
        busy = max(self._used["thread"], self._busy_threads())
        return Slots(
            jobs=PoolSlots(self._most["loop"] - self._in_use, mine),
            threads=PoolSlots(max(0, self._most["thread"] - busy), threads),
            processes=PoolSlots(self._most["process"] - self._used["process"], processes),
            is_draining=is_draining,
            tasks=tasks,
        )
