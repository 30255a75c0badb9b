"""Runs that begin with steps of others, on every engine (W9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.storage.contracts.units import UnitFork
from tests.contract.units import (
    end_unit,
    grant,
    load_unit,
    new_start,
    positions,
    runner_a,
    start_unit,
    stored_unit,
    unit_key,
    write_step,
)

if TYPE_CHECKING:
    from coterie.storage.interface import Ownership, Storage

__all__ = ["runner_a"]  # fixtures

U, FORK = unit_key(), unit_key("fork")


async def fork(storage: Storage, **options: Any) -> str:
    steps = tuple(await storage.units.records(U))
    plain = {"start": new_start("fork", life=2), "source": U, "life": 1, "steps": steps}
    return await storage.units.fork(UnitFork(**{**plain, **options}))


async def test_it_begins_with_the_steps_as_they_are(storage: Storage, runner_a: Ownership) -> None:
    claim, _ = await grant(runner_a), await start_unit(storage, life=1)
    await write_step(storage, claim, U, attempts=2, runner="anna")
    await write_step(storage, claim, U, 1, value=None, error=b"e", branch="0")
    before = await storage.units.records(U)
    assert await fork(storage) == "started"
    found = await load_unit(storage, claim, FORK)
    assert (found.row.status, found.row.life, found.row.payload) == ("running", 2, b"\x00\xffpay")
    assert positions(found) == [("", 0), ("0", 1)]
    assert list(await storage.units.records(FORK)) == list(before)
    assert list(await storage.units.records(U)) == list(before)
    assert (await write_step(storage, claim, FORK, 1, life=2)).told == "written"


async def test_a_run_that_is_there_stays_as_it_is(storage: Storage, runner_a: Ownership) -> None:
    claim, _ = await grant(runner_a), await start_unit(storage, life=1)
    await write_step(storage, claim, U)
    there = await start_unit(storage, "fork", life=7)
    assert await fork(storage) == "there"
    assert await stored_unit(storage, FORK) == there


async def test_nothing_begins_of_what_is_gone_or_undone(storage: Storage, runner_a: Ownership) -> None:
    claim, _ = await grant(runner_a), await start_unit(storage, life=1)
    assert await fork(storage, life=3) == "gone"
    await write_step(storage, claim, U, branch="undo", kind="compensation", value=None)
    await end_unit(storage, claim, U, status="failed")
    assert await fork(storage) == "undone"
    await storage.units.purge(older_s=-60, most=9)
    assert await fork(storage) == "gone"
    assert await storage.units.get(FORK) is None
