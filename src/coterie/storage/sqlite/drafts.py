"""A user's transaction that is not committed yet: on a connection of its own, or in memory, where all share one [C3].

On a file it reads from a snapshot until its first statement that writes. That one takes the write lock; what was read
before is read again under it, and must be the same. From then on nobody else can write, so the thread that owns the
connection rolls back when the time is over: it needs neither the loop nor the user's code for that.

In memory nothing can be left open. Each statement runs behind all those before it, whose results must be the same
again, and then everything is undone; the commit runs them once more.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.errors import CoterieError
from coterie.kernel.clock import SystemClock
from coterie.storage.sqlite import transactions, visitors
from coterie.storage.sqlite.failures import failed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import apsw

    from coterie.storage.messages import Committed
    from coterie.storage.sqlite.desk import Desk
    from coterie.storage.sqlite.transactions import Patience
    from coterie.storage.sqlite.visitors import Step

    Write = Callable[[apsw.Connection], Committed]
    """Runs a handler's writes inside the transaction."""

T = TypeVar("T")

_LOOK_STEPS = 1000
"""Steps of SQLite's machine between two looks at the clock: some microseconds."""


class Draft:
    """What a thread owns for transactions of users, one after another. Nothing else may refer to it [P13].

    Args:
        desk: The connections.
        doing: What is done, for errors.
    """

    def __init__(self, desk: Desk, *, doing: str) -> None:
        self._desk = desk
        self._main = desk.main
        self._doing = doing
        self._clock = SystemClock()  # real threads, real time
        self._until_ns: int | None = None
        self._patience: Patience | None = None
        self._read: list[Step] = []
        self._writing = False
        self._main.set_progress_handler(self._is_cut, _LOOK_STEPS)

    def begin(self, *, within_s: float, patience: Patience) -> None:
        """A new transaction, which has so much time; ending its patience cuts short what runs. Takes no lock."""
        self._until_ns = self._clock.steady_ns() + int(within_s * 1e9)
        self._patience = patience
        self._read, self._writing = [], False

    def run(self, sql: str, params: Sequence[Any]) -> Step:
        """Run a statement."""
        return self._or_undone(partial(self._run, sql, params))

    def commit(self, write: Write) -> Committed:
        """Add the handler's writes and commit, unless they are refused."""
        return self._or_undone(partial(self._commit, write))

    def roll_back(self) -> None:
        """Undo what is open; the next transaction may come."""
        self._until_ns = None
        if self._main.in_transaction:
            self._main.execute("rollback")

    def idle(self) -> float | None:
        """Roll back what is late; in how many seconds to ask again if nothing is to be done (None: not at all)."""
        if self._is_late() and self._main.in_transaction:
            self._main.execute("rollback")
        if self._until_ns is None or not self._main.in_transaction:
            return None
        return max(0.0, (self._until_ns - self._clock.steady_ns()) / 1e9)

    def close(self) -> None:
        """Let go of the connections."""
        self._desk.close()

    def _or_undone(self, work: Callable[[], T]) -> T:
        """The result; any error has rolled back, and is `TimeoutError` if the time is over."""
        try:
            if self._until_ns is None or self._is_late():
                raise TimeoutError
            return work()
        except BaseException as error:
            late = self._is_late()
            self.roll_back()
            if late:
                raise TimeoutError from error
            if isinstance(error, (CoterieError, TimeoutError)) or not isinstance(error, Exception):
                raise
            raise failed(error, doing=self._doing) from error

    def _run(self, sql: str, params: Sequence[Any]) -> Step:
        with visitors.watched(self._main, doing=self._doing):
            found = self._insist(partial(visitors.look, self._main, sql, params))
        if found.writes and not self._writing:
            self._take_lock()
        elif not self._main.in_transaction:
            self._main.execute("begin")
        with visitors.watched(self._main, doing=self._doing):
            step = self._insist(partial(visitors.run, self._main, sql, params, names=found.names))
        if not self._writing:
            self._read.append(step)
        return step

    def _take_lock(self) -> None:
        if self._main.in_transaction:  # a snapshot cannot be written to once somebody else has written
            self._main.execute("rollback")
        self._insist(partial(self._main.execute, "begin immediate"))
        self._writing = True
        with visitors.watched(self._main, doing=self._doing):
            visitors.again(self._main, self._read, doing=self._doing)
        self._read = []

    def _commit(self, write: Write) -> Committed:
        self._desk.require_in_place()
        if not self._writing:
            self._read = []  # it only looked: its answer is of the moment at which it did
            self._take_lock()
        told = write(self._main)
        self._until_ns = None  # no more looks at the clock: a commit is not cut short
        if told == "written":
            transactions.commit(self._main, doing=self._doing)
            self._desk.require_in_place(outcome="unknown")
        else:
            self._main.execute("rollback")
        return told

    def _insist(self, attempt: Callable[[], T]) -> T:
        assert self._patience is not None, "it has begun"
        return self._patience.insist(attempt, doing=self._doing)

    def _is_cut(self) -> bool:
        return self._is_late() or (self._until_ns is not None and self._patience is not None and self._patience.ended)

    def _is_late(self) -> bool:
        return self._until_ns is not None and self._clock.steady_ns() >= self._until_ns


class Rehearsal:
    """A transaction in memory. Its parts are to be run inside transactions of their own.

    Not promised:
        Statements whose result differs from one run to the next (`random()`, the time) are taken for a conflict.
    """

    def __init__(self, *, doing: str) -> None:
        self._doing = doing
        self._steps: list[Step] = []
        self._wrote = False

    def run(self, connection: apsw.Connection, sql: str, params: Sequence[Any]) -> Step:
        """Run a statement as if all before it had happened, and undo it."""
        with visitors.watched(connection, doing=self._doing):
            visitors.again(connection, self._steps, doing=self._doing)
            found = visitors.look(connection, sql, params)
            step = visitors.run(connection, sql, params, names=found.names)
        connection.execute("rollback")
        self._steps.append(step)
        self._wrote |= found.writes
        return step

    def commit(self, connection: apsw.Connection, write: Write) -> Committed:
        """Do all of it."""
        if self._wrote:
            with visitors.watched(connection, doing=self._doing):
                visitors.again(connection, self._steps, doing=self._doing)
        told = write(connection)
        if told != "written":
            connection.execute("rollback")
        return told
