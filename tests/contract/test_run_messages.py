"""What is sent to a run of a workflow and what it publishes, on every engine (W6, W7; REVIEW M11)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage.contracts.run_messages import (
    PUBLISHED_MOST,
    Publish,
    RaceEnd,
    Receive,
    RunMessage,
    RunMessageSent,
)
from tests.contract.units import (
    HOSTILE,
    S1,
    end_unit,
    foreign_claims,
    grant,
    load_unit,
    runner_a,
    runner_b,
    start_unit,
    stored_unit,
    take_units,
    unit_key,
    write_step,
)

if TYPE_CHECKING:
    from coterie.storage.contracts.units import StepResult
    from coterie.storage.interface import Claim, Ownership, Storage
    from tests.contract.conftest import Passing

__all__ = ["runner_a", "runner_b"]  # fixtures

U = unit_key()
NOW_S = -60.0
"""As age of what is purged: all that is there."""


async def send(storage: Storage, id: str = "m1", **options: Any) -> RunMessageSent:
    plain: dict[str, Any] = {"unit": U, "name": "approve", "value": f"value of {id}".encode()}
    return await storage.run_messages.send(RunMessage(**{**plain, "id": id, **options}))


async def receive(storage: Storage, claim: Claim, position: int = 0, **options: Any) -> StepResult:
    plain: dict[str, Any] = {"unit": U, "branch": "", "name": "approve", "due_s": None, "late": b"too late"}
    return await storage.run_messages.receive(
        Receive(**{**plain, "claim": claim, "position": position, "runner": "r", **options})
    )


async def received(storage: Storage, claim: Claim, position: int = 0, **options: Any) -> bytes | None:
    """The value that a step has received; None: it waits."""
    row = (await receive(storage, claim, position, **options)).row
    assert row is not None
    assert (row.kind, row.name, row.position) == ("receive", options.get("name", "approve"), position)
    assert row.done == (row.value is not None)
    return row.value


async def publish(storage: Storage, claim: Claim, position: int = 0, **options: Any) -> StepResult:
    plain: dict[str, Any] = {"unit": U, "branch": "", "name": "status", "value": f"value {position}".encode()}
    return await storage.run_messages.publish(
        Publish(**{**plain, "claim": claim, "position": position, "runner": "r", **options})
    )


async def published(storage: Storage, name: str = "status", *, after: int | None = 0) -> list[tuple[int, bytes]]:
    rows = await storage.run_messages.published(U, name, after=after, most=10_000)
    return [(row.seq, row.value) for row in rows]


class TestReceive:
    async def test_messages_are_received_in_their_order_each_once_and_by_their_names(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        for name in ("c", "a", "b"):
            assert await send(storage, name) == RunMessageSent("sent", wake=S1)
        await send(storage, "a", name="other", value=b"other")
        assert [await received(storage, claim, at) for at in range(4)] == [
            b"value of c", b"value of a", b"value of b", None
        ]  # fmt: skip
        assert await received(storage, claim, 4, name="other") == b"other"
        await send(storage, "d")
        assert await received(storage, claim, 3) == b"value of d"

    async def test_a_step_that_has_received_keeps_it_and_takes_no_other(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await send(storage, "a")
        first = await receive(storage, claim)
        assert first.told == "written"
        await send(storage, "b")
        again = await receive(storage, claim)
        assert (again.told, again.row) == ("there", first.row)
        (loaded,) = (await load_unit(storage, claim, U)).steps
        assert (loaded.value, loaded.done, loaded.error) == (b"value of a", True, None)
        assert await received(storage, claim, 1) == b"value of b"

    async def test_what_waits_is_stored_and_woken_by_a_message(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        assert await received(storage, claim) is None
        await suspend_unit_for(storage, claim, "approve")
        assert (await take_units(storage, claim)).rows == ()
        assert await send(storage) == RunMessageSent("sent", wake=S1)
        row = await stored_unit(storage, U)
        assert (row.status, row.wake_at) == ("running", None)
        assert await received(storage, claim) == b"value of m1"

    async def test_m11_it_is_not_suspended_while_something_is_there(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        assert await received(storage, claim) is None
        await send(storage)
        await suspend_unit_for(storage, claim, "approve", told="ready")
        assert await received(storage, claim) == b"value of m1"
        assert await received(storage, claim, 1) is None
        await suspend_unit_for(storage, claim, "approve")

    async def test_it_times_out_when_it_is_due_and_not_before(
        self, storage: Storage, runner_a: Ownership, passing: Passing
    ) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        first = await receive(storage, claim, due_s=0.2)
        assert first.row is not None
        assert first.row.due_at is not None
        assert (first.told, first.row.done) == ("written", False)
        again = await receive(storage, claim, due_s=900.0)
        assert (again.told, again.row) == ("there", first.row), "the first call counts"
        await passing(0.3)
        late = await receive(storage, claim, due_s=0.2)
        assert late.row is not None
        assert (late.told, late.row.done, late.row.error, late.row.value) == ("written", True, b"too late", None)
        await send(storage)
        assert (await receive(storage, claim)).row == late.row
        assert await received(storage, claim, 1) == b"value of m1", "what comes later waits for the next one"

    async def test_what_was_acknowledged_in_time_is_received_however_late(
        self, storage: Storage, runner_a: Ownership, passing: Passing
    ) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        assert await received(storage, claim, due_s=0.2) is None
        await send(storage)
        await passing(0.3)
        assert await received(storage, claim) == b"value of m1"

    async def test_two_branches_share_what_comes(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        for number in range(10):
            await send(storage, str(number))
        async with asyncio.timeout(120):
            found = await asyncio.gather(*(received(storage, claim, branch=str(number)) for number in range(10)))
        assert sorted(map(str, found)) == sorted(str(f"value of {number}".encode()) for number in range(10))

    async def test_c1_only_the_holder_receives(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await send(storage)
        for foreign in foreign_claims(claim):
            told = await receive(storage, foreign)
            assert (told.told, told.row) == ("fenced", None)
            told = await publish(storage, foreign)
            assert (told.told, told.row) == ("fenced", None)
        assert await received(storage, claim) == b"value of m1"
        assert await published(storage) == []

    async def test_another_step_at_its_place_stays(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await write_step(storage, claim, U)
        await send(storage)
        for told in (await receive(storage, claim), await publish(storage, claim)):
            assert told.told == "there"
            assert told.row is not None
            assert (told.row.kind, told.row.value) == ("step", b"v")
        assert await received(storage, claim, 1) == b"value of m1"
        assert await published(storage) == []

    async def test_a_run_that_is_over_receives_nothing(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await end_unit(storage, claim, U, status="failed")
        assert await send(storage) == RunMessageSent("over", status="failed")
        assert (await receive(storage, claim)).told == "over"
        assert (await publish(storage, claim)).told == "over"


class TestSend:
    async def test_before_the_run_begins_it_waits_for_it(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a)
        assert await send(storage, "early") == RunMessageSent("sent")
        await start_unit(storage)
        await send(storage, "later")
        assert [await received(storage, claim, at) for at in range(3)] == [b"value of early", b"value of later", None]

    async def test_of_one_id_there_is_one(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a)
        assert (await send(storage, "key", digest=b"d")).told == "sent"
        assert await send(storage, "key", digest=b"d") == RunMessageSent("there", b"d")
        await start_unit(storage)
        assert await send(storage, "key", value=b"?", digest=b"e") == RunMessageSent("there", b"d", wake=S1)
        assert [await received(storage, claim, at) for at in range(2)] == [b"value of key", None]
        assert (await send(storage, "key", digest=b"d")).told == "there", "though it was received"
        assert await received(storage, claim, 1) is None
        assert (await send(storage, "key", name="other")).told == "sent", "an id is that of its name"

    async def test_of_many_at_once_each_is_received_once(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        async with asyncio.timeout(120):
            told = await asyncio.gather(*(send(storage, str(number % 10)) for number in range(30)))
        assert sorted(each.told for each in told) == ["sent"] * 10 + ["there"] * 20
        found = [await received(storage, claim, at) for at in range(11)]
        assert sorted(map(str, found[:10])) == sorted(str(f"value of {number}".encode()) for number in range(10))
        assert found[10] is None

    @pytest.mark.parametrize("hostile", HOSTILE)
    async def test_what_is_hostile_is_a_name_like_any(
        self, storage: Storage, runner_a: Ownership, hostile: str
    ) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await send(storage, hostile, name=hostile, value=hostile.encode())
        assert await received(storage, claim, name=hostile) == hostile.encode()
        await publish(storage, claim, 1, name=hostile, value=hostile.encode())
        assert await published(storage, hostile) == [(1, hostile.encode())]


class TestRaceEnd:
    async def give_back(self, storage: Storage, claim: Claim, *received: tuple[str, int]) -> StepResult:
        return await storage.run_messages.give_back(RaceEnd(claim, U, "", 9, "race", b"\x01", "r", received))

    async def test_what_was_received_waits_again_in_its_old_order(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        for name in ("a", "b", "c"):
            await send(storage, name)
        await send(storage, "x", name="other")
        for at in range(2):
            await received(storage, claim, at, branch="@9.0")
        await received(storage, claim, 2, branch="@9.0", name="other")
        told = await self.give_back(storage, claim, ("@9.0", 1), ("@9.0", 0), ("@9.0", 2), ("@9.0", 7))
        assert told.row is not None
        assert (told.told, told.row.kind, told.row.value, told.row.done) == ("written", "first", b"\x01", True)
        assert await received(storage, claim, 0, branch="@9.0") == b"value of a", "the step keeps it"
        again = await self.give_back(storage, claim, ("@9.0", 0))
        assert (again.told, again.row) == ("there", told.row)
        await suspend_unit_for(storage, claim, "approve", told="ready")
        assert [await received(storage, claim, at) for at in range(4)] == [
            b"value of a", b"value of b", b"value of c", None
        ]  # fmt: skip
        assert await received(storage, claim, 4, name="other") == b"value of x"
        await suspend_unit_for(storage, claim, "approve", "other")

    async def test_c1_only_the_holder_gives_back(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await send(storage, "a")
        await received(storage, claim, 0, branch="@9.0")
        for foreign in foreign_claims(claim):
            assert (await self.give_back(storage, foreign, ("@9.0", 0))).told == "fenced"
        assert await received(storage, claim) is None
        await end_unit(storage, claim, U)
        assert (await self.give_back(storage, claim, ("@9.0", 0))).told == "over"


class TestPublish:
    async def test_values_have_numbers_and_stay_when_the_run_is_over(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        assert await published(storage, after=None) == []
        for at in range(3):
            assert (await publish(storage, claim, at)).told == "written"
        await publish(storage, claim, 3, name="other")
        await end_unit(storage, claim, U)
        assert await published(storage) == [(1, b"value 0"), (2, b"value 1"), (3, b"value 2")]
        assert await published(storage, after=2) == [(3, b"value 2")]
        assert await published(storage, after=None) == [(3, b"value 2")]
        assert await published(storage, "other") == [(1, b"value 3")]
        (first,) = await storage.run_messages.published(U, "status", after=0, most=1)
        assert first.seq == 1

    async def test_at_a_place_where_it_is_stored_it_writes_nothing(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        first = await publish(storage, claim)
        assert first.row is not None
        assert (first.row.kind, first.row.name, first.row.done) == ("publish", "status", True)
        again = await publish(storage, claim, value=b"another one")
        assert (again.told, again.row) == ("there", first.row)
        assert await published(storage) == [(1, b"value 0")]

    async def test_branches_that_publish_at_once_share_the_numbers(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        async with asyncio.timeout(120):
            await asyncio.gather(*(publish(storage, claim, branch=str(number)) for number in range(10)))
        assert [seq for seq, _ in await published(storage)] == list(range(1, 11))

    async def test_the_last_ones_of_a_name_are_kept(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await publish(storage, claim, 0, name="other")
        for at in range(PUBLISHED_MOST + 5):
            await publish(storage, claim, at + 1)
        kept = await published(storage)
        assert [seq for seq, _ in kept] == list(range(6, PUBLISHED_MOST + 6))
        assert await published(storage, "other") == [(1, b"value 0")]


class TestForPeople:
    async def test_the_last_value_of_each_name_and_what_waits(self, storage: Storage, runner_a: Ownership) -> None:
        messages, claim, _ = storage.run_messages, await grant(runner_a), await start_unit(storage)
        assert (await messages.published_names(U, most=10), await messages.waiting(U, most=10)) == ([], [])
        for at, name in enumerate(("status", HOSTILE[0], "status")):
            await publish(storage, claim, at, name=name)
        for number, name in enumerate(("approve", "approve", "cancel", "read")):
            await send(storage, f"m{number}", name=name)
        await received(storage, claim, 3, name="read")
        await send(storage, "e", unit=unit_key("other"))
        found = {name: (row.seq, row.value) for name, row in await messages.published_names(U, most=10)}
        assert found == {"status": (2, b"value 2"), HOSTILE[0]: (1, b"value 1")}
        assert [(each.name, each.count) for each in await messages.waiting(U, most=10)] == [
            ("approve", 2),
            ("cancel", 1),
        ]
        assert all(each.since_at.tzinfo is not None for each in await messages.waiting(U, most=10))
        assert len(await messages.published_names(U, most=1)) == len(await messages.waiting(U, most=1)) == 1


class TestPurge:
    async def test_all_goes_with_the_row_of_the_run(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await publish(storage, claim)
        await send(storage)
        await send(storage, "read", name="read")
        await received(storage, claim, 1, name="read")
        await end_unit(storage, claim, U)
        await storage.units.purge(older_s=3600.0, most=10)
        assert await published(storage) != []
        await storage.units.purge(older_s=NOW_S, most=10)
        assert await published(storage) == []
        await start_unit(storage)
        assert await received(storage, claim) is None
        assert (await publish(storage, claim, 1)).told == "written"
        assert await published(storage) == [(1, b"value 1")]
        assert (await send(storage)).told == "sent", "of its id there is none any more"

    async def test_what_never_began_waits_for_the_retention(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a)
        await send(storage, "a")
        await send(storage, "b")
        assert await storage.run_messages.purge(older_s=3600.0, most=10) == 0
        await start_unit(storage, "other")
        await send(storage, "c", unit=unit_key("other"))
        assert await storage.run_messages.purge(older_s=NOW_S, most=10) > 0
        assert await storage.run_messages.purge(older_s=NOW_S, most=10) == 0
        await start_unit(storage)
        assert await received(storage, claim) is None
        assert await received(storage, claim, unit=unit_key("other")) == b"value of c"

    async def test_what_was_received_long_ago_is_forgotten_with_its_key(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await send(storage, "a")
        assert await received(storage, claim) == b"value of a"
        assert await storage.run_messages.purge(older_s=3600.0, most=10) == 0
        assert await storage.run_messages.purge(older_s=NOW_S, most=10) == 1
        assert (await send(storage, "a")).told == "sent"
        assert await received(storage, claim) == b"value of a", "the step has it still"
        await send(storage, "b")
        assert [await received(storage, claim, at) for at in (1, 2)] == [b"value of a", b"value of b"]


async def suspend_unit_for(storage: Storage, claim: Claim, *names: str, told: str = "suspended") -> None:
    assert await storage.units.suspend(claim, U, waits=(), inboxes=names, wake_s=None) == told
