"""Suspects, the dead, lists and retention, on every engine [C5, M4, m15, m17]."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from coterie.storage.contracts.messages import Commit, MessageFilter, Setback, Suspicion
from coterie.storage.interface import Claim
from tests.contract.messages import S1, S2, A, B, due_ids, evict, id_of, joined, look, message, register, statuses, take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from coterie.storage.contracts.messages import MessageRow, Status
    from coterie.storage.interface import Ownership, Storage
    from tests.contract.conftest import Passing

    Takes = Callable[[], Awaitable[Claim]]


@pytest.fixture
async def a(storage: Storage) -> AsyncIterator[Ownership]:
    async with joined(storage, A) as session:
        yield session


@pytest.fixture
async def b(storage: Storage, a: Ownership) -> AsyncIterator[Ownership]:
    async with joined(storage, B) as session:
        yield session


async def attempts(storage: Storage, *numbers: int) -> list[int]:
    rows = {row.id: row.attempts for row in await storage.messages.look([id_of(number) for number in numbers])}
    return [rows[id_of(number)] for number in numbers]


async def filled(storage: Storage, *numbers: int, entity: str = "alice", **more: str) -> None:
    at = await storage.now() - timedelta(seconds=60)
    for number in numbers:
        await storage.messages.insert(message(number, entity=entity, due_at=at, **more))


TYPES = {"Account": 1, "Nobody": 1}


async def suspicions(storage: Storage, *numbers: int) -> list[int]:
    rows = {row.id: row.suspicion for row in await storage.messages.fetch([id_of(number) for number in numbers])}
    return [rows[id_of(number)] for number in numbers]


async def judged(
    storage: Storage, claim: Claim, types: dict[str, int] | None = None, *, loss_limit: int = 3
) -> tuple[int, list[tuple[int, int, bool]]]:
    """How many became suspects; of those that counted a loss number, losses, and whether it is dead."""
    found = await storage.messages.suspect(claim, TYPES if types is None else types, loss_limit=loss_limit)
    return found.suspects, [(int(loss.id, 16), loss.losses, loss.is_dead) for loss in found.lost]


@pytest.fixture
async def takes(storage: Storage, a: Ownership, b: Ownership) -> Callable[[], Awaitable[Claim]]:
    """Takes the seat from whoever held it, and is lost itself at the next call."""
    sessions, turns = {A: a, B: b}, itertools.cycle((A, B))
    holders: list[str] = []

    async def take_over() -> Claim:
        me = next(turns)
        for holder in holders:
            await evict(sessions[me], holder)
            await register(sessions[holder], holder)
        holders[:] = [me]
        return await take(sessions[me], me)

    return take_over


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_c5_the_first_due_messages_of_each_entity_become_suspects_and_count_nothing(
    storage: Storage, takes: Takes, concurrency: int
) -> None:
    await takes()
    await filled(storage, 1, 2, 3, 4, 5)
    await filled(storage, 11, 12, entity="bob")
    await filled(storage, 21, seat=S2)
    await filled(storage, 31, entity_type="Other")
    await storage.messages.insert(message(41, entity="later", delay_s=60))
    types = {"Account": concurrency, "Nobody": 1}
    for _ in range(5):
        claim = await takes()
        for _ in range(2):
            await judged(storage, claim, types, loss_limit=1)
    expected = [1] * concurrency + [0] * (5 - concurrency)
    assert await suspicions(storage, 1, 2, 3, 4, 5) == expected
    assert await suspicions(storage, 11, 12, 21, 31, 41) == [1, int(concurrency > 1), 0, 0, 0]
    assert await attempts(storage, 1, 2, 11, 12) == [0, 0, 0, 0]
    assert await statuses(storage, 1, 2, 3, 11, 12) == ["pending"] * 5, "nobody has begun them"


async def test_c5_what_was_stored_or_fell_due_after_the_loss_is_no_suspect(
    storage: Storage, a: Ownership, b: Ownership
) -> None:
    """It cannot have been running; also if it says that it was due long ago."""
    first = await take(a, A)
    await filled(storage, 1)
    await filled(storage, 2, entity="bob")
    await storage.messages.setback(Setback(first, id_of(2), 1, "boom", 3600.0))
    await evict(b, A)
    await storage.messages.revive(entity_type="Account", entity_id="bob")
    await filled(storage, 3)
    await storage.messages.insert(message(4, entity="carol"))
    claim = await take(b, B)
    assert sorted(await due_ids(storage)) == [1, 2, 3, 4]
    assert await judged(storage, claim, {"Account": 2}) == (1, [])
    assert await suspicions(storage, 1, 2, 3, 4) == [1, 0, 0, 0]


async def test_c5_only_what_was_begun_alone_counts_a_loss_and_is_dead_at_the_limit(
    storage: Storage, takes: Takes
) -> None:
    """Twice under one epoch counts once; the others stay suspects."""
    await takes()
    await filled(storage, 1)
    await filled(storage, 11, entity="bob")
    for count in (1, 2):
        claim = await takes()
        assert (await judged(storage, claim))[1] == ([] if count == 1 else [(1, 1, False)])
        assert await storage.messages.mark(claim, id_of(11), Suspicion.ALONE)
        assert await storage.messages.mark(claim, id_of(11), Suspicion.BESIDE)
        assert await storage.messages.mark(claim, id_of(1), Suspicion.ALONE)
        assert await suspicions(storage, 1, 11) == [2, 3]
    claim = await takes()
    assert await judged(storage, claim, loss_limit=2) == (0, [(1, 2, True)])
    assert await judged(storage, claim, loss_limit=2) == (0, [])
    assert await statuses(storage, 1, 11) == ["dead", "pending"]
    row = await look(storage, 1)
    assert row is not None
    assert (row.losses, row.completed_at is None) == (2, False)
    assert [each.error for each in row.errors] == [
        f"its runner was lost when it ran this message alone, or was about to ({count} of {limit})"
        for count, limit in ((1, 3), (2, 2))
    ]
    assert await storage.messages.commit(Commit(claim, id_of(1))) == "gone"
    assert await storage.messages.mark(claim, id_of(1), Suspicion.ALONE) is False
    assert [found.id for found in await storage.messages.list(MessageFilter(status="dead"))] == [id_of(1)]
    assert (await storage.messages.backlog(most=9, dead_most=9)).dead == 1
    assert await storage.messages.revive(id=id_of(1)) == 1
    row = await look(storage, 1)
    assert row is not None
    assert (row.status, row.attempts, row.losses) == ("pending", 0, 0)
    assert await suspicions(storage, 1) == [1], "whoever runs it again does so with care"


async def test_c5_a_mark_of_another_epoch_than_that_of_the_lost_holder_counts_nothing(
    storage: Storage, takes: Takes
) -> None:
    """The holder in between never began it."""
    await takes()
    await filled(storage, 1)
    claim = await takes()
    assert await judged(storage, claim) == (1, [])
    assert await storage.messages.mark(claim, id_of(1), Suspicion.ALONE)
    await takes()
    assert await judged(storage, await takes(), loss_limit=1) == (0, [])
    assert await suspicions(storage, 1) == [2]


async def test_c5_a_failed_attempt_or_its_end_clears_a_suspect(storage: Storage, takes: Takes) -> None:
    """Its process has survived it: what becomes of that process later says nothing about it."""
    await takes()
    await filled(storage, 1)
    await filled(storage, 11, entity="bob")
    claim = await takes()
    assert await judged(storage, claim) == (2, [])
    for number in (1, 11):
        assert await storage.messages.mark(claim, id_of(number), Suspicion.ALONE)
    assert await storage.messages.setback(Setback(claim, id_of(1), 1, "boom", 3600.0)) == "written"
    assert await storage.messages.commit(Commit(claim, id_of(11))) == "written"
    assert await judged(storage, await takes(), loss_limit=1) == (0, [])
    assert await suspicions(storage, 1) == [0]


async def test_c5_attempts_and_losses_have_each_their_own_allowance(storage: Storage, takes: Takes) -> None:
    await takes()
    await filled(storage, 1)
    claim = await takes()
    assert await storage.messages.setback(Setback(claim, id_of(1), 1, "boom", 0.0)) == "written"
    claim = await takes()
    await judged(storage, claim)
    assert await storage.messages.mark(claim, id_of(1), Suspicion.ALONE)
    later = await takes()
    assert await judged(storage, later) == (0, [(1, 1, False)])
    assert await storage.messages.setback(Setback(later, id_of(1), 2, "boom", None)) == "written"
    row = await look(storage, 1)
    assert row is not None
    assert (row.status, row.attempts, row.losses, len(row.errors)) == ("dead", 2, 1, 3)


async def test_suspicion_is_fenced(storage: Storage, a: Ownership) -> None:
    """C1."""
    await filled(storage, 1)
    claim = await take(a, A)
    for stale in (Claim(A, S1, claim.epoch + 1), Claim(B, S1, claim.epoch)):
        assert await judged(storage, stale) == (0, [])
        assert await storage.messages.mark(stale, id_of(1), Suspicion.ALONE) is False
    assert await judged(storage, claim, {}) == (0, [])
    assert await suspicions(storage, 1) == [0]


async def dead(storage: Storage, claim: Claim, *numbers: int) -> None:
    for number in numbers:
        assert await storage.messages.setback(Setback(claim, id_of(number), 4, "boom", None)) == "written"


async def test_a_dead_message_lives_again_without_attempts(storage: Storage, a: Ownership) -> None:
    claim = await take(a, A)
    await storage.messages.insert(message(1, key="k"))
    await dead(storage, claim, 1)
    found = await storage.messages.find("Account", "alice", "add", "k")
    assert found is not None
    assert found.status == "dead", "a dead one keeps its key"
    assert await storage.messages.revive(id=id_of(1)) == 1
    assert await storage.messages.revive(id=id_of(1)) == 0
    row = await look(storage, 1)
    assert row is not None
    assert (row.status, row.attempts, row.completed_at) == ("pending", 0, None)
    assert row.due_at <= await storage.now()
    assert await due_ids(storage) == [1]
    assert await storage.messages.setback(Setback(claim, id_of(1), 1, "boom", 0.0)) == "written"
    assert await storage.messages.commit(Commit(claim, id_of(1), b"ok")) == "written"
    assert await storage.messages.revive(id=id_of(1)) == 0
    assert await storage.messages.revive(id=id_of(2)) == 0


async def test_all_dead_messages_of_an_entity_live_again(storage: Storage, a: Ownership) -> None:
    """Those that wait for another attempt are due now; those that were sent for later are not."""
    claim = await take(a, A)
    await filled(storage, 1, 2, 3, 4)
    await filled(storage, 11, entity="bob")
    await storage.messages.insert(message(5, delay_s=60))
    await dead(storage, claim, 1, 2, 11)
    await storage.messages.setback(Setback(claim, id_of(3), 1, "boom", 60.0))
    assert await due_ids(storage) == [4]
    assert await storage.messages.revive(entity_type="Account", entity_id="alice") == 2
    assert sorted(await due_ids(storage)) == [1, 2, 3, 4]
    assert await attempts(storage, 1, 2, 3) == [0, 0, 1]
    assert await statuses(storage, 5, 11) == ["pending", "dead"]
    assert await storage.messages.revive(entity_type="Account", entity_id="alice") == 0


async def of_all_kinds(storage: Storage, a: Ownership) -> Claim:
    """1, 2 pending, 3, 4 done, 5, 6 dead; 7 done of bob's, 8 of another method."""
    claim = await take(a, A)
    await filled(storage, 1, 2, 3, 4, 5, 6)
    await filled(storage, 7, entity="bob")
    await filled(storage, 8, method="take")
    for number in (3, 4, 7):
        await storage.messages.commit(Commit(claim, id_of(number)))
    await dead(storage, claim, 5, 6)
    return claim


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (MessageFilter(), [1, 2, 3, 4, 5, 6, 7, 8]),
        (MessageFilter(status="pending"), [1, 2, 8]),
        (MessageFilter(status="done"), [3, 4, 7]),
        (MessageFilter(status="dead"), [5, 6]),
        (MessageFilter(entity_type="Account", entity_id="bob"), [7]),
        (MessageFilter(entity_type="Other"), []),
        (MessageFilter(method="take"), [8]),
        (MessageFilter(status="done", entity_id="alice", method="add"), [3, 4]),
        (MessageFilter(older_than_s=3600), []),
        (MessageFilter(older_than_s=0), [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
async def test_messages_are_listed_by_what_is_asked_in_order_of_their_ids(
    storage: Storage, a: Ownership, passing: Passing, chosen: MessageFilter, expected: list[int]
) -> None:
    await of_all_kinds(storage, a)
    await passing(0.005)
    rows = await storage.messages.list(chosen)
    assert [int(row.id, 16) for row in rows] == expected
    pages: list[MessageRow] = []
    after: str | None = None
    while page := await storage.messages.list(chosen, after=after, most=2):
        assert len(page) <= 2
        pages += page
        after = page[-1].id
    assert pages == rows
    back: list[MessageRow] = []
    while page := await storage.messages.list(chosen, after=back[-1].id if back else None, most=2, newest=True):
        assert len(page) <= 2
        back += page
    assert back == rows[::-1], "the newest first"


async def aged(storage: Storage, number: int, seconds: float) -> bool:
    """Whether a message ended longer ago than that: on a slow machine it may have, meanwhile."""
    row = await look(storage, number)
    assert row is not None
    assert row.completed_at is not None
    return await storage.now() - row.completed_at >= timedelta(seconds=seconds)


async def test_age_counts_from_the_end_if_there_was_one(storage: Storage, a: Ownership, passing: Passing) -> None:
    claim = await take(a, A)
    await filled(storage, 1, 2)
    await passing(0.5)
    await storage.messages.commit(Commit(claim, id_of(1)))
    rows = await storage.messages.list(MessageFilter(older_than_s=0.4))
    assert [row.id for row in rows] == [id_of(2)] or await aged(storage, 1, 0.4)


@pytest.mark.parametrize(
    ("status", "left"),
    [(None, [1, 2, 8]), ("pending", [1, 2, 3, 4, 5, 6, 7, 8]), ("done", [1, 2, 5, 6, 8]), ("dead", [1, 2, 3, 4, 7, 8])],
)
async def test_only_what_has_ended_is_removed(
    storage: Storage, a: Ownership, status: Status | None, left: list[int]
) -> None:
    await of_all_kinds(storage, a)
    removed = 0
    while count := await storage.messages.remove(MessageFilter(status=status), most=2):
        assert count <= 2
        removed += count
    assert removed == 8 - len(left)
    assert [int(row.id, 16) for row in await storage.messages.list(MessageFilter())] == left


async def test_messages_are_counted_up_to_a_bound(storage: Storage, a: Ownership) -> None:
    await of_all_kinds(storage, a)
    for chosen, expected in [
        (MessageFilter(), 8),
        (MessageFilter(status="pending"), 3),
        (MessageFilter(status="done"), 3),
        (MessageFilter(status="dead"), 2),
        (MessageFilter(status="dead", entity_type="Account", entity_id="bob"), 0),
        (MessageFilter(status="done", entity_type="Account", entity_id="bob"), 1),
        (MessageFilter(method="take"), 1),
        (MessageFilter(older_than_s=3600), 0),
        (MessageFilter(status="dead", older_than_s=3600), 0),
    ]:
        assert await storage.messages.count(chosen, most=100) == expected, chosen
        assert await storage.messages.count(chosen, most=1) == min(expected, 1), chosen


async def test_of_those_named_only_what_has_ended_so_is_discarded(storage: Storage, a: Ownership) -> None:
    await of_all_kinds(storage, a)
    named = [id_of(number) for number in (1, 3, 5, 6, 99)]
    assert await storage.messages.discard(named, "dead") == 2
    assert await storage.messages.discard(named, "dead") == 0
    assert await storage.messages.discard(named, "done") == 1
    assert [int(row.id, 16) for row in await storage.messages.list(MessageFilter())] == [1, 2, 4, 7, 8]


async def test_removing_goes_by_the_filter(storage: Storage, a: Ownership) -> None:
    await of_all_kinds(storage, a)
    assert await storage.messages.remove(MessageFilter(older_than_s=3600), most=10) == 0
    assert await storage.messages.remove(MessageFilter(entity_type="Account", entity_id="bob"), most=10) == 1
    assert [int(row.id, 16) for row in await storage.messages.list(MessageFilter())] == [1, 2, 3, 4, 5, 6, 8]


async def purged(
    storage: Storage, *, retention_s: float = 0.0, key_retention_s: float = 0.0, most: int = 2
) -> tuple[int, int]:
    """How many were purged in all steps, and how many steps it took."""
    total, after = 0, ""
    for step in range(1, 20):
        count, after = await storage.messages.purge(
            after=after, retention_s=retention_s, key_retention_s=key_retention_s, most=most
        )
        total += count
        if not after:
            return total, step
    raise AssertionError("it never ends")


async def test_what_was_done_long_enough_ago_is_purged_and_nothing_else(
    storage: Storage, a: Ownership, passing: Passing
) -> None:
    """Dead and pending ones stay."""
    await of_all_kinds(storage, a)
    await passing(0.005)
    assert (await purged(storage, retention_s=3600, key_retention_s=3600))[0] == 0
    assert (await purged(storage))[0] == 3
    assert [int(row.id, 16) for row in await storage.messages.list(MessageFilter())] == [1, 2, 5, 6, 8]
    assert await purged(storage, most=100) == (0, 1)


async def test_messages_with_a_key_have_a_retention_of_their_own(
    storage: Storage, a: Ownership, passing: Passing
) -> None:
    """A key is unique for the retention time, counted from the end of its message; a purged one is free."""
    claim = await take(a, A)
    await storage.messages.insert(message(1))
    await storage.messages.insert(message(2, key="k"))
    for number in (1, 2):
        await storage.messages.commit(Commit(claim, id_of(number)))
    await passing(0.005)
    assert (await purged(storage, retention_s=0, key_retention_s=3600))[0] == 1
    assert await statuses(storage, 1, 2) == [None, "done"]
    assert not (await storage.messages.insert(message(3, key="k"))).fresh
    assert (await purged(storage, retention_s=3600, key_retention_s=0))[0] == 1
    assert await statuses(storage, 2) == [None]
    assert (await storage.messages.insert(message(4, key="k"))).fresh


async def test_retention_counts_from_the_end(storage: Storage, a: Ownership, passing: Passing) -> None:
    claim = await take(a, A)
    await storage.messages.insert(message(1))
    await passing(0.5)
    await storage.messages.commit(Commit(claim, id_of(1)))
    row = await look(storage, 1)
    assert row is not None
    assert row.completed_at is not None
    count, _ = await purged(storage, retention_s=0.45, key_retention_s=0.45)
    if await storage.now() - row.completed_at < timedelta(seconds=0.45):
        assert count == 0
    await passing(0.5)
    count += (await purged(storage, retention_s=0.45, key_retention_s=0.45))[0]
    assert count == 1


async def test_a_purge_walks_in_steps_and_stops_where_all_is_too_young(
    storage: Storage, a: Ownership, passing: Passing
) -> None:
    """m17: ids begin with the time they were drawn, so what comes later is younger still."""
    claim = await take(a, A)
    for number in range(6):
        await storage.messages.insert(message(number))
        await storage.messages.commit(Commit(claim, id_of(number)))
    over = await storage.now()
    await passing(1.0)
    for number in range(6, 12):
        await storage.messages.insert(message(number))
        await storage.messages.commit(Commit(claim, id_of(number)))
    age_s = (await storage.now() - over).total_seconds()
    total, steps = await purged(storage, retention_s=age_s, key_retention_s=age_s)
    assert total == 6
    assert steps <= 4, "it did not stop"
    count, after = await storage.messages.purge(after=id_of(7), retention_s=0, key_retention_s=0, most=2)
    assert (count, after) == (2, id_of(9)), "past the id that it was given"
    assert await statuses(storage, 6, 7, 8, 9, 10) == ["done", "done", None, None, "done"]
