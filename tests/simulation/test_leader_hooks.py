"""Hooks and bodies of leaders that raise, hang, or will not end (S7, S8, GAP-28, incidents 34 and 35)."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Leader, LeadershipLost, Retry
from coterie.singletons.leadership import GRACE_S, HOOK_S
from coterie.testing.nodes import current_node
from coterie.testing.simulation import Runner, Simulation, simulate

from .diaries import Diary, new_cluster

if TYPE_CHECKING:
    from coterie import Cluster

pytestmark = pytest.mark.simulation


@dataclass
class Count:
    n: int = 0


async def is_led(sim: Simulation, *, by: Runner | None = None, other_than: Runner | None = None) -> Runner:
    """Who leads, when it is so."""

    def fits() -> bool:
        leader = sim.leader("x")
        return leader.alive and (by is None or leader is by) and (other_than is None or leader is not other_than)

    await sim.wait_until(fits, within="30s")
    return sim.leader("x")


def defined(cluster: Cluster, diary: Diary, **options: Any) -> None:
    """A singleton that counts, with the hooks of the diary if no others are given."""

    @cluster.singleton("x", **{"state": Count, **diary.hooks(), **options})
    async def body(leader: Leader[Count]) -> None:
        diary.note("body", leader)
        while True:
            async with leader.update() as state:
                state.n += 1
            await leader.sleep("200ms")


# Bodies


@pytest.mark.simulated(seeds=3)
async def test_s8_gap_28_incident_35_a_body_that_raises_is_restarted_with_growing_pauses() -> None:
    """Its error is shown, the seat is kept, and neither hook runs again."""
    cluster, diary = new_cluster(), Diary()

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
async def test_s8_with_a_policy_a_body_that_fails_goes_elsewhere() -> None:
    """Incident 35: whoever cannot lead lets others campaign; and it comes back if nobody else can."""
    cluster, diary = new_cluster(), Diary()

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
    cluster, diary = new_cluster(), Diary()

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
    cluster, diary = new_cluster(drain="10s"), Diary()
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


# Hooks


@pytest.mark.simulated(seeds=3)
async def test_s7_a_first_hook_that_raises_leaves_the_seat_to_others_and_is_reported() -> None:
    cluster, diary = new_cluster(), Diary()

    async def become(leader: Leader[Any]) -> None:
        diary.note("become", leader)
        if len(diary.of("become")) == 1:
            raise OSError("no licence on this machine")

    defined(cluster, diary, on_become_leader=become)
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
    cluster, diary = new_cluster(), Diary()

    async def become(leader: Leader[Any]) -> None:
        diary.note("become", leader)
        if len(diary.of("become")) == 1:
            await asyncio.Event().wait()

    defined(cluster, diary, on_become_leader=become)
    async with simulate(cluster, runners=2) as sim:
        await sim.wait_until(lambda: diary.of("body"))
        assert diary.by(diary.of("become")[0].process) == ["become", "lose"]
        assert diary.of("body")[0].at_s - diary.of("become")[0].at_s < HOOK_S + 5
        assert "did not end within 5s" in ((await cluster.singletons.get("x")).last_error or "")


@pytest.mark.simulated(seeds=3)
@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_s7_a_last_hook_that_fails_does_not_stop_the_hand_over(how: str) -> None:
    cluster, diary = new_cluster(drain="10s"), Diary()

    async def lose(leader: Leader[Any]) -> None:
        diary.note("lose", leader)
        if how == "raises":
            raise OSError("no way")
        await asyncio.Event().wait()

    defined(cluster, diary, on_lose_leadership=lose)
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
    cluster, diary = new_cluster(), Diary()

    async def become(leader: Leader[Any]) -> None:
        diary.note("become", leader)
        await asyncio.sleep(1)
        await leader.verify()

    defined(cluster, diary, on_become_leader=become)
    async with simulate(cluster, runners=1) as sim:
        await sim.wait_until(lambda: diary.of("become"))
        sim.runners[0].freeze()
        await sim.advance(20)
        sim.runners[0].thaw()
        await sim.wait_until(lambda: diary.of("body"))


@pytest.mark.simulated(seeds=3)
async def test_s7_in_one_process_no_hook_runs_beside_another() -> None:
    """Also if a leadership in between was lost before it began."""
    cluster, diary = new_cluster(drain="10s"), Diary()

    async def lose(leader: Leader[Any]) -> None:
        diary.note("lose", leader)
        await asyncio.sleep(4)
        diary.note("lost", leader)

    defined(cluster, diary, on_lose_leadership=lose)
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


@pytest.mark.simulated(seeds=3)
async def test_s2_a_cancelled_save_ends_before_the_next_one_begins() -> None:
    """Who was cancelled in a save may save in its `finally`."""
    cluster, diary = new_cluster(), Diary()
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


def test_an_end_is_short_enough_for_what_is_promised() -> None:
    """S10: a leader is replaced within 10 s."""
    assert GRACE_S + HOOK_S <= 10
