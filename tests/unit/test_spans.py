"""Traces through OpenTelemetry (H5, K4): one trace across caller, wire, storage and handler; else nothing."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator  # annotations of rpcs are read at run time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import StatusCode

from coterie import Cluster, Entity, Leader, Retry, Tick, Workflow, current, rpc, within_cluster
from coterie.kernel import spans as kernel_spans
from coterie.testing import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from opentelemetry.trace import Tracer

SECRET = "secret-4711"


class Declared(Exception):
    """Declared."""


class Account(Entity):
    count = 0

    @rpc
    async def trace(self) -> str | None:
        return current().trace_id

    @rpc
    async def wait(self, text: str) -> str | None:
        await asyncio.sleep(0)
        return current().trace_id

    @rpc(errors=[Declared])
    async def refuse(self) -> None:
        raise Declared(SECRET[:6])

    @rpc
    async def forward(self, to: str) -> str | None:
        return await self.cluster.ref(Account, to).trace()

    @rpc
    async def numbers(self, to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    @rpc(persisted=True)
    async def charge(self, cents: int) -> str | None:
        return current().trace_id

    @rpc(persisted=True)
    async def relay(self, to: str) -> None:
        await self.cluster.send(self.cluster.ref(Account, to).charge(1))

    @rpc(persisted=True)
    async def recover(self) -> int | None:
        attempt = current().attempt
        if attempt == 1:
            raise RuntimeError("the first attempt")
        return attempt


class Sleeper(Entity):
    async def on_activate(self) -> None:
        self.traces = [await self.cluster.ref(Account, "woken").trace()]

    @rpc
    async def woken(self) -> list[str | None]:
        return self.traces


SIMULATED = Cluster("sqlite://", shards=4)
SIMULATED.entity(Account)


class Spans:
    """What was exported."""

    def __init__(self, tracer: Tracer, exporter: InMemorySpanExporter) -> None:
        self.tracer = tracer
        self._exporter = exporter

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def of(self, name: str) -> list[ReadableSpan]:
        """Those of a name, in the order in which they ended."""
        return [each for each in self.all() if each.name == name]

    async def one(self, name: str, *, count: int = 1) -> ReadableSpan:
        """The last of so many of a name, when they have ended."""
        async with asyncio.timeout(120):
            while len(self.of(name)) < count:
                await asyncio.sleep(0.005)
        return self.of(name)[-1]


def spans_of(provider: TracerProvider) -> Spans:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Spans(provider.get_tracer("test"), exporter)


@pytest.fixture
def spans() -> Iterator[Spans]:
    """With a provider of the test's own: the program's is set once in a process."""
    provider = TracerProvider(shutdown_on_exit=False)
    kernel_spans.install(provider.get_tracer("coterie"))
    yield spans_of(provider)
    kernel_spans.install(None)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = Cluster(f"sqlite:///{tmp_path}/traces.db", shards=2, retry=Retry(attempts=3, base="1ms"))
    cluster.entity(Account)
    cluster.entity(Sleeper)
    return cluster


@asynccontextmanager
async def running(cluster: Cluster) -> AsyncIterator[Any]:
    async with cluster:
        await cluster.ready(timeout="2m")
        yield lambda name="alice": cluster.ref(Account, name)


def id_of(span: ReadableSpan) -> str:
    return f"{span.get_span_context().trace_id:032x}"  # type: ignore[union-attr] # it was started


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    found, wanted = span.parent, parent.get_span_context()
    assert wanted is not None
    return found is not None and (found.trace_id, found.span_id) == (wanted.trace_id, wanted.span_id)


def facts_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


# Calls


async def test_a_call_has_a_span_at_both_ends_and_the_handlers_is_a_child(cluster: Cluster, spans: Spans) -> None:
    async with running(cluster) as account:
        with spans.tracer.start_as_current_span("mine"):
            told = await account().trace()
    (mine,), (called,), (handled,) = spans.of("mine"), spans.of("cluster.call"), spans.of("entity.Account.trace")
    assert is_child(called, mine)
    assert is_child(handled, called)
    assert told == id_of(mine) == id_of(handled)
    assert (called.kind.name, handled.kind.name) == ("CLIENT", "SERVER")
    assert facts_of(called) == {"coterie.entity_type": "Account", "coterie.entity_id": "alice", "coterie.rpc": "trace"}
    facts = facts_of(handled)
    assert (facts["coterie.entity_type"], facts["coterie.entity_id"]) == ("Account", "alice")
    assert facts["coterie.shard"].startswith("default:")
    assert facts["coterie.epoch"] >= 1
    assert len(facts["coterie.runner"]) == 32


async def test_a_call_over_the_wire_is_of_the_same_trace(cluster: Cluster, spans: Spans, tmp_path: Path) -> None:
    client = Cluster(f"sqlite:///{tmp_path}/traces.db", shards=2)
    client.entity(Account)
    async with running(cluster), client.connect():
        told = [await client.ref(Account, "alice").trace(), await client.ref(Account, "bob").forward("alice")]
        items = [item async for item in client.ref(Account, "alice").numbers(3)]
    assert items == [0, 1, 2]
    for number, handled in enumerate(spans.of("entity.Account.trace")):
        assert told[number] == id_of(handled)
    (forward,), inner = spans.of("entity.Account.forward"), spans.of("entity.Account.trace")[1]
    between = next(each for each in spans.of("cluster.call") if is_child(each, forward))
    assert is_child(inner, between)
    (stream,) = spans.of("entity.Account.numbers")
    asked = next(each for each in spans.of("cluster.call") if facts_of(each)["coterie.rpc"] == "numbers")
    assert is_child(stream, asked)


async def test_a_caller_without_a_span_begins_a_trace_and_each_its_own(cluster: Cluster, spans: Spans) -> None:
    async with running(cluster) as account:
        told = [await account().trace() for _ in range(3)]
        assert not trace.get_current_span().get_span_context().is_valid
    assert len(set(told)) == 3
    assert told == [id_of(each) for each in spans.of("entity.Account.trace")]
    assert not any(each.parent for each in spans.of("cluster.call"))


async def test_contexts_never_leak_from_one_caller_into_another(cluster: Cluster, spans: Spans) -> None:
    """Nor from whoever started the cluster: 200 callers at once, of one entity and of many."""

    async def caller(number: int) -> None:
        with spans.tracer.start_as_current_span(f"caller {number}") as mine:
            for name in ("shared", f"own-{number}"):
                told = await account(name).wait(SECRET)
                assert told == f"{mine.get_span_context().trace_id:032x}"
                assert trace.get_current_span() is mine

    with spans.tracer.start_as_current_span("starts the cluster") as starter:
        await cluster.start()
    try:
        await cluster.ready(timeout="2m")

        def account(name: str) -> Account:
            return cluster.ref(Account, name)

        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(caller(number))
        assert await account("alone").trace() != f"{starter.get_span_context().trace_id:032x}"
        assert await cluster.ref(Sleeper, "s").woken() == [id_of(await spans.one("entity.Sleeper.woken"))]
    finally:
        await cluster.stop()
    assert len(spans.of("entity.Account.wait")) == 200
    (begun,) = spans.of("starts the cluster")
    assert [each.name for each in spans.all() if id_of(each) == id_of(begun)] == ["starts the cluster"]


async def test_what_a_handler_raises_is_the_status_of_both_spans(cluster: Cluster, spans: Spans) -> None:
    async with running(cluster) as account:
        with pytest.raises(Declared):
            await account().refuse()
    (called,), (handled,) = spans.of("cluster.call"), spans.of("entity.Account.refuse")
    for each in (called, handled):
        assert (each.status.status_code, each.status.description) == (StatusCode.ERROR, "Declared: secret")
        assert [event.name for event in each.events] == ["exception"]


async def test_a_broadcast_is_one_trace(cluster: Cluster, spans: Spans) -> None:
    async with running(cluster) as account:
        await account("alice").trace()
        await account("bob").trace()
        replies = await cluster.broadcast(Account.trace)
    (asked,) = spans.of("cluster.broadcast")
    assert set(replies.values.values()) == {id_of(asked)}
    assert sum(is_child(each, asked) for each in spans.of("entity.Account.trace")) == 2


async def test_asking_where_an_entity_lives_has_a_span(cluster: Cluster, spans: Spans) -> None:
    async with cluster:
        await cluster.ready(timeout="2m")
        assert cluster.is_local(cluster.ref(Account, "alice")) is True
    (found,) = spans.of("cluster.is_local")
    assert found.attributes is not None
    assert (found.attributes["coterie.entity_id"], found.attributes["coterie.is_local"]) == ("alice", "true")


async def test_an_id_that_was_given_by_hand_stays_and_a_traceparent_goes_on(cluster: Cluster, spans: Spans) -> None:
    """A bare id names no span, so a trace of its own begins; as does `current().trace_id` where nobody traces."""
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with running(cluster) as account:
        with within_cluster(trace_id=parent):
            assert await account().trace() == "0af7651916cd43dd8448eb211c80319c"
        with within_cluster(trace_id="of-the-web-request"):
            assert await account().trace() == id_of(spans.of("cluster.call")[1])
        kernel_spans.install(None)
        with within_cluster(trace_id=parent):
            assert await account().trace() == "0af7651916cd43dd8448eb211c80319c"
        with within_cluster(trace_id="of-the-web-request"):
            assert await account().trace() == "of-the-web-request"
    called, named = spans.of("cluster.call")
    assert (named.parent, facts_of(named)["coterie.trace_id"]) == (None, "of-the-web-request")
    assert called.parent is not None
    assert (f"{called.parent.span_id:016x}", called.parent.is_remote) == ("b7ad6b7169203331", True)


# Storage


async def test_a_persisted_call_is_of_the_callers_trace_through_storage(cluster: Cluster, spans: Spans) -> None:
    async with running(cluster) as account:
        told = await account().charge(5)
        (info,) = await cluster.messages.list()
        row = (await cluster._acting().storage.messages.look([str(info.id)]))[0]
    (called,), (handled,) = spans.of("cluster.call"), spans.of("entity.Account.charge")
    assert is_child(handled, called)
    assert told == info.trace_id == id_of(called)
    assert (row.trace_id or "").startswith(f"00-{told}-")
    assert handled.kind.name == "CONSUMER"
    assert facts_of(handled)["coterie.message_id"] == info.id


async def test_what_is_sent_now_later_and_by_handlers_is_of_the_senders_trace(cluster: Cluster, spans: Spans) -> None:
    async with running(cluster) as account:
        with spans.tracer.start_as_current_span("mine"):
            await cluster.send(account("later").charge(1), delay="30ms")
            await cluster.send(account("relay").relay("relayed"))
            await cluster.send(account("volatile").trace())
        await spans.one("entity.Account.charge", count=2)
        await spans.one("entity.Account.trace")
    (mine,) = spans.of("mine")
    sent = spans.of("cluster.send")
    assert [each.kind.name for each in sent] == ["PRODUCER"] * 4
    assert {id_of(each) for each in spans.all()} == {id_of(mine)}
    for each in spans.all():
        if each.name.startswith("entity."):
            assert sum(is_child(each, sender) for sender in sent) == 1
    (relay,) = spans.of("entity.Account.relay")
    assert sum(is_child(each, relay) for each in sent) == 1


async def test_each_attempt_at_a_message_has_a_span(cluster: Cluster, spans: Spans) -> None:
    async with running(cluster) as account:
        assert await account().recover() == 2
    first, second = spans.of("entity.Account.recover")
    (called,) = spans.of("cluster.call")
    assert is_child(first, called)
    assert is_child(second, called)
    assert (first.status.status_code, second.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert [facts_of(each)["coterie.attempt"] for each in (first, second)] == [1, 2]


# Leaders, crons, workflows


async def test_each_run_of_a_singleton_has_a_span(cluster: Cluster, spans: Spans) -> None:
    told: list[str | None] = []

    @cluster.singleton("importer", every="1ms")
    async def importer(leader: Leader[None]) -> None:
        told.append(current().trace_id)
        if len(told) == 1:
            raise RuntimeError("the first run")
        await cluster.ref(Account, "alice").trace()

    async with running(cluster):
        await spans.one("singleton.importer", count=2)
    first, second = spans.of("singleton.importer")[:2]
    assert first.status.status_code is StatusCode.ERROR
    assert told[:2] == [id_of(first), id_of(second)]
    assert told[0] != told[1]
    assert facts_of(second)["coterie.seat"] == "importer"
    assert facts_of(second)["coterie.epoch"] == 1
    assert is_child(spans.of("cluster.call")[0], second)


async def test_each_attempt_of_a_tick_has_a_span(cluster: Cluster, spans: Spans) -> None:
    told: list[str | None] = []

    @cluster.cron("report", "@every 1h", retry=Retry(attempts=2, base="1ms"), timeout="10s")
    async def report(tick: Tick) -> None:
        told.append(current().trace_id)
        if tick.attempt == 1:
            raise RuntimeError("the first attempt")
        await tick.step("gather", _gathered)

    async with running(cluster):
        await cluster.crons.trigger("report")
        await spans.one("cron.report", count=2)
    first, second = spans.of("cron.report")
    assert told == [id_of(first), id_of(second)]
    assert (first.status.status_code, second.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert [facts_of(each)["coterie.attempt"] for each in (first, second)] == [1, 2]
    (step,) = spans.of("step.gather")
    assert is_child(step, second)


async def _gathered() -> int:
    return 1


async def _charged(cluster: Cluster) -> str | None:
    return await cluster.ref(Account, "alice").charge(1)


async def _undone() -> None:
    """Undoes nothing."""


async def test_a_workflow_is_of_its_starters_trace_also_after_a_suspension(cluster: Cluster, spans: Spans) -> None:
    """The steps before are children of one run, those after of the next: all in the trace that is stored with it."""
    tokens: asyncio.Queue[str] = asyncio.Queue()

    async def charged() -> str | None:
        return await _charged(cluster)

    @cluster.workflow
    async def checkout(workflow: Workflow, order: str) -> str | None:
        await workflow.step("charge", charged)
        approval = workflow.deferred("approval", str)
        tokens.put_nowait(approval.token)
        await approval.wait()
        await workflow.step("pack", charged)
        return current().trace_id

    async with running(cluster):
        with spans.tracer.start_as_current_span("mine"):
            run = await cluster.start_workflow(checkout, SECRET, id="7")
        await spans.one("workflow.checkout")
        assert await run.status() == "suspended"
        again = await cluster.start_workflow(checkout, SECRET, id="7")  # another trace: no other payload for all that
        await cluster.resolve(await tokens.get(), "bob")
        told = await again.result(timeout="2m")
        await spans.one("workflow.checkout", count=2)
    (mine,), started = spans.of("mine"), spans.of("cluster.start_workflow")[0]
    first, second = spans.of("workflow.checkout")
    assert is_child(started, mine)
    assert is_child(first, started)
    assert is_child(second, started)
    assert [facts_of(each)["coterie.outcome"] for each in (first, second)] == ["suspended", "done"]
    (charge,), (pack,) = spans.of("step.charge"), spans.of("step.pack")
    assert is_child(charge, first)
    assert is_child(pack, second)
    assert told == id_of(mine)
    assert {id_of(each) for each in spans.of("entity.Account.charge")} == {told}


async def test_a_workflow_that_fails_says_so_and_undoes_in_its_trace(cluster: Cluster, spans: Spans) -> None:
    @cluster.workflow
    async def failing(workflow: Workflow, order: str) -> None:
        workflow.compensate("undo", _undone)
        raise ValueError("no")

    async with running(cluster):
        run = await cluster.start_workflow(failing, "7", id="7")
        with suppress(Exception):
            await run.result(timeout="2m")
        failed = await spans.one("workflow.failing")
    (undone,) = spans.of("step.undo")
    assert is_child(undone, failed)
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "ValueError: no")
    assert facts_of(failed)["coterie.outcome"] == "failed"


async def test_what_a_programs_sampler_or_processor_raises_costs_no_call(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler raises, the caller is told that and nothing else."""
    for broken in ("on_start", "on_end"):
        provider = TracerProvider(shutdown_on_exit=False)
        processor = SpanProcessor()
        setattr(processor, broken, _broken)
        provider.add_span_processor(processor)
        kernel_spans.install(provider.get_tracer("coterie"))
        try:
            async with running(cluster) as account:
                assert len(await account().trace()) == 32
                with pytest.raises(Declared):
                    await account().refuse()
        finally:
            kernel_spans.install(None)
    assert {each.getMessage() for each in caplog.records if each.levelname == "ERROR"} == {
        "a span could not be started",
        "a span could not be ended",
    }


def _broken(*_: object, **__: object) -> None:
    raise RuntimeError("of the program's own")


@pytest.mark.simulated(seeds=2)
async def test_spans_can_be_asserted_under_simulation(spans: Spans) -> None:
    """Where reading the real time is refused; and the order is the seed's, with spans or without."""
    async with simulate(SIMULATED, runners=2):
        trace_ids = [await SIMULATED.ref(Account, name).charge(1) for name in ("alice", "bob", "carol")]
    assert trace_ids == [id_of(each) for each in spans.of("entity.Account.charge")]
    assert sum(is_child(each, called) for each in spans.of("entity.Account.charge") for called in spans.all()) == 3


# What is not there


async def test_payloads_are_in_no_span(cluster: Cluster, spans: Spans) -> None:
    async with running(cluster) as account:
        await account().wait(SECRET)
        await cluster.send(account().wait(SECRET))
    assert spans.of("entity.Account.wait")
    assert SECRET not in "".join(each.to_json() for each in spans.all())


async def test_who_is_not_sampled_has_no_spans_anywhere(cluster: Cluster) -> None:
    """And what a handler calls is not sampled either: the flags travel."""
    provider, recording = TracerProvider(shutdown_on_exit=False), TracerProvider(ParentBased(ALWAYS_OFF))
    mine, spans = spans_of(provider), spans_of(recording)
    kernel_spans.install(recording.get_tracer("coterie"))
    try:
        async with running(cluster) as account:
            told = await account("bob").forward("alice")
            assert len(told) == 32
            assert spans.all() == []
            with mine.tracer.start_as_current_span("sampled"):
                await account("bob").forward("alice")
            assert len(spans.all()) == 4
    finally:
        kernel_spans.install(None)
        recording.shutdown()


async def test_without_a_provider_no_tracer_is_touched(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[str] = []

    def spy(where: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(where, name)

        def spied(*args: Any, **more: Any) -> Any:
            touched.append(name)
            return real(*args, **more)

        monkeypatch.setattr(where, name, spied)

    monkeypatch.setattr(trace, "get_tracer_provider", lambda: trace.ProxyTracerProvider())
    spy(trace.ProxyTracerProvider, "get_tracer")
    spy(trace.ProxyTracer, "start_span")
    spy(trace, "get_current_span")
    for name in ("start", "make_current", "finish", "here", "span", "spanned"):
        spy(kernel_spans, name)

    @cluster.singleton("idle")
    async def idle(leader: Leader[None]) -> None:
        await cluster.ref(Account, "alice").trace()

    @cluster.workflow
    async def flow(workflow: Workflow, order: str) -> int:
        return await workflow.step("gather", _gathered)

    async with running(cluster) as account:
        assert not kernel_spans.on
        assert len(await account().trace()) == len(await account().charge(1)) == 32
        await cluster.broadcast(Account.trace)
        run = await cluster.start_workflow(flow, "7", id="7")
        assert await run.result(timeout="2m") == 1
    assert touched == []


PROGRAM = """
import asyncio, sys
from coterie import Cluster
from coterie.kernel import spans as kernel_spans

async def look():
    async with Cluster("sqlite:///look.db", shards=1).connect():
        print(kernel_spans.on, any(each.startswith("opentelemetry") for each in sys.modules))

asyncio.run(look())
from opentelemetry import trace
asyncio.run(look())
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
asyncio.run(look())
"""


def test_it_is_on_only_if_the_program_has_set_a_provider_and_imports_nothing_itself(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == ["False False", "False True", "True True"], done.stderr


async def test_a_coroutine_that_is_thrown_away_disturbs_nobody(spans: Spans) -> None:
    """The collector ends it wherever it runs: in no context of its own."""

    async def thrown_away() -> None:
        with kernel_spans.span("lost", {}):
            await asyncio.get_running_loop().create_future()

    lost = thrown_away()
    lost.send(None)
    with spans.tracer.start_as_current_span("mine") as mine:
        del lost
        gc.collect()
        assert trace.get_current_span() is mine
    assert [event.name for event in spans.of("lost")[0].events] == ["cancelled"]


def test_texts_that_are_no_traceparent_are_taken_as_they_are() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for text in (None, "", "t1", "x" * 55, parent.upper(), parent + "0", parent.replace("-", "_")):
        assert kernel_spans.id_of(text) == text
        assert kernel_spans.stamped(b"\x01", text) == b"\x01"
        assert kernel_spans.unstamped(b"\x01") == (b"\x01", None)
    assert kernel_spans.unstamped(kernel_spans.stamped(b"\x01", parent)) == (b"\x01", parent)
