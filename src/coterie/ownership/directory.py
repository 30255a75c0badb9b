"""The last known holder of each seat, by which calls are routed, on runners and clients alike."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from coterie.kernel.service import Tasks
from coterie.transport.interface import PeerAddress

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from coterie.storage.interface import ClusterSnapshot, RunnerRow

_NAMES_MOST = 1_000
"""How many names of runners are remembered."""


def peer_of(runner: RunnerRow) -> PeerAddress:
    """The address and incarnation of a runner."""
    return PeerAddress(runner.address, runner.id)


class Directory:
    """A view of the cluster. It may be outdated: a wrong receiver says so, and `refresh` reads a newer one.

    Args:
        read: Reads the tables.
    """

    def __init__(self, read: Callable[[], Awaitable[ClusterSnapshot]]) -> None:
        self._read = read
        self._runners: dict[str, RunnerRow] = {}
        self._holders: dict[str, tuple[str | None, int]] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._tasks = Tasks("directory")
        self._listeners: list[Callable[[], None]] = []
        self._on_gone: list[Callable[[str], None]] = []
        self._names: dict[str, str] = {}
        self._seen: dict[str, int] = {}
        """The number of the read that last showed each runner."""
        self._readings = 0
        self.read_s = -math.inf
        """When `refresh` last read the tables, in the loop's time."""

    @property
    def runners(self) -> tuple[RunnerRow, ...]:
        """All runners, ordered by id."""
        return tuple(self._runners.values())

    def runner(self, id: str) -> RunnerRow | None:
        """A runner by its incarnation."""
        return self._runners.get(id)

    def holder(self, seat: str) -> RunnerRow | None:
        """The holder of a seat, as far as is known here."""
        holder, _ = self._holders.get(seat, (None, 0))
        return None if holder is None else self._runners.get(holder)

    def epoch(self, seat: str) -> int:
        """The last known epoch of a seat; 0 if none is known."""
        return self._holders.get(seat, (None, 0))[1]

    def name_of(self, id: str) -> str:
        """The name of a runner, also of one that has just left."""
        return self._names.get(id, id)

    def on_gone(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with each runner that is no longer a member. It never becomes one again."""
        self._on_gone.append(listener)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change."""
        self._listeners.append(listener)

    def begin_reading(self) -> int:
        """The number of a read of the tables that is about to begin, for `learn`."""
        return self._readings

    def learn(self, view: ClusterSnapshot, *, reading: int | None = None) -> None:
        """Apply a view that was just read. Newer grants learned meanwhile are kept: the greater epoch wins.

        Args:
            view: The content of the tables.
            reading: The result of `begin_reading` before the read. None: nothing was learned since.
        """
        reading = self._readings if reading is None else reading
        self._runners = {runner.id: runner for runner in view.runners}
        self._readings += 1
        self._seen |= dict.fromkeys(self._runners, self._readings)
        # A runner that another read showed after this one had begun may have joined since: it is not gone.
        gone = [each for each, shown in self._seen.items() if each not in self._runners and shown <= reading]
        self._remember_names()
        heard = self._holders
        self._holders = {seat.name: (seat.holder, seat.epoch) for seat in view.seats}
        for name, (holder, epoch) in heard.items():
            if epoch > self._holders.get(name, (None, 0))[1] and holder in self._runners:
                self._holders[name] = holder, epoch
        self._notify()
        for runner in gone:
            del self._seen[runner]
            for listener in self._on_gone:
                listener(runner)

    def _remember_names(self) -> None:
        if len(self._names) > _NAMES_MOST:
            self._names = {}
        self._names |= {runner.id: runner.name for runner in self._runners.values()}

    def learn_grants(self, holder: str, granted: Iterable[tuple[str, int]]) -> None:
        """Apply a runner's notice that it was granted seats."""
        for name, epoch in granted:
            if epoch > self.epoch(name):
                self._holders[name] = holder, epoch
        self._notify()

    async def refresh(self) -> None:
        """Read the tables again; concurrent callers share one read that began after they called, or the next."""
        if self._refreshing is None:
            self._refreshing = self._tasks.spawn(self._refresh(), name="refresh", report=False)
            # All callers may have given up by the time it fails.
            self._refreshing.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._refreshing)

    async def stop(self) -> None:
        """Stop reading."""
        await self._tasks.stop()

    async def _refresh(self) -> None:
        await asyncio.sleep(0)  # callers in this turn of the loop join
        reading = self.begin_reading()
        try:
            self.learn(await self._read(), reading=reading)
            self.read_s = asyncio.get_running_loop().time()
        finally:
            self._refreshing = None

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()
