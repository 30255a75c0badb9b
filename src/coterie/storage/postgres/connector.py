"""Opens sessions: retries with pauses, and a set-up of one round trip per session, or per transaction."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import asyncpg

from coterie.errors import ConfigurationError, PersistenceError
from coterie.kernel import fork_guard
from coterie.settings.secret import redacted_url
from coterie.storage.postgres import instants
from coterie.storage.postgres.errors import DatabaseRefusal, Lost, describe, hint_of, hopeless
from coterie.storage.postgres.server import server_check
from coterie.storage.postgres.session import PostgresSession, deadline
from coterie.storage.postgres.session_registry import SessionRegistry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coterie.kernel.random import Random

log = logging.getLogger("coterie")

Role = Literal["work", "writer", "dedicated", "migration"]

LOOK_S = 1.0
"""The interval at which a writing session checks that the server still makes commits durable."""

OLDEST = 14
"""Older servers are refused: they do not report whether they are a standby, and are no longer maintained."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Time limits. Every wait has one of these."""

    connect_s: float = 3.0  # one try, set-up included
    tries: int = 3  # at start; later as many as the call's own deadline leaves room for
    backoff_s: float = 0.5  # before the second try, doubled for each further one, jittered
    call_s: float = 5.0  # one call with all its retries; less than the lease's TTL
    dedicated_s: float = 2.0  # the same for ownership: a renewal that waits its turn must still be in time
    lock_s: float = (
        0.25  # one wait for a row lock by the writer, whose group must not stall [M3], and by ownership [C4]
    )
    transaction_s: float = 2.0  # an idle open transaction [M12]
    migration_s: float = 600.0


class Connector:
    """Opens sessions on one database."""

    def __init__(
        self, url: str, *, incarnation: str, chance: Random, limits: ConnectionLimits, sessions_most: int = 100
    ) -> None:
        self.address = without_password(url)
        self.registry = SessionRegistry(most=sessions_most)
        self.name = application_name(incarnation)
        self.pooled = False
        """Whether a pooler in between lends the server's sessions per transaction [P28]."""
        self._url = url
        self._chance = chance
        self._limits = limits
        self._origin = fork_guard.ProcessOrigin(f"the connection to {self.address}")
        self._warned: set[str] = set()

    def rename(self, incarnation: str) -> None:
        """Open sessions for another incarnation from now on; owners of older ones close them [M12]."""
        self.name = application_name(incarnation)

    async def connect(
        self,
        role: Role,
        *,
        over: float | None = None,
        tries: int | None = None,
        standby: bool = False,
        incarnation: str | None = None,
        bare: bool = False,
    ) -> PostgresSession:
        """Open a session, with retries and growing pauses. A standby is a failed try unless allowed.

        Args:
            role: What the session is for; decides its settings.
            over: The deadline, on the loop's clock.
            tries: The maximum number of tries. One of the two is needed.
            standby: Whether a standby is accepted.
            incarnation: The session's incarnation, if not this connector's.
            bare: Leave the settings out: it is not known yet whether there is a pooler, and other programs' sessions
                behind it must not get them. `set_up` comes later.

        Raises:
            PersistenceError: "unreachable", with the number of tries and the time they took.
        """
        self._origin.require_same()
        assert over is not None or tries is not None, "it would try for ever"
        name = application_name(incarnation) if incarnation else None
        began, number = deadline(0), 0
        while True:
            number += 1
            once = deadline(self._limits.connect_s)
            once = once if over is None else min(once, over)
            try:
                session = await self._opened(name or self.name, over=once, standby=standby)
                return session if bare else await self._prepared(session, role, over=once)
            except (OSError, Lost, asyncpg.InternalClientError, *DatabaseRefusal) as error:
                pause_s = self._chance.between(0.5, 1.0) * self._limits.backoff_s * 2 ** min(number - 1, 4)
                late = over is not None and deadline(pause_s) >= over
                if number == tries or late or hopeless(error):
                    raise self._unreachable(error, tries=number, took_s=deadline(0) - began) from error
            await asyncio.sleep(pause_s)

    async def look(self, session: PostgresSession, *, over: float) -> None:
        """Check whether the server keeps coterie's promises; warn, once, of what may lose data in a crash.

        Raises:
            ConfigurationError: It does not.
        """
        warnings = await server_check.warnings(session, address=self.address, over=over)
        for warning in warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                log.warning(warning)
        session.look_at = deadline(LOOK_S)

    async def look_again(self, session: PostgresSession, *, over: float) -> None:
        """Check again before a session writes: the server's settings may change while it is open.

        Raises:
            Lost: The server no longer keeps the promises; the session is dropped.
        """
        try:
            await self.look(session, over=over)
        except ConfigurationError as error:
            session.abort()
            raise Lost(error.problem, sent=False) from error

    async def _prepared(self, session: PostgresSession, role: Role, *, over: float) -> PostgresSession:
        """Set up a session on a suitable server, and terminate sessions there that were dropped before."""
        await self.set_up(session, role, over=over)
        try:
            await self.look(session, over=over)
            if not self.pooled:
                await self.registry.end_dropped(session, address=self.address, over=over)
        except ConfigurationError as error:
            session.abort()
            raise PersistenceError(
                doing=f"connect to {self.address}", problem=error.problem, outcome="unreachable", hint=error.hint
            ) from error
        except BaseException:
            session.abort()
            raise
        return session

    async def _opened(self, name: str, *, over: float, standby: bool) -> PostgresSession:
        """Open a bare session, counted."""
        if self.pooled:  # the pooler limits them
            return await self._try(name, over=over, standby=standby)
        self.registry.begin(address=self.address)
        session = None
        try:
            session = await self._try(name, over=over, standby=standby)
            session.on_drop = self.registry.dropped
        finally:
            self.registry.end(session)
        return session

    async def set_up(self, session: PostgresSession, role: Role, *, over: float) -> PostgresSession:
        """Give a bare session its settings: permanently, or per transaction behind a pooler."""
        if self.pooled:
            session.opening = transaction_settings(role, application=session.name, limits=self._limits)
            return session
        session.opening = None
        try:
            await session.execute(session_settings(role, application=session.name, limits=self._limits), over=over)
        except BaseException:
            session.abort()
            raise
        return session

    async def _try(self, name: str, *, over: float, standby: bool) -> PostgresSession:
        raw = await self._open(over)
        label = self._chance.token(4).hex()
        session = PostgresSession(raw, what=f"the connection to {self.address}", label=label, name=name)
        session.opening = "begin"
        try:
            require_version(session.version, address=self.address)
            if session.standby and not standby:
                raise Lost("the server is a standby", sent=False)
            session.keep_alive(_tcp_options(self._limits))
        except BaseException:
            session.abort()
            raise
        return session

    async def _open(self, over: float) -> asyncpg.Connection[Any]:
        within_s = max(over - deadline(0), 0.0)
        several = "," in urlsplit(self._url).netloc and "target_session_attrs" not in self._url
        options: dict[str, Any] = {"target_session_attrs": "read-write"} if several else {}
        try:
            async with asyncio.timeout_at(over):
                # Without the driver's cache: sessions keep their own prepared statements, by text.
                raw: asyncpg.Connection[Any] = await asyncpg.connect(
                    self._url, timeout=within_s + 1, statement_cache_size=0, **options
                )
                instants.install(raw)
                return raw
        except asyncpg.InterfaceError:
            raise
        except ValueError:  # its text may contain a part of the URL, perhaps the password
            raise ConfigurationError(
                problem=f"the url {self.address} cannot be read", hint="is everything in it that is not plain encoded?"
            ) from None
        except TimeoutError as error:
            raise Lost(f"no answer within {within_s:.3g}s", sent=False) from error

    def _unreachable(self, error: Exception, *, tries: int, took_s: float) -> PersistenceError:
        many = f"{tries} tries" if tries > 1 else "1 try"
        return PersistenceError(
            doing=f"connect to {self.address}",
            problem=f"{describe(error)} ({many} in {took_s:.1f}s)",
            outcome="unreachable",
            hint=hopeless(error) or hint_of(error) or "is the server running? without COTERIE_URL a local file is used",
        )


def session_settings(role: Role, *, application: str, limits: ConnectionLimits) -> str:
    """The script that sets up a session. Not start-up parameters, which poolers refuse or drop."""
    settings: Mapping[str, str] = {
        **_settings(role, application=application, limits=limits),
        "default_transaction_isolation": "read committed",  # whatever the database's default [m4]
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "2",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": _ms(2 * limits.call_s),
    }
    return "; ".join(f"set {name} = '{value}'" for name, value in settings.items())


def transaction_settings(role: Role, *, application: str, limits: ConnectionLimits) -> str:
    """The script that opens a transaction with the same settings, and leaves none behind for other clients."""
    return f"begin isolation level read committed; {local_settings(role, application=application, limits=limits)}"


def local_settings(role: Role, *, application: str, limits: ConnectionLimits) -> str:
    """The script that sets them for the open transaction."""
    settings = _settings(role, application=application, limits=limits)
    script = "; ".join(f"set local {name} = '{value}'" for name, value in settings.items())
    # The session's previous client may have switched it off; the default was checked at start.
    return f"{script}; set local synchronous_commit to default"


def _settings(role: Role, *, application: str, limits: ConnectionLimits) -> Mapping[str, str]:
    call_s = {"migration": limits.migration_s, "dedicated": limits.dedicated_s}.get(role, limits.call_s)
    lock_s = min(limits.lock_s if role in ("writer", "dedicated") else 2.0, call_s / 2)
    return {
        "application_name": application,
        "search_path": "pg_catalog",
        "timezone": "UTC",
        "statement_timeout": _ms(call_s if role == "migration" else 0.9 * call_s),  # the server gives up first
        "lock_timeout": _ms(lock_s),
        "idle_in_transaction_session_timeout": _ms(limits.transaction_s),
        "jit": "off",
        # Rule-based plans, since the planner's statistics are stale just when a table starts to grow: the statements
        # find rows by key, in key order (a bitmap scan locks them in page order: deadlocks).
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_mergejoin": "off",
    }


def application_name(incarnation: str) -> str:
    """The application_name of coterie's sessions: `coterie/<incarnation>`, 63 characters at most."""
    return re.sub(r"[^A-Za-z0-9._:/-]", "_", f"coterie/{incarnation}")[:63]


def without_password(url: str) -> str:
    """A URL that is safe to print: user, hosts and database."""
    return redacted_url(url).partition("?")[0].replace(":***@", "@", 1)


def require_version(major: int, *, address: str) -> None:
    """Refuse servers that are too old."""
    if major < OLDEST:
        raise ConfigurationError(
            problem=f"{address} runs PostgreSQL {major}, coterie needs {OLDEST} or newer",
            hint=f"upgrade the server to PostgreSQL {OLDEST} or newer",
        )


def _tcp_options(limits: ConnectionLimits) -> Mapping[str, int]:
    """Detect a dead network within seconds, instead of the system's hours."""
    silent_ms = int(2000 * limits.call_s)
    return {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": silent_ms}


def _ms(seconds: float) -> str:
    return f"{max(seconds * 1000, 1):.0f}"  # zero would mean no limit
