"""Entity state with real runners on both engines: loaded, saved before the reply, migrated, forgotten (F9, M7, S5)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from coterie import Entity, MessageDead, NewerVersion, RemoteError, SendTimeout, rpc
from coterie.kernel.serialization.codec import PLAIN
from tests.scenario.persisted.entity_program import Account, Overdrawn, notes, program, until


@dataclass
class Count:
    number: int = 0


class Counter(Entity[Count]):
    """The first version of the program."""

    loads = 0

    async def on_activate(self) -> None:
        notes.ran.append((self.id, "woken"))

    @rpc
    async def add(self, by: int = 1) -> int:
        self.state.number += by
        return self.state.number

    @rpc(persisted=True)
    async def add_stored(self, by: int = 1) -> int:
        self.state.number += by
        return self.state.number

    @rpc
    async def look(self) -> int:
        return self.state.number

    @rpc(errors=[Overdrawn])
    async def take_back(self) -> None:
        self.state.number += 100
        raise Overdrawn(self.id)

    @rpc
    async def crash(self) -> None:
        self.state.number += 100
        raise ZeroDivisionError

    @rpc(persisted=True)
    async def vanish(self) -> int:
        await self.forget()
        return self.state.number

    @rpc(errors=[Overdrawn])
    async def vanish_not(self) -> None:
        await self.forget()
        raise Overdrawn(self.id)

    @rpc
    async def break_state(self) -> None:
        self.state = Count(number="many")  # type: ignore[arg-type] # that is the point


async def stored(cluster: Any, entity_id: str = "a", name: str = "Counter") -> tuple[int, Any] | None:
    """What the database has: version of the row, and the value with its own version."""
    storage = cluster._acting().storage
    tenure = cluster._acting().calling.host.inbox.shards
    seat = f"shard:{cluster.shard_of(name, entity_id)}"
    loaded = await storage.states.load(tenure[seat].tenure.claim, f"entity-state:{name}/{entity_id}")
    return None if loaded.value is None else (loaded.version, PLAIN.decode(loaded.value))


async def test_a_state_is_saved_before_the_reply_of_volatile_and_stored_calls_and_read_by_the_next_life(
    url: str,
) -> None:
    async with program(url, "anna", Counter) as cluster:
        counter = cluster.ref(Counter, "a")
        assert await counter.add() == 1
        assert await stored(cluster) == (1, [1, {"number": 1}])
        assert await counter.add_stored(2) == 3
        assert await stored(cluster) == (2, [1, {"number": 3}])
        assert [await counter.look() for _ in range(3)] == [3, 3, 3]
        assert await counter.add(0) == 3
        assert await stored(cluster) == (2, [1, {"number": 3}]), "what encodes alike is not written"
        assert await cluster.ref(Counter, "b").look() == 0
        assert await stored(cluster, "b") is None, "nor is an initial state that nobody changed"
    async with program(url, "bert", Counter) as cluster:
        assert await cluster.ref(Counter, "a").look() == 3
        assert await cluster.ref(Counter, "a").add() == 4
        assert await stored(cluster) == (3, [1, {"number": 4}])


async def test_after_a_declared_error_the_state_is_the_committed_one_and_the_instance_stays(url: str) -> None:
    async with program(url, "anna", Counter) as cluster:
        counter = cluster.ref(Counter, "a")
        assert await counter.add() == 1
        with pytest.raises(Overdrawn):
            await counter.take_back()
        assert await counter.look() == 1
        assert notes.ran == [("a", "woken")]
        with pytest.raises(RemoteError, match="ZeroDivisionError"):
            await counter.crash()
        assert await counter.look() == 1
        assert notes.ran == [("a", "woken")] * 2, "after a defect it is a new one"


async def test_a_state_that_does_not_fit_its_type_is_a_defect_and_is_not_written(url: str) -> None:
    async with program(url, "anna", Counter) as cluster:
        counter = cluster.ref(Counter, "a")
        assert await counter.add() == 1
        with pytest.raises(RemoteError, match="MalformedMessage"):
            await counter.break_state()
        assert await counter.look() == 1
        assert await stored(cluster) == (1, [1, {"number": 1}])


async def test_forget_deletes_state_and_instance_in_the_commit_of_the_reply(url: str) -> None:
    async with program(url, "anna", Counter) as cluster:
        counter = cluster.ref(Counter, "a")
        assert await counter.vanish() == 0, "one that was never saved can be forgotten"
        assert await counter.add(5) == 5
        with pytest.raises(Overdrawn):
            await counter.vanish_not()
        assert await stored(cluster) == (1, [1, {"number": 5}]), "an error takes it back"
        woken = len(notes.ran)
        assert await counter.vanish() == 5
        assert await stored(cluster) is None
        assert await counter.add() == 1
        assert len(notes.ran) == woken + 1


# Versions


@dataclass
class Tally:
    total: int = 0
    unit: str = "pieces"


class CounterTwo(Entity[Tally]):
    """The second version: a field was renamed, one is new."""

    called = "Counter"

    @rpc
    async def look(self) -> list[Any]:
        return [self.state.total, self.state.unit]

    @rpc
    async def touch(self) -> None:
        self.state.unit = "boxes"

    @rpc(persisted=True)
    async def look_stored(self) -> int:
        return self.state.total


def renamed(values: dict[str, Any]) -> dict[str, Any]:
    return {"total": values["number"], "unit": "old pieces"}


def failing(values: dict[str, Any]) -> dict[str, Any]:
    raise KeyError("number")


async def test_a_state_of_an_earlier_version_is_migrated_and_saved_as_the_new_one_when_it_changes(url: str) -> None:
    async with program(url, "old", Counter) as cluster:
        await cluster.ref(Counter, "a").add(7)
    new = program(url, "new")
    new.entity(name="Counter", version=2, migrations={1: renamed})(CounterTwo)
    async with new:
        counter = new.ref(CounterTwo, "a")
        assert await counter.look() == [7, "old pieces"]
        assert await stored(new) == (1, [1, {"number": 7}]), "reading does not bar the way back"
        await counter.touch()
        assert await stored(new) == (2, [2, {"total": 7, "unit": "boxes"}])


async def test_a_newer_state_is_refused_and_not_touched_and_its_messages_wait_for_the_newer_program(url: str) -> None:
    """A rolling deploy goes back: nothing is set aside, and nothing is lost."""
    new = program(url, "new")
    new.entity(name="Counter", version=2, migrations={1: renamed})(CounterTwo)
    async with new:
        await new.ref(CounterTwo, "a").touch()
    async with program(url, "old", Counter) as old:
        with pytest.raises(NewerVersion, match=r"is version 2, this program knows up to 1(?s:.*)roll the") as caught:
            await old.ref(Counter, "a").look()
        assert (caught.value.found, caught.value.known) == (2, 1)
        async with program(url, "client", Counter).connect() as client:  # the same from another process
            with pytest.raises(NewerVersion):
                await client.ref(Counter, "a").look()
            (reason,) = (await client.health()).reasons
        assert (reason.status, str(reason)) == (
            "degraded",
            "entity Counter: 1 entity cannot begin on old: NewerVersion",
        )
        assert reason.hint == "a newer program wrote their state: roll the program forward, or add a migration"
        with pytest.raises(SendTimeout):
            await old.call(old.ref(Counter, "a").add_stored(), timeout="500ms")
        (row,) = await old.messages.list()
        assert (row.status, row.attempts) == ("pending", 0)
        assert await old.ref(Counter, "b").add() == 1, "others go on"
        assert [each.what for each in (await old.health()).reasons] == ["entity Counter"]
        assert await stored(old) == (1, [2, {"total": 0, "unit": "boxes"}])


async def test_a_migration_that_fails_says_which_and_the_message_is_retried_then_dead(url: str) -> None:
    async with program(url, "old", Counter) as cluster:
        await cluster.ref(Counter, "a").add(7)
    new = program(url, "new")
    new.entity(name="Counter", version=2, migrations={1: failing})(CounterTwo)
    async with new:
        with pytest.raises(RemoteError, match="migration from version 1 to 2 failed: KeyError"):
            await new.ref(CounterTwo, "a").look()
        with pytest.raises(MessageDead, match=r"after 3 attempts: .*migration from version 1 to 2 failed"):
            await new.ref(CounterTwo, "a").look_stored()
        assert await stored(new) == (1, [1, {"number": 7}])


async def test_a_state_that_cannot_be_read_says_where_and_what(url: str) -> None:
    other = program(url, "other")
    other.entity(name="Counter")(Strange)
    async with other:
        await other.ref(Strange, "a").put()
    async with program(url, "anna", Counter) as cluster:
        with pytest.raises(RemoteError, match=r'state of Counter: number is "seven" \(text\), expected a whole number'):
            await cluster.ref(Counter, "a").look()


class Strange(Entity[dict[str, str]]):
    @rpc
    async def put(self) -> None:
        self.state["number"] = "seven"


# The order of things


async def test_m7_the_next_call_begins_after_the_commit_of_the_one_before(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a caller was told is never taken back, and the next one builds on it."""
    async with program(url, "anna", Counter) as cluster:
        counter, messages = cluster.ref(Counter, "a"), cluster._acting().storage.messages
        await counter.look()
        save, later = messages.save, []
        monkeypatch.setattr(messages, "save", lambda *args: later.append(args), raising=False)
        first = asyncio.create_task(counter.add())
        second = asyncio.create_task(counter.look())
        await asyncio.sleep(0.05)
        assert not first.done()
        assert not second.done(), "it would tell what may never be"
        for args in later:
            save(*args)
        assert (await first, await second) == (1, 1)


async def test_m7_sum_of_replies_and_state_agree_when_many_call_at_once(url: str) -> None:
    async with program(url, "anna", Counter) as cluster:
        counter = cluster.ref(Counter, "a")
        calls = [counter.add() if number % 2 else counter.add_stored() for number in range(60)]
        assert sorted(await asyncio.gather(*calls)) == list(range(1, 61))
        assert await stored(cluster) == (60, [1, {"number": 60}])


async def test_a_state_lives_on_where_its_entity_moves(url: str) -> None:
    anna, bert = program(url, "anna"), program(url, "bert")
    async with bert:
        async with anna:
            await until(lambda: anna._acting().seats and bert._acting().seats)  # type: ignore[attr-defined] # of runners
            for number in range(8):
                assert await bert.ref(Account, str(number)).charge("one", number) == number
        for number in range(8):
            assert await bert.ref(Account, str(number)).cents() == number
            assert await bert.ref(Account, str(number)).charge("two") == number + 1
