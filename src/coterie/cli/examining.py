"""What `coterie doctor` makes of what it sees. Pure, but for the look whether ports are free."""

from __future__ import annotations

import errno
import socket
from collections import Counter
from typing import TYPE_CHECKING

from coterie.cli.findings import Finding
from coterie.errors import ConfigurationError
from coterie.observe.health import BOUNDS
from coterie.settings import help_rows
from coterie.settings.parsers import split_address
from coterie.storage.unreadable_rows import found
from coterie.transport.identity import is_loopback
from coterie.transport.tls import Certificates, near_end

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from coterie.observe.facts import LocalFacts
    from coterie.settings import Settings
    from coterie.storage.contracts.inspection import Server
    from coterie.storage.interface import RunnerRow
    from coterie.storage.migrations import Migration

GRACE = "TERMINATION_GRACE_PERIOD_SECONDS"
"""The variable in which a pod tells its terminationGracePeriodSeconds: Kubernetes itself tells nobody inside."""
_GRACE_S = 30.0
"""What it is if nobody has changed it."""
_LEAVE_S = 5.0
"""What a process needs after its drain: hooks, hand-over, the end of the interpreter."""
_FULL = 0.9
"""Of the server's connections; from here on the next deploy may find none."""


def settings_of(settings: Settings) -> Iterator[Finding]:
    """That they could be read, and whether they break a promise."""
    rows = help_rows(settings)
    given = len([row for row in rows if row.origin.startswith("COTERIE_")])
    yield Finding("settings", f"{len(rows)} values, {given} from COTERIE_* variables, no unknown ones")
    for warning in settings.warnings():
        yield Finding("settings", warning, "warn")


def certificates(settings: Settings, now: datetime) -> Iterator[Finding]:
    """Whether those of this machine fit together, and for how long."""
    if settings.tls_cert is None:
        return
    try:
        ends_at = Certificates(settings).ends_at
    except ConfigurationError as error:
        yield Finding("TLS", error.message, "bad", error.hint)
        return
    warning = near_end(ends_at, now)
    yield Finding("TLS", warning or f"certificates are good until {ends_at:%Y-%m-%d}", "warn" if warning else "good")


def database(server: Server, applied: Sequence[Migration], pending: Sequence[Migration]) -> Iterator[Finding]:
    """What it is, whether its schema is ours, and whether it has connections left."""
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
        says = f"it lacks {_counted(len(early), 'migration')}, first {early[0]}: runners of this version refuse it"
        yield Finding("schema", says, "bad", "coterie migrate --apply")
    elif pending:
        hint = "when no older version runs any more: coterie migrate --apply --phase post"
        yield Finding("schema", f"{_counted(len(pending), 'migration')} to be applied after the deploy", "warn", hint)
    if server.most and server.taken is not None and server.taken >= _FULL * server.most:
        hint = "raise max_connections, lower COTERIE_POOL_SIZE, or put a pooler in session mode before it"
        yield Finding("connections", f"{server.taken} of {server.most} are taken", "warn", hint)


def clocks(rows: Sequence[RunnerRow], told: Mapping[str, LocalFacts | None]) -> Iterator[Finding]:
    """Whether the runners' clocks agree with the database's."""
    offsets = {row.name: f.clock_offset_s for row in rows if (f := told.get(row.id)) and f.clock_offset_s is not None}
    if not offsets:
        return
    worst = max(offsets, key=lambda name: abs(offsets[name]))
    if abs(offsets[worst]) > BOUNDS.clock_s:
        says = f"{worst} is {abs(offsets[worst]):.1f}s {'ahead of' if offsets[worst] > 0 else 'behind'} the database"
        yield Finding("clock", says, "bad", f"let NTP set the clock of {worst}, or of the database")
    else:
        most_ms = max(1, round(abs(offsets[worst]) * 1000))
        yield Finding("clock", f"{_counted(len(offsets), 'runner')} within {most_ms} ms of the database")


def runners(rows: Sequence[RunnerRow], told: Mapping[str, LocalFacts | None]) -> Iterator[Finding]:
    """Whether all can be reached, from here and from each other."""
    silent = [row for row in rows if told.get(row.id) is None]
    if not rows:
        yield Finding("runners", "none at all", "warn", "coterie run app.py starts one")
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


def versions(rows: Sequence[RunnerRow], told: Mapping[str, LocalFacts | None]) -> Iterator[Finding]:
    """Whether all run the same one."""
    found = {row.name: f.version for row in rows if (f := told.get(row.id)) and f.version}
    counted = Counter(found.values()).most_common()
    if len(counted) == 1:
        yield Finding("versions", f"{counted[0][0]} everywhere")
    elif counted:
        usual = counted[0][0]
        others = [f"{name} runs {version}" for name, version in sorted(found.items()) if version != usual]
        yield Finding("versions", f"{', '.join(others)}, the others {usual}: fine during a deploy", "warn")


def ports(settings: Settings, *, runs_here: bool) -> Iterator[Finding]:
    """Whether a runner could listen here.

    Args:
        settings: Where it would.
        runs_here: Whether a runner of this cluster runs on this machine: what is taken may well be its own.
    """
    said: list[str] = []
    for name, address in (("listen", settings.listen), ("http_listen", settings.http_listen)):
        problem = None if address is None else _problem(address)
        may_move = name == "http_listen" and settings.origin(name) == "default"
        if address is None:
            said.append(f"{name} off")
        elif problem is None:
            said.append(f"{name} {address}")
        elif problem == "taken" and (may_move or runs_here):
            whose = "by a runner, it seems" if runs_here else "a runner takes the next free port"
            said.append(f"{name} {address} is taken, {whose}")
        else:
            hint = f"choose another one with COTERIE_{name.upper()}; port 0 is any free one"
            yield Finding("ports", f"{name} {address} cannot be had, it is {problem}", "bad", hint)
    if said:
        yield Finding("ports", "; ".join(said))


def kubernetes(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What only goes wrong in a pod: probes that nobody can reach, a drain that is cut short."""
    in_pod, told = "KUBERNETES_SERVICE_HOST" in environ, _grace_s(environ)
    if in_pod:
        yield from _reachable(settings)
    if in_pod or told is not None:
        yield from _termination(settings.drain.total_seconds(), told)


def _reachable(settings: Settings) -> Iterator[Finding]:
    if settings.http_listen is None:
        yield Finding("probes", "http_listen is off: the kubelet has nothing to ask", "warn")
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
        since = "" if told_s is not None else ", unless it was told otherwise"
        yield Finding("termination", f"drain is {drain_s:g}s, the pod is killed after {grace_s:g}s{since}")
        return
    raised, lowered = drain_s + 2 * _LEAVE_S, max(grace_s - _LEAVE_S, 0)
    hint = f"raise terminationGracePeriodSeconds to {raised:g}, or set COTERIE_DRAIN={lowered:g}s"
    if told_s is None:
        says = f"drain is {drain_s:g}s, and Kubernetes kills after {grace_s:g}s unless told otherwise"
        yield Finding("termination", says, "warn", f"{hint};\nset {GRACE} to have it compared")
    else:
        yield Finding("termination", f"drain is {drain_s:g}s, but the pod is killed after {grace_s:g}s", "bad", hint)


def _grace_s(environ: Mapping[str, str]) -> float | None:
    try:
        return float(environ[GRACE])
    except (KeyError, ValueError):
        return None


def _problem(address: str) -> str | None:
    """Why nobody could listen there now; None: somebody could."""
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


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def unreadable(told: Mapping[str, LocalFacts | None]) -> list[Finding]:
    """The rows that somebody, or this command itself, could not read."""
    theirs = (row for facts in told.values() if facts is not None for row in facts.unreadable)
    rows = dict.fromkeys([*map(str, found()), *theirs])
    hint = "it is left out, the others are not: mend or delete it with SQL"
    return [Finding("rows", row, "bad", hint) for row in rows]
