"""Pairs of what leaders write: states with their history and stamps, against all that moves their seat [C1, m14]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.storage.contracts.executions import Stamp
from coterie.storage.interface import Claim, StateSave
from coterie.storage.postgres.batch import plan
from tests.interleavings import judges
from tests.interleavings.database import CLUSTER, given
from tests.interleavings.plant import Plant, swapped
from tests.support.interleaving import Pair, Script, Step, atomic
from tests.support.interleaving.scripts import stop_if_none

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.interface import Write
    from tests.interleavings.steps import Steps
    from tests.support.interleaving import Run
    from tests.support.interleaving.scripts import Reads

MINE = Claim("a", "s1", 1)
BEGUN = (
    f";insert into coterie.executions (cluster, seat, epoch, leader, known_at, since_at, alive_at, runs) values"
    f" ('{CLUSTER}', 's1', 1, 'a', now(), now(), now(), 1)"
)
EXPIRED = (
    ";update coterie.states set expires_at = now() - interval '1 day'"
    f";insert into coterie.state_history (cluster, key, slot, version, epoch, runner, saved_at, value)"
    f" values ('{CLUSTER}', 'k', 1, 1, 1, 'a', now(), 'old')"
)


def leading(s: Steps) -> list[Pair]:
    """The pairs, over the right statements or some with a planted bug."""
    first = Script("leader: first save", atomic(_step(s, StateSave(MINE, "k", b"new", 0, 60.0, 20))))
    save = StateSave(MINE, "k", b"new", 1, None, 20)
    later = Script("leader: save", atomic(_step(s, save)))
    two = Script("leader: two saves", atomic(_step(s, save, StateSave(MINE, "j", b"new", 0, None, 20))))
    stamp = Script("leader: stamp", atomic(_step(s, Stamp(MINE, 7, 0.0, 0.0))))
    granted = Script("release and grant", (s.release("a", "s1"), *s.taking("b", "k")))
    evicted = Script("evict and grant", (*s.evicting("a"), *s.taking("b", "k")))
    begun = Script("release and begin", (s.release("a", "s1"), *_beginning(s)))
    evicted_begun = Script("evict and begin", (*s.evicting("a"), *_beginning(s)))
    purge = Script("purge", atomic(s.step("purge_states", 10, step="purge")))
    saved = judges.together(judges.nothing_stale, history_follows)
    return [
        _pair(first, granted, saved, states=False),
        _pair(later, granted, saved),
        _pair(two, granted, saved),
        _pair(later, evicted, saved, left_s=-1),
        _pair(stamp, begun, nothing_said_late),
        _pair(stamp, evicted_begun, nothing_said_late, left_s=-1),
        _pair(later, purge, judges.together(judges.what_was_acknowledged, history_follows), more=EXPIRED),
        _pair(first, purge, judges.together(first_or_none, history_follows), more=EXPIRED),
    ]


def _pair(a: Script, b: Script, judge: judges.Judge, *, left_s: float = 6, states: bool = True, more: str = "") -> Pair:
    begin = given(runners={"a": left_s, "b": 6}, seats={"s1": "a"}, states={"k": "old"} if states else {})
    tried = [Script(script.name, script.steps, tries=2) for script in (a, b)]
    return Pair(f"{a.name} x {b.name}", begin + BEGUN + more, tried[0], tried[1], judge)


def _step(s: Steps, *writes: Write) -> Step:
    """The statement and values that the engine itself makes of the writes."""
    (bucket,) = plan.fold(writes)
    return s.step(bucket.shape, *plan.values(bucket, writes), step="write")


def _beginning(s: Steps) -> tuple[Step, ...]:
    """B acquires s1 and introduces itself; nothing if it was not free."""

    def begin(reads: Reads) -> Sequence[Any]:
        return (CLUSTER, "b", ["s1"], [reads["grant"][0]["epoch"]], ["b"], [None])

    grant = s.step("acquire", "b", ["s1"], step="grant", then=stop_if_none)
    return (grant, Step("begin", s.sql["begin_execution"], begin))


def history_follows(run: Run) -> list[str]:
    """What was saved through the statement is in the history exactly if it is the state, and no history is orphaned."""
    states = {row["key"]: row["value"] for row in run.tables["states"]}
    kept = {row["value"] for row in run.tables["state_history"]}
    problems = [] if states or not kept else [f"a history of nothing: {kept}"]
    if ("new" in kept) != (states.get("k") == "new"):
        problems.append(f"the state is {states.get('k')!r}, and its history has {kept}")
    return problems


def first_or_none(run: Run) -> list[str]:
    """A saves the first state while B clears away an expired one: it is written if it was told so."""
    rows = run.a.rows("write")
    there = any(row["value"] == "new" for row in run.tables["states"])
    return [] if rows is None or rows[0]["written"] == there else [f"told {dict(rows[0])}, there: {there}"]


def nothing_said_late(run: Run) -> list[str]:
    """A is told what became of its stamp; once B has begun, nothing that A says is taken for B's [m14]."""
    rows, begun = run.a.rows("write"), run.b.rows("begin")
    (said,) = run.tables["executions"]
    problems = []
    if rows is not None:
        (row,) = rows
        if row["written"] and not row["held"]:
            problems.append("written without the seat")
        if row["written"] != (said["runs"] == 7):
            problems.append(f"A was told written={row['written']}, and {dict(said)} is there")
    if begun is not None and begun[0]["held"]:
        if said["leader"] != "b":
            problems.append(f"B has begun, and {dict(said)} is there")
        if begun[0]["runs"] != said["runs"]:
            problems.append(f"a stale stamp: B read {begun[0]['runs']} runs, afterwards {said['runs']} are there")
    return problems


_JOINED = "from items as i join held on held.name = i.seat and held.epoch = i.epoch\n    where x.cluster"

LEADING_PLANTS = (
    Plant(
        "leaders fenced by seats locked too weakly",
        "C1",
        "leader: first save x release and grant",
        "stale",
        swapped(("save_states", "stamp_executions", "begin_execution"), ("for share of s", "for key share of s")),
    ),
    Plant(
        "stamps without the fence",
        "m14",
        "leader: stamp x release and begin",
        "written without the seat",
        swapped(("stamp_executions",), (_JOINED, "from items as i\n    where x.cluster")),
    ),
    Plant(
        "expired states purged without a lock",
        "S6",
        "leader: save x purge",
        "A was told written=True",
        swapped(("purge_states",), ("    for update skip locked\n", "")),
    ),
)
