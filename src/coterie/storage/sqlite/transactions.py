"""The write lock: waiting for it fairly, one transaction inside it, and what is known when that fails.

SQLite's own waiting (`busy_timeout`) sleeps longer and longer while a busy process takes the lock again at
once, so one process gets everything. Asking each millisecond or so serves everybody; who waits too long
learns who holds the lock [C3].
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import apsw

from coterie.errors import CoterieError, PersistenceError
from coterie.kernel.clock import SystemClock
from coterie.storage.sqlite.failures import commit_failed, failed
from coterie.storage.sqlite.locks import described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coterie.errors import Outcome
    from coterie.kernel.random import Chance

T = TypeVar("T")


class Patience:
    """How long, and in which steps, to wait for a file that is busy.

    It waits in real time, in an executor's thread. Where work runs in the loop (simulation) there is one
    connection, which is never busy.

    Args:
        chance: For the jitter that keeps processes from asking in step.
        limit_s: When to give up.
        pause_s: About how long to sleep between two tries.
        holder: Who holds the write lock, for the error.
        refused: The outcome to tell: nothing began, so it is as if nobody had been reached.
    """

    def __init__(
        self,
        *,
        chance: Chance,
        limit_s: float,
        pause_s: float,
        holder: Callable[[], int | None],
        refused: Outcome = "unreachable",
    ) -> None:
        self._chance = chance
        self._limit_s = limit_s
        self._pause_s = pause_s
        self._holder = holder
        self._outcome = refused
        self._clock = SystemClock()
        self.ended = False

    def end(self) -> None:
        """Wait no more: whoever waits gives up at its next try."""
        self.ended = True

    def insist(self, attempt: Callable[[], T], *, doing: str) -> T:
        """What `attempt` returns once the file is not busy."""
        began_ns: int | None = None  # not asked for before it matters: waiting is rare
        while True:
            try:
                return attempt()
            except apsw.BusyError as error:
                now_ns = self._clock.steady_ns()
                began_ns = now_ns if began_ns is None else began_ns
                waited_s = (now_ns - began_ns) / 1e9
                if self.ended or waited_s >= self._limit_s:
                    raise self._refused(waited_s, doing) from error
            time.sleep(self._pause_s * self._chance.between(0.5, 1.5))

    def _refused(self, waited_s: float, doing: str) -> PersistenceError:
        # "unreachable", since nothing began: the group writer would otherwise have each member wait once
        # more.
        if self.ended:
            problem = f"the process is shutting down, after {waited_s:.1f}s of waiting for the file's lock"
            return PersistenceError(doing=doing, problem=problem, outcome="unreachable")
        pid = self._holder()
        if pid is None:
            problem = f"the file was locked for {waited_s:.1f}s, by no single process that can be seen from here"
            hint = "write less at once, or use PostgreSQL"
        else:
            problem = f"{described(pid)} has held the file's write lock, and {waited_s:.1f}s were waited for it"
            hint = f"let it go on (kill -CONT {pid}) or end it (kill -KILL {pid})"
        return PersistenceError(doing=doing, problem=problem, outcome=self._outcome, hint=hint)


@contextmanager
def writing(connection: apsw.Connection, *, patience: Patience, doing: str) -> Iterator[None]:
    """Hold the write lock during the block, whose changes are durable after it; it may commit them itself.

    Promise:
        Any error has rolled everything back before it is raised, see `commit_failed` for the one doubt.
    """
    patience.insist(lambda: connection.execute("begin immediate"), doing=doing)
    try:
        yield
    except BaseException as error:
        _roll_back(connection)
        if isinstance(error, CoterieError) or not isinstance(error, Exception):
            raise
        raise failed(error, doing=doing) from error
    if connection.in_transaction:
        commit(connection, doing=doing)


def transact(connection: apsw.Connection, work: Callable[[apsw.Connection], T], *, patience: Patience, doing: str) -> T:
    """The result of `work`, durable. See `writing`."""
    with writing(connection, patience=patience, doing=doing):
        return work(connection)


def commit(connection: apsw.Connection, *, doing: str) -> None:
    """Make what was written durable and let go of the write lock."""
    try:
        connection.execute("commit")
    except Exception as error:
        _roll_back(connection)
        raise commit_failed(error, doing=doing) from error


def read(connection: apsw.Connection, work: Callable[[apsw.Connection], T], *, patience: Patience, doing: str) -> T:
    """The result of `work`, which only reads. Busy (another process recovers or closes it) is waited out."""
    try:
        return patience.insist(lambda: work(connection), doing=doing)
    except CoterieError:
        raise
    except Exception as error:
        raise failed(error, doing=doing) from error


@contextmanager
def snapshot(connection: apsw.Connection) -> Iterator[None]:
    """Let all that is read during the block be of one moment. Waits for no writer, and none for it."""
    connection.execute("begin")
    try:
        yield
    finally:
        _roll_back(connection)


def _roll_back(connection: apsw.Connection) -> None:
    if connection.in_transaction:  # after some errors SQLite has done it already
        connection.execute("rollback")
