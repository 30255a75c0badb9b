"""Definitions after the start, on real databases: a module that is imported late takes part like any other."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from coterie import Cluster, ConfigurationError, Entity, rpc
from tests.scenario.persisted.entity_program import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie import Leader, Tick, Workflow


def program(url: str, name: str) -> Cluster:
    return Cluster(url, runner_name=name, shards=2, lease_renew="200ms")


def define(cluster: Cluster, did: list[str]) -> None:
    """What the late module has."""
    name = cluster.settings.runner_name

    @cluster.singleton("importer")
    async def importer(leader: Leader[None]) -> None:
        did.append(f"importer on {name}")
        await asyncio.Event().wait()

    @cluster.cron("nightly", "@every 1s")
    async def nightly(tick: Tick) -> None:
        did.append(f"nightly on {name}")


async def test_a_singleton_and_a_cron_that_are_defined_after_the_start_run(url: str) -> None:
    """Where they are defined, and on another runner when that one has left, if its program has them too."""
    did: list[str] = []
    anna, bert = program(url, "anna"), program(url, "bert")
    async with bert:
        await bert.ready()
        async with anna:
            await anna.ready()
            define(anna, did)
            await until(lambda: {"importer on anna", "nightly on anna"} <= set(did))
            assert (await bert.singletons.get("importer")).leader == "anna"
            await asyncio.to_thread(define, bert, did)  # an import in a thread
            await until(lambda: _knows(bert, "singleton:importer") and _knows(bert, "cron:nightly"))
        await until(lambda: {"importer on bert", "nightly on bert"} <= set(did))


def _knows(cluster: Cluster, seat: str) -> bool:
    running = cluster._participant.present()
    assert running is not None
    rows = [each for each in running.directory.runners if each.name == cluster.settings.runner_name]
    return any(seat in each.knows for each in rows)


async def doubled(order: int) -> int:
    return 2 * order


async def test_the_first_workflow_and_entity_of_a_program_may_be_defined_after_the_start(url: str) -> None:
    """The runs of a workflow go on shards that the runner holds already, and on those that it gets."""
    cluster = program(url, "anna")
    async with cluster:
        await cluster.ready()

        @cluster.workflow
        async def checkout(workflow: Workflow, order: int) -> int:
            return await workflow.step("double", doubled, order)

        @cluster.entity
        class Counter(Entity[None]):
            @rpc
            async def hello(self) -> str:
                return self.id

        runs = [await cluster.start_workflow(checkout, number, id=str(number)) for number in range(4)]
        assert [await run.result(timeout="20s") for run in runs] == [0, 2, 4, 6]
        assert await cluster.ref(Counter, "a").hello() == "a"


async def test_a_setup_after_the_start_is_refused(url: str) -> None:
    cluster = program(url, "anna")

    @asynccontextmanager
    async def pool() -> AsyncIterator[None]:
        yield

    async with cluster:
        with pytest.raises(ConfigurationError, match=r"setup of \"?'?pool.* comes after the start"):
            cluster.setup(pool)
    cluster.setup(pool)
