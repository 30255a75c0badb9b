"""What the holders of durable work store, on every engine: steps, ends, what is taken, loaded and suspended.

W1, W2, W4, W5; REVIEW C1, M10, M11.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_args

import pytest

from coterie.storage.contracts.units import DeferredRow, StepKind, UnitEnding, UnitEndResult, UnitStatus
from coterie.storage.interface import Claim
from tests.contract.test_states import A, B, evict
from tests.contract.units import (
    CRON,
    LEADER,
    LOSSES,
    S1,
    S2,
    end_unit,
    foreign_claims,
    grant,
    load_unit,
    lose,
    new_start,
    next_claim,
    open_unit,
    pending_step,
    positions,
    resolve,
    runner_a,
    runner_b,
    start_unit,
    step_write,
    stored_unit,
    suspend_unit,
    take_units,
    trigger_tick,
    unit_key,
    write_step,
)

if TYPE_CHECKING:
    from coterie.storage.contracts.units import UnitKind
    from coterie.storage.interface import Ownership, Storage
    from tests.contract.conftest import Passing

__all__ = ["runner_a", "runner_b"]  # fixtures

U = unit_key()
NEAR = timedelta(seconds=30)


class TestStep:
    @pytest.mark.parametrize("kind", get_args(StepKind))
    async def test_a_step_is_stored_as_it_was_given(
        self, storage: Storage, runner_a: Ownership, kind: StepKind
    ) -> None:
        claim, before = await grant(runner_a), await start_unit(storage)
        told = await write_step(
            storage, claim, U, 7, branch="0.1", kind=kind, name="fetch", digest=b"\x00\xff", value=b"\xff\x00"
        )
        assert told.told == "written"
        assert abs(told.now - await storage.now()) < NEAR
        row = told.row
        assert row is not None
        assert (row.branch, row.position, row.kind, row.name) == ("0.1", 7, kind, "fetch")
        assert (row.digest, row.done, row.value, row.error, row.due_at) == (b"\x00\xff", True, b"\xff\x00", None, None)
        assert (await load_unit(storage, claim, U)).steps == (row,)
        after = await stored_unit(storage, U)
        assert (after.steps, after.status, after.started_at) == (1, "running", before.started_at)
        assert after.changed_at == before.changed_at

    async def test_a_step_may_end_with_an_error_or_with_nothing(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        failed = await write_step(storage, claim, U, 0, value=None, error=b"\x00why")
        nothing = await write_step(storage, claim, U, 1, value=None, digest=b"")
        empty = await write_step(storage, claim, U, 2, value=b"")
        rows = [each.row for each in (failed, nothing, empty) if each.row is not None]
        assert [(row.done, row.value, row.error) for row in rows] == [
            (True, None, b"\x00why"),
            (True, None, None),
            (True, b"", None),
        ]
        assert list((await load_unit(storage, claim, U)).steps) == rows

    async def test_a_step_that_is_stored_stays_as_it_is(self, storage: Storage, runner_a: Ownership) -> None:
        """W1: whatever comes later, what was stored first is told."""
        claim, _ = await grant(runner_a), await start_unit(storage)
        first = await write_step(storage, claim, U)
        before = await stored_unit(storage, U)
        for other in (
            step_write(claim, U, value=b"other"),
            step_write(claim, U, value=None, error=b"failed"),
            step_write(claim, U, digest=b"other"),
            pending_step(claim, U, due_s=60.0),
        ):
            again = await storage.units.step(other)
            assert (again.told, again.row) == ("there", first.row)
        assert (await load_unit(storage, claim, U)).steps == (first.row,)
        assert await stored_unit(storage, U) == before, "nothing has changed"

    async def test_a_step_of_unknown_outcome_can_be_asked_again(self, storage: Storage, runner_a: Ownership) -> None:
        """0.6: it is told as it was stored by the first try."""
        claim, _ = await grant(runner_a), await start_unit(storage)
        for write in (
            step_write(claim, U),
            pending_step(claim, U, 1, due_s=60.0),
            step_write(claim, U, 1, kind="sleep"),
        ):
            first = await storage.units.step(write)  # and the answer was lost
            second = await storage.units.step(write)
            assert (first.told, second.told) == ("written", "there")
            assert second.row == first.row
        assert (await stored_unit(storage, U)).steps == 2

    async def test_what_is_waited_for_has_its_end_written_once(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        waiting = await storage.units.step(pending_step(claim, U, kind="deferred", name="paid", due_s=60.0))
        assert waiting.told == "written"
        assert waiting.row is not None
        assert (waiting.row.done, waiting.row.value, waiting.row.error) == (False, None, None)
        assert (await stored_unit(storage, U)).steps == 0, "it is not done"
        done = await write_step(storage, claim, U, kind="deferred", name="paid", digest=b"", value=b"money")
        assert done.told == "written"
        assert done.row is not None
        assert (done.row.done, done.row.value, done.row.due_at) == (True, b"money", waiting.row.due_at)
        assert (await stored_unit(storage, U)).steps == 1
        late = await write_step(
            storage, claim, U, kind="deferred", name="paid", digest=b"", value=None, error=b"too late"
        )
        assert (late.told, late.row) == ("there", done.row)
        assert (await load_unit(storage, claim, U)).steps == (done.row,)

    async def test_what_is_waited_for_may_end_with_an_error(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await storage.units.step(pending_step(claim, U, kind="child", name="c"))
        done = await write_step(storage, claim, U, kind="child", name="c", value=None, error=b"why")
        assert done.row is not None
        assert (done.told, done.row.done, done.row.value, done.row.error) == ("written", True, None, b"why")

    @pytest.mark.parametrize("other", [{"name": "other"}, {"kind": "step"}])
    async def test_something_else_does_not_end_what_is_waited_for(
        self, storage: Storage, runner_a: Ownership, other: dict[str, Any]
    ) -> None:
        """W2: code that takes another way changes nothing."""
        claim, _ = await grant(runner_a), await start_unit(storage)
        waiting = await storage.units.step(pending_step(claim, U, kind="deferred", name="paid"))
        told = await write_step(storage, claim, U, **{"kind": "deferred", "name": "paid", **other})
        assert (told.told, told.row) == ("there", waiting.row)
        assert (await load_unit(storage, claim, U)).steps == (waiting.row,)

    async def test_it_is_due_by_the_databases_clock_counted_from_the_first_time(
        self, storage: Storage, runner_a: Ownership, passing: Passing
    ) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        before = await storage.now()
        first = await storage.units.step(pending_step(claim, U, due_s=90.5))
        after = await storage.now()
        assert first.row is not None
        assert first.row.due_at is not None
        # `now` may be the begin of the transaction, which stands between the two.
        assert before <= first.row.due_at - timedelta(seconds=90.5) <= after
        await passing(0.01)
        again = await storage.units.step(pending_step(claim, U, due_s=90.5))
        assert (again.told, again.row) == ("there", first.row)
        soon = await storage.units.step(pending_step(claim, U, 1, due_s=0.0))
        assert soon.row is not None
        assert soon.row.due_at is not None
        assert after <= soon.row.due_at <= await storage.now()

    async def test_branches_and_places_are_strangers_and_in_order(self, storage: Storage, runner_a: Ownership) -> None:
        """M10."""
        claim, _ = await grant(runner_a), await start_unit(storage)
        written = [("0.1", 0), ("", 10), ("0", 1), ("", 9), ("0", 0), ("", 2), ("1", 0)]
        for branch, position in written:
            assert (await write_step(storage, claim, U, position, branch=branch)).told == "written"
        assert positions(await load_unit(storage, claim, U)) == sorted(written)
        assert (await stored_unit(storage, U)).steps == len(written)

    async def test_units_are_strangers(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a)
        for which in ("one", "two"):
            await start_unit(storage, which)
            assert (await write_step(storage, claim, unit_key(which), value=which.encode())).told == "written"
        for which in ("one", "two"):
            (row,) = (await load_unit(storage, claim, unit_key(which))).steps
            assert row.value == which.encode()

    async def test_clusters_are_strangers(self, storage: Storage, neighbour: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await write_step(storage, claim, U)
        await resolve(storage, U)
        assert await neighbour.units.get(U) is None
        assert await neighbour.units.list(status=None, name=None, older_s=None, most=9) == []
        assert await neighbour.units.load(claim, U) is None
        assert await neighbour.units.take([claim], most=9) == {}
        assert (await neighbour.units.step(step_write(claim, U, 1))).told == "fenced"
        assert await neighbour.units.interrupt(U) is None
        assert await resolve(neighbour, U) == "over", "it is another one, and has not begun"
        assert (await neighbour.units.purge(older_s=-60, most=9)).most == 0
        assert (await neighbour.units.start(new_start())).told == "started"
        found = await load_unit(storage, claim, U)
        assert (len(found.steps), found.deferreds) == (1, (DeferredRow("paid", b"yes", None),))

    async def test_a_unit_that_is_over_or_never_began_takes_no_step(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim, leader = await grant(runner_a), await grant(runner_a, A, LEADER)
        assert (await write_step(storage, claim, U)).told == "over"
        await start_unit(storage)
        await end_unit(storage, claim, U)
        before = await stored_unit(storage, U)
        for write in (step_write(claim, U), pending_step(claim, U)):
            told = await storage.units.step(write)
            assert (told.told, told.row) == ("over", None)
            assert abs(told.now - await storage.now()) < NEAR
        assert await stored_unit(storage, U) == before
        assert (await load_unit(storage, claim, U)).steps == ()
        unit = (await open_unit(storage, leader)).row.unit
        await end_unit(storage, leader, unit)
        assert (await write_step(storage, leader, unit)).told == "over"

    async def test_a_suspended_unit_has_not_ended(self, storage: Storage, runner_a: Ownership) -> None:
        """A suspension of unknown outcome may have happened, while its holder goes on."""
        claim, _ = await grant(runner_a), await start_unit(storage)
        await suspend_unit(storage, claim, U)
        assert (await write_step(storage, claim, U)).told == "written"
        assert (await stored_unit(storage, U)).status == "suspended"

    async def test_a_unit_of_another_seat_is_not_there(self, storage: Storage, runner_a: Ownership) -> None:
        """C1: the seat that counts is the unit's own."""
        await start_unit(storage, seat=S1)
        other = await grant(runner_a, A, S2)
        before = await stored_unit(storage, U)
        assert (await write_step(storage, other, U)).told == "over"
        assert (await end_unit(storage, other, U)).told == "over"
        await suspend_unit(storage, other, U, told="over")
        assert await storage.units.load(other, U) is None
        assert (await take_units(storage, other)).rows == ()
        assert await stored_unit(storage, U) == before

    async def test_without_the_seat_nothing_is_written_and_nothing_told(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        """C1."""
        claim, _ = await grant(runner_a), await start_unit(storage)
        await write_step(storage, claim, U)
        before = await load_unit(storage, claim, U)
        for other in foreign_claims(claim):
            for write in (step_write(other, U), step_write(other, U, 1), pending_step(other, U, 1)):
                told = await storage.units.step(write)
                assert (told.told, told.row) == ("fenced", None)
            assert (await end_unit(storage, other, U)).told == "fenced"
            await suspend_unit(storage, other, U, told="fenced")
            assert await storage.units.load(other, U) is None
            assert await storage.units.take([other], most=9) == {}
            assert await storage.units.open(other, unit="leader:x/y", kind="leader", name="x", id="y") is None
        after = await load_unit(storage, claim, U)
        assert (after.row, after.steps, after.deferreds) == (before.row, before.steps, before.deferreds)
        assert await storage.units.get("leader:x/y") is None

    @pytest.mark.parametrize("how", LOSSES)
    async def test_however_the_seat_was_lost_a_former_holder_writes_nothing(
        self, storage: Storage, runner_a: Ownership, runner_b: Ownership, how: str
    ) -> None:
        """C1, W1: else a step of the old holder appears after the new one has loaded."""
        old, _ = await grant(runner_a), await start_unit(storage)
        await write_step(storage, old, U)
        await storage.units.step(pending_step(old, U, 1))
        await lose(how, old, runner_a, runner_b)

        async def is_refused() -> None:
            assert (await write_step(storage, old, U, 2)).told == "fenced"
            assert (await write_step(storage, old, U, 1, kind="sleep")).told == "fenced"
            assert (await end_unit(storage, old, U)).told == "fenced"
            await suspend_unit(storage, old, U, told="fenced")
            assert await storage.units.load(old, U) is None

        await is_refused()
        new = await next_claim(how, runner_a, runner_b)
        await is_refused()
        found = await load_unit(storage, new, U)
        assert [(row.position, row.done) for row in found.steps] == [(0, True), (1, False)]
        assert found.row.status == "running"
        assert (await write_step(storage, new, U, 1, kind="sleep")).told == "written"
        await is_refused()
        assert (await end_unit(storage, new, U)).told == "written"
        await is_refused()

    async def test_who_is_evicted_while_it_steps_has_stored_what_it_was_told(
        self, storage: Storage, runner_a: Ownership, runner_b: Ownership
    ) -> None:
        """C1: what was told "written" its successor loads, and nothing else."""
        claim, _ = await grant(runner_a), await start_unit(storage)
        written: list[int] = []
        under_way, lost = asyncio.Event(), "written"

        async def go_on() -> None:
            nonlocal lost
            while lost == "written":
                position = len(written)
                lost = (await write_step(storage, claim, U, position)).told
                if lost == "written":
                    written.append(position)
                if position == 5:
                    under_way.set()

        async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
            tasks.create_task(go_on())
            await under_way.wait()
            await evict(runner_b, A)
            new = await grant(runner_b, B)
            found = await load_unit(storage, new, U)
        assert lost == "fenced"
        assert [row.position for row in found.steps] == written
        assert (await load_unit(storage, new, U)).steps == found.steps


class TestEnd:
    @pytest.mark.parametrize("status", get_args(UnitEnding))
    async def test_w8_a_workflow_keeps_its_row_and_its_steps(
        self, storage: Storage, runner_a: Ownership, status: UnitEnding
    ) -> None:
        claim, before = await grant(runner_a), await start_unit(storage, version="2.1")
        await write_step(storage, claim, U)
        await resolve(storage, U)
        told = await end_unit(storage, claim, U, status=status, value=b"\x00v", error=b"\xffe", outcome=b"ignored")
        assert told == UnitEndResult("written", None)
        row = await stored_unit(storage, U)
        assert (row.unit, row.kind, row.name, row.id, row.seat) == (U, "workflow", "Order", "one", S1)
        assert (row.status, row.value, row.error, row.wake_at) == (status, b"\x00v", b"\xffe", None)
        assert (row.payload, row.version, row.started_at) == (before.payload, "2.1", before.started_at)
        assert row.ended_at is not None
        assert row.changed_at == row.ended_at >= row.started_at
        assert abs(row.ended_at - await storage.now()) < NEAR
        found = await load_unit(storage, claim, U)
        assert (found.row, positions(found)) == (row, [("", 0)])
        assert [each.name for each in found.deferreds] == ["paid"]
        assert (await take_units(storage, claim)).rows == ()

    async def test_no_value_is_another_one_than_an_empty_one(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a)
        for which, value, error in (("one", None, None), ("two", b"", None), ("three", None, b"")):
            await start_unit(storage, which)
            await end_unit(storage, claim, unit_key(which), value=value, error=error)
            row = await stored_unit(storage, unit_key(which))
            assert (row.value, row.error) == (value, error)

    async def test_an_end_is_written_once(self, storage: Storage, runner_a: Ownership) -> None:
        """0.6: asked again, perhaps since the first answer was lost."""
        claim, _ = await grant(runner_a), await start_unit(storage)
        assert (await end_unit(storage, claim, U, value=b"first")).told == "written"
        before = await stored_unit(storage, U)
        assert (await end_unit(storage, claim, U, value=b"first")).told == "over"
        assert (await end_unit(storage, claim, U, status="failed", error=b"second")).told == "over"
        assert await stored_unit(storage, U) == before
        assert (await end_unit(storage, claim, unit_key("none"))).told == "over"

    async def test_a_suspended_or_interrupted_one_can_end(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a)
        for which in ("one", "two"):
            await start_unit(storage, which)
            await suspend_unit(storage, claim, unit_key(which), wake_s=3600.0)
        assert await storage.units.interrupt(unit_key("two")) is not None
        for which in ("one", "two"):
            assert (await end_unit(storage, claim, unit_key(which), status="interrupted")).told == "written"
            row = await stored_unit(storage, unit_key(which))
            assert (row.status, row.wake_at) == ("interrupted", None)
        assert (await take_units(storage, claim)).wake_at is None

    @pytest.mark.parametrize(("kind", "seat"), [("leader", LEADER), ("tick", CRON)])
    async def test_other_units_are_gone_with_all_that_was_theirs(
        self, storage: Storage, runner_a: Ownership, kind: UnitKind, seat: str
    ) -> None:
        """M10: the next one of this name begins anew."""
        claim = await grant(runner_a, A, seat)
        unit = (await open_unit(storage, claim, kind=kind)).row.unit
        await write_step(storage, claim, unit)
        await resolve(storage, unit)
        assert await end_unit(storage, claim, unit) == UnitEndResult("written", None)
        assert await storage.units.get(unit) is None
        assert await storage.units.load(claim, unit) is None
        assert (await end_unit(storage, claim, unit)).told == "over"
        anew = await open_unit(storage, claim, kind=kind)
        assert (anew.row.unit, anew.row.steps, anew.steps, anew.deferreds) == (unit, 0, (), ())

    async def test_others_keep_what_is_theirs(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a)
        for which in ("one", "two", "one/two"):
            await start_unit(storage, which)
            await write_step(storage, claim, unit_key(which))
            await resolve(storage, unit_key(which))
        before = [await load_unit(storage, claim, unit_key(which)) for which in ("two", "one/two")]
        await end_unit(storage, claim, U)
        after = [await load_unit(storage, claim, unit_key(which)) for which in ("two", "one/two")]
        assert [(each.row, each.steps, each.deferreds) for each in after] == [
            (each.row, each.steps, each.deferreds) for each in before
        ]


class TestParent:
    """What waits for a unit hears of its end in the same commit [M11, W4]."""

    async def family(self, storage: Storage, **options: str) -> tuple[str, str]:
        """A parent and a child of another seat."""
        parent = await start_unit(storage, "parent", seat=S2)
        child = await start_unit(storage, "child", seat=S1, parent=parent.unit, waited_as="child:child", **options)
        assert child.parent == parent.unit
        return parent.unit, child.unit

    @pytest.mark.parametrize("status", get_args(UnitEnding))
    async def test_a_parent_that_is_suspended_goes_on(
        self, storage: Storage, runner_a: Ownership, status: UnitEnding
    ) -> None:
        claim, other = await grant(runner_a), await grant(runner_a, A, S2)
        parent, child = await self.family(storage)
        await suspend_unit(storage, other, parent, "child:child", wake_s=3600.0)
        assert (await take_units(storage, other)).rows == ()
        told = await end_unit(storage, claim, child, status=status, value=b"v", outcome=b"\x00out")
        assert told == UnitEndResult("written", S2)
        (row,) = (await take_units(storage, other)).rows
        assert (row.unit, row.status, row.wake_at) == (parent, "running", None)
        assert (await load_unit(storage, other, parent)).deferreds == (DeferredRow("child:child", b"\x00out", None),)

    async def test_a_parent_that_runs_finds_the_value_and_does_not_suspend(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim, other = await grant(runner_a), await grant(runner_a, A, S2)
        parent, child = await self.family(storage)
        before = await stored_unit(storage, parent)
        assert await end_unit(storage, claim, child, outcome=b"out") == UnitEndResult("written", S2)
        after = await stored_unit(storage, parent)
        assert after.status == "running"
        assert after.changed_at >= before.changed_at
        assert (await load_unit(storage, other, parent)).deferreds == (DeferredRow("child:child", b"out", None),)
        await suspend_unit(storage, other, parent, "child:child", told="ready")

    @pytest.mark.parametrize("how", ["ended", "purged"])
    async def test_a_parent_that_is_gone_gets_nothing(self, storage: Storage, runner_a: Ownership, how: str) -> None:
        """W5: else the value would wait for the next unit of its name."""
        claim, other = await grant(runner_a), await grant(runner_a, A, S2)
        await start_unit(storage, "parent", seat=S2)
        child = await start_unit(storage, "child", parent=unit_key("parent"), waited_as="w")
        await end_unit(storage, other, unit_key("parent"))
        before = await storage.units.get(unit_key("parent"))
        if how == "purged":
            await storage.units.purge(older_s=-60, most=9)
            before = None
        assert await end_unit(storage, claim, child.unit, outcome=b"out") == UnitEndResult("written", None)
        assert await storage.units.get(unit_key("parent")) == before
        if before is None:
            await start_unit(storage, "parent", seat=S2)
        assert (await load_unit(storage, other, unit_key("parent"))).deferreds == ()

    async def test_what_has_a_value_keeps_it(self, storage: Storage, runner_a: Ownership) -> None:
        claim, other = await grant(runner_a), await grant(runner_a, A, S2)
        parent, child = await self.family(storage)
        assert await resolve(storage, parent, "child:child", value=b"first") == "resolved"
        assert (await end_unit(storage, claim, child, outcome=b"second")).told == "written"
        assert (await load_unit(storage, other, parent)).deferreds == (DeferredRow("child:child", b"first", None),)

    async def test_an_end_that_is_refused_tells_nobody(self, storage: Storage, runner_a: Ownership) -> None:
        claim, other = await grant(runner_a), await grant(runner_a, A, S2)
        parent, child = await self.family(storage)
        await suspend_unit(storage, other, parent, "child:child")
        for wrong in foreign_claims(claim)[1:]:
            assert await end_unit(storage, wrong, child, outcome=b"out") == UnitEndResult("fenced", None)
        found = await load_unit(storage, other, parent)
        assert (found.row.status, found.deferreds) == ("suspended", ())

    async def test_many_children_end_while_their_parent_suspends(self, storage: Storage, runner_a: Ownership) -> None:
        """W4: whatever comes first, none is left waiting."""
        claim, other = await grant(runner_a), await grant(runner_a, A, S2)
        for number in range(15):
            parent = await start_unit(storage, f"p{number}", seat=S2)
            child = await start_unit(storage, f"c{number}", parent=parent.unit, waited_as="w")
            async with asyncio.timeout(120):
                end, told = await asyncio.gather(
                    end_unit(storage, claim, child.unit, outcome=b"o"),
                    storage.units.suspend(other, parent.unit, waits=["w"], wake_s=None),
                )
            assert end == UnitEndResult("written", S2)
            assert told in ("suspended", "ready")
            assert (await stored_unit(storage, parent.unit)).status == "running", told
            assert len((await load_unit(storage, other, parent.unit)).deferreds) == 1


class TestOpen:
    @pytest.mark.parametrize(("kind", "seat"), [("leader", LEADER), ("tick", CRON)])
    async def test_a_unit_begins_and_the_next_holder_goes_on_with_it(
        self, storage: Storage, runner_a: Ownership, runner_b: Ownership, kind: UnitKind, seat: str
    ) -> None:
        """M10."""
        claim = await grant(runner_a, A, seat)
        first = await open_unit(storage, claim, "r1", kind=kind, name="n")
        assert (first.steps, first.deferreds) == ((), ())
        assert abs(first.now - await storage.now()) < NEAR
        row = first.row
        assert (row.unit, row.kind, row.name, row.id, row.seat) == (f"{kind}:n/r1", kind, "n", "r1", seat)
        assert (row.status, row.payload, row.version, row.interrupting) == ("running", b"", "", False)
        assert (row.parent, row.value, row.error, row.ended_at, row.wake_at) == (None, None, None, None, None)
        assert row.steps == 0
        assert abs(row.started_at - await storage.now()) < NEAR
        assert row.started_at <= row.changed_at <= await storage.now()
        step = await write_step(storage, claim, row.unit)
        await resolve(storage, row.unit)
        again = await open_unit(storage, claim, "r1", kind=kind, name="n")
        await evict(runner_b, A)
        new = await grant(runner_b, B, seat)
        taken_over = await open_unit(storage, new, "r1", kind=kind, name="n")
        for found in (again, taken_over):
            assert (found.steps, found.deferreds) == ((step.row,), (DeferredRow("paid", b"yes", None),))
            assert (found.row.started_at, found.row.steps, found.row.status) == (row.started_at, 1, "running")
        other = await open_unit(storage, new, "r2", kind=kind, name="n")
        assert (other.steps, other.deferreds) == ((), ())

    async def test_what_came_for_a_tick_before_its_unit_began_is_its_own(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        """M10: a tick's unit begins with its first step, and its token may be given away before."""
        claim = await grant(runner_a, A, CRON)
        unit, life = await trigger_tick(storage, claim)
        assert await resolve(storage, unit, life=life) == "resolved"
        assert await resolve(storage, unit, life=life) == "already"
        found = await storage.units.open(claim, unit=unit, kind="tick", name="nightly", id="1", life=life)
        assert found is not None
        assert found.deferreds == (DeferredRow("paid", b"yes", None),)

    async def test_what_came_for_an_earlier_life_is_not_its_own(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A, CRON)
        unit, life = await trigger_tick(storage, claim)
        assert await resolve(storage, unit, life=life) == "resolved"
        assert await resolve(storage, unit, life=life - 1) == "over"
        found = await storage.units.open(claim, unit=unit, kind="tick", name="nightly", id="1", life=life + 1)
        assert found is not None
        assert found.deferreds == ()
        assert await resolve(storage, unit, life=life) == "over"
        assert await resolve(storage, unit, life=life + 1, value=b"new") == "resolved"
        assert (await load_unit(storage, claim, unit)).deferreds == (DeferredRow("paid", b"new", None),)

    async def test_two_that_open_it_at_once_have_the_same(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A, LEADER)
        async with asyncio.timeout(120):
            found = await asyncio.gather(*(open_unit(storage, claim) for _ in range(5)))
        assert len({each.row.started_at for each in found}) == 1

    async def test_units_of_leaders_and_ticks_are_taken_by_nobody(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A, LEADER)
        await open_unit(storage, claim)
        assert (await take_units(storage, claim)).rows == ()


class TestTake:
    async def test_the_oldest_come_first_so_many_of_each_seat(
        self, storage: Storage, runner_a: Ownership, passing: Passing
    ) -> None:
        claims = [await grant(runner_a), await grant(runner_a, A, S2)]
        ids = ["c", "a", "d", "b"]
        for which in ids:
            await start_unit(storage, f"{which}1")
            await start_unit(storage, f"{which}2", seat=S2)
            await passing(0.002)
        await write_step(storage, claims[0], unit_key("c1"))
        found = await storage.units.take(claims, most=3)
        assert set(found) == {S1, S2}
        for claim, number in zip(claims, "12", strict=True):
            each = found[claim.seat]
            assert [row.id for row in each.rows] == [f"{which}{number}" for which in ids[:3]]
            assert each.wake_at is None
            assert abs(each.now - await storage.now()) < NEAR
        assert list(found[S1].rows) == [await stored_unit(storage, unit_key(f"{which}1")) for which in ids[:3]]
        assert found[S1].rows[0].steps == 1
        assert [row.id for row in (await take_units(storage, claims[0])).rows] == [f"{which}1" for which in ids]
        assert (await storage.units.take(claims, most=0))[S1].rows == ()

    async def test_of_nothing_there_is_nothing(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a)
        assert await storage.units.take([], most=9) == {}
        found = await take_units(storage, claim)
        assert (found.rows, found.wake_at) == ((), None)

    async def test_each_seat_counts_for_itself(self, storage: Storage, runner_a: Ownership) -> None:
        """C1: one that is not held is missing, the others are there."""
        claim = await grant(runner_a)
        await start_unit(storage, "one")
        await start_unit(storage, "two", seat=S2)
        assert list(await storage.units.take([*foreign_claims(claim), claim], most=9)) == [S1]

    @pytest.mark.parametrize("status", get_args(UnitStatus))
    async def test_only_those_that_run_are_taken(
        self, storage: Storage, runner_a: Ownership, status: UnitStatus
    ) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        if status == "suspended":
            await suspend_unit(storage, claim, U)
        elif status != "running":
            await end_unit(storage, claim, U, status=status)
        assert [row.status for row in (await take_units(storage, claim)).rows] == ["running"] * (status == "running")

    async def test_those_that_are_due_go_on_and_it_is_told_when_the_next_is(
        self, storage: Storage, runner_a: Ownership, passing: Passing
    ) -> None:
        claim = await grant(runner_a)
        wakes: dict[str, float | None] = {"now": 0.0, "late": 7200.0, "never": None, "later": 3600.0}
        for which, wake_s in wakes.items():
            await start_unit(storage, which)
            await suspend_unit(storage, claim, unit_key(which), wake_s=wake_s)
        await passing(0.002)
        found = await take_units(storage, claim)
        assert [(row.id, row.status, row.wake_at) for row in found.rows] == [("now", "running", None)]
        assert found.wake_at == (await stored_unit(storage, unit_key("later"))).wake_at
        assert found.wake_at is not None
        assert abs(found.wake_at - found.now - timedelta(hours=1)) < NEAR
        assert [(await stored_unit(storage, unit_key(which))).status for which in wakes] == [
            "running",
            *["suspended"] * 3,
        ]
        assert (await take_units(storage, claim)).rows == found.rows, "asked again it does nothing more"

    async def test_it_is_due_when_the_databases_clock_says_so(
        self, storage: Storage, runner_a: Ownership, passing: Passing
    ) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await suspend_unit(storage, claim, U, wake_s=0.3)
        due_at = (await stored_unit(storage, U)).wake_at
        assert due_at is not None
        async with asyncio.timeout(120):
            while not (found := await take_units(storage, claim)).rows:
                assert found.wake_at == due_at
                assert found.now < due_at
                await passing(0.01)
        assert found.now >= due_at
        assert found.wake_at is None
        assert found.rows[0].changed_at >= due_at

    async def test_those_that_are_due_beyond_the_most_are_not_lost(
        self, storage: Storage, runner_a: Ownership, passing: Passing
    ) -> None:
        claim = await grant(runner_a)
        for number in range(5):
            await start_unit(storage, str(number))
            await suspend_unit(storage, claim, unit_key(str(number)), wake_s=0.0)
        await passing(0.002)
        assert len((await take_units(storage, claim, most=2)).rows) == 2
        assert sorted(row.id for row in (await take_units(storage, claim, most=9)).rows) == list("01234")

    async def test_without_the_seat_nobody_goes_on(
        self, storage: Storage, runner_a: Ownership, passing: Passing
    ) -> None:
        """C1."""
        claim, _ = await grant(runner_a), await start_unit(storage)
        await suspend_unit(storage, claim, U, wake_s=0.0)
        await passing(0.002)
        before = await stored_unit(storage, U)
        assert await storage.units.take(foreign_claims(claim), most=9) == {}
        assert await stored_unit(storage, U) == before
        assert (await take_units(storage, claim)).rows != ()


class TestLoad:
    async def test_all_that_is_known_is_there(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        rows = [
            (await write_step(storage, claim, U, 0)).row,
            (await storage.units.step(pending_step(claim, U, 1, due_s=9.0))).row,
            (await write_step(storage, claim, U, 0, branch="0")).row,
        ]
        await resolve(storage, U, "b", value=b"\x00")
        await resolve(storage, U, "a", value=None, error="no: \N{SNOWMAN}")
        found = await load_unit(storage, claim, U)
        assert list(found.steps) == rows
        assert sorted(found.deferreds, key=lambda each: each.name) == [
            DeferredRow("a", None, "no: \N{SNOWMAN}"),
            DeferredRow("b", b"\x00", None),
        ]
        assert found.row == await stored_unit(storage, U)
        assert abs(found.now - await storage.now()) < NEAR

    async def test_what_nobody_has_resolved_is_not_there(self, storage: Storage, runner_a: Ownership) -> None:
        """A deferred is known from its resolution on, however often it was waited for."""
        claim, _ = await grant(runner_a), await start_unit(storage)
        await suspend_unit(storage, claim, U, "paid", "sent")
        assert (await load_unit(storage, claim, U)).deferreds == ()
        await resolve(storage, U, "sent")
        assert [each.name for each in (await load_unit(storage, claim, U)).deferreds] == ["sent"]

    async def test_there_is_no_such_unit(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a)
        assert await storage.units.load(claim, U) is None


class TestSuspend:
    async def test_nobody_has_it_until_it_is_resolved(self, storage: Storage, runner_a: Ownership) -> None:
        claim, before = await grant(runner_a), await start_unit(storage)
        await suspend_unit(storage, claim, U, "paid", "sent")
        row = await stored_unit(storage, U)
        assert (row.status, row.wake_at, row.ended_at) == ("suspended", None, None)
        assert row.changed_at >= before.changed_at
        assert (await take_units(storage, claim)).rows == ()
        assert await resolve(storage, U, "sent") == "resolved"
        assert [row.unit for row in (await take_units(storage, claim)).rows] == [U]

    async def test_when_it_is_due_counts_from_now_by_the_databases_clock(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        before = await storage.now()
        assert await storage.units.suspend(claim, U, waits=[], wake_s=90.5) == "suspended"
        row = await stored_unit(storage, U)
        assert row.wake_at is not None
        assert before <= row.wake_at - timedelta(seconds=90.5) <= await storage.now()
        await suspend_unit(storage, claim, U, wake_s=None)
        assert (await stored_unit(storage, U)).wake_at is None, "what was said last counts"

    async def test_one_that_has_a_value_already_goes_on(self, storage: Storage, runner_a: Ownership) -> None:
        """M11: whether it was resolved before anybody waited, or since; one of them is enough."""
        claim, _ = await grant(runner_a), await start_unit(storage)
        await suspend_unit(storage, claim, U, "paid", "sent")
        await resolve(storage, U, "sent", value=None, error="rejected counts, too")
        await suspend_unit(storage, claim, U, "paid", "sent", told="ready")
        assert (await stored_unit(storage, U)).status == "running"
        await suspend_unit(storage, claim, U, "paid")
        await resolve(storage, U, "early")
        await suspend_unit(storage, claim, U, "other", "early", wake_s=60.0, told="ready")
        row = await stored_unit(storage, U)
        assert (row.status, row.wake_at) == ("running", None)

    async def test_values_of_others_do_not_count(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await start_unit(storage, "two")
        await resolve(storage, U, "sent")
        await resolve(storage, unit_key("two"), "paid")
        await suspend_unit(storage, claim, U, "paid")

    async def test_one_that_shall_be_interrupted_goes_on(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await storage.units.interrupt(U)
        await suspend_unit(storage, claim, U, wake_s=60.0, told="ready")
        assert (await stored_unit(storage, U)).status == "running"

    async def test_one_that_is_over_or_never_began(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a)
        await suspend_unit(storage, claim, U, told="over")
        assert await storage.units.get(U) is None
        await start_unit(storage)
        await end_unit(storage, claim, U)
        before = await stored_unit(storage, U)
        await suspend_unit(storage, claim, U, told="over")
        assert await stored_unit(storage, U) == before

    async def test_asked_again_it_is_suspended_still(self, storage: Storage, runner_a: Ownership) -> None:
        """0.6: the first answer was lost."""
        claim, _ = await grant(runner_a), await start_unit(storage)
        for _ in range(2):
            await suspend_unit(storage, claim, U, wake_s=60.0)
        assert (await stored_unit(storage, U)).status == "suspended"

    async def test_without_the_seat_it_is_not_suspended(
        self, storage: Storage, runner_a: Ownership, runner_b: Ownership
    ) -> None:
        """C1: the new holder runs it."""
        old, _ = await grant(runner_a), await start_unit(storage)
        await evict(runner_b, A)
        new = await grant(runner_b, B)
        await suspend_unit(storage, old, U, told="fenced")
        assert [row.status for row in (await take_units(storage, new)).rows] == ["running"]
        assert (await load_unit(storage, new, U)).deferreds == ()

    async def test_whatever_comes_first_no_wake_up_is_lost(self, storage: Storage, runner_a: Ownership) -> None:
        """M11, W4: also of a deferred of which nobody has heard before."""
        claim = await grant(runner_a)
        tolds: set[str] = set()
        for number in range(30):
            unit = (await start_unit(storage, str(number))).unit
            async with asyncio.timeout(120):
                told, answer = await asyncio.gather(
                    storage.units.suspend(claim, unit, waits=["x", "paid"], wake_s=None),
                    storage.units.resolve(unit, "paid", value=b"v", error=None),
                )
            tolds.add(told)
            assert (answer.told, answer.wake) == ("resolved", S1)
            assert (await stored_unit(storage, unit)).status == "running", told
        assert tolds <= {"suspended", "ready"}
        assert len((await take_units(storage, claim)).rows) == 30

    async def test_whatever_comes_first_no_interruption_is_lost(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a)
        for number in range(15):
            unit = (await start_unit(storage, str(number))).unit
            async with asyncio.timeout(120):
                told, row = await asyncio.gather(
                    storage.units.suspend(claim, unit, waits=["x"], wake_s=None), storage.units.interrupt(unit)
                )
            assert row is not None
            found = await stored_unit(storage, unit)
            assert (found.status, found.interrupting) == ("running", True), told


async def test_a_claim_says_which_seat(storage: Storage, runner_a: Ownership) -> None:
    """Two units of one name on two seats cannot be: the one that began is it."""
    leader, cron = await grant(runner_a, A, LEADER), await grant(runner_a, A, CRON)
    unit = (await open_unit(storage, leader)).row.unit
    assert await storage.units.load(cron, unit) is None
    assert (await write_step(storage, Claim(A, CRON, cron.epoch), unit)).told == "over"
