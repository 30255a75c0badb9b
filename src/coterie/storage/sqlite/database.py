"""One database, a file or memory: checked, opened, guarded, and the ways to work on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from coterie.errors import PersistenceError
from coterie.kernel import metrics
from coterie.kernel.fork_guard import Origin
from coterie.kernel.service import Service
from coterie.storage.sqlite import guard, transactions
from coterie.storage.sqlite.connection import require_library
from coterie.storage.sqlite.desk import desk_in_memory, desk_of_files
from coterie.storage.sqlite.location import beside, require_folder, require_local, require_owned
from coterie.storage.sqlite.transactions import Patience

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import apsw

    from coterie.kernel.clock import Clock
    from coterie.kernel.random import Chance
    from coterie.storage.sqlite.desk import Desk
    from coterie.storage.sqlite.executor import Executor, Executors

T = TypeVar("T")

_PAUSE_S = 0.0004
"""Between two tries for the write lock, about. With 1 ms a sender and a runner did a twentieth less; with 0.3 ms four
busy senders and a runner seemed to do less again; SQLite's own waiting starves."""


class Database(Service):
    """A database with an executor that writes, one that reads if it is a file, and more for those who ask.

    Args:
        path: The file, or None for memory.
        executors: Who runs the work.
        clock: For the time at which the leases beside it were set up.
        chance: For jitter.
        limit_s: How long to wait for the write lock.
    """

    def __init__(
        self, path: Path | None, *, executors: Executors, clock: Clock, chance: Chance, limit_s: float
    ) -> None:
        self.address = "memory" if path is None else str(path)
        super().__init__(what=f"SQLite database {self.address}")
        self.path = None if path is None else path.resolve()
        self.leases_path = None if self.path is None else beside(self.path, ["-leases"])[0]
        self._executors = executors
        self._clock = clock
        self._writer = executors("writer", lambda: self._open(writes=True))
        self._reader = self._writer
        if self.path is not None:
            self._reader = executors("reader", lambda: self._open(writes=False))
        self._memory: Desk | None = None
        self.origin = Origin(self.what)
        self._chance = chance
        self._patience = self.patience(limit_s=limit_s)

    def require_same_process(self) -> None:
        """Raise in a forked child: it must neither use nor let go of what is its parent's [P13]."""
        self.origin.require_same()

    def require_usable(self) -> None:
        """Raise unless it is started, here and not in the parent of this process."""
        self.origin.require_same()
        self.require_running()

    async def transact(self, work: Callable[[apsw.Connection], T], *, doing: str) -> T:
        """The result of `work`, which ran in one write transaction and is durable."""
        self.require_usable()
        patience = self._patience

        def run(desk: Desk) -> T:
            with desk.turn:
                desk.require_in_place(lately=True)
                result = transactions.transact(desk.main, work, patience=patience, doing=doing)
                desk.require_in_place(outcome="unknown", lately=True)
                return result

        return await self._writer.run(run)

    async def read(self, work: Callable[[apsw.Connection], T], *, doing: str) -> T:
        """The result of `work`, which sees all that was committed before."""
        return await self.read_desk(lambda desk: work(desk.main), doing=doing)

    async def read_desk(self, work: Callable[[Desk], T], *, doing: str) -> T:
        """The result of `work`, which may read the leases too."""
        self.require_usable()
        patience = self._patience

        def run(desk: Desk) -> T:
            with desk.turn:
                desk.require_in_place(lately=True)
                return transactions.read(desk.main, lambda _: work(desk), patience=patience, doing=doing)

        try:
            return await self._reader.run(run)
        except PersistenceError as error:
            metrics.STORAGE_ERRORS.of("read", error.outcome).value += 1
            raise

    def session(self) -> Executor[Desk]:
        """One more executor that writes, not started yet: it belongs to the loop that starts it."""
        self.require_usable()
        return self._executors("ownership", lambda: self._open(writes=True))

    def desk(self) -> Desk:
        """One more desk that writes, for a thread of somebody else's: it belongs to the thread that asks."""
        return self._open(writes=True)

    def patience(self, *, limit_s: float) -> Patience:
        """How to wait for the write lock for so long."""
        return Patience(chance=self._chance, limit_s=limit_s, pause_s=_PAUSE_S, holder=self.write_lock_holder)

    def write_lock_holder(self) -> int | None:
        """The id of the other process that holds the write lock now, if there is one that we can see [C3]."""
        return None if self.path is None else guard.lock_holder(self.path)

    def leases_lock_holder(self) -> int | None:
        """The same for the leases."""
        return None if self.leases_path is None else guard.lock_holder(self.leases_path)

    async def _start(self) -> None:
        self.origin.set()
        require_library()
        if self.path is not None:
            guard.require_not_inherited(self.path)
            require_folder(self.path)
            require_local(self.path)
            require_owned(self.path)
        await self._writer.start()
        if self._reader is not self._writer:
            await self._reader.start()

    async def _stop(self) -> None:
        self.require_same_process()
        self._patience.end()
        if self._reader is not self._writer:
            await self._reader.stop()
        await self._writer.stop()

    def _open(self, *, writes: bool) -> Desk:
        patience, clock = self._patience, self._clock
        if self.path is not None and self.leases_path is not None:
            return desk_of_files(self.path, self.leases_path, writes=writes, patience=patience, clock=clock)
        if self._memory is not None:
            return self._memory.lent()
        self._memory = desk_in_memory(patience=patience, clock=clock)
        return self._memory
