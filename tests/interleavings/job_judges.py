"""What must hold of jobs and queues after a run, whoever played: sentences about what does not."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.support.interleaving import Run

Problems = list[str]
CLAIMED, DONE, DEAD, IS_CANCELLED = 2, 4, 5, 6


def kept(run: Run) -> Sequence[str]:
    """Limits hold, no job is lost or ended twice, and all were told the truth (T1, T2, T6, T9)."""
    jobs = {row["id"]: row for row in run.tables["jobs"]}
    return [*_whole(run, jobs), *_limits(run, jobs), *_claims(run, jobs), *_ends(run, jobs), *_cancelled(run, jobs),
            *_keys(run, jobs), *_gone(run, jobs)]  # fmt: skip


def _whole(run: Run, jobs: Mapping[str, Any]) -> Problems:
    """Each job is in one state, with what belongs to it."""
    runners = {row["id"] for row in run.tables["runners"]}
    problems = []
    for row in jobs.values():
        if row["runner"] is not None and row["runner"] not in runners:
            problems.append(f"{row['id']} is claimed for {row['runner']}, who is no runner")
        if (row["state"] == CLAIMED) != (row["runner"] is not None or row["is_lost"]):
            problems.append(f"{row['id']} is in parts: {dict(row)}")
        if (row["state"] >= DONE) != row["is_over"]:
            problems.append(f"{row['id']} is over or not: {dict(row)}")
    begun = set(re.findall(r"'(j\d)'", run.pair.given))
    deleting = {"purge", "remove"} & _steps(run)
    problems += [f"{job} is lost" for job in begun - jobs.keys() if not deleting]
    return problems


def _limits(run: Run, jobs: Mapping[str, Any]) -> Problems:
    """Never more run than the queue allows, and each claim has cost a token."""
    (queue,) = run.tables["queues"]
    running = [row for row in jobs.values() if row["state"] == CLAIMED]
    parts = Counter(row["part"] for row in running)
    problems = []
    most = queue["concurrency"]
    if "limits" in _steps(run):
        most = 2 if "claim a" in _steps(run) else None  # what was in force when they were claimed
    if most is not None and len(running) > most:
        problems.append(f"too many run: {len(running)} of {most}")
    if queue["partition_concurrency"] is not None and any(n > queue["partition_concurrency"] for n in parts.values()):
        problems.append(f"too many run of a partition: {dict(parts)} of {queue['partition_concurrency']}")
    if queue["rate"] is not None:
        spent = sum(row["claim"] for row in jobs.values())
        if queue["tokens"] < 0 or round(queue["tokens"], 3) != 1 - spent:
            problems.append(f"tokens: {queue['tokens']} are left of 1, and {spent} were spent")
    return problems


def _claims(run: Run, jobs: Mapping[str, Any]) -> Problems:
    """Who was told that a job is claimed for a runner has the claim; each number is given once; none after a pause."""
    told = [row for _, row in _told(run, "claim") if row["id"] is not None]
    problems = [
        f"claim {key} was given twice" for key, n in Counter((r["id"], r["claim"]) for r in told).items() if n > 1
    ]
    problems += [f"told of {dict(row)}, and {dict(jobs[row['id']])} is there" for row in told
                 if jobs[row["id"]]["claim"] < row["claim"]]  # fmt: skip
    if "look" in run.b.committed and (run.b.rows("pause") or run.b.rows("grant")):
        seen = {(row["id"], row["claim"]) for row in run.b.reads["look"]}
        there = {(row["id"], row["claim"]) for row in jobs.values() if row["state"] == CLAIMED}
        problems += [f"{name} was claimed unseen, at a time when that was over" for name, _ in there - seen]
    return problems


def _ends(run: Run, jobs: Mapping[str, Any]) -> Problems:
    """Who was told that an end or a setback is written finds it; all of it, or nothing."""
    row = jobs.get("j1")
    problems = []
    for step, told in _told(run, "end "):
        is_there = row is not None and row["state"] == DONE and row["reply"] == step[4:].encode()
        if told["outcome"] == "written" and not is_there:
            problems.append(f"{step} was told 'written', and it is not so")
        if is_there and row is not None and row["claim"] != int(step[-1]):
            problems.append(f"{step} has ended what was claimed again since: {dict(row)}")
        if told["outcome"] == "cancelled" and (row is None or row["state"] != IS_CANCELLED):
            problems.append(f"{step} was told 'cancelled', and it is not so")
    for step, told in _told(run, "set back"):
        if told["outcome"] == "written" and row is not None and (row["failures"], row["put_back"]) != (1, 1):
            problems.append(f"{step} was told 'written', and it is not so")
    if "end and send" in (run.pair.a.name, run.pair.b.name):
        sent = {"n3" in jobs, bool(run.tables["messages"])}
        is_done = row is not None and row["state"] == DONE and row["reply"] == b"a 1"
        other = run.pair.b.name == "end first"  # the same end, without what it sends
        if len(sent) > 1 or (sent != {is_done} and not other):
            problems.append(f"an end in parts: done {is_done}, sent {sent}")
    return problems


def _cancelled(run: Run, jobs: Mapping[str, Any]) -> Problems:
    """What is cancelled, or is about to be, has no other end."""
    problems = []
    for _, told in _told(run, "cancel"):
        row = jobs["j1"]
        if told["outcome"] == "cancelled" and row["state"] != IS_CANCELLED:
            problems.append(f"told that it is cancelled, and {dict(row)} is there")
        if told["outcome"] == "cancelling" and not (
            row["state"] == IS_CANCELLED or (row["state"] == CLAIMED and row["cancelling"])
        ):
            problems.append(f"told that nothing of it will commit, and {dict(row)} is there")
        if told["outcome"] == "over" and row["state"] < DONE:
            problems.append(f"told that it is over, and {dict(row)} is there")
    return problems


def _keys(run: Run, jobs: Mapping[str, Any]) -> Problems:
    """All that bring one key are told of one job, which is there unless it was purged since [M4]."""
    there = [row["id"] for row in jobs.values() if row["key"] == "x"]
    problems = [f"the key is there {len(there)} times: {there}"] if len(there) > 1 else []
    for _, read in _told(run, "read"):
        if [read["id"]] != there and not ("purge" in _steps(run) and read["id"] == "j1"):
            problems.append(f"told of {read['id']}, and {there} is there")
    tagged = {row["job"] for row in run.tables["job_tags"]}
    stored = {job for job in jobs if job.startswith("n")}
    return problems if tagged == stored else [*problems, f"tags of {tagged}, and {stored} are there"]


def _gone(run: Run, jobs: Mapping[str, Any]) -> Problems:
    """Who deletes or revives counts what it has changed."""
    problems = []
    counts = [row for step in ("purge", "remove") for _, row in _told(run, step)]
    if sum(row.get("gone", row.get("count", 0)) for row in counts) > 1:
        problems.append(f"deleted twice: {counts}")
    for _, row in _told(run, "revive"):
        if row["count"] and ("j1" not in jobs or jobs["j1"]["claim"] < 1):
            problems.append(f"it was revived, and {jobs} is there")
    if "revive" in _steps(run):
        problems += [f"claim {row['claim']} was given again" for _, row in _told(run, "claim") if row["claim"] == 1]
    return problems


def _told(run: Run, step: str) -> Iterator[tuple[str, Any]]:
    """The rows of committed steps whose names begin so."""
    for side in (run.a, run.b):
        for name in side.committed:
            if name.startswith(step):
                yield from ((name, row) for row in side.reads[name])


def _steps(run: Run) -> set[str]:
    return {step.name for script in (run.pair.a, run.pair.b) for step in script.steps}
