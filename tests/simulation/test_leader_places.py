"""Where and when singletons run: spread, groups, programs that do not know them, delays, periods, resignation."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from coterie import Retry
from coterie.testing.loop.nodes import current_node
from coterie.testing.run import current_loop
from coterie.testing.simulation import Simulation, simulate
from tests.simulation.leader_history import LeaderHistory, new_cluster

if TYPE_CHECKING:
    from coterie import Cluster, Leader, Tick


def waiting(cluster: Cluster, diary: LeaderHistory, name: str = "x", **options: object) -> None:
    """A singleton that leads and does nothing."""

    @cluster.singleton(name, **{**diary.hooks(), **options})
    async def body(leader: Leader[None]) -> None:
        diary.note("body", leader)
        await asyncio.Event().wait()


def led_by(sim: Simulation, names: list[str]) -> Counter[str]:
    return Counter(sim.leader(name).name for name in names)


@pytest.mark.simulated(seeds=2)
async def test_s1_many_singletons_are_spread_evenly_and_move_no_more_than_needed() -> None:
    cluster, diary = new_cluster(), LeaderHistory()
    names = [f"x{number}" for number in range(12)]
    for name in names:
        waiting(cluster, diary, name)
    async with simulate(cluster, runners=3) as sim:
        await sim.wait_until(lambda: sorted(led_by(sim, names).values()) == [4, 4, 4])
        await sim.advance(10)
        before = len(diary.lines)
        sim.runners[0].stop()
        await sim.wait_until(lambda: sorted(led_by(sim, names).values()) == [6, 6])
        await sim.advance(10)
        moved = {line.name for line in diary.lines[before:]}
        assert len(moved) == 4
        before = len(diary.lines)
        await sim.start(1)
        newcomer = sim.runners[3]
        await sim.advance(20)
        assert not diary.lines[before:], "nobody is interrupted for balance alone"
        sim.runners[1].stop()
        await sim.wait_until(lambda: led_by(sim, names) == {newcomer.name: 6, sim.runners[2].name: 6})


@pytest.mark.simulated(seeds=3)
async def test_after_resign_the_former_leader_does_not_come_back() -> None:
    """Two runners, a singleton and a cron: one of them has both then, and keeps both."""
    cluster, diary = new_cluster(), LeaderHistory()
    waiting(cluster, diary)

    @cluster.cron("nightly", "0 3 * * *")
    async def nightly(_: Tick) -> None:
        """Nothing."""

    async with simulate(cluster, runners=2) as sim:
        await sim.wait_until(lambda: diary.of("body"))
        await sim.advance(5)
        former = sim.leader("x")
        other = next(runner for runner in sim.runners if runner is not former)
        assert await cluster.singletons.resign("x") == other.name
        await sim.advance(60)
        assert [line.process for line in diary.of("body")] == [former.name, other.name]


@pytest.mark.simulated(seeds=3)
async def test_a_body_that_fails_on_one_runner_leads_on_the_other_and_stays_there() -> None:
    cluster, diary = new_cluster(), LeaderHistory()

    @cluster.singleton("x", retry=Retry(2), **diary.hooks())
    async def body(leader: Leader[None]) -> None:
        diary.note("body", leader)
        if current_node.get().label == "runner-1":
            raise OSError("no licence on this machine")
        await asyncio.Event().wait()

    async with simulate(cluster, runners=0) as sim:
        await sim.start(1)
        await sim.wait_until(lambda: len(diary.of("body")) == 2)
        await sim.start(1)
        broken, well = sim.runners
        await sim.advance(60)
        assert {line.process for line in diary.of("body")[2:]} == {well.name}
        assert len(diary.of("become")) == 2
        await well.stop()  # nobody else is left: it is tried where it failed
        await sim.wait_until(lambda: diary.lines[-1].process == broken.name)


@pytest.mark.simulated(seeds=3)
async def test_a_body_that_fails_everywhere_is_begun_less_and_less_often_and_it_is_told_why_nobody_leads() -> None:
    cluster, diary = new_cluster(), LeaderHistory()
    is_broken = True

    @cluster.singleton("x", retry=Retry(2), **diary.hooks())
    async def body(leader: Leader[None]) -> None:
        diary.note("body", leader)
        if is_broken:
            raise OSError("the secret is 7")
        await asyncio.Event().wait()

    async with simulate(cluster, runners=2) as sim:
        await sim.advance(100)
        begun = diary.of("become")
        assert {line.process for line in begun} == {runner.name for runner in sim.runners}
        assert 4 <= len(begun) <= 10
        (reason,) = [each for each in (await cluster.health()).reasons if each.what == "singleton x"]
        assert reason.status == "unhealthy"
        for runner in sim.runners:
            assert f"{runner.name} failed" in reason.problem
        assert "with OSError, and takes it again in" in reason.problem
        assert "secret" not in str(reason)
        is_broken = False
        await sim.wait_until(lambda: len(diary.of("become")) > len(begun), within="310s")
        await sim.advance(30)
        assert len(diary.of("become")) == len(begun) + 1
        assert (await cluster.health()).status != "unhealthy"


@pytest.mark.simulated(seeds=2)
async def test_s1_a_singleton_runs_in_its_group_only() -> None:
    cluster, diary = new_cluster(), LeaderHistory()
    waiting(cluster, diary, group="gpu")
    async with simulate(cluster, runners=2) as sim:
        await sim.advance(10)
        assert not diary.lines
        assert (await cluster.singletons.get("x")).problem == "nobody leads it"
        await sim.start(1, groups=("gpu",))
        await sim.wait_until(lambda: diary.of("body"))
        assert diary.of("body")[0].process == "runner-3"
        sim.runners[2].kill()
        await sim.advance(20)
        assert len(diary.of("body")) == 1


@pytest.mark.simulated(seeds=2)
async def test_s1_a_singleton_runs_where_its_program_knows_it() -> None:
    some, others, diary = new_cluster(), new_cluster(), LeaderHistory()
    waiting(some, diary)
    waiting(others, diary, "y")
    async with simulate(some, runners=2) as sim:
        sim.cluster = others
        await sim.start(2)
        await sim.wait_until(lambda: diary.of("body") and diary.of("body", "y"))
        for _ in range(2):
            sim.leader("x").kill()
            await sim.advance(15)
        assert {line.process for line in diary.of("body")} == {"runner-1", "runner-2"}
        assert {line.process for line in diary.of("body", "y")} <= {"runner-3", "runner-4"}


@pytest.mark.simulated(seeds=2)
async def test_a_takeover_delay_holds_after_a_death_and_not_after_a_farewell() -> None:
    cluster, diary = new_cluster(), LeaderHistory()
    waiting(cluster, diary, takeover_delay="30s")
    async with simulate(cluster, runners=3) as sim:
        await sim.wait_until(lambda: diary.of("body"))
        sim.leader("x").stop()
        await sim.wait_until(lambda: len(diary.of("body")) == 2, within="10s")
        killed_s = current_loop().now_ns / 1e9
        sim.leader("x").kill()
        await sim.wait_until(lambda: len(diary.of("body")) == 3, within="60s")
        assert 30 <= diary.of("body")[-1].at_s - killed_s < 45


@pytest.mark.simulated(seeds=2)
async def test_resign_moves_the_leadership_now_whoever_asks() -> None:
    """From a client, from the leader itself, from another runner; alone, a runner leads again."""
    cluster, diary, tired = new_cluster(), LeaderHistory(), asyncio.Event()

    @cluster.singleton("x", **diary.hooks())
    async def body(leader: Leader[None]) -> None:
        diary.note("body", leader)
        await tired.wait()
        tired.clear()
        await leader.cluster.singletons.resign("x")

    async with simulate(cluster, runners=2) as sim:
        await sim.wait_until(lambda: diary.of("body"))
        first = sim.leader("x")
        other = next(runner for runner in sim.runners if runner is not first)
        assert await cluster.singletons.resign("x") == other.name
        await sim.wait_until(lambda: len(diary.of("body")) == 2)
        tired.set()
        await sim.wait_until(lambda: len(diary.of("body")) == 3)
        assert sim.leader("x") is first
        assert await other.spawn(cluster.singletons.resign("x")) == other.name
        await sim.wait_until(lambda: len(diary.of("body")) == 4)
        await first.stop()
        assert await cluster.singletons.resign("x") == other.name
        await sim.wait_until(lambda: len(diary.of("body")) == 5)
        with pytest.raises(ValueError, match="no singleton 'y'"):
            await cluster.singletons.resign("y")
    whats = [line.what for line in diary.lines]
    assert whats == ["become", "body", "lose"] * 5


@pytest.mark.simulated(seeds=2)
async def test_every_a_change_of_leader_neither_repeats_an_execution_nor_starts_the_clock_anew() -> None:
    """S3: leaders are killed, stopped, cut off and asked to resign, also in the middle and at the very beginning."""
    cluster = new_cluster()
    starts: list[tuple[int, str]] = []

    @cluster.singleton("x", every="10s")
    async def body(leader: Leader[None]) -> None:
        del leader
        starts.append((current_loop().now_ns, current_node.get().label))
        await asyncio.sleep(2)

    async with simulate(cluster, runners=3) as sim:
        await sim.wait_until(lambda: starts)
        for number, pause_s in enumerate((0.001, 1.0, 3.0, 9.9, 0.2, 5.0, 0.02, 4.0)):
            begun = len(starts)
            await sim.wait_until(lambda begun=begun: len(starts) > begun)  # type: ignore[misc]
            await sim.advance(pause_s)
            leader = sim.leader("x")
            if number % 4 == 0:
                leader.kill()
                leader.start()
            elif number % 4 == 1:
                await leader.stop()
                leader.start()
            elif number % 4 == 2:
                await cluster.singletons.resign("x", timeout="20s")
            else:
                leader.cut("storage")
                await sim.advance(12)
                leader.heal()
    gaps = [(later - earlier) / 1e9 for (earlier, _), (later, _) in pairwise(starts)]
    assert min(gaps) > 9  # a body begins when its note is durable, and the time counts from when that was begun
    assert max(gaps) < 30
    assert sum(gap < 15 for gap in gaps) > len(gaps) / 2


@pytest.mark.simulated(seeds=2)
async def test_every_an_execution_that_raises_is_tried_again_and_the_next_one_is_on_time() -> None:
    cluster, diary = new_cluster(), LeaderHistory()

    @cluster.singleton("x", every="20s")
    async def body(leader: Leader[None]) -> None:
        diary.note("body", leader)
        if len(diary.of("body")) < 3:
            raise ValueError("not yet")

    async with simulate(cluster, runners=1) as sim:
        await sim.wait_until(lambda: len(diary.of("body")) == 4, within="120s")
        at = [line.at_s for line in diary.of("body")]
        assert at[2] - at[0] < 5
        assert 19.9 < at[3] - at[2] < 22
        info = await cluster.singletons.get("x")
        assert (info.run_count, info.last_error, info.problem) == (4, "ValueError: not yet", "")


@pytest.mark.simulated(seeds=3)
@pytest.mark.parametrize("happens", ["nothing", "the database is away", "it is evicted"])
async def test_a_singleton_that_is_defined_after_the_start_is_led_whatever_happens_meanwhile(happens: str) -> None:
    cluster, diary = new_cluster(), LeaderHistory()
    async with simulate(cluster, runners=2) as sim:
        await sim.advance(3)
        if happens == "the database is away":
            sim.restart_storage(down="3s")
        elif happens == "it is evicted":
            for runner in sim.runners:
                runner.freeze()
            await sim.advance(20)
        waiting(cluster, diary)
        for runner in sim.runners:
            runner.thaw()
        await sim.wait_until(lambda: diary.of("body"))
        leader = sim.leader("x")
        await leader.stop()
        await sim.wait_until(lambda: sim.leader("x") is not leader)
