"""Crons in a SQLite file: plain functions for their holders and readers, and the store.

Writes that go through the group writer are in `tick_writes.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from coterie.kernel.clock import to_datetime, to_ns
from coterie.kernel.ids import Seat
from coterie.storage.contracts.ticks import CronBook, CronRow, PauseRow, TickRow
from coterie.storage.sqlite import states
from coterie.storage.sqlite.database import snapshot
from coterie.storage.sqlite.store import (
    LAST_NS,
    SqliteStore,
    ago_ns,
    bindings,
    encoded,
    later_ns,
    reads,
    to_fields,
    to_instant,
    writes,
)
from coterie.storage.sqlite.tick_writes import SQL, instant_ns
from coterie.storage.unreadable_rows import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    import apsw

    from coterie.storage.contracts.ticks import ClaimResult, CronTakeover, Kind, TickClaim, TickNote
    from coterie.storage.interface import Written
    from coterie.storage.sqlite.store import Scope

_PAST_ALL_NS = 2**63 - 1
"""Later than every instant: those are whole microseconds."""


# ── rows, as the statements return them ─────────────────────────────────────────────────────────────────────────


class _Look(msgspec.Struct, array_like=True):
    place: int
    fingerprint: str
    effective_from_ns: int
    last_at_ns: int | None
    failures: int
    failed_at_ns: int | None
    is_news: int
    """Whether the cron is not known yet, or not with this definition."""
    pauses: tuple[tuple[int, int | None], ...]
    stored: tuple[msgspec.Raw, ...]
    open: tuple[TickRow, ...] = ()
    """The stored ones that can be read."""


_ROW = msgspec.json.Decoder(list[Any])
_ROWS = msgspec.json.Decoder(list[msgspec.Raw])
_LOOK = msgspec.json.Decoder(_Look)
_CRONS = msgspec.json.Decoder(list[tuple[msgspec.Raw, msgspec.Raw]])


def _tick(row: msgspec.Raw | str) -> TickRow:
    return msgspec.convert(to_fields(TickRow, _ROW.decode(row)), TickRow)


def _ticks(rows: Iterable[msgspec.Raw]) -> list[TickRow]:
    return readable(rows, _tick, table="ticks", key=lambda row: bytes(row)[:80].decode(errors="replace"))


# ── for holders of crons ────────────────────────────────────────────────────────────────────────────────────────


def known(connection: apsw.Connection, scope: Scope, takes: Sequence[CronTakeover]) -> dict[str, CronBook] | None:
    """The books of the crons that are held; None: something must be written first."""
    with snapshot(connection):
        looks = _look(connection, scope, takes)
    if any(look.is_news or _is_foreign(take, look) for take, look in looks):
        return None
    return {take.name: _book(scope, look) for take, look in looks}


def take(connection: apsw.Connection, scope: Scope, takes: Sequence[CronTakeover]) -> dict[str, CronBook]:
    """Store the definitions, take over the open ticks, and return the books."""
    looks = _look(connection, scope, takes)
    news = [take for take, look in looks if look.is_news]
    foreign = [(take, look) for take, look in looks if _is_foreign(take, look)]
    if news:
        connection.execute(SQL["introduce"], bindings(scope, asked=_asked(news)))
    names = [bindings(scope, name=take.name, runner=take.claim.runner, epoch=take.claim.epoch) for take, _ in foreign]
    connection.executemany(SQL["adopt"], names)
    begun = [bindings(scope, name=take.name, begun=_begun(look)) for take, look in foreign if _begun(look)]
    connection.executemany(SQL["begin"], begun)
    return {take.name: _book(scope, look) for take, look in _look(connection, scope, takes)}


def _look(connection: apsw.Connection, scope: Scope, takes: Sequence[CronTakeover]) -> list[tuple[CronTakeover, _Look]]:
    """The crons that are held, with their facts [C1]."""
    held = states.all_held(connection, scope.cluster, {take.claim for take in takes})
    asked = [take for take in takes if take.claim in held]
    found = _ROWS.decode(connection.execute(SQL["look"], bindings(scope, asked=_asked(asked))).get)
    looks = readable(found, _LOOK.decode, table="crons", key=lambda row: asked[msgspec.json.decode(row)[0]].name)
    for look in looks:
        look.open = tuple(_ticks(look.stored))
    return [(asked[look.place], look) for look in looks]


def _asked(takes: Iterable[CronTakeover]) -> str:
    return encoded({"name": take.name, "seat": take.claim.seat, "definition": take.definition} for take in takes)


def _is_foreign(take: CronTakeover, look: _Look) -> bool:
    """Whether an open tick does not belong to this holder yet."""
    return any(tick.epoch < take.claim.epoch for tick in look.open)


def _begun(look: _Look) -> int:
    """The number of triggered ticks that begin now."""
    return sum(tick.epoch == 0 for tick in look.open)


# ── for all processes ───────────────────────────────────────────────────────────────────────────────────────────


def trigger(connection: apsw.Connection, scope: Scope, name: str, *, at: datetime | None = None) -> TickRow | None:
    """Trigger one more tick, for an instant; None: there is no such cron."""
    if not _is_known(connection, scope, name):
        return None
    at_ns = later_ns(scope) if at is None else instant_ns(at)
    seq: int = connection.execute(SQL["trigger"], bindings(scope, name=name, at_ns=at_ns)).get
    return _get(connection, scope, name, "manual", at_ns, seq)


def pause(connection: apsw.Connection, scope: Scope, name: str) -> bool | None:
    """Begin a pause. Returns False if there is one, None if there is no such cron."""
    if not _is_known(connection, scope, name):
        return None
    if connection.execute(SQL["is_paused"], bindings(scope, name=name)).get:
        return False
    connection.execute(SQL["pause"], bindings(scope, name=name))
    return True


def resume(connection: apsw.Connection, scope: Scope, name: str) -> bool | None:
    """End a pause. Returns False if there is none, None if there is no such cron."""
    if not _is_known(connection, scope, name):
        return None
    connection.execute(SQL["resume"], bindings(scope, name=name))
    return connection.changes() == 1


def get(connection: apsw.Connection, scope: Scope, name: str, kind: Kind, at: datetime, seq: int) -> TickRow | None:
    """One tick."""
    return _get(connection, scope, name, kind, instant_ns(at), seq)


def _get(connection: apsw.Connection, scope: Scope, name: str, kind: Kind, at_ns: int, seq: int) -> TickRow | None:
    names = bindings(scope, name=name, kind=kind, at_ns=at_ns, seq=seq)
    found = connection.execute(SQL["get"], names).get
    return None if found is None else _tick(found)


def history(
    connection: apsw.Connection, scope: Scope, name: str, *, most: int, before: datetime | None = None
) -> list[TickRow]:
    """The last ticks of a cron, the latest instant first."""
    before_ns = _PAST_ALL_NS if before is None else max(-LAST_NS, min(to_ns(before), _PAST_ALL_NS))
    names = bindings(scope, name=name, before_ns=before_ns, most=most)
    return _ticks(_ROWS.decode(connection.execute(SQL["history"], names).get))


def histories(
    connection: apsw.Connection, scope: Scope, names: Sequence[str], *, most: int, since: datetime, before: datetime
) -> dict[str, list[TickRow]]:
    """The last ticks of these crons since an instant, the latest first; all of one moment."""
    with snapshot(connection):
        found = {name: history(connection, scope, name, most=most, before=before) for name in names}
    return {name: [row for row in rows if row.until >= since] for name, rows in found.items()}


def listed(connection: apsw.Connection, scope: Scope) -> list[CronRow]:
    """All crons, by name."""
    rows = _CRONS.decode(connection.execute(SQL["list"], bindings(scope)).get)
    return readable(rows, lambda row: _cron(scope, *row), table="crons", key=lambda row: _ROW.decode(row[0])[0])


def purge(connection: apsw.Connection, scope: Scope, *, older_s: float, most: int) -> int:
    """Delete some ticks that ended long ago, and pauses. Returns the number of ticks."""
    names = bindings(scope, before_ns=ago_ns(scope, older_s), most=most)
    connection.execute(SQL["purge_pauses"], names)
    connection.execute(SQL["purge"], names)
    return connection.changes()


def _is_known(connection: apsw.Connection, scope: Scope, name: str) -> bool:
    return bool(connection.execute(SQL["is_known"], bindings(scope, seat=Seat.cron(name))).get)


# ── conversion of rows ──────────────────────────────────────────────────────────────────────────────────────────


def _book(scope: Scope, look: _Look) -> CronBook:
    return CronBook(
        fingerprint=look.fingerprint,
        effective_from=to_datetime(look.effective_from_ns),
        last=to_instant(look.last_at_ns),
        failures=look.failures,
        failed_at=to_instant(look.failed_at_ns),
        pauses=tuple(PauseRow(to_datetime(since_ns), to_instant(until_ns)) for since_ns, until_ns in look.pauses),
        open=look.open,
        now=to_datetime(scope.now_ns),
    )


def _cron(scope: Scope, row: msgspec.Raw, latest: msgspec.Raw) -> CronRow:
    ticks = _ticks([] if bytes(latest) == b"null" else [latest])
    fields = to_fields(CronRow, [*_ROW.decode(row), next(iter(ticks), None), scope.now_ns])
    return msgspec.convert(fields, CronRow)


class SqliteTicks(SqliteStore):
    """The crons of one cluster. See `storage.contracts.ticks.TickStore`."""

    _known = reads(known, "look after crons")
    _take = writes(take, "look after crons")

    async def take(self, takes: Sequence[CronTakeover]) -> Mapping[str, CronBook]:
        """Take over crons. Takes the contended write lock only if there is something to write."""
        found = await self._known(takes)
        return await self._take(takes) if found is None else found

    async def claim(self, write: TickClaim) -> ClaimResult:
        """Durable when it returns "written"."""
        return cast("ClaimResult", await self._write(write))

    async def note(self, write: TickNote) -> Written:
        """Durable when it returns "written"."""
        return cast("Written", await self._write(write))

    trigger = writes(trigger, "trigger {name!r}")
    pause = writes(pause, "pause {name!r}")
    resume = writes(resume, "resume {name!r}")
    get = reads(get, "look at a tick of {name!r}")
    history = reads(history, "read the history of {name!r}")
    histories = reads(histories, "read the history of crons")
    list = reads(listed, "list crons")
    purge = writes(purge, "purge old ticks")
