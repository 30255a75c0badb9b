"""Users' transactions on SQLite: on a file in their own threads, in memory through the one writer [C3]."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from coterie.errors import CoterieError, PersistenceError, ShuttingDown
from coterie.storage.sqlite.executor import ThreadExecutor
from coterie.storage.sqlite.user_sql_draft import Draft, Rehearsal
from coterie.storage.user_transaction import Collected, SqlResult, TransactionEngine, UserTransaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import apsw

    from coterie.kernel.service import Tasks
    from coterie.storage.contracts.jobs import JobEnd
    from coterie.storage.contracts.messages import Commit, Committed
    from coterie.storage.sqlite.database import Patience, SqliteDatabase
    from coterie.storage.sqlite.user_sql_draft import StatementResult

    Written = Callable[[apsw.Connection, Commit | JobEnd | None, Collected], Committed]

AT_ONCE = 4
"""Concurrent transactions: only one can write, so more would mostly wait; each has a thread and a connection."""

_LOCK_SHARE = 0.9
"""The share of the remaining time to wait for the write lock: its error, with the holder, comes in time."""


class SqliteTransactions:
    """Opens the transactions of one storage, and keeps their threads for reuse.

    Args:
        database: The database.
        tasks: Runs rollbacks in the background.
        written: Starts workflows and runs a handler's writes inside a transaction.
        alone: Commits a handler's writes without a user transaction.
    """

    def __init__(
        self,
        database: SqliteDatabase,
        *,
        tasks: Tasks,
        written: Written,
        alone: Callable[[Commit | JobEnd], Awaitable[Committed]],
    ) -> None:
        self._database = database
        self._tasks = tasks
        self._written = written
        self._alone = alone
        self._doing = f"run a transaction on {database.address}"
        self._room = asyncio.Semaphore(AT_ONCE)
        self._idle: list[ThreadExecutor[Draft]] = []
        self._started: list[ThreadExecutor[Draft]] = []
        self._closed = False

    def open(self, *, limit_s: float) -> UserTransaction:
        """Return a transaction, not begun yet."""
        what = self._database.address
        return UserTransaction(self._ground(), what=what, limit_s=limit_s, tasks=self._tasks, alone=self._alone)

    async def take(self) -> ThreadExecutor[Draft]:
        """Take a thread with a connection. The caller is interrupted at the transaction's time limit."""
        await self._room.acquire()
        try:
            if self._closed:
                raise ShuttingDown(what=f"storage {self._database.address}")
            return self._idle.pop() if self._idle else await self._start()
        except BaseException:
            self._room.release()
            raise

    def give_back(self, executor: ThreadExecutor[Draft]) -> None:
        """Return a thread on which nothing is open any more."""
        self._idle.append(executor)
        self._room.release()

    async def close(self) -> None:
        """Stop all threads; open transactions are rolled back."""
        self._closed = True
        await asyncio.gather(*(executor.stop() for executor in self._started))

    async def _start(self) -> ThreadExecutor[Draft]:
        database, doing = self._database, self._doing
        executor = ThreadExecutor(
            lambda: Draft(database.desk(), doing=doing), what="SQLite transaction", idle=lambda draft: draft.idle()
        )
        self._started.append(executor)
        try:
            await executor.start()
        except BaseException:
            self._started.remove(executor)
            raise
        return executor

    def _ground(self) -> TransactionEngine:
        if self._database.path is None:
            return MemoryUserSql(self._database, doing=self._doing, written=self._written)
        return FileUserSql(self, self._database, doing=self._doing, written=self._written)


class FileUserSql:
    """One transaction on a file. See `storage.user_transaction.TransactionEngine`."""

    def __init__(
        self, undertakings: SqliteTransactions, database: SqliteDatabase, *, doing: str, written: Written
    ) -> None:
        self._undertakings = undertakings
        self._database = database
        self._doing = doing
        self._written = written
        self._executor: ThreadExecutor[Draft] | None = None
        self._patience: Patience | None = None

    async def begin(self, *, over: float) -> None:
        """Take a thread. No lock is taken."""
        self._executor = await self._undertakings.take()
        within_s = over - asyncio.get_running_loop().time()
        patience = self._patience = self._database.patience(limit_s=_LOCK_SHARE * within_s)
        await self._executor.run(lambda draft: draft.begin(within_s=within_s, patience=patience))

    async def run(self, sql: str, params: Sequence[Any]) -> SqlResult:
        """Run a statement."""
        return named(await self._thread.run(lambda draft: draft.run(sql, params)))

    async def commit(self, write: Commit | JobEnd | None, collected: Collected) -> Committed:
        """Commit with what was collected and the handler's writes, under the lock."""
        return await self._thread.run(lambda draft: draft.commit(lambda c: self._written(c, write, collected)))

    async def close(self) -> None:
        """Roll back what is open. The thread is kept for reuse."""
        executor, self._executor = self._executor, None
        if executor is None:
            return
        assert self._patience is not None, "`begin` sets both"
        self._patience.end()  # interrupts the running statement
        try:
            await executor.run(lambda draft: draft.roll_back())
        except (CoterieError, asyncio.CancelledError):
            return  # the storage stops, and its threads with it
        self._undertakings.give_back(executor)

    @property
    def _thread(self) -> ThreadExecutor[Draft]:
        if self._executor is None:
            raise PersistenceError(doing=self._doing, problem="it was rolled back meanwhile")
        return self._executor


class MemoryUserSql:
    """One transaction in memory, real or simulated. See `storage.user_transaction.TransactionEngine`."""

    def __init__(self, database: SqliteDatabase, *, doing: str, written: Written) -> None:
        self._database = database
        self._doing = doing
        self._written = written
        self._rehearsal = Rehearsal(doing=doing)

    async def begin(self, *, over: float) -> None:
        """Do nothing: there is nothing to open."""

    async def run(self, sql: str, params: Sequence[Any]) -> SqlResult:
        """Run a statement."""
        rehearsal = self._rehearsal
        return named(await self._database.transact(lambda c: rehearsal.run(c, sql, params), doing=self._doing))

    async def commit(self, write: Commit | JobEnd | None, collected: Collected) -> Committed:
        """Run all statements, what was collected and the handler's writes in one transaction."""
        rehearsal, written = self._rehearsal, self._written
        return await self._database.transact(
            lambda c: rehearsal.commit(c, lambda c: written(c, write, collected)), doing=self._doing
        )

    async def close(self) -> None:
        """Do nothing: nothing is open."""


def named(step: StatementResult) -> SqlResult:
    """The result of a statement, with its rows by column name."""
    return SqlResult([dict(zip(step.names, row, strict=True)) for row in step.rows], step.changed)
