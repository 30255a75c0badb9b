"""Users' SQL on PostgreSQL: each transaction has its own session, lent by a separate pool [M3, M12].

Statements that would break the transaction are refused by their text. This prevents mistakes, not intent: functions and
the user's own search_path reach anything that the role may.

The pool is not the one for work: handlers inside their transactions may wait for reads, and must not occupy all
sessions while they do. A session is reset before the next user.

The server ends what this process cannot: an idle transaction after the limit, and from PostgreSQL 17 on any
transaction (`transaction_timeout`). On older servers each statement gets the time that is left.
"""

from __future__ import annotations

import asyncio
import math
import re
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from coterie.errors import PersistenceError
from coterie.storage.postgres.connector import local_settings, session_settings
from coterie.storage.postgres.errors import DatabaseRefusal, Lost, loss, refusal
from coterie.storage.postgres.pool import Pool
from coterie.storage.postgres.session import deadline
from coterie.storage.user_transaction import UNDONE, Collected, SqlResult, UserTransaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from coterie.errors import Outcome
    from coterie.kernel.random import Random
    from coterie.kernel.service import Tasks
    from coterie.storage.contracts.jobs import JobEnd, NewJob
    from coterie.storage.contracts.messages import Commit, Committed, Message
    from coterie.storage.contracts.units import UnitStart
    from coterie.storage.postgres.connector import ConnectionLimits, Connector
    from coterie.storage.postgres.session import PostgresSession

    Fetch = Callable[..., Awaitable[Any]]
    Started = Callable[[Fetch, Sequence[UnitStart]], Awaitable[None]]
    Sent = Callable[[Fetch, Sequence[Message]], Awaitable[None]]
    Stored = Callable[[Fetch, Sequence[NewJob]], Awaitable[None]]
    Written = Callable[[Fetch, Commit | JobEnd], Awaitable[Committed]]


# String literals and comments, which are not SQL. Of nested comments an end is left over.
_TEXT = re.compile(
    r"--[^\n]*|/\*.*?\*/|\be'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|\$(?P<tag>[a-z_]\w*|)\$.*?\$(?P=tag)\$",
    re.DOTALL | re.IGNORECASE,
)
_FIRST = re.compile(r"[\s(;]*(?P<first>\w+)(?:\s+(?P<second>\w+))?")
_OURS = re.compile(r"\bcoterie\"?\s*\.")
_CHANGED = re.compile(r"(?:INSERT \d+|UPDATE|DELETE|MERGE) (?P<rows>\d+)")

_ENDING = {"begin", "start", "commit", "end", "abort", "rollback", "savepoint", "release"}
_STAYING = {"set", "reset", "discard", "prepare", "deallocate", "listen", "unlisten", "load"}


def refused(sql: str) -> tuple[str, str]:
    """Why a statement is refused, and what to do instead; empty strings if it is accepted."""
    words = _TEXT.sub(" ", sql).lower()
    found = _FIRST.match(words)
    first, second = (found["first"], found["second"]) if found else ("", "")
    if first in _ENDING or (first == "prepare" and second == "transaction"):
        return f"{first} inside of a transaction that coterie commits", "leave its block to end it"
    if first in _STAYING and not (first == "set" and second in ("local", "constraints")):
        return f"{first} would outlive the transaction", "use set local for settings"
    if first == "copy":
        return "copy has no place in it", "use insert, with arrays and unnest for many rows"
    if "*/" in words:
        return "it has comments inside of comments", "leave them out"
    if _OURS.search(words) or (first == "set" and "coterie" in words):
        return "the schema coterie is not for statements of users", "use tables in a schema of your own"
    return "", ""


def changed(tag: str) -> int:
    """The number of rows that a statement changed, from the server's command tag."""
    found = _CHANGED.fullmatch(tag)
    return int(found["rows"]) if found else 0


# Settings that coterie's sessions have for its own statements.
_THEIRS = (
    "search_path",
    "timezone",
    "jit",
    "plan_cache_mode",
    "enable_seqscan",
    "enable_bitmapscan",
    "enable_mergejoin",
)

_FORGET = (
    "set session authorization default; reset all; close all; unlisten *; discard temp; discard sequences; "
    "select pg_advisory_unlock_all()"
)

_TIMED = 17
"""The first version with a time limit for transactions."""


class PostgresTransactions:
    """Opens the transactions of one storage.

    Args:
        connector: Opens sessions.
        size: The number of concurrent transactions; further ones wait.
        limits: The time limits.
        chance: For the pool.
        tasks: Runs rollbacks in the background.
        started: Stores workflows, using the given fetch function.
        sent: Stores messages, likewise.
        stored: Stores jobs, likewise.
        written: Runs the statements of a handler's writes, using the given fetch function. Returns the result.
        alone: Commits a handler's writes without a user transaction.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        size: int,
        limits: ConnectionLimits,
        chance: Random,
        tasks: Tasks,
        started: Started,
        sent: Sent,
        stored: Stored,
        written: Written,
        alone: Callable[[Commit | JobEnd], Awaitable[Committed]],
    ) -> None:
        self.pool = Pool(connector, size=size, chance=chance, limits=limits)
        self._connector = connector
        self._limits = limits
        self._tasks = tasks
        self._started = started
        self._sent = sent
        self._stored = stored
        self._written = written
        self._alone = alone

    def open(self, *, limit_s: float) -> UserTransaction:
        """Return a transaction, not begun yet."""
        ground = PostgresUserSql(
            self.pool,
            self._connector,
            limits=self._limits,
            started=self._started,
            sent=self._sent,
            stored=self._stored,
            written=self._written,
        )
        what = self._connector.address
        return UserTransaction(ground, what=what, limit_s=limit_s, tasks=self._tasks, alone=self._alone)


class PostgresUserSql:
    """One transaction on its own session. See `storage.user_transaction.TransactionEngine`.

    A session on which anything was interrupted is dropped, never used again.
    """

    def __init__(
        self,
        pool: Pool,
        connector: Connector,
        *,
        limits: ConnectionLimits,
        started: Started,
        sent: Sent,
        stored: Stored,
        written: Written,
    ) -> None:
        self._pool = pool
        self._connector = connector
        self._limits = limits
        self._started = started
        self._sent = sent
        self._stored = stored
        self._written = written
        self._lent = AsyncExitStack()
        self._session: PostgresSession | None = None
        self._over = 0.0
        self._doing = f"run a transaction on {connector.address}"

    async def begin(self, *, over: float) -> None:
        """Take a session and open the transaction, with the settings that the user's own sessions would have."""
        self._over = over
        while True:
            session = await self._lent.enter_async_context(self._pool.session(over=over))
            try:
                with self._told():
                    await session.execute(self._opening(session), over=over)
                self._session = session
                return
            except PersistenceError as error:
                await self._lent.aclose()  # it was lost while idle, perhaps with all the others
                if error.outcome == "refused" or deadline(0) >= over:
                    raise

    async def run(self, sql: str, params: Sequence[Any]) -> SqlResult:
        """Run a statement, unless its text shows that it would break the transaction."""
        session = self._open
        problem, hint = refused(sql)
        if problem:
            raise PersistenceError(doing=self._doing, problem=problem, hint=hint)
        with self._told():
            if session.version < _TIMED:
                await session.execute(f"set local statement_timeout = {self._left_ms()}", over=self._over)
            rows, tag = await session.run(sql, *params, over=self._over)
        if not session.in_transaction:  # the statement has ended it, which its text did not show
            session.abort()
            raise PersistenceError(doing=self._doing, problem="the statement ended the transaction", outcome="unknown")
        return SqlResult([dict(row) for row in rows], changed(tag))

    async def commit(self, write: Commit | JobEnd | None, collected: Collected) -> Committed:
        """Commit; the workflows, the fence and the messages are the last statements before it [M3]."""
        async with asyncio.timeout_at(self._over):
            told = await self._write(write, collected)
        if told == "written":
            with self._told(lost="unknown"):
                await self._open.execute("commit", over=self._patience())
        else:
            await self._open.roll_back(over=self._patience())
        return told

    async def close(self) -> None:
        """Roll back what is open; the session returns to the pool if it could be reset."""
        try:
            async with self._lent:
                if self._session is not None:
                    await self._renew(self._session)
        except (Lost, *DatabaseRefusal):
            pass  # it was dropped

    @property
    def _open(self) -> PostgresSession:
        assert self._session is not None, "it has begun"
        return self._session

    def _opening(self, session: PostgresSession) -> str:
        left = self._left_ms()
        settings = [f"{name} to default" for name in _THEIRS]
        settings += [f"{name} = {left}" for name in ("statement_timeout", "idle_in_transaction_session_timeout")]
        settings += [f"transaction_timeout = {left}"] if session.version >= _TIMED else []
        begin = session.opening or "begin isolation level read committed"
        return "; ".join([begin, *(f"set local {setting}" for setting in settings)])

    async def _write(self, write: Commit | JobEnd | None, collected: Collected) -> Committed:
        session = self._open
        ours = local_settings("writer", application=session.name, limits=self._limits)
        with self._told():
            # The role too: the user may have switched it.
            script = f"set local role to default; {ours}; set local statement_timeout = {self._left_ms()}"
            await session.execute(script, over=self._over)
            fetch = partial(session.fetch, over=self._over)
            # Before the fence: who waits for a concurrent start, or for a key, has not locked the seat yet.
            if collected.starts:
                await self._started(fetch, collected.starts)
            if collected.sends:
                await self._sent(fetch, collected.sends)
            if collected.jobs:
                await self._stored(fetch, collected.jobs)
            return "written" if write is None else await self._written(fetch, write)

    async def _renew(self, session: PostgresSession) -> None:
        over = self._patience()
        try:
            if session.in_transaction:
                await session.execute("rollback", over=over)
            if not self._connector.pooled:  # behind a pooler the session is not ours, and already lent to others
                settings = session_settings("work", application=session.name, limits=self._limits)
                await session.execute(f"{_FORGET}; {settings}", over=over)
        except BaseException:
            session.abort()
            raise

    @contextmanager
    def _told(self, *, lost: Outcome = "unreachable") -> Iterator[None]:
        """Translate the driver's errors. Unless a commit was sent, nothing can have happened."""
        try:
            yield
        except Lost as error:
            raise loss(error, doing=self._doing, outcome=lost if error.sent else "unreachable") from error
        except DatabaseRefusal as error:
            told = refusal(error, doing=self._doing)
            raise PersistenceError(doing=told.doing, problem=told.problem, hint=UNDONE) from error

    def _left_ms(self) -> int:
        return max(1, math.ceil((self._over - deadline(0)) * 1000))

    def _patience(self) -> float:
        return deadline(self._limits.call_s)
