"""Pairs of durable work: suspensions, values, timers, steps and ends against each other and what takes seats away."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import structs

from coterie.storage.contracts.units import StepWrite, UnitEnd
from coterie.storage.interface import Claim
from coterie.storage.postgres.batch import plan
from tests.interleavings import unit_judges as judges
from tests.interleavings.database import CLUSTER, THERE, given
from tests.support.interleaving import Pair, Script, Step, atomic
from tests.support.interleaving.scripts import restart_if_none, stop_if_none

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.interleavings.steps import Steps
    from tests.support.interleaving.scripts import Reads

MINE = Claim("a", "s1", 1)
OVERTAKEN = frozenset({"40001"})
"""A statement that somebody was faster than comes to nothing, and is run again [M3]."""
STEP = StepWrite(MINE, "u", "", 0, "step", "n", value=b"a")
OF_LIFE = StepWrite(MINE, "u", "", 0, "step", "n", value=b"a", life=0)
OTHER = StepWrite(MINE, "u", "", 0, "step", "n", value=b"b")
DONE = UnitEnd(MINE, "u", "done", value=b"v")
CUT = UnitEnd(MINE, "u", "interrupted")
CHILD = UnitEnd(MINE, "child", "done", value=b"v", outcome=b"c")
FAILED = UnitEnd(MINE, "u", "failed")
CLAIMED = datetime(2026, 1, 1, tzinfo=UTC)
AT_ONCE = (None,) * 6
"""The options of a start that has none."""
LATER = (None, 3600.0, None, None, None, '{"n": "1"}')
"""Those of one that begins in an hour."""
TICK = (
    ";insert into coterie.ticks (cluster, name, kind, at, seq, until_at, epoch, attempt, runner, claimed_at)"
    f" values ('{CLUSTER}', 'c', 'manual', '{CLAIMED}', 1, '{CLAIMED}', 1, 1, '', '{CLAIMED}')"
)
"""A tick that is not over, whose unit u may not have begun."""


def rows(*more: str, left_s: float = 6) -> str:
    """Runners a and b, the seat s1, and what is stored of units on it."""
    return given(runners={"a": left_s, "b": 6}, seats={"s1": "a"}) + "".join(more)


def unit(
    name: str = "u",
    *,
    kind: str = "workflow",
    status: str = "running",
    wake: str = "null",
    parent: str = "",
    life: int = 0,
) -> str:
    """A unit that began a day ago, and has not changed since."""
    ended = "null" if status in ("running", "suspended") else "now() - interval '1 day'"
    return (
        ";insert into coterie.units (cluster, unit, kind, name, id, seat, status, started_at, changed_at, ended_at,"
        f" wake_at, life, parent, waited_as) values ('{CLUSTER}', '{name}', '{kind}', 'n', 'i', 's1', '{status}',"
        f" now() - interval '1 day', now() - interval '1 day', {ended}, {wake}, {life}, nullif('{parent}', ''), 'd')"
    )


def deferred(name: str = "d", *, value: str = "null", early: bool = False) -> str:
    """What u waits for; with a value it came a day ago."""
    at = "null" if value == "null" else "now() - interval '1 day'"
    return (
        ";insert into coterie.deferreds (cluster, unit, name, made_at, resolved_at, early, value)"
        f" values ('{CLUSTER}', 'u', '{name}', now() - interval '1 day', {at}, {early}, {value})"
    )


SUSPENDED, DUE = unit(status="suspended"), unit(status="suspended", wake="now()")
LEADER, OLD = unit(kind="leader"), unit(status="done")
NOT_BEGUN = unit(status="suspended", wake="now()") + ";update coterie.units set starts_at = wake_at"
STUCK = unit(status="suspended") + ";update coterie.units set stuck = 'why', stuck_times = 3"
KEPT = unit(status="done") + (
    ";update coterie.units set next_life = 2, next_at = now(), next_payload = '2', next_digest = 'd', next_version = ''"
)
WAITED = (
    ";insert into coterie.steps (cluster, unit, branch, position, kind, name, digest, done, at, value)"
    f" values ('{CLUSTER}', 'u', '', 0, 'step', 'n', '', false, now() - interval '1 day', null)"
)

OFTEN = {
    "unit: suspend x resolve",
    "unit: suspend x interrupt",
    "unit: wake x resolve",
    "unit: resolve suspended x resolve too",
    "unit: steps x release and take",
    "unit: suspend x release and take",
    "unit: end x end interrupted",
    "unit: resolve x end",
    "unit: lone step x end",
    "unit: lone step x end of a leader's",
    "unit: resolve x end of a leader's",
    "unit: end of a child x suspend",
    "unit: steps x its end too",
    "unit: start x purge",
    "unit: open x purge",
    "unit: end and open x resolve",
    "unit: start of a child x failure and its children",
    "unit: lone step of a life x renewal",
    "unit: steps of a life x renewal",
    "unit: start again x start again too",
}
"""Enough for every change; the others are variants of these."""


def stored_units(s: Steps) -> list[Pair]:
    """The pairs, over the right statements or some with a planted bug."""
    return [
        *_waking(s),
        *_against_holders(s),
        *_ending(s),
        *_stepping(s),
        *_beginning_and_purging(s),
        *_living(s),
        *_bearing(s),
        *_renewing(s),
        *_retrying(s),
        *_later(s),
    ]


def _waking(s: Steps) -> list[Pair]:
    """No wake-up is lost, and the first value is the value [M11]."""
    suspend, two = _suspend(s), _suspend(s, "suspend for d, e", waits=["d", "e"])
    timed = _suspend(s, "suspend with a timer", wake_s=0.0)
    resolve, too = _resolve(s), _resolve(s, "resolve too", value=b"2")
    woken = _resolve(s, "resolve suspended")
    interrupt, resume, wake = _asking(s, "interrupt"), _asking(s, "resume"), _waking_due(s)
    begin_and_wait = Script("open and suspend", (*_open(s, kind="tick").steps, *suspend.steps))
    judge = judges.together(judges.sound, judges.first_wins, judges.nobody_waits_for_what_came)
    lost = Script("d held", (resolve.steps[0], Step("gone", act="end")))
    return [
        _pair(rows(unit()), suspend, resolve, judge),
        _pair(rows(unit(), deferred()), suspend, resolve, judge, note=", d made"),
        _pair(rows(unit()), two, resolve, judge),
        _pair(rows(unit()), timed, resolve, judge),
        _pair(rows(unit()), suspend, interrupt, judge),
        _pair(rows(unit()), suspend, resume, judge),
        _pair(rows(unit()), timed, wake, judge),
        _pair(rows(SUSPENDED, deferred()), woken, too, judge),
        _pair(rows(SUSPENDED, deferred()), woken, interrupt, judge),
        _pair(rows(SUSPENDED, deferred()), woken, resume, judge),
        _pair(rows(DUE, deferred()), wake, resolve, judge),
        _pair(rows(DUE, deferred()), wake, interrupt, judge),
        _pair(rows(TICK), resolve, too, judge),
        _pair(rows(TICK), begin_and_wait, resolve, judge),
        _pair(rows(TICK), _at_once(_open(s, kind="tick"), suspend), _at_once(resolve), judge, c=lost),
    ]


def _against_holders(s: Steps) -> list[Pair]:
    """Whatever a holder writes against all that takes its seat away [C1]."""
    granted = Script("release and take", (s.release("a", "s1"), *_taking(s)))
    evicted = Script("evict and take", (*s.evicting("a"), *_taking(s)))
    step, lone, end = _steps(s), _lone(s), _end(s)
    pairs = []
    for script, more in (
        (step, (unit(),)),
        (lone, (unit(),)),
        (end, (unit(), deferred())),
        (_suspend(s), (unit(),)),
        (_open(s), ()),
        (_waking_due(s), (DUE,)),
    ):
        pairs.append(_pair(rows(*more), script, granted, judges.nothing_late))
        if script.name != "wake":
            pairs.append(_pair(rows(*more, left_s=-1), script, evicted, judges.nothing_late))
    return pairs


def _ending(s: Steps) -> list[Pair]:
    """A unit ends once, and nothing is added to it after [W5]."""
    end, cut, step, lone = _end(s), _end(s, "end interrupted", write=CUT), _steps(s), _lone(s)
    of_leader, child = _end(s, "end of a leader's"), _end(s, "end of a child", write=CHILD)
    resolve, interrupt = _resolve(s), _asking(s, "interrupt")
    judge = judges.together(judges.sound, judges.ended_once, judges.first_wins)
    stepped = judges.together(judge, judges.one_result)
    held = _holding()
    parent = judges.together(judge, judges.parent_is_told)
    family = rows(SUSPENDED, deferred(), unit("child", parent="u"))
    return [
        _pair(rows(unit()), end, cut, judge),
        _pair(rows(unit()), end, interrupt, judge),
        _pair(rows(unit()), resolve, end, judge),
        _pair(rows(unit(), deferred()), resolve, end, judge, note=", d made"),
        _pair(rows(unit(), deferred()), resolve, end, judge, note=", d made", c=held),
        _pair(rows(LEADER), resolve, of_leader, judge),
        _pair(rows(LEADER, deferred()), resolve, of_leader, judge, note=", d made"),
        _pair(rows(unit()), step, end, stepped),
        _pair(rows(unit()), lone, end, stepped),
        _pair(rows(LEADER), lone, of_leader, stepped),
        _pair(rows(unit()), _suspend(s), end, judge),
        _pair(rows(DUE), _waking_due(s), end, judge),
        _pair(family, child, resolve, parent),
        _pair(family, child, end, parent),
        _pair(rows(unit(), unit("child", parent="u")), child, _suspend(s), parent),
    ]


def _stepping(s: Steps) -> list[Pair]:
    """One result for each step, whoever stores it how often, and all are counted."""
    step, lone = _steps(s), _lone(s)
    judge = judges.together(judges.sound, judges.one_result)
    return [
        _pair(rows(unit()), step, _steps(s, "steps too", write=OTHER), judge),
        _pair(rows(unit()), lone, _lone(s, "lone step too", write=OTHER), judge),
        _pair(rows(unit(), WAITED), step, _lone(s, "its end too", write=OTHER), judge),
        _pair(rows(unit()), step, _resolve(s), judge),
        _pair(rows(unit()), lone, _resolve(s), judge),
        _pair(rows(unit()), lone, _asking(s, "interrupt"), judge),
    ]


def _beginning_and_purging(s: Steps) -> list[Pair]:
    """Starts, purges, and values that came early."""
    start, too, purge = _start(s), _start(s, "start too", payload=b"q"), _purge(s)
    open_, resolve, tick = _open(s), _resolve(s), _open(s, "open of a tick", kind="tick")
    begun = judges.together(judges.sound, judges.begun_once)
    kept = judges.together(judges.sound, judges.first_wins, judges.one_result, judges.not_purged_in_use)
    early = deferred(value="'1'", early=True)
    return [
        _pair(rows(), start, too, begun),
        _pair(rows(OLD), start, purge, begun),
        _pair(rows(), start, resolve, kept),
        _pair(rows(TICK), tick, resolve, kept),
        _pair(rows(early), tick, purge, kept, note=" of what came early"),
        _pair(rows(LEADER), open_, purge, kept),
        _pair(rows(LEADER), _lone(s), purge, kept),
        _pair(rows(LEADER), resolve, purge, kept),
        _pair(rows(OLD), purge, resolve, kept),
        _pair(rows(OLD, LEADER.replace("'u'", "'l'")), purge, _purge(s, "purge too"), kept),
    ]


def _living(s: Steps) -> list[Pair]:
    """What is for one life of a unit is for no other [W15]."""
    resolve = _resolve(s, life=1)
    begin_again = (*_purge(s).steps, _begin(s, life=2))
    suspended = (*_open(s, kind="leader", life=2).steps, *_suspend(s).steps)
    over = Script("end and open", (*_end(s).steps, *suspended))
    purged = Script("purge and start", begin_again)
    tick = Script("open of another life", suspended)
    judge = judges.one_life
    early = deferred(value="'1'", early=True)
    return [
        _pair(rows(unit(kind="leader", life=1)), over, resolve, judge),
        _pair(rows(unit(status="done", life=1)), purged, resolve, judge),
        _pair(rows(early), tick, resolve, judge),
    ]


def _bearing(s: Steps) -> list[Pair]:
    """A run that has failed leaves no child behind [W10]."""
    bear = Script("start of a child", atomic(_begin(s, unit="child", parent="u")))
    tend = (
        *atomic(s.step("interrupt_children", ["s1"], 10, step="children")),
        *atomic(s.step("forget_children", ["s1"], 10, step="forget")),
    )
    fail = Script("failure and its children", (*_end(s, write=FAILED).steps, *tend))
    done = _end(s, "end of a child", write=CHILD)
    judge = judges.together(judges.sound, judges.nobody_left_behind)
    family = rows(unit(), unit("child", parent="u"))
    return [
        _pair(rows(unit()), bear, fail, judge),
        _pair(family, done, fail, judge),
        _pair(family, Script("children", tend), fail, judge),
        _pair(rows(unit(), unit("child", parent="u", status="suspended")), _suspend(s), fail, judge),
    ]


def _renewing(s: Steps) -> list[Pair]:
    """A run ends one life and begins the next: nothing of the one is in the other [W12, W15]."""
    renew, again = _renew(s), _start_again(s)
    lone, many = (make(s, name, write=structs.replace(STEP, life=1)) for make, name in _OF_A_LIFE)
    late, suspend = _resolve(s, life=1), _suspend(s)
    judge = judges.together(judges.sound, judges.one_life, judges.no_former_step)
    running, over = rows(unit(life=1)), rows(unit(status="failed", life=1))
    waits = Script("renewal and suspension", (*renew.steps, *suspend.steps))
    ended = Script("end and start again", (*_end(s, write=structs.replace(DONE, life=1)).steps, *again.steps))
    return [
        _pair(running, lone, renew, judge),
        _pair(running, many, renew, judge),
        _pair(running, lone, ended, judge),
        _pair(running, waits, late, judge),
        _pair(running, renew, _asking(s, "interrupt"), judge),
        _pair(over, again, _start_again(s, "start again too", life=3), judges.together(judge, judges.begun_once)),
        _pair(over, again, _purge(s), judge),
        _pair(over, again, late, judge),
    ]


def _later(s: Steps) -> list[Pair]:
    """What is started while a run has not begun is that run; while it goes on, its next life [W14]."""
    put, too = _put(s), _put(s, "debounced start too", life=3)
    wake = Script("begin", atomic(s.step("wake_due_units", "a", ["s1"], [1], step="wake")))
    judge = judges.together(judges.sound, judges.nothing_put_is_lost)
    push, keep = _push(s), _keep(s)
    return [
        _pair(rows(NOT_BEGUN), push, wake, judge),
        _pair(rows(NOT_BEGUN), push, _push(s, "push too", life=3), judge),
        _pair(rows(unit()), keep, _end(s), judge),
        _pair(rows(NOT_BEGUN), put, wake, judge),
        _pair(rows(NOT_BEGUN), put, _asking(s, "interrupt"), judge),
        _pair(rows(NOT_BEGUN), put, too, judge),
        _pair(rows(unit()), put, _end(s), judge),
        _pair(rows(KEPT), too, _begin_kept(s), judge),
        _pair(rows(KEPT), _begin_kept(s), _purge(s), judge),
    ]


def _retrying(s: Steps) -> list[Pair]:
    """A run that has failed goes on once for each failure, and not if it has begun to undo [W9]."""
    retry, undo = _retry(s), replace_kind(STEP)
    undone = Script("undoing and failure", (*_steps(s, write=undo).steps, *_end(s, write=FAILED).steps))
    late = _end(s, "late failure", write=structs.replace(FAILED, retries=0))
    judge = judges.together(judges.sound, judges.retried_once, judges.not_retried_undone)
    over = rows(unit(status="failed"), deferred(value="'1'"))
    return [
        _pair(over, retry, _retry(s, "retry too"), judge),
        _pair(rows(unit()), retry, undone, judge),
        _pair(over, retry, late, judges.together(judge, judges.goes_on_if_retried)),
        _pair(over, retry, _purge(s), judge),
        _pair(over, retry, _start_again(s), judge),
        _pair(rows(unit()), _fork(s), undone, judges.sound),
        _pair(over, _fork(s), _purge(s), judges.sound),
    ]


def replace_kind(step: StepWrite) -> StepWrite:
    """The same as a compensation."""
    return structs.replace(step, branch="undo", kind="compensation")


def _steps(s: Steps, name: str = "steps", *, write: StepWrite = STEP) -> Script:
    """The statements and arrays that the engine itself makes of a step that is not alone, in a transaction."""
    bucket = plan.Bucket("add_steps", [0])
    add = s.step("add_steps", *plan.values(bucket, [write]), step="add")
    return Script(name, atomic(add, _rest(s, write)))


def _lone(s: Steps, name: str = "lone step", *, write: StepWrite = STEP) -> Script:
    """The same of one that is, each in a transaction of its own."""
    bucket = plan.Bucket("add_step", [0])
    add = replace(s.step(bucket.shape, *plan.values(bucket, [write]), step="add"), nothing=THERE)
    return Script(name, (*atomic(add), *atomic(_rest(s, write))))


def _rest(s: Steps, write: StepWrite) -> Step:
    """Unless it is written: why not."""
    values = (CLUSTER, *plan.values(plan.Bucket("write_steps", [0]), [write]))
    nothing = "select 1 as nothing"

    def sql(reads: Reads) -> str:
        return nothing if reads["add"] else s.sql["write_steps"]

    return Step("rest", sql, lambda reads: () if reads["add"] else values)


def _end(s: Steps, name: str = "end", *, write: UnitEnd = DONE) -> Script:
    (bucket,) = plan.fold([write])
    return Script(name, atomic(s.step(bucket.shape, *plan.values(bucket, [write]), step="end")))


def _at_once(*parts: Step | Script) -> Script:
    """The same statements, each a transaction by itself: three sessions have orders enough."""
    steps = [part if isinstance(part, Step) else replace(part.steps[0], opens=False) for part in parts]
    return Script(" and ".join(part.name for part in parts), tuple(steps))


def _suspend(s: Steps, name: str = "suspend", *, waits: Sequence[str] = ("d",), wake_s: float | None = None) -> Script:
    suspend = s.step("suspend_unit", "a", "s1", 1, "u", list(waits), wake_s, [], None, 0, step="suspend")
    return Script(name, atomic(suspend))


def _resolve(s: Steps, name: str = "resolve", *, value: bytes = b"1", life: int = 0) -> Script:
    tick = ("c", "manual", CLAIMED, 1, CLAIMED)
    return Script(name, atomic(s.step("resolve_deferred", "u", "d", value, None, life, *tick, step="resolve")))


def _asking(s: Steps, what: str) -> Script:
    """Interrupt or resume."""
    return Script(what, atomic(s.step(f"{what}_unit", "u", step=what)))


def _waking_due(s: Steps) -> Script:
    """What is due goes on, and is seen to."""
    mine = ("a", ["s1"], [1])
    return Script(
        "wake",
        (*atomic(s.step("wake_due_units", *mine, step="wake")), s.step("look_for_units", *mine, 10, step="look")),
    )


def _open(s: Steps, name: str = "open", *, kind: str = "leader", life: int = 0) -> Script:
    return Script(name, atomic(s.step("open_unit", "a", "s1", 1, "u", kind, "n", "i", life, step="open")))


def _start(s: Steps, name: str = "start", *, payload: bytes = b"p") -> Script:
    """Start it, or see what is there; if that is gone by then, start it after all."""
    there = s.step("get_unit", "u", step="there", then=restart_if_none)
    return Script(name, (*atomic(_begin(s, payload)), there))


def _begin(s: Steps, payload: bytes = b"p", *, unit: str = "u", parent: str | None = None, life: int = 0) -> Step:
    given = (unit, "n", "i", "s1", payload, payload, "", parent, "d", life)
    return s.step("start_unit", *AT_ONCE, *given, step="start")


def _renew(s: Steps, name: str = "renewal", *, life: int = 1) -> Script:
    return Script(name, atomic(s.step("renew_unit", "a", "s1", 1, "u", life, 2, b"p", "", step="renew")))


def _retry(s: Steps, name: str = "retry", *, unit: str = "u") -> Script:
    step = ([unit], [""], [0]), ([unit], ["d"])
    return Script(name, atomic(s.step("retry_units", [unit], [0], [0], *step[0], *step[1], step="retry")))


def _fork(s: Steps, name: str = "fork") -> Script:
    new = ("f", "n", "f", "s1", b"p", b"p", "", 5)
    copied = ([""], [0], ["step"], ["n"], [b""], [CLAIMED], [b"v"], [None], [CLAIMED], [1], ["a"])
    return Script(name, atomic(s.step("fork_unit", "u", 0, *new, *copied, step="fork")))


def _start_again(s: Steps, name: str = "start again", *, life: int = 2) -> Script:
    return Script(name, atomic(s.step("start_again", *AT_ONCE, "u", life, str(life).encode(), b"d", "", step="start")))


def _push(s: Steps, name: str = "push", *, life: int = 2) -> Script:
    given = (*LATER, "u", life, str(life).encode(), b"d", "")
    return Script(name, atomic(s.step("push_start", *given, step="push")))


def _keep(s: Steps, name: str = "keep", *, life: int = 2) -> Script:
    given = (*LATER, "u", life, str(life).encode(), b"d", "")
    return Script(name, atomic(s.step("keep_start", *given, step="keep")))


def _put(s: Steps, name: str = "debounced start", *, life: int = 2) -> Script:
    """As the engine has it: put it off, or keep it as the next life, or begin that."""
    given = ("u", life, str(life).encode(), b"d", "")

    def over(rows: Any) -> Any:
        return "go" if not rows else "stop"

    steps = [
        replace(s.step(statement, *LATER, *given, step=step), then=over)
        for statement, step in (("push_start", "push"), ("keep_start", "keep"))
    ]
    return Script(name, (*steps, s.step("start_again", *LATER, *given, step="start", then=restart_if_none)), tries=3)


def _begin_kept(s: Steps, name: str = "begin of a kept life") -> Script:
    return Script(name, atomic(s.step("begin_kept", "a", ["s1"], [1], 10, step="kept")))


_OF_A_LIFE = ((_lone, "lone step of a life"), (_steps, "steps of a life"))


def _purge(s: Steps, name: str = "purge") -> Script:
    return Script(name, atomic(s.step("purge_units", 60.0, 10, step="purge")))


def _taking(s: Steps) -> tuple[Step, ...]:
    """B acquires s1 and loads what is there; nothing if it was not free."""

    def values(reads: Reads) -> Sequence[Any]:
        return (CLUSTER, "b", "s1", reads["grant"][0]["epoch"], "u")

    grant = s.step("acquire", "b", ["s1"], step="grant", then=stop_if_none)
    load = Step("load", s.sql["look_at_unit"], values)
    return (grant, load, s.step("steps_of_unit", "u", step="its steps"))


def _holding() -> Script:
    """A third session that is in the way of all who change u, for a while."""
    hold = Step("hold", "select from coterie.units where cluster = $1 and unit = 'u' for update", (CLUSTER,))
    return Script("u held", atomic(hold))


def _pair(begin: str, a: Script, b: Script, judge: judges.Judge, *, note: str = "", c: Script | None = None) -> Pair:
    """Two of them; a note behind the name of the first one tells it from others on other rows."""
    tried = [Script(script.name, script.steps, tries=3) for script in (a, b)]
    name = f"unit: {a.name} x {b.name}{note}" + (f", {c.name}" if c else "")
    return Pair(name, begin, tried[0], tried[1], judge, allows=OVERTAKEN, c=c)
