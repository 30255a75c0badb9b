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
    a,
    ask,
    b,
    ended,
    got,
    grant,
    key,
    listed,
    loaded,
    of,
    opened,
    resolved,
    started,
    stepped,
    suspended,
    taken,
    triggered,
)

if TYPE_CHECKING:
    from coterie.storage.contracts.units import UnitRow, UnitStatus
    from coterie.storage.interface import Ownership, Storage
    from tests.contract.conftest import Passing

__all__ = ["a", "b"]  # fixtures

U = key()
NEAR = timedelta(seconds=30)
NOW_S = -60.0
"""As age of what is purged: all that is there."""


async def ids(storage: Storage, **options: Any) -> list[str]:
    return [row.id for row in await listed(storage, **options)]


class TestStart:
    async def test_it_is_stored_and_found_by_whoever_holds_its_seat(self, storage: Storage, a: Ownership) -> None:
        await started(storage, "parent", seat=S2)
        told = await storage.units.start(of(version="2.1", parent=key("parent"), waited_as="w"))
        assert told.told == "started"
        row = told.row
        assert (row.unit, row.kind, row.name, row.id, row.seat) == (U, "workflow", "Order", "one", S1)
        assert (row.status, row.payload, row.version) == ("running", b"\x00\xffpay", "2.1")
        assert (row.interrupting, row.parent) == (False, key("parent"))
        assert (row.value, row.error, row.ended_at, row.wake_at, row.steps) == (None, None, None, None, 0)
        assert abs(row.started_at - await storage.now()) < NEAR
        assert row.started_at <= row.changed_at <= await storage.now()
        assert await got(storage, U) == row
        assert (await taken(storage, await grant(a))).rows == (row,)

    async def test_nobody_need_hold_anything(self, storage: Storage) -> None:
        assert (await storage.units.start(of())).told == "started"

    async def test_the_same_again_is_there_as_it_is_now(self, storage: Storage, a: Ownership) -> None:
        """0.6: perhaps by this very call, whose answer was lost. Only the payload's digest counts."""
        claim, row = await grant(a), await started(storage)
        again = await storage.units.start(of(version="3", parent="p", waited_as="w"))
        assert (again.told, again.row) == ("there", row)
        await stepped(storage, claim, U)
        await suspended(storage, claim, U)
        now = await got(storage, U)
        again = await storage.units.start(of())
        assert (again.told, again.row) == ("there", now)
        await ended(storage, claim, U, value=b"v")
        over = await storage.units.start(of())
        assert (over.told, over.row.status, over.row.value) == ("there", "done", b"v")

    @pytest.mark.parametrize("status", ["running", "suspended", "done"])
    async def test_another_payload_is_a_conflict(self, storage: Storage, a: Ownership, status: str) -> None:
        claim, _ = await grant(a), await started(storage)
        if status == "suspended":
            await suspended(storage, claim, U)
        elif status == "done":
            await ended(storage, claim, U)
        before = await got(storage, U)
        told = await storage.units.start(of(payload=b"other", digest=b"other"))
        assert (told.told, told.row) == ("conflict", before)
        assert await got(storage, U) == before

    async def test_of_many_at_once_one_starts(self, storage: Storage) -> None:
        async with asyncio.timeout(30):
            tolds = await asyncio.gather(
                *(storage.units.start(of(payload=str(n).encode(), digest=str(n % 2).encode())) for n in range(10))
            )
        (first,) = [each for each in tolds if each.told == "started"]
        same = first.row.payload[-1] % 2
        for number, each in enumerate(tolds):
            assert each.row == first.row
            if each is not first:
                assert each.told == ("there" if number % 2 == same else "conflict")
        assert await ids(storage) == ["one"]

    async def test_a_child_of_a_parent_that_is_over_does_not_start(self, storage: Storage, a: Ownership) -> None:
        claim, _ = await grant(a), await started(storage)
        child = of("child", parent=U, waited_as="d")
        assert (await storage.units.start(child)).told == "started"
        await ended(storage, claim, U, status="failed")
        assert (await storage.units.start(child)).told == "there"
        for parent in (U, key("never")):
            with pytest.raises(ParentEnded):
                await storage.units.start(of("late", parent=parent, waited_as="d"))
        assert await storage.units.get(key("late")) is None


class TestResolve:
    async def test_what_runs_learns_of_it_and_who_holds_it_is_told(self, storage: Storage, a: Ownership) -> None:
        claim, before = await grant(a), await started(storage)
        told = await storage.units.resolve(U, "paid", value=b"\x00", error=None)
        assert told == ResolveResult("resolved", S1)
        assert (await loaded(storage, claim, U)).deferreds == (DeferredRow("paid", b"\x00", None),)
        row = await got(storage, U)
        assert row.status == "running"
        assert row.changed_at >= before.changed_at

    @pytest.mark.parametrize("wake_s", [None, 3600.0])
    async def test_what_is_suspended_goes_on(self, storage: Storage, a: Ownership, wake_s: float | None) -> None:
        claim, _ = await grant(a), await started(storage)
        await suspended(storage, claim, U, "paid", wake_s=wake_s)
        assert await storage.units.resolve(U, "paid", value=None, error="no") == ResolveResult("resolved", S1)
        row = await got(storage, U)
        assert (row.status, row.wake_at) == ("running", None)
        assert (await taken(storage, claim)).rows == (row,)
        assert (await loaded(storage, claim, U)).deferreds == (DeferredRow("paid", None, "no"),)

    async def test_before_there_is_a_unit_there_is_nothing_to_resolve(self, storage: Storage, a: Ownership) -> None:
        for unit in (U, f"{LEADER}/one", f"{CRON}/manual/2026-01-01T00:00:00+00:00/1", "cron:odd"):
            assert await storage.units.resolve(unit, "paid", value=b"v", error=None) == ResolveResult("over", None)
        claim, _ = await grant(a), await started(storage)
        assert (await loaded(storage, claim, U)).deferreds == ()

    async def test_w15_it_is_for_one_life(self, storage: Storage, a: Ownership, passing: Passing) -> None:
        claim, row = await grant(a), await started(storage, life=5)
        assert row.life == 5
        for life in (0, 4, 6):
            assert await resolved(storage, U, life=life) == "over"
        await suspended(storage, claim, U, "paid")
        assert await resolved(storage, U, life=4) == "over"
        assert (await got(storage, U)).status == "suspended"
        assert await resolved(storage, U, life=5) == "resolved"
        await ended(storage, claim, U)
        await passing(0.5)
        await storage.units.purge(older_s=0.25, most=9)
        assert await resolved(storage, U, "other", life=5) == "over"
        await started(storage, life=6)
        assert await resolved(storage, U, "other", life=5) == "over"
        await suspended(storage, claim, U, "paid")
        assert (await loaded(storage, claim, U)).deferreds == ()

    async def test_w15_the_next_unit_of_a_leader_has_another_life(self, storage: Storage, a: Ownership) -> None:
        claim = await grant(a, A, LEADER)
        unit = f"{LEADER}/one"
        for life in (7, 8):
            found = await storage.units.open(claim, unit=unit, kind="leader", name="importer", id="one", life=life)
            again = await storage.units.open(claim, unit=unit, kind="leader", name="importer", id="one", life=9)
            assert found is not None
            assert again is not None
            assert found.row.life == again.row.life == life
            assert await resolved(storage, unit, life=15 - life) == "over"
            assert await resolved(storage, unit, life=life) == "resolved"
            await ended(storage, claim, unit)

    async def test_a_tick_that_is_over_takes_nothing(self, storage: Storage, a: Ownership) -> None:
        claim = await grant(a, A, CRON)
        unit, life = await triggered(storage, claim)
        tick = tick_of_unit(unit)
        assert tick is not None
        note = TickNote(claim, "nightly", tick.kind, tick.at, tick.seq, attempt=1, outcome="ran")
        assert await storage.ticks.note(note) == "written"
        assert await resolved(storage, unit, life=life) == "over"

    @pytest.mark.parametrize("first", [{"value": b"1"}, {"value": None, "error": "no"}, {"value": b""}])
    async def test_the_first_one_counts(self, storage: Storage, a: Ownership, first: dict[str, Any]) -> None:
        claim, _ = await grant(a), await started(storage)
        assert await resolved(storage, U, **first) == "resolved"
        await suspended(storage, claim, U, "other")
        before = await loaded(storage, claim, U)
        assert await resolved(storage, U, value=b"2") == "already"
        assert await resolved(storage, U, value=None, error="late") == "already"
        after = await loaded(storage, claim, U)
        assert (after.row, after.deferreds) == (before.row, before.deferreds), "it has woken nobody"
        assert after.deferreds == (DeferredRow("paid", first["value"], first.get("error")),)
        assert await resolved(storage, U, "Paid") == "resolved", "names are exact"

    async def test_of_many_at_once_one_counts(self, storage: Storage, a: Ownership) -> None:
        claim, _ = await grant(a), await started(storage)
        await suspended(storage, claim, U)
        async with asyncio.timeout(30):
            tolds = await asyncio.gather(*(resolved(storage, U, value=str(n).encode()) for n in range(10)))
        assert sorted(tolds) == ["already"] * 9 + ["resolved"]
        (row,) = (await loaded(storage, claim, U)).deferreds
        assert row.value == str(tolds.index("resolved")).encode()

    @pytest.mark.parametrize("status", ["done", "failed", "interrupted"])
    async def test_what_is_over_takes_nothing(self, storage: Storage, a: Ownership, status: str) -> None:
        claim, _ = await grant(a), await started(storage)
        assert await resolved(storage, U) == "resolved"
        await ended(storage, claim, U, status=status)
        before = await got(storage, U)
        assert await resolved(storage, U) == "over", "though it has been resolved"
        assert await resolved(storage, U, "other") == "over"
        found = await loaded(storage, claim, U)
        assert (found.row, found.deferreds) == (before, ())

    async def test_a_leader_that_runs_is_woken_on_its_seat(self, storage: Storage, a: Ownership) -> None:
        claim = await grant(a, A, LEADER)
        unit = (await opened(storage, claim)).row.unit
        assert await storage.units.resolve(unit, "paid", value=b"v", error=None) == ResolveResult("resolved", LEADER)


class TestInterruptAndResume:
    async def test_what_runs_is_asked_to_end(self, storage: Storage) -> None:
        before = await started(storage)
        row = await storage.units.interrupt(U)
        assert row is not None
        assert (row.status, row.interrupting, row.ended_at) == ("running", True, None)
        assert row.changed_at >= before.changed_at
        assert await got(storage, U) == row
        again = await storage.units.interrupt(U)
        assert again is not None
        assert (again.status, again.interrupting) == ("running", True)

    async def test_what_is_suspended_goes_on_to_end(self, storage: Storage, a: Ownership) -> None:
        claim, _ = await grant(a), await started(storage)
        await suspended(storage, claim, U, wake_s=3600.0)
        row = await storage.units.interrupt(U)
        assert row is not None
        assert (row.status, row.interrupting, row.wake_at) == ("running", True, None)
        assert (await taken(storage, claim)).rows == (row,)
        assert (await loaded(storage, claim, U)).row == row

    async def test_a_suspended_one_goes_on_when_asked(self, storage: Storage, a: Ownership) -> None:
        claim, _ = await grant(a), await started(storage)
        await suspended(storage, claim, U, wake_s=3600.0)
        row = await storage.units.resume(U)
        assert row is not None
        assert (row.status, row.interrupting, row.wake_at) == ("running", False, None)
        assert (await taken(storage, claim)).rows == (row,)
        assert await storage.units.resume(U) == row, "what runs stays as it is"

    async def test_what_is_over_stays_as_it_is(self, storage: Storage, a: Ownership) -> None:
        claim, _ = await grant(a), await started(storage)
        await ended(storage, claim, U)
        before = await got(storage, U)
        assert await storage.units.interrupt(U) == before
        assert await storage.units.resume(U) == before
        assert await got(storage, U) == before

    async def test_there_is_no_such_workflow(self, storage: Storage, a: Ownership) -> None:
        claim = await grant(a, A, LEADER)
        unit = (await opened(storage, claim)).row
        for missing in (U, unit.unit):
            assert await storage.units.interrupt(missing) is None
            assert await storage.units.resume(missing) is None
        assert await got(storage, unit.unit) == unit
        assert await storage.units.get(U) is None


class TestList:
    async def test_those_that_changed_last_come_first(self, storage: Storage, a: Ownership, passing: Passing) -> None:
        claim = await grant(a)
        for which in ("one", "two", "three"):
            await started(storage, which)
            await passing(0.002)
        assert await ids(storage) == ["three", "two", "one"]
        await storage.units.interrupt(key("one"))
        await passing(0.002)
        assert await ids(storage) == ["one", "three", "two"]
        await stepped(storage, claim, key("three"))  # its rows are its own: that of its unit stays as it is
        await passing(0.002)
        assert await ids(storage) == ["one", "three", "two"]
        await resolved(storage, key("two"))
        await passing(0.002)
        assert await ids(storage) == ["two", "one", "three"]
        await suspended(storage, claim, key("three"))
        await passing(0.002)
        assert await ids(storage) == ["three", "two", "one"]
        await ended(storage, claim, key("one"))
        await passing(0.002)
        assert await ids(storage) == ["one", "three", "two"]
        assert await ids(storage, most=2) == ["one", "three"]
        assert await ids(storage, most=0) == []
        rows = await listed(storage)
        assert rows == [await got(storage, row.unit) for row in rows]

    async def test_only_those_that_are_asked_for(self, storage: Storage, a: Ownership, passing: Passing) -> None:
        claim, leader = await grant(a), await grant(a, A, LEADER)
        statuses: list[UnitStatus] = ["running", "suspended", "done", "failed", "interrupted"]
        for status in statuses:
            unit = (await started(storage, status, name=f"Order {status}")).unit
            if status == "suspended":
                await suspended(storage, claim, unit)
            elif status != "running":
                await ended(storage, claim, unit, status=status)
        await opened(storage, leader, "r1")
        for status in statuses[1:]:
            assert await ids(storage, status=status) == [status]
        assert sorted(await ids(storage, status="running")) == ["r1", "running"]
        assert await ids(storage, name="Order done") == ["done"]
        assert await ids(storage, name="importer") == ["r1"]
        assert await ids(storage, name="order done") == []
        assert await ids(storage, name="Order done", status="failed") == []
        assert await ids(storage, name="Order done", status="done", older_s=0.0) == ["done"]
        await passing(0.1)
        await started(storage, "young")
        assert len(await ids(storage, older_s=0.1)) == 6
        assert "young" not in await ids(storage, older_s=0.1)
        assert await ids(storage, older_s=3600.0) == []

    async def test_its_age_counts_from_its_start(self, storage: Storage, a: Ownership, passing: Passing) -> None:
        claim, _ = await grant(a), await started(storage)
        await passing(0.1)
        await stepped(storage, claim, U)
        assert await ids(storage, older_s=0.1) == ["one"]

    async def test_one_that_is_not_there(self, storage: Storage) -> None:
        assert await storage.units.get(U) is None
        assert await listed(storage) == []


class TestPurge:
    async def purged(self, storage: Storage, **options: Any) -> list[str]:
        return sorted((await storage.units.purge(**{"older_s": NOW_S, "most": 100, **options})).abandoned)

    async def test_what_ended_long_ago_goes_with_all_that_was_its_own(self, storage: Storage, a: Ownership) -> None:
        """W5: who starts it again begins anew."""
        claim, _ = await grant(a), await started(storage)
        await stepped(storage, claim, U)
        await resolved(storage, U)
        await ended(storage, claim, U, value=b"old")
        assert await self.purged(storage, older_s=3600.0) == []
        assert (await got(storage, U)).value == b"old"
        assert await self.purged(storage) == []
        assert await storage.units.get(U) is None
        assert await storage.units.load(claim, U) is None
        anew = await storage.units.start(of(payload=b"new", digest=b"new"))
        assert (anew.told, anew.row.payload, anew.row.steps) == ("started", b"new", 0)
        found = await loaded(storage, claim, U)
        assert (found.steps, found.deferreds) == ((), ())
        assert (await stepped(storage, claim, U)).told == "written"
        assert await resolved(storage, U) == "resolved"

    async def test_what_goes_on_stays_however_old(self, storage: Storage, a: Ownership) -> None:
        """W3: also while it is suspended, with nobody that will ever resolve it."""
        claim = await grant(a)
        for which in ("running", "suspended"):
            await started(storage, which)
            await stepped(storage, claim, key(which))
            await resolved(storage, key(which))
        await suspended(storage, claim, key("suspended"), "never")
        before = [await loaded(storage, claim, key(which)) for which in ("running", "suspended")]
        assert await self.purged(storage) == []
        after = [await loaded(storage, claim, key(which)) for which in ("running", "suspended")]
        assert [(each.row, each.steps, each.deferreds) for each in after] == [
            (each.row, each.steps, each.deferreds) for each in before
        ]

    async def test_what_was_abandoned_goes_and_is_told(self, storage: Storage, a: Ownership, passing: Passing) -> None:
        """Units of leaders and ticks with which nobody has gone on."""
        claim = await grant(a, A, LEADER)
        old = (await opened(storage, claim, "old")).row.unit
        alive = (await opened(storage, claim, "alive")).row.unit
        await stepped(storage, claim, old)
        await resolved(storage, old)
        await passing(0.5)
        await stepped(storage, claim, alive)
        assert await self.purged(storage, older_s=0.25) == [old]
        assert await storage.units.get(old) is None
        assert len((await loaded(storage, claim, alive)).steps) == 1
        anew = await opened(storage, claim, "old")
        assert (anew.steps, anew.deferreds) == ((), ())
        assert await self.purged(storage) == sorted([old, alive])

    async def test_a_unit_opened_again_is_not_abandoned(self, storage: Storage, a: Ownership, passing: Passing) -> None:
        """Also if its leader was away for longer than that, and its next step takes its time."""
        claim = await grant(a, A, LEADER)
        unit = (await opened(storage, claim, "old")).row.unit
        await stepped(storage, claim, unit)
        await passing(0.5)
        again = await opened(storage, claim, "old")
        assert await self.purged(storage, older_s=0.25) == []
        assert len((await loaded(storage, claim, unit)).steps) == len(again.steps) == 1

    async def test_what_waits_is_not_abandoned(self, storage: Storage, a: Ownership, passing: Passing) -> None:
        """A sleep of a week, or a deferred without an end; one whose time was over long ago is."""
        claim = await grant(a, A, LEADER)
        units = {each: (await opened(storage, claim, each)).row.unit for each in ("week", "ever", "over")}
        await stepped(storage, claim, units["week"], kind="sleep", done=False, due_s=3600.0)
        await stepped(storage, claim, units["ever"], kind="deferred", done=False)
        await stepped(storage, claim, units["over"], kind="sleep", done=False, due_s=0.0)
        await passing(0.5)
        assert await self.purged(storage, older_s=0.25) == [units["over"]]

    async def test_values_for_what_never_began_go(self, storage: Storage, a: Ownership) -> None:
        claim = await grant(a, A, CRON)
        ticks = [await triggered(storage, claim) for _ in ("never", "soon")]
        for unit, life in ticks:
            assert await resolved(storage, unit, life=life) == "resolved"
        (never, its_life), (soon, life) = ticks
        assert await storage.units.open(claim, unit=soon, kind="tick", name="nightly", id="1", life=life) is not None
        assert await self.purged(storage, older_s=3600.0) == []
        assert await resolved(storage, never, life=its_life) == "already"
        await stepped(storage, claim, soon)  # else it would count as abandoned
        await storage.units.purge(older_s=0.0, most=9)
        assert await resolved(storage, never, life=its_life) == "resolved", "it was purged"

    async def test_so_many_at_a_time_the_oldest_first(self, storage: Storage, a: Ownership, passing: Passing) -> None:
        claim = await grant(a)
        names = ["c", "a", "d", "b", "e"]
        for which in names:
            await started(storage, which)
        for which in names:
            await ended(storage, claim, key(which))
            await passing(0.002)
        assert await self.purged(storage, most=2) == []
        assert sorted(await ids(storage)) == ["b", "d", "e"]
        assert await self.purged(storage, most=0) == []
        assert len(await ids(storage)) == 3
        await self.purged(storage, most=3)
        assert await ids(storage) == []

    async def test_whoever_purges_at_once_with_others_breaks_nothing(self, storage: Storage, a: Ownership) -> None:
        """Every runner of the cluster does."""
        claim, leader = await grant(a), await grant(a, A, LEADER)
        for number in range(12):
            unit = (await started(storage, str(number))).unit
            await stepped(storage, claim, unit)
            if number % 2:
                await ended(storage, claim, unit)
        abandoned = [(await opened(storage, leader, str(number))).row.unit for number in range(6)]
        async with asyncio.timeout(60):
            tolds = await asyncio.gather(*(self.purged(storage, most=4) for _ in range(5)))
            tolds.append(await self.purged(storage))
        assert sorted(unit for told in tolds for unit in told) == sorted(abandoned), "each is told once"
        assert sorted(await ids(storage), key=int) == [str(number) for number in range(0, 12, 2)]
        for number in range(0, 12, 2):
            assert len((await loaded(storage, claim, key(str(number)))).steps) == 1


class TestNames:
    @pytest.mark.parametrize("name", HOSTILE)
    async def test_whatever_they_are_they_are_kept_as_they_are(self, storage: Storage, a: Ownership, name: str) -> None:
        """Names are data, never part of a statement or of a pattern."""
        claim, other = await grant(a), await grant(a, A, S2)
        unit, parent = f"workflow:{name}", f"workflow:parent {name}"
        assert (await storage.units.start(of(unit=parent, seat=S2))).told == "started"
        plain = await started(storage, "plain")
        new = of(unit=unit, name=name, id=name, version=name, parent=parent, waited_as=name)
        assert (await storage.units.start(new)).told == "started"
        assert (await storage.units.start(new)).told == "there"
        row: UnitRow = await got(storage, unit)
        assert (row.unit, row.name, row.id, row.version, row.parent) == (unit, name, name, name, parent)
        assert await listed(storage, name=name) == [row]
        write = ask(claim, unit, branch=name, name=name, done=False, value=None)
        assert (await storage.units.step(write)).told == "written"
        done = await stepped(storage, claim, unit, branch=name, name=name)
        assert done.told == "written"
        await suspended(storage, claim, unit, name)
        assert await resolved(storage, unit, name, value=None, error=name) == "resolved"
        assert await resolved(storage, unit, name) == "already"
        found = await loaded(storage, claim, unit)
        assert (found.row.status, found.steps) == ("running", (done.row,))
        assert found.deferreds == (DeferredRow(name, None, name),)
        assert {row.unit for row in (await taken(storage, claim)).rows} == {unit, plain.unit}
        await suspended(storage, claim, unit, name, told="ready")
        await suspended(storage, other, parent, name)
        assert await storage.units.resume(parent) is not None
        await suspended(storage, other, parent, name)
        assert await ended(storage, claim, unit, outcome=b"out") is not None
        assert [each.name for each in (await loaded(storage, other, parent)).deferreds] == [name]
        assert (await got(storage, parent)).status == "running"
        assert (await storage.units.purge(older_s=NOW_S, most=9)).abandoned == ()
        assert await storage.units.get(unit) is None
        assert await got(storage, plain.unit) == plain


async def test_everybody_sees_the_steps_of_what_has_not_ended(storage: Storage, a: Ownership) -> None:
    claim = await grant(a)
    await started(storage)
    for position in (1, 0):
        await stepped(storage, claim, U, position)
    assert tuple(await storage.units.steps(U)) == (await loaded(storage, claim, U)).steps
    assert [each.position for each in await storage.units.steps(U)] == [0, 1]
    await ended(storage, claim, U)
    assert list(await storage.units.steps(U)) == []
    assert list(await storage.units.steps(key("nobody"))) == []


class TestInterruptChildren:
    """W10: whoever fails or is interrupted does not leave its children behind."""

    @pytest.mark.parametrize("status", ["failed", "interrupted"])
    async def test_those_of_a_parent_that_failed_or_was_interrupted_are_asked_to_end(
        self, storage: Storage, a: Ownership, status: str
    ) -> None:
        claim, _ = await grant(a), await started(storage)
        other = await grant(a, A, S2)
        for which in ("one child", "two child", "over child"):
            await started(storage, which, parent=U, waited_as=which, seat=S2)
        await started(storage, "stranger", seat=S2)
        await suspended(storage, other, key("two child"), "paid")
        await ended(storage, other, key("over child"))
        assert await storage.units.interrupt_children([S1, S2], most=9) == [], "it goes on"
        await ended(storage, claim, U, status=status)
        assert await storage.units.interrupt_children([S2], most=9) == [], "the seat is the parent's"
        found = await storage.units.interrupt_children([S1, S2], most=9)
        assert sorted(found) == [(key("one child"), S2), (key("two child"), S2)]
        for which in ("one child", "two child"):
            row = await got(storage, key(which))
            assert (row.interrupting, row.status, row.wake_at) == (True, "running", None)
        assert not (await got(storage, key("stranger"))).interrupting
        assert (await got(storage, key("over child"))).status == "done"
        assert await storage.units.interrupt_children([S1, S2], most=9) == []

    async def test_those_of_a_parent_that_is_done_go_on(self, storage: Storage, a: Ownership) -> None:
        claim, _ = await grant(a), await started(storage)
        await started(storage, "child", parent=U, waited_as="d")
        await ended(storage, claim, U)
        assert await storage.units.interrupt_children([S1], most=9) == []
        assert not (await got(storage, key("child"))).interrupting

    async def test_so_many_at_a_time_until_none_is_left(self, storage: Storage, a: Ownership) -> None:
        claim, _ = await grant(a), await started(storage)
        await started(storage, "childless")
        for which in range(5):
            await started(storage, f"child {which}", parent=U, waited_as=f"{which}")
        await ended(storage, claim, U, status="failed")
        await ended(storage, claim, key("childless"), status="failed")
        found: list[tuple[str, str]] = []
        sizes: list[int] = []
        while not sizes or sizes[-1]:
            told = await storage.units.interrupt_children([S1], most=2)
            sizes.append(len(told))
            found += told
        assert sizes == [2, 2, 1, 0]
        assert sorted(unit for unit, _ in found) == [key(f"child {which}") for which in range(5)]
