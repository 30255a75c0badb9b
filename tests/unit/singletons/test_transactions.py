"""`leader.transaction()`: SQL of the user's own and the state, in one commit or not at all (S2, B1)."""

from __future__ import annotations

import asyncio

import pytest

from coterie.errors import LeadershipLost, PersistenceError, StatePersistFailed
from coterie.singletons import state as leader_state
from tests.unit.singletons.fake_storage import HeldSingleton, Progress, loaded, refused, unknown, unreachable, until


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_state, "_PAUSE_MOST_S", 0.001)


def ended(stage: HeldSingleton) -> list[str]:
    return [transaction.ended for transaction in stage.storage.transactions]


async def test_a_save_inside_is_part_of_the_commit() -> None:
    stage = await loaded()
    async with stage.state.transaction():
        async with stage.state.update() as state:
            state.last_id = 1
        assert stage.state.shown == Progress(1), "the block sees it"
        async with stage.state.update() as state:
            state.last_id += 1
        assert stage.states.saved == [], "and nobody else"
    assert stage.values() == [Progress(2)]
    assert stage.state.shown == Progress(2)
    assert stage.states.asked["save"] == 0
    assert ended(stage) == ["committed"]
    assert stage.changes == 1
    await stage.state.save(Progress(3))
    assert [write.version for write in stage.states.saved] == [0, 1]
    assert stage.states.asked["save"] == 1, "it knew what to follow"


async def test_without_a_save_the_rows_alone_are_committed() -> None:
    stage = await loaded()
    await stage.state.save(Progress(1))
    async with stage.state.transaction():
        await stage.state.save(Progress(1))
    async with stage.state.transaction():
        pass
    assert ended(stage) == ["committed", "committed"]
    assert len(stage.states.saved) == 1


async def test_a_block_that_raises_is_rolled_back_and_its_saves_with_it() -> None:
    stage = await loaded()
    await stage.state.save(Progress(1))

    async def saves() -> None:
        async with stage.state.transaction():
            await stage.state.save(Progress(2))
            raise KeyError

    async def updates() -> None:
        async with stage.state.transaction(), stage.state.update() as state:
            state.last_id = 5
            raise KeyError

    with pytest.raises(KeyError):
        await saves()
    assert ended(stage) == ["rolled back"]
    assert stage.state.shown == stage.stored() == Progress(1)
    with pytest.raises(KeyError):
        await updates()
    await stage.state.save(Progress(3))
    assert stage.stored() == Progress(3)


async def test_a_failed_update_inside_leaves_the_transaction_to_its_block() -> None:
    stage = await loaded()

    async def fails() -> None:
        async with stage.state.update() as state:
            state.last_id = 5
            raise KeyError

    async with stage.state.transaction():
        await stage.state.save(Progress(1))
        with pytest.raises(KeyError):
            await fails()
    assert stage.values() == [Progress(1)]


async def test_saves_of_other_tasks_wait_for_its_end() -> None:
    stage = await loaded()
    async with stage.state.transaction():
        other = asyncio.create_task(stage.state.save(Progress(9)))
        await asyncio.sleep(0)
        async with stage.state.update() as state:
            state.last_id = 1
    await other
    assert stage.values() == [Progress(1), Progress(9)]


@pytest.mark.parametrize("saves", [False, True])
async def test_fenced_is_leadership_lost_and_nothing_of_it_was_written(saves: bool) -> None:
    """C1."""
    stage = await loaded()

    async def work() -> None:
        async with stage.state.transaction():
            if saves:
                await stage.state.save(Progress(1))
            stage.states.held = False

    with pytest.raises(LeadershipLost):
        await work()
    assert ended(stage) == ["fenced"]
    assert stage.state.shown == Progress()


async def test_without_the_seat_none_is_begun() -> None:
    stage = await loaded()
    stage.tenure.ended = True
    with pytest.raises(LeadershipLost):
        async with stage.state.transaction():
            pytest.fail("it was begun")
    assert stage.storage.transactions == []


@pytest.mark.parametrize("error", [refused, unreachable], ids=["refused", "unreachable"])
async def test_what_was_not_committed_is_the_blocks_error_and_may_be_done_again(error: PersistenceError) -> None:
    """The rows are the user's: only its block can make them again."""
    stage = await loaded()
    await stage.state.save(Progress(1))
    stage.states.failing["commit"] = [error]
    with pytest.raises(PersistenceError) as caught:
        async with stage.state.transaction():
            await stage.state.save(Progress(2))
    assert caught.value is error
    assert stage.state.shown == stage.stored() == Progress(1)
    async with stage.state.transaction():
        await stage.state.save(Progress(2))
    assert stage.values() == [Progress(1), Progress(2)]


async def test_a_commit_whose_answer_was_lost_is_found_by_its_state() -> None:
    """0.6: an outcome that is unknown is neither failed nor done until somebody has looked."""
    stage = await loaded()
    stage.states.losing["commit"] = [unknown]
    stage.states.failing["load"] = [unreachable]
    async with stage.state.transaction():
        await stage.state.save(Progress(1))
    assert stage.state.shown == Progress(1)
    await stage.state.save(Progress(2))
    assert stage.values() == [Progress(1), Progress(2)]


async def test_one_that_did_not_happen_raises_and_nothing_is_taken_for_stored() -> None:
    stage = await loaded()
    stage.states.failing["commit"] = [unknown]
    with pytest.raises(PersistenceError):
        async with stage.state.transaction():
            await stage.state.save(Progress(1))
    assert stage.state.shown == Progress()
    await stage.state.save(Progress())
    assert stage.stored() == Progress()


async def test_lost_while_it_looks_is_told_with_the_doubt() -> None:
    stage = await loaded()
    stage.states.losing["commit"] = [unknown]

    async def work() -> None:
        async with stage.state.transaction():
            await stage.state.save(Progress(1))

    gate = stage.states.hold("load")
    working = asyncio.create_task(work())
    await until(lambda: stage.states.asked["load"] == 2)
    stage.states.held = False
    gate.set()
    with pytest.raises(LeadershipLost) as caught:
        await working
    assert caught.value.in_doubt


async def test_a_state_that_was_cleared_away_refuses_the_commit_once() -> None:
    """S6: the block may have read what is not there any more."""
    stage = await loaded(ttl="1h")
    await stage.state.save(Progress(1))
    stage.states.purge()
    with pytest.raises(StatePersistFailed, match="another one than this leader knows"):
        async with stage.state.transaction():
            await stage.state.save(Progress(2))
    async with stage.state.transaction():
        await stage.state.save(Progress(2))
    assert ended(stage) == ["conflict", "committed"]
    assert stage.stored() == Progress(2)


async def test_after_a_refusal_the_former_state_is_not_taken_for_stored() -> None:
    """Somebody removed it by hand."""
    stage = await loaded()
    await stage.state.save(Progress(1))
    stage.states.purge()
    with pytest.raises(StatePersistFailed):
        async with stage.state.transaction():
            await stage.state.save(Progress(2))
    await stage.state.save(Progress(1))
    assert stage.stored() == Progress(1)


async def test_a_cancelled_commit_comes_to_its_end_and_what_follows_is_not_part_of_it() -> None:
    stage = await loaded()
    gate = stage.states.hold("commit")
    went_on = asyncio.Event()

    async def first() -> None:
        async with asyncio.timeout(0.01), stage.state.transaction():
            await stage.state.save(Progress(1))

    async def work() -> None:
        with pytest.raises(TimeoutError):
            await first()
        went_on.set()
        async with stage.state.update() as state:
            state.last_id += 1

    working = asyncio.create_task(work())
    await went_on.wait()
    assert stage.states.saved == []
    gate.set()
    await working
    assert stage.values() == [Progress(1), Progress(2)]


async def test_a_change_of_the_state_in_its_block_is_dropped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    stage = await loaded()
    async with stage.state.transaction():
        await stage.state.save(Progress(1))
        stage.state.shown.last_id = 99
        async with stage.state.update() as state:
            state.names.append("a")
    assert stage.stored() == Progress(1, ["a"])
    assert "changed leader.state outside of update()" in caplog.text
