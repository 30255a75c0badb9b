"""Writes of the holders of crons: verdicts for ticks, and reports on those that run [M8, M9].

Plain functions to be run inside a transaction, each for many crons at once: at midnight all of them are due, and other
processes wait for the write lock. So two queries read all that counts, the seats and the rest, and the decisions made
here are written after them. The write lock is held: nothing changes in between.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.kernel.clock import to_datetime, to_ns
from coterie.kernel.text import storable
from coterie.storage import statements
from coterie.storage.contracts.ticks import ClaimResult
from coterie.storage.sqlite import states
from coterie.storage.sqlite.store import LAST_NS, bindings, encoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    import apsw

    from coterie.storage.contracts.ticks import TickClaim, TickNote
    from coterie.storage.interface import Written
    from coterie.storage.sqlite.store import Scope

SQL = dict(statements.load(f"{__package__}.sql", "ticks.sql"))


class _Schedule(msgspec.Struct, array_like=True, gc=False):
    """The facts that decide about a claim."""

    fingerprint: str
    effective_from_ns: int
    last_at_ns: int | None
    paused: int


_SCHEDULES = msgspec.json.Decoder(list[_Schedule])
_PLACES = msgspec.json.Decoder(set[int])


def instant_ns(at: datetime) -> int:
    """An instant as stored; those beyond the column's range (from the year 2262 on) become its end."""
    return max(-LAST_NS, min(to_ns(at), LAST_NS))


def claim(connection: apsw.Connection, scope: Scope, writes: Sequence[TickClaim]) -> list[ClaimResult]:
    """Store the verdicts of ticks if the conditions of `ClaimResult` hold. At most one claim for each cron."""
    names = bindings(scope)
    now = to_datetime(names["now_ns"])
    held = _proven(connection, scope, writes)
    asked = encoded({"name": write.name, "seat": write.claim.seat} for write in held)
    schedules = _SCHEDULES.decode(connection.execute(SQL["schedules"], {**names, "asked": asked}).get)
    told = {write.key: _judged(write, schedule, now) for write, schedule in zip(held, schedules, strict=True)}
    chosen = [write for write in held if told[write.key] == "written"]
    if chosen:
        connection.execute(SQL["advance"], {**names, "rows": encoded(map(_advanced, chosen))})
        rows = encoded(row for write in chosen for row in _rows(write, now))
        connection.execute(SQL["claim"], {**names, "rows": rows})
    return [ClaimResult(told.get(write.key, "fenced"), now) for write in writes]


def note(connection: apsw.Connection, scope: Scope, writes: Sequence[TickNote]) -> list[Written]:
    """Store reports on running ticks. At most one for each cron."""
    names = bindings(scope)
    held = _proven(connection, scope, writes)
    rows = [_noted(write) for write in held]
    running = _PLACES.decode(connection.execute(SQL["running"], {**names, "rows": encoded(rows)}).get)
    told: dict[str, Written] = {
        write.key: "written" if place in running else "conflict" for place, write in enumerate(held)
    }
    chosen = [place for place in range(len(held)) if place in running]
    connection.executemany(SQL["note"], [names | rows[place] for place in chosen])
    counted = [row for row in (_counted(held[place]) for place in chosen) if row["outcome"] or row["error"]]
    connection.executemany(SQL["count"], [names | row for row in counted])
    return [told.get(write.key, "fenced") for write in writes]


def _judged(write: TickClaim, schedule: _Schedule, now: datetime) -> Any:
    """The `ClaimResult.told` of a claim that has passed the fence."""
    last_ns = schedule.last_at_ns
    if last_ns != (None if write.last is None else instant_ns(write.last)):
        return "moved"
    if last_ns is not None and instant_ns(write.verdicts[0].at) <= last_ns:
        return "moved"  # it already has its verdict
    until = write.verdicts[-1].until
    is_same = schedule.fingerprint.partition(":")[0] == write.schedule
    if not is_same and until >= to_datetime(schedule.effective_from_ns):
        return "redefined"
    if schedule.paused and any(not verdict.reason for verdict in write.verdicts):
        return "paused"
    return "early" if until > now - timedelta(seconds=write.delay_s) else "written"


def _advanced(write: TickClaim) -> dict[str, Any]:
    runs = sum(not verdict.reason for verdict in write.verdicts)
    return {"name": write.name, "last_at_ns": instant_ns(write.verdicts[-1].until), "runs": runs}


def _rows(write: TickClaim, now: datetime) -> Iterable[dict[str, Any]]:
    delay = timedelta(seconds=write.delay_s)
    for verdict in write.verdicts:
        yield {
            "name": write.name,
            "at_ns": instant_ns(verdict.at),
            "until_at_ns": instant_ns(verdict.until),
            "count": verdict.count,
            "epoch": write.claim.epoch,
            "runs": not verdict.reason,
            "reason": verdict.reason,
            "runner": write.claim.runner,
            "late_s": None if verdict.reason else (now - verdict.at - delay).total_seconds(),
        }


def _noted(write: TickNote) -> dict[str, Any]:
    return msgspec.structs.asdict(write) | {
        "at_ns": instant_ns(write.at),
        "epoch": write.claim.epoch,
        "errors": None if write.errors is None else encoded(map(storable, write.errors)),
        "note": storable(write.note),
    }


def _counted(write: TickNote) -> dict[str, Any]:
    is_new = bool(write.errors) and (write.again or write.outcome == "failed")
    error = storable(write.errors[-1]) if write.errors and is_new else None
    outcome = None if write.outcome == "skipped" else write.outcome
    return {"name": write.name, "outcome": outcome, "error": error}


def _proven(connection: apsw.Connection, scope: Scope, writes: Sequence[Any]) -> list[Any]:
    """Return the writes whose seats are held; refusals of the others are recorded [C1]."""
    held = states.all_held(connection, scope.cluster, {write.claim for write in writes})
    for write in writes:
        if write.claim not in held:
            states.note_refusal(connection, scope, write.claim, about=write.claim.seat)
    return [write for write in writes if write.claim in held]
