"""`probe`: one entity without a cluster, the same way as on a runner (TKIT-01)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import pytest

from coterie.entities.entity import Entity
from coterie.entities.rpc import rpc
from coterie.errors import MalformedMessage, RemoteError, SendTimeout
from coterie.kernel.context import current
from coterie.testing import probe

events: list[str] = []
mood: ContextVar[str] = ContextVar("mood", default="none")


@pytest.fixture(autouse=True)
def fresh() -> None:
    events.clear()


@dataclass
class Cart:
    items: list[str] = field(default_factory=list)


class Empty(Exception):
    """Declared."""


class Shop(Entity[Cart]):
    async def on_activate(self) -> None:
        events.append(f"on_activate {self.id}")

    async def on_deactivate(self) -> None:
        events.append("on_deactivate")

    @rpc
    async def add(self, items: list[str]) -> list[str]:
        self.state.items.extend(items)
        items.append("a change that nobody else sees")
        return self.state.items

    @rpc(errors=[Empty], persisted=True)
    async def pay(self) -> int:
        if not self.state.items:
            raise Empty(self.id)
        return len(self.state.items)

    @rpc
    async def crash(self) -> None:
        raise ZeroDivisionError("boom")

    @rpc
    async def each(self) -> AsyncIterator[str]:
        try:
            for item in self.state.items:
                yield item
        finally:
            events.append("closed")

    @rpc
    async def mood(self) -> str:
        return f"{mood.get()} {current().entity_id}"

    @rpc(timeout="20ms")
    async def hang(self) -> None:
        await asyncio.Event().wait()

    @rpc
    async def open(self) -> str:
        @asynccontextmanager
        async def till() -> AsyncIterator[str]:
            events.append("till opened")
            yield "till"
            events.append("till closed")

        return await self.resource("till", till)

    @rpc
    async def ask_cluster(self) -> str:
        return str(self.cluster)


async def test_calls_run_and_life_begins_and_ends() -> None:
    async with probe(Shop) as shop:
        assert shop.id == "probe"
        assert await shop.add(["pen"]) == ["pen"]
        assert await shop.add(["ink"]) == ["pen", "ink"]
        assert await shop.open() == "till"
        assert events == ["on_activate probe", "till opened"]
    assert events[2:] == ["on_deactivate", "till closed"]


async def test_nothing_mutable_is_shared_with_the_caller() -> None:
    mine = ["pen"]
    async with probe(Shop, "corner") as shop:
        theirs = await shop.add(mine)
        theirs.append("mine alone")
        assert mine == ["pen"]
        assert await shop.add([]) == ["pen"]


async def test_it_begins_with_the_state_that_it_is_given() -> None:
    cart = Cart(["ink"])
    async with probe(Shop, state=cart) as shop:
        assert await shop.pay() == 1
        await shop.add(["pen"])
    assert cart == Cart(["ink"])


async def test_errors_cross_as_they_do_on_a_runner() -> None:
    async with probe(Shop) as shop:
        with pytest.raises(Empty, match="probe"):
            await shop.pay()
        await shop.add(["pen"])
        with pytest.raises(RemoteError, match="ZeroDivisionError: boom"):
            await shop.crash()
        assert await shop.add([]) == []  # another instance
        with pytest.raises(MalformedMessage):
            await shop.add([1])  # type: ignore[list-item] # that is the point
        with pytest.raises(SendTimeout, match=r"Shop/probe\.hang within 0\.02s"):
            await shop.hang()


async def test_a_stream_gives_its_items_and_is_closed_with_its_reader() -> None:
    async with probe(Shop, state=Cart(["a", "b", "c"])) as shop:
        assert [item async for item in shop.each()] == ["a", "b", "c"]
        assert events.count("closed") == 1
        stream: Any = shop.each()
        async with aclosing(stream) as items:
            assert await anext(items) == "a"
        assert await shop.pay() == 3
        assert events.count("closed") == 2


async def test_handlers_see_nothing_of_the_context_in_which_the_probe_was_made() -> None:
    """ROUTE-06."""
    token = mood.set("of the test")
    try:
        async with probe(Shop) as shop:
            assert await shop.mood() == "none probe"
    finally:
        mood.reset(token)


async def test_there_is_no_cluster() -> None:
    async with probe(Shop) as shop:
        with pytest.raises(RemoteError, match="NotStarted"):
            await shop.ask_cluster()
    with pytest.raises(TypeError, match="has no state"):
        async with probe(Bare, state=3):
            pass


class Bare(Entity):
    @rpc
    async def nothing(self) -> None: ...


@pytest.mark.simulated(seeds=2)
async def test_it_runs_under_simulation_too() -> None:
    async with probe(Shop) as shop:
        assert await shop.add(["pen"]) == ["pen"]
