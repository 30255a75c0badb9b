"""Runs that have failed and go on, and runs that are held until somebody decides, on every engine (W9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage.contracts.units import UnitEnd, UnitRetry
from tests.contract.test_states import A
from tests.contract.units import (
    S1,
    S2,
    end_unit,
    grant,
    load_unit,
    pending_step,
    positions,
    resolve,
    runner_a,
    start_unit,
    stored_unit,
    suspend_unit,
    take_units,
    unit_key,
    write_step,
)

if TYPE_CHECKING:
    from coterie.storage.interface import Claim, Ownership, Storage

__all__ = ["runner_a"]  # fixtures

U = unit_key()
NOW_S = -60.0


def retry(unit: str = U, **options: Any) -> UnitRetry:
    return UnitRetry(**{"unit": unit, "life": 1, "retries": 0, "steps": (("", 1),), "values": ("paid",), **options})


async def failed(storage: Storage, claim: Claim, id: str = "one", **options: Any) -> None:
    """A run with three steps, of which the second has ended it, and two values."""
    unit = unit_key(id)
    await start_unit(storage, id, life=1, seat=claim.seat, **options)
    for position in range(3):
        await write_step(storage, claim, unit, position, error=b"e" if position == 1 else None)
    for name in ("paid", "other"):
        await resolve(storage, unit, name, life=1)
    await end_unit(storage, claim, unit, status="failed", error=b"e", failed_steps="[]")


class TestRetry:
    async def test_what_ended_it_goes_and_all_else_stays(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a)
        await failed(storage, claim)
        before = await stored_unit(storage, U)
        assert (before.status, before.failed_steps, before.retries) == ("failed", "[]", 0)
        assert await storage.units.retry([retry()]) == "retried"
        found = await load_unit(storage, claim, U)
        row = found.row
        assert (row.status, row.error, row.ended_at, row.failed_steps, row.retries) == ("running", None, None, "", 1)
        assert (row.life, row.payload, row.started_at) == (1, before.payload, before.started_at)
        assert positions(found) == [("", 0), ("", 2)]
        assert [each.name for each in found.deferreds] == ["other"]
        assert (await take_units(storage, claim)).rows == (row,)
        assert await resolve(storage, U, life=1) == "resolved", "it is the same life"

    async def test_a_late_end_of_the_try_before_does_not_end_it(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        end = UnitEnd(claim, U, "failed", error=b"e", life=1, retries=0)
        assert (await storage.units.end(end)).told == "written"
        assert await storage.units.retry([retry()]) == "retried"
        assert (await storage.units.end(end)).told == "over"
        assert (await stored_unit(storage, U)).status == "running"
        assert (await storage.units.end(UnitEnd(claim, U, "done", life=1, retries=1))).told == "written"

    @pytest.mark.parametrize("what", ["running", "done", "retried", "other life", "gone"])
    async def test_what_has_changed_meanwhile_is_not_retried(
        self, storage: Storage, runner_a: Ownership, what: str
    ) -> None:
        claim = await grant(runner_a)
        if what in ("running", "done"):
            await start_unit(storage, life=1)
            await write_step(storage, claim, U, 1)
        elif what != "gone":
            await failed(storage, claim)
        if what == "done":
            await end_unit(storage, claim, U)
        before = await storage.units.get(U)
        given: dict[str, Any] = {"retried": {"retries": 4}, "other life": {"life": 7}}.get(what, {})
        assert await storage.units.retry([retry(**given)]) == "changed"
        assert await storage.units.get(U) == before

    async def test_what_has_begun_to_undo_is_not_retried(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        await write_step(storage, claim, U, branch="undo", kind="compensation", value=None)
        await end_unit(storage, claim, U, status="failed", error=b"e")
        before = await stored_unit(storage, U)
        assert await storage.units.retry([retry()]) == "undone"
        assert await stored_unit(storage, U) == before

    async def test_all_of_a_family_or_none(self, storage: Storage, runner_a: Ownership) -> None:
        claim, other = await grant(runner_a), await grant(runner_a, A, S2)
        await start_unit(storage, life=1)
        await failed(storage, other, "child", parent=U, waited_as="paid")
        await storage.units.step(pending_step(claim, U, 1, kind="child", name="Order/child"))
        await end_unit(storage, claim, U, status="failed", error=b"e")
        child = retry(unit_key("child"), values=())
        assert await storage.units.retry([retry(), retry(unit_key("child"), retries=3)]) == "changed"
        assert (await stored_unit(storage, U)).status == "failed"
        assert await storage.units.retry([retry(), child]) == "retried"
        assert [(await stored_unit(storage, each)).status for each in (U, child.unit)] == ["running", "running"]
        assert (await load_unit(storage, claim, U)).deferreds == ()
        await suspend_unit(storage, claim, U, "paid")
        await end_unit(storage, other, child.unit, outcome=b"out")
        assert [each.value for each in (await load_unit(storage, claim, U)).deferreds] == [b"out"]
        assert (await stored_unit(storage, U)).status == "running"

    async def test_children_of_what_goes_on_are_not_interrupted(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        await start_unit(storage, "child", parent=U, waited_as="w", seat=S2)
        await end_unit(storage, claim, U, status="failed")
        assert await storage.units.retry([retry()]) == "retried"
        assert await storage.units.interrupt_children([S1], most=9) == []


class TestHeld:
    async def test_it_has_failed_and_stays_and_its_children_go_on(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        await start_unit(storage, "child", parent=U, waited_as="w", seat=S2)
        await end_unit(storage, claim, U, status="failed", error=b"e", held=True)
        assert await storage.units.interrupt_children([S1], most=9) == []
        await storage.units.purge(older_s=NOW_S, most=9)
        row = await stored_unit(storage, U)
        assert (row.status, row.held, row.error) == ("failed", True, b"e")
        assert await storage.units.retry([retry()]) == "retried"
        assert not (await stored_unit(storage, U)).held

    async def test_its_interruption_has_it_run_to_undo(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        late = UnitEnd(claim, U, "failed", error=b"e", life=1, retries=0, held=True)
        await storage.units.end(late)
        row = await storage.units.interrupt(U)
        assert row is not None
        assert (row.status, row.interrupting, row.held, row.ended_at) == ("running", True, False, None)
        assert (await storage.units.end(late)).told == "over", "an answer was lost, and it ends once"
        await end_unit(storage, claim, U, status="interrupted")
        assert (await storage.units.interrupt(U)) == await stored_unit(storage, U)
        await storage.units.purge(older_s=NOW_S, most=9)
        assert await storage.units.get(U) is None
