"""Runs that cannot go on until the program is another one, on every engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.storage.contracts.run_messages import RunMessage
from coterie.storage.contracts.units import Stuck
from tests.contract.test_states import A, B
from tests.contract.units import (
    S1,
    end_unit,
    foreign_claims,
    grant,
    runner_a,
    runner_b,
    start_unit,
    stored_unit,
    suspend_unit,
    take_units,
    unit_key,
)

if TYPE_CHECKING:
    from coterie.storage.interface import Claim, Ownership, Storage
    from tests.contract.conftest import Passing

__all__ = ["runner_a", "runner_b"]  # fixtures

U = unit_key()
WHY = b"NameError: name 'x' is not defined"


async def get_stuck(storage: Storage, claim: Claim, *, times: int = 1, wake_s: float = 600.0) -> None:
    why = Stuck(WHY, times)
    assert await storage.units.suspend(claim, U, waits=(), wake_s=wake_s, stuck=why) == "suspended"


async def of_stuck(storage: Storage) -> tuple[Any, ...]:
    row = await stored_unit(storage, U)
    return row.status, row.stuck, row.stuck_times


async def test_it_is_suspended_with_its_reason_until_it_is_due(
    storage: Storage, runner_a: Ownership, passing: Passing
) -> None:
    claim, _ = await grant(runner_a), await start_unit(storage)
    await get_stuck(storage, claim, times=3, wake_s=0.2)
    row = await stored_unit(storage, U)
    assert (row.status, row.stuck, row.stuck_times, row.error) == ("suspended", WHY, 3, None)
    assert row.wake_at is not None
    await passing(0.3)
    (taken,) = (await take_units(storage, claim)).rows
    assert (taken.status, taken.stuck_times) == ("running", 3), "how often in a row decides about its next pause"


async def test_the_next_holder_tries_it_at_once_and_counts_anew(
    storage: Storage, runner_a: Ownership, runner_b: Ownership
) -> None:
    claim, _ = await grant(runner_a), await start_unit(storage)
    await start_unit(storage, "waiting")
    await suspend_unit(storage, claim, unit_key("waiting"), wake_s=600.0)
    await get_stuck(storage, claim, times=3)
    assert (await take_units(storage, claim)).rows == ()
    for foreign in foreign_claims(claim):
        await storage.units.take([foreign], most=9, fresh=True)
    assert await of_stuck(storage) == ("suspended", WHY, 3)
    await runner_a.release(claim.seat, claim.epoch)
    later = await grant(runner_b, B)
    assert await storage.units.take([claim], most=9, fresh=True) == {}
    assert (await take_units(storage, later)).rows == ()
    (taken,) = (await storage.units.take([later], most=9, fresh=True))[S1].rows
    assert (taken.unit, taken.status, taken.stuck_times, taken.wake_at) == (U, "running", 0, None)
    assert (await stored_unit(storage, unit_key("waiting"))).status == "suspended", "it is not stuck"


async def test_whatever_else_wakes_a_run_wakes_it_too(storage: Storage, runner_a: Ownership) -> None:
    claim, _ = await grant(runner_a, A), await start_unit(storage)
    await get_stuck(storage, claim)
    await storage.units.resume(U)
    assert (await of_stuck(storage))[0] == "running"
    await get_stuck(storage, claim, times=2)
    await storage.run_messages.send(RunMessage(U, "approve", "m", b"v"))
    assert (await of_stuck(storage))[0] == "running"
    await get_stuck(storage, claim, times=3)
    await storage.units.interrupt(U)
    assert (await of_stuck(storage))[0] == "running"
    assert await storage.units.suspend(claim, U, waits=(), wake_s=9.0, stuck=Stuck(WHY, 4)) == "ready"


async def test_what_waits_again_or_is_over_is_not_stuck(storage: Storage, runner_a: Ownership) -> None:
    claim, _ = await grant(runner_a), await start_unit(storage)
    await get_stuck(storage, claim)
    await storage.units.resume(U)
    await suspend_unit(storage, claim, U)
    assert await of_stuck(storage) == ("suspended", None, 0)
    assert (await storage.units.take([claim], most=9, fresh=True))[S1].rows == ()
    await get_stuck(storage, claim)
    await end_unit(storage, claim, U)
    assert (await storage.units.take([claim], most=9, fresh=True))[S1].rows == ()
    assert (await of_stuck(storage))[:2] == ("done", None)
