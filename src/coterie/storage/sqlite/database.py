"""One database, a file or memory: checked, opened, guarded, and the two ways to work on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from coterie.kernel.forks import Origin
from coterie.kernel.service import Service
from coterie.storage.sqlite import guard, transactions
from coterie.storage.sqlite.connection import open_file, open_memory, require_library
from coterie.storage.sqlite.failures import failed
from coterie.storage.sqlite.location import require_folder, require_local

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import apsw

    from coterie.kernel.chance import Chance
    from coterie.storage.sqlite.executor import Executors, Role

T = TypeVar("T")


class Database(Service):
    """A database with an executor that writes and, if it is a file and so wanted, another one that reads.

    Args:
        path: The file, or None for memory.
        executors: Who runs the work.
        chance: For jitter.
        writer: The role of the executor that writes.
        reader: The role of the one that reads; None if the same does both, as always in memory.
        limit_s: How long to wait for the write lock.
        pause_s: How long to sleep between two tries.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        executors: Executors,
        chance: Chance,
        writer: Role,
        reader: Role | None,
        limit_s: float,
        pause_s: float,
    ) -> None:
        self.address = "memory" if path is None else str(path)
        super().__init__(what=f"SQLite database {self.address}")
        self._path = None if path is None else path.resolve()
        self._writer = executors(writer, lambda: self._open(writes=True))
        self._reader = self._writer
        if self._path is not None and reader is not None:
            self._reader = executors(reader, lambda: self._open(writes=False))
        self._held: guard.Held | None = None
        self._origin = Origin(self.what)
        self._patience = transactions.Patience(
            chance=chance, limit_s=limit_s, pause_s=pause_s, holder=self.write_lock_holder
        )

    def require_same_process(self) -> None:
        """Raise in a forked child: it must neither use nor let go of what is its parent's [P13]."""
        self._origin.require_same()

    def require_usable(self) -> None:
        """Raise unless it is started, here and not in the parent of this process."""
        self._origin.require_same()
        self.require_running()

    async def transact(self, work: Callable[[apsw.Connection], T], *, doing: str) -> T:
        """The result of `work`, which ran in one write transaction and is durable."""
        self.require_usable()
        patience = self._patience
        return await self._writer.run(
            lambda connection: transactions.transact(connection, work, patience=patience, doing=doing)
        )

    async def read(self, work: Callable[[apsw.Connection], T], *, doing: str) -> T:
        """The result of `work`, which sees all that was committed before."""
        self.require_usable()
        patience = self._patience
        return await self._reader.run(
            lambda connection: transactions.read(connection, work, patience=patience, doing=doing)
        )

    def write_lock_holder(self) -> int | None:
        """The id of the other process that holds the write lock now, if there is one that we can see [C3]."""
        return None if self._held is None else self._held.write_lock_holder()

    async def _start(self) -> None:
        self._origin.set()
        require_library()
        if self._path is not None:
            guard.require_not_inherited(self._path)
            require_folder(self._path)
            require_local(self._path)
        await self._writer.start()
        if self._path is not None:
            self._held = self._guarded(self._path)
        if self._reader is not self._writer:
            await self._reader.start()

    async def _stop(self) -> None:
        self.require_same_process()
        self._patience.end()
        if self._reader is not self._writer:
            await self._reader.stop()
        await self._writer.stop()
        if self._held is not None:
            self._held.release()

    def _guarded(self, path: Path) -> guard.Held:
        try:
            return guard.hold(path)
        except OSError as error:
            raise failed(error, doing=f"open {path}") from error

    def _open(self, *, writes: bool) -> apsw.Connection:
        return open_memory() if self._path is None else open_file(self._path, writes=writes)
