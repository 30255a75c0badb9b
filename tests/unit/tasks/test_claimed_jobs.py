"""What is claimed, and how a read of it is compared with what happened meanwhile; and who waits for the ends."""

from __future__ import annotations

from coterie.storage.contracts.jobs import JobHead, RunningJob
from coterie.tasks.dispatcher.claims import ClaimedJobs
from coterie.tasks.dispatcher.waiters import JobWaiters
from coterie.tasks.frames import LOOK, NOT_MINE


def head(id: str) -> JobHead:
    return JobHead(id, "acme", "mail", "f1", 1.0)


def row(id: str, claim: int = 1, runner: str | None = "r1") -> RunningJob:
    return RunningJob(id, "queue:mail", "acme", "mail", claim, runner, False)


def claimed(*ids: str) -> ClaimedJobs:
    made = ClaimedJobs()
    for each in ids:
        made.add(head(each), runner="r1", claim=1)
    return made


def ids(of: ClaimedJobs) -> list[str]:
    return sorted(each.id for each in of)


def test_a_claim_ends_once_and_only_by_its_number() -> None:
    found = claimed("1")
    assert found.end("1", 0) is None
    ended = found.end("1", 1)
    assert ended is not None
    assert ended.head == head("1")
    assert found.end("1", 1) is None


def test_a_read_shows_what_is_new_gone_and_moved() -> None:
    found = claimed("1", "2", "3")
    found.begin_reading()
    told = found.compare([row("2"), row("3", 2, "r2"), row("4", runner=None)])
    assert [each.id for each in told.gone] == ["1"]
    assert [(each.id, each.claim, each.runner, each.head) for each in told.moved] == [("3", 2, "r2", head("3"))]
    assert [(each.id, each.runner) for each in told.new] == [("4", "")]
    assert ids(found) == ["2", "3", "4"]


def test_what_was_claimed_since_the_read_began_stays() -> None:
    found = claimed("1")
    found.begin_reading()
    found.add(head("2"), runner="r1", claim=1)
    assert not found.compare([row("1")]).gone
    assert ids(found) == ["1", "2"]


def test_what_was_over_since_the_read_began_does_not_come_back() -> None:
    found = claimed("1", "2")
    found.begin_reading()
    found.end("1", 1)
    found.end("2", 1)
    found.add(head("2"), runner="r1", claim=2)
    assert not found.compare([row("1"), row("2")]).new
    assert [(each.id, each.claim) for each in found] == [("2", 2)]


def test_a_job_that_was_over_and_is_claimed_again_is_found() -> None:
    found = claimed()
    found.begin_reading()
    found.end("1", 1)
    assert [each.id for each in found.compare([row("1", 2)]).new] == ["1"]


def test_waiters_are_answered_once_and_late_ones_at_once() -> None:
    waiters, told = JobWaiters(), list[bytes]()
    waiters.add("1", told.append)
    waiters.end("1", b"reply")
    waiters.end("2", b"two")
    waiters.add("2", told.append)
    waiters.end("3", b"long" * 1_000)
    waiters.add("3", told.append)
    assert told == [b"reply", b"two", LOOK]


def test_waiters_that_have_left_or_cannot_be_told_more() -> None:
    waiters, told, other = JobWaiters(), list[bytes](), list[bytes]()
    waiters.add("1", told.append)
    waiters.add("1", other.append)
    waiters.remove("1", other.append)
    waiters.look("1")
    waiters.add("1", told.append)
    waiters.answer_all(NOT_MINE)
    assert (told, other, len(waiters)) == ([LOOK, NOT_MINE], [], 0)


def test_a_job_that_is_ready_again_is_not_over() -> None:
    waiters, told = JobWaiters(), list[bytes]()
    waiters.end("1", b"reply")
    waiters.reopen("1")
    waiters.add("1", told.append)
    assert not told
