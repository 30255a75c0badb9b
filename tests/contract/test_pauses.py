"""Pauses of tasks, entity types and groups on every engine: what is stored, and what no claim passes by (T9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.jobs import ONE, TWO, B, Desk, insert, job, joined, numbers, opened_desk, take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.contracts.jobs import QueueRow
    from coterie.storage.interface import Storage


@pytest.fixture
async def desk(storage: Storage) -> AsyncIterator[Desk]:
    async with opened_desk(storage, concurrency=5) as desk:
        yield desk


async def row_of(storage: Storage) -> QueueRow:
    row = await storage.jobs.queue(ONE)
    assert row is not None
    return row


async def test_pauses_are_stored_once_and_listed_by_kind_and_name(storage: Storage) -> None:
    pauses = storage.pauses
    assert await pauses.pause("task", "resize") is True
    assert await pauses.pause("task", "resize") is False
    assert await pauses.pause("entity", "resize") is True
    assert await pauses.pause("group", "batch") is True
    found = await pauses.list()
    assert [(each.kind, each.name) for each in found] == [("entity", "resize"), ("group", "batch"), ("task", "resize")]
    now = await storage.now()
    assert all(each.paused_at <= now for each in found)
    assert await pauses.resume("task", "resize") is True
    assert await pauses.resume("task", "resize") is False
    assert [(each.kind, each.name) for each in await pauses.list()] == [("entity", "resize"), ("group", "batch")]


@pytest.mark.parametrize("kind", ["task", "group"])
async def test_no_job_is_claimed_by_whoever_does_not_know_of_the_pause(storage: Storage, desk: Desk, kind: str) -> None:
    await insert(storage, job(1))
    name = "resize" if kind == "task" else "default"
    before = await row_of(storage)
    assert not before.paused_tasks
    assert not before.is_paused
    await storage.pauses.pause(kind, name)  # type: ignore[arg-type]
    assert (await desk.start(1)).outcome == "changed"
    row = await row_of(storage)
    assert row.stamp > before.stamp
    assert (row.paused_tasks, row.is_group_paused) == (("resize",) if kind == "task" else (), kind == "group")
    assert row.is_paused == (kind == "group")
    assert row.paused_at is None, "the queue itself is not"
    await storage.pauses.resume(kind, name)  # type: ignore[arg-type]
    after = await row_of(storage)
    assert not after.paused_tasks
    assert not after.is_paused
    desk.stamp = after.stamp
    assert numbers((await desk.start(1)).jobs) == [1]


async def test_a_pause_that_is_repeated_holds_up_claims_again(storage: Storage, desk: Desk) -> None:
    """Whoever paused first may have failed before it came to the queues; but on one file that is one commit."""
    await storage.pauses.pause("task", "resize")
    first = await row_of(storage)
    await storage.pauses.pause("task", "resize")
    assert (await row_of(storage)).stamp >= first.stamp
    assert (await row_of(storage)).paused_tasks == ("resize",)


async def test_an_entity_type_that_is_paused_concerns_no_jobs(storage: Storage, desk: Desk) -> None:
    await insert(storage, job(1))
    await storage.pauses.pause("entity", "resize")
    assert numbers((await desk.start(1)).jobs) == [1]


async def test_a_queue_that_is_stored_later_has_what_was_paused_before(storage: Storage) -> None:
    await storage.pauses.pause("task", "resize")
    await storage.pauses.pause("group", "default")
    async with joined(storage, B) as session:
        desk = Desk(storage, await take(session, B, TWO))
        row = await desk.define()
        assert (row.paused_tasks, row.is_paused) == (("resize",), True)
        other = await storage.jobs.set_limits(TWO, None)
        assert other is not None
        assert other.is_paused


async def test_each_poll_of_messages_tells_what_is_paused(storage: Storage) -> None:
    seat = "shard:default:0"
    due = await storage.messages.due({seat: None}, most=10)
    assert (due.paused_types, due.paused_groups) == ((), ())
    await storage.pauses.pause("entity", "Account")
    await storage.pauses.pause("group", "batch")
    await storage.pauses.pause("task", "resize")
    due = await storage.messages.due({seat: None}, most=10)
    assert (due.paused_types, due.paused_groups, due.rows) == (("Account",), ("batch",), ())
    await storage.pauses.resume("entity", "Account")
    assert (await storage.messages.due({}, most=10)).paused_types == ()
