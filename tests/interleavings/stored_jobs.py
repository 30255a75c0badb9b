"""Pairs of jobs: what claims, ends, sets back, gives back, cancels and takes back, against all that takes it away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.storage.contracts.jobs import JobEnd, JobInsert, JobSetback, NewJob
from coterie.storage.contracts.messages import Message
from coterie.storage.postgres.batch import jobs as job_batch
from coterie.storage.postgres.batch import plan, single
from tests.interleavings import job_judges as judges
from tests.interleavings.database import CLUSTER, given
from tests.support.interleaving import Pair, Script, Step, atomic
from tests.support.interleaving.scripts import restart_if_none

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.interface import Write
    from tests.interleavings.steps import Steps
    from tests.support.interleaving.scripts import Reads

OVERTAKEN = frozenset({"40001"})
"""A statement that somebody was faster than comes to nothing, and is run again [M3]."""
LATER, READY, CLAIMED, PARKED, DONE, DEAD = 0, 1, 2, 3, 4, 5
CANCELLED = b"cancelled"
OFTEN = {
    "job: claim x claim another, limit of the queue",
    "job: claim x claim another, limit of a partition",
    "job: claim x claim another, rate",
    "job: claim x release and claim, limit",
    "job: claim x release, grant and look, seat",
    "job: claim for c x evict the runner, target",
    "job: claim x pause and look",
    "job: claim x pause a task and look",
    "job: claim x define, definition",
    "job: end x cancel",
    "job: end and send x cancel",
    "job: end x give back and claim",
    "job: end x revive and claim",
    "job: set back x evict, take back, claim",
    "job: cancel x take back",
    "job: evict x take back",
}
"""The pairs of every change."""


def job(
    id: str, *, state: int = READY, part: str = "p", runner: str | None = None, lost: bool = False, key: str = ""
) -> str:
    """A job at s1; one that is claimed is so for the first time."""
    is_claimed = state == CLAIMED
    columns = {
        "id": f"'{id}'",
        "part": f"'{part}'",
        "key": f"nullif('{key}', '')",
        "runner": "null" if lost or not is_claimed else f"'{runner or 'a'}'",
        "ran_by": f"'{runner or 'a'}'" if state not in (LATER, READY, PARKED) else "null",
        "lost_at": "now() - interval '1 day'" if lost else "null",
        "ended_at": "now() - interval '1 day'" if state >= DONE else "null",
        "claim": "1" if state not in (LATER, READY, PARKED) else "0",
        "state": str(state),
    }
    return (
        f";insert into coterie.jobs (cluster, seat, task, fingerprint, priority, digest, payload, sent_at, due_at,"
        f" rank_at, {', '.join(columns)}) values ('{CLUSTER}', 's1', 't', '', 0, '', 'p', now() - interval '1 day',"
        f" now() - interval '1 day', now() - interval '1 day', {', '.join(columns.values())})"
    )


def queue(**limits: Any) -> str:
    """The queue of s1, with stamp 1. A bucket begins with its tokens, and gains next to nothing."""
    limits = {"concurrency": None, "partition_concurrency": None, "rate": None, "burst": None, **limits}
    values = ", ".join("null" if value is None else str(value) for value in limits.values())
    tokens = "null" if limits["rate"] is None else str(limits["burst"])
    return (
        f';insert into coterie.queues (cluster, seat, "group", fingerprint, age_s, takeover_delay_s, stamp, tokens,'
        f" refilled_at, {', '.join(limits)}, {', '.join(f'defined_{name}' for name in limits)})"
        f" values ('{CLUSTER}', 's1', 'default', 'f', 3600, 0, 1, {tokens}, now(), {values}, {values})"
    )


def rows(*jobs: str, left_s: float = 6, holder: str | None = "a", limits: dict[str, Any] | None = None) -> str:
    """Runners a, which may have expired, b and c; the seat s1; its queue and jobs."""
    begin = given(runners={"a": left_s, "b": 6, "c": 6}, seats={"s1": holder})
    return begin + queue(**(limits or {})) + "".join(jobs)


def stored_jobs(s: Steps) -> list[Pair]:
    """The pairs, over the right statements or some with a planted bug."""
    return [*_claims(s), *_against_evictions(s), *_against_each_other(s), *_stored_and_gone(s)]


def _claims(s: Steps) -> list[Pair]:
    """Claims against claims, and against all that takes the right to claim away (T2, T9)."""
    one, other = claiming(s, "j1"), claiming(s, "j2", name="claim another")
    both = claiming(s, "j1", "j2", name="claim two")
    released = Script("release and claim", (s.release("a", "s1"), *_taking(s), claim(s, "j2", me="b")))
    evicted = Script("evict and claim", (*s.evicting("a"), *_taking(s), claim(s, "j2", me="b")))
    evicts_target = Script("evict the runner", s.evicting("c"))
    pause = Script("pause and look", (*atomic(s.step("pause_queue", "s1", True, step="pause")), LOOK))
    stored, renewed = s.step("store_pause", "task", "t", step="store"), s.step("renew_stamps", step="pause")
    task = Script("pause a task and look", (*atomic(stored), *atomic(renewed), LOOK))
    granted = Script("release, grant and look", (s.release("a", "s1"), *_taking(s), LOOK))
    fewer = Script("allow fewer", atomic(s.step("set_limits", "s1", True, 1, None, None, None, step="limits")))
    defined = Script("define", atomic(define(s)))
    cancel = Script("cancel", atomic(cancelling(s, "j1")))
    ready = job("j1"), job("j2")
    for_c = claiming(s, "j1", runner="c", name="claim for c")
    dying = rows(*ready).replace(
        "'c', clock_timestamp() + make_interval(secs => 6)", "'c', clock_timestamp() - interval '1 s'"
    )
    assert "interval '1 s'" in dying
    running = job("j1", state=CLAIMED), job("j2"), job("j3")
    return [
        _pair(rows(*ready, limits={"concurrency": 1}), one, other, "limit of the queue"),
        _pair(rows(*ready, limits={"partition_concurrency": 1}), one, other, "limit of a partition"),
        _pair(rows(*ready, limits={"rate": 1e-9, "burst": 1}), one, other, "rate"),
        _pair(rows(*ready, limits={"concurrency": 1}), one, released, "limit"),
        _pair(rows(*ready, limits={"rate": 1e-9, "burst": 1}), one, released, "rate"),
        _pair(rows(*ready, limits={"concurrency": 1}, left_s=-1), one, evicted, "limit"),
        _pair(rows(*ready), one, granted, "seat"),
        _pair(rows(*ready), one, one, "same job"),
        _pair(dying, for_c, evicts_target, "target"),
        _pair(rows(*ready), one, pause),
        _pair(rows(*ready), one, task),
        _pair(rows(*ready, limits={"concurrency": 2}), both, fewer, "limits"),
        _pair(rows(*ready, limits={"rate": 1e-9, "burst": 1}), one, defined, "definition"),
        _pair(rows(*ready), one, cancel, "cancelled"),
        _pair(rows(*running, limits={"concurrency": 1}), _end(s), other, "a slot"),
        _pair(rows(*running, limits={"concurrency": 1}), Script("give back", atomic(give_back(s))), other, "a slot"),
    ]


def _against_evictions(s: Steps) -> list[Pair]:
    """What a runner writes of its job, against its eviction and all that follows (T1)."""
    follows = (*s.evicting("a"), *atomic(take_back(s)), *atomic(claim(s, "j1", me="b", runner="b")))
    evicted = Script("evict, take back, claim", follows)
    ends = Script("evict, take back, claim, end", (*follows, *atomic(end(s, "b", 2))))
    begin = rows(job("j1", state=CLAIMED), left_s=-1, holder="b")
    lost = rows(job("j1", state=CLAIMED, lost=True), left_s=-1, holder="b")
    back = Script("take back", atomic(take_back(s)))
    writers = (_end(s), _lone_end(s), _commit(s), _set_back(s), Script("give back", atomic(give_back(s))))
    return [
        *(_pair(begin, each, evicted) for each in writers),
        _pair(begin, _end(s), ends),
        _pair(begin, _lone_end(s), ends),
        _pair(begin, Script("evict", s.evicting("a")), back),
        _pair(lost, Script("take back too", back.steps), back),
        _pair(lost, Script("cancel", atomic(cancelling(s, "j1"))), back),
    ]


def _against_each_other(s: Steps) -> list[Pair]:
    """Two that want the same claimed job (T6)."""
    begin = rows(job("j1", state=CLAIMED, key="x"))
    cancel = Script("cancel", atomic(cancelling(s, "j1")))
    again = Script("give back and claim", (*atomic(give_back(s)), *atomic(claim(s, "j1"))))
    retried = Script("set back and claim", (*atomic(set_back(s)), *atomic(claim(s, "j1"))))
    first = Script("end first", atomic(end(s, "a", 1)))
    return [
        _pair(begin, _end(s), cancel),
        _pair(begin, _lone_end(s), cancel),
        _pair(begin, _commit(s), cancel),
        _pair(begin, _set_back(s), cancel),
        _pair(begin, Script("give back", atomic(give_back(s))), cancel),
        _pair(begin, _end(s), again),
        _pair(begin, _lone_end(s), again),
        _pair(begin, _end(s), retried),
        _pair(begin, _end(s), first),
        _pair(begin, _lone_end(s), first),
        _pair(begin, _commit(s), first),
        _pair(begin, Script("progress", atomic(progress(s))), first),
    ]


def _stored_and_gone(s: Steps) -> list[Pair]:
    """Keys are there once [M4]; what is purged is purged once, and what is revived goes on with its claims."""
    one, other = _inserting(s, "n1"), _inserting(s, "n2")
    again = _inserting(s, "n1", name="insert again")
    purge = Script("purge", atomic(s.step("purge_jobs", "", 10, 60.0, 60.0, step="purge")))
    dead = rows(job("j1", state=DEAD))
    revive = Script("revive", atomic(s.step("revive_jobs", 10, None, None, None, None, None, None, step="revive")))
    goes_on = Script("revive and claim", (*revive.steps, *atomic(claim(s, "j1"))))
    remove = Script("remove", atomic(s.step("remove_jobs", 10, 5, None, None, None, step="remove")))
    return [
        _pair(rows(), one, other),
        _pair(rows(), one, again),
        _pair(rows(job("j1", state=CLAIMED)), _commit(s), one, "key"),
        _pair(rows(job("j1", state=DONE, key="x")), one, purge),
        _pair(dead, revive, remove),
        _pair(dead, _end(s), goes_on),
        _pair(rows(job("j1", state=DONE)), purge, Script("purge too", purge.steps)),
    ]


# The statements

LOOK = Step("look", "select id, claim from coterie.jobs where cluster = $1 and state = 2", (CLUSTER,))


def claim(s: Steps, *jobs: str, me: str = "a", runner: str = "", stamp: int = 1) -> Step:
    """Claim jobs for a runner, as the holder of s1."""

    def values(reads: Reads) -> Sequence[Any]:
        epoch = reads["grant"][0]["epoch"] if reads.get("grant") else 1
        return (CLUSTER, me, "s1", epoch, stamp, list(jobs), [runner or me] * len(jobs))

    return Step(f"claim {me}", s.sql["claim_jobs"], values)


def claiming(s: Steps, *jobs: str, runner: str = "", name: str = "claim") -> Script:
    """The same as a script."""
    return Script(name, atomic(claim(s, *jobs, runner=runner)))


def define(s: Steps) -> Step:
    """Define the queue anew."""
    given = "default", "g", 3600.0, 0.0, None, None, None, 1e-9, 1.0
    return s.step("define_queue", "a", "s1", 1, True, *given, step="define")


def take_back(s: Steps) -> Step:
    """Take back what is lost, as b, which holds s1."""
    return s.step("take_back_jobs", "b", "s1", 1, 0.0, 3, 10, step="take back")


def cancelling(s: Steps, id: str) -> Step:
    """Cancel a job."""
    return s.step("cancel_job", id, CANCELLED, step="cancel")


def give_back(s: Steps) -> Step:
    """Give j1 back, as a."""
    return s.step("give_jobs_back", "a", ["j1"], [1], False, step="give back")


def progress(s: Steps) -> Step:
    """Note the progress of j1, as a."""
    return s.step("note_progress", "a", "j1", 1, 1.0, 2.0, "note", step="progress")


def ended(me: str, claim: int, *, job: str = "j1", **more: Any) -> JobEnd:
    """The end of a job; its reply says by whom."""
    return JobEnd(me, job, claim, f"{me} {claim}".encode(), cancelled_reply=CANCELLED, **more)


def new_job(id: str, *, key: str | None = None) -> NewJob:
    """A job at s1."""
    return NewJob(id=id, seat="s1", part="p", task="t", payload=b"p", key=key, tags=(("name", "value"),))


SENDING: dict[str, Any] = {
    "sends": (Message(id="m9", seat="s1", entity_type="E", entity_id="e", method="m", payload=b"p"),),
    "jobs": (new_job("n3", key="x"),),
}


def end(s: Steps, me: str, claim: int, **more: Any) -> Step:
    """End j1, as a member of a group."""
    return _folded(s, ended(me, claim, **more), step=f"end {me} {claim}")


def set_back(s: Steps, *, again_s: float | None = 0.0) -> Step:
    """Set j1 back, as a."""
    return _folded(s, JobSetback("a", "j1", 1, again_s, "boom", CANCELLED), step="set back a 1")


def _folded(s: Steps, write: Write, *, step: str) -> Step:
    """The statement and values that the engine itself makes of a write that is not alone."""
    bucket = plan.Bucket(plan.shape_of(write), [0])
    return s.step(bucket.shape, *plan.values(bucket, [write]), step=step)


def _end(s: Steps) -> Script:
    return Script("end", atomic(end(s, "a", 1)))


def _commit(s: Steps) -> Script:
    return Script("end and send", atomic(end(s, "a", 1, **SENDING)))


def _set_back(s: Steps) -> Script:
    return Script("set back", atomic(set_back(s)))


def _lone_end(s: Steps) -> Script:
    """The end of a job that is alone; unless it is ended, why not. Each in a transaction of its own."""
    write = ended("a", 1)
    long = plan.values(plan.Bucket("end_jobs", [0]), [write])

    def sql(reads: Reads) -> str:
        return "select 'written' as outcome" if reads["end"] else s.sql["end_jobs"]

    told = Step("end a 1", sql, lambda reads: () if reads["end"] else (CLUSTER, *long))
    lone = s.step("end_job", *single.values("end_job", write), step="end")
    return Script("lone end", (*atomic(lone), *atomic(told)))


def _taking(s: Steps) -> tuple[Step, ...]:
    return (s.grant("b", "s1"),)


def _inserting(s: Steps, id: str, *, name: str = "") -> Script:
    """Store it, see what is there; if what was in the way is gone by then, store it after all."""
    sent = JobInsert((new_job(id, key="x"),))
    insert = s.step("insert_jobs", *job_batch.values("insert_jobs", [sent]), step="insert")
    read = s.step("read_back_jobs", *job_batch.sought(sent.jobs), step="read", then=restart_if_none)
    return Script(name or f"insert {id}", (*atomic(insert), read))


def _pair(begin: str, a: Script, b: Script, about: str = "") -> Pair:
    tried = [Script(script.name, script.steps, tries=3) for script in (a, b)]
    name = f"job: {a.name} x {b.name}" + (f", {about}" if about else "")
    return Pair(name, begin, tried[0], tried[1], judges.kept, allows=OVERTAKEN)
