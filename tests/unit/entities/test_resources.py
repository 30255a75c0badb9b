"""Resources of an entity: opened once in a life, closed with it, in the opposite order (K5, RES-01)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from coterie.entities.entity import Entity
from coterie.entities.rpc import rpc
from coterie.errors import RemoteError
from coterie.kernel.context import current
from tests.unit.entities.local_host import LocalHost, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

seen: list[Any] = []
trouble: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    seen.clear()
    trouble.clear()


@asynccontextmanager
async def opened(name: str) -> AsyncIterator[str]:
    if trouble:
        await (asyncio.Event().wait() if trouble[-1] == "hang" else asyncio.sleep(0))
        if trouble[-1] == "fail":
            raise ConnectionError("nobody answers")
    task = asyncio.current_task()
    await asyncio.sleep(0)
    seen.append(f"open {name} for {current().entity_id}")
    try:
        yield f"{name} of {current().entity_id}"
    finally:
        await asyncio.sleep(0)
        seen.append(f"close {name}")
        assert asyncio.current_task() is task, "some context managers must be left where they were entered"


class User(Entity):
    @rpc
    async def use(self, name: str) -> str:
        return await self.resource(name, lambda: opened(name))

    @rpc
    async def use_twice_at_once(self, name: str) -> list[str]:
        both = await asyncio.gather(*(self.resource(name, lambda: opened(name)) for _ in range(2)))
        return list(both)

    @rpc
    async def group(self) -> str:
        return await self.resource("group", reading)

    @rpc
    async def crash(self) -> None:
        raise ZeroDivisionError


@asynccontextmanager
async def reading() -> AsyncIterator[str]:
    """With a task group inside, which cannot change tasks."""
    async with asyncio.TaskGroup() as group:
        reader = group.create_task(asyncio.sleep(1000))
        yield "reading"
        reader.cancel()
    seen.append("group closed")


async def test_one_name_is_opened_once_in_a_life() -> None:
    ground = LocalHost(User)
    assert [await ground.call("a", "use", "db") for _ in range(3)] == ["db of a"] * 3
    assert seen == ["open db for a"]
    assert await ground.call("b", "use", "db") == "db of b"
    await ground.drain()
    assert seen == ["open db for a", "open db for b", "close db", "close db"]


async def test_those_who_ask_at_the_same_time_get_the_same() -> None:
    ground = LocalHost((User, {"concurrency": 4}))
    asked = [ground.ask("a", "use", "db") for _ in range(4)]
    assert [await each.future for each in asked] == ["db of a"] * 4
    assert await ground.call("a", "use_twice_at_once", "cache") == ["cache of a"] * 2
    assert seen == ["open db for a", "open cache for a"]
    await ground.host.stop()


async def test_they_are_closed_in_the_opposite_order_when_the_shard_moves() -> None:
    """RES-01, as DESIGN has it: released when the entity moves, acquired again by the next use."""
    ground = LocalHost(User)
    for name in ("one", "two", "three"):
        await ground.call("a", "use", name)
    await ground.drain()
    assert seen[3:] == ["close three", "close two", "close one"]
    ground.occupy()
    assert await ground.call("a", "use", "one") == "one of a"
    assert seen[6:] == ["open one for a"]
    await ground.host.stop()


async def test_a_defect_closes_them_before_the_next_life_opens_its_own() -> None:
    ground = LocalHost(User)
    await ground.call("a", "use", "db")
    crash, after = ground.ask("a", "crash"), ground.ask("a", "use", "db")
    with pytest.raises(RemoteError):
        await crash.future
    assert await after.future == "db of a"
    assert seen == ["open db for a", "close db", "open db for a"]
    await ground.host.stop()


async def test_what_could_not_be_opened_is_tried_again() -> None:
    ground = LocalHost((User, {"concurrency": 2}))
    trouble.append("fail")
    asked = [ground.ask("a", "use", "db") for _ in range(2)]
    for each in asked:
        with pytest.raises(RemoteError, match="nobody answers"):
            await each.future
    trouble.clear()
    assert await ground.call("a", "use", "db") == "db of a"
    await ground.host.stop()


async def test_a_handler_that_is_cancelled_gives_up_opening_and_the_next_one_tries_again() -> None:
    ground = LocalHost((User, {"concurrency": 2}))
    trouble.append("hang")
    first, second = [ground.ask("a", "use", "db") for _ in range(2)]
    await until(lambda: len(ground.host.handlers.waiting) == 2)
    trouble.clear()
    ground.host.cancel(first)
    assert await second.future == "db of a"
    assert seen == ["open db for a"]
    await ground.host.stop()


async def test_a_task_group_may_live_in_a_resource() -> None:
    ground = LocalHost(User)
    assert await ground.call("a", "group") == "reading"
    await ground.drain()
    assert seen == ["group closed"]


async def test_a_resource_that_cannot_be_closed_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    ground = LocalHost(Sticky)
    await ground.call("a", "use")
    await ground.drain()
    assert "will not close" in caplog.text


class Sticky(Entity):
    @rpc
    async def use(self) -> str:
        return await self.resource("glue", glue)


@asynccontextmanager
async def glue() -> AsyncIterator[str]:
    yield "glue"
    raise OSError("will not close")


@pytest.mark.simulated(seeds=2)
async def test_a_resource_that_hangs_while_closing_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ground = LocalHost(Endless)
    loop = asyncio.get_running_loop()
    await ground.call("a", "use")
    began_s = loop.time()
    await ground.drain()
    assert loop.time() - began_s <= 4.0
    assert "the resources of Endless/a took longer than 3 s" in caplog.text
    await ground.host.stop()


class Endless(Entity):
    @rpc
    async def use(self) -> str:
        return await self.resource("tape", tape)


@asynccontextmanager
async def tape() -> AsyncIterator[str]:
    yield "tape"
    await asyncio.Event().wait()
