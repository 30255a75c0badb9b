"""SQL of users on our sessions: what is refused by its words, and what the server calls the rest. Pure.

This keeps from mistakes, not from intent: functions and the user's own search_path reach anything that the role may.

Transactions of users on PostgreSQL: a session each, lent by a pool of their own [M3, M12].

The pool is not the one for work: handlers inside of their transactions may wait for reads, and must not hold all
sessions while they do. Between two users a session forgets what the first one left on it.

The server ends what this process cannot: an idle transaction after the limit, and from PostgreSQL 17 on any
transaction (`transaction_timeout`). On older ones each statement gets the time that is left.
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
from coterie.storage.user_transaction import UNDONE, UserTransaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    import asyncpg

    from coterie.errors import Outcome
    from coterie.kernel.random import Random
    from coterie.kernel.service import Tasks
    from coterie.storage.contracts.messages import Commit, Committed
    from coterie.storage.contracts.units import UnitStart
    from coterie.storage.postgres.connector import ConnectionLimits, Connector
    from coterie.storage.postgres.session import PostgresSession

    Fetch = Callable[..., Awaitable[Any]]
    Started = Callable[[Fetch, Sequence[UnitStart]], Awaitable[None]]
    Written = Callable[[Fetch, Commit], Awaitable[Committed]]


# What is text to the server, and not SQL. Of comments inside of comments an end is left over.
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
    """Why a statement is not run, and what to do instead; empty texts if it is."""
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
    """How many rows a statement changed, as the server's word for it says."""
    found = _CHANGED.fullmatch(tag)
    return int(found["rows"]) if found else 0


# Our sessions have them set for our own statements.
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
"""The first version that limits transactions by itself."""


class PostgresTransactions:
    """Opens the transactions of one storage.

    Args:
        connector: Opens sessions.
        size: How many transactions at once; more of them wait.
        limits: How long what may take.
        chance: For the pool.
        tasks: Where transactions are rolled back while nobody waits for it.
        started: Stores workflows with what it is given to fetch with.
        written: Runs the statements of a handler's writes with what it is given to fetch with; the result.
        alone: Commits a handler's writes without a transaction of the user's.
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
        written: Written,
        alone: Callable[[Commit], Awaitable[Committed]],
    ) -> None:
        self.pool = Pool(connector, size=size, chance=chance, limits=limits)
        self._connector = connector
        self._limits = limits
        self._tasks = tasks
        self._started = started
        self._written = written
        self._alone = alone

    def open(self, *, limit_s: float) -> UserTransaction:
        """A transaction, not begun yet."""
        ground = PostgresUserSql(
            self.pool, self._connector, limits=self._limits, started=self._started, written=self._written
        )
        what = self._connector.address
        return UserTransaction(ground, what=what, limit_s=limit_s, tasks=self._tasks, alone=self._alone)


class PostgresUserSql:
    """One transaction on a session of its own. See `storage.undertakings.Ground`.

    A session on which anything was cut short is dropped, never used again.
    """

    def __init__(
        self, pool: Pool, connector: Connector, *, limits: ConnectionLimits, started: Started, written: Written
    ) -> None:
        self._pool = pool
        self._connector = connector
        self._limits = limits
        self._started = started
        self._written = written
        self._lent = AsyncExitStack()
        self._session: PostgresSession | None = None
        self._over = 0.0
        self._doing = f"run a transaction on {connector.address}"

    async def begin(self, *, over: float) -> None:
        """Take a session and open the transaction, with settings as the user's own sessions would have."""
        self._over = over
        while True:
            session = await self._lent.enter_async_context(self._pool.session(over=over))
            try:
                with self._told():
                    await session.execute(self._opening(session), over=over)
                self._session = session
                return
            except PersistenceError as error:
                await self._lent.aclose()  # it went while it was idle, perhaps with all the others
                if error.outcome == "refused" or deadline(0) >= over:
                    raise

    async def execute(self, sql: str, params: Sequence[Any]) -> int:
        """How many rows it changed."""
        _, tag = await self._run(sql, params)
        return changed(tag)

    async def fetch(self, sql: str, params: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
        """The rows, by the names of their columns."""
        rows, _ = await self._run(sql, params)
        return [dict(row) for row in rows]

    async def commit(self, write: Commit, starts: Sequence[UnitStart]) -> Committed:
        """The workflows, the fence and the messages are the last statements before the commit [M3]."""
        async with asyncio.timeout_at(self._over):
            told = await self._write(write, starts)
        if told == "written":
            with self._told(lost="unknown"):
                await self._open.execute("commit", over=self._patience())
        else:
            await self._open.roll_back(over=self._patience())
        return told

    async def close(self) -> None:
        """Roll back what is open; the session goes back if it is as good as new."""
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

    async def _run(self, sql: str, params: Sequence[Any]) -> tuple[Sequence[asyncpg.Record], str]:
        session = self._open
        problem, hint = refused(sql)
        if problem:
            raise PersistenceError(doing=self._doing, problem=problem, hint=hint)
        with self._told():
            if session.version < _TIMED:
                await session.execute(f"set local statement_timeout = {self._left_ms()}", over=self._over)
            answer = await session.run(sql, *params, over=self._over)
        if not session.in_transaction:  # whatever it was, its words did not say
            session.abort()
            raise PersistenceError(doing=self._doing, problem="the statement ended the transaction", outcome="unknown")
        return answer

    async def _write(self, write: Commit, starts: Sequence[UnitStart]) -> Committed:
        session = self._open
        ours = local_settings("writer", application=session.name, limits=self._limits)
        with self._told():
            # The role too: the user may have taken another one for a while.
            script = f"set local role to default; {ours}; set local statement_timeout = {self._left_ms()}"
            await session.execute(script, over=self._over)
            fetch = partial(session.fetch, over=self._over)
            if starts:  # before the fence: who starts the same one waits without the seat's lock
                await self._started(fetch, starts)
            return await self._written(fetch, write)

    async def _renew(self, session: PostgresSession) -> None:
        over = self._patience()
        try:
            if session.in_transaction:
                await session.execute("rollback", over=over)
            if not self._connector.pooled:  # there it is not ours to change, and has been lent to others already
                settings = session_settings("work", application=session.name, limits=self._limits)
                await session.execute(f"{_FORGET}; {settings}", over=over)
        except BaseException:
            session.abort()
            raise

    @contextmanager
    def _told(self, *, lost: Outcome = "unreachable") -> Iterator[None]:
        """Failures of the driver in our words. Without a commit that was sent, nothing can have happened."""
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
