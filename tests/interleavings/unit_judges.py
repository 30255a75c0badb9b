"""What must hold of units, their steps and deferreds after a run: sentences about what does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from coterie.storage.contracts.units import StepWrite
from coterie.storage.interface import Claim
from coterie.storage.postgres.batch import single, units

if TYPE_CHECKING:
    from coterie.storage.contracts.units import StepResult
    from tests.support.interleaving import Run

Problems = list[str]
Judge = Callable[["Run"], Sequence[str]]


def together(*judges: Judge) -> Judge:
    """All of them."""
    return lambda run: [problem for judge in judges for problem in judge(run)]


def sound(run: Run) -> Problems:
    """Nothing belongs to a unit that is gone [W5]; what came early belongs to the next one."""
    there = {row["unit"] for row in run.tables["units"]}
    own = [row for row in (*run.tables["steps"], *run.tables["deferreds"]) if not row.get("early")]
    return [f"left behind: {dict(row)}" for row in own if row["unit"] not in there]


def nobody_waits_for_what_came(run: Run) -> Problems:
    """Whoever was told that something is to be done about u finds it running; it waits only for what may come [M11]."""
    unit, came = _unit(run), [row for row in run.tables["deferreds"] if row["resolved_at"] is not None]
    if unit is None or unit["status"] != "suspended":
        return []
    problems = [f"a lost wake-up: it waits, and {row['name']} has come" for row in came]
    if unit["interrupting"]:
        problems.append("a lost wake-up: it waits, and is to be interrupted")
    if unit["wake_at"] is None and len(came) == len(run.tables["deferreds"]):
        problems.append("it waits for nothing")
    if run.pair.b.name == "resume" and (told := run.a.rows("suspend")) and told[0]["told"] != "suspended":
        problems.append(f"it waits, and its holder was told {told[0]['told']!r}")
    return problems


def first_wins(run: Run) -> Problems:
    """One value, that of whoever was told so [M10]; and no value that somebody was told of is lost while u goes on."""
    told = {side: rows[0]["told"] for side, rows in _told(run, "resolve")}
    winners = [
        value
        for side, each in told.items()
        if each == "resolved"
        for value in _values(_script(run, side), "resolve", 3)
    ]
    problems = [f"both were told {told}"] if len(winners) > 1 else []
    stored = [row["value"] for row in run.tables["deferreds"] if row["name"] == "d" and row["resolved_at"]]
    unit = _unit(run)
    if winners and stored and stored != winners and not _told(run, "end"):
        problems.append(f"{stored} is the value, and {winners} was told")
    if winners and not stored and (unit is None or unit["ended_at"] is None) and not _over(run):
        problems.append(f"the value is lost: {told}")
    problems += [f"told that it is over: {dict(unit)}" for each in told.values() if each == "over" and _goes_on(unit)]
    problems += [f"told {told}, and no value is there" for each in told.values() if each == "already" and not stored]
    return problems


def one_life(run: Run) -> Problems:
    """A unit that goes on has no value that was meant for another life, and is not woken by one [W15]."""
    unit = _unit(run)
    if not _goes_on(unit):
        return []
    came = [row for row in run.tables["deferreds"] if row["resolved_at"] is not None and not row["early"]]
    others = [row["life"] for row in came if row["life"] != unit["life"]]
    problems = [f"of life {unit['life']}, and given what was meant for {life}" for life in others]
    if unit["life"] == 2 and (told := run.a.rows("suspend")) and told[0]["told"] != unit["status"]:
        problems.append(f"told {told[0]['told']!r}, and {unit['status']} by a token of another life")
    return problems


def no_former_step(run: Run) -> Problems:
    """What was stored for a life is not in the next one [W12]."""
    unit = _unit(run)
    if unit is None or unit["life"] == 1:
        return []
    return [f"of life {unit['life']}, with a step of a former one: {dict(row)}" for row in run.tables["steps"]]


def nothing_put_is_lost(run: Run) -> Problems:
    """A payload that was acknowledged is that of the run or of its next life, or a later one is [W14]."""
    unit = _unit(run)
    told = [side for name in ("push", "start", "keep") for side, rows in _told(run, name) if rows]
    there = {unit["payload"], unit["next_payload"]} if unit is not None else set()
    if told and not {b"2", b"3"} & there:  # one whose commit was lost may have come after
        return [f"{told} were told that it is stored, and {unit and dict(unit)} is there"]
    pushed = [row["life"] for _, rows in _told(run, "push") for row in rows]
    if unit is not None and unit["life"] in pushed and unit["status"] == "running" and not unit["interrupting"]:
        return [f"life {unit['life']} was put off, and runs"]
    return []


def retried_once(run: Run) -> Problems:
    """One failure is retried once."""
    told = [rows[0]["told"] for _, rows in _told(run, "retry")]
    return [f"both have retried it: {told}"] if told.count("retried") > 1 else []


def not_retried_undone(run: Run) -> Problems:
    """What goes on has undone nothing [W9]."""
    unit, told = _unit(run), [rows[0]["told"] for _, rows in _told(run, "retry")]
    undone = any(row["kind"] == "compensation" for row in run.tables["steps"])
    return ["retried after undoing"] if "retried" in told and undone and _goes_on(unit) else []


def goes_on_if_retried(run: Run) -> Problems:
    """The end of the try before does not end it."""
    told = [rows[0]["told"] for _, rows in _told(run, "retry")]
    return ["retried, and ended by a failure before that"] if "retried" in told and not _goes_on(_unit(run)) else []


def nobody_left_behind(run: Run) -> Problems:
    """A child of a run that failed is asked to end, or is yet to be [W10]."""
    parent, child = _unit(run), _unit(run, "child")
    if not _goes_on(child) or _goes_on(parent):
        return []
    left = not child["interrupting"] and not parent["interrupts_children"]
    return ["left behind: its parent has failed, and nobody asks it to end"] if left else []


def one_result(run: Run) -> Problems:
    """Whoever stores a step is told what is stored, and nobody else's words [W1]."""
    there = {(row["unit"], row["branch"], row["position"]): row for row in run.tables["steps"]}
    told = [each for side in ("A", "B") for each in _stepped(run, side)]
    problems = ["both were told that it is written"] if sum(each.told == "written" for each in told) > 1 else []
    unit = _unit(run)
    for each in told:
        row = each.row
        if each.told in ("written", "there") and (row is None or row.kind is None):
            problems.append(f"told {each.told!r}, and not of what")
        elif row is not None and _goes_on(unit):
            stored = there.get(("u", row.branch, row.position))
            if stored is None or stored["value"] != row.value or stored["done"] != row.done:
                problems.append(f"told of {row.value!r}, and {stored and dict(stored)} is stored")
        if each.told == "over" and _goes_on(unit):
            problems.append("told that it is over, and it goes on")
    return problems


def ended_once(run: Run) -> Problems:
    """A unit ends once, as whoever ended it was told."""
    told = [(side, rows[0]) for side, rows in _told(run, "end")]
    ended = [row["unit"] for _, row in told if row["written"]]
    problems = [f"both were told that they ended it: {told}"] if len(set(ended)) < len(ended) else []
    for side, row in told:
        unit = _unit(run, row["unit"])
        status = "interrupted" if "interrupted" in _script(run, side).name else "done"
        if _goes_on(unit):
            problems.append(f"{side} was told {dict(row)}, and it goes on")
        elif unit is not None and row["written"] and unit["status"] != status:
            problems.append(f"{side} was told {dict(row)}, and it is {unit['status']}")
    return problems


def parent_is_told(run: Run) -> Problems:
    """Its child has ended: the parent has the value, and does not wait [W4]."""
    parent, came = _unit(run), [row for row in run.tables["deferreds"] if row["resolved_at"] is not None]
    if not _goes_on(parent) or _goes_on(_unit(run, "child")):
        return []
    problems = [] if came else ["a lost wake-up: its child has ended, and it has no value"]
    if parent["status"] == "suspended":
        problems.append("a lost wake-up: its child has ended, and it waits")
    told = [rows[0]["wake"] for side, rows in _told(run, "end") if side == "A"]
    if told == [None] and [row["value"] for row in came] == [b"c"]:
        problems.append("its child has ended, and nobody is told to see to it")
    return problems


def nothing_late(run: Run) -> Problems:
    """B, granted s1 after A lost it, has seen all that A ever wrote; A is told whether it wrote [C1, INV-F2]."""
    problems, seen = sound(run), run.b.rows("load")
    if seen is not None and run.b.rows("its steps") is not None:
        if _facts(seen) != _facts(run.tables["units"]):
            problems.append(f"a stale write: B saw {_facts(seen)}, afterwards {_facts(run.tables['units'])} is there")
        steps, found = run.tables["steps"], run.b.rows("its steps") or ()
        if len(found) != len(steps) and _goes_on(_unit(run)):
            problems.append(f"a stale write: B saw {len(found)} steps, afterwards {len(steps)} are there")
    otherwise = [f"A was told otherwise, and {_facts(run.tables['units'])} is there"]
    unit = _unit(run)
    if (told := run.a.rows("suspend")) and (told[0]["told"] == "suspended") != (unit["status"] == "suspended"):
        problems += otherwise
    if (told := run.a.rows("end")) and told[0]["written"] == _goes_on(unit):
        problems += otherwise
    if (told := run.a.rows("open")) and told[0]["held"] != (unit is not None):
        problems += otherwise
    if (told := run.a.rows("wake")) is not None and bool(told) != (unit["status"] == "running"):
        problems += otherwise
    for each in _stepped(run, "A"):
        if (each.told == "written") != bool(run.tables["steps"]):
            problems += otherwise
    return problems


def begun_once(run: Run) -> Problems:
    """Of those who start a unit of one name one has started it; the others see it."""
    started = [rows[0]["payload"] for _, rows in _told(run, "start") if rows]
    problems = [f"both have started it: {started}"] if len(started) > 1 else []
    unit = _unit(run)
    for side, rows in _told(run, "there"):
        if rows[0]["ended_at"] is None and (unit is None or rows[0]["payload"] != unit["payload"]):
            problems.append(f"{side} saw {dict(rows[0])}, and {unit and dict(unit)} is there")
    if started and (unit is None or unit["payload"] != started[0] or unit["ended_at"] is not None):
        problems.append(f"{started} was started, and {unit and dict(unit)} is there")
    return problems


def not_purged_in_use(run: Run) -> Problems:
    """What somebody has just used is not purged as abandoned; what is purged was told of once."""
    problems, unit = begun_once(run), _unit(run)
    if run.a.rows("open") and unit is None:
        problems.append("purged in use: it was opened")
    if any(each.told == "written" for each in _stepped(run, "A")) and unit is None:
        problems.append("purged in use: a step of it was stored")
    gone = [name for _, rows in _told(run, "purge") for row in rows for name in row["abandoned"]]
    problems += [f"told that {name} is abandoned, twice" for name in set(gone) if gone.count(name) > 1]
    return problems


def _told(run: Run, step: str) -> list[tuple[str, Any]]:
    """What the two sessions were told by steps of this name."""
    both = (("A", run.a.rows(step)), ("B", run.b.rows(step)))
    return [(side, rows) for side, rows in both if rows is not None]


def _stepped(run: Run, side: str) -> list[StepResult]:
    """What a session was told of its step, as the engine tells it."""
    adds = [step.values for step in _script(run, side).steps if step.name == "add"]
    if not adds:
        return []
    told, is_lone = run.a if side == "A" else run.b, isinstance(adds[0][2], str)
    value = adds[0][9] if is_lone else adds[0][12][0]
    written = StepWrite(Claim("a", "s1", 1), "u", "", 0, "step", "n", value=value)
    added, rest = told.rows("add"), told.rows("rest")
    if added is None or rest is None:
        return []
    if added:
        if is_lone:
            return [single.result("add_step", written, [list(added[0].values())])]
        return units.results("add_steps", [written], added)
    return units.results("write_steps", [written], rest)


def _unit(run: Run, name: str = "u") -> Any:
    return next((row for row in run.tables["units"] if row["unit"] == name), None)


def _goes_on(unit: Any) -> bool:
    return unit is not None and unit["ended_at"] is None


def _over(run: Run) -> bool:
    """Whether somebody ends u, or purges it, and may have done so unheard of."""
    return any(step.name in ("end", "purge") for step in (*run.pair.a.steps, *run.pair.b.steps))


def _script(run: Run, side: str) -> Any:
    return run.pair.a if side == "A" else run.pair.b


def _values(script: Any, step: str, place: int) -> list[Any]:
    """What a script gives to its step of this name, if there is one."""
    found = [each.values[place] for each in script.steps if each.name == step]
    return [value[0] if isinstance(value, list) else value for value in found]


def _facts(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [(row["unit"], row["status"], row["wake_at"], row["changed_at"]) for row in rows]
