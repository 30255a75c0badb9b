"""Idle virtual time: it costs next to nothing, and nobody can tell that it was skipped."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster, Entity, Tick, Workflow, rpc
from coterie.testing import simulate

if TYPE_CHECKING:
    from datetime import datetime

    from coterie.testing.simulation import Simulation

HOUR_S = 3600
STEPS_MOST = 20_000
"""Without skipping an hour of three runners takes 240,000."""


def program() -> tuple[Cluster, Any, list[tuple[str, datetime]]]:
    cluster, seen = Cluster("sqlite://", shards=6), list[tuple[str, "datetime"]]()

    @cluster.entity(max_idle="2m")
    class Account(Entity[None]):
        @rpc
        async def balance(self) -> int:
            return 1

        @rpc(persisted=True)
        async def charge(self, cents: int) -> int:
            seen.append(("charge", simulations[-1].now()))
            return cents

        async def on_deactivate(self) -> None:
            seen.append(("left", simulations[-1].now()))

    return cluster, Account, seen


simulations: list[Simulation] = []


def seats(sim: Simulation) -> list[tuple[str, str, int]]:
    sql = "select name, holder, epoch from seats order by name"
    return list(sim.database.main.execute(sql))


def seconds(sim: Simulation) -> float:
    return sim.loop.now_ns / 1e9


@pytest.mark.simulated(seeds=4)
async def test_an_idle_hour_costs_next_to_nothing_and_changes_nothing() -> None:
    """It took 11 to 19 s of real time."""
    cluster, account, _ = program()
    async with simulate(cluster, runners=3) as sim:
        await sim.advance("30s")
        held, incarnations = seats(sim), [runner.incarnation for runner in sim.runners]
        steps, began_s = sim.loop.steps, seconds(sim)
        await sim.advance("1h")
        assert sim.loop.steps - steps < STEPS_MOST
        assert seconds(sim) - began_s == pytest.approx(HOUR_S, abs=0.001)
        assert seats(sim) == held, "nobody has lost or moved anything"
        assert [runner.incarnation for runner in sim.runners] == incarnations
        assert all(runner.is_well for runner in sim.runners)
        assert await cluster.ref(account, "alice").balance() == 1


@pytest.mark.simulated(seeds=1)
async def test_without_it_every_second_is_lived() -> None:
    cluster, _, _ = program()
    async with simulate(cluster, runners=3, skip_idle=False) as sim:
        await sim.advance("30s")
        steps = sim.loop.steps
        await sim.advance("5m")
        assert sim.loop.steps - steps > STEPS_MOST / 2


@pytest.mark.simulated(seeds=1)
async def test_skipped_time_is_idle_for_programs_with_crons_and_workflows_too() -> None:
    """Their sweeps are routine; a tick is in time all the same."""
    cluster, _, seen = program()

    @cluster.cron("hourly", "0 * * * *")
    async def hourly(tick: Tick) -> None:
        seen.append(("tick", simulations[-1].now()))

    @cluster.workflow
    async def bill(workflow: Workflow, cents: int) -> int:
        return cents

    async with simulate(cluster, runners=2) as sim:
        simulations.append(sim)
        await sim.advance("30s")
        steps, began_at = sim.loop.steps, sim.now()
        await sim.advance("3h")
        assert sim.loop.steps - steps < STEPS_MOST
        assert [what for what, _ in seen] == ["tick"] * 3
        assert all(at.minute == 0 and at.second < 2 for _, at in seen)
        assert sim.now() - began_at >= timedelta(hours=3)
        assert await (await cluster.start_workflow(bill, 1, id="one")).result(timeout="1m") == 1
    simulations.clear()


@pytest.mark.simulated(seeds=3)
async def test_after_an_idle_hour_a_lost_runner_is_replaced_as_ever() -> None:
    cluster, account, _ = program()
    async with simulate(cluster, runners=3) as sim:
        await sim.advance("1h")
        for befall in ("kill", "freeze"):
            victim = sim.owner(cluster.ref(account, "alice"))
            getattr(victim, befall)()
            began_s = seconds(sim)
            await sim.wait_until(lambda: sim.owner(cluster.ref(account, "alice")) is not victim)  # noqa: B023 awaited here
            assert seconds(sim) - began_s < 11


@pytest.mark.simulated(seeds=2)
async def test_what_becomes_due_in_idle_time_happens_in_its_time() -> None:
    """A message that is only in the database, an entity that leaves, a key that expires."""
    cluster, account, seen = program()
    async with simulate(cluster, runners=2) as sim:
        simulations.append(sim)
        await sim.advance("30s")
        began_at = sim.now()
        assert await cluster.ref(account, "alice").balance() == 1
        await cluster.kv.set("key", 1, ttl="3m")
        await cluster.send(cluster.ref(account, "bob").charge(1), delay="4m")
        await sim.advance("20m")
        after_s = {what: (at - began_at).total_seconds() for what, at in reversed(seen)}
        assert after_s["left"] == pytest.approx(120, abs=15)
        assert after_s["charge"] == pytest.approx(240, abs=2)
        assert await cluster.kv.get("key") is None
    simulations.clear()


@pytest.mark.simulated(seeds=12)
async def test_runs_that_sleep_for_months_wake_in_time_and_cost_next_to_nothing() -> None:
    cluster = Cluster("sqlite://", shards=6)
    woken: list[tuple[str, timedelta]] = []

    @cluster.workflow
    async def sleeper(workflow: Workflow, days: int) -> None:
        await workflow.sleep(f"{days}d", name="a while")
        await workflow.step("note", note, workflow.id)

    async def note(id: str) -> None:
        woken.append((id, simulations[-1].now() - began))

    async with simulate(cluster, runners=2) as sim:
        simulations.append(sim)
        began = sim.now()
        for days in (90, 30, 91):
            await cluster.start_workflow(sleeper, days, id=f"{days} days")
        steps = sim.loop.steps
        await sim.advance("100d")
        assert sim.loop.steps - steps < 3 * STEPS_MOST
    assert [name for name, _ in woken] == ["30 days", "90 days", "91 days"]
    for (_, after), days in zip(woken, (30, 90, 91), strict=True):
        assert timedelta(days=days) <= after < timedelta(days=days, seconds=5)
