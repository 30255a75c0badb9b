"""What the database writes down of schedules, timers and what they send, what clients were told, and the judgement.

The judge enumerates instants by itself, second by second, from what was put.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from coterie.cron.schedule import Schedule
from coterie.kernel.clock import to_datetime, to_ns
from coterie.storage.contracts.schedules import ScheduleTerms, schedule_key
from tests.support.history.ownership import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from coterie.testing.simulation import Simulation

PROMISE = "C9"
HISTORY = """
    create temp table schedule_log (
        place integer primary key, commit_number, what, key, life, now_ns, definition, payload, since_ns, next_ns,
        last_ns, paused_ns, outcomes, id
    );
    create temp trigger schedule_put after insert on main.schedules begin
        insert into schedule_log values (
            schedule_place(), schedule_commit(), 'put', new.key, new.life, schedule_now(), new.definition, new.payload,
            new.since_at_ns, new.next_at_ns, new.last_at_ns, new.paused_at_ns, new.outcomes, null
        );
    end;
    create temp trigger schedule_changed after update on main.schedules begin
        insert into schedule_log values (
            schedule_place(), schedule_commit(), iif(new.life = old.life, 'moved', 'put'), new.key, new.life,
            schedule_now(), new.definition, new.payload, new.since_at_ns, new.next_at_ns, new.last_at_ns,
            new.paused_at_ns, new.outcomes, null
        );
    end;
    create temp trigger schedule_removed after delete on main.schedules begin
        insert into schedule_log (place, commit_number, what, key, life, now_ns)
        values (schedule_place(), schedule_commit(), 'removed', old.key, old.life, schedule_now());
    end;
    create temp trigger schedule_sent after insert on main.messages when new.method in ('note', 'ring') begin
        insert into schedule_log (place, commit_number, what, payload, now_ns, id)
        values (schedule_place(), schedule_commit(), 'sent', new.payload, schedule_now(), new.id);
    end;
    create temp trigger schedule_ended after update of status on main.messages when new.method in ('note', 'ring') begin
        insert into schedule_log (place, commit_number, what, id, now_ns)
        values (schedule_place(), schedule_commit(), iif(new.status = 1, 'ended', 'open'), new.id, schedule_now());
    end;
    create temp trigger schedule_state_first after insert on main.states begin
        insert into schedule_log (place, commit_number, what, key)
        values (schedule_place(), schedule_commit(), 'state', new.key);
    end;
    create temp trigger schedule_state after update on main.states begin
        insert into schedule_log (place, commit_number, what, key)
        values (schedule_place(), schedule_commit(), 'state', new.key);
    end;
"""


class Logged(NamedTuple):
    """One thing that was committed."""

    place: int
    commit: int
    what: str
    key: str | None
    life: int | None
    now_ns: int | None
    definition: str | None
    payload: bytes | None
    since_ns: int | None
    next_ns: int | None
    last_ns: int | None
    paused_ns: int | None
    outcomes: str | None
    id: str | None


class Told(NamedTuple):
    """What somebody was told of a call that began at one place and returned at another."""

    place: int
    began: int
    what: str
    key: str
    number: int = 0
    """Of the call that was put."""
    not_before_ns: int = 0
    """From when on it counts, if it is put: the database's clock when the call began; 0: that was set back since."""
    window: tuple[datetime, datetime] | None = None
    """What was to be sent once more; None: nothing."""
    ids: tuple[str, ...] | None = None
    """The messages that were sent once more; None: it is not known which."""


class ScheduleLog:
    """What the database writes down, from before the first runner starts, and what clients note beside it."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._places = itertools.count()
        self._told: list[Told] = []
        main = sim.database.main
        main.create_scalar_function("schedule_place", lambda *_: next(self._places), 0)
        main.create_scalar_function("schedule_commit", lambda *_: sim.database.commits, 0)
        main.create_scalar_function("schedule_now", lambda *_: sim.database.clock.wall_ns(), 0)
        main.execute(HISTORY)

    def begin(self) -> tuple[int, int, int]:
        """A call begins."""
        return next(self._places), self._sim.database.clock.wall_ns(), self._sim.loop.now_ns

    def returned(self, began: tuple[int, int, int], what: str, name: str, **told: Any) -> None:
        """A call has returned, or may have sent something once more."""
        place, wall_ns, now_ns = began
        is_set = self._sim.database.clock.wall_ns() - wall_ns != self._sim.loop.now_ns - now_ns
        not_before_ns = 0 if is_set else wall_ns
        key = schedule_key(name)
        self._told.append(Told(next(self._places), place, what, key, not_before_ns=not_before_ns, **told))

    def events(self) -> list[Logged | Told]:
        """All of it, in commit order."""
        rows = self._sim.database.main.execute("select * from schedule_log")
        return sorted([*(Logged(*row) for row in rows), *self._told], key=lambda event: event.place)


@dataclass
class Life:
    """One content of one row."""

    key: str
    life: int
    terms: ScheduleTerms
    payload: bytes
    since: datetime
    last: datetime | None = None
    paused: bool = False
    paused_ns: int = 0
    pauses: list[tuple[int, int]] = field(default_factory=list)
    """Those that have ended."""
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    sent: dict[int, str] = field(default_factory=dict)
    """The messages, by the millisecond of their instants."""
    again: dict[int, str] = field(default_factory=dict)
    """Those that were sent once more."""

    @property
    def begin(self) -> datetime:
        """The first instant that may be due."""
        begin = self.since + timedelta(microseconds=1)
        return begin if self.terms.start is None else max(begin, self.terms.start)

    @property
    def number(self) -> int:
        """Of the call that was put."""
        found: int = msgspec.msgpack.decode(self.payload)["number"]
        return found

    def instants(self, after: datetime, until: datetime, *, before_put: bool = False) -> list[datetime]:
        """Those after one and up to another, found by looking at each second.

        Args:
            after: They are later.
            until: The last one is not later.
            before_put: Whether those before it was put count.
        """
        begin = self.terms.start or after if before_put else self.begin
        begin = max(after + timedelta(microseconds=1), begin)
        if not self.terms.schedule:
            assert self.terms.at is not None
            found = [self.terms.at] if begin <= self.terms.at <= until else []
        elif self.terms.schedule.startswith("@every "):
            every = int(self.terms.schedule.removeprefix("@every ").removesuffix("s"))
            anchor = self.since.replace(microsecond=0)
            found = [at for at in _seconds(begin, until) if (at - anchor).total_seconds() % every == 0]
        else:
            schedule = Schedule(self.terms.schedule, timezone=self.terms.timezone)
            found = [at for at in _seconds(begin, until) if schedule.matches(at)]
        return [at for at in found if self.terms.end is None or at < self.terms.end]


def _seconds(begin: datetime, until: datetime) -> Iterator[datetime]:
    at = begin.replace(microsecond=0)
    at = at if at == begin else at + timedelta(seconds=1)
    while at <= until:
        yield at
        at += timedelta(seconds=1)


class Judge:
    """Replays the history.

    Promise:
        Raises a `Violation` for what is sent twice, too early, of nothing that was put, after a removal or while
        paused, beside a message that is not over; for instants without a verdict; for timers set outside of their
        commit; for calls that returned, and what they said was never so while they ran; for what was sent once more
        and not asked for, or the other way round.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Life] = {}
        self.by_payload: dict[bytes, Life] = {}
        self.open: set[str] = set()
        self.sent_of: defaultdict[str, set[str]] = defaultdict(set)
        """The messages of each row, whatever its content was."""
        self.ended_ns: dict[str, int] = {}
        self.sent = 0
        self.skipped = 0
        self.timers = 0
        self.told = 0
        self.backfilled = 0
        self.windows: defaultdict[str, list[Told]] = defaultdict(list)
        """What was to be sent once more, of each row."""
        self.past: defaultdict[str, list[tuple[int, Life | None, bool]]] = defaultdict(list)
        """Each form of a row: from which place on, its content, whether it is paused."""

    def see_all(self, events: Sequence[Logged | Told]) -> None:
        """The events of each commit: what it sends is judged by the rows as they were before it."""
        for event in events:
            if isinstance(event, Told) and event.window is not None:
                self.windows[event.key].append(event)
        for number, group in itertools.groupby(events, key=lambda event: getattr(event, "commit", -1)):
            if number == -1:
                for told in group:
                    assert isinstance(told, Told)
                    self._require_so(told)
            else:
                self._see_commit([event for event in group if isinstance(event, Logged)])

    def _see_commit(self, commit: Sequence[Logged]) -> None:
        changed = {event.key for event in commit if event.what in ("moved", "removed")}
        fresh = [event for event in commit if event.what == "sent"]
        for event in fresh:
            self._sent(event, changed)
        self._judge_timers(commit, bool(fresh))
        for event in commit:
            getattr(self, f"_{event.what}_row", lambda _: None)(event)
            if event.key is not None and event.what in ("put", "moved", "removed"):
                life = self.rows.get(event.key)
                self.past[event.key].append((event.place, life, life is not None and life.paused))

    def _require_so(self, told: Told) -> None:
        """What a call has said about its schedule when it returned was so at some time while it ran."""
        self.told += 1
        past = self.past[told.key]
        before = [form for form in past if form[0] < told.began][-1:] or [(0, None, False)]
        forms = [*before, *(form for form in past if told.began < form[0] < told.place)]
        if told.what == "put":
            found = [(place, life) for place, life, _ in forms if life is not None and life.number == told.number]
            is_so = bool(found)
            if found and found[0][0] > told.began and to_ns(found[0][1].since) < told.not_before_ns:
                raise Violation(PROMISE, f"{told.key} counts from {found[0][1].since}, before it was put: {told}")
        elif told.what == "remove":
            is_so = any(life is None for _, life, _ in forms)
        elif told.what == "backfill":
            is_so = told.ids is None or any(
                life is not None and self._sent_again(life, told) == list(told.ids) for _, life, _ in forms
            )
        else:
            is_so = any(life is not None and paused == (told.what == "pause") for _, life, paused in forms)
        if not is_so:
            raise Violation(PROMISE, f"{told} was said, and was not so")

    def _sent_again(self, life: Life, told: Told) -> list[str | None]:
        """The messages that were sent once more of a window."""
        assert told.window is not None
        instants = life.instants(*_inclusive(told.window), before_put=True)
        return [life.again.get(to_ns(at) // 1_000_000) for at in instants]

    def _once_more(self, life: Life, event: Logged) -> None:
        assert event.id is not None
        at_ms = int(event.id[:12], 16)
        if at_ms in life.again:
            raise Violation(PROMISE, f"the instant {at_ms} of {life.key} was sent twice once more")
        for told in self.windows[life.key]:
            if told.began < event.place < told.place and told.window is not None:
                instants = life.instants(*_inclusive(told.window), before_put=True)
                if at_ms in {to_ns(at) // 1_000_000 for at in instants}:
                    life.again[at_ms] = event.id
                    self.backfilled += 1
                    return
        raise Violation(PROMISE, f"the instant {at_ms} of {life.key} was sent, and its row did not move")

    def _sent(self, event: Logged, changed: set[str | None]) -> None:
        assert event.payload is not None
        assert event.id is not None
        life = self.by_payload.get(event.payload)
        if life is not None and life.key not in changed:
            self._once_more(life, event)
            return
        if life is None or self.rows.get(life.key) is not life:
            raise Violation(PROMISE, f"{event.payload!r} was sent, and is not put: removed, or other content")
        if life.paused:
            raise Violation(PROMISE, f"{life.key} was sent while it was paused")
        at_ms = int(event.id[:12], 16)
        if at_ms in life.sent:
            raise Violation(PROMISE, f"the instant {at_ms} of {life.key} was sent twice")
        if at_ms * 1_000_000 + int(life.terms.delay_s * 1e9) > (event.now_ns or 0):
            raise Violation(PROMISE, f"the instant {at_ms} of {life.key} was sent before its time")
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
        if not life.instants(at - timedelta(milliseconds=1), at + timedelta(milliseconds=1)):
            raise Violation(PROMISE, f"{at} is no instant of {life.key}")
        due_ns = (at_ms + 1) * 1_000_000 + int(life.terms.delay_s * 1e9)
        if any(since_ns < due_ns < until_ns - 1_000_000_000 for since_ns, until_ns in life.pauses):
            raise Violation(PROMISE, f"{at} of {life.key} was due in a pause, and was sent")
        if life.terms.overlap != "allow" and self.open & set(life.sent.values()):
            raise Violation(PROMISE, f"{at} of {life.key} was sent beside a message that is not over")
        life.sent[at_ms] = event.id
        self.sent_of[life.key].add(event.id)
        self.open.add(event.id)
        self.sent += 1

    def _judge_timers(self, commit: Sequence[Logged], sends: bool) -> None:
        states = {event.key for event in commit if event.what == "state"}
        for event in commit:
            if event.key is None or not event.key.startswith("timer/") or event.what not in ("put", "removed"):
                continue
            entity = event.key.removeprefix("timer/").rpartition("/")[0]
            self.timers += 1
            if f"entity-state:{entity}" not in states and not (event.what == "removed" and sends):
                raise Violation(PROMISE, f"{event.key} was {event.what} outside of a handler's commit")

    def _put_row(self, event: Logged) -> None:
        assert event.key is not None
        assert event.life is not None
        assert event.payload is not None
        before = self.rows.get(event.key)
        if before is not None and before.life == event.life:  # a commit that was tried again
            return
        is_same = before is not None and (before.payload, before.terms.encode()) == (event.payload, event.definition)
        if is_same and event.key.startswith("schedule/"):
            raise Violation(PROMISE, f"{event.key} was changed by what it is already")
        life = Life(
            event.key,
            event.life,
            ScheduleTerms.decode(event.definition or ""),
            event.payload,
            to_datetime(event.since_ns or 0),
            paused=event.paused_ns is not None,
            outcomes=msgspec.json.decode(event.outcomes or "[]"),
        )
        self.rows[event.key] = self.by_payload[event.payload] = life

    def _moved_row(self, event: Logged) -> None:
        life = self.rows[event.key or ""]
        if life.paused and event.paused_ns is None:
            life.pauses.append((life.paused_ns, event.now_ns or 0))
        life.paused, life.paused_ns = event.paused_ns is not None, event.paused_ns or 0
        last = None if event.last_ns is None else to_datetime(event.last_ns)
        if last is None or last == life.last:
            return
        outcomes = msgspec.json.decode(event.outcomes or "[]")
        new = _appended(life.outcomes, outcomes)
        missing = len(life.instants(life.last or life.since, last)) - sum(each.get("count", 1) for each in new)
        if missing and len(new) < len(outcomes):  # else some of the new ones are not kept
            raise Violation(PROMISE, f"{missing} instants of {life.key} up to {last} have no verdict")
        for each in new:
            self._require_true(life, each, event.now_ns or 0)
        life.last, life.outcomes = last, outcomes

    def _require_true(self, life: Life, outcome: dict[str, Any], now_ns: int) -> None:
        if outcome.get("message"):
            if outcome["message"] not in life.sent.values():
                raise Violation(PROMISE, f"{outcome} of {life.key} was not sent")
            return
        self.skipped += outcome.get("count", 1)
        until = datetime.fromisoformat(outcome["until"])
        due_ns = to_ns(until) + int(life.terms.delay_s * 1e9)
        sent = self.sent_of[life.key]
        ended_ns = max((self.ended_ns.get(each, 0) for each in sent), default=0)
        if outcome["reason"] == "overlapping" and not self.open & sent and ended_ns < due_ns:
            raise Violation(PROMISE, f"{outcome} of {life.key} overlaps nothing")
        oldest_s = life.terms.skip_if_older_than_s
        age_s = now_ns / 1e9 - until.timestamp() - life.terms.delay_s
        if outcome["reason"] == "stale" and life.terms.catch_up != "none" and (oldest_s is None or age_s < oldest_s):
            raise Violation(PROMISE, f"{outcome} of {life.key} is {age_s}s old, and not stale")

    def _removed_row(self, event: Logged) -> None:
        self.rows.pop(event.key or "", None)
        self.sent_of.pop(event.key or "", None)

    def _ended_row(self, event: Logged) -> None:
        self.open.discard(event.id or "")
        self.ended_ns[event.id or ""] = event.now_ns or 0

    def finish(self, now: datetime) -> None:
        """Nothing that is due is left, now that all is quiet."""
        for life in self.rows.values():
            due = life.instants(life.last or life.since, now - timedelta(seconds=life.terms.delay_s + 5))
            waits = life.terms.overlap != "allow" and self.open & self.sent_of[life.key]
            if due and not life.paused and not waits:
                raise Violation(PROMISE, f"{len(due)} instants of {life.key} were lost, from {due[0]}")


def _inclusive(window: tuple[datetime, datetime]) -> tuple[datetime, datetime]:
    """A window from its first instant to before its end, as one after an instant and up to another."""
    since, until = window
    return since - timedelta(microseconds=1), until - timedelta(microseconds=1)


def _appended(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was appended to a list of which the last twenty are kept."""
    for kept in range(len(before), -1, -1):
        if list(before[len(before) - kept :]) == list(after[:kept]):
            return list(after[kept:])
    return list(after)


def by_entity(sim: Simulation) -> dict[str, set[str]]:
    """The timers that are set, by entity."""
    found: dict[str, set[str]] = defaultdict(set)
    for (key,) in sim.database.main.execute("select key from schedules where key like 'timer/%'"):
        entity, _, name = key.removeprefix("timer/").rpartition("/")
        found[entity].add(name)
    return found
