"""Programs of two versions in one cluster: who leads, and what becomes of the state (S5, M8, INV-L3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from coterie.testing.simulation import simulate
from tests.simulation.leader_history import LeaderHistory, new_cluster

if TYPE_CHECKING:
    from coterie import Cluster, Leader


@dataclass
class One:
    n: int = 0


@dataclass
class Two:
    n: int = 0
    doubled: int = 0


def counting(cluster: Cluster, diary: LeaderHistory, type_: Any, note: str, **options: Any) -> None:
    """A singleton that counts, and notes under which version it began."""

    @cluster.singleton("x", state=type_, **{**diary.hooks(), **options})
    async def body(leader: Leader[Any]) -> None:
        diary.note(note, leader)
        while True:
            async with leader.update() as state:
                state.n += 1
            await leader.sleep("100ms")


def two_versions(diary: LeaderHistory) -> tuple[Cluster, Cluster]:
    """A program and the next version of it, in one cluster."""
    old, new = new_cluster(), new_cluster()
    counting(old, diary, One, "old")
    counting(new, diary, Two, "new", version=2, migrations={1: lambda state: {**state, "doubled": 2 * state["n"]}})
    return old, new


@pytest.mark.simulated(seeds=3)
async def test_m8_s5_a_rolling_deploy_hands_over_to_the_new_version_once() -> None:
    """While both are there the new one leads; what it saved the old one never touches."""
    diary = LeaderHistory()
    old, new = two_versions(diary)
    async with simulate(old, runners=3) as sim:
        await sim.wait_until(lambda: diary.of("old"))
        sim.cluster = new
        for runner in list(sim.runners):
            runner.stop()
            await sim.start(1)
            await sim.advance(5)
        begun = [line.what for line in diary.lines if line.what in ("old", "new")]
        assert begun == sorted(begun, reverse=True), "no old one led after the new one"
        state = await old.singletons.state("x", Two)
        assert state is not None
        assert 0 < state.doubled < 2 * state.n
        aside = [each for each in await old.singletons.history("x") if each.set_aside]
        assert [each.value.keys() for each in aside] == [{"n"}]


@pytest.mark.simulated(seeds=3)
async def test_m8_inv_l3_a_state_newer_than_known_is_refused_untouched_and_the_seat_left_to_others() -> None:
    """Only old runners are left: they say what is wrong, each once, and a new one goes on where it was."""
    diary = LeaderHistory()
    old, new = two_versions(diary)
    async with simulate(new, runners=1) as sim:
        await sim.wait_until(lambda: diary.of("new"))
        await sim.advance(1)
        await sim.runners[0].stop()
        sim.cluster = old
        before = await new.singletons.history("x")
        await sim.start(2)
        await sim.advance(30)
        assert await new.singletons.history("x") == before
        assert not diary.of("old")
        info = await new.singletons.get("x")
        assert info.leader is None
        assert info.problem == "nobody leads it"
        assert "SchemaDecodeFailed" in (info.last_error or "")
        assert info.epoch <= 3, "each of them tried once"
        sim.cluster = new
        await sim.start(1)
        for runner in sim.runners[1:3]:
            runner.stop()
        await sim.wait_until(lambda: len(diary.of("new")) == 2)
