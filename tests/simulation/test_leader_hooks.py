"""Hooks of leaders: once each and in order, though they raise, hang, or are told of a loss (S7)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from coterie.singletons.leadership import HOOK_S
from coterie.testing.simulation import simulate
from coterie.work.occupants import GRACE_S
from tests.simulation.leader_history import LeaderHistory, define_counter, is_led, new_cluster

if TYPE_CHECKING:
    from coterie import Leader


@pytest.mark.simulated(seeds=3)
async def test_s7_a_first_hook_that_raises_leaves_the_seat_to_others_and_is_reported() -> None:
    cluster, diary = new_cluster(), LeaderHistory()

    async def become(leader: Leader[Any]) -> None:
        diary.note("become", leader)
        if len(diary.of("become")) == 1:
            raise OSError("no licence on this machine")

    define_counter(cluster, diary, on_become_leader=become)
    async with simulate(cluster, runners=2) as sim:
        await sim.wait_until(lambda: diary.of("body"))
        first, second = (line.process for line in diary.of("become"))
        assert first != second
        assert diary.by(first) == ["become", "lose"]
        assert "on_become_leader raised OSError" in ((await cluster.singletons.get("x")).last_error or "")
        await sim.advance(40)  # it is not tried there again, and does not come and go
        assert len(diary.of("become")) == 2


@pytest.mark.simulated(seeds=3)
async def test_s7_a_first_hook_that_hangs_leaves_the_seat_to_others() -> None:
    cluster, diary = new_cluster(), LeaderHistory()

    async def become(leader: Leader[Any]) -> None:
        diary.note("become", leader)
        if len(diary.of("become")) == 1:
            await asyncio.Event().wait()

    define_counter(cluster, diary, on_become_leader=become)
    async with simulate(cluster, runners=2) as sim:
        await sim.wait_until(lambda: diary.of("body"))
        assert diary.by(diary.of("become")[0].process) == ["become", "lose"]
        assert diary.of("body")[0].at_s - diary.of("become")[0].at_s < HOOK_S + 5
        assert "did not end within 5s" in ((await cluster.singletons.get("x")).last_error or "")


@pytest.mark.simulated(seeds=3)
@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_s7_a_last_hook_that_fails_does_not_stop_the_hand_over(how: str) -> None:
    cluster, diary = new_cluster(drain="10s"), LeaderHistory()

    async def lose(leader: Leader[Any]) -> None:
        diary.note("lose", leader)
        if how == "raises":
            raise OSError("no way")
        await asyncio.Event().wait()

    define_counter(cluster, diary, on_lose_leadership=lose)
    async with simulate(cluster, runners=2) as sim:
        first = await is_led(sim)
        await sim.wait_until(lambda: diary.of("body"))
        await cluster.singletons.resign("x", timeout="20s")
        await is_led(sim, other_than=first)
        assert diary.by(first.name) == ["become", "body", "lose"]
        error = (await cluster.singletons.get("x")).last_error or ""
        assert ("raised OSError" if how == "raises" else "did not end") in error
        assert "LeaderHandoffFailed" in error


@pytest.mark.simulated(seeds=3)
async def test_s7_a_runner_that_was_frozen_in_its_first_hook_may_lead_again() -> None:
    """Neither the time that passed nor the loss of the seat is held against it."""
    cluster, diary = new_cluster(), LeaderHistory()

    async def become(leader: Leader[Any]) -> None:
        diary.note("become", leader)
        for _ in range(40):
            await asyncio.sleep(0.1)
        await leader.verify()

    define_counter(cluster, diary, on_become_leader=become)
    async with simulate(cluster, runners=1) as sim:
        await sim.wait_until(lambda: diary.of("become"))
        await sim.advance(2.5)
        sim.runners[0].freeze()
        await sim.advance(20)
        sim.runners[0].thaw()
        await sim.wait_until(lambda: diary.of("body"))


@pytest.mark.simulated(seeds=3)
async def test_s7_a_runner_whose_first_hook_is_told_of_the_loss_may_lead_again() -> None:
    """The database knows it before the runner does."""
    cluster, diary = new_cluster(), LeaderHistory()

    async def become(leader: Leader[Any]) -> None:
        diary.note("become", leader)
        if len(diary.of("become")) == 1:
            sim.database.main.execute("update seats set holder = null where name = 'singleton:x'")
        await leader.verify()

    define_counter(cluster, diary, on_become_leader=become)
    async with simulate(cluster, runners=0) as sim:
        await sim.start(1)
        await sim.wait_until(lambda: diary.of("body"))
        assert len(diary.of("become")) == 2


@pytest.mark.simulated(seeds=3)
async def test_s7_in_one_process_no_hook_runs_beside_another() -> None:
    """Also if a leadership in between was lost before it began."""
    cluster, diary = new_cluster(drain="10s"), LeaderHistory()

    async def lose(leader: Leader[Any]) -> None:
        diary.note("lose", leader)
        await asyncio.sleep(4)
        diary.note("lost", leader)

    define_counter(cluster, diary, on_lose_leadership=lose)
    async with simulate(cluster, runners=1) as sim:
        for _ in range(3):
            await is_led(sim)
            await sim.wait_until(lambda: "body" in [line.what for line in diary.lines[-1:]])
            (runner,) = sim.runners
            tenure = runner.real.tenure("singleton:x")
            assert tenure is not None
            for _ in range(3):  # it is found to be lost, and is had again, and lost again
                sim.database.main.execute("update seats set holder = null where name = 'singleton:x'")
                await sim.advance(1.2)
        await sim.wait_until(lambda: diary.lines[-1].what == "body")
    whats = [line.what for line in diary.lines]
    assert whats == ["become", "body", "lose", "lost"] * (len(whats) // 4)
    assert len(whats) >= 12


def test_an_end_is_short_enough_for_what_is_promised() -> None:
    """S10: a leader is replaced within 10 s."""
    assert GRACE_S + HOOK_S <= 10
