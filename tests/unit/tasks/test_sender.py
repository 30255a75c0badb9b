"""The sender of jobs: what holders and runners are told, when storage is read, and what is tried again."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from coterie import Cluster, MessageDead, MessageExpired, PersistenceError, SendTimeout
from coterie.kernel.random import Random
from coterie.storage.contracts.jobs import JobInsert, JobReceipt, JobRow, RunningJob
from coterie.tasks import sender as module
from coterie.tasks.frames import LOOK, NOT_MINE, JobCancel, JobOver, JobsOver, JobsSent
from coterie.tasks.sender import JobSender

if TYPE_CHECKING:
    from coterie.tasks.task import Job

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
cluster = Cluster("sqlite://")
mails = cluster.queue("mails", partition="tenant")


@cluster.task(queue=mails, priority=3)
async def mail(tenant: str) -> int:
    return len(tenant)


@cluster.task
async def plain(number: int) -> int:
    return number


def row(id: str, *, state: Any = "done", reply: bytes | None = None, **more: Any) -> JobRow:
    given: dict[str, Any] = {
        "seat": "queue:mails",
        "part": "",
        "task": "mail",
        "fingerprint": "",
        "key": None,
        "priority": 0,
        "sent_at": NOW,
        "due_at": NOW,
        "claimed_at": None,
        "claim": 1,
        "runner": None,
        "ran_by": None,
        "failures": 0,
        "lost": 0,
        "cancelling": False,
        "errors": (),
        "payload": b"",
        "tags": {},
        "progress": None,
        "ended_at": None if state in ("ready", "claimed") else NOW,
        "trace_id": None,
    }
    return JobRow(id=id, state=state, reply=reply, **given | more)


class FakeJobs:
    """Stores nothing: what is asked for is told as scripted."""

    def __init__(self) -> None:
        self.inserted: list[JobInsert] = []
        self.problems: list[PersistenceError] = []
        self.rows: list[JobRow | None] = []
        self.looks = 0
        self.cancelled: Any = ("over", None)

    async def insert(self, write: JobInsert) -> tuple[JobReceipt, ...]:
        self.inserted.append(write)
        if self.problems:
            raise self.problems.pop(0)
        return tuple(
            JobReceipt(each.id, True, "later" if each.delay_s else "ready", NOW + each.delay_s * SECOND, 7.0, NOW)
            for each in write.jobs
        )

    async def look(self, ids: list[str]) -> list[JobRow]:
        self.looks += 1
        found = self.rows.pop(0) if len(self.rows) > 1 else self.rows[0] if self.rows else None
        return [] if found is None else [row_of(found, ids[0])]

    async def cancel(self, id: str, *, reply: bytes) -> Any:
        return self.cancelled


def row_of(found: JobRow, id: str) -> JobRow:
    return replace(found, id=id)


class FakeExchange:
    """Notes what is told; answers as scripted."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.answers: list[bytes] = []
        self.asked = 0

    def tell(self, seat: str, frame: Any) -> None:
        self.told.append((seat, frame))

    def tell_runner(self, runner: str, frame: Any) -> None:
        self.told.append((runner, frame))

    async def ask_holder(self, seat: str, question: Any, *, within_s: float) -> bytes:
        self.asked += 1
        if self.answers:
            return self.answers.pop(0)
        await asyncio.sleep(within_s)
        return LOOK


class Bench:
    """A sender between a fake storage and a fake exchange."""

    def __init__(self) -> None:
        self.jobs, self.exchange = FakeJobs(), FakeExchange()
        here = SimpleNamespace(settings=cluster.settings, commits=SimpleNamespace(is_open=lambda _: False))
        calling: Any = SimpleNamespace(
            here=here,
            clock=SimpleNamespace(wall_ns=lambda: int(NOW.timestamp() * 1e9)),
            chance=Random(1),
            host=None,
            time=asyncio.get_running_loop().time,
            within_s=lambda declared_s: 10.0 if declared_s is None else declared_s,
        )
        self.sender = JobSender(calling, SimpleNamespace(jobs=self.jobs), self.exchange)  # type: ignore[arg-type]


def taken(job: Job[Any], timeout_s: float | None = None) -> Job[Any]:
    job.mark_sent()
    job.timeout_s = timeout_s
    return job


pytestmark = pytest.mark.simulated(seeds=1)


async def test_the_holder_of_the_seat_is_told_what_is_ready() -> None:
    bench = Bench()
    sent = await bench.sender.send(taken(mail.job("acme")))
    ((seat, frame),) = bench.exchange.told
    assert seat == frame.seat == "queue:mails"
    (head,) = frame.heads
    assert (head.id, head.part, head.task, head.rank_s, head.priority) == (sent, "acme", "mail", 7.0, 3)
    assert frame.due_in_s is None


async def test_the_holder_is_told_when_the_first_of_the_others_is_due() -> None:
    bench = Bench()
    await bench.sender.send(taken(mail.job("acme")), delay_s=5.0)
    assert bench.exchange.told == [("queue:mails", JobsSent("queue:mails", (), 5.0))]


async def test_many_are_told_once_for_each_seat() -> None:
    bench = Bench()
    await bench.sender.send_many([taken(plain.job(number)) for number in range(100)])
    seats = [seat for seat, _ in bench.exchange.told]
    assert len(seats) == len(set(seats)) == 8
    assert sum(len(frame.heads) for _, frame in bench.exchange.told) == 100
    assert len(bench.jobs.inserted) == 1


async def test_large_jobs_share_no_huge_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COMMIT_MOST_BYTES", 2_000)
    bench = Bench()
    await bench.sender.send_many([taken(mail.job("x" * 900)) for _ in range(5)])
    assert [len(each.jobs) for each in bench.jobs.inserted] == [2, 2, 1]


async def test_the_holders_answer_is_the_result_and_storage_is_not_read() -> None:
    bench = Bench()
    bench.exchange.answers = [mail.type.encode_reply(4)]
    assert await bench.sender.call(taken(mail.job("acme"))) == 4
    assert bench.jobs.looks == 0


async def test_who_is_not_told_looks_in_storage() -> None:
    bench = Bench()
    bench.exchange.answers = [LOOK]
    bench.jobs.rows = [row("", reply=mail.type.encode_reply(4))]
    assert await bench.sender.call(taken(mail.job("acme"))) == 4
    assert (bench.exchange.asked, bench.jobs.looks) == (1, 1)


async def test_without_a_holder_storage_is_read_now_and_then() -> None:
    bench = Bench()
    bench.exchange.answers = [NOT_MINE] * 5
    waits = row("", state="ready")
    bench.jobs.rows = [waits, waits, waits, row("", reply=mail.type.encode_reply(4))]
    began = asyncio.get_running_loop().time()
    assert await bench.sender.call(taken(mail.job("acme"))) == 4
    assert asyncio.get_running_loop().time() - began == pytest.approx(0.02 + 0.04 + 0.08, abs=0.01)


async def test_a_silent_holder_is_asked_again_after_storage_was_read() -> None:
    bench = Bench()
    bench.jobs.rows = [row("", state="claimed")]
    with pytest.raises(SendTimeout, match="task 'mail'"):
        await bench.sender.call(taken(mail.job("acme"), timeout_s=5.0))
    assert bench.exchange.asked == 4, "for 0.5, 1, 2 and 1.5 s"


async def test_an_insert_whose_outcome_is_unknown_is_repeated_under_the_same_id() -> None:
    bench = Bench()
    bench.jobs.problems = [
        PersistenceError(doing="store", problem="the connection broke", outcome="unknown"),
        PersistenceError(doing="store", problem="no connection", outcome="unreachable"),
    ]
    sent = await bench.sender.send(taken(mail.job("acme")))
    assert [write.jobs[0].id for write in bench.jobs.inserted] == [sent] * 3
    bench.jobs.problems = [PersistenceError(doing="store", problem="disk full", outcome="refused")]
    with pytest.raises(PersistenceError, match="disk full"):
        await bench.sender.send(taken(mail.job("acme")))


async def test_a_cancelled_job_that_waited_is_told_to_its_holder() -> None:
    bench = Bench()
    bench.jobs.rows, bench.jobs.cancelled = [row("", state="ready")], ("cancelled", None)
    assert await bench.sender.cancel("j1")
    ((seat, frame),) = bench.exchange.told
    assert seat == "queue:mails"
    assert isinstance(frame, JobsOver)
    (over,) = frame.jobs
    assert (over.id, over.claim, over.outcome) == ("j1", 0, "ended")
    assert isinstance(over, JobOver)


async def test_a_cancelled_job_that_runs_is_told_to_its_runner() -> None:
    bench = Bench()
    bench.jobs.rows = [row("", state="claimed")]
    running = RunningJob("j1", "queue:mails", "", "mail", 5, "r1", True)
    bench.jobs.cancelled = ("cancelling", running)
    assert await bench.sender.cancel("j1")
    assert bench.exchange.told == [("r1", JobCancel("j1", 5))]
    bench.jobs.cancelled = ("over", None)
    assert not await bench.sender.cancel("j1")
    bench.jobs.rows = [row("")]
    assert not await bench.sender.cancel("j1")
    assert len(bench.exchange.told) == 1


async def test_what_is_dead_or_gone_is_said() -> None:
    bench = Bench()
    bench.jobs.rows = [row("", state="dead", failures=2, lost=1)]
    with pytest.raises(MessageDead, match="dead after 3 attempts"):
        await bench.sender.result("j1", within_s=1.0, type_of=lambda _: mail.type)
    bench.jobs.rows = []
    with pytest.raises(MessageExpired):
        await bench.sender.result("j1", within_s=1.0, type_of=lambda _: mail.type)
