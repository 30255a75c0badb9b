"""What everybody may ask about durable work, on every engine: starts, values, interruptions, lists, and the purge.

W3, W4, W5; REVIEW M10, M11.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage.contracts.ticks import TickNote
from coterie.storage.contracts.units import DeferredRow, ParentEnded, ResolveResult, tick_of_unit
from tests.contract.test_states import A
from tests.contract.units import (
    CRON,
    HOSTILE,
    LEADER,
    S1,
    S2,
    end_unit,
    grant,
    list_units,
    load_unit,
    new_start,
    open_unit,
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
    from coterie.storage.contracts.units import UnitRow, UnitStatus
    from coterie.storage.interface import Ownership, Storage
    from tests.contract.conftest import Passing

__all__ = ["runner_a", "runner_b"]  # fixtures

U = unit_key()
NEAR = timedelta(seconds=30)
NOW_S = -60.0
"""As age of what is purged: all that is there."""


async def ids(storage: Storage, **options: Any) -> list[str]:
    return [row.id for row in await list_units(storage, **options)]


class TestStart:
    async def test_it_is_stored_and_found_by_whoever_holds_its_seat(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        await start_unit(storage, "parent", seat=S2)
        told = await storage.units.start(new_start(version="2.1", parent=unit_key("parent"), waited_as="w"))
        assert told.told == "started"
        row = told.row
        assert (row.unit, row.kind, row.name, row.id, row.seat) == (U, "workflow", "Order", "one", S1)
        assert (row.status, row.payload, row.version) == ("running", b"\x00\xffpay", "2.1")
        assert (row.interrupting, row.parent) == (False, unit_key("parent"))
        assert (row.value, row.error, row.ended_at, row.wake_at, row.steps) == (None, None, None, None, 0)
        assert abs(row.started_at - await storage.now()) < NEAR
        assert row.started_at <= row.changed_at <= await storage.now()
        assert await stored_unit(storage, U) == row
        assert (await take_units(storage, await grant(runner_a))).rows == (row,)

    async def test_nobody_need_hold_anything(self, storage: Storage) -> None:
        assert (await storage.units.start(new_start())).told == "started"

    async def test_the_same_again_is_there_as_it_is_now(self, storage: Storage, runner_a: Ownership) -> None:
        """0.6: perhaps by this very call, whose answer was lost. Only the payload's digest counts."""
        claim, row = await grant(runner_a), await start_unit(storage)
        again = await storage.units.start(new_start(version="3", parent="p", waited_as="w"))
        assert (again.told, again.row) == ("there", row)
        await write_step(storage, claim, U)
        await suspend_unit(storage, claim, U)
        now = await stored_unit(storage, U)
        again = await storage.units.start(new_start())
        assert (again.told, again.row) == ("there", now)
        await end_unit(storage, claim, U, value=b"v")
        over = await storage.units.start(new_start())
        assert (over.told, over.row.status, over.row.value) == ("there", "done", b"v")

    @pytest.mark.parametrize("status", ["running", "suspended", "done"])
    async def test_another_payload_is_a_conflict(self, storage: Storage, runner_a: Ownership, status: str) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        if status == "suspended":
            await suspend_unit(storage, claim, U)
        elif status == "done":
            await end_unit(storage, claim, U)
        before = await stored_unit(storage, U)
        told = await storage.units.start(new_start(payload=b"other", digest=b"other"))
        assert (told.told, told.row) == ("conflict", before)
        assert await stored_unit(storage, U) == before

    async def test_of_many_at_once_one_starts(self, storage: Storage) -> None:
        async with asyncio.timeout(120):
            tolds = await asyncio.gather(
                *(
                    storage.units.start(new_start(payload=str(n).encode(), digest=str(n % 2).encode()))
                    for n in range(10)
                )
            )
        (first,) = [each for each in tolds if each.told == "started"]
        same = first.row.payload[-1] % 2
        for number, each in enumerate(tolds):
            assert each.row == first.row
            if each is not first:
                assert each.told == ("there" if number % 2 == same else "conflict")
        assert await ids(storage) == ["one"]

    async def test_a_child_of_a_parent_that_is_over_does_not_start(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        child = new_start("child", parent=U, waited_as="d")
        assert (await storage.units.start(child)).told == "started"
        await end_unit(storage, claim, U, status="failed")
        assert (await storage.units.start(child)).told == "there"
        for parent in (U, unit_key("never")):
            with pytest.raises(ParentEnded):
                await storage.units.start(new_start("late", parent=parent, waited_as="d"))
        assert await storage.units.get(unit_key("late")) is None

    async def test_one_that_is_left_to_itself_has_no_parent_and_starts_only_while_that_runs(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        told = await storage.units.start(new_start("left", parent=U))
        assert (told.told, told.row.parent) == ("started", None)
        await end_unit(storage, claim, U, status="failed")
        assert await storage.units.interrupt_children([S1], most=10) == []
        with pytest.raises(ParentEnded):
            await storage.units.start(new_start("late", parent=U))


class TestResolve:
    async def test_what_runs_learns_of_it_and_who_holds_it_is_told(self, storage: Storage, runner_a: Ownership) -> None:
        claim, before = await grant(runner_a), await start_unit(storage)
        told = await storage.units.resolve(U, "paid", value=b"\x00", error=None)
        assert told == ResolveResult("resolved", S1)
        assert (await load_unit(storage, claim, U)).deferreds == (DeferredRow("paid", b"\x00", None),)
        row = await stored_unit(storage, U)
        assert row.status == "running"
        assert row.changed_at >= before.changed_at

    @pytest.mark.parametrize("wake_s", [None, 3600.0])
    async def test_what_is_suspended_goes_on(self, storage: Storage, runner_a: Ownership, wake_s: float | None) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await suspend_unit(storage, claim, U, "paid", wake_s=wake_s)
        assert await storage.units.resolve(U, "paid", value=None, error="no") == ResolveResult("resolved", S1)
        row = await stored_unit(storage, U)
        assert (row.status, row.wake_at) == ("running", None)
        assert (await take_units(storage, claim)).rows == (row,)
        assert (await load_unit(storage, claim, U)).deferreds == (DeferredRow("paid", None, "no"),)

    async def test_before_there_is_a_unit_there_is_nothing_to_resolve(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        for unit in (U, f"{LEADER}/one", f"{CRON}/manual/2026-01-01T00:00:00+00:00/1", "cron:odd"):
            assert await storage.units.resolve(unit, "paid", value=b"v", error=None) == ResolveResult("over", None)
        claim, _ = await grant(runner_a), await start_unit(storage)
        assert (await load_unit(storage, claim, U)).deferreds == ()

    async def test_w15_it_is_for_one_life(self, storage: Storage, runner_a: Ownership, passing: Passing) -> None:
        claim, row = await grant(runner_a), await start_unit(storage, life=5)
        assert row.life == 5
        for life in (0, 4, 6):
            assert await resolve(storage, U, life=life) == "over"
        await suspend_unit(storage, claim, U, "paid")
        assert await resolve(storage, U, life=4) == "over"
        assert (await stored_unit(storage, U)).status == "suspended"
        assert await resolve(storage, U, life=5) == "resolved"
        await end_unit(storage, claim, U)
        await passing(0.5)
        await storage.units.purge(older_s=0.25, most=9)
        assert await resolve(storage, U, "other", life=5) == "over"
        await start_unit(storage, life=6)
        assert await resolve(storage, U, "other", life=5) == "over"
        await suspend_unit(storage, claim, U, "paid")
        assert (await load_unit(storage, claim, U)).deferreds == ()

    async def test_w15_the_next_unit_of_a_leader_has_another_life(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A, LEADER)
        unit = f"{LEADER}/one"
        for life in (7, 8):
            found = await storage.units.open(claim, unit=unit, kind="leader", name="importer", id="one", life=life)
            again = await storage.units.open(claim, unit=unit, kind="leader", name="importer", id="one", life=9)
            assert found is not None
            assert again is not None
            assert found.row.life == again.row.life == life
            assert await resolve(storage, unit, life=15 - life) == "over"
            assert await resolve(storage, unit, life=life) == "resolved"
            await end_unit(storage, claim, unit)

    async def test_a_tick_that_is_over_takes_nothing(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A, CRON)
        unit, life = await trigger_tick(storage, claim)
        tick = tick_of_unit(unit)
        assert tick is not None
        note = TickNote(claim, "nightly", tick.kind, tick.at, tick.seq, attempt=1, outcome="ran")
        assert await storage.ticks.note(note) == "written"
        assert await resolve(storage, unit, life=life) == "over"

    async def test_a_unit_that_is_named_as_no_tick_takes_nothing(self, storage: Storage, runner_a: Ownership) -> None:
        """As a newer version of the program may name them."""
        unit, life = await trigger_tick(storage, await grant(runner_a, A, CRON))
        other = unit.replace("/manual/", "/other/")
        assert other != unit
        assert tick_of_unit(other) is None
        assert await resolve(storage, other, life=life) == "over"

    @pytest.mark.parametrize("first", [{"value": b"1"}, {"value": None, "error": "no"}, {"value": b""}])
    async def test_the_first_one_counts(self, storage: Storage, runner_a: Ownership, first: dict[str, Any]) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        assert await resolve(storage, U, **first) == "resolved"
        await suspend_unit(storage, claim, U, "other")
        before = await load_unit(storage, claim, U)
        assert await resolve(storage, U, value=b"2") == "already"
        assert await resolve(storage, U, value=None, error="late") == "already"
        after = await load_unit(storage, claim, U)
        assert (after.row, after.deferreds) == (before.row, before.deferreds), "it has woken nobody"
        assert after.deferreds == (DeferredRow("paid", first["value"], first.get("error")),)
        assert await resolve(storage, U, "Paid") == "resolved", "names are exact"

    async def test_of_many_at_once_one_counts(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await suspend_unit(storage, claim, U)
        async with asyncio.timeout(120):
            tolds = await asyncio.gather(*(resolve(storage, U, value=str(n).encode()) for n in range(10)))
        assert sorted(tolds) == ["already"] * 9 + ["resolved"]
        (row,) = (await load_unit(storage, claim, U)).deferreds
        assert row.value == str(tolds.index("resolved")).encode()

    @pytest.mark.parametrize("status", ["done", "failed", "interrupted"])
    async def test_what_is_over_takes_nothing(self, storage: Storage, runner_a: Ownership, status: str) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        assert await resolve(storage, U) == "resolved"
        await end_unit(storage, claim, U, status=status)
        before = await stored_unit(storage, U)
        assert await resolve(storage, U) == "over", "though it has been resolved"
        assert await resolve(storage, U, "other") == "over"
        found = await load_unit(storage, claim, U)
        assert (found.row, [each.value for each in found.deferreds]) == (before, [b"yes"])

    async def test_a_leader_that_runs_is_woken_on_its_seat(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A, LEADER)
        unit = (await open_unit(storage, claim)).row.unit
        assert await storage.units.resolve(unit, "paid", value=b"v", error=None) == ResolveResult("resolved", LEADER)


class TestInterruptAndResume:
    async def test_what_runs_is_asked_to_end(self, storage: Storage) -> None:
        before = await start_unit(storage)
        row = await storage.units.interrupt(U)
        assert row is not None
        assert (row.status, row.interrupting, row.ended_at) == ("running", True, None)
        assert row.changed_at >= before.changed_at
        assert await stored_unit(storage, U) == row
        again = await storage.units.interrupt(U)
        assert again is not None
        assert (again.status, again.interrupting) == ("running", True)

    async def test_what_is_suspended_goes_on_to_end(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await suspend_unit(storage, claim, U, wake_s=3600.0)
        row = await storage.units.interrupt(U)
        assert row is not None
        assert (row.status, row.interrupting, row.wake_at) == ("running", True, None)
        assert (await take_units(storage, claim)).rows == (row,)
        assert (await load_unit(storage, claim, U)).row == row

    async def test_a_suspended_one_goes_on_when_asked(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await suspend_unit(storage, claim, U, wake_s=3600.0)
        row = await storage.units.resume(U)
        assert row is not None
        assert (row.status, row.interrupting, row.wake_at) == ("running", False, None)
        assert (await take_units(storage, claim)).rows == (row,)
        assert await storage.units.resume(U) == row, "what runs stays as it is"

    async def test_what_is_over_stays_as_it_is(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await end_unit(storage, claim, U)
        before = await stored_unit(storage, U)
        assert await storage.units.interrupt(U) == before
        assert await storage.units.resume(U) == before
        assert await stored_unit(storage, U) == before

    async def test_there_is_no_such_workflow(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A, LEADER)
        unit = (await open_unit(storage, claim)).row
        for missing in (U, unit.unit):
            assert await storage.units.interrupt(missing) is None
            assert await storage.units.resume(missing) is None
        assert await stored_unit(storage, unit.unit) == unit
        assert await storage.units.get(U) is None


class TestList:
    async def test_those_that_changed_last_come_first(
        self, storage: Storage, runner_a: Ownership, passing: Passing
    ) -> None:
        claim = await grant(runner_a)
        for which in ("one", "two", "three"):
            await start_unit(storage, which)
            await passing(0.002)
        assert await ids(storage) == ["three", "two", "one"]
        await storage.units.interrupt(unit_key("one"))
        await passing(0.002)
        assert await ids(storage) == ["one", "three", "two"]
        await write_step(storage, claim, unit_key("three"))  # its rows are its own: that of its unit stays as it is
        await passing(0.002)
        assert await ids(storage) == ["one", "three", "two"]
        await resolve(storage, unit_key("two"))
        await passing(0.002)
        assert await ids(storage) == ["two", "one", "three"]
        await suspend_unit(storage, claim, unit_key("three"))
        await passing(0.002)
        assert await ids(storage) == ["three", "two", "one"]
        await end_unit(storage, claim, unit_key("one"))
        await passing(0.002)
        assert await ids(storage) == ["one", "three", "two"]
        assert await ids(storage, most=2) == ["one", "three"]
        assert await ids(storage, most=0) == []
        rows = await list_units(storage)
        assert rows == [await stored_unit(storage, row.unit) for row in rows]

    async def test_only_those_that_are_asked_for(self, storage: Storage, runner_a: Ownership, passing: Passing) -> None:
        claim, leader = await grant(runner_a), await grant(runner_a, A, LEADER)
        statuses: list[UnitStatus] = ["running", "suspended", "done", "failed", "interrupted"]
        for status in statuses:
            unit = (await start_unit(storage, status, name=f"Order {status}")).unit
            if status == "suspended":
                await suspend_unit(storage, claim, unit)
            elif status != "running":
                await end_unit(storage, claim, unit, status=status)
        await open_unit(storage, leader, "r1")
        for status in statuses[1:]:
            assert await ids(storage, status=status) == [status]
        assert sorted(await ids(storage, status="running")) == ["r1", "running"]
        assert await ids(storage, name="Order done") == ["done"]
        assert await ids(storage, name="importer") == ["r1"]
        assert await ids(storage, name="order done") == []
        assert await ids(storage, name="Order done", status="failed") == []
        assert await ids(storage, name="Order done", status="done", older_s=0.0) == ["done"]
        await passing(0.1)
        await start_unit(storage, "young")
        assert len(await ids(storage, older_s=0.1)) == 6
        assert "young" not in await ids(storage, older_s=0.1)
        assert await ids(storage, older_s=3600.0) == []

    async def test_its_age_counts_from_its_start(self, storage: Storage, runner_a: Ownership, passing: Passing) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await passing(0.1)
        await write_step(storage, claim, U)
        assert await ids(storage, older_s=0.1) == ["one"]

    async def test_one_that_is_not_there(self, storage: Storage) -> None:
        assert await storage.units.get(U) is None
        assert await list_units(storage) == []


class TestPurge:
    async def purged(self, storage: Storage, **options: Any) -> list[str]:
        return sorted((await storage.units.purge(**{"older_s": NOW_S, "most": 100, **options})).abandoned)

    async def test_what_ended_long_ago_goes_with_all_that_was_its_own(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        """W5: who starts it again begins anew."""
        claim, _ = await grant(runner_a), await start_unit(storage)
        await write_step(storage, claim, U)
        await resolve(storage, U)
        await end_unit(storage, claim, U, value=b"old")
        assert await self.purged(storage, older_s=3600.0) == []
        assert (await stored_unit(storage, U)).value == b"old"
        assert await self.purged(storage) == []
        assert await storage.units.get(U) is None
        assert await storage.units.load(claim, U) is None
        anew = await storage.units.start(new_start(payload=b"new", digest=b"new"))
        assert (anew.told, anew.row.payload, anew.row.steps) == ("started", b"new", 0)
        found = await load_unit(storage, claim, U)
        assert (found.steps, found.deferreds) == ((), ())
        assert (await write_step(storage, claim, U)).told == "written"
        assert await resolve(storage, U) == "resolved"

    async def test_what_goes_on_stays_however_old(self, storage: Storage, runner_a: Ownership) -> None:
        """W3: also while it is suspended, with nobody that will ever resolve it."""
        claim = await grant(runner_a)
        for which in ("running", "suspended"):
            await start_unit(storage, which)
            await write_step(storage, claim, unit_key(which))
            await resolve(storage, unit_key(which))
        await suspend_unit(storage, claim, unit_key("suspended"), "never")
        before = [await load_unit(storage, claim, unit_key(which)) for which in ("running", "suspended")]
        assert await self.purged(storage) == []
        after = [await load_unit(storage, claim, unit_key(which)) for which in ("running", "suspended")]
        assert [(each.row, each.steps, each.deferreds) for each in after] == [
            (each.row, each.steps, each.deferreds) for each in before
        ]

    async def test_what_was_abandoned_goes_and_is_told(
        self, storage: Storage, runner_a: Ownership, passing: Passing
    ) -> None:
        """Units of leaders and ticks with which nobody has gone on."""
        claim = await grant(runner_a, A, LEADER)
        old = (await open_unit(storage, claim, "old")).row.unit
        alive = (await open_unit(storage, claim, "alive")).row.unit
        await write_step(storage, claim, old)
        await resolve(storage, old)
        await passing(0.5)
        await write_step(storage, claim, alive)
        assert await self.purged(storage, older_s=0.25) == [old]
        assert await storage.units.get(old) is None
        assert len((await load_unit(storage, claim, alive)).steps) == 1
        anew = await open_unit(storage, claim, "old")
        assert (anew.steps, anew.deferreds) == ((), ())
        assert await self.purged(storage) == sorted([old, alive])

    async def test_a_unit_opened_again_is_not_abandoned(
        self, storage: Storage, runner_a: Ownership, passing: Passing
    ) -> None:
        """Also if its leader was away for longer than that, and its next step takes its time."""
        claim = await grant(runner_a, A, LEADER)
        unit = (await open_unit(storage, claim, "old")).row.unit
        await write_step(storage, claim, unit)
        await passing(0.5)
        again = await open_unit(storage, claim, "old")
        assert await self.purged(storage, older_s=0.25) == []
        assert len((await load_unit(storage, claim, unit)).steps) == len(again.steps) == 1

    async def test_what_waits_is_not_abandoned(self, storage: Storage, runner_a: Ownership, passing: Passing) -> None:
        """A sleep of a week, or a deferred without an end; one whose time was over long ago is."""
        claim = await grant(runner_a, A, LEADER)
        units = {each: (await open_unit(storage, claim, each)).row.unit for each in ("week", "ever", "over")}
        await write_step(storage, claim, units["week"], kind="sleep", done=False, due_s=3600.0)
        await write_step(storage, claim, units["ever"], kind="deferred", done=False)
        await write_step(storage, claim, units["over"], kind="sleep", done=False, due_s=0.0)
        await passing(0.5)
        assert await self.purged(storage, older_s=0.25) == [units["over"]]

    async def test_values_for_what_never_began_go(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A, CRON)
        ticks = [await trigger_tick(storage, claim) for _ in ("never", "soon")]
        for unit, life in ticks:
            assert await resolve(storage, unit, life=life) == "resolved"
        (never, its_life), (soon, life) = ticks
        assert await storage.units.open(claim, unit=soon, kind="tick", name="nightly", id="1", life=life) is not None
        assert await self.purged(storage, older_s=3600.0) == []
        assert await resolve(storage, never, life=its_life) == "already"
        await write_step(storage, claim, soon)  # else it would count as abandoned
        await storage.units.purge(older_s=0.0, most=9)
        assert await resolve(storage, never, life=its_life) == "resolved", "it was purged"

    async def test_so_many_at_a_time_the_oldest_first(
        self, storage: Storage, runner_a: Ownership, passing: Passing
    ) -> None:
        claim = await grant(runner_a)
        names = ["c", "a", "d", "b", "e"]
        for which in names:
            await start_unit(storage, which)
        for which in names:
            await end_unit(storage, claim, unit_key(which))
            await passing(0.002)
        assert await self.purged(storage, most=2) == []
        assert sorted(await ids(storage)) == ["b", "d", "e"]
        assert await self.purged(storage, most=0) == []
        assert len(await ids(storage)) == 3
        await self.purged(storage, most=3)
        assert await ids(storage) == []

    async def test_whoever_purges_at_once_with_others_breaks_nothing(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        """Every runner of the cluster does."""
        claim, leader = await grant(runner_a), await grant(runner_a, A, LEADER)
        for number in range(12):
            unit = (await start_unit(storage, str(number))).unit
            await write_step(storage, claim, unit)
            if number % 2:
                await end_unit(storage, claim, unit)
        abandoned = [(await open_unit(storage, leader, str(number))).row.unit for number in range(6)]
        async with asyncio.timeout(120):
            tolds = await asyncio.gather(*(self.purged(storage, most=4) for _ in range(5)))
            tolds.append(await self.purged(storage))
        assert sorted(unit for told in tolds for unit in told) == sorted(abandoned), "each is told once"
        assert sorted(await ids(storage), key=int) == [str(number) for number in range(0, 12, 2)]
        for number in range(0, 12, 2):
            assert len((await load_unit(storage, claim, unit_key(str(number)))).steps) == 1


class TestNames:
    @pytest.mark.parametrize("name", HOSTILE)
    async def test_whatever_they_are_they_are_kept_as_they_are(
        self, storage: Storage, runner_a: Ownership, name: str
    ) -> None:
        """Names are data, never part of a statement or of a pattern."""
        claim, other = await grant(runner_a), await grant(runner_a, A, S2)
        unit, parent = f"workflow:{name}", f"workflow:parent {name}"
        assert (await storage.units.start(new_start(unit=parent, seat=S2))).told == "started"
        plain = await start_unit(storage, "plain")
        new = new_start(unit=unit, name=name, id=name, version=name, parent=parent, waited_as=name)
        assert (await storage.units.start(new)).told == "started"
        assert (await storage.units.start(new)).told == "there"
        row: UnitRow = await stored_unit(storage, unit)
        assert (row.unit, row.name, row.id, row.version, row.parent) == (unit, name, name, name, parent)
        assert await list_units(storage, name=name) == [row]
        write = step_write(claim, unit, branch=name, name=name, done=False, value=None)
        assert (await storage.units.step(write)).told == "written"
        done = await write_step(storage, claim, unit, branch=name, name=name)
        assert done.told == "written"
        await suspend_unit(storage, claim, unit, name)
        assert await resolve(storage, unit, name, value=None, error=name) == "resolved"
        assert await resolve(storage, unit, name) == "already"
        found = await load_unit(storage, claim, unit)
        assert (found.row.status, found.steps) == ("running", (done.row,))
        assert found.deferreds == (DeferredRow(name, None, name),)
        assert {row.unit for row in (await take_units(storage, claim)).rows} == {unit, plain.unit}
        await suspend_unit(storage, claim, unit, name, told="ready")
        await suspend_unit(storage, other, parent, name)
        assert await storage.units.resume(parent) is not None
        await suspend_unit(storage, other, parent, name)
        assert await end_unit(storage, claim, unit, outcome=b"out") is not None
        assert [each.name for each in (await load_unit(storage, other, parent)).deferreds] == [name]
        assert (await stored_unit(storage, parent)).status == "running"
        assert (await storage.units.purge(older_s=NOW_S, most=9)).abandoned == ()
        assert await storage.units.get(unit) is None
        assert await stored_unit(storage, plain.unit) == plain


async def test_everybody_sees_the_steps_also_of_what_has_ended(storage: Storage, runner_a: Ownership) -> None:
    claim = await grant(runner_a)
    await start_unit(storage)
    for position in (1, 0):
        await write_step(storage, claim, U, position)
    assert tuple(await storage.units.steps(U)) == (await load_unit(storage, claim, U)).steps
    assert [each.position for each in await storage.units.steps(U)] == [0, 1]
    await end_unit(storage, claim, U)
    assert [each.position for each in await storage.units.steps(U)] == [0, 1]
    assert list(await storage.units.steps(unit_key("nobody"))) == []


class TestInterruptChildren:
    """W10: whoever fails or is interrupted does not leave its children behind."""

    @pytest.mark.parametrize("status", ["failed", "interrupted"])
    async def test_those_of_a_parent_that_failed_or_was_interrupted_are_asked_to_end(
        self, storage: Storage, runner_a: Ownership, status: str
    ) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        other = await grant(runner_a, A, S2)
        for which in ("one child", "two child", "over child"):
            await start_unit(storage, which, parent=U, waited_as=which, seat=S2)
        await start_unit(storage, "stranger", seat=S2)
        await suspend_unit(storage, other, unit_key("two child"), "paid")
        await end_unit(storage, other, unit_key("over child"))
        assert await storage.units.interrupt_children([S1, S2], most=9) == [], "it goes on"
        await end_unit(storage, claim, U, status=status)
        assert await storage.units.interrupt_children([S2], most=9) == [], "the seat is the parent's"
        found = await storage.units.interrupt_children([S1, S2], most=9)
        assert sorted(found) == [(unit_key("one child"), S2), (unit_key("two child"), S2)]
        for which in ("one child", "two child"):
            row = await stored_unit(storage, unit_key(which))
            assert (row.interrupting, row.status, row.wake_at) == (True, "running", None)
        assert not (await stored_unit(storage, unit_key("stranger"))).interrupting
        assert (await stored_unit(storage, unit_key("over child"))).status == "done"
        assert await storage.units.interrupt_children([S1, S2], most=9) == []

    async def test_those_of_a_parent_that_is_done_go_on(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await start_unit(storage, "child", parent=U, waited_as="d")
        await end_unit(storage, claim, U)
        assert await storage.units.interrupt_children([S1], most=9) == []
        assert not (await stored_unit(storage, unit_key("child"))).interrupting

    async def test_so_many_at_a_time_until_none_is_left(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage)
        await start_unit(storage, "childless")
        for which in range(5):
            await start_unit(storage, f"child {which}", parent=U, waited_as=f"{which}")
        await end_unit(storage, claim, U, status="failed")
        await end_unit(storage, claim, unit_key("childless"), status="failed")
        found: list[tuple[str, str]] = []
        sizes: list[int] = []
        while not sizes or sizes[-1]:
            told = await storage.units.interrupt_children([S1], most=2)
            sizes.append(len(told))
            found += told
        assert sizes == [2, 2, 1, 0]
        assert sorted(unit for unit, _ in found) == [unit_key(f"child {which}") for which in range(5)]
