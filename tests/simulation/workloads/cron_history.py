"""What the crons workload is judged by: what was committed about ticks, in commit order, with what bodies noted.

The database's part is written by triggers, so that it is part of each transaction and vanishes with it. Everything has
a number from one counter, and so its place among all the rest.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.kernel.clock import to_datetime
from coterie.kernel.ids import Seat
from coterie.testing.database import GIVE_UP_NS
from tests.support.history.cron_checkers import (
    AttemptsAddUp,
    CatchUpBounded,
    EachTickOnce,
    NotBeforeDue,
    OneAtATime,
    ReasonsFit,
    TicksAreFenced,
)
from tests.support.history.cron_events import (
    Attempted,
    Concluded,
    Defined,
    Effect,
    Given,
    Paused,
    Plan,
    Resumed,
    Rewritten,
    Stepped,
    TickKey,
    Triggered,
)
from tests.support.history.ownership import EpochsGrow, Event, Grant, check

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Iterator

    from coterie.cron.definition import Cron
    from coterie.testing.simulation import Simulation

DRIFT_S = 0.02
"""What a runner's quartz is off by until it reads the database's clock anew."""
HISTORY = """
create table effects (cron text, kind text, at_ns integer, epoch integer, attempt integer);
create temp table log (
    place integer, together integer, now_ns integer, what text, cron text, kind text, at_ns integer,
    seq integer, epoch integer, attempt integer, a, b, c
);
create temp trigger log_granted after update of holder on main.seats when new.holder is not null begin
    insert into log values (
        place(), together(), now_ns(), 'granted', new.name, '', 0, 0, new.epoch, 0, new.holder, null, null
    );
end;
create temp trigger log_declared after insert on main.seats begin
    insert into log values (
        place(), together(), now_ns(), 'defined', new.name, '', new.effective_from_ns, 0, 0, 0,
        new.fingerprint, null, null
    );
end;
create temp trigger log_defined after update of effective_from_ns on main.seats begin
    insert into log values (
        place(), together(), now_ns(), 'defined', new.name, '', new.effective_from_ns, 0, 0, 0,
        new.fingerprint, null, null
    );
end;
create temp trigger log_given after insert on main.ticks begin
    insert into log values (
        place(), together(), now_ns(), iif(new.kind = 'manual', 'triggered', 'given'), new.name, new.kind,
        new.at_ns, new.seq, new.epoch, new.attempt, new.until_at_ns, new.count, new.reason
    );
end;
create temp trigger log_attempted after update on main.ticks
when old.outcome is null and (new.epoch <> old.epoch or new.attempt <> old.attempt) begin
    insert into log values (
        place(), together(), now_ns(), 'attempted', new.name, new.kind, new.at_ns, new.seq, new.epoch,
        new.attempt, null, null, null
    );
end;
create temp trigger log_concluded after update on main.ticks when old.outcome is null and new.outcome is not null begin
    insert into log values (
        place(), together(), now_ns(), 'concluded', new.name, new.kind, new.at_ns, new.seq, new.epoch,
        new.attempt, new.outcome, null, null
    );
end;
create temp trigger log_rewritten after update on main.ticks when old.outcome is not null begin
    insert into log values (
        place(), together(), now_ns(), 'rewritten', new.name, new.kind, new.at_ns, new.seq, new.epoch,
        new.attempt, null, null, null
    );
end;
create temp trigger log_removed after delete on main.ticks begin
    insert into log values (
        place(), together(), now_ns(), 'rewritten', old.name, old.kind, old.at_ns, old.seq, old.epoch,
        old.attempt, null, null, null
    );
end;
create temp trigger log_paused after insert on main.cron_pauses begin
    insert into log values (
        place(), together(), now_ns(), 'paused', new.name, '', new.since_at_ns, 0, 0, 0, null, null, null
    );
end;
create temp trigger log_changed after update of until_at_ns on main.cron_pauses begin
    insert into log values (
        place(), together(), now_ns(), iif(new.until_at_ns is null, 'paused', 'resumed'), new.name, '',
        new.since_at_ns, 0, 0, 0, new.until_at_ns, null, null
    );
end;
create temp trigger log_effect after insert on main.effects begin
    insert into log values (
        place(), together(), now_ns(), 'effect', new.cron, new.kind, new.at_ns,
        iif(new.kind = 'manual', 1, 0), new.epoch, new.attempt, null, null, null
    );
end;
"""


class DatabaseEvent(NamedTuple):
    """A row of the database's part."""

    place: int
    together: int
    now_ns: int
    what: str
    cron: str
    kind: str
    at_ns: int
    seq: int
    epoch: int
    attempt: int
    a: Any
    b: Any
    c: Any

    @property
    def key(self) -> TickKey:
        """Of the tick that it is about."""
        return TickKey(self.cron, self.kind, to_datetime(self.at_ns), self.seq)


@dataclass
class CronHistory:
    """The history of one run."""

    noted: list[tuple[int, Event]] = field(default_factory=list)
    plans: dict[tuple[str, str], Plan] = field(default_factory=dict)
    """What the programs say, by name and fingerprint."""
    _places: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _sim: Simulation | None = None

    def watch(self, sim: Simulation, *programs: Iterable[Cron]) -> None:
        """Have the database write its part, from before the first runner starts."""
        self._sim, main, database = sim, sim.database.main, sim.database
        for cron in itertools.chain.from_iterable(programs):
            self.plans[cron.name, cron.definition.fingerprint] = plan_of(cron)
        main.create_scalar_function("place", lambda *_: next(self._places), 0)
        main.create_scalar_function("together", lambda *_: database.commits, 0)
        main.create_scalar_function("now_ns", lambda *_: database.clock.wall_ns(), 0)
        main.execute(HISTORY)
        step_clock = database.step_clock

        def stepped(by_s: float) -> None:
            self.note(Stepped(by_s))
            step_clock(by_s)

        database.step_clock = stepped  # type: ignore[method-assign]  # faults come this way

    def note(self, event: Event) -> None:
        """Something happens just now."""
        self.noted.append((next(self._places), event))

    def events(self) -> list[Event]:
        """All of it, in order."""
        assert self._sim is not None, "it watches"
        rows = [DatabaseEvent(*row) for row in self._sim.database.main.execute("select * from log order by place")]
        placed = [*self._committed(rows), *self.noted]
        return [event for _, event in sorted(placed, key=lambda each: each[0])]

    def _committed(self, rows: Iterable[DatabaseEvent]) -> Iterator[tuple[int, Event]]:
        for row in rows:
            event = self._event(row)
            if event is not None:
                yield row.place, event

    def _event(self, row: DatabaseEvent) -> Event | None:
        if row.what in ("granted", "defined"):
            kind, name = Seat.split(row.cron)
            if kind != "cron":
                return None
            if row.what == "granted":
                return Grant(row.cron, row.epoch, row.a)
            return Defined(name, self.plans[name, row.a], to_datetime(row.at_ns))
        if row.what == "paused":
            return Paused(row.cron, to_datetime(row.at_ns))
        if row.what == "resumed":
            return Resumed(row.cron, to_datetime(row.at_ns), to_datetime(row.a))
        return _about_a_tick(row)


def _about_a_tick(row: DatabaseEvent) -> Event:
    if row.what == "given":
        at, until, now = to_datetime(row.at_ns), to_datetime(row.a), to_datetime(row.now_ns)
        return Given(row.cron, at, until, row.b, row.c, row.epoch, row.attempt, now, row.together)
    if row.what == "concluded":
        return Concluded(row.key, row.epoch, row.attempt, row.a, to_datetime(row.now_ns))
    if row.what == "attempted":
        return Attempted(row.key, row.epoch, row.attempt)
    if row.what == "effect":
        return Effect(row.key, row.epoch, row.attempt)
    return Triggered(row.key) if row.what == "triggered" else Rewritten(row.key)


def plan_of(cron: Cron) -> Plan:
    """What a checker needs to know of a cron."""
    attempts = 1 if cron.retry is None else cron.retry.attempts
    return Plan(cron.schedule, cron.policy, attempts, cron.timeout_s is not None)


def judge(events: Iterable[Event]) -> Counter[str]:
    """How often each verdict was given. Raises `Violation`."""
    reasons = ReasonsFit(heard_s=GIVE_UP_NS / 1e9 + 1, drift_s=DRIFT_S)
    check(
        events,
        EpochsGrow(),
        NotBeforeDue(),
        TicksAreFenced(),
        AttemptsAddUp(),
        OneAtATime(),
        CatchUpBounded(),
        reasons,
        EachTickOnce(),
    )
    return reasons.reasons
