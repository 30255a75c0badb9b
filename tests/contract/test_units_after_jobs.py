"""Which suspended runs go on because the jobs of a map are over, on every engine (W13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.contract import units
from tests.contract.jobs import desk, end, id_of, insert, job, setback
from tests.contract.units import S1, S2, end_unit, grant, pending_step, start_unit, stored_unit, suspend_unit, unit_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.interface import Claim, Storage
    from tests.contract.jobs import Desk

__all__ = ["desk"]  # a fixture

U, BRANCH = unit_key(), "@0.3"


@pytest.fixture
async def claim(storage: Storage, desk: Desk) -> AsyncIterator[Claim]:
    async with units.joined(storage, "holder") as session:
        yield await grant(session, "holder")


def key(number: int, unit: str = U, life: int = 7, position: int = 0) -> str:
    return f"map:{unit}:{life}:{BRANCH}:{position}:{number}"


async def wait_for_jobs(storage: Storage, claim: Claim, *numbers: int, desk: Desk, **more: Any) -> None:
    """A suspended run that waits for jobs of these numbers; each of them is claimed."""
    await start_unit(storage, life=7)
    for number in numbers:
        await desk.begin(number, key=key(number), **more)
    place: dict[str, Any] = {"branch": BRANCH, "kind": "map", "name": "resize", "life": 7, "value": b"ids"}
    assert (await storage.units.step(pending_step(claim, U, **place))).told == "written"
    await suspend_unit(storage, claim, U)


async def over(storage: Storage, *seats: str) -> list[tuple[str, str]]:
    return list(await storage.units.after_jobs(seats or (S1, S2)))


async def finish(storage: Storage, *numbers: int) -> None:
    for row in await storage.jobs.fetch({id_of(number): 1 for number in numbers}):
        assert await storage.jobs.end(end(row)) == "written"


async def test_w13_a_run_is_found_when_the_last_of_its_jobs_has_ended(
    storage: Storage, desk: Desk, claim: Claim
) -> None:
    await wait_for_jobs(storage, claim, 1, 2, desk=desk)
    assert await over(storage) == []
    await finish(storage, 1)
    assert await over(storage) == []
    await finish(storage, 2)
    assert await over(storage) == [(U, S1)]
    assert await over(storage, S2) == [], "of another seat"
    assert await over(storage) == [(U, S1)], "until it goes on"
    await storage.units.resume(U)
    assert await over(storage) == []
    assert (await stored_unit(storage, U)).status == "running"


async def test_w13_a_run_is_found_when_one_of_its_jobs_has_failed(storage: Storage, desk: Desk, claim: Claim) -> None:
    await wait_for_jobs(storage, claim, 1, 2, desk=desk)
    (row,) = await storage.jobs.fetch({id_of(2): 1})
    assert await storage.jobs.setback(setback(row, 60.0)) == "written"
    assert await over(storage) == [], "it is tried again"
    (row,) = await storage.jobs.fetch({id_of(1): 1})
    assert await storage.jobs.setback(setback(row, None)) == "written"
    assert await over(storage) == [(U, S1)]


async def test_w13_a_job_that_was_discarded_or_cancelled_is_over(storage: Storage, desk: Desk, claim: Claim) -> None:
    await wait_for_jobs(storage, claim, 1, 2, desk=desk)
    assert (await storage.jobs.cancel(id_of(1), reply=b"c"))[0] == "cancelling"
    assert await over(storage) == []
    (row,) = await storage.jobs.fetch({id_of(2): 1})
    assert await storage.jobs.end(end(row, discarded=True)) == "written"
    assert await over(storage) == [(U, S1)]


async def test_w13_jobs_of_others_are_none_of_its_own(storage: Storage, desk: Desk, claim: Claim) -> None:
    """Of another life, place, item or task: they neither wake it nor hold it up."""
    await wait_for_jobs(storage, claim, 1, desk=desk)
    await insert(
        storage,
        job(11, key=key(1, life=8)),
        job(12, key=key(1, position=1)),
        job(13, key=key(1, unit=unit_key("two"))),
        job(14, key=key(1), task="other"),
        job(15),
    )
    assert await over(storage) == []
    await finish(storage, 1)
    assert await over(storage) == [(U, S1)]


async def test_w13_who_waits_no_longer_is_not_found(storage: Storage, desk: Desk, claim: Claim) -> None:
    await wait_for_jobs(storage, claim, 1, desk=desk)
    await finish(storage, 1)
    await storage.units.resume(U)
    place: dict[str, Any] = {"branch": BRANCH, "kind": "map", "name": "resize", "life": 7, "done": True}
    assert (await storage.units.step(pending_step(claim, U, **place))).told == "written"
    await suspend_unit(storage, claim, U)
    assert await over(storage) == []
    await end_unit(storage, claim, U)
    assert await over(storage) == []
