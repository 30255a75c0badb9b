"""What a simulation tells about itself: the program's own work, faults that did not strike, what is left out."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass

import pytest

from coterie import Cluster, Entity, Leader, Tick, Workflow, rpc
from coterie.testing import simulate
from coterie.testing.faults import Kills, SlowStorage
from coterie.testing.run import SeedRun, current_loop, run_simulation


@dataclass
class Seen:
    led: int = 0
    ticks: int = 0


def program() -> tuple[Cluster, Seen]:
    cluster, seen = Cluster("sqlite://", shards=2), Seen()

    @cluster.entity
    class Account(Entity[None]):
        @rpc
        async def balance(self) -> int:
            return 1

        @rpc(persisted=True)
        async def charge(self, cents: int) -> int:
            return cents

    @cluster.singleton("importer")
    async def importer(leader: Leader[None]) -> None:
        seen.led += 1

    @cluster.cron("pulse", "@every 5s")
    async def pulse(tick: Tick) -> None:
        seen.ticks += 1

    @cluster.workflow
    async def order(workflow: Workflow, cents: int) -> int:
        return await workflow.step("reserve", reserve, cents)

    async def reserve(cents: int) -> int:
        return cents

    cluster.__dict__.update(account=Account, order=order)
    return cluster, seen


def test_a_report_names_the_programs_work_with_runner_and_virtual_time() -> None:
    """It named callbacks of asyncio only."""
    cluster, seen = program()

    async def main() -> None:
        async with simulate(cluster, runners=2) as sim:
            account = cluster.ref(cluster.__dict__["account"], "alice")
            await account.balance()
            await account.charge(7)
            await (await cluster.start_workflow(cluster.__dict__["order"], 3, id="7")).result(timeout="30s")
            await sim.wait_until(lambda: seen.ticks)
            raise AssertionError("the end")

    run = SeedRun(1)
    with pytest.raises(AssertionError, match="the end"):
        run(main)
    lines = run.report().splitlines()
    for what in (
        "rpc      Account/alice.balance",
        "message  Account/alice.charge",
        "step     reserve of ",
        "tick     pulse of ",
        "leader   importer, epoch 1",
    ):
        words = what.split(None, 1)
        (line, *_) = [each for each in lines if words[1] in each and f" {words[0]} " in each]
        assert line.lstrip().startswith("+")
        assert "runner-" in line, line


@pytest.mark.parametrize("seconds", [0.5, 600])
def test_a_run_during_which_no_fault_struck_says_so(seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> int:
        async with simulate(Cluster("sqlite://", shards=1), runners=1, faults=[SlowStorage(every_s=60)]) as sim:
            await sim.advance(seconds)
            return sum(sim.strikes.values())

    with caplog.at_level(logging.WARNING, "coterie.testing"):
        struck = run_simulation(main, seed=3)
    told = [each for each in caplog.messages if "no fault struck in" in each]
    assert bool(told) == (seconds < 1)
    assert bool(struck) == (seconds > 1)
    assert all("(of SlowStorage)" in each for each in told)


@pytest.mark.simulated(seeds=2)
async def test_faults_singletons_and_crons_are_left_out_by_name() -> None:
    cluster, seen = program()
    faults = [Kills(every_s=5), SlowStorage(every_s=5)]
    async with simulate(cluster, runners=1, faults=faults, without=["pulse", "Kills"]) as sim:
        await sim.wait_until(lambda: seen.led)
        await sim.advance(60)
        assert (seen.led, seen.ticks) == (1, 0)
        assert set(sim.strikes) == {"SlowStorage"}
    assert [each.name for each in cluster._program.crons.known.values()] == ["pulse"], "the program is as it was"


@pytest.mark.simulated(seeds=1)
async def test_a_name_that_nothing_has_is_refused_with_those_that_there_are() -> None:
    cluster, _ = program()
    with pytest.raises(ValueError, match=r"without names 'puls'.*: Kills, importer, pulse"):
        async with simulate(cluster, faults=[Kills()], without=["puls"]):
            pass


@pytest.mark.simulated(seeds=2)
async def test_a_second_simulation_in_one_run_works_and_one_inside_another_says_why_not() -> None:
    for number in (1, 2):
        cluster, seen = program()
        async with simulate(cluster, runners=2) as sim:
            await sim.wait_until(functools.partial(getattr, seen, "led"))
            assert await cluster.ref(cluster.__dict__["account"], "alice").balance() == 1
            assert await cluster.kv.get("left") is None, "a database of its own"
            await cluster.kv.set("left", number)
            with pytest.raises(RuntimeError, match="end its `async with` block before the next one begins"):
                async with simulate(Cluster("sqlite://")):
                    pass
    assert current_loop().simulations == 2
