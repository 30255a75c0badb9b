"""All transactions that touch jobs and queues, for the pairs that are judged by their serial orders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from coterie.storage.contracts.jobs import JobInsert, JobSetback
from coterie.storage.contracts.messages import Commit
from coterie.storage.interface import Claim
from coterie.storage.postgres.batch import jobs as job_batch
from coterie.storage.postgres.batch import plan, single
from tests.interleavings import stored_jobs
from tests.interleavings.stored_jobs import CANCELLED, CLAIMED, SENDING, ended, job, new_job, queue
from tests.support.interleaving import atomic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coterie.storage.interface import Write
    from tests.interleavings.steps import Steps
    from tests.support.interleaving import Step

    Parts = Mapping[str, tuple[Step, ...]]

READY_JOB = queue(concurrency=2) + job("j1")
CLAIMED_JOB = job("j1", state=CLAIMED)
SENT = ended("a", 1, job="j1", **SENDING)


def sending(commit: Commit) -> Commit:
    """The same commit of a handler, which sends a job as well."""
    return replace(commit, jobs=(new_job("n5", key="x"),))


def all_parts(s: Steps) -> dict[str, tuple[Step, ...]]:
    """All of them, on the job j1, which is claimed for c if it is claimed."""
    evict = s.evicting("c", by="lock_still_lease")
    sends = {"handler sends job": _folded(s, Commit(Claim("a", "s1", 1), jobs=(new_job("n5", key="x"),)))}
    return {**holders_parts(s, runner="c"), **runners_parts(s, "c", "j1"), **people_parts(s), **sends, "evict": evict}


def held_parts(s: Steps) -> Parts:
    """Those that are fenced: by the seat s1, or by the runner a."""
    return {**holders_parts(s, runner="b"), **runners_parts(s, "a", "j2")}


def claimed_job(id: str) -> str:
    """A job that is claimed for a."""
    return job(id, state=CLAIMED)


def holders_parts(s: Steps, *, runner: str) -> Parts:
    """What the holder of s1 does."""
    mine = ("a", "s1", 1)
    return {
        "claim job": atomic(stored_jobs.claim(s, "j1", runner=runner)),
        "define queue": atomic(stored_jobs.define(s)),
        "mature jobs": _one(s, "mature_jobs", *mine, 10),
        "take jobs back": _one(s, "take_back_jobs", *mine, 0.0, 3, 10),
        "park jobs": _one(s, "park_jobs", *mine, ["t"], 10),
        "unpark jobs": _one(s, "unpark_jobs", *mine, ["t"], 10),
    }


def runners_parts(s: Steps, me: str, id: str) -> Parts:
    """What a runner does with the first claim of a job."""
    lone = ended(me, 1, job=id)
    return {
        "end job": _folded(s, lone),
        "lone end of a job": _one(s, "end_job", *single.values("end_job", lone)),
        "end job and send": _folded(s, ended(me, 1, job=id, jobs=(new_job("n3", key="x"),))),
        "set job back": _folded(s, JobSetback(me, id, 1, 0.0, "boom", CANCELLED)),
        "set job aside": _folded(s, JobSetback(me, id, 1, None, "boom", CANCELLED)),
        "give job back": _one(s, "give_jobs_back", me, [id], [1], False),
        "progress": _one(s, "note_progress", me, id, 1, 1.0, None, None),
    }


def people_parts(s: Steps) -> Parts:
    """What senders, operators and the pruner do."""
    nothing: tuple[Any, ...] = (None, None, None)
    return {
        "insert job": _folded(s, JobInsert((new_job("n1", key="x"),))),
        "insert job via": _one(s, "insert_jobs_via", *job_batch.insertion((new_job("n2", key="x"),))[:-1], None),
        "cancel job": _one(s, "cancel_job", "j1", CANCELLED),
        "revive job": _one(s, "revive_jobs", 10, "j1", *nothing, None, None),
        "remove jobs": _one(s, "remove_jobs", 10, *nothing, 60.0),
        "remove tagged": _one(s, "remove_tagged_jobs", 10, *nothing, 60.0, "name", "value"),
        "purge jobs": _one(s, "purge_jobs", "", 10, 60.0, 60.0),
        "set limits": _one(s, "set_limits", "s1", True, 1, None, None, None),
        "pause queue": _one(s, "pause_queue", "s1", True),
        "pause task": _one(s, "store_pause", "task", "t"),
        "resume task": _one(s, "remove_pause", "task", "t"),
        "renew stamps": _one(s, "renew_stamps"),
    }


def _one(s: Steps, name: str, *values: Any) -> tuple[Step, ...]:
    return atomic(s.step(name, *values))


def _folded(s: Steps, write: Write) -> tuple[Step, ...]:
    shape = plan.shape_of(write)
    return _one(s, shape, *plan.values(plan.Bucket(shape, [0]), [write]))
