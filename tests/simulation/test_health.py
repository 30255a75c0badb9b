"""`cluster.health()` in virtual time: what stops is seen by everybody within twice its interval (H1, H2, L4)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from coterie import Cluster, Entity, PersistenceError, RemoteError, rpc
from coterie.kernel import chaos
from coterie.testing.run import current_loop
from coterie.testing.simulation import Simulation, simulate
from tests.simulation.leader_history import new_cluster

if TYPE_CHECKING:
    from coterie import Health, Leader, Tick
    from coterie.testing.simulation import Runner


async def seen_by(sim: Simulation, runner: Runner | None = None) -> Health:
    """What a runner says, or the client."""
    work = sim.cluster.health()
    return await (work if runner is None else runner.spawn(work))


def whats(health: Health) -> list[str]:
    """What is wrong; the clocks of simulated machines are not."""
    return [reason.what for reason in health.reasons if "clock" not in reason.problem]


async def is_well(sim: Simulation) -> bool:
    """Nothing is wrong, nothing is about to be taken over, and no runner is still about to be ready."""
    health = await sim.cluster.health()
    all_ready = health.healthy_runners == health.runners
    return not whats(health) and all_ready and health.owned_shards == health.shards


def hanging(cluster: Cluster) -> asyncio.Event:
    """A singleton that is to make progress each 5 s, and hangs once the event is set."""
    hangs = asyncio.Event()

    @cluster.singleton("x", expected_interval="5s")
    async def body(leader: Leader[None]) -> None:
        while not hangs.is_set():
            leader.heartbeat()
            await asyncio.sleep(1)
        await asyncio.Event().wait()

    return hangs


@pytest.mark.simulated(seeds=3)
async def test_h1_a_body_that_hangs_is_named_by_everybody_within_twice_its_interval() -> None:
    """Its loop turns, its runner answers, its lease is renewed: only progress has stopped. Whoever takes it over and
    hangs as well is no better, and gets no grace; the first sign of progress ends it."""
    cluster = new_cluster()
    hangs = hanging(cluster)
    async with simulate(cluster, runners=3) as sim:
        await sim.wait_until(lambda: is_well(sim))
        leader = sim.leader("x")
        hung_s = current_loop().now_ns / 1e9
        hangs.set()

        async def is_named() -> bool:
            return "singleton x" in whats(await seen_by(sim))

        await sim.wait_until(is_named, within="15s")
        # One sign of life may have come later than the moment at which it was told to hang.
        assert 9 <= current_loop().now_ns / 1e9 - hung_s <= 5 * 2 + 2.5
        for looks in (None, *sim.runners):
            health = await seen_by(sim, looks)
            (reason,) = [each for each in health.reasons if each.what == "singleton x"]
            assert (health.status, reason.status, reason.runner) == ("unhealthy", "unhealthy", leader.name)
            assert "no progress" in reason.problem
            assert "resign x" in reason.hint
        for each in sim.runners:
            found = await each.spawn(each.real.collector.readiness())
            assert [reason.what for reason in found] == (["singleton x"] if each is leader else [])
        await cluster.singletons.resign("x")
        await sim.advance(1)
        assert "singleton x" in whats(await seen_by(sim))
        hangs.clear()
        await cluster.singletons.resign("x")
        await sim.wait_until(lambda: is_well(sim), within="10s")


@pytest.mark.simulated(seeds=3)
async def test_h2_the_loss_of_a_runner_is_seen_and_its_replacement_too() -> None:
    """Killed, frozen and stopped in order: who is gone does not answer, and afterwards everything is well again."""
    cluster = Cluster("sqlite://", shards=6, drain="3s")

    @cluster.entity
    class Account(Entity):
        @rpc
        async def touch(self) -> int:
            return 1

    async with simulate(cluster, runners=3) as sim:
        await sim.wait_until(lambda: is_well(sim))
        for number in range(9):
            await cluster.ref(Account, f"{number}").touch()
        health = await seen_by(sim, sim.runners[0])
        assert (health.runners, health.healthy_runners, health.shards, health.owned_shards) == (3, 3, 6, 6)
        assert health.entities == 9
        for lose in ("kill", "freeze"):
            victim = sim.runners[1]
            getattr(victim, lose)()
            health = await seen_by(sim, sim.runners[0])
            assert "runner runner-2" in whats(health)
            assert (health.runners, health.healthy_runners, health.entities) == (3, 2, None)
            await sim.wait_until(lambda: is_well(sim), within="30s")
            health = await seen_by(sim)
            assert (health.runners, health.owned_shards) == (2, 6)
            victim.start() if lose == "kill" else victim.thaw()
            await sim.wait_until(lambda: len(sim.runners[1].real.seats) == 2, within="60s")
            await sim.wait_until(lambda: is_well(sim), within="30s")
        # One that leaves in order is no trouble to anybody.
        leaving = sim.runners[2].stop()
        for _ in range(20):
            assert [what for what in whats(await seen_by(sim)) if "shard" in what] == []
            await sim.advance(0.1)
        await leaving


@pytest.mark.simulated(seeds=3)
async def test_a_type_whose_calls_all_fail_is_seen_until_one_succeeds() -> None:
    """All runners are well and every handler raises: at once if none has ever succeeded, else after a minute."""
    cluster, is_broken = Cluster("sqlite://", shards=6), True

    @cluster.entity
    class Account(Entity):
        @rpc
        async def touch(self) -> int:
            if is_broken:
                raise KeyError("a secret")
            return 1

        @rpc(errors=[ValueError])
        async def refuse(self) -> int:
            raise ValueError("no money")

    async def fail(times: int) -> None:
        for _ in range(times):
            with pytest.raises(RemoteError):
                await cluster.ref(Account, "anna").touch()

    async with simulate(cluster, runners=2) as sim:
        await sim.wait_until(lambda: is_well(sim))
        owner = sim.owner(cluster.ref(Account, "anna"))
        await fail(4)
        assert whats(await seen_by(sim)) == []
        await fail(1)
        for looks in (None, *sim.runners):
            health = await seen_by(sim, looks)
            (reason,) = [each for each in health.reasons if each.what == "entity Account"]
            assert (health.status, reason.runner) == ("degraded", owner.name)
            assert reason.problem.startswith(f"all its calls fail on {owner.name}, 5 within ")
            assert reason.problem.endswith(": KeyError")
        is_broken = False
        assert await cluster.ref(Account, "anna").touch() == 1
        assert whats(await seen_by(sim)) == []
        is_broken = True
        await fail(5)
        assert whats(await seen_by(sim)) == []
        await sim.advance("61s")
        assert whats(await seen_by(sim)) == ["entity Account"]
        with pytest.raises(ValueError, match="no money"):
            await cluster.ref(Account, "anna").refuse()
        assert whats(await seen_by(sim)) == []
        await fail(5)
        await sim.advance("6m")
        assert whats(await seen_by(sim)) == [], "nobody knows whether they still fail"


@pytest.mark.simulated(seeds=2)
async def test_l4_a_database_that_is_away_turns_runners_off_and_on_again() -> None:
    """Whoever asks for health is told that nobody knows; a probe is answered within a second, by what is known here."""
    cluster = new_cluster()
    async with simulate(cluster, runners=2) as sim:
        await sim.wait_until(lambda: is_well(sim))
        first = sim.runners[0]
        assert await first.spawn(first.real.collector.readiness()) == ()
        first.cut("storage")
        with pytest.raises(PersistenceError):
            await first.spawn(cluster.health())

        async def is_off() -> bool:
            before_ns = current_loop().now_ns
            reasons = await first.spawn(first.real.collector.readiness())
            assert current_loop().now_ns - before_ns < 1.5e9, "a probe does not wait"
            return bool(reasons)

        await sim.wait_until(is_off, within="10s")
        assert first.real.facts().storage_s is None
        first.heal()

        async def is_on() -> bool:
            return not await is_off()

        await sim.wait_until(is_on, within="30s")
        assert first.real.facts().storage_s is not None


@pytest.mark.simulated(seeds=2)
async def test_l4_a_database_that_refuses_is_told_at_once_not_after_a_silence() -> None:
    """Three renewals without an answer are silence; an error is known with the first."""
    cluster = new_cluster()
    async with simulate(cluster, runners=1) as sim:
        await sim.wait_until(lambda: is_well(sim))
        await sim.advance(2)
        sim.restart_storage(down="2s")
        await sim.wait_until(lambda: sim.runners[0].real.facts().storage_problem, within="1900ms")
        assert "no answer for" not in sim.runners[0].real.facts().storage_problem
        await sim.wait_until(lambda: not sim.runners[0].real.facts().storage_problem, within="10s")


@pytest.mark.simulated(seeds=2)
async def test_l4_a_loop_that_was_blocked_is_seen_in_its_lag() -> None:
    chaos.install(None)
    cluster = new_cluster()
    async with simulate(cluster, runners=2) as sim:
        await sim.wait_until(lambda: is_well(sim))
        assert sim.runners[0].real.facts().loop_lag_s < 1
        sim.runners[0].block("4s")
        await sim.advance(4.5)
        assert 3 < sim.runners[0].real.facts().loop_lag_s < 4.6
        assert "runner runner-1" in whats(await seen_by(sim, sim.runners[1]))
        await sim.advance(11)
        assert sim.runners[0].real.facts().loop_lag_s < 1
        assert await is_well(sim)


@pytest.mark.simulated(seeds=2)
async def test_h1_crons_and_groups_that_nobody_serves_are_told_as_such() -> None:
    """Nobody holds it, and it never executed: both are said. A runner of its group ends it."""
    cluster = new_cluster()

    @cluster.cron("y", "@every 5s", group="gpu")
    async def body(tick: Tick) -> None:
        del tick

    async with simulate(cluster, runners=2) as sim:
        await sim.advance(20)
        health = await seen_by(sim)
        (reason,) = [each for each in health.reasons if each.what == "cron y"]
        assert (health.status, reason.runner) == ("unhealthy", None)
        assert "never executed" in reason.problem
        assert "no runner that defines it serves group 'gpu'" in reason.hint
        await sim.start(1, groups=("gpu",))
        await sim.wait_until(lambda: is_well(sim), within="60s")
        assert (await seen_by(sim)).crons == 1


@pytest.mark.simulated(seeds=2)
async def test_l4_a_message_that_nobody_works_on_is_told() -> None:
    """Incident 3: of a group that no runner has ever served, so that there is not even a seat for it."""
    cluster = new_cluster()

    @cluster.entity(group="gpu")
    class Render(Entity):
        @rpc(persisted=True)
        async def frame(self) -> None: ...

    async with simulate(cluster, runners=1) as sim:
        await sim.wait_until(lambda: is_well(sim))
        message = await cluster.send(cluster.ref(Render, "a").frame())
        await sim.advance(29)
        assert await is_well(sim)
        await sim.advance(3)
        (reason,) = [each for each in (await seen_by(sim)).reasons if "clock" not in each.problem]
        assert (reason.what, reason.status) == ("message Render/a.frame", "degraded")
        assert str(message) in reason.hint
        await sim.advance(300)
        assert (await seen_by(sim)).status == "unhealthy"
        await sim.start(1, groups=("gpu",))
        await sim.wait_until(lambda: is_well(sim), within="60s")


@pytest.mark.simulated(seeds=2)
async def test_t9_a_queue_whose_oldest_job_waits_too_long_is_named_and_one_that_is_paused_is_not() -> None:
    cluster, gate = new_cluster(), asyncio.Event()
    slow = cluster.queue("slow", concurrency=1, expected_wait="5s")

    @cluster.task(queue=slow)
    async def work() -> None:
        await gate.wait()

    async with simulate(cluster, runners=2) as sim:
        await sim.wait_until(lambda: is_well(sim))
        sent = [await cluster.send(work.job()) for _ in range(3)]
        assert "queue slow" not in whats(await seen_by(sim))

        async def is_named() -> bool:
            return "queue slow" in whats(await seen_by(sim))

        await sim.wait_until(is_named, within="20s")
        health = await seen_by(sim)
        (reason,) = [each for each in health.reasons if each.what == "queue slow"]
        assert (health.status, reason.runner) == ("degraded", None), "no runner becomes unready by it"
        assert "2 jobs waiting, 1 of 1 running" in reason.problem
        await cluster.queues.pause("slow")
        assert not await is_named()
        await cluster.queues.resume("slow")
        assert await is_named()
        gate.set()
        for each in sent:
            await cluster.result(each)
        await sim.wait_until(lambda: is_well(sim))
