"""Handlers that write to the key-value store: what a former holder of the shard writes is refused (K1) [C1]."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coterie import Cluster, Entity, LeadershipLost, current, rpc
from coterie.testing import Runner, Simulation, probe, simulate

cluster = Cluster("sqlite://", shards=12, drain="5s", call_timeout="10s")
began: list[Any] = []
told: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    began.clear()
    told.clear()


@cluster.entity
class Meter(Entity):
    @rpc
    async def read(self) -> list[Any]:
        """All that a handler may do with keys."""
        mine = cluster.kv.prefix(f"meter:{self.id}:")
        await mine.set("one", 1)
        await mine.set("soon", 1, ttl="1h")
        counts = [await mine.typed(int).modify("n", lambda n: (n or 0) + 1) for _ in range(3)]
        return [*counts, await mine.remove("one"), await mine.clear(), current().seat]

    @rpc
    async def linger(self) -> None:
        """Write when it is too late: a handler that is stopped may still do something."""
        runner = current().runner_id
        began.append(runner)
        try:
            await asyncio.sleep(60)
        finally:
            for write in (
                cluster.kv.set("last", runner),
                cluster.kv.modify("writers", lambda old: [*(old or []), runner]),
                cluster.kv.remove("precious"),
                cluster.kv.clear(),
            ):
                try:
                    told.append(await write)
                except LeadershipLost as lost:
                    told.append(lost)

    @rpc
    async def write_elsewhere(self) -> None:
        await other.kv.set("from", self.id)


other = Cluster("sqlite://")


async def settled(sim: Simulation) -> None:
    """All shards are held, and all runners have their share."""
    await sim.wait_until(lambda: sorted(len(each.real.seats) for each in sim.runners) == [6, 6])


def id_of(sim: Simulation, runner: Runner) -> str:
    ids = (f"meter-{number}" for number in range(10_000))
    return next(who for who in ids if sim.owner(cluster.ref(Meter, who)) is runner)


@pytest.mark.simulated(seeds=5)
async def test_a_handler_sets_modifies_removes_and_clears_keys_while_it_holds_its_shard() -> None:
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        for runner in sim.runners:
            *counts, seat = await cluster.ref(Meter, id_of(sim, runner)).read()
            assert counts == [1, 2, 3, True, 2]
            assert sim.owner(seat) is runner


@pytest.mark.simulated(seeds=10)
async def test_a_handler_whose_shard_was_lost_writes_nothing_and_is_told() -> None:
    """C1: its process froze, another one took over, and then it goes on where it stood."""
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        victim, survivor = sim.runners
        who = id_of(sim, victim)
        await cluster.kv.set("precious", 1)
        calling = asyncio.create_task(cluster.ref(Meter, who).linger())
        await sim.wait_until(lambda: began)
        victim.freeze()
        await sim.wait_until(lambda: len(survivor.real.seats) == 12)
        victim.thaw()
        await sim.wait_until(lambda: len(told) == 4)
        assert all(isinstance(each, LeadershipLost) for each in told), told
        assert all(each.seat.startswith("shard:default:") for each in told)
        assert [pair async for pair in cluster.kv.items()] == [("precious", 1)]
        await asyncio.gather(calling, return_exceptions=True)


async def test_keys_of_another_cluster_ask_for_no_seat_of_this_one() -> None:
    async with cluster, other.connect():
        await cluster.ref(Meter, "a").write_elsewhere()
        assert await other.kv.get("from") == "a"


async def test_a_probe_has_no_seat_to_prove() -> None:
    async with other.connect(), probe(Meter, "a") as meter:
        await meter.write_elsewhere()
        assert await other.kv.get("from") == "a"
