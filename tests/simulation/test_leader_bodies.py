"""Bodies of leaders that raise, return, are cancelled in a save, or will not end (S2, S8, GAP-28, incidents 34, 35)."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress

import pytest

from coterie import Leader, LeadershipLost, Retry
from coterie.testing.loop.nodes import current_node
from coterie.testing.simulation import simulate
from tests.simulation.leader_history import Count, LeaderHistory, is_led, new_cluster


@pytest.mark.simulated(seeds=3)
async def test_s8_gap_28_incident_35_a_body_that_raises_is_restarted_with_growing_pauses() -> None:
    """Its error is shown, the seat is kept, and neither hook runs again."""
    cluster, diary = new_cluster(), LeaderHistory()

    @cluster.singleton("x", **diary.hooks())
    async def body(leader: Leader[None]) -> None:
        diary.note("body", leader)
        raise ValueError("no luck")

    async with simulate(cluster, runners=2) as sim:
        await sim.wait_until(lambda: len(diary.of("body")) >= 7)
        at = [line.at_s for line in diary.of("body")]
        pauses = [later - earlier for earlier, later in itertools.pairwise(at)]
        assert pauses[0] < 0.5
        assert pauses[5] > 4 * pauses[1]
        await sim.advance(2)
        info = await cluster.singletons.get("x")
        assert info.last_error == "ValueError: no luck"
        assert info.run_count >= 7
        assert [len(diary.of(what)) for what in ("become", "lose")] == [1, 0]


@pytest.mark.simulated(seeds=3)
async def test_s8_gap_28_a_body_that_awaits_something_cancelled_is_restarted_with_its_error_shown() -> None:
    """Nobody has cancelled the body: else its runner would lead for ever without doing anything."""
    cluster, diary = new_cluster(), LeaderHistory()

    @cluster.singleton("x", **diary.hooks())
    async def body(leader: Leader[None]) -> None:
        diary.note("body", leader)
        part = asyncio.ensure_future(asyncio.sleep(60))
        asyncio.get_running_loop().call_later(0.1, part.cancel)
        await part

    async with simulate(cluster, runners=2) as sim:
        await sim.wait_until(lambda: len(diary.of("body")) >= 3)
        await sim.advance(2)
        assert "CancelledError" in ((await cluster.singletons.get("x")).last_error or "")
        first = await is_led(sim)
        await cluster.singletons.resign("x", timeout="30s")  # and what we cancel is over
        await sim.wait_until(lambda: diary.by(first.name)[-1] == "lose")


@pytest.mark.simulated(seeds=3)
async def test_s8_with_a_policy_a_body_that_fails_goes_elsewhere() -> None:
    """Incident 35: whoever cannot lead lets others campaign; and it comes back if nobody else can."""
    cluster, diary = new_cluster(), LeaderHistory()

    @cluster.singleton("x", retry=Retry(attempts=3, base="100ms"), **diary.hooks())
    async def body(leader: Leader[None]) -> None:
        diary.note("body", leader)
        if current_node.get().label == diary.of("body")[0].process:
            raise ValueError("not here")
        await asyncio.Event().wait()

    async with simulate(cluster, runners=2) as sim:
        await sim.wait_until(lambda: len({line.process for line in diary.of("body")}) == 2)
        first = diary.of("body")[0].process
        assert diary.by(first) == ["become", "body", "body", "body", "lose"]
        (other,) = {line.process for line in diary.lines} - {first}
        assert diary.by(other) == ["become", "body"]


@pytest.mark.simulated(seeds=3)
async def test_s8_incident_34_a_body_that_returned_keeps_the_seat_and_learns_of_its_loss() -> None:
    """Nothing of it asks for anything any more, and it loses its lease all the same."""
    cluster, diary = new_cluster(), LeaderHistory()

    @cluster.singleton("x", **diary.hooks())
    async def body(leader: Leader[None]) -> None:
        diary.note("body", leader)

    async with simulate(cluster, runners=3) as sim:
        first = await is_led(sim)
        await sim.advance(20)
        assert [line.what for line in diary.lines] == ["become", "body"]
        first.cut("storage")
        await is_led(sim, other_than=first)
        await sim.wait_until(lambda: diary.by(first.name) == ["become", "body", "lose"], within="5s")
        await sim.wait_until(lambda: len(diary.of("body")) == 2)


@pytest.mark.simulated(seeds=3)
async def test_s7_a_body_that_ignores_its_cancellation_does_not_stop_the_hand_over() -> None:
    """It is reported, left behind, and what it writes is refused."""
    cluster, diary = new_cluster(drain="10s"), LeaderHistory()
    refused: list[str] = []

    @cluster.singleton("x", state=Count, **diary.hooks())
    async def body(leader: Leader[Count]) -> None:
        diary.note("body", leader)
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.3)
            try:
                async with leader.update() as state:
                    state.n += 1
            except LeadershipLost:
                refused.append(current_node.get().label)

    async with simulate(cluster, runners=2) as sim:
        first = await is_led(sim)
        await sim.wait_until(lambda: diary.of("body"))
        await cluster.singletons.resign("x", timeout="30s")
        second = await is_led(sim, other_than=first)
        await sim.wait_until(lambda: first.name in refused)
        await sim.wait_until(lambda: diary.by(second.name) == ["become", "body"])
        assert diary.by(first.name) == ["become", "body", "lose"]
        assert "ignored its cancellation" in ((await cluster.singletons.get("x")).last_error or "")
        for runner in sim.runners:
            runner.kill()  # nobody else can end such a body


@pytest.mark.simulated(seeds=3)
async def test_s2_a_cancelled_save_ends_before_the_next_one_begins() -> None:
    """Who was cancelled in a save may save in its `finally`."""
    cluster, diary = new_cluster(), LeaderHistory()
    ends: list[str] = []

    @cluster.singleton("x", state=Count, **diary.hooks())
    async def body(leader: Leader[Count]) -> None:
        try:
            while True:
                async with leader.update() as state:
                    state.n += 1
        finally:
            try:
                async with leader.update() as state:
                    state.n += 1000
                ends.append("saved")
            except LeadershipLost:
                ends.append("lost")

    async with simulate(cluster, runners=2) as sim:
        for _ in range(3):
            await is_led(sim)
            await sim.advance(1)
            before = len(ends)
            await cluster.singletons.resign("x", timeout="20s")
            assert len(ends) == before + 1
        state = await cluster.singletons.state("x", Count)
        assert ends == ["saved"] * 3
        assert state is not None
        assert state.n > 3000
