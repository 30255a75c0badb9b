"""States of leaders: out of reach, refused, in doubt, and of old (S2, S6, S9, M13)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Leader, LeadershipLost, PersistenceError, StatePersistFailed
from coterie.storage.sqlite.states import SqliteExecutions, SqliteStates
from coterie.testing.loop.seeds import stream
from coterie.testing.run import current_loop
from coterie.testing.simulation import simulate
from tests.simulation.leader_history import LeaderHistory, define_counter, new_cluster

if TYPE_CHECKING:
    from coterie.storage.contracts.executions import ExecutionRecord
    from coterie.storage.interface import Claim, StateSave, Written


@dataclass
class One:
    n: int = 0


@pytest.mark.simulated(seeds=3)
async def test_s9_an_outage_while_a_leader_begins_disqualifies_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lasts longer than all tries that a policy has, and shorter than a lease."""
    cluster, diary = new_cluster(), LeaderHistory()
    define_counter(cluster, diary)
    right, until_ns = SqliteExecutions.begin, dict[int, int]()

    async def away(self: SqliteExecutions, claim: Claim, **more: Any) -> ExecutionRecord | None:
        now_ns = current_loop().now_ns
        if now_ns < until_ns.setdefault(claim.epoch, now_ns + 3_500_000_000):
            raise PersistenceError(doing="begin", problem="nobody answers", outcome="unreachable")
        return await right(self, claim, **more)

    monkeypatch.setattr(SqliteExecutions, "begin", away)
    async with simulate(cluster, runners=1) as sim:
        await sim.wait_until(lambda: diary.of("body"), within="20s")
        assert diary.of("body")[0].at_s > 3.5


@pytest.mark.simulated(seeds=3)
async def test_inv_d6_a_save_that_was_not_answered_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the try that nobody answered has happened or not: one save, one version."""
    cluster, seen = new_cluster(), list[int]()
    right = SqliteStates.save

    async def flaky(self: SqliteStates, write: StateSave) -> Written:
        fate = random.randrange(4)
        told = await right(self, write) if fate != 1 else "written"
        if fate < 2:
            raise PersistenceError(doing="save", problem="no answer", outcome="unknown")
        return told

    @cluster.singleton("x", state=One)
    async def body(leader: Leader[One]) -> None:
        for _ in range(30):
            async with leader.update() as state:
                state.n += 1
            seen.append(leader.state.n)
        await asyncio.Event().wait()

    random = stream(current_loop().seed, "flaky")
    monkeypatch.setattr(SqliteStates, "save", flaky)
    async with simulate(cluster, runners=1) as sim:
        await sim.wait_until(lambda: len(seen) >= 30)
        assert seen == list(range(1, 31))
        assert await cluster.singletons.state("x", One) == One(30)
        assert [each.number for each in await cluster.singletons.history("x")] == list(range(30, 10, -1))


@pytest.mark.simulated(seeds=2)
@pytest.mark.parametrize("down", ["2s", "20s"])
async def test_s2_a_save_waits_out_an_outage_or_says_that_the_leadership_is_lost(down: str) -> None:
    cluster, told = new_cluster(), list[str]()

    @cluster.singleton("x", state=One)
    async def body(leader: Leader[One]) -> None:
        await asyncio.sleep(1)
        sim.restart_storage(down=down)
        try:
            await leader.save(One(leader.epoch))
            told.append("saved")
        except LeadershipLost as error:
            told.append("in doubt" if error.in_doubt else "lost")
        except asyncio.CancelledError:
            told.append("cancelled")
            raise
        await asyncio.Event().wait()

    async with simulate(cluster, runners=0) as sim:
        await sim.start(1)
        await sim.wait_until(lambda: told)
        if down == "2s":
            assert told == ["saved"]
            assert await cluster.singletons.state("x", One) == One((await cluster.singletons.get("x")).epoch)
        else:
            assert told[0] in ("lost", "cancelled")
            sim.runners[0].kill()


@pytest.mark.simulated(seeds=2)
async def test_inv_d6_a_lost_leadership_says_when_its_last_save_is_in_doubt() -> None:
    """What it asks for happens, and it is not told; its body is gone by then, and another one waits for the end."""
    cluster, told = new_cluster(), list[LeadershipLost]()

    async def save(leader: Leader[One]) -> None:
        try:
            await leader.save(One(7))
        except LeadershipLost as error:
            told.append(error)

    @cluster.singleton("x", state=One)
    async def body(leader: Leader[One]) -> None:
        sim.runners[0].cut("storage", "replies")
        tasks.append(asyncio.create_task(save(leader)))
        await asyncio.Event().wait()

    tasks: list[asyncio.Task[None]] = []
    async with simulate(cluster, runners=0) as sim:
        await sim.start(1)
        await sim.wait_until(lambda: told)
        assert await cluster.singletons.state("x", One) == One(7)
        assert told[0].in_doubt
        assert "is not known" in str(told[0])
        sim.runners[0].kill()


@pytest.mark.simulated(seeds=2)
async def test_s9_a_save_that_the_database_refuses_is_tried_by_the_policy_and_then_told() -> None:
    cluster, told = new_cluster(), list[str]()

    @cluster.singleton("x", state=One)
    async def body(leader: Leader[One]) -> None:
        try:
            await leader.save(One(1))
        except StatePersistFailed as error:
            told.append(error.problem)
        sim.database.main.execute("drop trigger no")
        await leader.save(One(2))
        told.append("saved")
        await asyncio.Event().wait()

    async with simulate(cluster, runners=0) as sim:
        sim.database.main.execute(
            "create temp trigger no before insert on main.states begin select raise(abort, 'not on a Sunday'); end"
        )
        await sim.start(1)
        await sim.wait_until(lambda: told[-1:] == ["saved"])
        assert len(told) == 2
        assert "not on a Sunday" in told[0]
        await sim.advance(2)
        assert "StatePersistFailed" in ((await cluster.singletons.get("x")).last_error or "")


@pytest.mark.simulated(seeds=2)
async def test_s6_a_state_expires_after_its_last_save_and_is_cleared_away() -> None:
    """A save counts though it changes nothing; a leader that comes later begins from the first state."""
    cluster, begun = new_cluster(), list[int]()

    @cluster.singleton("x", state=One, ttl="20s")
    async def body(leader: Leader[One]) -> None:
        begun.append(leader.state.n)
        for _ in range(10):  # longer than it lives
            await leader.save(One(7))
            await leader.sleep("5s")
        await asyncio.Event().wait()

    async with simulate(cluster, runners=2) as sim:
        await sim.advance(45)
        assert await cluster.singletons.state("x", One) == One(7)
        await cluster.singletons.resign("x", timeout="20s")
        await sim.wait_until(lambda: begun == [0, 7])
        for runner in sim.runners:
            runner.kill()
        await sim.advance(90)
        assert await cluster.singletons.state("x", One) is None
        for runner in sim.runners:
            runner.start()
        await sim.wait_until(lambda: begun == [0, 7, 0])


@pytest.mark.simulated(seeds=2)
async def test_s6_expired_states_of_programs_that_are_gone_are_cleared_away() -> None:
    cluster = new_cluster()

    @cluster.singleton("gone", state=One, ttl="10s")
    async def gone(leader: Leader[One]) -> None:
        await leader.save(One(1))

    @cluster.singleton("here", state=One, ttl="1h")
    async def here(leader: Leader[One]) -> None:
        await leader.save(One(1))

    async with simulate(cluster, runners=1) as sim:
        keys = "select key from states order by key"
        await sim.wait_until(lambda: len(list(sim.database.main.execute(keys))) == 2)
        await sim.wait_until(lambda: len(list(sim.database.main.execute(keys))) == 1, within="120s")
        assert list(sim.database.main.execute(keys)) == [("singleton-state:here",)]
        assert await cluster.singletons.history("gone") == []
