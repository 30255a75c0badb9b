"""`cluster.sync()`: the methods of a cluster without await, from threads (O3)."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from coterie import (
    Cluster,
    ConfigurationError,
    DeferredRejected,
    KeyConflict,
    KeyValueStore,
    MalformedMessage,
    MessageCancelled,
    ShuttingDown,
    WorkflowFailed,
    WorkflowHandle,
    WorkflowInterrupted,
    WorkflowNotFound,
)
from coterie.interop import loop_thread
from coterie.interop.sync import SyncCluster, SyncKeyValueStore, SyncWorkflowHandle
from coterie.program import Program
from tests.unit.interop.blocking_program import (
    FAR,
    Account,
    Refused,
    approve,
    double,
    greet,
    labels,
    program,
    runner,
    tokens,
    waits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/sync.db"
    fresh: str = request.getfixturevalue("postgres_url")
    return fresh


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[Cluster]:
    """Nobody else is there, on one engine: for what needs no runner."""
    cluster = Cluster(f"sqlite:///{tmp_path}/lone.db")
    yield cluster
    with cluster.sync() as c:
        c.disconnect()


@pytest.fixture
def c(url: str) -> Iterator[SyncCluster]:
    """A blocking client of a runner."""
    with runner(url), program(url).sync() as c:
        yield c
        c.disconnect()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.005)


# What it does


def test_calls_and_messages(c: SyncCluster) -> None:
    account = c.ref(Account, "alice", timeout=FAR)
    assert c.call(account.echo(7)) == 7
    with pytest.raises(Refused, match="no"):
        c.call(account.refuse())
    message = c.send(account.deposit("gift", 5))
    assert c.result(message, timeout=FAR) == "gift: 5"
    assert c.call(account.deposit("gift", 5)) == "gift: 5"
    with pytest.raises(KeyConflict):
        c.send(account.deposit("gift", 6))
    many = c.send_many((account.deposit(f"order-{number}", 1) for number in range(3)), delay="1ms")
    assert [c.result(each, timeout=FAR) for each in many] == ["order-0: 1", "order-1: 1", "order-2: 1"]
    later = c.send(account.deposit("later", 1), delay="1h", key="later-1")
    assert c.cancel(later)
    assert not c.cancel(later)
    with pytest.raises(MessageCancelled):
        c.result(later)
    assert list(c.broadcast(Account.echo, 3).values.values()) == [3]
    assert c.reset(Account, "alice") == 0
    assert c.shards()[c.shard_of(Account, "alice")] is not None


def test_workflows_and_deferreds(c: SyncCluster) -> None:
    run = c.start_workflow(double, 4, id="four")
    assert (run.id, run.result(timeout=FAR), run.status()) == ("four", 8, "done")
    assert c.workflow_handle(double, "four").result(timeout=FAR) == 8
    with pytest.raises(WorkflowNotFound):
        c.workflow_handle(double, "five").status()
    with pytest.raises(KeyConflict):
        c.start_workflow(double, 5, id="four")

    yes, no, never = (c.start_workflow(approve, name, id=name) for name in ("yes", "no", "never"))
    until(lambda: {"yes", "no", "never"} <= tokens.keys())
    c.resolve(tokens["yes"], "please")
    assert yes.result(timeout=FAR) == "yes please"
    c.reject(tokens["no"], "not today")
    with pytest.raises(WorkflowFailed, match="not today") as failed:
        no.result(timeout=FAR)
    assert isinstance(failed.value.__cause__, DeferredRejected)
    never.resume()
    never.interrupt()
    with pytest.raises(WorkflowInterrupted):
        never.result(timeout=FAR)
    tokens.clear()


def test_runs_are_sent_messages_and_followed(c: SyncCluster) -> None:
    run = c.start_workflow(greet, "hello", id="greeting", tags={"of": "tests"})
    for name in ("ann", "bob"):
        run.send("name", name, key=name)
        run.send("name", name, key=name)
    said = run.follow("said", str)
    assert [next(said), next(said)] == ["hello ann", "hello bob"]
    assert run.published("said", str) == "hello bob"
    run.send("name", "")
    assert list(said) == []
    assert run.result(timeout=FAR) == "bye"
    assert list(run.follow("said", str, after=1)) == ["hello bob"]
    assert {each.name for each in run.steps()} >= {"name", "said"}


def test_jobs_are_sent_and_called(c: SyncCluster) -> None:
    label = labels[-1]
    job = c.send(label.job("ab", 2), key="one", tags={"of": "tests"})
    assert c.send(label.job("ab", 2), key="one") == job
    assert c.result(job, timeout=FAR) == "abab"
    assert c.call(label.job("c", 3), timeout=FAR) == "ccc"
    many = c.send_many([label.job("d", number) for number in range(3)])
    assert [c.result(each, timeout=FAR) for each in many] == ["", "d", "dd"]
    later = c.send(label.job("e", 1), delay="1h")
    assert c.cancel(later)


ON_THE_LOOP = {
    *("connect", "client_lifespan", "is_shutting_down", "lifespan", "poll_storage", "ready", "start", "stop", "sync"),
    *("is_local", "transaction", "run"),
    *("crons", "entities", "groups", "jobs", "queues", "schedules", "singletons", "tasks", "workflows"),
}
"""What runners are for, what differs without a loop, and what `c.run` is for."""


@pytest.mark.parametrize(
    ("awaited", "blocking"),
    [(Cluster, SyncCluster), (WorkflowHandle, SyncWorkflowHandle), (KeyValueStore, SyncKeyValueStore)],
)
def test_each_method_has_the_options_of_the_one_that_is_awaited(awaited: type, blocking: type) -> None:
    for name, method in vars(awaited).items():
        if not name.startswith("_") and callable(method) and name not in ON_THE_LOOP:
            options = list(inspect.signature(getattr(blocking, name)).parameters)
            assert options == list(inspect.signature(method).parameters), name


def test_keys_ids_and_health(c: SyncCluster) -> None:
    assert c.kv.is_empty()
    c.kv.set("a", 1)
    assert (c.kv.get("a"), c.kv.has("a"), c.kv.has("b"), c.kv.size()) == (1, True, False, 1)
    assert c.kv.modify("a", lambda old: (old or 0) + 1) == 2
    numbers = c.kv.prefix("n:").typed(int)
    for number in range(450):  # more than two pages
        numbers.set(f"{number:03}", number, ttl="1h")
    assert list(numbers.items()) == [(f"{number:03}", number) for number in range(450)]
    assert next(iter(numbers.items())) == ("000", 0)
    with pytest.raises(MalformedMessage):
        numbers.set("x", "a text")  # type: ignore[arg-type]
    assert (c.kv.remove("a"), c.kv.remove("a"), numbers.clear()) == (True, False, 450)
    assert c.next_id() < c.next_id()
    assert c.health().status in ("healthy", "degraded")


def test_what_has_no_method_is_run_on_the_loop(lone: Cluster) -> None:
    with lone.sync() as c:
        assert c.run(lone.runners.list) == ()


# Threads


@pytest.mark.parametrize("each", [25, pytest.param(1_000, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])])
def test_forty_threads_call_at_once(c: SyncCluster, each: int) -> None:
    def calls(thread: int) -> int:
        account = c.ref(Account, f"account-{thread}", timeout=FAR)
        return sum(c.call(account.echo(number)) for number in range(each))

    with ThreadPoolExecutor(40) as threads:
        assert list(threads.map(calls, range(40))) == [each * (each - 1) // 2] * 40


def test_threads_that_come_together_share_one_client(lone: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    new_client = Program.new_client

    def counted(self: Program, *args: Any) -> Any:
        made.append(self)
        return new_client(self, *args)

    monkeypatch.setattr(Program, "new_client", counted)
    together = threading.Barrier(20)

    def use(number: int) -> None:
        with lone.sync() as c:
            together.wait()
            c.kv.set(f"{number}", number)

    with ThreadPoolExecutor(20) as threads:
        list(threads.map(use, range(20)))
    assert len(made) == 1
    with lone.sync() as c:
        assert c.kv.size() == 20


def test_each_process_has_one_loop_for_all_clusters(lone: Cluster, tmp_path: Path) -> None:
    other = Cluster(f"sqlite:///{tmp_path}/other.db")
    with lone.sync() as c, other.sync() as d:
        assert c.run(loop_here) is d.run(loop_here)
        c.kv.set("a", 1)
        assert d.kv.get("a") is None, "each has its own client"
        d.disconnect()
        assert c.kv.get("a") == 1


async def loop_here() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_the_callers_context_is_copied_and_the_client_has_its_own(
    lone: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = contextvars.ContextVar("variable", default="none")
    clients: list[str] = []
    new_client = Program.new_client

    def noted(self: Program, *args: Any) -> Any:
        clients.append(variable.get())
        return new_client(self, *args)

    async def change() -> str:
        before = variable.get()
        variable.set("changed")
        return before

    monkeypatch.setattr(Program, "new_client", noted)
    variable.set("the caller's")
    with lone.sync() as c:
        assert c.run(change) == "the caller's"
        assert c.run(change) == "the caller's"
    assert (variable.get(), clients) == ("the caller's", ["none"])


# Trouble


def test_a_client_that_cannot_connect_says_so_and_the_next_call_tries_again(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    with Cluster(f"sqlite:///{folder}/sync.db").sync() as c:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=r"the folder .* does not exist"):
                c.kv.get("a")
        folder.mkdir()
        assert c.kv.get("a") is None
        c.disconnect()


def test_after_disconnecting_the_next_call_connects_anew(lone: Cluster) -> None:
    with lone.sync() as c:
        c.kv.set("a", 1)
        c.disconnect()
        c.disconnect()
        assert c.kv.get("a") == 1


class TimeLimit(Exception):
    """Raised by a signal handler, as Celery's soft time limit is."""


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals come to the main thread")
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeLimit])
def test_a_call_whose_thread_is_interrupted_is_cancelled(
    c: SyncCluster, request: pytest.FixtureRequest, error: type[BaseException]
) -> None:
    def interrupt(*_: object) -> None:
        raise error

    name = request.node.name
    before = signal.signal(signal.SIGUSR1, interrupt)

    def once_it_waits() -> None:
        until(lambda: name in waits)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    aside = threading.Thread(target=once_it_waits)
    aside.start()
    try:
        with pytest.raises(error):
            c.call(c.ref(Account, "alice").wait(name))
    finally:
        signal.signal(signal.SIGUSR1, before)
        aside.join()
    until(lambda: waits[name] == "cancelled")
    assert c.call(c.ref(Account, "bob", timeout=FAR).echo(1)) == 1, "the client works on"


async def test_it_is_refused_where_an_event_loop_runs(lone: Cluster) -> None:
    refusal = r"would block the event loop .* await the methods of the cluster itself"
    with pytest.raises(RuntimeError, match=refusal), lone.sync():
        pass

    def opened() -> SyncCluster:
        with lone.sync() as c:
            c.kv.get("a")
            c._is_open = False
        c._is_open = True
        return c

    c = await asyncio.to_thread(opened)
    for blocked in (c.next_id, c.disconnect):
        with pytest.raises(RuntimeError, match="would block the event loop"):
            blocked()
    await asyncio.to_thread(c.disconnect)


@pytest.mark.parametrize(
    ("module", "asked"), [("gevent.monkey", "is_module_patched"), ("eventlet.patcher", "is_monkey_patched")]
)
def test_it_is_refused_where_threads_are_replaced(
    lone: Cluster, monkeypatch: pytest.MonkeyPatch, module: str, asked: str
) -> None:
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{asked: lambda _: True}))
    refusal = f"{module.partition('.')[0]} has replaced those of this process"
    with pytest.raises(RuntimeError, match=refusal), lone.sync():
        pass
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{asked: lambda _: False}))
    with lone.sync() as c:
        c.kv.get("a")


def test_a_block_that_has_ended_is_refused(tmp_path: Path) -> None:
    """Without a warning that a call was never awaited: that was refused too, and all warnings are errors here."""
    with program(f"sqlite:///{tmp_path}/never.db").sync() as c:
        account = c.ref(Account, "alice")
    for use in (c.next_id, lambda: c.call(account.echo(1)), lambda: c.send(account.deposit("gift", 1))):
        with pytest.raises(RuntimeError, match=r"block has ended: open another one"):
            use()
    with c, pytest.raises(TypeError, match=r"cluster\.call takes a call"):
        c.call(asyncio.sleep(0))
    with c, pytest.raises(TypeError, match=r"Account/alice\.echo is not persisted"):
        c.send_many([account.deposit("gift", 1), account.echo(1), account.deposit("other", 1)])
    c.disconnect()


# Beside a loop of the program's own


async def test_threads_of_a_program_that_runs_the_cluster_call_on_its_loop(url: str) -> None:
    cluster = program(url)

    def use() -> tuple[int, str, object]:
        with cluster.sync() as c:
            account = c.ref(Account, "alice", timeout=FAR)
            return c.call(account.echo(1)), c.call(account.where()), c.run(loop_here)

    async with cluster:
        await cluster.ready(timeout=FAR)
        here = asyncio.get_running_loop()
        assert await asyncio.to_thread(use) == (1, threading.current_thread().name, here)
        assert loop_thread._thread is None or cluster._participant not in loop_thread._thread.clients


async def test_a_call_of_a_thread_ends_with_the_loop_that_makes_it(lone: Cluster) -> None:
    """Not with a CancelledError, which is none of the thread's."""
    began, told = threading.Event(), []

    async def wait() -> None:
        began.set()
        await asyncio.Event().wait()

    def use() -> None:
        with lone.sync() as c:
            try:
                c.run(wait)
            except ShuttingDown as error:
                told.append(error)

    async def live() -> None:
        async with lone.connect():
            thread.start()
            await asyncio.to_thread(began.wait, 60)

    thread = threading.Thread(target=use)
    await asyncio.to_thread(asyncio.run, live())
    await asyncio.to_thread(thread.join, 60)
    assert len(told) == 1


async def test_a_call_that_a_closing_loop_never_begins_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "_LOOK_S", 0.01)
    loop = asyncio.new_event_loop()
    call = loop_thread.ThreadCall(loop_here, loop, loop_thread._tasks)
    waiting = asyncio.get_running_loop().run_in_executor(None, call.run)
    await asyncio.to_thread(until, lambda: loop._ready)  # type: ignore[attr-defined]
    loop.close()
    with pytest.raises(ShuttingDown):
        await waiting
    with pytest.raises(ShuttingDown):
        await asyncio.to_thread(loop_thread.ThreadCall(loop_here, loop, loop_thread._tasks).run)


async def test_a_client_for_the_life_of_a_web_application(lone: Cluster) -> None:
    async with lone.client_lifespan(object()):
        await lone.kv.set("a", 1)
        assert await lone.runners.list() == ()

        def use() -> object:
            with lone.sync() as c:
                return c.kv.get("a"), c.run(loop_here)

        assert await asyncio.to_thread(use) == (1, asyncio.get_running_loop())


def test_blocking_work_of_a_call_is_done_in_the_thread_that_waits(lone: Cluster) -> None:
    """A database connection may belong to it. What interrupts that thread meanwhile cancels the call."""
    ends: list[str] = []

    async def work(do: Callable[[], object]) -> object:
        try:
            return await loop_thread.in_waiting_thread(do)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    def interrupt() -> None:
        raise KeyboardInterrupt

    with lone.sync() as c:
        assert c.run(lambda: work(threading.get_ident)) == threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            c.run(lambda: work(lambda: 1 // 0))
        with pytest.raises(KeyboardInterrupt):
            c.run(lambda: work(interrupt))
        deadline_s = time.monotonic() + 120
        while ends != ["cancelled"]:
            assert time.monotonic() < deadline_s
            c.run(lambda: asyncio.sleep(0))
        assert c.run(lambda: work(lambda: "again")) == "again"
