"""The life of a `Cluster`: as a runner, as a client, and what it says when it is asked for both."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette

from coterie import (
    CallNext,
    Cluster,
    ConfigurationError,
    Entity,
    Forked,
    Leader,
    MessageId,
    NotReady,
    NotStarted,
    RunnerUnavailable,
    ShardId,
    Snowflake,
    Tick,
    Workflow,
    WorkInfo,
    WrongLoop,
    current,
    rpc,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(f"sqlite:///{tmp_path}/life.db", runner_name="anna", shards=3)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.005)


# As a runner


async def test_a_runner_is_registered_while_it_runs_and_gone_when_it_has_left(cluster: Cluster) -> None:
    async with cluster as same:
        assert same is cluster
        (row,) = await cluster.runners.list()
        assert (row.name, row.groups, row.leaving) == ("anna", ("default",), False)
        await cluster.kv.set("a", 1)
    async with cluster.connect():
        assert await cluster.runners.list() == ()
        assert await cluster.kv.get("a") == 1


async def test_ready_returns_when_every_free_seat_is_held(cluster: Cluster) -> None:
    async with cluster:
        await cluster.ready(timeout="2m")
        assert await cluster.shards() == {ShardId("default", number): "anna" for number in range(3)}


async def test_after_it_has_left_its_seats_are_free_and_clean(cluster: Cluster) -> None:
    """C5: whoever takes them next knows that nothing was cut short."""
    async with cluster:
        await cluster.ready(timeout="2m")
    async with cluster.connect():
        assert await cluster.shards() == {ShardId("default", number): None for number in range(3)}
        view = await cluster._acting().storage.view()
        assert [(seat.holder, seat.clean, seat.epoch) for seat in view.seats] == [(None, True, 1)] * 3


async def test_it_starts_again_after_it_has_stopped(cluster: Cluster) -> None:
    for _ in range(2):
        await cluster.start()
        assert not cluster.is_shutting_down
        await cluster.stop()
        assert cluster.is_shutting_down
    await cluster.stop()  # once more is nothing


async def test_while_it_stops_it_says_so(cluster: Cluster) -> None:
    seen: list[bool] = []

    @cluster.setup
    @asynccontextmanager
    async def watch() -> AsyncIterator[None]:
        seen.append(cluster.is_shutting_down)
        yield
        seen.append(cluster.is_shutting_down)

    assert not cluster.is_shutting_down
    async with cluster:
        seen.append(cluster.is_shutting_down)
    assert seen == [False, False, True]


async def test_a_setup_may_use_the_cluster_already(cluster: Cluster) -> None:
    @cluster.setup
    @asynccontextmanager
    async def use() -> AsyncIterator[None]:
        await cluster.kv.set("opened", True)
        assert await cluster.next_id() > 0
        yield
        await cluster.kv.set("opened", False)

    async with cluster:
        assert await cluster.kv.get("opened") is True
    async with cluster.connect():  # which opens none
        assert await cluster.kv.get("opened") is False


async def test_as_a_lifespan_it_runs_as_long_as_the_application(cluster: Cluster) -> None:
    app = Starlette(lifespan=cluster.lifespan)
    async with app.router.lifespan_context(app):
        assert len(await cluster.runners.list()) == 1
    with pytest.raises(NotStarted):
        await cluster.kv.get("a")


async def test_a_runner_that_disagrees_on_shared_settings_refuses_to_start(cluster: Cluster, tmp_path: Path) -> None:
    """INV-F6: both values are named, and nothing of the refused one is left."""
    other = Cluster(cluster.settings.url, shards=4)
    async with cluster:
        with pytest.raises(ConfigurationError, match="shards is 4 here, and 3 in cluster"):
            await other.start()
        assert len(await cluster.runners.list()) == 1
    await other.stop()


async def test_two_clusters_of_one_process_share_the_seats(cluster: Cluster) -> None:
    other = Cluster(cluster.settings.url, runner_name="bert", shards=3)
    async with cluster, other:
        await cluster.ready(timeout="2m")
        await other.ready(timeout="2m")
        assert [row.name for row in await other.runners.list()] in (["anna", "bert"], ["bert", "anna"])


async def test_a_drained_runner_gives_up_its_seats_and_goes_on(cluster: Cluster) -> None:
    async with cluster:
        await cluster.ready(timeout="2m")
        await cluster.runners.drain("anna")
        await until(lambda: not cluster._acting().seats)  # type: ignore[attr-defined]  # of a runner
        (row,) = await cluster.runners.list()
        assert row.leaving
        await cluster.kv.set("a", 1)


async def test_a_client_drains_runners_of_other_processes(cluster: Cluster) -> None:
    client = Cluster(cluster.settings.url, shards=3)
    async with cluster, client.connect():
        await cluster.ready(timeout="2m")
        with pytest.raises(RunnerUnavailable, match="there are: anna"):
            await client.runners.drain("dora")
        await client.runners.drain("anna")
        await until(lambda: not cluster._acting().seats)  # type: ignore[attr-defined]  # of a runner


# Ids


async def test_runners_and_clients_draw_ids_that_never_repeat(cluster: Cluster) -> None:
    """K2, M15."""
    client = Cluster(cluster.settings.url, shards=3)
    async with cluster, client.connect():
        ids = [await each.next_id() for _ in range(50) for each in (cluster, client)]
    assert len(set(ids)) == 100
    assert len({Snowflake.parts(drawn).machine_id for drawn in ids}) == 2


# What does not go together


async def test_a_runner_is_started_once(cluster: Cluster) -> None:
    async with cluster:
        with pytest.raises(RuntimeError, match="started already, as a runner"):
            await cluster.start()
        with pytest.raises(RuntimeError, match="started already, as a runner"):
            async with cluster.connect():
                pass
        with pytest.raises(RuntimeError, match="makes a loop of its own"):
            cluster.run()
        await cluster.kv.set("a", 1)  # nothing was broken


async def test_a_client_is_no_runner(cluster: Cluster) -> None:
    async with cluster.connect():
        with pytest.raises(RuntimeError, match="connected already, as a client"):
            await cluster.start()
        with pytest.raises(RuntimeError, match="ends with its"):
            await cluster.stop()
        await cluster.ready(timeout="1s")
        await cluster.kv.set("a", 1)


async def test_nothing_works_before_the_start(cluster: Cluster) -> None:
    for attempt in (cluster.ready, cluster.next_id, cluster.runners.list):
        with pytest.raises(NotStarted, match="async with cluster:"):
            await attempt()
    await cluster.stop()


async def test_a_start_that_failed_leaves_nothing_and_may_be_tried_again(tmp_path: Path) -> None:
    cluster = Cluster(f"sqlite:///{tmp_path}/missing/life.db")
    for _ in range(2):
        with pytest.raises(ConfigurationError):
            await cluster.start()
    (tmp_path / "missing").mkdir()
    await cluster.start()
    await cluster.stop()


async def test_ready_says_what_is_missing(cluster: Cluster) -> None:
    opening = asyncio.Event()

    @cluster.setup
    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        await opening.wait()
        yield

    starting = asyncio.create_task(cluster.start())
    await asyncio.sleep(0)
    with pytest.raises(NotReady, match=r"not ready after 0\.\d+s: what cluster.setup opens is not open yet"):
        await until_named(cluster)
    opening.set()
    await starting
    await cluster.stop()


async def until_named(cluster: Cluster) -> None:
    """Wait for readiness again and again, as long as something else is missing."""
    async with asyncio.timeout(120):
        while True:
            try:
                await cluster.ready(timeout=0.05)
            except NotReady as error:
                if "setup" in error.problem:
                    raise


async def test_in_a_forked_child_it_refuses_and_leaves_the_parent_alone(cluster: Cluster) -> None:
    """P13. SQLite's book of locks is inherited with the file, so that is not opened a second time either."""
    assert await told_by_child(cluster) == "Forked Forked Forked Forked"


@pytest.mark.postgres
async def test_in_a_forked_child_it_can_be_started_anew(postgres_url: str) -> None:
    """P13: what the child starts is its own, under an identity of its own."""
    assert await told_by_child(Cluster(postgres_url, shards=3)) == "Forked Forked Forked 2"


async def told_by_child(cluster: Cluster) -> str:
    async with cluster:
        await cluster.ready(timeout="2m")
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(write, asyncio.run(in_child(cluster)).encode())
            finally:
                os._exit(0)
        os.close(write)
        told = await asyncio.to_thread(read_all, read)
        os.waitpid(child, 0)
        await cluster.kv.set("a", 1)
        assert len(await cluster.runners.list()) == 1
    return told


async def in_child(cluster: Cluster) -> str:
    said = []
    for attempt in (cluster.next_id, cluster.ready, cluster.stop, cluster.start):
        try:
            await attempt()
        except Forked as error:
            said.append(type(error).__name__)
        else:
            said.append(str(len(await cluster.runners.list())))
            await cluster.stop()
    return " ".join(said)


def read_all(descriptor: int) -> str:
    with os.fdopen(descriptor) as pipe:
        return pipe.read()


# From another thread


async def test_another_threads_loop_is_refused_in_our_words_wherever_it_asks(cluster: Cluster) -> None:
    """Asyncio said that a future is attached to a different loop, or nothing at all and waited."""

    @cluster.entity
    class Echo(Entity):
        @rpc(persisted=True)
        async def echo(self) -> None: ...

        @rpc
        async def items(self) -> AsyncIterator[int]:
            yield 1

    @cluster.workflow
    async def flow(workflow: Workflow, number: int) -> None: ...

    echo, run, message = cluster.ref(Echo, "a"), cluster.workflow_handle(flow, "x"), MessageId[Any]("m")
    calls: list[Callable[[], Awaitable[object] | AsyncIterator[object]]] = [
        lambda: cluster.call(echo.echo()),
        lambda: cluster.send(echo.echo()),
        lambda: cluster.send_many([echo.echo()]),
        lambda: cluster.result(message),
        lambda: cluster.cancel(message),
        lambda: cluster.broadcast(Echo.echo),
        lambda: cluster.reset(Echo, "a"),
        lambda: cluster.poll_storage(),
        lambda: cluster.start_workflow(flow, 1, id="x"),
        lambda: cluster.resolve("token", 1),
        lambda: cluster.reject("token", "no"),
        lambda: cluster.health(),
        lambda: cluster.shards(),
        lambda: cluster.next_id(),
        lambda: cluster.ready(),
        lambda: cluster.stop(),
        echo.echo,
        echo.items,
        run.result,
        run.status,
        run.interrupt,
        run.resume,
        lambda: cluster.kv.get("a"),
        lambda: cluster.kv.set("a", 1),
        lambda: cluster.kv.remove("a"),
        lambda: cluster.kv.has("a"),
        lambda: cluster.kv.is_empty(),
        lambda: cluster.kv.size(),
        lambda: cluster.kv.clear(),
        lambda: cluster.kv.modify("a", lambda value: value),
        lambda: cluster.kv.items(),
        lambda: cluster.kv.prefix("a").typed(int).get("a"),
        lambda: cluster.runners.list(),
        lambda: cluster.runners.drain("x"),
        lambda: cluster.messages.list(),
        lambda: cluster.messages.show("m"),
        lambda: cluster.messages.retry("m"),
        lambda: cluster.messages.purge(status="dead"),
        lambda: cluster.singletons.list(),
        lambda: cluster.singletons.get("x"),
        lambda: cluster.singletons.state("x", int),
        lambda: cluster.singletons.history("x"),
        lambda: cluster.singletons.resign("x"),
        lambda: cluster.crons.list(),
        lambda: cluster.crons.get("x"),
        lambda: cluster.crons.preview("x"),
        lambda: cluster.crons.explain("x"),
        lambda: cluster.crons.trigger("x"),
        lambda: cluster.crons.pause("x"),
        lambda: cluster.crons.resume("x"),
        lambda: cluster.crons.history("x"),
        lambda: cluster.workflows.list(),
    ]

    def elsewhere(call: Callable[[], Awaitable[object] | AsyncIterator[object]]) -> str:
        async def ask() -> None:
            asked = call()
            if isinstance(asked, AsyncIterator):
                async for _ in asked:
                    break
            else:
                await asked

        try:
            asyncio.run(ask())
        except WrongLoop as error:
            return f"{error.what} {error.owner}"
        return "nothing was refused"

    async with cluster:
        told = [await asyncio.to_thread(elsewhere, call) for call in calls]
        wrong = {place: said for place, said in enumerate(told) if said != "cluster 'default' MainThread"}
        assert wrong == {}
        assert await cluster.kv.get("a") is None, "nothing was written"


async def test_work_knows_the_address_of_its_runner(cluster: Cluster) -> None:
    led: asyncio.Queue[str | None] = asyncio.Queue()

    @cluster.entity
    class Where(Entity[None]):
        @rpc
        async def address(self) -> str | None:
            return current().runner_address

    @cluster.singleton("where")
    async def where(leader: Leader[None]) -> None:
        led.put_nowait(current().runner_address)

    async with cluster:
        (row,) = await cluster.runners.list()
        assert await cluster.ref(Where, "a").address() == row.address
        async with asyncio.timeout(120):
            assert await led.get() == row.address


# Definitions after the start


async def test_what_is_defined_after_the_start_is_taken_and_run_or_refused(cluster: Cluster) -> None:
    """O7: never silently left out."""
    ran: set[str] = set()

    @cluster.entity
    class Early(Entity):
        @rpc
        async def go(self) -> None: ...

    async with cluster:
        await cluster.ready()

        @cluster.entity
        class Late(Entity):
            @rpc
            def go(self) -> str:
                return "late"

        @cluster.singleton("late")
        async def leads(leader: Leader[None]) -> None:
            ran.add("singleton")

        @cluster.cron("late", "@every 1s")
        def ticks(tick: Tick) -> None:
            ran.add("cron")

        @cluster.workflow
        async def flow(workflow: Workflow, number: int) -> int:
            return await workflow.step("double", double, number)

        def double(number: int) -> int:
            return 2 * number

        assert await cluster.ref(Late, "x").go() == "late"
        assert await (await cluster.start_workflow(flow, 4, id="x")).result() == 8
        async with asyncio.timeout(120):
            while ran != {"singleton", "cron"}:
                await asyncio.sleep(0.01)

        async def around(work: WorkInfo, call_next: CallNext) -> object:
            return await call_next()

        @asynccontextmanager
        async def opens() -> AsyncIterator[None]:
            yield

        late = r"comes after the start, when .*: move it before the start"
        with pytest.raises(ConfigurationError, match=late):
            cluster.middleware(around)
        with pytest.raises(ConfigurationError, match=late):
            cluster.setup(opens)
    cluster.middleware(around)  # it has ended: the next life has it
