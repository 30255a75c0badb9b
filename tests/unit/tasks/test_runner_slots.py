"""Which runner takes a job, and how many it can take."""

from __future__ import annotations

from coterie.storage.contracts.jobs import JobHead
from coterie.tasks.dispatcher.slots import ALONE_S, Loads, RunnerSlots
from coterie.tasks.frames import KnownTask, Pool, PoolSlots, Slots

TASKS = {"mail": KnownTask("f1"), "zip": KnownTask("f1", "thread")}


def slots(
    free: int, *, mine: int = 0, threads: int = 9, draining: bool = False, tasks: dict[str, KnownTask] | None = None
) -> Slots:
    known = TASKS if tasks is None else tasks
    return Slots(PoolSlots(free, mine), PoolSlots(threads), PoolSlots(0), is_draining=draining, tasks=known)


def head(id: str, task: str = "mail", *, lost: int = 0, fingerprint: str = "f1") -> JobHead:
    return JobHead(id, "", task, fingerprint, 1.0, lost=lost)


def room(loads: Loads | None = None, **runners: Slots) -> RunnerSlots:
    made = RunnerSlots("me", loads or Loads())
    for runner, each in runners.items():
        made.report(runner, each, 1.0)
    return made


def places(of: RunnerSlots, *heads: JobHead) -> list[str | None]:
    return [of.place(each) for each in heads]


def test_the_runner_with_the_most_room_takes_a_job_and_of_equal_ones_this_one() -> None:
    found = room(a=slots(2), me=slots(2), b=slots(3))
    assert places(found, *map(head, "123456789")) == ["b", "me", "a", "b", "me", "a", "b", None, None]
    found = room(a=slots(1), me=slots(1))
    assert places(found, head("1"), head("2"), head("3")) == ["me", "a", None]


def test_what_is_assigned_and_not_yet_reported_is_counted_once() -> None:
    found = room(me=slots(2))
    assert places(found, head("1"), head("2"), head("3")) == ["me", "me", None]
    found.report("me", slots(1, mine=1), 2.0)  # 2 is on its way
    assert found.place(head("3")) is None
    found.end("1")
    assert found.place(head("3")) == "me"


def test_what_other_seats_have_assigned_since_a_report_is_counted() -> None:
    loads = Loads()
    one, other = room(loads, me=slots(2)), room(loads, me=slots(2))
    assert places(one, head("1"), head("2")) == ["me", "me"]
    assert other.place(head("3")) is None
    one.end("1")
    assert other.place(head("3")) == "me"
    other.report("me", slots(0, mine=1), 2.0)
    assert other.place(head("4")) is None
    one.forget("me")
    assert other.place(head("4")) == "me"


def test_a_job_takes_a_slot_of_its_pool_too() -> None:
    found = room(me=slots(9, threads=1))
    assert places(found, head("1", "zip"), head("2", "zip"), head("3")) == ["me", None, "me"]
    found.end("1")
    assert found.place(head("2", "zip")) == "me"


def test_a_runner_that_drains_or_does_not_know_the_task_gets_nothing() -> None:
    pool: Pool = "loop"
    found = room(a=slots(9, draining=True), b=slots(9, tasks={"other": KnownTask("f1", pool)}))
    assert found.place(head("1")) is None
    assert not found.knows("mail")
    assert found.knows("other")


def test_a_runner_with_the_parameters_of_the_job_is_preferred() -> None:
    found = room(a=slots(9, tasks={"mail": KnownTask("f2")}), b=slots(1))
    assert places(found, head("1"), head("2"), head("3", fingerprint="f2")) == ["b", "a", "a"]


def test_a_pinned_job_is_taken_only_by_a_runner_with_its_parameters() -> None:
    found = room(a=slots(9, tasks={"mail": KnownTask("f2")}), b=slots(0))
    found.pinned["1"] = None
    assert (found.is_picky(head("1")), found.is_picky(head("2"))) == (True, False)
    assert found.can_read(head("1"))
    assert places(found, head("1"), head("2")) == [None, "a"]


def test_a_runner_gets_one_job_of_lost_runners_at_a_time() -> None:
    found = room(a=slots(9), b=slots(9))
    assert places(found, *(head(each, lost=1) for each in "123")) == ["a", "b", None]
    found = room(a=slots(9))
    assert places(found, head("1", lost=1), head("2", lost=1), head("3")) == ["a", None, "a"]
    assert found.next_suspect_s() == ALONE_S
    found.now_s = ALONE_S + 1
    assert found.place(head("2", lost=1)) == "a"
    found.end("2")
    assert found.place(head("4", lost=1)) == "a"


def test_runners_that_are_silent_or_gone() -> None:
    found = room(a=slots(9))
    assert found.silent(["a", "b"], 0.5) == ["b"]
    assert found.silent(["a"], 1.5) == ["a"]
    assert found.keep(["b"]) == ["a"]
    assert "a" not in found
    found.end("1")  # of a runner that is gone
