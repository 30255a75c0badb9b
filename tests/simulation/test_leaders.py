"""Leaders under simulation: what befalls them, and that nothing acknowledged is lost or overwritten (S1, S2, S10)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from coterie.testing.loop.seeds import stream
from coterie.testing.run import SeedRun, current_loop
from coterie.testing.simulation import NobodyHolds, Runner, Simulation, simulate
from tests.simulation.workloads import leaders
from tests.support.history.leader_checkers import Led

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

REPLACED_S = 10
"""Within which a leader is replaced (S10); what chance slows down comes on top."""


@dataclass
class SettledLedger:
    """A ledger on settled runners."""

    stage: leaders.SimulatedLeaders
    sim: Simulation

    @property
    def leader(self) -> Runner:
        return self.sim.leader("ledger")

    async def saves(self, *, within: str = "20s") -> None:
        """Somebody saves from now on."""
        noted = len(self.stage.notes)
        await self.sim.wait_until(lambda: leaders.has_saved(self.stage, since=noted), within=within)

    async def is_led_by_another(self, than: Runner, *, within_s: float = REPLACED_S + 5) -> None:
        former = than.incarnation
        await self.sim.wait_until(lambda: self.leader.incarnation != former, within=within_s)
        await self.saves()

    def epochs(self) -> list[int]:
        """Of those who began, in order."""
        return [each.epoch for _, each in self.stage.notes if isinstance(each, Led) and each.what == "becoming"]


@asynccontextmanager
async def scene(*, runners: int = 3) -> AsyncIterator[SettledLedger]:
    """At its end everybody leaves in good order, and the history is judged."""
    stage = leaders.new_stage()
    async with simulate(stage.cluster, runners=0) as sim:
        stage.watch(sim)
        here = SettledLedger(stage, sim)
        if runners:
            await sim.start(runners)
            await here.saves()
        yield here
        await sim.calm()
        await here.saves(within="60s")
        stage.note_survivors()
    leaders.judge(stage, least=2)


@pytest.mark.simulated(seeds=8)
async def test_inv_f1_f4_d1_d6_s7_a_list_only_grows_under_all_faults() -> None:
    """Incidents 8, 10, 31: the fixed sample of what `make sim` does by the thousand."""
    await leaders.main()


def test_a_seed_of_the_workload_repeats() -> None:
    def digest(seed: int) -> str:
        run = SeedRun(seed)
        run(lambda: leaders.main(lasting_s=20))
        return run.loop.trace.digest()

    assert digest(3) == digest(3)
    assert digest(3) != digest(4)


# What befalls a leader


async def freeze(here: SettledLedger, leader: Runner) -> None:
    leader.freeze()
    await here.is_led_by_another(leader)
    leader.thaw()


async def cut(here: SettledLedger, leader: Runner) -> None:
    """Incident 2: of its storage nothing is heard any more, its peers are well."""
    leader.cut("storage")
    await here.is_led_by_another(leader)
    leader.heal()


async def deafen(here: SettledLedger, leader: Runner) -> None:
    """What it asks for happens, and it is not told."""
    leader.cut("storage", "replies")
    await here.is_led_by_another(leader)
    leader.heal()


async def kill(here: SettledLedger, leader: Runner) -> None:
    leader.kill()
    await here.is_led_by_another(leader)
    leader.start()


async def stop(here: SettledLedger, leader: Runner) -> None:
    leader.stop()
    await here.is_led_by_another(leader)


async def block(here: SettledLedger, leader: Runner) -> None:
    leader.block("15s")
    await here.is_led_by_another(leader)


async def resign(here: SettledLedger, leader: Runner) -> None:
    told = await here.stage.cluster.singletons.resign("ledger")
    assert told is not None
    assert told != leader.name
    await here.is_led_by_another(leader)


async def isolate(here: SettledLedger, _: Runner) -> None:
    """Incident 31: no two runners reach each other; storage decides alone."""
    for runner in here.sim.runners:
        runner.cut("peers")
    await here.sim.advance(10)
    await here.saves()


async def lose_the_database(here: SettledLedger, _: Runner) -> None:
    here.sim.restart_storage(down="9s")
    await here.sim.advance(9)
    await here.saves(within="30s")


async def break_answers(here: SettledLedger, _: Runner) -> None:
    """Incident 8: what renews, saves or acquires is rolled back, or happens and is not told."""
    weather = here.sim.database.weather
    weather.error_before, weather.error_after = 0.3, 0.4
    await here.sim.advance(15)
    weather.error_before = weather.error_after = 0.0


async def delay_answers(here: SettledLedger, _: Runner) -> None:
    """Incident 10: renewals take nearly as long as they are trusted."""
    weather = here.sim.database.weather
    latency_ns, weather.latency_ns = weather.latency_ns, 1_900_000_000
    await here.sim.advance(20)
    weather.latency_ns = latency_ns


BEFALLS = (freeze, cut, deafen, kill, stop, block, resign, isolate, lose_the_database, break_answers, delay_answers)


@pytest.mark.simulated(seeds=2)
@pytest.mark.parametrize("befall", BEFALLS, ids=lambda befall: befall.__name__)
async def test_s1_s2_s7_s10_a_leader_is_replaced_and_nothing_is_lost(
    befall: Callable[[SettledLedger, Runner], Awaitable[None]],
) -> None:
    """Hooks in order, state one chain, nobody leads beside another: judged at the end."""
    async with scene() as here:
        await befall(here, here.leader)


# Incidents


@pytest.mark.simulated(seeds=3)
async def test_incident_1_a_seat_that_was_granted_too_late_is_not_led() -> None:
    """The taker is frozen between the commit of its grant and the answer, for longer than its lease."""
    async with scene(runners=2) as here:
        sim, first = here.sim, here.leader
        other = next(runner for runner in sim.runners if runner is not first)
        late: list[int] = []

        def granted(*epochs: Any) -> None:
            if not late:
                late.extend(epochs)
                other.freeze()

        sim.database.main.create_scalar_function("granted_late", granted, 1)
        sim.database.main.execute(
            "create temp trigger late after update of holder on main.seats "
            "when new.holder is not null and new.name = 'singleton:ledger' begin select granted_late(new.epoch); end"
        )
        first.kill()
        await sim.wait_until(lambda: bool(late))
        await sim.advance(10)
        other.thaw()
        await here.saves()
        assert late[0] not in here.epochs()
        assert here.epochs()[-1] > late[0]


@pytest.mark.simulated(seeds=2)
async def test_incident_9_processes_of_one_name_have_one_leader() -> None:
    async with scene() as here:
        for runner in here.sim.runners:
            runner.kill()
            runner.settings = replace(runner.settings, runner_name="same")
            runner.start()
        await here.saves(within="40s")
        assert here.leader.real.name == "same"
        for _ in range(4):
            leader = here.leader
            leader.kill()
            await here.is_led_by_another(leader)
            leader.start()


@pytest.mark.simulated(seeds=3)
async def test_incidents_11_20_storms_of_joining_and_leaving_leave_one_leader() -> None:
    """All begin at the same instant; several come and go at once."""
    async with scene(runners=0) as here:
        random = stream(current_loop().seed, "storm")
        here.sim.start(5)
        await here.saves(within="60s")
        for _ in range(8):
            for runner in random.sample(here.sim.runners, 3):
                if runner.alive:
                    random.choice((runner.stop, runner.kill))()
                else:
                    runner.start()
            await here.sim.advance(random.choice((0.001, 0.1, 2.0, 6.0)))


@pytest.mark.simulated(seeds=3)
async def test_s2_m13_an_outage_during_a_save_ends_in_saved_or_lost_never_in_silence() -> None:
    """Each append is told of, whatever the outage was; `judge` compares what was told with what is there."""
    async with scene(runners=2) as here:
        for down in ("1s", "3s", "5s", "12s"):
            here.sim.restart_storage(down=down)
            await here.saves(within="40s")


@pytest.mark.simulated(seeds=2)
async def test_s7_at_the_end_of_all_there_is_no_leader_and_everybody_was_told() -> None:
    async with scene(runners=3) as here:
        await asyncio.gather(*(runner.stop() for runner in here.sim.runners))
        steps: dict[str, list[Any]] = {}
        for _, event in here.stage.notes:
            if isinstance(event, Led):
                steps.setdefault(event.process, []).append(event.what)
        assert all(each[-1] == "lost" for each in steps.values())
        with pytest.raises(NobodyHolds):
            _ = here.leader
