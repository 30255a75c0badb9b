"""The last known holder of each seat, by which calls are routed, and the last moves of shards."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from coterie.kernel.clock import SystemClock, to_datetime
from coterie.kernel.service import Tasks
from coterie.transport.interface import PeerAddress

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from datetime import datetime

    from coterie.kernel.clock import Clock
    from coterie.storage.interface import ClusterSnapshot, RunnerRow

_NAMES_MOST = 1_000
"""How many names of runners are remembered."""
_SHARD = "shard:"
_MOVES_MOST = 10_000
_MOVES_KEPT = timedelta(hours=1)
"""How many moves of shards are remembered, and for how long."""


def peer_of(runner: RunnerRow) -> PeerAddress:
    """The address and incarnation of a runner."""
    return PeerAddress(runner.address, runner.id)


class Directory:
    """A view of the cluster. It may be outdated: a wrong receiver says so, and `refresh` reads a newer one.

    Args:
        read: Reads the tables.
        clock: Dates the moves of shards; that of the system unless given.
    """

    def __init__(self, read: Callable[[], Awaitable[ClusterSnapshot]], clock: Clock | None = None) -> None:
        self._read = read
        self.moves = ShardMoves(clock or SystemClock())
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
        self.moves.begin()
        if heard != self._holders:
            for name, (holder, epoch) in self._holders.items():
                self._note_move(name, heard.get(name), holder, epoch)
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
                self._note_move(name, self._holders.get(name), holder, epoch)
                self._holders[name] = holder, epoch
        self._notify()

    def _note_move(self, seat: str, before: tuple[str | None, int] | None, holder: str | None, epoch: int) -> None:
        """Remember that a shard was granted, or has lost its holder. What is seen for the first time has not moved."""
        if before is None or before == (holder, epoch):
            return
        former, former_epoch = before
        is_later = epoch > former_epoch or (epoch == former_epoch and holder is None)
        if is_later and seat.startswith(_SHARD):
            names = [None if each is None else self.name_of(each) for each in (former, holder)]
            self.moves.add(seat.removeprefix(_SHARD), epoch, former=names[0], owner=names[1])

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


class ShardMove(NamedTuple):
    """A shard was granted to a runner, or has lost its holder."""

    at: datetime
    """When this process learned of it."""
    shard: str
    """`default:42`."""
    epoch: int
    former: str | None
    """The name of the runner that held it, as far as was known here."""
    owner: str | None
    """The name of the runner that holds it now; None: no runner does."""


class ShardMoves:
    """The moves of the last hour that this process has learned of, while it knew the directory: it reads and stores
    nothing for them.

    Args:
        clock: Dates them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: datetime | None = None
        self._moves: deque[ShardMove] = deque()

    def begin(self) -> None:
        """From now on, all moves are noticed."""
        self._since = self._since or self._now()

    def add(self, shard: str, epoch: int, *, former: str | None, owner: str | None) -> None:
        """Remember a move."""
        self._moves.append(ShardMove(self._now(), shard, epoch, former, owner))
        self._forget_old()

    def recent(self) -> tuple[datetime | None, tuple[ShardMove, ...]]:
        """Since when no move is missing, and the moves, the oldest first. None: nothing is known yet."""
        self._forget_old()
        return self._since, tuple(self._moves)

    def _now(self) -> datetime:
        return to_datetime(self._clock.wall_ns())

    def _forget_old(self) -> None:
        edge = self._now() - _MOVES_KEPT
        while self._moves and (self._moves[0].at < edge or len(self._moves) > _MOVES_MOST):
            edge = max(edge, self._moves.popleft().at)
        if self._since is not None:
            self._since = max(self._since, edge)
