"""What must hold of crons and their ticks after a run: sentences about what does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.interleaving import Run

Problems = list[str]
Judge = Callable[["Run"], Sequence[str]]


def together(*judges: Judge) -> Judge:
    """All of them."""
    return lambda run: [problem for judge in judges for problem in judge(run)]


def claimed_as_told(run: Run) -> Problems:
    """A's claim is there as a whole, with the last tick moved, if A was told so; else nothing of it is [INV-C1]."""
    told, problems = run.a.rows("write"), list[str]()
    there, last = _claimed(run), _cron(run).get("last_at")
    moved = [row["until_at"] for row in there]
    if there and (len(there) != 2 or last != max(moved)):
        problems.append(f"a claim in parts: {len(there)} ticks, the last one is {last}")
    if last is not None and not there:
        problems.append(f"the last tick is {last}, and none is there")
    if told is not None and (told[0]["told"] == "written") != bool(there):
        problems.append(f"A was told {told[0]['told']!r}, and {len(there)} ticks are there")
    return problems


def nothing_late(run: Run) -> Problems:
    """B, granted s1 after A lost it, has seen all that A ever wrote, and what is not over is B's [C1, INV-F2, M9]."""
    seen = run.b.rows("load")
    if seen is None or not run.b.rows("grant"):
        return []
    problems, (epoch,) = [], {row["epoch"] for row in run.b.rows("grant") or ()}
    open_ = [row for row in run.tables["ticks"] if row["outcome"] is None]
    if _facts(open_) != _facts([row for row in seen if row["kind"] is not None]):
        problems.append(f"a stale write: B saw {_facts(seen)}, afterwards {_facts(open_)} is there")
    if seen and seen[0]["last_at"] != _cron(run).get("last_at"):
        problems.append(f"a stale write: B saw {seen[0]['last_at']} as the last, now it is {_cron(run)}")
    return problems + [f"{_facts([row])} is not over, and not B's" for row in open_ if row["epoch"] != epoch]


def noted_or_taken(run: Run) -> Problems:
    """A ends its tick, or begins its next attempt, while B takes over: attempts are counted once each [M9]."""
    (row,) = run.tables["ticks"]
    told, taken = run.a.rows("write"), run.b.rows("load") if run.b.rows("grant") else None
    problems, ends = [], run.pair.a.name == "end"
    if told is not None:
        is_written = told[0]["told"] == "written"
        if ends and is_written != (row["outcome"] == "ran"):
            problems.append(f"A was told {told[0]['told']!r}, and {dict(row)} is there")
        if taken is not None and not ends and row["attempt"] != 1 + is_written + 1:
            problems.append(f"A was told {told[0]['told']!r}, B took it, and {dict(row)} is there")
    if row["outcome"] is not None and row["epoch"] != 1:
        problems.append(f"ended by A, and taken by B: {dict(row)}")
    if taken is not None and row["outcome"] is None and row["epoch"] != 2:
        problems.append(f"neither ended nor taken: {dict(row)}")
    return problems


def not_while_paused(run: Run) -> Problems:
    """A claims ticks, one of which runs, while B pauses the cron: none begins once it is paused."""
    problems, paused_at = claimed_as_told(run), _cron(run).get("paused_at")
    begun = [row for row in _claimed(run) if not row["reason"]]
    if paused_at is not None and any(row["claimed_at"] > paused_at for row in begun):
        problems.append(f"begun while it was paused since {paused_at}: {[dict(row) for row in begun]}")
    told = run.b.rows("pause")
    if told is not None and (not told[0]["told"] or paused_at is None):
        problems.append(f"B was told {told[0]['told']}, and it is paused since {paused_at}")
    return problems


def not_of_a_replaced_schedule(run: Run) -> Problems:
    """A claims a tick of its schedule while B brings another one: not after that has taken effect [M8]."""
    problems = claimed_as_told(run)
    (seat,) = run.tables["definitions"]
    late = [row for row in _claimed(run) if row["claimed_at"] >= seat["effective_from"]]
    if seat["fingerprint"] == "v3" and late:
        problems.append(f"claimed of a schedule that was replaced at {seat['effective_from']}: {dict(late[0])}")
    return problems


def claimed_once(run: Run) -> Problems:
    """A claim and the same again: one of them is written, the other is told that it is."""
    told = [rows[0]["told"] for rows in (run.a.rows("write"), run.b.rows("write")) if rows is not None]
    problems = [f"both were told {told}"] if told.count("written") > 1 else []
    if len(told) == 2 and "written" not in told:
        problems.append(f"neither was written: {told}")
    runs, there = _cron(run).get("runs", 0), _claimed(run)
    if len(there) not in (0, 2) or runs != sum(not row["reason"] for row in there):
        problems.append(f"{len(there)} ticks are there, {runs} were counted")
    return problems


def begun_once(run: Run) -> Problems:
    """What was triggered is begun by one look, and counted once, however many look [M9]."""
    (row,) = run.tables["ticks"]
    problems = [] if row["attempt"] <= 1 and row["attempt"] == row["epoch"] else [f"begun twice: {dict(row)}"]
    if _cron(run).get("runs", 0) != row["attempt"]:
        problems.append(f"counted {_cron(run).get('runs', 0)} times: {dict(row)}")
    for side, told in (("A", run.a), ("B", run.b)):
        if (seen := told.rows("load")) and seen[0]["attempt"] not in (None, row["attempt"]):
            problems.append(f"{side} saw {dict(seen[0])}, and {dict(row)} is there")
    return problems


def triggered_each(run: Run) -> Problems:
    """Each that triggers has a tick of its own, which is there, and which somebody begins at most once."""
    told = [rows[0]["seq"] for rows in (run.a.rows("trigger"), run.b.rows("trigger")) if rows]
    there = {row["seq"]: row for row in run.tables["ticks"]}
    problems = [f"told {told}, and {list(there)} are there"] if not set(told) <= set(there) else []
    problems += [f"both were told {told}"] if len(set(told)) < len(told) else []
    return problems + [f"begun twice: {dict(row)}" for row in there.values() if row["attempt"] > 1]


def kept_or_purged(run: Run) -> Problems:
    """A ends a tick while B clears away old ones: what has just ended stays."""
    told, there = run.a.rows("write"), [row for row in run.tables["ticks"] if not row["old"]]
    if not there:
        return ["it was purged"]
    (row,) = there
    if told is not None and (told[0]["told"] == "written") != (row["outcome"] == "ran"):
        return [f"A was told {told[0]['told']!r}, and {dict(row)} is there"]
    return []


def purged_once(run: Run) -> Problems:
    """Two clear away: together they count each tick once."""
    told = [rows[0]["count"] for rows in (run.a.rows("purge"), run.b.rows("purge")) if rows is not None]
    left = len(run.tables["ticks"])
    if sum(told) > 2 - left or (len(told) == 2 and (sum(told) != 2 - left or left)):
        return [f"they were told {told}, and {left} are left"]
    return []


def paused_as_told(run: Run) -> Problems:
    """A pauses, B resumes: whoever was told so has had its way, and a pause that has ended is kept."""
    pause, resume = run.a.rows("pause"), run.b.rows("resume")
    paused, kept = _cron(run).get("paused_at") is not None, len(run.tables["cron_pauses"])
    problems = []
    if resume is not None and resume[0]["told"] != bool(kept):
        problems.append(f"B was told {resume[0]['told']}, and {kept} pauses are kept")
    if pause is not None and pause[0]["told"] and not paused and not kept:
        problems.append("A was told that it paused it, and nothing is left of that")
    if paused and kept and pause is not None and not pause[0]["told"]:
        problems.append("paused by nobody")
    return problems


def _claimed(run: Run) -> Sequence[Any]:
    """What A's claim has written."""
    return [row for row in run.tables["ticks"] if row["kind"] == "scheduled"]


def _cron(run: Run) -> Any:
    return next(iter(run.tables["crons"]), {})


def _facts(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    return sorted((row["kind"], row["at"], row["seq"], row["epoch"], row["attempt"]) for row in rows if row["kind"])
