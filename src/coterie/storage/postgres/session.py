"""One connection, on which every call ends in time; in doubt the connection is dropped [P7, P8]."""

from __future__ import annotations

import asyncio
import itertools
import math
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from coterie.kernel import fork_guard
from coterie.storage.postgres.errors import DatabaseRefusal, Lost, describe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    from asyncpg.prepared_stmt import PreparedStatement

T = TypeVar("T")

PLAN_S = 10.0
"""How long a plan is kept: a table may have grown from nothing since, unknown to the planner."""
_NOT_PREPARED = (None, 0.0)


class PostgresSession:
    """One connection with its prepared statements, for one task at a time.

    Calls take the deadline `over`, on the loop's clock (see `deadline`).

    Promise:
        Every call ends by its deadline: the transport is aborted, without waiting for the cancel. A session on which a
        call was cancelled or timed out is closed and never used again.
    """

    def __init__(self, raw: asyncpg.Connection[Any], *, what: str, label: str, name: str = "") -> None:
        self.name = name
        """The application_name at the server."""
        self.look_at = 0.0
        """When to check again, on the loop's clock, whether the server makes commits durable."""
        self.on_drop: Callable[[PostgresSession], object] = lambda _: None
        """Called when the connection is cut while the server may still use it."""
        self.opening: str | None = None
        """The script that opens each transaction, where a pooler lends the session per transaction; else None."""
        self._raw = raw
        self._settings = raw.get_settings()  # kept current by the server
        self._label = label  # part of statement names, so that they are distinct from other clients' behind a pooler
        self._prepared: dict[str, tuple[PreparedStatement[Any], float]] = {}
        self._numbers = itertools.count(1)
        self._origin = fork_guard.ProcessOrigin(what)
        self._expired: str | None = None
        self._loop = asyncio.get_running_loop()
        self._began = self._over = math.inf  # of the call in progress
        self._alarm: asyncio.TimerHandle | None = None  # at or before `_over`; one timer serves many calls
        # The driver sets only TCP_NODELAY, and does not expose its socket.
        self._socket: socket.socket | None = raw._transport.get_extra_info("socket")  # type: ignore[attr-defined]  # noqa: SLF001
        # The driver would switch jit off and on around its type queries: permanently, in a session that is only lent.
        raw._server_caps = raw._server_caps._replace(jit=False)  # type: ignore[attr-defined]  # noqa: SLF001
        fork_guard.watch(self)

    def fileno(self) -> int:
        """The socket's descriptor; -1 once it is closed."""
        return -1 if self._socket is None or self.closed else self._socket.fileno()

    @property
    def closed(self) -> bool:
        """Whether the connection is gone."""
        return self._raw.is_closed()

    @property
    def standby(self) -> bool:
        """Whether the server has reported, at connect or since, that it is a standby. No round trip."""
        return getattr(self._settings, "in_hot_standby", "off") == "on"

    @property
    def version(self) -> int:
        """The server's major version."""
        return self._raw.get_server_version().major

    @property
    def greeted_by(self) -> int:
        """The server process named in the greeting; a pooler makes a number up."""
        return self._raw.get_server_pid()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return not self._raw.is_closed() and self._raw.is_in_transaction()

    async def fetch(self, sql: str, *values: Any, over: float) -> Sequence[asyncpg.Record]:
        """Return the rows of one statement. Raises `Lost` or the server's error."""
        if self.opening is not None and not self.in_transaction:  # its settings must be set in its transaction
            return await self.transact(lambda fetch: fetch(sql, *values), over=over)
        statement, until = self._prepared.get(sql, _NOT_PREPARED)
        if statement is None or self._loop.time() >= until:
            statement = await self._prepare(sql, over=over)
        self.enter(over)  # hot path: `_Limited`, inlined
        try:
            rows: Sequence[asyncpg.Record] = await statement.fetch(*values)
        except BaseException as error:
            self.failed(error, sent=True)
            raise
        finally:
            self.leave()
        return rows

    async def run(self, sql: str, *values: Any, over: float) -> tuple[Sequence[asyncpg.Record], str]:
        """Return the rows of a user's statement, and the server's command tag ("UPDATE 3"). It is not cached."""
        with _Limited(self, over, sent=True):
            statement = await self._raw.prepare(sql, name="")
            rows = await statement.fetch(*values)
            return rows, statement.get_statusmsg() or ""

    async def execute(self, script: str, *, over: float) -> None:
        """Run a script without parameters and results, in one round trip."""
        with _Limited(self, over, sent=True):
            await self._raw.execute(script)

    async def begin(self, *, over: float) -> None:
        """Open a transaction."""
        await self.execute(self.opening or "begin", over=over)

    async def transact(self, work: Callable[[Callable[..., Awaitable[Any]]], Awaitable[T]], *, over: float) -> T:
        """Run `work`, which gets the function to fetch with, in one transaction. Returns its result once committed."""
        try:
            await self.begin(over=over)
            outcome = await work(partial(self.fetch, over=over))
        except Lost as lost:
            raise Lost(lost.problem, sent=False) from lost  # no commit was sent: the server rolls back
        except BaseException:
            await self.roll_back(over=over)
            raise
        await self.execute("commit", over=over)
        return outcome

    async def roll_back(self, *, over: float) -> None:
        """Roll back the open transaction, or drop the connection, which does the same. Never raises."""
        try:
            await self.execute("rollback", over=over)
        except (Lost, *DatabaseRefusal):
            self.abort()

    def abort(self) -> None:
        """Drop the connection at once."""
        self._silence()
        if not self._raw.is_closed():
            self.on_drop(self)
        self._raw.terminate()

    async def close(self, *, within_s: float = 1.0) -> None:
        """Close the connection, or drop it if the server does not answer."""
        try:
            async with asyncio.timeout(within_s):
                await self._raw.close()
        except (TimeoutError, OSError, *DatabaseRefusal):
            pass
        finally:
            self.abort()

    def keep_alive(self, options: Mapping[str, int]) -> None:
        """Set TCP options by name where the connection is TCP and the system has them."""
        if self._socket is None or self._socket.family == getattr(socket, "AF_UNIX", None):
            return
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in options.items():
            if (number := getattr(socket, option, None)) is not None:
                self._socket.setsockopt(socket.IPPROTO_TCP, number, value)

    async def _prepare(self, sql: str, *, over: float) -> PreparedStatement[Any]:
        with _Limited(self, over, sent=False):  # if the connection is lost here, the statement has not begun
            # Named here: without its own cache the driver would parse and plan at every call, as it must where another
            # server session answers each time.
            name = f"coterie_{self._label}_{next(self._numbers)}" if self.opening is None else None
            statement = await self._raw.prepare(sql, name=name)
        self._prepared[sql] = statement, deadline(PLAN_S)
        return statement

    def enter(self, over: float) -> None:
        """Mark the start of a call."""
        self._origin.require_same()
        now = self._loop.time()
        if self._raw.is_closed() or now >= over:
            raise Lost("the connection was closed" if self.closed else "no time is left", sent=False)
        self._began, self._over = now, over
        if self._alarm is None or self._alarm.when() > over:
            self._watch()

    def leave(self) -> None:
        """Mark the end of a call."""
        self._over = math.inf
        if self._raw.is_closed():
            self._silence()

    def failed(self, error: BaseException, *, sent: bool) -> None:
        """Handle the error of a call. Raises `Lost` instead if the connection is gone."""
        if isinstance(error, (OSError, asyncpg.InternalClientError, *DatabaseRefusal)):
            if isinstance(error, asyncpg.InternalClientError):
                self.abort()  # the protocol is out of step
            if self.closed:
                raise Lost(self._expired or describe(error), sent=sent) from error
        else:
            self.abort()  # cancelled (or a bug): what is still in progress must not affect the next caller

    def _watch(self) -> None:
        self._silence()
        self._alarm = self._loop.call_at(self._over, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        if self._loop.time() >= self._over:
            self._expired = f"no answer within {self._over - self._began:.3g}s"
            self.abort()
        elif self._over < math.inf:  # set for an earlier call
            self._watch()

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


class _Limited:
    """A call on a session: ends it in time, and turns its error into `Lost` if the connection is gone."""

    __slots__ = ("_over", "_sent", "_session")

    def __init__(self, session: PostgresSession, over: float, *, sent: bool) -> None:
        self._session = session
        self._over = over
        self._sent = sent

    def __enter__(self) -> None:
        self._session.enter(self._over)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is not None:
                self._session.failed(error, sent=self._sent)
        finally:
            self._session.leave()


def deadline(within_s: float) -> float:
    """The instant this many seconds from now, on the loop's clock."""
    return asyncio.get_running_loop().time() + within_s
