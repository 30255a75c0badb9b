"""The state of a leader: what is loaded, what is written, and what a doubt ends in (S2, S4-S6)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from coterie.errors import LeadershipLost, MalformedMessage, PersistenceError, SchemaDecodeFailed, StatePersistFailed
from coterie.kernel.retry import Retry
from coterie.kernel.serialization.codec import PLAIN
from coterie.singletons import state as leader_state
from tests.unit.singletons.fake_storage import HeldSingleton, Progress, loaded, refused, unknown, unreachable, until


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_state, "_PAUSE_S", 0.0001)
    monkeypatch.setattr(leader_state, "_PAUSE_MOST_S", 0.001)


def stored_as(version: int, value: Any) -> bytes:
    """A state as some program wrote it."""
    return b"\x92" + msgspec.msgpack.encode(version) + PLAIN.encode(value, what="a state")


def fails(values: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("defect")


class TestLoading:
    async def test_without_a_row_it_is_the_first_state_and_nothing_is_written(self) -> None:
        stage = await loaded(state=lambda: Progress(7))
        assert stage.state.shown == Progress(7)
        assert stage.states.value is None
        assert stage.failures == []

    async def test_the_first_state_is_saved_when_it_is_saved(self) -> None:
        """S2: nobody has stored it, and the next leader may begin with another one."""
        stage = await loaded(state=lambda: Progress(7))
        await stage.state.save(stage.state.shown)
        assert stage.stored() == Progress(7)

    async def test_what_is_stored_is_taken_over_and_followed(self) -> None:
        stage = HeldSingleton()
        stage.states.put(stage.encoded(Progress(3, ["a"])), 5)
        await stage.state.load()
        assert stage.state.shown == Progress(3, ["a"])
        await stage.state.save(Progress(3, ["a"]))
        assert stage.states.saved == [], "nothing has changed"
        await stage.state.save(Progress(4))
        assert [write.version for write in stage.states.saved] == [5]

    async def test_what_is_known_of_it_is_read_and_the_rest_is_dropped(self) -> None:
        """S4: matching fields are loaded, new ones take their defaults, unknown ones go; the next save writes."""
        stage = HeldSingleton()
        stage.states.put(stored_as(1, {"last_id": 3, "former": "x"}))
        await stage.state.load()
        assert stage.state.shown == Progress(3, [])
        assert stage.states.aside == []
        await stage.state.save(Progress(3, []))
        assert stage.stored() == Progress(3, [])
        assert len(stage.states.saved) == 1, "it was stored otherwise than this program would"

    @pytest.mark.parametrize(
        "data", [b"", b"\xc1", stored_as(1, {"last_id": "many"}), stored_as(1, [1]), b"\x92\x01"], ids=range(5)
    )
    async def test_what_cannot_be_read_begins_anew_and_is_kept_aside(
        self, data: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        """S4: kept aside, counted and logged, never silently destroyed."""
        stage = HeldSingleton()
        stage.states.put(data, 4)
        await stage.state.load()
        assert stage.state.shown == Progress()
        (reason,) = stage.states.aside
        assert reason.startswith("it cannot be read: ")
        (failure,) = stage.failures
        assert isinstance(failure, SchemaDecodeFailed)
        assert "set aside and replaced by the first one" in caplog.text
        assert stage.states.value == data, "nothing is replaced before something is saved"
        await stage.state.save(Progress())
        assert stage.stored() == Progress()

    async def test_a_reason_that_no_database_stores_does_not_stop_it(self) -> None:
        """The text of an error may quote anything."""

        @dataclass
        class Named:
            name: str = ""

            def __post_init__(self) -> None:
                if self.name:
                    raise ValueError("zero \x00, half \ud800")

        stage = HeldSingleton(state=Named)
        stage.states.put(stored_as(1, {"name": "x"}))
        await stage.state.load()
        (reason,) = stage.states.aside
        assert "\x00" not in reason
        reason.encode()

    async def test_it_is_not_set_aside_by_one_who_has_lost_the_seat(self) -> None:
        stage = HeldSingleton()
        stage.states.put(b"junk")
        gate = stage.states.hold("set_aside")
        loading = asyncio.create_task(stage.state.load())
        await until(lambda: stage.states.asked["set_aside"])
        stage.states.held = False
        gate.set()
        with pytest.raises(LeadershipLost):
            await loading
        assert stage.failures == []

    async def test_an_earlier_version_is_migrated_and_set_aside(self) -> None:
        """S5."""

        def to_two(values: dict[str, Any]) -> dict[str, Any]:
            return {"last_id": values["id"] * 10}

        stage = HeldSingleton(version=2, migrations={1: to_two})
        stage.states.put(stored_as(1, {"id": 3}))
        await stage.state.load()
        assert stage.state.shown == Progress(30)
        assert stage.states.aside == ["it was migrated from version 1 to 2"]
        assert stage.failures == []
        await stage.state.save(Progress(30))
        assert stage.states.value == stored_as(2, {"last_id": 30, "names": []}), "the migrated one is written"

    @pytest.mark.parametrize(
        ("version", "migrations", "data", "problem"),
        [
            (1, None, stored_as(2, {"last_id": 3}), "is version 2, this program knows up to 1"),
            (2, {1: fails}, stored_as(1, {"last_id": 3}), "migration from version 1 to 2 failed"),
        ],
        ids=["newer", "defect"],
    )
    async def test_what_this_program_cannot_migrate_is_refused_and_not_touched(
        self, version: int, migrations: Any, data: bytes, problem: str
    ) -> None:
        """M8: a later program wrote it, or a migration is wrong: another runner may be able to read it."""
        stage = HeldSingleton(version=version, migrations=migrations)
        stage.states.put(data, 4)
        with pytest.raises(SchemaDecodeFailed, match=problem):
            await stage.state.load()
        assert (stage.states.value, stage.states.version) == (data, 4)
        assert stage.states.aside == []

    async def test_an_expired_one_is_forgotten_and_the_next_follows_its_version(self) -> None:
        """S6."""
        stage = HeldSingleton(ttl="1h")
        stage.states.put(stage.encoded(Progress(9)), 4, expired=True)
        await stage.state.load()
        assert stage.state.shown == Progress()
        await stage.state.save(Progress())
        (write,) = stage.states.saved
        assert (write.version, write.ttl_s) == (4, 3600)
        assert stage.stored() == Progress()

    async def test_without_the_seat_nothing_is_loaded(self) -> None:
        stage = HeldSingleton()
        stage.states.held = False
        with pytest.raises(LeadershipLost):
            await stage.state.load()

    async def test_a_failure_of_the_database_is_the_callers(self) -> None:
        """Who retries it, by policy."""
        stage = HeldSingleton()
        stage.states.failing["load"] = [unreachable]
        with pytest.raises(PersistenceError):
            await stage.state.load()
        await stage.state.load()
        assert stage.state.shown == Progress()

    async def test_a_singleton_without_state_has_none(self) -> None:
        stage = await loaded(state=None)
        assert stage.state.shown is None
        assert stage.states.asked["load"] == 0
        with pytest.raises(TypeError, match="'importer' has no state: add state= to its definition"):
            await stage.state.save(None)
        with pytest.raises(TypeError, match="has no state"):
            async with stage.state.update():
                pass
        async with stage.state.transaction():  # nor is it left locked
            pass


class TestSaving:
    async def test_a_save_is_durable_when_it_returns_and_seen_afterwards(self) -> None:
        stage = await loaded()
        state = Progress(1)
        await stage.state.save(state)
        assert stage.stored() == stage.state.shown == Progress(1)
        assert stage.changes == 1
        state.names.append("later")
        assert stage.state.shown == Progress(1), "it is a copy"
        (write,) = stage.states.saved
        assert (write.claim, write.key, write.keep) == (
            stage.tenure.claim,
            "singleton-state:importer",
            leader_state.HISTORY,
        )

    async def test_nothing_is_written_if_nothing_has_changed(self) -> None:
        stage = await loaded()
        await stage.state.save(Progress(1))
        await stage.state.save(Progress(1))
        async with stage.state.update():
            pass
        assert len(stage.states.saved) == 1
        assert stage.changes == 1, "nor is it progress"
        stage.tenure.ended = True
        with pytest.raises(LeadershipLost):
            await stage.state.save(Progress(1))

    async def test_a_state_that_expires_is_written_each_time(self) -> None:
        """S6: its time counts from the last save."""
        stage = await loaded(ttl="1h")
        for _ in range(2):
            await stage.state.save(Progress(1))
        async with stage.state.transaction():
            await stage.state.save(Progress(1))
        assert len(stage.states.saved) == 3

    async def test_an_update_has_a_copy_that_is_dropped_when_it_raises(self) -> None:
        stage = await loaded()

        async def work() -> None:
            async with stage.state.update() as state:
                state.last_id = 5
                state.names.append("a")
                raise KeyError

        with pytest.raises(KeyError):
            await work()
        assert stage.state.shown == Progress()
        assert stage.states.saved == []
        async with stage.state.update() as state:
            assert state == Progress()
            state.last_id = 6
            assert stage.state.shown == Progress(), "until it is saved"
        assert stage.state.shown == stage.stored() == Progress(6)

    async def test_what_cannot_be_stored_is_refused_and_leaves_the_turn_to_others(self) -> None:
        stage = await loaded()
        wrong: Any = "many"
        with pytest.raises(MalformedMessage):
            await stage.state.save(Progress(wrong))
        with pytest.raises(MalformedMessage):
            async with stage.state.update() as state:
                state.last_id = wrong
        await stage.state.save(Progress(1))
        assert stage.values() == [Progress(1)]

    async def test_updates_of_several_tasks_take_turns(self) -> None:
        """No update is lost."""
        stage = await loaded()

        async def add() -> None:
            async with stage.state.update() as state:
                seen = state.last_id
                await asyncio.sleep(0)
                state.last_id = seen + 1

        await asyncio.gather(*(add() for _ in range(20)))
        assert stage.stored() == Progress(20)

    async def test_a_task_that_would_wait_for_itself_is_told(self) -> None:
        stage = await loaded()
        with pytest.raises(RuntimeError, match=r"'importer' is inside of update\(\) already: end that block first"):
            async with stage.state.update():
                await stage.state.save(Progress(1))
        with pytest.raises(RuntimeError, match=r"inside of update\(\)"):
            async with stage.state.update(), stage.state.transaction():
                pass
        with pytest.raises(RuntimeError, match=r"inside of transaction\(\)"):
            async with stage.state.transaction(), stage.state.transaction():
                pass
        await stage.state.save(Progress(2))
        assert stage.values() == [Progress(2)]

    async def test_a_change_outside_of_update_is_dropped_with_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        """M7: `leader.state` is a copy to be read."""
        stage = await loaded()
        stage.state.shown.last_id = 99
        async with stage.state.update() as state:
            state.names.append("a")
        assert stage.stored() == stage.state.shown == Progress(0, ["a"])
        assert "changed leader.state outside of update()" in caplog.text

    async def test_one_that_nothing_was_saved_after_is_dropped_when_the_body_ends_and_told_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Also of a body that never saves; once for each leadership."""
        stage = await loaded()
        stage.state.drop_changes()
        assert caplog.text == ""
        for _ in range(3):
            stage.state.shown.last_id += 1
            stage.state.drop_changes()
            assert stage.state.shown == Progress(0)
        assert caplog.text.count("changed leader.state outside of update()") == 1
        assert stage.states.saved == []

    async def test_one_that_cannot_even_be_stored_is_dropped_as_well(self, caplog: pytest.LogCaptureFixture) -> None:
        stage = await loaded()
        stage.state.shown.last_id = object()
        await stage.state.save(Progress(1))
        assert stage.stored() == Progress(1)
        assert "changed leader.state outside of update()" in caplog.text

    async def test_to_save_what_was_changed_in_place_is_no_such_change(self, caplog: pytest.LogCaptureFixture) -> None:
        stage = await loaded()
        stage.state.shown.last_id = 7
        await stage.state.save(stage.state.shown)
        assert stage.stored() == stage.state.shown == Progress(7)
        assert caplog.text == ""


class TestDoubt:
    async def test_a_save_waits_for_a_database_that_is_away(self) -> None:
        stage = await loaded(retry=Retry.never)
        stage.states.failing["save"] = [unreachable] * 7
        await stage.state.save(Progress(1))
        assert stage.stored() == Progress(1)
        assert len(stage.failures) == 7
        assert all(isinstance(each, StatePersistFailed) for each in stage.failures)

    async def test_a_save_whose_answer_was_lost_is_written_once(self) -> None:
        """0.6: whatever differs from what is remembered is our own."""
        stage = await loaded()
        stage.states.losing["save"] = [unknown]
        await stage.state.save(Progress(1))
        await stage.state.save(Progress(2))
        assert stage.values() == [Progress(1), Progress(2)]
        assert [write.version for write in stage.states.saved] == [0, 1]

    async def test_one_that_was_lost_on_its_way_is_written_after_all(self) -> None:
        stage = await loaded()
        stage.states.failing["save"] = [unknown, unreachable, unknown]
        await stage.state.save(Progress(1))
        assert stage.values() == [Progress(1)]

    async def test_what_the_database_refuses_is_tried_as_often_as_the_policy_says(self) -> None:
        """S9: retryable, and retried; an outage in between takes none of the tries."""
        stage = await loaded(retry=Retry(attempts=3, base="1ms", max="1ms"))
        stage.states.failing["save"] = [unreachable, refused, unreachable, refused]
        await stage.state.save(Progress(1))
        stage.states.failing["save"] = [refused] * 3
        with pytest.raises(StatePersistFailed, match="does not like it") as caught:
            await stage.state.save(Progress(2))
        assert caught.value.retryable
        assert stage.state.shown == stage.stored() == Progress(1)
        assert stage.states.failing["save"] == []
        await stage.state.save(Progress(3))
        assert stage.values() == [Progress(1), Progress(3)]

    async def test_after_a_refusal_the_former_state_is_not_taken_for_stored(self) -> None:
        """Somebody removed it by hand."""
        stage = await loaded(retry=Retry.never)
        await stage.state.save(Progress(1))
        stage.states.purge()
        stage.states.failing["save"] = [refused]
        with pytest.raises(StatePersistFailed):
            await stage.state.save(Progress(2))
        await stage.state.save(Progress(1))
        assert stage.stored() == Progress(1)

    async def test_refused_after_an_unknown_try_that_had_happened_is_saved(self) -> None:
        stage = await loaded(retry=Retry.never)
        stage.states.losing["save"] = [unknown]
        stage.states.failing["load"] = [refused]  # the look whether it is there
        await stage.state.save(Progress(1))
        assert stage.values() == [Progress(1)]
        assert stage.state.shown == Progress(1)

    @pytest.mark.parametrize("outcome", [unreachable, unknown], ids=["unreachable", "unknown"])
    async def test_a_seat_that_is_lost_while_the_database_is_away_ends_in_leadership_lost(
        self, outcome: PersistenceError
    ) -> None:
        """Never in silence; the doubt is told."""
        stage = await loaded()
        stage.states.failing["save"] = [outcome] * 10_000
        saving = asyncio.create_task(stage.state.save(Progress(1)))
        await until(lambda: stage.failures)
        stage.tenure.ended = True
        with pytest.raises(LeadershipLost) as caught:
            await saving
        assert caught.value.in_doubt == (outcome is unknown)
        assert stage.state.shown == Progress()

    async def test_fenced_is_leadership_lost_and_nothing_was_written(self) -> None:
        stage = await loaded()
        stage.states.held = False
        with pytest.raises(LeadershipLost) as caught:
            await stage.state.save(Progress(1))
        assert (caught.value.seat, caught.value.epoch, caught.value.in_doubt) == ("singleton:importer", 7, False)
        with pytest.raises(LeadershipLost):
            async with stage.state.update() as state:
                state.last_id = 1
        assert stage.states.saved == []

    async def test_without_the_seat_as_far_as_is_known_nothing_is_asked(self) -> None:
        stage = await loaded()
        stage.tenure.ended = True
        with pytest.raises(LeadershipLost):
            await stage.state.save(Progress(1))
        assert stage.states.asked["save"] == 0

    async def test_a_state_that_was_cleared_away_is_saved_as_the_first(self) -> None:
        """S6: it expired under a leader that had not saved for long."""
        stage = await loaded(ttl="1h")
        await stage.state.save(Progress(1))
        stage.states.purge()
        await stage.state.save(Progress(1))
        assert stage.stored() == Progress(1)
        assert [write.version for write in stage.states.saved] == [0, 0]

    async def test_a_cancelled_save_comes_to_its_end_and_the_next_one_follows_it(self) -> None:
        """Nobody writes on before the end of the last write is known; the caller itself may go on at once."""
        stage = await loaded()
        gate = stage.states.hold("save")
        went_on = asyncio.Event()

        async def work() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await stage.state.save(Progress(1))
            went_on.set()
            async with stage.state.update() as state:
                state.last_id += 1

        working = asyncio.create_task(work())
        await went_on.wait()
        assert stage.states.saved == []
        gate.set()
        await working
        assert stage.values() == [Progress(1), Progress(2)]

    async def test_a_save_that_was_written_when_its_caller_is_cancelled_is_not_written_twice(self) -> None:
        stage = await loaded()
        stage.states.losing["save"].append(asyncio.CancelledError())  # type: ignore[arg-type] # it comes with the answer
        with pytest.raises(asyncio.CancelledError):
            await stage.state.save(Progress(1))
        async with stage.state.update() as state:
            state.last_id += 1
        assert stage.values() == [Progress(1), Progress(2)]

    async def test_a_cancelled_save_that_fails_says_nothing_to_nobody(self, caplog: pytest.LogCaptureFixture) -> None:
        stage = await loaded()
        gate = stage.states.hold("save")
        saving = asyncio.create_task(stage.state.save(Progress(1)))
        await until(lambda: stage.states.asked["save"])
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        stage.states.held = False
        gate.set()
        await until(lambda: not len(stage.tasks))
        assert caplog.text == ""

    async def test_a_cancelled_wait_for_ones_turn_changes_nothing(self) -> None:
        stage = await loaded()
        async with stage.state.update() as state:
            other = asyncio.create_task(stage.state.save(Progress(5)))
            await asyncio.sleep(0)
            other.cancel()
            with pytest.raises(asyncio.CancelledError):
                await other
            state.last_id = 1
        assert stage.values() == [Progress(1)]
