"""Further lives of workflows, on every engine: begun by the run itself, or by a start after its end (W12, W15)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import KeyConflict
from coterie.storage.contracts.run_messages import Publish, RaceEnd, Receive, RunMessage
from coterie.storage.contracts.units import NextLife, UnitEnd, require_same
from tests.contract.test_states import A
from tests.contract.units import (
    LOSSES,
    S1,
    S2,
    end_unit,
    foreign_claims,
    grant,
    load_unit,
    lose,
    new_start,
    resolve,
    runner_a,
    runner_b,
    start_unit,
    step_write,
    stored_unit,
    suspend_unit,
    take_units,
    unit_key,
    write_step,
)

if TYPE_CHECKING:
    from coterie.storage.interface import Claim, Ownership, Storage

__all__ = ["runner_a", "runner_b"]  # fixtures

U = unit_key()


async def renew(storage: Storage, claim: Claim, unit: str = U, **options: Any) -> str:
    plain = {"life": 1, "next": 2, "payload": b"\x00next", "version": "2"}
    return await storage.units.renew(NextLife(claim=claim, unit=unit, **{**plain, **options}))


class TestRenew:
    async def test_the_next_life_begins_with_its_payload_and_nothing_else(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim, before = await grant(runner_a), await start_unit(storage, life=1, version="1")
        await write_step(storage, claim, U)
        await resolve(storage, U, life=1)
        assert await renew(storage, claim) == "renewed"
        found = await load_unit(storage, claim, U)
        assert (found.steps, found.deferreds, found.row.steps) == ((), (), 0)
        row = found.row
        assert (row.life, row.payload, row.version, row.status) == (2, b"\x00next", "2", "running")
        assert (row.unit, row.name, row.id, row.seat, row.ended_at) == (U, "Order", "one", S1, None)
        assert row.digest == before.digest, "the same start again is the same start"
        assert row.changed_at >= row.started_at >= before.started_at
        assert (await take_units(storage, claim)).rows == (row,)

    async def test_again_it_is_told_the_same_and_changes_nothing(self, storage: Storage, runner_a: Ownership) -> None:
        """After a lost answer; the next life may have made steps by then."""
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        assert await renew(storage, claim) == "renewed"
        await write_step(storage, claim, U, life=2)
        before = await load_unit(storage, claim, U)
        assert await renew(storage, claim) == "renewed"
        after = await load_unit(storage, claim, U)
        assert (after.row, after.steps) == (before.row, before.steps)

    async def test_what_is_to_be_interrupted_and_who_waits_stay(self, storage: Storage, runner_a: Ownership) -> None:
        claim, other = await grant(runner_a), await grant(runner_a, A, S2)
        await start_unit(storage, "parent", seat=S2)
        await start_unit(storage, life=1, parent=unit_key("parent"), waited_as="w")
        await storage.units.interrupt(U)
        assert await renew(storage, claim) == "renewed"
        row = await stored_unit(storage, U)
        assert (row.interrupting, row.parent, row.waited_as) == (True, unit_key("parent"), "w")
        await suspend_unit(storage, claim, U, told="ready")
        await end_unit(storage, claim, U, outcome=b"out")
        assert [each.value for each in (await load_unit(storage, other, unit_key("parent"))).deferreds] == [b"out"]

    async def test_another_life_or_what_is_over_is_not_renewed(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        await write_step(storage, claim, U)
        before = await load_unit(storage, claim, U)
        assert await renew(storage, claim, life=7, next=8) == "over"
        assert await renew(storage, claim, unit_key("nobody")) == "over"
        after = await load_unit(storage, claim, U)
        assert (after.row, after.steps) == (before.row, before.steps)
        await end_unit(storage, claim, U)
        assert await renew(storage, claim) == "over"
        assert (await stored_unit(storage, U)).status == "done"

    async def test_only_who_holds_the_seat_renews(self, storage: Storage, runner_a: Ownership) -> None:
        """C1."""
        claim, before = await grant(runner_a), await start_unit(storage, life=1)
        for wrong in foreign_claims(claim)[1:]:
            assert await renew(storage, wrong) == "fenced"
        assert await stored_unit(storage, U) == before

    @pytest.mark.parametrize("how", LOSSES)
    async def test_nobody_renews_who_has_lost_it(
        self, storage: Storage, runner_a: Ownership, runner_b: Ownership, how: str
    ) -> None:
        claim, before = await grant(runner_a), await start_unit(storage, life=1)
        await lose(how, claim, runner_a, runner_b)
        assert await renew(storage, claim) == "fenced"
        assert await stored_unit(storage, U) == before


class TestLifeOfWrites:
    @pytest.mark.parametrize("write", ["alone", "together", "its wait"])
    async def test_a_late_step_of_a_former_life_is_none_of_the_next(
        self, storage: Storage, runner_a: Ownership, write: str
    ) -> None:
        """W12: a step that was being stored when its life ended."""
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        late = step_write(claim, U, life=1, error=None if write == "alone" else b"e")
        if write == "its wait":
            late = step_write(claim, U, life=1, kind="sleep", done=False, value=None, due_s=1.0)
        assert await renew(storage, claim) == "renewed"
        assert ((await storage.units.step(late)).told, (await stored_unit(storage, U)).steps) == ("over", 0)
        assert (await write_step(storage, claim, U, life=2)).told == "written"

    @pytest.mark.parametrize("write", ["receive", "publish", "give back"])
    async def test_w12_a_late_message_of_a_former_life_is_none_of_the_next(
        self, storage: Storage, runner_a: Ownership, write: str
    ) -> None:
        """What is sent and published belongs to the run, but the place where it happens is one of a life."""
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        messages = storage.run_messages
        at: dict[str, Any] = {"claim": claim, "unit": U, "branch": "", "position": 0, "runner": "r"}
        await messages.send(RunMessage(U, "approve", "m", b"value"))
        assert await renew(storage, claim) == "renewed"
        for life, told in ((1, "over"), (2, "written")):
            if write == "receive":
                answer = await messages.receive(Receive(**at, name="approve", due_s=None, late=b"late", life=life))
            elif write == "publish":
                answer = await messages.publish(Publish(**at, name="status", value=b"v", life=life))
            else:
                answer = await messages.give_back(RaceEnd(**at, name="race", value=b"", received=(), life=life))
            assert answer.told == told
            assert (await stored_unit(storage, U)).steps == life - 1
            assert len(await messages.published(U, "status", after=0, most=9)) == (life - 1) * (write == "publish")

    async def test_a_late_end_of_a_former_life_does_not_end_the_next(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        end = UnitEnd(claim, U, "done", value=b"old", life=1)
        assert (await storage.units.end(end)).told == "written"
        await storage.units.start(new_start(life=2, again=True))
        assert (await storage.units.end(end)).told == "over"
        assert (await stored_unit(storage, U)).status == "running"
        assert (await storage.units.end(UnitEnd(claim, U, "done", value=b"new", life=2))).told == "written"

    async def test_w15_a_value_for_a_former_life_is_refused(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        await renew(storage, claim)
        assert await resolve(storage, U, life=1) == "over"
        await suspend_unit(storage, claim, U)
        assert await resolve(storage, U, life=1) == "over"
        assert (await stored_unit(storage, U)).status == "suspended"
        assert await resolve(storage, U, life=2) == "resolved"


class TestStartAgain:
    async def test_what_is_over_begins_another_life(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a)
        await start_unit(storage, "parent")
        await start_unit(storage, life=1, parent=unit_key("parent"), waited_as="w")
        await write_step(storage, claim, U)
        await storage.units.interrupt(U)
        await end_unit(storage, claim, U, status="failed", error=b"e", value=b"v")
        plain = await storage.units.start(new_start(life=2, digest=b"\x00d"))
        assert (plain.told, plain.row.life) == ("there", 1)
        told = await storage.units.start(new_start(life=2, again=True, payload=b"new", digest=b"new", version="2"))
        assert told.told == "started"
        row = told.row
        assert (row.life, row.payload, row.digest, row.version, row.status) == (2, b"new", b"new", "2", "running")
        assert (row.value, row.error, row.ended_at, row.interrupting, row.parent) == (None, None, None, False, None)
        found = await load_unit(storage, claim, U)
        assert (found.row, found.steps, found.deferreds) == (row, (), ())
        assert (await take_units(storage, claim)).rows[-1] == row
        assert await storage.units.interrupt_children([S1], most=9) == []

    async def test_after_a_lost_answer_it_is_the_same_life(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        await end_unit(storage, claim, U)
        again = new_start(life=2, again=True)
        first = await storage.units.start(again)
        await write_step(storage, claim, U)
        assert (await storage.units.start(again)).row.life == first.row.life
        await end_unit(storage, claim, U, value=b"second")
        told = await storage.units.start(again)
        assert (told.row.life, told.row.value, told.row.steps) == (2, b"second", 1), "it has run already"

    async def test_what_goes_on_is_as_without_again(self, storage: Storage, runner_a: Ownership) -> None:
        await grant(runner_a)
        before = await start_unit(storage, life=1)
        assert (await storage.units.start(new_start(life=2, again=True))).row == before
        other = new_start(life=3, again=True, payload=b"other", digest=b"other")
        with pytest.raises(KeyConflict):
            require_same(other, (await storage.units.start(other)).row.digest)
        assert await stored_unit(storage, U) == before

    async def test_children_of_the_life_that_failed_are_not_those_of_the_next(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        await start_unit(storage, "old", parent=U, waited_as="w", seat=S2)
        await end_unit(storage, claim, U, status="failed")
        await storage.units.start(new_start(life=2, again=True))
        assert (await stored_unit(storage, unit_key("old"))).interrupting
        await start_unit(storage, "new", parent=U, waited_as="w", seat=S2)
        assert await storage.units.interrupt_children([S1], most=9) == []
        assert not (await stored_unit(storage, unit_key("new"))).interrupting
