"""Statements that touch one table, each against each: in every order it ends as if one had come after the other.

The judge of such a pair is the two serial orders themselves: what the sessions are told and what is in the tables must
be as in one of them. So a statement that looks first and writes later without a second look is found without a judge of
its own. Where rows are many, a third session holds one of them for a while: what one statement has seen of the others
is old by the time it gets there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import combinations_with_replacement, product
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.storage.contracts.executions import Stamp
from coterie.storage.contracts.messages import Insert
from coterie.storage.interface import Claim, KvPut, KvRemove, KvSwap, StateSave
from coterie.storage.postgres.batch import messages, plan, single
from tests.interleavings import (
    incoming_rows,
    job_parts,
    stored_jobs,
    stored_messages,
    stored_runs,
    stored_schedules,
    stored_ticks,
    stored_units,
)
from tests.interleavings.database import CLUSTER, THERE, defined, given
from tests.interleavings.late_definitions import learning
from tests.interleavings.stored_jobs import job
from tests.support.interleaving import Count, Pair, Script, Step, atomic, explore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coterie.storage.interface import Write
    from tests.interleavings.steps import Steps
    from tests.support.interleaving import Run, SessionPair

    Parts = Mapping[str, tuple[Step, ...]]

MINE = Claim("a", "s1", 1)
AGAIN = frozenset({"40001"})
"""A statement that somebody was faster than comes to nothing, and is run again [M3]. A deadlock is never allowed."""
_TURNS = 30
_WALK = frozenset({"seen", "last", "young"})
"""Columns that only say where the next page begins."""
_TIMES = (datetime, float)


@dataclass(frozen=True, slots=True)
class Group:
    """Some transactions that can meet on the same rows.

    Args:
        name: What the rows are.
        rows: How the tables begin.
        parts: The transactions by name.
        against: With whom they play; with each other and themselves if there is none.
        held: A row that a third session holds for a while: table and condition.
        apart: Pairs that need not end as in a serial order, each with the reason.
    """

    name: str
    rows: str
    parts: Parts
    against: Parts | None = None
    held: tuple[str, str] | None = None
    apart: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def pairs(self) -> list[Pair]:
        """Each against each."""
        chosen = (
            combinations_with_replacement(self.parts.items(), 2)
            if self.against is None
            else product(self.parts.items(), self.against.items())
        )
        return [self._pair(a, b) for a, b in chosen if not {(a[0], b[0]), (b[0], a[0])} & self.apart.keys()]

    def _pair(self, a: tuple[str, tuple[Step, ...]], b: tuple[str, tuple[Step, ...]]) -> Pair:
        scripts = [Script(name, steps, tries=4) for name, steps in (a, b)]
        name = f"{self.name}: {a[0]} x {b[0]}"
        return Pair(name, self.rows, scripts[0], scripts[1], lambda _: (), allows=AGAIN, c=self._holder())

    def _holder(self) -> Script | None:
        if self.held is None:
            return None
        table, where = self.held
        hold = Step("hold", f"select from coterie.{table} where cluster = $1 and {where} for update", (CLUSTER,))
        return Script("a row held", atomic(hold))


async def explore_serially(stage: SessionPair, pair: Pair, *, order: str = "") -> Count:
    """Play a pair in every order, or in one; each run is judged by the two in which one comes after the other.

    A statement that skips what is locked may find nothing while the other one is at work: as if it had not come.
    """
    lone = replace(pair, c=None)
    serial = [await stage.play(lone, None, side * _TURNS) for side in "AB"]
    expected = [told_by(run) for run in serial]
    skipped = {side: told_by(await stage.play(_without(lone, side)), but=side) for side in "AB" if _skips(lone, side)}

    def judge(run: Run) -> Sequence[str]:
        told = told_by(run)
        if told in expected or any(told_by(run, but=side) == without for side, without in skipped.items()):
            return ()
        return [f"as in no serial order: {difference(told, expected)}"]

    judged = replace(pair, judge=judge)
    count = Count() if order else await explore(stage.play, judged)
    if order:
        count.add(await stage.play(judged, None, order))
    for run in serial:
        count.add(run)
    return count


def midway(pair: Pair) -> str:
    """The order in which the first one is kept waiting for a row while the second one does all that it does."""
    return f"CA{'B' * len(pair.b.steps)}C"


def _skips(pair: Pair, side: str) -> bool:
    steps = (pair.a if side == "A" else pair.b).steps
    return any("skip locked" in step.sql for step in steps if isinstance(step.sql, str))


def _without(pair: Pair, side: str) -> Pair:
    nothing = Script("nothing", (Step("nothing", "select 1 as nothing"),))
    return replace(pair, a=nothing) if side == "A" else replace(pair, b=nothing)


def told_by(run: Run, *, but: str = "") -> dict[str, Any]:
    """What the two, or one of them, were told, and what is in the tables, without times."""
    both = {
        f"{side} {step}": plain(rows)
        for side in "AB"
        if side != but
        for step, rows in run.told[side].reads.items()  # type: ignore[index]  # both are sides
    }
    return both | {table: plain(rows) for table, rows in run.tables.items()}


def plain(rows: Any) -> list[tuple[Any, ...]]:
    """Rows without the times in them, but whether there is one."""
    told = ([(name, _timeless(name, value)) for name, value in row.items() if name not in _WALK] for row in rows)
    return sorted((tuple(each) for each in told), key=repr)


def _timeless(name: str, value: Any) -> Any:
    is_time = isinstance(value, _TIMES) or (
        name in ("stamp", "transaction") and isinstance(value, str)
    )  # the stamp of all seats has one in it, and each run has other transactions
    return "a time" if is_time else value


def difference(found: dict[str, Any], expected: list[dict[str, Any]]) -> str:
    """Where a run differs from the serial orders."""
    keys = [key for key in found if any(found[key] != each.get(key) for each in expected)]
    return "; ".join(f"{key}: {found[key]}, serially {[each.get(key) for each in expected]}" for key in keys)


def serial_pairs(s: Steps) -> dict[str, Pair]:
    """All of them by name, over the right statements or some with a planted bug."""
    groups = [
        *_keys(s),
        *_messages(s),
        *_jobs(s),
        *_states(s),
        *_crons(s),
        *_units(s),
        *_incoming(s),
        *_schedules(s),
        *_seats(s),
        *_others(s),
    ]
    pairs = [pair for group in groups for pair in group.pairs()]
    assert len({pair.name for pair in pairs}) == len(pairs), "two pairs have one name"
    return {pair.name: pair for pair in pairs}


def one_statement(s: Steps, name: str, *values: Any) -> tuple[Step, ...]:
    """One statement as one transaction."""
    return atomic(s.step(name, *values))


def folded(s: Steps, write: Write, *, prefix: str = "") -> tuple[Step, ...]:
    """A write as the engine folds it, with others or alone."""
    shape = plan.shape_of(write)
    return one_statement(s, f"{prefix}{shape}", *plan.values(plan.Bucket(shape, [0]), [write]))


# The key-value store


def _keys(s: Steps) -> list[Group]:
    fenced, expired = (
        given(runners={"a": 6}, seats={"s1": "a"}),
        ";update coterie.kv set expires_at = now() - interval '1 h'",
    )
    key, before = (
        "; insert into coterie.kv values ('c', 'k', 'old', 1)",
        "; insert into coterie.kv values ('c', 'i', 'old', 1)",
    )
    singles = {
        "put": folded(s, KvPut("k", b"put", 2), prefix="kv_"),
        "insert": folded(s, KvSwap("k", None, b"insert", 3), prefix="kv_"),
        "replace": folded(s, KvSwap("k", 1, b"replace", 4), prefix="kv_"),
        "discard": folded(s, KvSwap("k", 1, None, 5), prefix="kv_"),
        "remove": folded(s, KvRemove("k"), prefix="kv_"),
        "fenced put": folded(s, KvPut("k", b"fenced put", 6, claim=MINE)),
        "fenced insert": folded(s, KvSwap("k", None, b"fenced insert", 7, claim=MINE)),
        "fenced replace": folded(s, KvSwap("k", 1, b"fenced replace", 8, claim=MINE)),
        "fenced discard": folded(s, KvSwap("k", 1, None, 9, claim=MINE)),
        "fenced remove": folded(s, KvRemove("k", claim=MINE)),
    }
    several = {
        "clear": one_statement(s, "kv_clear", 10, "", "z"),
        "clear from": one_statement(s, "kv_clear_from", 10, ""),
        "purge": one_statement(s, "kv_purge", 10),
    }
    both = fenced + before + key
    return [
        Group("key", fenced + key, singles | several),
        Group("expired key", fenced + key + expired, singles | several),
        Group("keys, one held", both, several, singles, held=("kv", "key = 'i'")),
        Group("expired keys, one held", both + expired, several, singles, held=("kv", "key = 'i'")),
    ]


# Messages


def _messages(s: Steps) -> list[Group]:
    rows, m = stored_messages.rows, stored_messages
    inserted = m.message("n1", key="x")
    fenced = {
        "end": folded(s, m.ENDED),
        "lone end": one_statement(s, "end_message", *single.values("end_message", m.ENDED)),
        "commit": folded(s, m.LEFT),
        "commit and jobs": folded(s, job_parts.sending(m.LEFT)),
        "end of a job": folded(s, job_parts.SENT),
        "set back": folded(s, m.AGAIN),
        "set aside": folded(s, m.DEAD),
        "suspect": one_statement(s, "suspect", "a", "s1", 1, ["E"], [1], 2),
        "mark": one_statement(s, "mark_suspect", "a", "s1", 1, "m1", 2),
        "cancel fenced": one_statement(s, "cancel_fenced", "a", "s1", 1, "m1", b"cancelled"),
    }
    asked = {
        "insert": one_statement(s, "insert_messages", *messages.values("insert_messages", [Insert(inserted)])),
        "lone insert": one_statement(
            s, "insert_message", *single.values("insert_message", Insert(m.message("n2", key="x")))
        ),
        "add": _adding(s),
        "insert via": one_statement(s, "insert_via", *messages.columns([m.message("n4", key="x")]), None),
        "cancel": one_statement(s, "cancel", "m1", b"cancelled"),
        "revive": one_statement(s, "revive", "m1"),
    }
    several = {
        "revive all": one_statement(s, "revive_all", "E", "e"),
        "remove": one_statement(s, "remove_messages", 10, None, None, None, None, 60.0),
        "remove dead": one_statement(s, "remove_dead", 10, 2, None, None, None, 60.0),
        "discard dead": one_statement(s, "discard_messages", ["m0", "m1"], 2),
        "discard done": one_statement(s, "discard_messages", ["m0", "m1"], 1),
        "purge": one_statement(s, "purge_messages", "", 10, 60.0, 60.0),
    }
    revived = {"revive and end": (*_once(s, "revive", "m1"), *folded(s, m.ENDED))}
    everything = fenced | asked | several
    unheld = {name: everything[name] for name in ("cancel", "insert", "lone insert", "insert via", *several, "revive")}
    held = ("messages", "id = 'm0'")
    return [
        Group("pending message", rows("m1", key="x") + job_parts.CLAIMED_JOB, everything),
        Group("dead message", rows("m1", status=2, key="x"), everything),
        Group("done message", rows("m1", status=1, key="x"), everything),
        Group("message of a free seat", rows("m1", holder=None, key="x"), unheld),
        Group("dead messages, one held", rows("m0", "m1", status=2), several, asked | revived, held=held),
        Group("done messages, one held", rows("m0", "m1", status=1), several, asked, held=held),
    ]


def _once(s: Steps, name: str, *values: Any) -> tuple[Step, ...]:
    return (s.step(name, *values, step=f"first {name}"),)


def _adding(s: Steps) -> tuple[Step, ...]:
    add = s.step("add_message", *single.values("add_message", Insert(stored_messages.message("n3"))))
    return (replace(add, nothing=THERE),)


# Jobs


def _jobs(s: Steps) -> list[Group]:
    parts = job_parts.all_parts(s)
    states = {
        "ready job": job("j1", key="x"),
        "later job": job("j1", state=0, key="x"),
        "parked job": job("j1", state=3),
        "claimed job": job("j1", state=2, runner="c", key="x"),
        "lost job": job("j1", state=2, lost=True),
        "dead job": job("j1", state=5, key="x"),
        "done job": job("j1", state=4, key="x"),
    }
    tag = f";insert into coterie.job_tags values ('{CLUSTER}', 'j1', 'name', 'value')"
    rows = {name: stored_jobs.rows(each + tag, limits={"concurrency": 1}) for name, each in states.items()}
    fired = (stored_jobs.new_job("f1"),)
    fires = {
        "fire": stored_schedules.firing(s, jobs=fired),
        "fire when j1 is over": stored_schedules.firing(s, asks="j1", jobs=fired),
    }
    due = stored_schedules.rows()
    return [
        *(Group(name, begin, parts) for name, begin in rows.items()),
        *(Group(f"{name} and a schedule", begin + due, fires, parts) for name, begin in rows.items()),
    ]


# States, their history, executions


def _states(s: Steps) -> list[Group]:
    begin = given(runners={"a": 6, "b": 6}, seats={"s1": "a"}, states={"k": "old"})
    expired = (
        ";update coterie.states set expires_at = now() - interval '1 day'"
        ";insert into coterie.state_history (cluster, key, slot, version, epoch, runner, saved_at, value)"
        f" values ('{CLUSTER}', 'k', 1, 1, 1, 'a', now(), 'old')"
    )
    execution = (
        ";insert into coterie.executions (cluster, seat, epoch, leader, known_at, since_at, alive_at, runs) values"
        f" ('{CLUSTER}', 's1', 1, 'a', now(), now(), now(), 1)"
    )
    parts = {
        "write": folded(s, StateSave(MINE, "k", b"write", 1)),
        "first write": folded(s, StateSave(MINE, "k", b"first write", 0)),
        "save": folded(s, StateSave(MINE, "k", b"save", 1, 60.0, 20)),
        "first save": folded(s, StateSave(MINE, "k", b"first save", 0, 60.0, 20)),
        "lone save": one_statement(
            s, "save_state", *single.values("save_state", StateSave(MINE, "k", b"lone", 1, 60.0, 20))
        ),
        "claim": one_statement(s, "claim_states", "a", ["s1"], [1], ["k"]),
        "set aside": one_statement(s, "set_aside", "a", ["s1"], [1], ["k"], ["odd"], 5),
        "commit": folded(s, replace_message(stored_messages.LEFT)),
        "commit and jobs": folded(s, job_parts.sending(replace_message(stored_messages.LEFT))),
        "purge": one_statement(s, "purge_states", 10),
    }
    beginning = {
        "begin": one_statement(s, "begin_execution", "a", ["s1"], [1], ["a"], [None]),
        "stamp": folded(s, Stamp(MINE, 7, 0.0, 0.0)),
    }
    aside = {("set aside", "purge"): "what was set aside just when its state expired stays: it is there for people"}
    return [
        Group("state", begin, parts),
        Group("expired state", begin + expired, parts, apart=aside),
        Group("execution", begin + execution, beginning),
    ]


def replace_message(commit: Any) -> Any:
    """The same commit without a message: a transaction of a handler, which only changes its state."""
    return msgspec.structs.replace(commit, message=None, sends=())


# Crons


def _crons(s: Steps) -> list[Group]:
    t = stored_ticks
    running_at = t.AT - 5 * t.LATER
    old = (t.tick(second=-9, ended=True), t.tick(second=-8, ended=True))
    pause = (
        f";insert into coterie.cron_pauses (cluster, name, since_at, until_at) values ('{CLUSTER}', 'c',"
        " now() - interval '2 day', now() - interval '1 day')"
    )
    parts = {
        "claim": folded(s, t.CLAIM),
        "end": folded(s, replace_at(t.END, running_at)),
        "try again": folded(s, replace_at(t.AGAIN, running_at)),
        "take": one_statement(s, "take_crons", "a", ["s1"], [1], ["c"], ["{}"]),
        "trigger": one_statement(s, "trigger_tick", "s1", "c", t.AT),
        "pause": one_statement(s, "pause_cron", "s1", "c"),
        "resume": one_statement(s, "resume_cron", "s1", "c"),
        "purge": one_statement(s, "purge_ticks", 60.0, 10),
    }
    running = t.tick(second=-5)
    triggered = t.tick(kind="manual", second=-5, seq=1, epoch=0)
    return [
        Group("cron", t.rows(running, triggered, *old), parts),
        Group("paused cron", t.rows(running, *old, pause) + t.PAUSED, parts),
    ]


def replace_at(note: Any, at: datetime) -> Any:
    """The same note about another tick."""
    return msgspec.structs.replace(note, at=at)


# Durable work


def _units(s: Steps) -> list[Group]:
    u = stored_units
    tick = ("c", "manual", u.CLAIMED, 1, u.CLAIMED)
    step, lone = u._steps(s, write=u.OF_LIFE), u._lone(s, write=u.OF_LIFE)
    parts: dict[str, tuple[Step, ...]] = {
        "end": u._end(s).steps,
        "failure": u._end(s, write=u.FAILED).steps,
        "open": u._open(s).steps,
        "start": one_statement(s, "start_unit", *u.AT_ONCE, "u", "n", "i", "s1", b"p", b"p", "", None, "d", 0),
        "start via": one_statement(s, "start_via", *u.AT_ONCE, "u", "n", "i", "s1", b"p", b"p", "", 0, None),
        "suspend": u._suspend(s).steps,
        "wake": one_statement(s, "wake_due_units", "a", ["s1"], [1]),
        "retry stuck": one_statement(s, "retry_stuck_units", "a", ["s1"], [1]),
        "resolve": one_statement(s, "resolve_deferred", "u", "d", b"1", None, 0, *tick),
        "interrupt": one_statement(s, "interrupt_unit", "u"),
        "resume": one_statement(s, "resume_unit", "u"),
        "children": one_statement(s, "interrupt_children", ["s1"], 10),
        "forget": one_statement(s, "forget_children", ["s1"], 10),
        "purge": one_statement(s, "purge_units", 60.0, 10),
        "steps": step.steps,
        "lone step": lone.steps,
        "renew": u._renew(s, life=0).steps,
        "start again": u._start_again(s).steps,
        "retry": u._retry(s).steps,
        "fork": u._fork(s).steps,
        "push": u._push(s).steps,
        "keep": u._keep(s).steps,
        "begin kept": u._begin_kept(s).steps,
        "time out": one_statement(s, "time_out_units", "a", ["s1"], [1]),
    }
    family = (
        u.unit(status="failed") + ";update coterie.units set interrupts_children = true" + u.unit("child", parent="u")
    )
    bear = {"bear": one_statement(s, "start_unit", *u.AT_ONCE, "child", "n", "i", "s1", b"p", b"p", "", "u", "d", 0)}
    return [
        Group("unit", u.rows(u.unit(), u.deferred()), parts | bear),
        Group("unit that waits", u.rows(u.DUE, u.deferred()), parts),
        Group("unit that is stuck", u.rows(u.STUCK, u.deferred()), parts),
        Group("unit that is over", u.rows(u.OLD), parts),
        Group("unit that has not begun", u.rows(u.NOT_BEGUN), parts),
        Group("unit with a next life", u.rows(u.KEPT), parts),
        Group("unit of a leader", u.rows(u.LEADER, u.deferred()), parts),
        Group("unit that left a child", u.rows(family), parts | bear),
        *_runs(s, parts),
    ]


def _runs(s: Steps, units: Parts) -> list[Group]:
    """Messages to runs and what these publish, also against all else that is done with their units."""
    u, r = stored_units, stored_runs
    parts = r.parts(s)
    step = r.waiting_step()
    late = r.waiting_step(due="now()")
    waiting = atomic(u._begin(s), r.receive(s), r.suspend(s))
    return [
        Group("run and a message", u.rows(u.unit(), r.inbox(), step), parts),
        Group("run and a message that was received", u.rows(u.unit(), r.inbox(waiting=0)), parts),
        Group("run that gives back", u.rows(u.unit(), r.inbox(waiting=0), r.received_step(), step), parts),
        Group("run that waits", u.rows(u.unit(), r.empty_inbox(), step), parts),
        Group("run that has waited too long", u.rows(u.unit(), r.empty_inbox(), late), parts),
        Group("run without an inbox", u.rows(u.unit()), parts),
        Group("run that has not begun", u.rows(r.inbox(begun=False)), parts | {"start": units["start"]}),
        Group("run that may begin", u.rows(), parts | {"start": units["start"], "begin and wait": waiting}),
        Group("unit of a run", u.rows(u.unit(), r.inbox(), step), parts, units),
        Group("unit of a run that is suspended", u.rows(u.SUSPENDED, r.empty_inbox(), step), parts, units),
        Group("unit of a run that is over", u.rows(u.OLD, r.inbox()), parts, units),
    ]


# Incoming rows of SQL


def _incoming(s: Steps) -> list[Group]:
    i, u, message_rows = incoming_rows, stored_units, stored_messages.rows
    rows = {
        "move": i.moving(s, i.call()),
        "move without a key": i.moving(s, i.call(key=None)),
        "move dead": i.moving(s, i.call(key=None, error="odd")),
        "start": i.starting(s, i.start()),
        "start otherwise": i.starting(s, i.start(payload=b"q")),
        "cancel": one_statement(s, "cancel_incoming", "w1"),
        "purge": one_statement(s, "purge_incoming", 60.0, 10),
    }
    fire = {"fire": stored_schedules.firing(s)}
    moves = {name: rows[name] for name in ("move", "move dead")} | fire
    keys = {
        "insert": one_statement(
            s,
            "insert_messages",
            *messages.values("insert_messages", [Insert(stored_messages.message("n1", key="x"))]),
        ),
        "lone insert": one_statement(
            s, "insert_message", *single.values("insert_message", Insert(stored_messages.message("n2", key="x")))
        ),
        "insert via": one_statement(s, "insert_via", *messages.columns([stored_messages.message("n4", key="x")]), None),
        "add": _adding(s),
        "commit": folded(s, stored_messages.LEFT),
        "commit and jobs": folded(s, job_parts.sending(stored_messages.LEFT)),
        "end of a job": folded(s, job_parts.SENT),
        "end": folded(s, stored_messages.ENDED),
        "lone end": one_statement(s, "end_message", *single.values("end_message", stored_messages.ENDED)),
        "set back": folded(s, stored_messages.AGAIN),
        "suspect": one_statement(s, "suspect", "a", "s1", 1, ["E"], [1], 2),
        "mark": one_statement(s, "mark_suspect", "a", "s1", 1, "m1", 2),
        "cancel message": one_statement(s, "cancel", "m1", b"cancelled"),
        "cancel fenced": one_statement(s, "cancel_fenced", "a", "s1", 1, "m1", b"cancelled"),
        "revive": one_statement(s, "revive", "m1"),
        "revive all": one_statement(s, "revive_all", "E", "e"),
        "remove": one_statement(s, "remove_messages", 10, None, None, None, None, 60.0),
        "remove dead": one_statement(s, "remove_dead", 10, 2, None, None, None, 60.0),
        "discard done": one_statement(s, "discard_messages", ["m1"], 1),
        "purge messages": one_statement(s, "purge_messages", "", 10, 60.0, 60.0),
    }
    runs = {"start": rows["start"], "start otherwise": rows["start otherwise"]}
    units: dict[str, tuple[Step, ...]] = {
        "start in Python": one_statement(
            s, "start_unit", *u.AT_ONCE, "u", "n", "i", "s1", b"p", b"p", "", None, "d", 0
        ),
        "start via": one_statement(s, "start_via", *u.AT_ONCE, "u", "n", "i", "s1", b"p", b"p", "", 0, None),
        "end": u._end(s).steps,
        "open": u._open(s).steps,
        "suspend": u._suspend(s).steps,
        "wake": one_statement(s, "wake_due_units", "a", ["s1"], [1]),
        "retry stuck": one_statement(s, "retry_stuck_units", "a", ["s1"], [1]),
        "resolve": one_statement(
            s, "resolve_deferred", "u", "d", b"1", None, 0, "c", "manual", u.CLAIMED, 1, u.CLAIMED
        ),
        "interrupt": one_statement(s, "interrupt_unit", "u"),
        "resume": one_statement(s, "resume_unit", "u"),
        "children": one_statement(s, "interrupt_children", ["s1"], 10),
        "forget": one_statement(s, "forget_children", ["s1"], 10),
        "purge units": one_statement(s, "purge_units", 60.0, 10),
        "send": stored_runs.sending(s),
        "receive": stored_runs.receiving(s),
        "publish": stored_runs.publishing(s),
        "give back": stored_runs.giving_back(s),
        "renew": u._renew(s, life=0).steps,
        "start again": u._start_again(s).steps,
        "retry": u._retry(s).steps,
        "fork": u._fork(s).steps,
        "push": u._push(s).steps,
        "keep": u._keep(s).steps,
        "begin kept": u._begin_kept(s).steps,
        "time out": one_statement(s, "time_out_units", "a", ["s1"], [1]),
    }
    steps = {
        "steps": u._steps(s, write=u.OF_LIFE).steps,
        "lone step": u._lone(s, write=u.OF_LIFE).steps,
    }  # nobody has steps of a run that is not there
    waits = i.rows("w1") + stored_schedules.rows()
    same = i.rows("w1", same_as="m1")
    return [
        Group("incoming row", message_rows() + waits, rows | fire),
        Group("incoming row that is the same", message_rows("m1", key="x") + same, rows),
        Group("incoming row and a free key", message_rows("m1") + waits, moves, keys),
        Group("incoming row and its key", message_rows("m1", key="x") + waits, moves, keys),
        Group("incoming row and the key of a done message", message_rows("m1", status=1, key="x") + waits, moves, keys),
        Group("incoming run", u.rows(waits), runs, units),
        Group("incoming run that is there", u.rows(u.unit(), u.deferred(), waits), runs, units | steps),
        Group("incoming run that is over", u.rows(u.OLD, waits), runs, units | steps),
    ]


# Schedules and timers


def _schedules(s: Steps) -> list[Group]:
    c, m = stored_schedules, stored_messages
    parts = {
        "fire": c.firing(s),
        "fire for the last time": c.firing(s, is_over=True),
        "fire when m1 is over": c.firing(s, asks="m1"),
        "add": c.adding(s),
        "swap": c.swapping(s),
        "pause": one_statement(s, "pause_schedule", c.KEY),
        "remove": one_statement(s, "remove_schedule", c.KEY),
        "purge": one_statement(s, "purge_schedules", 60.0, 10),
        "set": folded(s, c.SET),
        "set anew": folded(s, c.SET_ANEW),
        "set with a job": folded(s, msgspec.structs.replace(c.SET, jobs=(stored_jobs.new_job("j9"),))),
        "cancel": folded(s, c.CANCELLED),
    }
    return [
        Group("schedule", m.rows("m1") + c.rows(), parts),
        Group("no schedule", m.rows("m1"), parts),
        Group("schedule that is over", m.rows("m1") + c.rows(next_at="null"), parts),
    ]


# Ownership


def _seats(s: Steps) -> list[Group]:
    """What takes seats away or defines them, against what is written in their name and is nowhere else played so."""
    begin = given(runners={"a": -1, "b": 6}, seats={"s1": "a"}, states={"k": "old"}, kv={"k": "old"}) + defined(
        "s1", "v1"
    )
    message = stored_messages.rows("m1", left_s=-1).split("states values", 1)[-1].split(";", 1)[1]
    unit = stored_units.DUE + stored_units.deferred() + stored_runs.inbox()
    moves = {
        "evict": s.evicting("a"),
        "release": one_statement(s, "release", "a", "s1", 1),
        "take": one_statement(s, "acquire", "b", ["s1"]),
        "define": atomic(*s.defining("v3")),
        "declare": one_statement(s, "declare", ["s1"], ["default"], ["v3"]),
    }
    written = {
        "verify": one_statement(s, "verify", "a", ["s1"], [1]),
        "write": folded(s, StateSave(MINE, "k", b"write", 1)),
        "save": folded(s, StateSave(MINE, "k", b"save", 1, 60.0, 20)),
        "lone save": one_statement(
            s, "save_state", *single.values("save_state", StateSave(MINE, "k", b"lone", 1, 60.0, 20))
        ),
        "claim": one_statement(s, "claim_states", "a", ["s1"], [1], ["k"]),
        "set aside": one_statement(s, "set_aside", "a", ["s1"], [1], ["k"], ["odd"], 5),
        "put": folded(s, KvPut("k", b"put", 2, claim=MINE)),
        "swap": folded(s, KvSwap("k", 1, b"swap", 2, claim=MINE)),
        "remove": folded(s, KvRemove("k", claim=MINE)),
        "begin": one_statement(s, "begin_execution", "a", ["s1"], [1], ["a"], [None]),
        "stamp": folded(s, Stamp(MINE, 7, 0.0, 0.0)),
        "end message": folded(s, stored_messages.ENDED),
        "lone end": one_statement(s, "end_message", *single.values("end_message", stored_messages.ENDED)),
        "commit": folded(s, stored_messages.LEFT),
        "commit and jobs": folded(s, job_parts.sending(stored_messages.LEFT)),
        **job_parts.held_parts(s),
        "set back": folded(s, stored_messages.AGAIN),
        "suspect": one_statement(s, "suspect", "a", "s1", 1, ["E"], [1], 2),
        "mark": one_statement(s, "mark_suspect", "a", "s1", 1, "m1", 2),
        "cancel": one_statement(s, "cancel", "m1", b"cancelled"),
        "cancel fenced": one_statement(s, "cancel_fenced", "a", "s1", 1, "m1", b"cancelled"),
        "take crons": one_statement(s, "take_crons", "a", ["s1"], [1], ["c"], ["{}"]),
        "claim ticks": folded(s, stored_ticks.CLAIM),
        "note tick": folded(s, stored_ticks.END),
        "steps": stored_units._steps(s).steps,
        "lone step": stored_units._lone(s).steps,
        "end unit": stored_units._end(s).steps,
        "open unit": stored_units._open(s).steps,
        "wake units": one_statement(s, "wake_due_units", "a", ["s1"], [1]),
        "retry stuck units": one_statement(s, "retry_stuck_units", "a", ["s1"], [1]),
        "begin kept": stored_units._begin_kept(s).steps,
        "time out units": one_statement(s, "time_out_units", "a", ["s1"], [1]),
        "suspend": stored_units._suspend(s).steps,
        "receive": stored_runs.receiving(s),
        "publish": stored_runs.publishing(s),
        "give back": stored_runs.giving_back(s),
        "renew unit": stored_units._renew(s, life=0).steps,
        "move incoming": incoming_rows.moving(s, incoming_rows.call()),
        "start incoming": incoming_rows.starting(s, incoming_rows.start("w2")),
        "fire": stored_schedules.firing(s),
    }
    people = {
        "renew": (*atomic(s.renew("a")),),
        "leaving": one_statement(s, "leaving", "a"),
        "learn": one_statement(s, "learn", "a", '{"s1": "v3"}'),
        "learn another": one_statement(s, "learn", "a", '{"s2": "v4"}'),
        "define late": learning(s, "a", "s2", "v5"),
        "evict": s.evicting("a"),
        "evict by witnesses": s.evicting("a", by="lock_still_lease"),
        "leave": s.leaving("a"),
        "register": s.registering("d", "v3"),
    }
    incoming = incoming_rows.rows("w1") + incoming_rows.rows("w2", kind="workflow")
    incoming += stored_schedules.rows()
    jobs = job_parts.READY_JOB + job_parts.claimed_job("j2")
    rows = begin + ";" + message + unit + incoming + stored_ticks.KNOWN + stored_ticks.tick() + jobs
    return [
        Group("seat", rows, written, moves),
        Group("seat and its moves", rows, moves),
        Group("runner", begin, people, apart={("register", "register"): "an incarnation is registered once"}),
    ]


def _others(s: Steps) -> list[Group]:
    """Machine ids of snowflakes, and the secret of a cluster."""
    begin = "".join(
        f";insert into coterie.machines (cluster, id, holder, expires_at, until_ms) values"
        f" ('{CLUSTER}', {machine}, '{holder}', {until}, 5)"
        for machine, holder, until in ((1, "a", "now() - interval '1 h'"), (2, "", "'-infinity'"))
    )
    full = begin.replace("'-infinity'", "now() + interval '1 h'")
    parts = {
        "lease": one_statement(s, "machines_lease", "b", 60.0, 7),
        "extend": one_statement(s, "machines_extend", 1, "a", 60.0, 9),
        "give back": one_statement(s, "machines_give_back", 1, "a"),
    }
    stock = {"stock": one_statement(s, "machines_stock")}
    draws = {f"draw {value}": one_statement(s, "secrets_draw", value.encode() * 16) for value in ("11", "22")}
    # One of the two is free: of two that are, who finds the first one locked gets the second, as in no serial order.
    return [
        Group("machine", full, parts),
        Group("machines of a new cluster", "", stock | parts),
        Group("secret", "", draws),
    ]
