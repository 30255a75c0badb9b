"""The worker of a runner on real storages: what it begins, what it writes of it, what it gives back (T1, T5-T8)."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from coterie.entities.calls.wire import read_failure, read_marked
from coterie.entities.host.work import handling
from coterie.entities.persisted.commit import effects_of
from coterie.errors import Discarded, PersistenceError
from coterie.kernel.clock import SystemClock
from coterie.kernel.context import current
from coterie.kernel.random import Random
from coterie.kernel.retry import Discard, Retry, Snooze
from coterie.kernel.supervisor import Supervisor
from coterie.settings import Settings
from coterie.storage.contracts.jobs import GiveBack, JobDelivery, JobEnd, JobRow, JobSetback, NewJob
from coterie.tasks.definition import TaskOptions, TaskType, define
from coterie.tasks.frames import Assignment, JobCancel, JobOver, JobsOver, SlotsQuestion
from coterie.tasks.task import Task
from coterie.tasks.worker.worker import JobWorker
from coterie.work.middleware import Middleware, WorkInfo
from coterie.work.threads import ThreadPool
from tests.contract.jobs import CANCELLED, ONE, A, B, Desk, desk, evict, id_of, insert, job, joined, look
from tests.contract.messages import message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from coterie.runner import Runner
    from coterie.storage.contracts.messages import Message
    from coterie.storage.interface import Storage
    from coterie.tasks.exchange import JobExchange
    from coterie.tasks.frames import Frame

__all__ = ["desk"]  # fixtures


class Sent:
    """An exchange that keeps what it is given."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, Frame]] = []
        self.worker: object = None

    def tell(self, seat: str, frame: Frame) -> None:
        self.frames.append((seat, frame))

    def over(self) -> list[JobOver]:
        """What holders were told of jobs."""
        return [each for _, frame in self.frames if isinstance(frame, JobsOver) for each in frame.jobs]


class Fragile:
    """The store of jobs, whose writes fail as a test says."""

    def __init__(self, storage: Storage) -> None:
        self._store = storage.jobs
        self.calls: list[str] = []
        self.failing: dict[str, list[PersistenceError]] = {}
        """What the next calls of a method raise."""
        self.lost_replies: set[str] = set()
        """Methods whose next call is made, and whose reply is lost."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def end(self, write: JobEnd) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._call("end", self._store.end, write))

    def setback(self, write: JobSetback) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._call("setback", self._store.setback, write))

    async def give_back(self, write: GiveBack) -> int:
        given: int = await self._call("give_back", self._store.give_back, write)
        return given

    async def _call(self, name: str, fn: Callable[[Any], Awaitable[Any]], write: Any) -> Any:
        self.calls.append(name)
        if self.failing.get(name):
            raise self.failing[name].pop(0)
        told = await fn(write)
        if name in self.lost_replies:
            self.lost_replies.remove(name)
            raise PersistenceError(doing="write", problem="the connection broke", outcome="unknown")
        return told


class Workshop:
    """A worker for the runner whose row is there, with jobs that are claimed by hand."""

    def __init__(self, storage: Storage, desk: Desk, **settings: Any) -> None:
        self.storage = storage
        self.desk = desk
        self.sent = Sent()
        self.store = Fragile(storage)
        self.handed_over: list[Message] = []
        self.hinted: list[NewJob] = []
        self.known: dict[str, TaskType] = {}
        self.middleware = Middleware()
        self.settings = Settings.load({"drain": "5s", **settings}, environ={})
        self.threads = ThreadPool(self.settings)
        clock = SystemClock()
        self.runner = SimpleNamespace(
            name="web-1",
            settings=self.settings,
            calling=SimpleNamespace(
                clock=clock, chance=Random(1), persisted=SimpleNamespace(hand_over=self.handed_over.append)
            ),
            job_sender=SimpleNamespace(hint=self.hinted.append),
            storage=SimpleNamespace(jobs=self.store, transaction=storage.transaction, now=storage.now),
            threads=self.threads,
            processes=SimpleNamespace(stop=_nothing),
            middleware=self.middleware,
            supervisor=Supervisor(),
            transport=SimpleNamespace(address="127.0.0.1:7"),
            is_trusted=True,
            is_leaving=False,
        )
        self.use(self.runner.processes)
        self._numbers = iter(range(1, 1000))

    def use(self, processes: Any) -> None:
        """Make the worker, with this pool of processes."""
        self.runner.processes = processes
        self.worker = JobWorker(cast("Runner", self.runner), self.known, cast("JobExchange", self.sent))

    def task(self, **options: Any) -> Callable[[Callable[..., Any]], TaskType]:
        """Define a task."""

        def add(fn: Callable[..., Any]) -> TaskType:
            made = define(fn, cast("TaskOptions", options), queues={}, retry=Retry(base="10ms"))
            self.known[made.name] = made
            return made

        return add

    async def claimed(self, task: TaskType | str, **arguments: Any) -> JobDelivery:
        """A job that is stored and claimed for this runner."""
        name = task if isinstance(task, str) else task.name
        print_ = "f" if isinstance(task, str) else task.fingerprint
        number, payload = next(self._numbers), msgspec.msgpack.encode(arguments)
        return await self.desk.begin(number, task=name, fingerprint=print_, payload=payload)

    async def again(self, delivery: JobDelivery) -> JobDelivery:
        """The same job, claimed once more."""
        (claimed,) = await self.desk.started(int(delivery.id, 16))
        return claimed

    async def assign(self, *deliveries: JobDelivery, age_s: float = 0.0) -> None:
        """Send them to the worker."""
        sent_s = (await self.storage.now()).timestamp() - age_s
        self.worker.assign("holder", Assignment(ONE, 1, sent_s, deliveries))

    async def begin(self, task: TaskType, **arguments: Any) -> JobDelivery:
        """A job that is stored, claimed and assigned."""
        delivery = await self.claimed(task, **arguments)
        await self.assign(delivery)
        return delivery

    async def over(self, delivery: JobDelivery) -> JobOver:
        """What the holder is told when the job is over."""
        found: JobOver = await until(
            lambda: next((x for x in self.sent.over() if (x.id, x.claim) == (delivery.id, delivery.claim)), None)
        )
        return found

    async def row(self, delivery: JobDelivery) -> JobRow:
        return await look(self.storage, int(delivery.id, 16))

    async def ended(self, task: TaskType, **arguments: Any) -> JobRow:
        """The row of a job that has ended."""
        delivery = await self.begin(task, **arguments)
        await self.over(delivery)
        return await self.row(delivery)


async def _nothing() -> None:
    """Stops nothing."""


async def until(found: Callable[[], Any]) -> Any:
    """Wait until something is there."""
    async with asyncio.timeout(120):
        while not (value := found()):
            await asyncio.sleep(0.002)
        return value


async def until_async(found: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(120):
        while not (value := await found()):
            await asyncio.sleep(0.01)
        return value


@pytest.fixture
async def shop(storage: Storage, desk: Desk) -> AsyncIterator[Workshop]:
    async with opened(Workshop(storage, desk)) as shop:
        yield shop


class opened:  # noqa: N801 used as a statement
    """A workshop that works."""

    def __init__(self, shop: Workshop) -> None:
        self._shop = shop

    async def __aenter__(self) -> Workshop:
        await self._shop.threads.start()
        await self._shop.worker.start()
        self._shop.worker.begin(A)
        return self._shop

    async def __aexit__(self, *_: object) -> None:
        await self._shop.worker.stop()
        await self._shop.threads.stop()


def failure(row: JobRow, **declared: type[Exception]) -> Exception:
    """The error that is stored as the reply."""
    marked = read_marked(row.reply or b"")
    assert isinstance(marked, bytes)
    return read_failure(marked, declared)


# What a body has and what becomes of it


async def test_a_job_runs_and_its_result_is_stored_and_told(shop: Workshop) -> None:
    seen: list[Any] = []

    @shop.task()
    async def resize(picture: str, width: int = 7) -> str:
        here = current()
        seen.append((here.name, here.message_id, here.attempt, here.runner_id, here.cancelled))
        return f"{picture} {width}"

    delivery = await shop.begin(resize, picture="a.png")
    over = await shop.over(delivery)
    row = await shop.row(delivery)
    assert seen == [("resize", delivery.id, 1, A, False)]
    assert (row.state, row.reply) == ("done", resize.encode_reply("a.png 7"))
    assert (over.outcome, over.reply) == ("ended", row.reply)
    last = [frame for _, frame in shop.sent.frames if isinstance(frame, JobsOver)][-1]
    assert last.slots is not None
    assert (last.slots.jobs.free, last.slots.jobs.mine) == (100, 0)


async def test_a_plain_function_runs_in_a_thread(shop: Workshop) -> None:
    @shop.task()
    def where() -> str:
        return f"{threading.current_thread().name} {current().attempt}"

    row = await shop.ended(where)
    assert (row.reply or b"").decode("latin-1").endswith("coterie-body-1 1")


async def test_errors_are_retried_by_class_and_counted(shop: Workshop) -> None:
    raised: list[Exception] = [ValueError("one"), KeyError("two")]

    @shop.task(retry=Retry(attempts=5, base="10ms", on=[ValueError, KeyError]))
    async def fails() -> None:
        raise raised[min(current().attempt or 1, len(raised)) - 1]

    delivery = await shop.begin(fails)
    over = await shop.over(delivery)
    assert (over.outcome, 0 < over.again_s <= 0.01) == ("later", True)
    row = await shop.row(delivery)
    assert (row.state, row.failures, [each.error.partition("\n")[0] for each in row.errors]) == (
        "later", 1, ["ValueError: one"],
    )  # fmt: skip
    raised[:] = [ValueError("one"), OSError("two")]
    await until_async(lambda: _ready(shop, delivery))
    again = await shop.again(delivery)
    assert again.failures == 1
    await shop.assign(again)
    assert (await shop.over(again)).outcome == "ended"
    row = await shop.row(delivery)
    assert (row.state, row.failures) == ("dead", 2)
    assert [each.error.partition("\n")[0] for each in row.errors] == ["ValueError: one", "OSError: two"]


async def _ready(shop: Workshop, delivery: JobDelivery) -> bool:
    await shop.storage.jobs.mature(shop.desk.claim, most=10)
    return (await shop.row(delivery)).state == "ready"


class TooLarge(Exception):
    """Declared by a task."""


async def test_a_declared_error_is_a_result(shop: Workshop) -> None:
    @shop.task(errors=[TooLarge])
    async def refuses() -> None:
        raise TooLarge("a.png")

    row = await shop.ended(refuses)
    assert row.state == "done"
    assert repr(failure(row, TooLarge=TooLarge)) == "TooLarge('a.png')"


async def test_a_job_can_be_put_off_and_discarded(shop: Workshop) -> None:
    @shop.task()
    async def later() -> None:
        raise Snooze("10m")

    @shop.task()
    async def never() -> None:
        raise Discard("there is no such picture")

    row = await shop.ended(later)
    assert (row.state, row.failures, row.errors) == ("later", 0, ())
    assert 590 < (row.due_at - row.sent_at).total_seconds() < 660
    row = await shop.ended(never)
    assert row.state == "discarded"
    error = failure(row)
    assert isinstance(error, Discarded)
    assert "there is no such picture" in str(error)


async def test_what_a_body_sends_is_stored_with_its_end_or_not_at_all(shop: Workshop) -> None:
    """T1: messages and jobs are in the commit of the end, and are handed over after that."""

    @shop.task()
    async def sends(fails: bool) -> None:
        work = handling.get()
        assert work is not None
        number = 500 + fails
        effects_of(work).sends.append(message(number))
        effects_of(work).jobs.append(job(number))
        if fails:
            raise ValueError("no")

    await shop.ended(sends, fails=True)
    assert await shop.storage.jobs.look([id_of(501)]) == []
    assert await shop.storage.messages.look([message(501).id]) == []
    await shop.ended(sends, fails=False)
    assert [row.id for row in await shop.storage.jobs.look([id_of(500)])] == [id_of(500)]
    assert len(await shop.storage.messages.look([message(500).id])) == 1
    assert shop.handed_over == [message(500)]
    assert shop.hinted == [job(500)]


async def test_a_result_that_does_not_fit_is_a_failure(shop: Workshop) -> None:
    @shop.task(retry=Retry.never)
    async def wrong() -> int:
        return cast("int", "seven")

    row = await shop.ended(wrong)
    assert row.state == "dead"
    assert "seven" in row.errors[0].error or "int" in row.errors[0].error


async def test_middleware_is_around_each_attempt(shop: Workshop) -> None:
    seen: list[WorkInfo] = []

    async def around(work: WorkInfo, call_next: Any) -> Any:
        seen.append(work)
        return await call_next() + 1

    shop.middleware.add(around)

    @shop.task()
    async def seven() -> int:
        return 7

    @shop.task()
    def eight() -> int:
        return 8

    delivery = await shop.begin(seven)
    await shop.over(delivery)
    assert (await shop.row(delivery)).reply == seven.encode_reply(8)
    assert (await shop.ended(eight)).reply == eight.encode_reply(9)
    assert (seen[0].kind, seen[0].name, seen[0].id, seen[0].attempt) == ("job", "seven", delivery.id, 1)
    assert seen[0].target == f"seven/{delivery.id}"


async def test_a_transaction_is_committed_with_the_end(shop: Workshop) -> None:
    """T1: the user's own SQL, with the end or not at all."""

    @shop.task(retry=Retry.never)
    async def writes(name: str, fails: bool) -> str:
        async with writes_task.transaction() as sql:
            await sql.execute("create table if not exists pictures (name text)")
            await sql.execute("insert into pictures (name) values ($1)", name)
        if fails:
            raise ValueError("no")
        return name

    writes_task: Task[Any, Any, Any] = Task(writes, cast("Any", None))
    with pytest.raises(RuntimeError, match="belongs to one of its jobs"):
        writes_task.transaction()
    assert (await shop.ended(writes, name="a", fails=False)).state == "done"
    assert (await shop.ended(writes, name="b", fails=True)).state == "dead"
    transaction = shop.storage.transaction(limit_s=5)
    rows = await transaction.fetch("select name from pictures")
    await transaction.rollback()
    assert [row["name"] for row in rows] == ["a"]


# Time-outs and cancellation


async def test_an_attempt_whose_time_is_over_has_failed(shop: Workshop) -> None:
    """T7, T5: `timeout` is of one attempt, and its class decides like any other."""

    @shop.task(timeout="20ms", retry=Retry(base="10ms", on=[TimeoutError]))
    async def slow() -> None:
        await asyncio.sleep(60)

    @shop.task(timeout="20ms", retry=Retry(unless=[TimeoutError]))
    async def never() -> None:
        await asyncio.sleep(60)

    row = await shop.ended(slow)
    assert (row.state, row.failures) == ("later", 1)
    assert row.errors[0].error.startswith("TimeoutError: it did not end within 0.02s")
    assert (await shop.ended(never)).state == "dead"


async def test_a_thread_past_its_time_keeps_its_slot_until_it_ends(shop: Workshop) -> None:
    """T7: an attempt is over when its body is; no second one runs beside it."""
    go_on, told = threading.Event(), threading.Event()

    @shop.task(timeout="20ms")
    def stubborn() -> str:
        while not current().cancelled:
            pass
        told.set()
        go_on.wait(30)
        return "too late"

    delivery = await shop.begin(stubborn)
    try:
        await until(told.is_set)
        slots = shop.worker.slots("h", SlotsQuestion(ONE, 1))
        assert (slots.jobs.mine, slots.threads.mine) == (1, 1)
        assert (await shop.row(delivery)).state == "claimed"
        assert shop.sent.over() == []
    finally:
        go_on.set()
    assert (await shop.over(delivery)).outcome == "later"
    row = await shop.row(delivery)
    assert (row.failures, row.errors[0].error.partition(":")[0]) == (1, "TimeoutError")
    assert shop.worker.slots("h", SlotsQuestion(ONE, 1)).threads.mine == 0


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_cancelled_job_ends_when_its_body_has(shop: Workshop, kind: str) -> None:
    """T6: nothing of it commits, its body is cancelled, and its slot is free when the body has ended."""
    begun, ended = threading.Event(), threading.Event()

    @shop.task()
    async def coroutine() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    @shop.task()
    def thread() -> str:
        begun.set()
        while not current().cancelled:
            ended.wait(0.001)
        ended.set()
        return "nothing of it"

    delivery = await shop.begin(coroutine if kind == "coroutine" else thread)
    await until(begun.is_set)
    told, running = await shop.storage.jobs.cancel(delivery.id, reply=CANCELLED)
    assert (told, running is not None) == ("cancelling", True)
    shop.worker.look(JobCancel(delivery.id, delivery.claim))
    over = await shop.over(delivery)
    row = await shop.row(delivery)
    assert (over.outcome, row.state, row.reply, ended.is_set()) == ("ended", "cancelled", CANCELLED, True)


async def test_a_cancellation_whose_frame_was_lost_is_found_by_the_sweep(shop: Workshop) -> None:
    begun = asyncio.Event()

    @shop.task()
    async def waits() -> None:
        begun.set()
        await asyncio.sleep(60)

    delivery = await shop.begin(waits)
    await begun.wait()
    await shop.storage.jobs.cancel(delivery.id, reply=CANCELLED)
    await shop.over(delivery)
    assert (await shop.row(delivery)).state == "cancelled"


async def test_a_body_whose_claim_is_gone_is_cancelled(shop: Workshop) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @shop.task()
    async def waits() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    delivery = await shop.begin(waits)
    await begun.wait()
    await shop.storage.jobs.give_back(GiveBack(A, ((delivery.id, delivery.claim),)))
    async with asyncio.timeout(120):
        await ended.wait()
    assert (await shop.row(delivery)).state == "ready"


async def test_a_body_that_cancels_itself_has_failed(shop: Workshop) -> None:
    @shop.task(retry=Retry.never)
    async def odd() -> None:
        raise asyncio.CancelledError

    row = await shop.ended(odd)
    assert (row.state, row.errors[0].error.partition("\n")[0]) == (
        "dead", "RuntimeError: its body was cancelled, by itself",
    )  # fmt: skip


# Progress


async def test_progress_is_stored_from_coroutines_and_threads(shop: Workshop) -> None:
    """T8."""
    go_on = threading.Event()

    @shop.task()
    async def coroutine() -> None:
        current().progress(3, 10, "invoices")
        await asyncio.to_thread(go_on.wait)

    @shop.task()
    def thread() -> None:
        for done in range(1000):
            current().progress(done, note="pages")
        go_on.wait(30)

    try:
        one, two = await shop.begin(coroutine), await shop.begin(thread)

        async def stored() -> bool:
            rows = [(await shop.row(each)).progress for each in (one, two)]
            shown = [each and (each.done, each.total, each.note) for each in rows]
            return shown == [(3, 10, "invoices"), (999, None, "pages")]

        await until_async(stored)
    finally:
        go_on.set()
    await shop.over(one)
    await shop.over(two)


async def test_progress_is_stored_once_a_second_at_most(shop: Workshop) -> None:
    """T8: also if it is reported all the time."""
    stored: list[float] = []
    loop = asyncio.get_running_loop()

    async def progress(*_: Any) -> bool:
        stored.append(loop.time())
        return True

    shop.store.__dict__["progress"] = progress

    @shop.task()
    async def reports() -> None:
        done = 0
        while len(stored) < 3:
            done += 1
            current().progress(done)
            await asyncio.sleep(0.001)

    await shop.over(await shop.begin(reports))
    assert min(after - before for before, after in pairwise(stored)) >= 0.99


# Frames, slots and the sweep


async def test_claims_whose_frame_was_lost_are_begun_by_the_sweep(shop: Workshop) -> None:
    @shop.task()
    async def seven() -> int:
        return 7

    delivery = await shop.claimed(seven)
    await shop.over(delivery)
    assert (await shop.row(delivery)).state == "done"


async def test_an_old_frame_is_looked_up_first(shop: Workshop) -> None:
    """Its job may have ended long ago: an old frame is not believed."""
    runs = 0

    @shop.task()
    async def counted() -> None:
        nonlocal runs
        runs += 1

    delivery = await shop.begin(counted)
    await shop.over(delivery)
    shop.worker._ended.clear()  # as if that were long ago
    await shop.assign(delivery, age_s=5)
    other = await shop.claimed(counted)
    await shop.assign(other, age_s=5)
    await shop.over(other)
    assert runs == 2


async def test_a_doubled_frame_begins_nothing_twice(shop: Workshop) -> None:
    runs = 0
    go_on = asyncio.Event()

    @shop.task()
    async def counted() -> None:
        nonlocal runs
        runs += 1
        await go_on.wait()

    delivery = await shop.begin(counted)
    await shop.assign(delivery)
    await until(lambda: runs)
    await shop.assign(delivery)
    go_on.set()
    await shop.over(delivery)
    await shop.assign(delivery)
    await asyncio.sleep(0)
    assert runs == 1


async def test_what_finds_no_slot_is_given_back(storage: Storage, desk: Desk) -> None:
    go_on = asyncio.Event()
    async with opened(Workshop(storage, desk, jobs=1)) as shop:

        @shop.task()
        async def waits() -> None:
            await go_on.wait()

        one, two = await shop.begin(waits), await shop.begin(waits)
        assert (await shop.over(two)).outcome == "returned"
        assert (await shop.row(two)).state == "ready"
        go_on.set()
        assert (await shop.over(one)).outcome == "ended"


async def test_what_waits_begins_when_a_slot_is_free(storage: Storage, desk: Desk) -> None:
    go_on = asyncio.Event()
    async with opened(Workshop(storage, desk, jobs=1)) as shop:

        @shop.task()
        async def waits() -> None:
            await go_on.wait()

        one, two = await shop.begin(waits), await shop.begin(waits)
        go_on.set()
        assert [(await shop.over(each)).outcome for each in (one, two)] == ["ended", "ended"]


async def test_jobs_of_an_unknown_task_are_parked(shop: Workshop) -> None:
    delivery = await shop.claimed("newer")
    await shop.assign(delivery)
    assert (await shop.over(delivery)).outcome == "returned"
    assert (await shop.row(delivery)).state == "parked"


async def test_what_another_version_has_sent_and_nobody_can_decode_dies_after_some_attempts(shop: Workshop) -> None:
    @shop.task()
    async def resize(width: int) -> None: ...

    number = 700
    payload = msgspec.msgpack.encode({"width": "wide"})
    delivery = await shop.desk.begin(number, task="resize", fingerprint="older", payload=payload)
    await shop.assign(delivery)
    assert (await shop.over(delivery)).outcome == "returned"
    for attempt in range(1, 6):
        again = await shop.again(delivery)
        await shop.assign(again)
        over = await shop.over(again)
        assert over.outcome == ("later" if attempt < 5 else "ended")
        if attempt < 5:
            await until_async(lambda: _ready(shop, delivery))
    assert (await shop.row(delivery)).state == "dead"


async def test_what_this_version_cannot_decode_is_dead_at_once(shop: Workshop) -> None:
    @shop.task()
    async def resize(width: int) -> None: ...

    row = await shop.ended(resize, width="wide")
    assert (row.state, row.failures) == ("dead", 1)
    assert "width" in row.errors[0].error


async def test_lost_jobs_run_one_at_a_time_at_first(shop: Workshop) -> None:
    """C5: the innocent are not counted with one that kills its process."""
    running: list[str] = []
    go_on = asyncio.Event()

    @shop.task()
    async def waits() -> None:
        running.append(str(current().message_id))
        await go_on.wait()

    suspects = [msgspec.structs.replace(await shop.claimed(waits), lost=1) for _ in range(2)]
    innocent = await shop.claimed(waits)
    await shop.assign(*suspects, innocent)
    await until(lambda: len(running) == 2)
    assert running == [suspects[0].id, innocent.id]
    go_on.set()
    for each in (*suspects, innocent):
        assert (await shop.over(each)).outcome == "ended"


async def test_holders_that_have_asked_are_told_of_changes(shop: Workshop) -> None:
    go_on = asyncio.Event()

    @shop.task()
    async def waits() -> None:
        await go_on.wait()

    slots = shop.worker.slots("h", SlotsQuestion("queue:two", 1))
    assert slots.tasks is not None
    assert slots.tasks["waits"].pool == "loop"
    delivery = await shop.begin(waits)
    shop.worker._reports.changed()

    def told() -> list[int]:
        return [
            frame.slots.jobs.free
            for seat, frame in shop.sent.frames
            if seat == "queue:two" and isinstance(frame, JobsOver) and frame.slots is not None
        ]

    await until(lambda: told() == [99])
    go_on.set()
    await shop.over(delivery)
    await until(lambda: told() == [99, 100])


# Writes that fail


@pytest.mark.parametrize("raises", [False, True])
async def test_an_end_whose_outcome_is_unknown_is_repeated_until_it_is_known(shop: Workshop, raises: bool) -> None:
    """T1: it ends once, and is counted once."""
    runs = 0

    @shop.task()
    async def counted() -> int:
        nonlocal runs
        runs += 1
        if raises:
            raise ValueError("no")
        return runs

    away = PersistenceError(doing="write", problem="no connection", outcome="unreachable")
    name = "setback" if raises else "end"
    shop.store.lost_replies = {name}
    delivery = await shop.claimed(counted)
    shop.store.failing[name] = [away]
    await shop.assign(delivery)
    over = await shop.over(delivery)
    assert (over.outcome, runs) == ("later" if raises else "ended", 1)
    assert shop.store.calls.count(name) == 3
    row = await shop.row(delivery)
    assert (row.state, row.failures) == (("later", 1) if raises else ("done", 0))


async def test_an_end_that_is_refused_is_a_failed_attempt(shop: Workshop) -> None:
    @shop.task()
    async def seven() -> int:
        return 7

    shop.store.failing["end"] = [PersistenceError(doing="write", problem="disk full", outcome="refused")]
    row = await shop.ended(seven)
    assert (row.state, row.failures) == ("later", 1)
    assert "disk full" in row.errors[0].error


async def test_a_key_that_is_taken_meanwhile_is_a_failed_attempt(shop: Workshop) -> None:
    await insert(shop.storage, job(600, key="k"))

    @shop.task()
    async def sends() -> None:
        work = handling.get()
        assert work is not None
        effects_of(work).jobs.append(job(601, key="k"))

    row = await shop.ended(sends)
    assert (row.state, row.failures) == ("later", 1)


# Drain and eviction


async def test_a_drain_lets_bodies_end_and_gives_the_others_back(storage: Storage, desk: Desk) -> None:
    go_on, ended = asyncio.Event(), asyncio.Event()
    async with opened(Workshop(storage, desk, drain="300ms", jobs=2)) as shop:

        @shop.task()
        async def short() -> str:
            await go_on.wait()
            return "ended"

        @shop.task()
        async def long() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()

        one, two = await shop.begin(short), await shop.begin(long)
        waiting = await shop.begin(short)
        draining = asyncio.create_task(shop.worker.drain())
        assert (await shop.over(waiting)).outcome == "returned"
        late = await shop.begin(short)
        assert (await shop.over(late)).outcome == "returned"
        go_on.set()
        assert (await shop.over(one)).outcome == "ended"
        await draining
        assert ended.is_set()
        rows = [await shop.row(each) for each in (one, two, waiting, late)]
        assert [(row.state, row.failures, row.lost) for row in rows] == [
            ("done", 0, 0), ("ready", 0, 0), ("ready", 0, 0), ("ready", 0, 0),
        ]  # fmt: skip
        assert shop.worker.slots("h", SlotsQuestion(ONE, 1)).is_draining


async def test_what_could_not_be_given_back_is_given_back_by_a_later_sweep(shop: Workshop) -> None:
    delivery = await shop.claimed("newer")
    shop.store.failing["give_back"] = [PersistenceError(doing="write", problem="away", outcome="unreachable")]
    await shop.assign(delivery)
    assert (await shop.over(delivery)).outcome == "returned"
    assert shop.store.calls.count("give_back") == 2
    assert (await shop.row(delivery)).state == "parked"


async def test_a_thread_that_outlives_the_drain_is_not_given_back(
    storage: Storage, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T7: a second body beside it could begin elsewhere; it is taken back when the runner is gone."""
    monkeypatch.setattr("coterie.tasks.worker.worker.GRACE_S", 0.1)
    go_on, begun = threading.Event(), threading.Event()
    async with opened(Workshop(storage, desk, drain="50ms")) as shop:

        @shop.task()
        def stubborn() -> None:
            begun.set()
            go_on.wait(60)

        delivery = await shop.begin(stubborn)
        await until(begun.is_set)
        await shop.worker.drain()
        row = await shop.row(delivery)
        go_on.set()
        assert (row.state, row.runner) == ("claimed", A)


async def test_an_eviction_cancels_all_bodies_and_writes_nothing(shop: Workshop) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @shop.task()
    async def waits() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    delivery = await shop.begin(waits)
    await begun.wait()
    async with joined(shop.storage, B) as other:
        await evict(other, A)
    shop.worker.abandon()
    await shop.worker.settle()
    assert ended.is_set()
    shop.worker.begin("c" * 32)
    row = await shop.row(delivery)
    assert (row.state, row.runner, row.failures) == ("claimed", None, 0)


async def test_without_trust_nothing_begins(shop: Workshop) -> None:
    ran = asyncio.Event()

    @shop.task()
    async def runs() -> None:
        ran.set()

    shop.runner.is_trusted = False
    delivery = await shop.begin(runs)
    assert (await shop.over(delivery)).outcome == "returned"
    assert not ran.is_set()
