"""Queues on every engine: definitions, limits set at run time, pauses, and the stamp that a claim must know (T9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage.contracts.jobs import QueueDefinition, QueueLimits
from coterie.storage.interface import Claim
from tests.contract.jobs import ONE, TWO, A, Desk, insert, job, joined, numbers, opened_desk, take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.interface import Storage
    from tests.contract.conftest import Passing


@pytest.fixture
async def desk(storage: Storage) -> AsyncIterator[Desk]:
    async with opened_desk(storage, concurrency=2) as desk:
        yield desk


def defined(**more: Any) -> QueueDefinition:
    return QueueDefinition(**{"seat": ONE, "group": "default", "fingerprint": "f", **more})


LIMITS: dict[str, Any] = {"concurrency": 5, "partition_concurrency": 2, "rate": 0.5, "burst": 4.0}


async def test_a_definition_is_stored_as_it_was_given(storage: Storage, desk: Desk) -> None:
    given = defined(age_s=60.0, takeover_delay_s=1.5, expected_wait_s=30.0, **LIMITS)
    row = await storage.jobs.define_queue(desk.claim, given)
    assert row is not None
    for name in QueueDefinition.__struct_fields__:
        assert getattr(row, name) == getattr(given, name), name
    assert row.defined == QueueLimits(**LIMITS)
    assert (row.is_set, row.paused_at, row.tokens) == (False, None, 4.0)
    assert row.refilled_at <= row.now <= await storage.now()
    found = await storage.jobs.queue(ONE)
    assert found is not None
    assert (found.stamp, found.concurrency, found.rate, found.burst) == (row.stamp, 5, 0.5, 4.0)


async def test_the_stamp_changes_with_what_a_claim_depends_on_and_only_then(storage: Storage, desk: Desk) -> None:
    stamps = [desk.stamp]

    async def follow(row: Any) -> bool:
        assert row is not None
        stamps.append(row.stamp)
        assert len(set(stamps)) == len(set(stamps[:-1])) + (stamps[-1] != stamps[-2]), "never used twice"
        return bool(stamps[-1] != stamps[-2])

    jobs = storage.jobs
    assert not await follow(await jobs.define_queue(desk.claim, defined(concurrency=2)))
    assert not await follow(await jobs.define_queue(desk.claim, None)), "what is stored stays"
    assert await follow(await jobs.define_queue(desk.claim, defined(concurrency=3)))
    assert await follow(await jobs.define_queue(desk.claim, defined(concurrency=3, fingerprint="f2")))
    assert await follow(await jobs.set_limits(ONE, QueueLimits(concurrency=1)))
    assert await follow(await jobs.pause(ONE, paused=True))
    assert not await follow(await jobs.pause(ONE, paused=True))
    assert await follow(await jobs.pause(ONE, paused=False))
    assert await follow(await jobs.set_limits(ONE, None))


async def test_limits_that_were_set_beat_the_definition_until_they_are_reset(storage: Storage, desk: Desk) -> None:
    row = await storage.jobs.set_limits(ONE, QueueLimits(**LIMITS))
    assert row is not None
    assert (row.is_set, row.concurrency, row.rate, row.tokens) == (True, 5, 0.5, 4.0)
    assert row.defined == QueueLimits(concurrency=2)
    await storage.jobs.pause(ONE, paused=True)
    row = await storage.jobs.define_queue(desk.claim, defined(concurrency=7, takeover_delay_s=9.0))
    assert row is not None
    assert (row.is_set, row.concurrency, row.takeover_delay_s) == (True, 5, 9.0)
    assert row.defined == QueueLimits(concurrency=7)
    assert row.paused_at is not None
    row = await storage.jobs.set_limits(ONE, None)
    assert row is not None
    assert (row.is_set, row.concurrency, row.rate, row.tokens) == (False, 7, None, None)
    assert row.paused_at is not None
    assert await storage.jobs.set_limits(TWO, QueueLimits()) is None
    assert await storage.jobs.pause(TWO, paused=True) is None
    assert await storage.jobs.queue(TWO) is None


async def test_a_queue_without_any_definition_has_no_limits(storage: Storage) -> None:
    async with joined(storage, A) as session:
        claim = await take(session, A, TWO)
        row = await storage.jobs.define_queue(claim, None)
        assert row is not None
        assert (row.seat, row.group, row.fingerprint, row.defined) == (TWO, "default", "", QueueLimits())
        assert (row.concurrency, row.partition_concurrency, row.rate, row.burst) == (None, None, None, None)
        assert (row.age_s, row.takeover_delay_s, row.expected_wait_s) == (3600.0, 0.0, None)
        one = await take(session, A, ONE)
        await storage.jobs.define_queue(one, defined())
        assert [each.seat for each in await storage.jobs.queues()] == [ONE, TWO]


async def test_only_the_holder_defines_a_queue(storage: Storage, desk: Desk) -> None:
    former = Claim(A, ONE, desk.claim.epoch - 1)
    assert await storage.jobs.define_queue(former, defined(concurrency=9)) is None
    assert await storage.jobs.define_queue(former, None) is None
    row = await storage.jobs.queue(ONE)
    assert row is not None
    assert row.concurrency == 2


async def test_a_bucket_is_neither_filled_nor_emptied_by_a_new_definition(storage: Storage, passing: Passing) -> None:
    """T2: `10/d` does not start anew with each deploy, or takeover."""
    async with opened_desk(storage, rate=0.001, burst=5.0) as desk:
        await insert(storage, *(job(number) for number in range(1, 10)))
        await desk.started(1, 2, 3)
        row = await desk.define(rate=0.002, burst=5.0)
        assert row.tokens == pytest.approx(2.0, abs=0.5)
        row = await desk.define(rate=0.002, burst=1.0)
        assert row.tokens == 1.0
        row = await desk.define(rate=0.002, burst=9.0)
        assert row.tokens == pytest.approx(1.0, abs=0.5)
        found = await storage.jobs.define_queue(desk.claim, None)
        assert found is not None
        assert found.tokens == row.tokens
        row = await desk.define(rate=1000.0, burst=9.0)
        await passing(0.1)
        assert numbers((await desk.start(*range(4, 10))).jobs) == [4, 5, 6, 7, 8, 9], "it fills at the new rate"


async def test_once_a_pause_has_returned_nothing_is_claimed(storage: Storage, desk: Desk) -> None:
    """T9: also by a holder that does not know of it, and by one that does."""
    await insert(storage, job(1))
    paused = await storage.jobs.pause(ONE, paused=True)
    assert paused is not None
    assert (await desk.start(1)).outcome == "changed"
    desk.stamp = paused.stamp
    assert (await desk.start(1)).outcome == "changed"
    resumed = await storage.jobs.pause(ONE, paused=False)
    assert resumed is not None
    assert resumed.paused_at is None
    assert (await desk.start(1)).outcome == "changed", "the pause may have been long"
    desk.stamp = resumed.stamp
    assert numbers((await desk.start(1)).jobs) == [1]
