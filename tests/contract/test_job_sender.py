"""Jobs from `cluster.send` to their results, and `cluster.jobs` and `cluster.queues`, on every engine.

Nothing runs jobs here: a seat is held by hand, and what is claimed is ended by hand.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie import (
    Cluster,
    ConfigurationError,
    Discarded,
    Entity,
    InvalidArgument,
    KeyConflict,
    MalformedMessage,
    MessageCancelled,
    MessageDead,
    MessageExpired,
    MessageId,
    RemoteError,
    Retry,
    SendTimeout,
    rpc,
)
from coterie.entities.calls.wire import FAILED, pack_discarded
from coterie.storage.contracts.jobs import JobClaim, JobInsert, JobProgress, NewJob
from coterie.storage.interface import Registration, SeatDeclaration
from tests.contract.jobs import A, Desk, end, setback, take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from coterie.storage.contracts.jobs import JobDelivery
    from coterie.tasks.task import Task

SEAT = "queue:mails"
FAR = "2m"


class Bounced(Exception): ...


class Office(Entity[None]):
    """Sends jobs from its handlers."""

    @rpc
    async def post(self, mail: str, how: str = "") -> str:
        sent = await self.cluster.send(program.mail.job("acme", mail), delay="1h", tags={"by": self.id})
        again = await self.cluster.send(program.mail.job("acme", mail), delay="1h")
        assert sent == again
        if how == "cancel":
            assert await self.cluster.cancel(sent)
        if how == "await":
            await self.cluster.result(sent)
        if how == "raise":
            raise ValueError("after the send")
        return sent

    @rpc(persisted=True, retry=Retry(2, base="1ms"))
    async def wait(self) -> str:
        try:
            return await self.cluster.call(program.nowhere.job(), timeout="100ms")
        except SendTimeout as error:
            program.waited_for.append(error.message_id)
            raise


class Program:
    """A cluster with tasks."""

    def __init__(self, url: str) -> None:
        self.cluster = cluster = Cluster(url, call_timeout=FAR)
        self.waited_for: list[str] = []
        cluster.entity(Office)
        mails = cluster.queue("mails", concurrency=2, partition="tenant", age="10m")

        @cluster.task(queue=mails, key="mail", errors=[Bounced])
        def mail(tenant: str, mail: str, text: str = "") -> int:
            return len(text)

        @cluster.task(queue="mails")
        async def plain(tenant: str) -> str:
            return tenant

        @cluster.task
        async def unlimited(number: int) -> int:
            return number

        @cluster.task(group="elsewhere")
        async def nowhere() -> str:
            return ""

        self.mail = mail
        self.nowhere = nowhere
        self.plain = plain
        self.unlimited = unlimited


program = Program("sqlite://")


@pytest.fixture(params=["memory", "file", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        url: str = request.getfixturevalue("migrated_url")
        return url
    return "sqlite://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
async def cluster(place: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """A client of a cluster with tasks."""
    monkeypatch.setattr(f"{__name__}.program", Program(place))
    async with program.cluster.connect() as cluster:
        yield cluster


@asynccontextmanager
async def holding(cluster: Cluster, **limits: Any) -> AsyncIterator[Desk]:
    """Hold the seat of the queue by hand."""
    storage = cluster._acting().storage
    async with storage.ownership(A) as session:
        me = Registration(id=A, name=A, address="", host_id="", groups=("default",), knows={SEAT: "f"})
        await session.register(me, [SeatDeclaration(SEAT, "default", "f")], ttl_s=600)
        desk = Desk(storage, await take(session, A, SEAT))
        await desk.define(**limits)
        yield desk


async def begin(desk: Desk, job_id: str) -> JobDelivery:
    """Claim a job."""
    told = await desk.storage.jobs.claim(JobClaim(desk.claim, desk.stamp, ((str(job_id), A),)))
    (delivery,) = told.jobs
    return delivery


async def run(desk: Desk, task: Task[Any, Any, Any], job_id: str) -> str:
    """Claim a job, run its function here, and end it."""
    delivery = await begin(desk, job_id)
    args, kwargs = task.type.decode(delivery.payload)
    try:
        value = task(*args, **kwargs)
        reply = task.type.encode_reply(await value if asyncio.iscoroutine(value) else value)
    except Exception as error:
        found = task.type.encode_failure(error)
        assert found is not None
        reply = found
    return await desk.storage.jobs.end(end(delivery, reply))


async def stored(cluster: Cluster) -> list[tuple[str, str]]:
    """The states and tasks of all jobs, in order."""
    return [(job.state, job.task) for job in await cluster.jobs.list()]


# Sending and results


async def test_a_job_is_stored_once_and_its_result_is_returned(cluster: Cluster) -> None:
    async with holding(cluster) as desk:
        sent = await cluster.send(program.mail.job("acme", "m1", "hello"), tags={"order": "7"})
        shown = await cluster.jobs.show(sent)
        assert (shown.state, shown.task, shown.queue, shown.partition) == ("ready", "mail", "mails", "acme")
        assert (shown.payload, shown.key, shown.tags) == (
            {"tenant": "acme", "mail": "m1", "text": "hello"},
            "m1",
            {"order": "7"},
        )
        assert await run(desk, program.mail, sent) == "written"
        assert await cluster.result(sent) == 5
        assert await cluster.send(program.mail.job("acme", "m1", "hello")) == sent
        assert await program.mail.job("acme", "m1", "hello") == 5
        shown = await cluster.jobs.show(sent)
        assert (shown.state, shown.reply, shown.failures, shown.runner) == ("done", 5, 0, A)


async def test_whoever_awaits_a_job_gets_its_result(cluster: Cluster) -> None:
    async with holding(cluster) as desk:
        waiting = asyncio.create_task(program.plain.job("acme"))
        while not (found := await cluster.jobs.list()):
            await asyncio.sleep(0.01)
        assert not waiting.done()
        await run(desk, program.plain, found[0].id)
        assert await waiting == "acme"


async def test_errors_that_are_declared_are_results(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def bounce(*_: Any, **__: Any) -> int:
        raise Bounced("no such mailbox")

    monkeypatch.setattr(program.mail, "_fn", bounce)
    async with holding(cluster) as desk:
        sent = await cluster.send(program.mail.job("acme", "m1"))
        await run(desk, program.mail, sent)
        with pytest.raises(Bounced, match="no such mailbox"):
            await cluster.result(sent)
        assert (await cluster.jobs.show(sent)).failure == "Bounced: no such mailbox"


async def test_a_discarded_job_says_why(cluster: Cluster) -> None:
    async with holding(cluster) as desk:
        sent = await cluster.send(program.plain.job("acme"))
        reply = FAILED + pack_discarded(sent, "plain", "the tenant is gone")
        await desk.storage.jobs.end(end(await begin(desk, sent), reply, discarded=True))
        with pytest.raises(Discarded, match="the tenant is gone"):
            await cluster.result(sent)


async def test_a_dead_job_is_said_to_be_dead(cluster: Cluster) -> None:
    async with holding(cluster) as desk:
        sent = await cluster.send(program.mail.job("acme", "m1"))
        await desk.storage.jobs.setback(setback(await begin(desk, sent), None, "SmtpError: busy\nmore"))
        with pytest.raises(MessageDead, match=f"message {sent} to mail is dead after 1 attempts: SmtpError: busy"):
            await cluster.result(sent)
        with pytest.raises(MessageDead, match="coterie jobs retry"):
            await cluster.send(program.mail.job("acme", "m1"))


async def test_a_job_that_takes_longer_than_its_caller_waits_stays(cluster: Cluster) -> None:
    with pytest.raises(SendTimeout, match="task 'plain'") as caught:
        await cluster.call(program.plain.job("acme"), timeout="50ms")
    assert (await cluster.jobs.show(caught.value.message_id)).state == "ready"
    with pytest.raises(SendTimeout):
        await cluster.result(MessageId[str](caught.value.message_id), timeout="50ms")
    with pytest.raises(MessageExpired):
        await cluster.result(MessageId[str](f"j{'0' * 32}"))


async def test_the_same_key_is_the_same_job(cluster: Cluster) -> None:
    first = await cluster.send(program.mail.job("acme", "m1", "a"))
    with pytest.raises(KeyConflict, match=f"key \"m1\" of task 'mail' .* {first}"):
        await cluster.send(program.mail.job("acme", "m1", "b"))
    assert await cluster.send(program.plain.job("x"), key="k") == await cluster.send(program.plain.job("x"), key="k")
    assert await cluster.send(program.plain.job("x")) != await cluster.send(program.plain.job("x"))


async def test_jobs_without_a_queue_share_the_seats_of_their_group(cluster: Cluster) -> None:
    sent = await cluster.send(program.unlimited.job(7))
    (row,) = await cluster._acting().storage.jobs.look([str(sent)])
    assert row.seat.startswith("queue:default:")
    assert row.part == "unlimited"
    shown = await cluster.jobs.show(sent)
    assert (shown.queue, shown.partition) == (None, None)


async def test_time_and_priority_are_stored(cluster: Cluster) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    instants = [
        await cluster.send(program.plain.job("a"), at=at),
        await cluster.send(program.plain.job("a"), delay="1h"),
    ]
    for sent in instants:
        shown = await cluster.jobs.show(sent)
        assert shown.state == "later"
        assert abs(shown.due_at - at) < timedelta(minutes=1)
    urgent = await cluster.jobs.show(await cluster.send(program.plain.job("a"), priority=-7))
    assert urgent.priority == -7
    with pytest.raises(InvalidArgument, match="priority of plain is 101"):
        await cluster.send(program.plain.job("a"), priority=101)
    with pytest.raises(InvalidArgument, match="priority of plain is 'high'"):
        await cluster.send(program.plain.job("a"), priority="high")  # type: ignore[arg-type] # as users do it
    with pytest.raises(TypeError, match="at= and delay="):
        await cluster.send(program.plain.job("a"), at=at, delay="1h")


async def test_only_calls_and_jobs_of_this_cluster_are_sent(cluster: Cluster) -> None:
    other = Cluster("sqlite://")

    @other.task
    async def plain(tenant: str) -> str:
        return tenant

    with pytest.raises(TypeError, match="plain was made by another cluster"):
        await cluster.send(plain.job("a"))
    with pytest.raises(TypeError, match=r"takes a call, .* or a job, such as send_email.job\(…\), not int"):
        await cluster.send(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not Task"):
        await cluster.send(program.plain)  # type: ignore[arg-type]
    nothing = asyncio.sleep(0)
    with pytest.raises(TypeError, match="not coroutine"):
        await cluster.send(nothing)
    nothing.close()
    with pytest.raises(TypeError, match="priority= is for jobs"):
        await cluster.send(cluster.ref(Office, "a").wait(), priority=5)
    job = program.plain.job("a")
    await cluster.send(job)
    with pytest.raises(RuntimeError, match="job plain was awaited, sent or closed before"):
        await cluster.send(job)


# Many


async def test_many_jobs_are_stored_in_order_a_thousand_with_each_commit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    jobs = cluster._acting().storage.jobs
    insert = jobs.insert

    def counted(write: Any) -> Any:
        writes.append(len(write.jobs))
        return insert(write)

    monkeypatch.setattr(jobs, "insert", counted)
    ids = await cluster.send_many((program.unlimited.job(number) for number in range(2500)), tags={"lot": "1"})
    assert writes == [1000, 1000, 500]
    assert ids == sorted(ids)
    found = await cluster.jobs.list(tag=("lot", "1"), limit=3000)
    assert [each.payload["number"] for each in found] == list(range(2500))


async def test_many_jobs_with_one_that_cannot_be_stored(cluster: Cluster) -> None:
    first = await cluster.send(program.mail.job("acme", "m1", "other"))
    many = [program.mail.job("acme", f"m{number}") for number in range(1002)]
    with pytest.raises(KeyConflict) as caught:
        await cluster.send_many(many)
    assert len(caught.value.stored) == 999
    assert first not in caught.value.stored
    assert len(await cluster.jobs.list(limit=2000)) == 1000


async def test_calls_and_jobs_are_sent_together(cluster: Cluster) -> None:
    office = cluster.ref(Office, "a")
    ids = await cluster.send_many(
        [program.plain.job("a"), office.wait(), program.plain.job("b"), program.plain.job("c")]
    )
    assert [each.startswith("j") for each in ids] == [True, False, True, True]
    assert len(await cluster.jobs.list()) == 3
    assert len(await cluster.messages.list()) == 1
    with pytest.raises(TypeError, match="priority= is for jobs"):
        await cluster.send_many([office.wait()], priority=1)


# Cancelling


async def test_a_waiting_job_is_cancelled(cluster: Cluster) -> None:
    sent = await cluster.send(program.mail.job("acme", "m1"))
    assert await cluster.cancel(sent) is True
    assert await cluster.cancel(sent) is False
    with pytest.raises(MessageCancelled):
        await cluster.result(sent)
    assert (await cluster.jobs.show(sent)).state == "cancelled"
    assert await cluster.send(program.mail.job("acme", "m1", "anew")) != sent
    assert await cluster.cancel(MessageId[str](f"j{'0' * 32}")) is False


async def test_nothing_of_a_cancelled_running_job_commits(cluster: Cluster) -> None:
    async with holding(cluster) as desk:
        sent = await cluster.send(program.mail.job("acme", "m1"))
        delivery = await begin(desk, sent)
        assert await cluster.cancel(sent) is True
        shown = await cluster.jobs.show(sent)
        assert (shown.state, shown.cancelling) == ("claimed", True)
        assert await desk.storage.jobs.end(end(delivery)) == "cancelled"
        with pytest.raises(MessageCancelled):
            await cluster.result(sent)


# With other commits


async def bounced(cluster: Cluster) -> None:
    """Send a job in a transaction that is rolled back."""
    async with cluster.transaction() as tx:
        await tx.execute("insert into orders (id) values (8)")
        await cluster.send(program.mail.job("acme", "m2"), via=tx)
        raise Bounced


async def test_jobs_are_stored_with_the_commit_of_a_transaction(cluster: Cluster) -> None:
    async with cluster.transaction() as tx:
        await tx.execute("create table orders (id int)")
        await tx.execute("insert into orders (id) values (7)")
        sent = await cluster.send(program.mail.job("acme", "m1"), via=tx)
        assert await cluster.send(program.mail.job("acme", "m1"), via=tx) == sent
        with pytest.raises(KeyConflict):
            await cluster.send(program.mail.job("acme", "m1", "other"), via=tx)
        many = await cluster.send_many([program.plain.job("a"), program.plain.job("b")], via=tx, priority=3)
    assert {job.id for job in await cluster.jobs.list()} == {sent, *many}
    with pytest.raises(Bounced):
        await bounced(cluster)
    assert len(await cluster.jobs.list()) == 3


async def test_jobs_of_a_handler_are_stored_with_its_commit(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.program", Program(place))
    async with program.cluster as cluster:
        await cluster.ready(timeout=FAR)
        office = cluster.ref(Office, "a")
        sent = await office.post("m1")
        (shown,) = await cluster.jobs.list(tag=("by", "a"))
        assert (shown.id, shown.state) == (sent, "later")
        assert await office.post("m1") == sent
        await office.post("m2", "cancel")
        for how in ("raise", "await"):
            with pytest.raises(RemoteError):
                await office.post("m3", how)
        assert not (await cluster.jobs.list(after=sent))
        assert await stored(cluster) == [("later", "mail")]


async def test_a_handler_that_is_tried_again_awaits_the_same_job(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """M6: the second attempt finds the job of the first one."""
    monkeypatch.setattr(f"{__name__}.program", Program(place))
    async with program.cluster as cluster:
        await cluster.ready(timeout=FAR)
        message = await cluster.send(cluster.ref(Office, "b").wait())
        with pytest.raises(MessageDead):
            await cluster.result(message)
        (waiting,) = await cluster.jobs.list()
        assert program.waited_for == [waiting.id, waiting.id]


# cluster.jobs


async def test_jobs_are_listed_by_what_they_have(cluster: Cluster) -> None:
    a = await cluster.send(program.mail.job("acme", "m1"), tags={"order": "7"})
    b = await cluster.send(program.plain.job("acme"), tags={"order": "8"}, delay="1h")
    c = await cluster.send(program.unlimited.job(1), tags={"order": "7"})
    jobs = cluster.jobs

    async def ids(**chosen: Any) -> list[str]:
        return [each.id for each in await jobs.list(**chosen)]

    assert await ids() == [a, b, c]
    assert await ids(newest=True, limit=2) == [c, b]
    assert await ids(after=a) == [b, c]
    assert await ids(task="plain") == [b]
    assert await ids(queue="mails") == [a, b]
    assert await ids(tag=("order", "7")) == [a, c]
    assert await ids(state="later") == [b]
    assert await ids(older_than="1h") == []
    with pytest.raises(ValueError, match="state is 'pending', and there are later, ready"):
        await ids(state="pending")
    with pytest.raises(TypeError, match="queue is 7"):
        await ids(queue=7)


async def test_a_dead_job_is_retried_or_edited(cluster: Cluster) -> None:
    async with holding(cluster) as desk:
        sent = await cluster.send(program.mail.job("acme", "m1"), tags={"order": "7"}, priority=9)
        assert await cluster.jobs.retry(sent) is False
        with pytest.raises(InvalidArgument, match="only dead jobs"):
            await cluster.jobs.edit(sent, {})
        await desk.storage.jobs.setback(setback(await begin(desk, sent), None))
        edited = await cluster.jobs.edit(sent, {"tenant": "acme", "mail": "m1", "text": "better"})
        assert await cluster.jobs.edit(sent, {"tenant": "acme", "mail": "m1", "text": "better"}) == edited
        shown = await cluster.jobs.show(edited)
        assert (shown.payload["text"], shown.tags, shown.priority) == ("better", {"order": "7"}, 9)
        with pytest.raises(KeyConflict):
            await cluster.jobs.edit(sent, {"tenant": "acme", "mail": "m1", "text": "worse"})
        with pytest.raises(MalformedMessage, match="mail is 7"):
            await cluster.jobs.edit(sent, {"tenant": "acme", "mail": 7})
        assert await cluster.jobs.retry(sent) is True
        assert (await cluster.jobs.show(sent)).failures == 0
        await run(desk, program.mail, sent)
        assert await cluster.result(sent) == 0
    with pytest.raises(MessageExpired):
        await cluster.jobs.retry(f"j{'0' * 32}")


async def test_the_progress_of_a_job_is_shown(cluster: Cluster) -> None:
    async with holding(cluster) as desk:
        sent = await cluster.send(program.plain.job("acme"))
        delivery = await begin(desk, sent)
        assert await desk.storage.jobs.progress(A, delivery.id, delivery.claim, JobProgress(3, 10, "pages"))
        found = (await cluster.jobs.show(sent)).progress
        assert found is not None
        assert (found.done, found.total, found.note) == (3, 10, "pages")


async def test_what_has_ended_is_purged(cluster: Cluster) -> None:
    for number in range(3):
        await cluster.cancel(await cluster.send(program.unlimited.job(number)))
    kept = await cluster.send(program.unlimited.job(7))
    told: list[int] = []
    assert await cluster.jobs.purge(state="done") == 0
    assert await cluster.jobs.purge(state="cancelled", queue="mails") == 0
    assert await cluster.jobs.purge(state="cancelled", older_than="1h") == 0
    assert await cluster.jobs.purge(state="cancelled", task="unlimited", progress=told.append) == 3
    assert told == [3]
    assert [each.id for each in await cluster.jobs.list()] == [kept]
    with pytest.raises(ValueError, match="only jobs that have ended can be purged"):
        await cluster.jobs.purge(state="ready")  # type: ignore[arg-type] # as users do it


async def test_arguments_that_cannot_be_read_are_shown_as_bytes(cluster: Cluster) -> None:
    await cluster._acting().storage.jobs.insert(JobInsert((NewJob(f"j{1:032x}", SEAT, "", "gone", b"\xc1"),)))
    shown = await cluster.jobs.show(f"j{1:032x}")
    assert shown.payload == b"\xc1"
    with pytest.raises(ValueError, match="this program knows no task 'gone': there are mail, plain"):
        await cluster.result(shown.id)


# cluster.queues


async def test_queues_are_paused_and_limited_at_run_time(cluster: Cluster) -> None:
    queues = cluster.queues
    with pytest.raises(ValueError, match="there is no queue 'mails' in this cluster: there are none"):
        await queues.get("mails")
    async with holding(cluster, concurrency=2) as desk:
        await cluster.send_many(program.plain.job("a") for _ in range(3))
        await cluster.send(program.plain.job("a"), delay="1h")
        found = await queues.get("mails")
        assert (found.concurrency, found.rate, found.is_set, found.paused_at) == (2, None, False, None)
        assert (found.ready, found.later, found.running, found.parked, found.dead) == (3, 1, 0, 0, 0)
        assert found.oldest is not None
        assert await queues.list() == [found] or (await queues.list())[0].name == "mails"

        assert await queues.pause("mails") is True
        assert await queues.pause("mails") is False
        assert (await queues.get("mails")).paused_at is not None
        assert await queues.resume("mails") is True
        assert await queues.resume("mails") is False

        changed = await queues.limits("mails", rate="5/m", concurrency=None)
        assert (changed.concurrency, changed.rate, changed.burst, changed.is_set) == (None, 5 / 60, 1 + 0.5 / 60, True)
        changed = await queues.limits("mails", burst=7, partition_concurrency=1)
        assert (changed.rate, changed.burst, changed.partition_concurrency) == (5 / 60, 7.0, 1)
        await desk.define(concurrency=9)
        assert (await queues.get("mails")).concurrency is None
        changed = await queues.limits("mails", reset=True)
        assert (changed.concurrency, changed.rate, changed.burst, changed.is_set) == (9, None, None, False)


async def test_limits_that_make_no_sense_are_refused(cluster: Cluster) -> None:
    queues = cluster.queues
    async with holding(cluster):
        for limits, said in (
            ({}, "neither set nor reset"),
            ({"reset": True, "concurrency": 1}, "reset and set at once"),
            ({"concurrency": 0}, "concurrency of queue 'mails'"),
            ({"rate": "fast"}, "rate of queue 'mails' is 'fast'"),
            ({"burst": 5}, "has burst and no rate"),
            ({"concurency": 5}, 'did you mean "concurrency"'),
        ):
            with pytest.raises(ConfigurationError, match=said):
                await queues.limits("mails", **limits)
        with pytest.raises(ValueError, match="there is no queue 'default:0'"):
            await queues.limits("default:0", concurrency=1)


# Without await


def test_jobs_are_sent_from_threads(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.program", Program(place))
    with program.cluster.sync() as c:
        sent = c.send(program.mail.job("acme", "m1"), priority=3, tags={"order": "7"})
        ids = c.send_many([program.plain.job("a"), program.plain.job("b")], priority=4)
        with pytest.raises(SendTimeout):
            c.call(program.plain.job("c"), timeout="50ms")
        with c.transaction() as tx:
            within = c.send(program.mail.job("acme", "m2"), via=tx)
        assert c.cancel(sent)
        with pytest.raises(MessageCancelled):
            c.result(sent)
        found = c.run(lambda: program.cluster.jobs.list())
        assert {sent, *ids, within} <= {each.id for each in found}
        assert [each.priority for each in found if each.id in ids] == [4, 4]
        c.disconnect()
