"""SQL of users in our file: what it may touch, its `$1` parameters, and what comes of it.

SQLite itself says what a statement would do, while it is prepared: nothing is judged by its words.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw

from coterie.errors import PersistenceError
from coterie.storage import migrations
from coterie.storage.undertakings import UNDONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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

# Which of its two names is that of a table.
_FIRST = {apsw.SQLITE_READ, apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE, apsw.SQLITE_DROP_TABLE}
_SECOND = {
    apsw.SQLITE_ALTER_TABLE,
    apsw.SQLITE_CREATE_INDEX,
    apsw.SQLITE_CREATE_TRIGGER,
    apsw.SQLITE_DROP_INDEX,
    apsw.SQLITE_DROP_TRIGGER,
}

_NOTHING = re.compile(r"(?:[\s;]|--[^\n]*|/\*.*?\*/)*", re.DOTALL)


class Found(NamedTuple):
    """What a statement is, before it runs."""

    writes: bool
    names: tuple[str, ...]


class Step(NamedTuple):
    """A statement that ran: its columns, its rows and how many it changed."""

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
    """Why a statement may not do this, by SQLite's word for it; empty if it may. Pure."""
    if code in _NEVER:
        return _NEVER[code]
    table = (first if code in _FIRST else second if code in _SECOND else None) or ""
    if table.lower() in tables():
        return f"the table {table} is coterie's own"
    return "its figures would mislead coterie's own statements" if (first or "").startswith("sqlite_stat") else ""


@contextmanager
def watched(connection: apsw.Connection, *, doing: str) -> Iterator[None]:
    """Let statements of users run during the block, with errors in our words."""
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


def look(connection: apsw.Connection, sql: str, params: Sequence[Any]) -> Found:
    """What a statement is. It is prepared, but not run."""
    found: list[tuple[str, set[str | None], Found]] = []

    def note(cursor: apsw.Cursor, first: str, _: object) -> bool:
        names = tuple(column[0] for column in cursor.get_description())
        found.append((first, set(cursor.bindings_names), Found(not cursor.is_readonly, names)))
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


def run(connection: apsw.Connection, sql: str, params: Sequence[Any], *, names: tuple[str, ...]) -> Step:
    """Run a statement to its end."""
    before = connection.total_changes()
    # Never from the cache, which knows statements of ours that nobody has watched.
    rows = connection.execute(sql, _bindings(params), can_cache=False).fetchall()
    changed = connection.changes() if connection.total_changes() != before else 0
    return Step(sql, tuple(params), names, rows, changed)


def again(connection: apsw.Connection, steps: Sequence[Step], *, doing: str) -> None:
    """Run statements again; refused if anything came out differently."""
    for step in steps:
        if run(connection, step.sql, step.params, names=step.names) != step:
            raise PersistenceError(
                doing=doing,
                problem="somebody wrote since what this transaction read first",
                hint="it is run again; write first, or read in the statement that writes, where this happens often",
            )


def _bindings(params: Sequence[Any]) -> dict[str, Any]:
    """SQLite takes `$1` for a name."""
    return {str(number): value for number, value in enumerate(params, 1)}
