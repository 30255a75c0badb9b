"""Pairs of transactions of users that start workflows: of those that start one id one starts it [B3]."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coterie.storage.contracts.messages import Commit
from coterie.storage.interface import Claim
from coterie.storage.postgres.batch import plan
from tests.interleavings.database import CLUSTER, given
from tests.interleavings.plant import Plant, swapped
from tests.interleavings.stored_units import OLD, OVERTAKEN, _begin, _purge, _start
from tests.support.interleaving import Pair, Script, Step, atomic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.interleavings.steps import Steps
    from tests.support.interleaving import Run
    from tests.support.interleaving.scripts import Rows, Verdict

BEGIN = given(runners={"a": 6, "b": 6}, seats={"s1": "a", "s2": "b"})

NIGHTLY = {"transaction: a orders p twice x b orders p twice", "transaction: a orders p x purge"}
"""Variants of the others."""


def started_units(s: Steps) -> list[Pair]:
    """The pairs, over the right statements or some with a planted bug."""
    mine, same, other = _order(s, "a", b"p"), _order(s, "b", b"p"), _order(s, "b", b"q")
    fenced = _order(s, "b", b"q", epoch=7, note=" without its seat")
    two, too = (_order(s, who, b"p", units=("u", "w"), note=" twice") for who in "ab")
    outside = _start(s, "start", payload=b"q")
    pairs = [(mine, same), (mine, other), (mine, fenced), (two, too), (mine, outside)]
    return [*(_pair(BEGIN, a, b) for a, b in pairs), _pair(BEGIN + OLD, mine, _purge(s))]


def _order(
    s: Steps, who: str, payload: bytes, *, units: Sequence[str] = ("u",), epoch: int = 1, note: str = ""
) -> Script:
    """A row of the user's own, workflows in the order of their names, and last the fence, as the engine has it."""
    seat = {"a": "s1", "b": "s2"}[who]
    row = Step("order", f"insert into coterie.kv values ('{CLUSTER}', '{who}', 'order', 1) returning key")
    starts = [step for unit in units for step in _starting(s, unit, payload)]
    write = Commit(Claim(who, seat, epoch))
    (bucket,) = plan.fold([write])
    fence = s.step(bucket.shape, *plan.values(bucket, [write]), step="fence", then=_go_if_written)
    return Script(f"{who} orders {payload.decode()}{note}", atomic(row, *starts, fence), tries=3)


def _starting(s: Steps, unit: str, payload: bytes) -> tuple[Step, Step]:
    """Start it, or go on if it is there with the same payload; otherwise all is rolled back."""

    def compare(rows: Rows) -> Verdict:
        return "restart" if not rows else "go" if rows[0]["digest"] == payload else "stop"

    begin = replace(_begin(s, payload, unit=unit), name=f"start {unit}")
    return begin, s.step("get_unit", unit, step=f"there {unit}", then=compare)


def _go_if_written(rows: Rows) -> Verdict:
    return "go" if rows[0]["outcome"] == "written" else "stop"


def _pair(rows: str, a: Script, b: Script) -> Pair:
    return Pair(f"transaction: {a.name} x {b.name}", rows, a, b, both_or_neither, allows=OVERTAKEN)


def both_or_neither(run: Run) -> list[str]:
    """A row is there if and only if its workflows are; each was started by one, and nobody is told otherwise."""
    orders = {row["key"] for row in run.tables["kv"]}
    units = {row["unit"]: row for row in run.tables["units"] if row["ended_at"] is None}
    problems: list[str] = []
    wanted: list[tuple[str, bytes]] = []
    for side, script in (("A", run.pair.a), ("B", run.pair.b)):
        told = run.told[side]  # type: ignore[index]  # both are sides
        mine = _starts(script)
        if not any(step.name == "order" for step in script.steps):
            wanted += mine
            continue
        who = script.name[0]
        is_there = who in orders
        if told.end in ("done", "stopped") and is_there != (told.end == "done"):
            problems.append(f"{who} is {told.end}, and its row {'is' if is_there else 'is not'} there")
        if is_there:
            wanted += mine
            problems += [
                f"the row of {who} is there without the workflow {unit}"
                for unit, payload in mine
                if unit not in units or units[unit]["payload"] != payload
            ]
    problems += [
        f"the workflow {unit} is there without a row"
        for unit, row in units.items()
        if (unit, row["payload"]) not in wanted
    ]
    for unit in units:
        started = [told for told in (run.a, run.b) if told.rows(f"start {unit}")]
        if len(started) > 1:
            problems.append(f"both have started {unit}")
    return problems + _nobody_lost(run)


def _nobody_lost(run: Run) -> list[str]:
    """Of two that want the same both are done; of two that want something else one is, unless it lost its seat."""
    ends = [run.a.end, run.b.end]
    if "lost" in ends or "purge" in run.pair.name:
        return []
    one, other = (dict(_starts(script)) for script in (run.pair.a, run.pair.b))
    most = 1 if "without its seat" in run.pair.name else 2 if one == other or run.pair.b.name == "start" else 1
    done = ends.count("done")
    if run.pair.b.name == "start":  # that one is told what is there
        return [] if done else [f"nobody is done: {ends}"]
    return [] if done == most else [f"{done} of {most} are done: {ends}"]


def _starts(script: Script) -> list[tuple[str, bytes]]:
    """Units that a script starts, with their payloads."""
    values: list[Any] = [step.values for step in script.steps if step.name.startswith("start")]
    return [(value[7], value[11]) for value in values]


START_PLANTS = (
    Plant(
        "a workflow started over the one that is there",
        "B3",
        "transaction: a orders p x b orders q",
        "without the workflow u",
        swapped(
            ("start_unit",),
            (
                "on conflict (cluster, unit) do nothing",
                "on conflict (cluster, unit) do update set payload = excluded.payload, digest = excluded.digest",
            ),
        ),
    ),
    Plant(
        "a workflow started after a look that locks nothing",
        "B3",
        "transaction: a orders p x b orders p",
        "23505",
        swapped(
            ("start_unit",),
            (
                "where $15::text is null or exists (select from parent)\non conflict (cluster, unit) do nothing",
                "where $15::text is null and not exists (select from coterie.units where cluster = $1 and unit = $8)",
            ),
        ),
    ),
)
