"""What a database would refuse each time is refused before it is asked: a run ends, and is not tried for ever (W4)."""

from __future__ import annotations

import asyncio
import random
import re
from datetime import timedelta
from typing import Any

import pytest

from coterie import Cluster, Leader, MalformedMessage, Workflow, WorkflowFailed
from tests.scenario.persisted.entity_program import until

NAMES = ["a\x00b", "a\ud800"]
LIMIT = 64 * 1024


def new_cluster(url: str) -> Cluster:
    return Cluster(url, runner_name="anna", shards=2, lease_renew="200ms", drain="2s", frame_limit=LIMIT)


async def nothing() -> None:
    """A step."""


async def give(size: int) -> bytes:
    return bytes(size)


async def fail(size: int) -> None:
    raise ValueError("large", bytes(size))


async def leaf(workflow: Workflow, payload: bytes) -> bytes:
    return payload


async def asked(workflow: Workflow, what: str, name: str) -> None:
    """Something of this name."""
    if what == "step":
        await workflow.step(name, nothing)
    elif what == "sleep":
        await workflow.sleep("10ms", name=name)
    elif what == "deferred":
        await workflow.deferred(name, int).wait(timeout="10ms")
    elif what == "patch":
        workflow.patched(name)
    elif what == "compensation":
        workflow.compensate(name, nothing)
        raise RuntimeError("so that it is undone")
    elif what == "child":
        await workflow.child(leaf, b"", id=name)


@pytest.mark.parametrize("what", ["step", "sleep", "deferred", "patch", "compensation", "child"])
async def test_a_name_that_cannot_be_stored_fails_the_run(
    what: str, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = new_cluster(url)
    cluster.workflow(leaf)

    @cluster.workflow
    async def work(workflow: Workflow, name: str) -> None:
        await asked(workflow, what, NAMES[int(name)])

    async with cluster:
        for number in range(len(NAMES)):
            run = await cluster.start_workflow(work, str(number), id=str(number))
            with pytest.raises(WorkflowFailed, match=r"(InvalidArgument|ValueError|UnicodeEncodeError): ") as caught:
                await run.result(timeout="10s")
            assert isinstance(caught.value.__cause__, Exception)
            assert await run.status() == "failed"
    assert "waits for the database" not in caplog.text


class Large:
    """What is larger than a runner stores."""

    def __init__(self, cluster: Cluster) -> None:
        @cluster.workflow
        async def work(workflow: Workflow, what: str) -> bytes:
            if what == "result of a step":
                await workflow.step("large", give, LIMIT)
            elif what == "payload of a child":
                await workflow.child(leaf, bytes(LIMIT), id="large")
            elif what == "error of a step":
                await workflow.step("large", fail, 50 * LIMIT)
            elif what == "error":
                await fail(50 * LIMIT)
            return bytes(LIMIT)

        self.work = work


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("result of a step", "put large data elsewhere"),
        ("payload of a child", "put large data elsewhere"),
        ("result", "put large data elsewhere"),
        ("error of a step", "ValueError: .*large"),
        ("error", "ValueError: .*large"),
    ],
)
async def test_what_is_too_large_to_be_stored_fails_the_run_and_says_what_to_do(what: str, said: str, url: str) -> None:
    cluster = new_cluster(url)
    cluster.workflow(leaf)
    large = Large(cluster)
    async with cluster:
        run = await cluster.start_workflow(large.work, what, id="1")
        with pytest.raises(WorkflowFailed) as caught:
            await run.result(timeout="10s")
        assert re.search(said, f"{caught.value} {caught.value.__cause__}")
        assert await run.status() == "failed"
        row: Any = await cluster._acting().storage.units.get("workflow:work/1")
        assert len(row.error) < LIMIT + 10_000


async def test_a_payload_or_a_value_that_is_too_large_is_refused_to_whoever_gives_it(url: str) -> None:
    cluster = new_cluster(url)
    tokens: list[str] = []

    @cluster.workflow
    async def work(workflow: Workflow, payload: bytes) -> bytes:
        deferred = workflow.deferred("value", bytes)
        tokens.append(deferred.token)
        return await deferred.wait()

    async with cluster:
        with pytest.raises(MalformedMessage, match=r"payload of workflow 'work': 65,.* put large data elsewhere"):
            await cluster.start_workflow(work, bytes(LIMIT), id="1")
        run = await cluster.start_workflow(work, b"", id="1")
        await until(lambda: tokens)
        with pytest.raises(MalformedMessage, match=r"value of deferred 'value': 65,.* put large data elsewhere"):
            await cluster.resolve(tokens[0], bytes(LIMIT))
        await cluster.resolve(tokens[0], bytes(LIMIT - 10))
        assert await run.result(timeout="10s") == bytes(LIMIT - 10)


@pytest.mark.parametrize("what", ["sleep", "deferred"])
async def test_what_is_waited_for_longer_than_a_database_counts_is_waited_for(what: str, url: str) -> None:
    cluster = new_cluster(url)

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> None:
        if what == "sleep":
            await workflow.sleep(timedelta.max, name="for ever")
        await workflow.deferred("never", int).wait(timeout=timedelta.max)

    async with cluster:
        run = await cluster.start_workflow(work, None, id="1")
        async with asyncio.timeout(120):
            while await run.status() != "suspended":
                await asyncio.sleep(0.01)
        (told,) = await cluster.workflows.list()
        assert told.wake_at is not None
        assert told.wake_at.year > 2200


async def test_a_name_may_be_of_a_class_of_its_own(url: str) -> None:
    class Name(str):
        __slots__ = ()

    cluster = new_cluster(url)

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> bytes:
        await workflow.sleep("1ms", name=Name("nap"))
        workflow.compensate(Name("undo"), nothing)
        return await workflow.step(Name("give"), give, 1)

    async with cluster:
        assert await (await cluster.start_workflow(work, None, id="1")).result(timeout="10s") == bytes(1)


KEYS = ["", "a\nb", *NAMES, "x" * 1001, "".join(map(chr, random.Random(1).sample(range(0x4E00, 0x9FA5), 4000)))]


async def test_a_key_of_a_unit_that_cannot_be_stored_is_refused(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The longest that is taken leaves room for the names of deferreds."""
    cluster, told = new_cluster(url), list[str]()
    longest = "".join(map(chr, random.Random(2).sample(range(0x4E00, 0x9FA5), 333)))

    @cluster.singleton("lead")
    async def lead(leader: Leader[None]) -> None:
        for key in KEYS:
            with pytest.raises(ValueError, match=r"^key of a unit is "):
                async with leader.unit(key) as unit:
                    await unit.step("a", nothing)
        async with leader.unit(longest) as unit:
            await unit.step("a", nothing)
            deferred = unit.deferred("".join(map(chr, random.Random(3).sample(range(0x20000, 0x2A000), 200))), int)
            await cluster.resolve(deferred.token, 7)
            told.append(f"given {await deferred.wait(timeout='10s')}")
        await asyncio.Event().wait()

    async with cluster:
        await until(lambda: told)
        assert told == ["given 7"]
    assert "waits for the database" not in caplog.text
