"""`coterie doctor`: checks settings, database, clocks, ports and versions, and says what to do.

The checks are pure, except for the one whether ports are free.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from coterie.cli.client import NO, UNANSWERED, YES, common, settings_for, storage_for
from coterie.cli.output import Finding, Screen, as_json, as_objects, concluded, counts, echo, plural, shown
from coterie.errors import ConfigurationError, CoterieError, PersistenceError
from coterie.kernel.clock import SystemClock, to_datetime
from coterie.observe.health import BOUNDS
from coterie.settings import Settings, help_rows
from coterie.settings.parsers import split_address
from coterie.settings.secret import redacted_url
from coterie.storage.engines import file_of
from coterie.storage.unreadable_rows import found
from coterie.transport.identity import is_loopback
from coterie.transport.tls import Certificates, near_end

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from coterie.observe.facts import LocalFacts, QueueFacts
    from coterie.storage.contracts.inspection import ServerInfo
    from coterie.storage.interface import RunnerRow
    from coterie.storage.migrations import Migration


GRACE = "TERMINATION_GRACE_PERIOD_SECONDS"
"""The variable that passes terminationGracePeriodSeconds to a pod: Kubernetes itself does not expose it inside."""
_GRACE_S = 30.0
"""The default of Kubernetes."""
_LEAVE_S = 5.0
"""What a process needs after its drain: hooks, hand-over, the end of the interpreter."""
_FULL = 0.9
"""Share of the server's connections in use from which the next deploy may find none."""


def settings_of(settings: Settings) -> Iterator[Finding]:
    """Whether they could be read, and whether they break a promise."""
    rows = help_rows(settings)
    given = len([row for row in rows if row.origin.startswith("COTERIE_")])
    yield Finding("settings", f"{len(rows)} values, {given} from COTERIE_* variables, no unknown ones")
    for warning in settings.warnings():
        yield Finding("settings", warning, "warn")


def certificates(settings: Settings, now: datetime) -> Iterator[Finding]:
    """Whether the certificates of this machine fit together, and how long they are valid."""
    if settings.tls_cert is None:
        return
    try:
        ends_at = Certificates(settings).ends_at
    except ConfigurationError as error:
        yield Finding("TLS", error.message, "bad", error.hint)
        return
    warning = near_end(ends_at, now)
    yield Finding("TLS", warning or f"certificates are good until {ends_at:%Y-%m-%d}", "warn" if warning else "good")


def database(server: ServerInfo, applied: Sequence[Migration], pending: Sequence[Migration]) -> Iterator[Finding]:
    """Its version, whether its schema is ours, and whether it has connections left."""
    number = max((step.number for step in applied), default=0)
    schema = "no schema yet" if not applied else f"schema {number}" + ("" if pending else " (current)")
    ours = "" if server.most is None else f", {server.ours} of {server.most} connections ours"
    yield Finding("database", f"{server.product}, {schema}{ours}")
    early = [step for step in pending if step.phase == "pre"]
    if not applied:
        yield Finding(
            "schema", "the database is empty", "warn", "the first runner sets it up, or coterie migrate --apply"
        )
    elif early:
        says = f"it lacks {plural(len(early), 'migration')}, first {early[0]}: runners of this version refuse it"
        yield Finding("schema", says, "bad", "coterie migrate --apply")
    elif pending:
        hint = "when no older version runs any more: coterie migrate --apply --phase post"
        yield Finding("schema", f"{plural(len(pending), 'migration')} to be applied after the deploy", "warn", hint)
    if server.most and server.taken is not None and server.taken >= _FULL * server.most:
        hint = "raise max_connections, lower COTERIE_POOL_SIZE, or put a pooler in session mode before it"
        yield Finding("connections", f"{server.taken} of {server.most} are taken", "warn", hint)


def clocks(rows: Sequence[RunnerRow], replies: Mapping[str, LocalFacts | None]) -> Iterator[Finding]:
    """Whether the runners' clocks agree with the database's."""
    offsets = {
        row.name: f.clock_offset_s for row in rows if (f := replies.get(row.id)) and f.clock_offset_s is not None
    }
    if not offsets:
        return
    worst = max(offsets, key=lambda name: abs(offsets[name]))
    if abs(offsets[worst]) > BOUNDS.clock_s:
        says = f"{worst} is {abs(offsets[worst]):.1f}s {'ahead of' if offsets[worst] > 0 else 'behind'} the database"
        yield Finding("clock", says, "bad", f"let NTP set the clock of {worst}, or of the database")
    else:
        most_ms = max(1, round(abs(offsets[worst]) * 1000))
        yield Finding("clock", f"{plural(len(offsets), 'runner')} within {most_ms} ms of the database")


def runners(rows: Sequence[RunnerRow], replies: Mapping[str, LocalFacts | None]) -> Iterator[Finding]:
    """Whether all can be reached, from here and from each other."""
    silent = [row for row in rows if replies.get(row.id) is None]
    if not rows:
        yield Finding("runners", "there are none", "warn", "coterie run app.py starts one")
    for row in silent:
        hint = "is it alive, and may this machine connect there? One that is lost is replaced within 10s"
        yield Finding("runners", f"{row.name} does not answer at {row.address}", "bad", hint)
    if rows and not silent:
        yield Finding("runners", f"{len(rows)} of {len(rows)} answer")
    if len({row.host_id for row in rows}) > 1:
        for row in rows:
            if is_loopback(row.address):
                says = f"{row.name} is at {row.address}, where runners of other machines cannot reach it"
                yield Finding("runners", says, "bad", "set COTERIE_LISTEN to 0.0.0.0:0 there, and COTERIE_ADVERTISE")


def versions(rows: Sequence[RunnerRow], replies: Mapping[str, LocalFacts | None]) -> Iterator[Finding]:
    """Whether all run the same version."""
    found = {row.name: f.version for row in rows if (f := replies.get(row.id)) and f.version}
    counted = Counter(found.values()).most_common()
    if len(counted) == 1:
        yield Finding("versions", f"{counted[0][0]} everywhere")
    elif counted:
        usual = counted[0][0]
        others = [f"{name} runs {version}" for name, version in sorted(found.items()) if version != usual]
        yield Finding("versions", f"{', '.join(others)}, the others {usual}: fine during a deploy", "warn")


def queues(found: Sequence[QueueFacts]) -> Iterator[Finding]:
    """Whether there is somebody to run what is stored: tasks that no runner has, queues that were forgotten paused."""
    if not found:
        return
    paused = [each for each in found if each.paused_at is not None]
    for each in found:
        if each.parked:
            tasks = ", ".join(each.parked_tasks) or "unknown"
            says = f"{plural(each.parked, 'job')} of queue {each.name} parked: no runner has task {tasks}"
            yield Finding("queues", says, "warn", f"start a runner of group {each.group} whose program has them")
    for each in paused:
        if each.ready:
            waiting = "1 job waits" if each.ready == 1 else f"{each.ready:,} jobs wait"
            says = f"queue {each.name} is paused, and {waiting} in it"
            yield Finding("queues", says, "warn", f"coterie queues resume {each.name}")
    yield Finding("queues", f"{plural(len(found), 'queue')}, {len(paused)} paused")


def ports(settings: Settings, *, runs_here: bool) -> Iterator[Finding]:
    """Whether a runner could listen here.

    Args:
        settings: The settings with its addresses.
        runs_here: Whether a runner of this cluster runs on this machine: a port in use may well be its own.
    """
    lines: list[str] = []
    for name, address in (("listen", settings.listen), ("http_listen", settings.http_listen)):
        problem = None if address is None else _problem(address)
        may_move = name == "http_listen" and settings.origin(name) == "default"
        if address is None:
            lines.append(f"{name} off")
        elif problem is None:
            lines.append(f"{name} {address}")
        elif problem == "taken" and (may_move or runs_here):
            whose = "by a runner, it seems" if runs_here else "a runner takes the next free port"
            lines.append(f"{name} {address} is taken, {whose}")
        else:
            hint = f"choose another one with COTERIE_{name.upper()}; port 0 is any free one"
            yield Finding("ports", f"{name} {address} cannot be used: {problem}", "bad", hint)
    if lines:
        yield Finding("ports", "; ".join(lines))


def kubernetes(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Problems that occur only in a pod: probes that cannot be reached, a drain that is cut short."""
    in_pod, grace_s = "KUBERNETES_SERVICE_HOST" in environ, _grace_s(environ)
    if in_pod:
        yield from _reachable(settings)
    if in_pod or grace_s is not None:
        yield from _termination(settings.drain.total_seconds(), grace_s)


def _reachable(settings: Settings) -> Iterator[Finding]:
    if settings.http_listen is None:
        yield Finding("probes", "http_listen is off: the kubelet has nothing to probe", "warn")
    elif is_loopback(settings.http_listen):
        port = split_address(settings.http_listen)[1]
        says = f"http_listen is {settings.http_listen}, which the kubelet cannot reach"
        yield Finding("probes", says, "bad", f"set COTERIE_HTTP_LISTEN=0.0.0.0:{port}")
    if settings.advertise is None and is_loopback(settings.listen):
        says = f"listen is {settings.listen}, which other pods cannot reach (fine for a single one)"
        yield Finding(
            "ports", says, "warn", "set COTERIE_LISTEN=0.0.0.0:7651, and COTERIE_ADVERTISE to the pod's address"
        )


def _termination(drain_s: float, told_s: float | None) -> Iterator[Finding]:
    grace_s = _GRACE_S if told_s is None else told_s
    if grace_s >= drain_s + _LEAVE_S:
        since = "" if told_s is not None else " by default"
        yield Finding("termination", f"drain is {drain_s:g}s, the pod is killed after {grace_s:g}s{since}")
        return
    raised, lowered = drain_s + 2 * _LEAVE_S, max(grace_s - _LEAVE_S, 0)
    hint = f"raise terminationGracePeriodSeconds to {raised:g}, or set COTERIE_DRAIN={lowered:g}s"
    if told_s is None:
        says = f"drain is {drain_s:g}s, and Kubernetes kills after {grace_s:g}s by default"
        yield Finding("termination", says, "warn", f"{hint};\nset {GRACE} to have it compared")
    else:
        yield Finding("termination", f"drain is {drain_s:g}s, but the pod is killed after {grace_s:g}s", "bad", hint)


def _grace_s(environ: Mapping[str, str]) -> float | None:
    try:
        return float(environ[GRACE])
    except (KeyError, ValueError):
        return None


def _problem(address: str) -> str | None:
    """Why a runner could not listen on an address now; None if it could."""
    host, port = split_address(address)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(where)
            tried.listen()
    except OSError as error:
        known = {errno.EADDRINUSE: "taken", errno.EADDRNOTAVAIL: "no address of this machine"}
        return known.get(error.errno or 0, error.strerror or str(error))
    return None


def unreadable(replies: Mapping[str, LocalFacts | None]) -> list[Finding]:
    """The rows that a runner, or this command itself, could not read."""
    theirs = (row for facts in replies.values() if facts is not None for row in facts.unreadable)
    rows = dict.fromkeys([*map(str, found()), *theirs])
    hint = "this row is skipped, the others are not: repair or delete it with SQL"
    return [Finding("rows", row, "bad", hint) for row in rows]


@click.command()
@click.option("--color/--no-color", "colour", default=None, help="Colours (default: on a terminal).")
@common
def command(url: str | None, as_json: bool, colour: bool | None) -> int:
    """Check settings, database, clocks, ports and versions.

    Exit 1 if there is a problem; remarks are none. In a pod, TERMINATION_GRACE_PERIOD_SECONDS tells it how long the
    pod may take to end.

    \b
    Example:
      coterie doctor --url postgresql://app@db.internal/app --json
    """
    examination = Examination(url)
    asyncio.run(examination.run())
    code = examination.code
    if as_json:
        echo(_document(examination))
    else:
        echo(f"{examination.where}\n\n{shown(Screen(colour=colour), examination.findings)}")
        echo(concluded(examination.findings, code))
    return code


class Examination:
    """One pass through all checks: one that fails does not prevent the others.

    Args:
        url: The database, if it is not that of the environment.
    """

    def __init__(self, url: str | None) -> None:
        self.findings: list[Finding] = []
        self.where = "this machine"
        self._url = url
        self._is_nobody_there = False
        self._runs_here = False

    @property
    def code(self) -> int:
        """The exit code of the command."""
        if self._is_nobody_there:
            return UNANSWERED
        return NO if counts(self.findings)[0] else YES

    async def run(self) -> None:
        """Run all checks. A warning logged meanwhile becomes a remark, once."""
        with _warnings() as warnings:
            await self._run(warnings)

    async def _run(self, warnings: list[str]) -> None:
        try:
            settings = settings_for(self._url)
        except ConfigurationError as error:
            self.findings.append(Finding("settings", error.message, "bad", error.hint))
            return
        self.where = f"cluster {settings.name} on {redacted_url(settings.url)}"
        self.findings += settings_of(settings)
        self.findings += certificates(settings, to_datetime(SystemClock().wall_ns()))
        try:
            is_usable = await self._database(settings)
            known = {each.says for each in self.findings}
            self.findings += [
                Finding("database", text, "warn") for text in dict.fromkeys(warnings) if text not in known
            ]
            if is_usable:
                await self._cluster(settings)
        except PersistenceError as error:
            self._is_nobody_there = True
            self.findings.append(Finding("database", error.message, "bad", error.hint))
        except CoterieError as error:
            self.findings.append(Finding("database", error.message, "bad", error.hint))
        self.findings += ports(settings, runs_here=self._runs_here)
        self.findings += kubernetes(settings, os.environ)

    async def _database(self, settings: Settings) -> bool:
        """Check the database itself; returns whether a program of this version can work with its contents."""
        file = file_of(settings)
        if file is not None and not file.exists():
            self._is_nobody_there = True
            hint = "coterie run starts one; --url or COTERIE_URL names another database"
            self.findings.append(Finding("database", f"there is no cluster at {file}", "bad", hint))
            return False
        async with storage_for(settings) as storage:
            applied, pending = await storage.schema.applied(), await storage.schema.pending()
            server = await storage.inspection.server()
        self.findings += database(server, applied, pending)
        return bool(applied) and all(step.phase == "post" for step in pending)

    async def _cluster(self, settings: Settings) -> None:
        """Query the runners."""
        from coterie.cluster import Cluster
        from coterie.transport.identity import host_id

        cluster = Cluster(settings=settings)
        async with cluster.connect():
            facts = await cluster._acting().collector.collect()
        rows, replies = facts.view.runners, facts.runners
        self._runs_here = any(row.host_id == host_id() for row in rows)
        for check in (clocks, runners, versions):
            self.findings += check(rows, replies)
        self.findings += queues(facts.queues)
        self.findings += unreadable(replies)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect logged warnings, instead of the other log handlers."""
    warnings: list[str] = []
    log, handler = logging.getLogger("coterie"), logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    propagated, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield warnings
    finally:
        log.removeHandler(handler)
        log.propagate = propagated


def _document(examination: Examination) -> str:
    problems, remarks = counts(examination.findings)
    return as_json(
        {
            "where": examination.where,
            "checks": as_objects(examination.findings),
            "problems": problems,
            "remarks": remarks,
        }
    )
