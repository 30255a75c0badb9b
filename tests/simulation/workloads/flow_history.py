"""What the flows workload is judged by: what was committed about units, in commit order, with what bodies noted.

The database's part is written by triggers, so that it is part of each transaction and vanishes with it. Everything has
a number from one counter, and so its place among all the rest.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from coterie import DeferredRejected, DeferredTimeout
from coterie.durable import failure
from tests.support.history.cron_events import Stepped
from tests.support.history.ownership import EpochsGrow, Event, Grant, check
from tests.support.history.workflow_checkers import (
    EveryRunEnds,
    FirstResolveWins,
    FlowsAreFenced,
    InterruptsCount,
    InTimeIsInTime,
    NothingIsLeft,
    NoWakeUpIsLost,
    ResultsAreRight,
    SleepsLast,
    StepsStoredOnce,
    WhatWasDoneIsUndone,
)
from tests.support.history.workflow_events import (
    Begun,
    Changed,
    Dropped,
    Ended,
    Interrupting,
    Stored,
    Suspended,
    Valued,
    Woken,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coterie.testing.simulation import Simulation

DRIFT_S = 0.1
"""What a runner's quartz is off by until it reads the database's clock anew."""
HISTORY = """
create temp table log (place integer, now_ns integer, what text, unit text, name text, kind text, a, b, c, d);
create temp trigger log_granted after update of holder on main.seats when new.holder is not null begin
    insert into log values (place(), now_ns(), 'granted', new.name, '', '', new.epoch, new.holder, null, null);
end;
create temp trigger log_begun after insert on main.units begin
    insert into log values (place(), now_ns(), 'begun', new.unit, new.seat, new.kind, null, null, null, null);
end;
create temp trigger log_interrupting after update on main.units when new.interrupting > old.interrupting begin
    insert into log values (place(), now_ns(), 'interrupting', new.unit, '', '', null, null, null, null);
end;
create temp trigger log_suspended after update on main.units
when new.status = 'suspended' and old.status <> 'suspended' begin
    insert into log values (place(), now_ns(), 'suspended', new.unit, '', '', null, null, null, null);
end;
create temp trigger log_woken after update on main.units
when old.status = 'suspended' and new.status = 'running' begin
    insert into log values (place(), now_ns(), 'woken', new.unit, '', '', null, null, null, null);
end;
create temp trigger log_ended after update of ended_at_ns on main.units when new.ended_at_ns is not null begin
    insert into log values (place(), now_ns(), 'ended', new.unit, new.status, '', new.value, null, null, null);
end;
create temp trigger log_gone after delete on main.units when old.kind <> 'workflow' begin
    insert into log values (place(), now_ns(), 'ended', old.unit, 'gone', '', null, null, null, null);
end;
create temp trigger log_stored after insert on main.steps begin
    insert into log values (
        place(), now_ns(), 'stored', new.unit, new.name, new.kind, new.done, new.value, new.error, new.due_at_ns
    );
end;
create temp trigger log_completed after update on main.steps begin
    insert into log values (
        place(), now_ns(), iif(old.done, 'changed', 'stored'), new.unit, new.name, new.kind, new.done, new.value,
        new.error, new.due_at_ns
    );
end;
create temp trigger log_dropped after delete on main.steps begin
    insert into log values (place(), now_ns(), 'dropped', old.unit, old.name, '', 0, null, null, null);
end;
create temp trigger log_valued after insert on main.deferreds begin
    insert into log values (place(), now_ns(), 'valued', new.unit, new.name, '', null, new.value, new.error, null);
end;
create temp trigger log_revalued after update of value, error on main.deferreds begin
    insert into log values (place(), now_ns(), 'revalued', new.unit, new.name, '', null, null, null, null);
end;
create temp trigger log_value_dropped after delete on main.deferreds begin
    insert into log values (place(), now_ns(), 'dropped', old.unit, old.name, '', 1, null, null, null);
end;
"""


class Defect(Exception):
    """What a step raises now and then; with its mark."""


class DatabaseEvent(NamedTuple):
    """A row of the database's part."""

    place: int
    now_ns: int
    what: str
    unit: str
    name: str
    kind: str
    a: Any
    b: Any
    c: Any
    d: Any


@dataclass
class FlowHistory:
    """The history of one run."""

    noted: list[tuple[int, Event]] = field(default_factory=list)
    _places: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _sim: Simulation | None = None

    def watch(self, sim: Simulation) -> None:
        """Have the database write its part, from before the first runner starts."""
        self._sim, main, database = sim, sim.database.main, sim.database
        main.create_scalar_function("place", lambda *_: next(self._places), 0)
        main.create_scalar_function("now_ns", lambda *_: database.clock.wall_ns(), 0)
        main.execute(HISTORY)
        step_clock = database.step_clock

        def stepped(by_s: float) -> None:
            self.note(Stepped(by_s))
            step_clock(by_s)

        database.step_clock = stepped  # type: ignore[method-assign]  # faults come this way

    @property
    def now_s(self) -> float:
        """By the database's clock."""
        assert self._sim is not None, "it watches"
        return self._sim.database.clock.wall_ns() / 1e9

    def note(self, event: Event) -> None:
        """Something happens just now."""
        self.noted.append((next(self._places), event))

    def events(self) -> list[Event]:
        """All of it, in order."""
        assert self._sim is not None, "it watches"
        rows = [DatabaseEvent(*row) for row in self._sim.database.main.execute("select * from log order by place")]
        placed = [*((row.place, _event(row)) for row in rows), *self.noted]
        return [event for _, event in sorted(placed, key=lambda each: each[0])]


def said(error: BaseException) -> str:
    """What a step or a wait gave instead of a value."""
    if isinstance(error, DeferredTimeout):
        return "timeout"
    if isinstance(error, DeferredRejected):
        return f"rejected {error.problem}"
    return f"failed {error.args[0]}" if isinstance(error, Defect) else type(error).__name__


def _event(row: DatabaseEvent) -> Event:
    if row.what == "granted":
        return Grant(row.unit, row.a, row.b)
    if row.what == "begun":
        return Begun(row.unit, row.name, row.kind)
    if row.what == "ended":
        epoch, *result = msgspec.msgpack.decode(row.a, type=list[str]) if row.a else ["0"]
        return Ended(row.unit, row.name, tuple(result), int(epoch))
    if row.what == "stored":
        due_s = None if row.d is None else row.d / 1e9
        given = _given(row)
        return Stored(row.unit, row.name, given, row.kind, bool(row.a), _epoch(given), due_s, row.now_ns / 1e9)
    if row.what == "valued":
        return Valued(row.unit, row.name, _value(row), row.now_ns / 1e9)
    if row.what == "dropped":
        return Dropped(row.unit, row.name, bool(row.a))
    if row.what in ("changed", "revalued"):
        return Changed(row.unit, row.name, is_value=row.what == "revalued")
    kinds = {"interrupting": Interrupting, "suspended": Suspended, "woken": Woken}
    return kinds[row.what](row.unit)


def _given(row: DatabaseEvent) -> str:
    if row.c is not None:
        return said(failure.unpack(row.c))
    return "" if row.b is None or row.kind == "child" else str(msgspec.msgpack.decode(row.b))


def _value(row: DatabaseEvent) -> str:
    if row.c is not None:
        return f"rejected {row.c}"
    return "" if row.name.startswith("child:") else str(msgspec.msgpack.decode(row.b))


def _epoch(given: str) -> int:
    """By whom a step was run; it says so in its mark."""
    epoch, dot, _ = given.rpartition(" ")[2].partition(".")
    return int(epoch) if dot else 0


def judge(events: Iterable[Event], *, within_s: float) -> int:
    """How many events there were. Raises `Violation`."""
    return check(
        events,
        EpochsGrow(),
        FlowsAreFenced(),
        StepsStoredOnce(),
        FirstResolveWins(),
        InTimeIsInTime(),
        ResultsAreRight(),
        WhatWasDoneIsUndone(),
        InterruptsCount(),
        NoWakeUpIsLost(within_s),
        SleepsLast(DRIFT_S),
        NothingIsLeft(),
        EveryRunEnds(),
    )
