"""A user's uncommitted transaction in a SQLite file or in memory: the permitted SQL, its parameters and its results.

SQLite itself reports what a statement would do while it is prepared: nothing is judged by its text.

On a file the transaction has its own connection and reads from a snapshot until its first statement that writes [C3].
That one takes the write lock; what was read before is read again under it, and must be the same. From then on no other
process can write, so the thread that owns the connection rolls back at the time limit: it needs neither the loop nor
the user's code for that.

In memory all share one connection, and nothing can be left open. Each statement runs after all those before it, whose
results must be the same again, and then everything is rolled back; the commit runs them once more.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import apsw

from coterie.errors import CoterieError, PersistenceError
from coterie.kernel.clock import SystemClock
from coterie.storage import migrations
from coterie.storage.sqlite import database
from coterie.storage.sqlite.errors import failed
from coterie.storage.user_transaction import UNDONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from coterie.storage.contracts.messages import Committed
    from coterie.storage.sqlite.database import Patience, SqliteConnections

    Write = Callable[[apsw.Connection], Committed]
    "Runs a handler's writes inside the transaction."


_LEAVE = "it would end the transaction, as leaving its block does"
_WHOLE = "it is about the whole file, which is coterie's"
_LASTING = "temporary tables would outlive the transaction"

_NEVER = {
    apsw.SQLITE_TRANSACTION: _LEAVE,
    apsw.SQLITE_SAVEPOINT: _LEAVE,
    apsw.SQLITE_ATTACH: _WHOLE,
    apsw.SQLITE_DETACH: _WHOLE,
    apsw.SQLITE_PRAGMA: _WHOLE,
    apsw.SQLITE_ANALYZE: _WHOLE,
    apsw.SQLITE_CREATE_TEMP_TABLE: _LASTING,
    apsw.SQLITE_CREATE_TEMP_VIEW: _LASTING,
    apsw.SQLITE_CREATE_TEMP_TRIGGER: _LASTING,
    apsw.SQLITE_CREATE_TEMP_INDEX: _LASTING,
}

# Actions whose first name is that of a table.
_FIRST = {apsw.SQLITE_READ, apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE, apsw.SQLITE_DROP_TABLE}
_SECOND = {
    apsw.SQLITE_ALTER_TABLE,
    apsw.SQLITE_CREATE_INDEX,
    apsw.SQLITE_CREATE_TRIGGER,
    apsw.SQLITE_DROP_INDEX,
    apsw.SQLITE_DROP_TRIGGER,
}

_NOTHING = re.compile(r"(?:[\s;]|--[^\n]*|/\*.*?\*/)*", re.DOTALL)


class StatementFacts(NamedTuple):
    """What a prepared statement would do."""

    writes: bool
    names: tuple[str, ...]


class StatementResult(NamedTuple):
    """The result of a statement: its columns, its rows and the number of rows changed."""

    sql: str
    params: tuple[Any, ...]
    names: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    changed: int


@cache
def tables() -> frozenset[str]:
    """The names of coterie's own tables."""
    texts = (migration.sql for migration in migrations.load(f"{__package__}.migrations"))
    return frozenset(name.lower() for text in texts for name in re.findall(r"(?im)^create table (\w+)", text))


def refused(code: int, first: str | None, second: str | None) -> str:
    """Why a statement may not do this, by SQLite's action code; empty if it may. Pure."""
    if code in _NEVER:
        return _NEVER[code]
    table = (first if code in _FIRST else second if code in _SECOND else None) or ""
    if table.lower() in tables():
        return f"the table {table} is coterie's own"
    return "its figures would mislead coterie's own statements" if (first or "").startswith("sqlite_stat") else ""


@contextmanager
def watched(connection: apsw.Connection, *, doing: str) -> Iterator[None]:
    """Let users' statements run during the block, checked, with translated errors."""
    reasons: list[str] = []

    def authorize(code: int, first: str | None, second: str | None, *_: str | None) -> int:
        reason = refused(code, first, second)
        reasons.extend([reason] if reason else [])
        return apsw.SQLITE_DENY if reason else apsw.SQLITE_OK

    connection.authorizer = authorize
    try:
        yield
    except apsw.AuthError as error:
        problem = f"the statement is refused: {reasons[0] if reasons else error}"
        raise PersistenceError(doing=doing, problem=problem, hint=UNDONE) from error
    except (apsw.SQLError, apsw.ConstraintError, apsw.MismatchError, apsw.BindingsError) as error:
        raise PersistenceError(doing=doing, problem=str(error), hint=UNDONE) from error
    except (TypeError, OverflowError) as error:
        problem = f"{error} (values are None, int, float, str or bytes)"
        raise PersistenceError(doing=doing, problem=problem, hint=UNDONE) from error
    except ValueError as error:
        raise PersistenceError(doing=doing, problem=str(error), hint=UNDONE) from error
    finally:
        connection.authorizer = None


def look(connection: apsw.Connection, sql: str, params: Sequence[Any]) -> StatementFacts:
    """Inspect a statement. It is prepared, but not run."""
    found: list[tuple[str, set[str | None], StatementFacts]] = []

    def note(cursor: apsw.Cursor, first: str, _: object) -> bool:
        names = tuple(column[0] for column in cursor.get_description())
        found.append((first, set(cursor.bindings_names), StatementFacts(not cursor.is_readonly, names)))
        return False

    cursor = connection.cursor()
    cursor.exec_trace = note
    with suppress(apsw.ExecTraceAbort):
        try:
            cursor.execute(sql, _bindings(params), can_cache=False)
        except KeyError as error:
            raise ValueError(f"the statement has ${error.args[0]}, but {len(params)} parameters were given") from error
    first, used, about = found[0]
    if len(used) < len(params):
        raise ValueError(f"{len(params)} parameters were given, but the statement uses {len(used)} of them")
    if not _NOTHING.fullmatch(sql[len(first) :]):
        raise ValueError("one statement at a time")
    return about


def run(connection: apsw.Connection, sql: str, params: Sequence[Any], *, names: tuple[str, ...]) -> StatementResult:
    """Run a statement to its end."""
    before = connection.total_changes()
    # Never from the cache, which has statements that were prepared without the authorizer.
    rows = connection.execute(sql, _bindings(params), can_cache=False).fetchall()
    changed = connection.changes() if connection.total_changes() != before else 0
    return StatementResult(sql, tuple(params), names, rows, changed)


def again(connection: apsw.Connection, steps: Sequence[StatementResult], *, doing: str) -> None:
    """Run statements again; raises if any result differs."""
    for step in steps:
        if run(connection, step.sql, step.params, names=step.names) != step:
            raise PersistenceError(
                doing=doing,
                problem="somebody wrote since what this transaction read first",
                hint="it is run again; write first, or read in the statement that writes, where this happens often",
            )


def _bindings(params: Sequence[Any]) -> dict[str, Any]:
    """Bind by name: SQLite takes `$1` for a name."""
    return {str(number): value for number, value in enumerate(params, 1)}


T = TypeVar("T")

_LOOK_STEPS = 1000
"""Steps of SQLite's virtual machine between two checks of the clock: some microseconds."""


class Draft:
    """What a thread owns for users' transactions, one after another. Nothing else may refer to it [P13].

    Args:
        desk: The connections.
        doing: Names the work in errors.
    """

    def __init__(self, desk: SqliteConnections, *, doing: str) -> None:
        self._desk = desk
        self._main = desk.main
        self._doing = doing
        self._clock = SystemClock()  # real threads, real time
        self._until_ns: int | None = None
        self._patience: Patience | None = None
        self._read: list[StatementResult] = []
        self._writing = False
        self._main.set_progress_handler(self._is_cut, _LOOK_STEPS)

    def begin(self, *, within_s: float, patience: Patience) -> None:
        """Begin a transaction with this time limit; ending its patience interrupts it. Takes no lock."""
        self._until_ns = self._clock.steady_ns() + int(within_s * 1e9)
        self._patience = patience
        self._read, self._writing = [], False

    def run(self, sql: str, params: Sequence[Any]) -> StatementResult:
        """Run a statement."""
        return self._or_undone(partial(self._run, sql, params))

    def commit(self, write: Write) -> Committed:
        """Add the handler's writes and commit, unless they are refused."""
        return self._or_undone(partial(self._commit, write))

    def roll_back(self) -> None:
        """Roll back what is open, ready for the next transaction."""
        self._until_ns = None
        if self._main.in_transaction:
            self._main.execute("rollback")

    def idle(self) -> float | None:
        """Roll back if late. Returns the seconds until the next check is needed (None: no check)."""
        if self._is_late() and self._main.in_transaction:
            self._main.execute("rollback")
        if self._until_ns is None or not self._main.in_transaction:
            return None
        return max(0.0, (self._until_ns - self._clock.steady_ns()) / 1e9)

    def close(self) -> None:
        """Close the connections."""
        self._desk.close()

    def _or_undone(self, work: Callable[[], T]) -> T:
        """Return the result; any error rolls back, and becomes `TimeoutError` after the deadline."""
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

    def _run(self, sql: str, params: Sequence[Any]) -> StatementResult:
        with watched(self._main, doing=self._doing):
            found = self._insist(partial(look, self._main, sql, params))
        if found.writes and not self._writing:
            self._take_lock()
        elif not self._main.in_transaction:
            self._main.execute("begin")
        with watched(self._main, doing=self._doing):
            step = self._insist(partial(run, self._main, sql, params, names=found.names))
        if not self._writing:
            self._read.append(step)
        return step

    def _take_lock(self) -> None:
        if self._main.in_transaction:  # a snapshot cannot be written to once another process has written
            self._main.execute("rollback")
        self._insist(partial(self._main.execute, "begin immediate"))
        self._writing = True
        with watched(self._main, doing=self._doing):
            again(self._main, self._read, doing=self._doing)
        self._read = []

    def _commit(self, write: Write) -> Committed:
        self._desk.require_in_place()
        if not self._writing:
            self._read = []  # read-only: its results are those of the snapshot
            self._take_lock()
        told = write(self._main)
        self._until_ns = None  # no more checks of the clock: a commit is not interrupted
        if told == "written":
            database.commit(self._main, doing=self._doing)
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
    """A transaction in memory. Its methods are run inside separate transactions.

    Not promised:
        Statements whose result differs from one run to the next (`random()`, the time) are treated as a conflict.
    """

    def __init__(self, *, doing: str) -> None:
        self._doing = doing
        self._steps: list[StatementResult] = []
        self._wrote = False

    def run(self, connection: apsw.Connection, sql: str, params: Sequence[Any]) -> StatementResult:
        """Run a statement as if all before it had happened, and roll back."""
        with watched(connection, doing=self._doing):
            again(connection, self._steps, doing=self._doing)
            found = look(connection, sql, params)
            step = run(connection, sql, params, names=found.names)
        connection.execute("rollback")
        self._steps.append(step)
        self._wrote |= found.writes
        return step

    def commit(self, connection: apsw.Connection, write: Write) -> Committed:
        """Run all statements and the handler's writes."""
        if self._wrote:
            with watched(connection, doing=self._doing):
                again(connection, self._steps, doing=self._doing)
        told = write(connection)
        if told != "written":
            connection.execute("rollback")
        return told
