"""Middleware around handlers, ticks and steps, on real engines (O5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import pytest

from coterie import (
    CallNext,
    Cluster,
    ConfigurationError,
    Entity,
    Leader,
    RemoteError,
    Retry,
    Tick,
    Workflow,
    WorkInfo,
    current,
    rpc,
)
from tests.scenario.persisted.entity_program import until

FAR = "2m"
NEVER = "0 0 29 2 *"  # not while this test runs
user: ContextVar[str] = ContextVar("user", default="nobody")


@dataclass
class Total:
    cents: int = 0


class Forbidden(Exception):
    """Declared by one rpc."""


class Around:
    """Two middlewares, and what they saw, in order."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.works: list[WorkInfo] = []
        self.answer: Any = None
        self.error: Exception | None = None

    def to(self, cluster: Cluster) -> None:
        cluster.middleware(self.outer)
        cluster.middleware(self.inner)

    async def outer(self, work: WorkInfo, call_next: CallNext) -> Any:
        self.works.append(work)
        self.seen.append(f"outer {work.kind} {work.target} {work.attempt}")
        assert work.context.runner_id == current().runner_id is not None
        try:
            return await call_next()
        except Exception as error:
            self.seen.append(f"outer saw {type(error).__name__}")
            raise

    async def inner(self, work: WorkInfo, call_next: CallNext) -> Any:
        self.seen.append("inner")
        user.set("alice")
        if self.error is not None:
            raise self.error
        result = await call_next()
        self.seen.append("left")
        return result if self.answer is None else self.answer


@pytest.fixture
def around() -> Around:
    return Around()


class Program(Cluster):
    """With the entity that its tests call."""

    account: Any


def program(url: str, around: Around) -> Program:
    cluster = Program(url, shards=4)
    around.to(cluster)

    @cluster.entity(retry=Retry(attempts=3, base="1ms"))
    class Account(Entity[Total]):
        @rpc(persisted=True, key="order", errors=[Forbidden])
        async def deposit(self, order: str, cents: int) -> int:
            around.seen.append(f"body of {user.get()}")
            self.state.cents += cents
            return self.state.cents

        @rpc
        def plain(self) -> str:
            return user.get()

        @rpc
        async def items(self) -> AsyncIterator[str]:
            yield user.get()
            yield "end"

        @rpc(persisted=True)
        async def flaky(self) -> None:
            if current().attempt == 1:
                raise ValueError("no luck")

    cluster.account = Account
    return cluster


async def test_the_first_one_defined_is_the_outermost_and_a_body_sees_what_they_set(url: str, around: Around) -> None:
    async with (cluster := program(url, around)):
        account = cluster.ref(cluster.account, "a", timeout=FAR)
        assert await account.deposit("gift", 5) == 5
        assert around.seen == ["outer rpc Account/a.deposit 1", "inner", "body of alice", "left"]
        (work,) = around.works
        assert (work.name, work.id, work.method, work.key) == ("Account", "a", "deposit", current_key(work))
        assert work.message_id is not None
        assert await account.plain() == "alice", "in a thread too"
        assert await account.deposit("gift", 5) == 5, "the stored reply of the key"
        assert len(around.works) == 2, "which runs no middleware"


def current_key(work: WorkInfo) -> str:
    assert work.key is not None
    assert "gift" in work.key
    return work.key


async def test_what_it_raises_is_the_failure_of_the_attempt(url: str, around: Around) -> None:
    async with (cluster := program(url, around)):
        account = cluster.ref(cluster.account, "a", timeout=FAR)
        around.error = Forbidden("no")
        with pytest.raises(Forbidden):
            await account.deposit("gift", 5)
        with pytest.raises(RemoteError, match="Forbidden"):
            await account.plain()
        around.error = None
        assert await account.deposit("next", 1) == 1, "nothing was committed"
        assert "body of alice" in around.seen


async def test_what_it_returns_is_checked_and_committed_as_the_result(url: str, around: Around) -> None:
    async with (cluster := program(url, around)):
        account = cluster.ref(cluster.account, "a", timeout=FAR)
        around.answer = 99
        assert await account.deposit("gift", 5) == 99
        with pytest.raises(RemoteError, match=r"result of Account.plain: it is 99 .*expected text"):
            await account.plain()
        around.answer = None
        assert await account.deposit("gift", 5) == 99, "that is what is stored"
        assert await account.deposit("next", 1) == 6, "with the state"


async def test_it_runs_once_for_each_attempt(url: str, around: Around) -> None:
    async with (cluster := program(url, around)):
        await cluster.ref(cluster.account, "a", timeout=FAR).flaky()
        assert [line for line in around.seen if line.startswith("outer")] == [
            "outer rpc Account/a.flaky 1",
            "outer saw ValueError",
            "outer rpc Account/a.flaky 2",
        ]


async def test_it_is_around_a_whole_stream(url: str, around: Around) -> None:
    async with (cluster := program(url, around)):
        around.answer = "ignored"
        account = cluster.ref(cluster.account, "a", timeout=FAR)
        assert [item async for item in account.items()] == ["alice", "end"]
        assert around.seen == ["outer stream Account/a.items 1", "inner", "left"]


async def test_ticks_and_steps_have_it_and_stored_steps_and_other_bodies_do_not(url: str, around: Around) -> None:
    cluster = program(url, around)
    bodies: list[str] = []

    def step(number: int) -> str:
        return f"{user.get()} {number}"

    @cluster.workflow
    async def flow(workflow: Workflow, number: int) -> str:
        assert user.get() == "nobody"
        stored = await workflow.step("first", step, number)
        await workflow.sleep("1500ms", name="leaves memory")
        return stored

    @cluster.cron("report", NEVER)
    async def report(tick: Tick) -> None:
        bodies.append(user.get())
        await tick.step("count", step, 2)

    @cluster.singleton("leads")
    async def leads(leader: Leader[None]) -> None:
        bodies.append(user.get())

    async with cluster:
        run = await cluster.start_workflow(flow, 1, id="x")
        assert await run.result(timeout=FAR) == "alice 1"
        assert around.seen == ["outer step flow/x.first 1", "inner", "left"]
        around.seen.clear()
        tick = await cluster.crons.trigger("report")
        await cluster.crons.wait(tick, timeout=FAR)
        await until(lambda: len(bodies) == 2)
        assert sorted(bodies) == ["alice", "nobody"]
        at = f"{tick.scheduled_at:%Y-%m-%dT%H:%M:%SZ}"
        assert around.seen[:2] == [f"outer tick report/{at} 1", "inner"]
        assert around.seen[2].startswith("outer step report/manual/")
        assert around.seen[2].endswith(".count 1")


async def test_compensations_have_it(url: str, around: Around) -> None:
    cluster = program(url, around)

    async def undo() -> None:
        around.seen.append(f"undone by {user.get()}")

    @cluster.workflow
    async def flow(workflow: Workflow, number: int) -> None:
        workflow.compensate("undo", undo)
        raise ValueError("no")

    async with cluster:
        run = await cluster.start_workflow(flow, 1, id="x")
        with pytest.raises(Exception, match="no"):
            await run.result(timeout=FAR)
        assert around.seen == ["outer compensation flow/x.undo 1", "inner", "undone by alice", "left"]


async def test_an_attempt_runs_once(url: str) -> None:
    cluster = Cluster(url, shards=1)

    @cluster.middleware
    async def twice(work: WorkInfo, call_next: CallNext) -> Any:
        await call_next()
        return await call_next()

    @cluster.entity
    class Echo(Entity):
        @rpc
        async def echo(self) -> int:
            return 1

    async with cluster:
        with pytest.raises(RemoteError, match=r"call_next of Echo/a.echo was called twice"):
            await cluster.ref(Echo, "a", timeout=FAR).echo()


async def test_its_time_counts(url: str) -> None:
    """Inside of the time limit of the call."""
    cluster = Cluster(url, shards=1)
    ended = asyncio.Event()

    @cluster.middleware
    async def slow(work: WorkInfo, call_next: CallNext) -> Any:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    @cluster.entity
    class Echo(Entity):
        @rpc(timeout="100ms")
        async def echo(self) -> int:
            return 1

    async with cluster:
        with pytest.raises(Exception, match="no reply"):
            await cluster.ref(Echo, "a").echo()
        async with asyncio.timeout(120):
            await ended.wait()


# Definitions


def plain(work: WorkInfo, call_next: CallNext) -> None: ...


async def of_one(work: WorkInfo) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (plain, "middleware plain is no async function: write async def plain(work, call_next)"),
        (of_one, "middleware of_one does not take two arguments, the work and call_next: write async def of_one"),
        (5, "middleware 5 is no async function: write async def around(work, call_next)"),
    ],
    ids=["plain", "one argument", "number"],
)
def test_what_is_no_middleware_is_refused(wrong: Any, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Cluster("sqlite://").middleware(wrong)
    assert str(refused.value).startswith(says)
