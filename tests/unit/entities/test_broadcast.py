"""Broadcasts: every resident entity of a type, on every runner, and who did not answer (F8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator  # annotations of rpcs are read at run time

import pytest

from coterie import Cluster, Entity, MailboxFull, MalformedMessage, NotStarted, RemoteError, Replies, SendTimeout, rpc
from coterie.testing import Simulation, simulate

cluster = Cluster("sqlite://", shards=12, call_timeout="10s")


class Stale(Exception):
    """Declared."""


class Base(Entity):
    @rpc
    async def inherited(self) -> int:
        return 1


@cluster.entity(mailbox=1)
class Cache(Base):
    size = 0

    @rpc
    async def fill(self, by: int = 1) -> int:
        self.size += by
        return self.size

    @rpc(errors=[Stale])
    async def drop(self, which: str) -> int:
        if self.id == which:
            raise Stale(self.id)
        if self.size > 1:
            raise ZeroDivisionError
        return self.size

    @rpc(timeout="5s")
    async def slow(self, which: str) -> int:
        await asyncio.sleep(60 if self.id == which else 0)
        return self.size

    @rpc
    async def numbers(self) -> AsyncIterator[int]:
        yield 1

    @rpc
    async def ask_all(self) -> list[str]:
        replies = await cluster.broadcast(Cache.fill)
        return sorted(replies.values)


@cluster.entity
class Other(Base):
    @rpc
    async def fill(self) -> int:
        return 0


async def filled(sim: Simulation, count: int = 30) -> set[str]:
    """Entities on all runners."""
    await sim.wait_until(lambda: all(len(each.real.seats) == 12 // len(sim.runners) for each in sim.runners))
    ids = {f"cache-{number}" for number in range(count)}
    for who in sorted(ids):
        assert await cluster.ref(Cache, who).fill() == 1
    await cluster.ref(Other, "other").fill()
    return ids


@pytest.mark.simulated(seeds=3)
async def test_f8_every_resident_entity_of_the_type_answers_on_every_runner() -> None:
    async with simulate(cluster, runners=3) as sim:
        assert await cluster.broadcast(Cache.fill) == Replies()
        ids = await filled(sim)
        replies = await cluster.broadcast(Cache.fill, 2)
        assert replies.values == dict.fromkeys(ids, 3)
        assert (replies.errors, replies.silent) == ({}, [])
        replies = await sim.runners[1].spawn(cluster.broadcast(Cache.fill, by=1))
        assert replies.values == dict.fromkeys(ids, 4)


@pytest.mark.simulated(seeds=3)
async def test_errors_are_sorted_out_by_entity() -> None:
    async with simulate(cluster, runners=2) as sim:
        ids = await filled(sim)
        await cluster.ref(Cache, "cache-2").fill()
        replies = await cluster.broadcast(Cache.drop, "cache-1")
        assert replies.values == dict.fromkeys(ids - {"cache-1", "cache-2"}, 1)
        assert {who: type(error) for who, error in replies.errors.items()} == {"cache-1": Stale, "cache-2": RemoteError}
        assert replies.errors["cache-1"].args == ("cache-1",)


@pytest.mark.simulated(seeds=3)
async def test_a_slow_entity_is_an_error_of_its_own_and_its_runner_is_not_silent() -> None:
    async with simulate(cluster, runners=2) as sim:
        ids = await filled(sim)
        began_s = sim.loop.time()
        replies = await cluster.broadcast(Cache.slow, "cache-1")
        assert sim.loop.time() - began_s <= 5.1
        assert replies.values.keys() == ids - {"cache-1"}
        assert isinstance(replies.errors["cache-1"], SendTimeout)
        assert replies.silent == []


@pytest.mark.simulated(seeds=3)
async def test_refusals_are_errors_of_the_entity() -> None:
    async with simulate(cluster, runners=1) as sim:
        await filled(sim, 2)
        busy = [asyncio.create_task(cluster.ref(Cache, "cache-1").slow("cache-1")) for _ in range(2)]
        await sim.advance(0.1)
        replies = await cluster.broadcast(Cache.fill)
        assert replies.values == {"cache-0": 2}
        assert isinstance(replies.errors["cache-1"], MailboxFull)
        await asyncio.gather(*busy, return_exceptions=True)


@pytest.mark.simulated(seeds=3)
async def test_runners_that_do_not_answer_in_time_are_named() -> None:
    async with simulate(cluster, runners=3) as sim:
        ids = await filled(sim)
        there = {who for who in ids if sim.owner(cluster.ref(Cache, who)) is not sim.runners[1]}
        sim.runners[1].freeze()
        began_s = sim.loop.time()
        replies = await cluster.broadcast(Cache.slow, "nobody")
        assert sim.loop.time() - began_s <= 5.1
        assert replies.values.keys() == there
        assert replies.silent == ["runner-2"]


@pytest.mark.simulated(seeds=2)
async def test_an_entity_that_broadcasts_to_its_own_type_does_not_wait_for_itself() -> None:
    async with simulate(cluster, runners=2) as sim:
        ids = await filled(sim, 6)
        assert set(await cluster.ref(Cache, "cache-3").ask_all()) == ids - {"cache-3"}


@pytest.mark.simulated(seeds=2)
async def test_cancelling_it_cancels_the_handlers() -> None:
    async with simulate(cluster, runners=2) as sim:
        await filled(sim, 4)
        asking = asyncio.create_task(cluster.broadcast(Cache.slow, "cache-1"))
        await sim.advance(1)
        asking.cancel()
        await sim.advance(0.1)
        assert await cluster.ref(Cache, "cache-1").fill() == 2


async def test_what_cannot_be_broadcast_is_refused() -> None:
    with pytest.raises(TypeError, match="numbers is a stream"):
        await cluster.broadcast(Cache.numbers)  # type: ignore[arg-type] # that is the point
    with pytest.raises(TypeError, match=r"Base.inherited is an rpc of Cache, Other"):
        await cluster.broadcast(Cache.inherited)
    with pytest.raises(TypeError, match="is no rpc"):
        await cluster.broadcast(cluster.ref(Cache, "a").fill)  # type: ignore[type-var] # that is the point
    with pytest.raises(NotStarted):
        await cluster.broadcast(Cache.fill, "much")  # type: ignore[arg-type] # that is the point


@pytest.mark.simulated(seeds=1)
async def test_arguments_are_checked_before_anything_is_sent() -> None:
    async with simulate(cluster, runners=1):
        with pytest.raises(MalformedMessage):
            await cluster.broadcast(Cache.fill, "much")  # type: ignore[arg-type] # that is the point
