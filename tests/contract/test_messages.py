"""Messages on every engine: stored once per key, found in order, and only while they are pending [M4]; STORE-04…10."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from coterie.storage.contracts.messages import Commit, Message, PendingMessages, Receipt, Setback
from coterie.storage.interface import Claim
from tests.contract.messages import CANCELLED, S1, S2, A, due_ids, id_of, joined, look, message, statuses, take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.interface import Ownership, Storage
    from tests.contract.conftest import Passing


@pytest.fixture
async def a(storage: Storage) -> AsyncIterator[Ownership]:
    async with joined(storage, A) as session:
        yield session


async def test_a_message_comes_back_as_it_was_given(storage: Storage) -> None:
    payload = bytes(range(256)) * 40
    given = message(7, entity="o'brien %\u202e", payload=payload, key="s:k", digest=b"\x00\xff", trace_id="t1")
    receipt = await storage.messages.insert(given)
    assert receipt == Receipt(id_of(7), fresh=True, due_at=receipt.due_at, now=receipt.now, digest=b"\x00\xff")
    row = await look(storage, 7)
    assert row is not None
    assert (row.id, row.seat, row.entity_type, row.entity_id) == (given.id, S1, "Account", given.entity_id)
    assert (row.method, row.payload, row.key, row.trace_id) == ("add", payload, "s:k", "t1")
    assert (row.status, row.attempts, row.errors, row.reply, row.completed_at) == ("pending", 0, (), None, None)
    assert row.due_at == row.sent_at == receipt.due_at
    (delivery,) = await storage.messages.fetch([given.id])
    assert (delivery.id, delivery.seat, delivery.payload, delivery.key) == (given.id, S1, payload, "s:k")
    assert (delivery.due_s, delivery.attempts, delivery.trace_id) == (receipt.due_at.timestamp(), 0, "t1")


async def test_a_message_without_key_and_trace_has_none(storage: Storage) -> None:
    await storage.messages.insert(message(1, payload=b""))
    row = await look(storage, 1)
    assert row is not None
    assert (row.key, row.trace_id, row.payload) == (None, None, b"")


async def test_instants_are_the_databases(storage: Storage) -> None:
    before = await storage.now()
    receipt = await storage.messages.insert(message(1))
    assert before <= receipt.due_at <= receipt.now <= await storage.now()
    assert receipt.due_at.tzinfo is not None
    late = await storage.messages.insert(message(2, delay_s=30.0))
    assert timedelta(seconds=29) < late.due_at - late.now <= timedelta(seconds=30)
    chosen = before + timedelta(hours=1, microseconds=7)
    fixed = await storage.messages.insert(message(3, due_at=chosen))
    assert fixed.due_at == chosen
    row = await look(storage, 3)
    assert row is not None
    assert row.due_at == chosen
    assert row.sent_at < chosen


async def test_an_id_that_is_there_already_is_ones_own_from_an_earlier_try(storage: Storage) -> None:
    """0.6: the answer of the first try was lost; with a key and without."""
    for given in (message(1), message(2, key="s:k", digest=b"d")):
        first = await storage.messages.insert(given)
        again = await storage.messages.insert(given)
        assert (again.id, again.fresh, again.due_at, again.status) == (given.id, True, first.due_at, "pending")
        assert again.digest == given.digest
    assert await due_ids(storage) == [1, 2]


async def test_a_key_that_is_there_already_gives_the_first_message(storage: Storage, a: Ownership) -> None:
    """M4: with its digest, status and reply, so that the sender can judge."""
    claim = await take(a, A)
    first = await storage.messages.insert(message(1, key="s:k", digest=b"one"))
    second = await storage.messages.insert(message(2, key="s:k", digest=b"other"))
    assert second == Receipt(id_of(1), fresh=False, due_at=first.due_at, now=second.now, digest=b"one")
    assert await statuses(storage, 1, 2) == ["pending", None]
    assert await storage.messages.commit(Commit(claim, id_of(1), b"reply")) == "written"
    third = await storage.messages.insert(message(3, key="s:k", digest=b"one"))
    assert (third.id, third.fresh, third.status, third.reply) == (id_of(1), False, "done", b"reply")
    own = await storage.messages.insert(message(1, key="s:k", digest=b"one"))
    assert (own.id, own.fresh, own.status, own.reply) == (id_of(1), True, "done", b"reply")


async def test_a_key_is_unique_for_entity_type_entity_and_method(storage: Storage) -> None:
    """m9."""
    others = [
        message(1, key="k"),
        message(2, key="k", entity="bob"),
        message(3, key="k", method="take"),
        message(4, key="k", entity_type="Order"),
        message(5, key="K"),
        message(6),
        message(7),
    ]
    assert all([(await storage.messages.insert(each)).fresh for each in others])
    receipt = await storage.messages.insert(message(8, key="k", entity="bob", seat=S2))
    assert (receipt.id, receipt.fresh) == (id_of(2), False)


async def test_a_hashed_key_and_a_plain_one_are_looked_up_alike(storage: Storage) -> None:
    """STORE-08: long keys come as 64 hexadecimal digits, short ones as they are."""
    for number, key in ((1, "s:" + "x" * 253), (2, "0123456789abcdef" * 4), (3, "s:käse")):
        stored = await storage.messages.insert(message(number, key=key, digest=b"d"))
        found = await storage.messages.find("Account", "alice", "add", key)
        assert found is not None
        assert (found.id, found.due_at, found.status, found.digest) == (stored.id, stored.due_at, "pending", b"d")
        row = await look(storage, number)
        assert row is not None
        assert row.key == key
    assert await storage.messages.find("Account", "alice", "add", "s:other") is None
    assert await storage.messages.find("Account", "bob", "add", "s:käse") is None


async def test_of_two_messages_with_one_key_in_one_group_the_first_wins(storage: Storage) -> None:
    """M3, M4: both get the receipt of the first, their neighbours get their own."""
    given = [message(n, key=f"k{n // 2}" if n < 40 else None, digest=b"%d" % n) for n in range(100)]
    receipts = await asyncio.gather(*map(storage.messages.insert, given))
    for number, receipt in enumerate(receipts):
        first = number - number % 2 if number < 40 else number
        assert (receipt.id, receipt.fresh, receipt.digest) == (id_of(first), first == number, b"%d" % first)
    assert len(await due_ids(storage)) == 80


async def test_messages_of_one_group_are_due_at_once_and_in_order_of_their_ids(storage: Storage) -> None:
    await asyncio.gather(*(storage.messages.insert(message(n)) for n in (5, 3, 9, 1, 7)))
    assert await due_ids(storage) == [1, 3, 5, 7, 9]


async def test_what_is_due_comes_by_seat_then_time_then_id(storage: Storage) -> None:
    now = await storage.now()
    ago = {1: 10, 2: 30, 3: 20, 4: 20}
    for number, seconds in ago.items():
        await storage.messages.insert(message(number, due_at=now - timedelta(seconds=seconds)))
    await storage.messages.insert(message(5, seat=S2, due_at=now - timedelta(seconds=60)))
    found = await storage.messages.due({S2: None, S1: None}, most=10)
    assert [(row.seat, int(row.id, 16)) for row in found.rows] == [(S1, 2), (S1, 3), (S1, 4), (S1, 1), (S2, 5)]
    assert found.rows[0] == PendingMessages(S1, id_of(2), now - timedelta(seconds=30), "Account", "alice")
    assert now <= found.now <= await storage.now()


async def test_a_sweep_goes_on_past_a_mark_seat_by_seat(storage: Storage) -> None:
    now = await storage.now()
    at = now - timedelta(seconds=10)
    for number in range(1, 6):
        await storage.messages.insert(message(number, due_at=at))
        await storage.messages.insert(message(10 + number, seat=S2, due_at=at))
    first = await storage.messages.due({S1: None, S2: (at, id_of(13))}, most=2)
    assert [int(row.id, 16) for row in first.rows] == [1, 2, 14, 15]
    second = await storage.messages.due({S1: (at, id_of(2)), S2: (at, id_of(15))}, most=2)
    assert [int(row.id, 16) for row in second.rows] == [3, 4]
    past = await storage.messages.due({S1: (at + timedelta(microseconds=1), "")}, most=2)
    assert past.rows == ()
    before = await storage.messages.due({S1: (at - timedelta(microseconds=1), "f" * 32)}, most=2)
    assert [int(row.id, 16) for row in before.rows] == [1, 2]


async def test_a_sweep_looks_as_far_ahead_as_it_is_asked(storage: Storage, passing: Passing) -> None:
    """m13: the next window only."""
    await storage.messages.insert(message(1, delay_s=0.2))
    await storage.messages.insert(message(2, delay_s=50))
    await storage.messages.insert(message(3, delay_s=500))
    assert await due_ids(storage) == []
    assert await due_ids(storage, ahead_s=60) == [1, 2]
    assert await due_ids(storage, ahead_s=600) == [1, 2, 3]
    await passing(0.25)
    assert await due_ids(storage) == [1]


async def test_only_the_seats_that_are_asked_for_are_read(storage: Storage) -> None:
    """STORE-04, STORE-05: of no seats nothing; the clock is told all the same."""
    await storage.messages.insert(message(1))
    await storage.messages.insert(message(2, seat=S2))
    assert await due_ids(storage, S2) == [2]
    assert await due_ids(storage, "singleton:none") == []
    before = await storage.now()
    nothing = await storage.messages.due({}, most=10)
    assert nothing.rows == ()
    assert before <= nothing.now <= await storage.now()
    assert await storage.messages.fetch([]) == []
    assert await storage.messages.look([]) == []


async def test_what_has_ended_is_not_read_again(storage: Storage, a: Ownership) -> None:
    """STORE-09, STORE-10: by sweep or by id; looking finds it with its reply."""
    claim = await take(a, A)
    for number in range(1, 4):
        await storage.messages.insert(message(number))
    row = await look(storage, 1)
    assert row is not None
    assert row.reply is None
    await storage.messages.commit(Commit(claim, id_of(1), b"reply"))
    await storage.messages.setback(Setback(claim, id_of(2), 1, "boom", None))
    assert await due_ids(storage) == [3]
    assert [each.id for each in await storage.messages.fetch([id_of(n) for n in (1, 2, 3, 4)])] == [id_of(3)]
    row = await look(storage, 1)
    assert row is not None
    assert (row.status, row.reply) == ("done", b"reply")
    assert row.completed_at is not None
    assert row.sent_at <= row.completed_at <= await storage.now()


async def test_a_pending_message_can_be_taken_back(storage: Storage, a: Ownership) -> None:
    """Without a claim only while nobody holds its seat: a holder may be running it."""
    await storage.messages.insert(message(1, key="k"))
    await storage.messages.insert(message(2))
    await storage.messages.insert(message(3))
    assert await storage.messages.cancel(id_of(1), None, reply=CANCELLED)
    assert not await storage.messages.cancel(id_of(1), None, reply=CANCELLED)
    claim = await take(a, A)
    assert not await storage.messages.cancel(id_of(2), None, reply=CANCELLED), "it is held"
    assert await storage.messages.cancel(id_of(2), claim, reply=CANCELLED)
    assert not await storage.messages.cancel(id_of(3), Claim(A, S1, claim.epoch + 1), reply=CANCELLED)
    await storage.messages.commit(Commit(claim, id_of(3)))
    assert not await storage.messages.cancel(id_of(3), None, reply=CANCELLED)
    assert await statuses(storage, 1, 2, 3) == ["done", "done", "done"]
    replies = [row.reply for row in await storage.messages.look([id_of(number) for number in (1, 2, 3)])]
    assert replies == [CANCELLED, CANCELLED, b""], "what was cancelled says so"
    again = await storage.messages.insert(message(4, key="k"))
    assert again.fresh, "the key goes with its message"


async def test_a_message_of_a_megabyte_comes_back(storage: Storage) -> None:
    payload = bytes(range(256)) * 4096
    await storage.messages.insert(message(1, payload=payload))
    (delivery,) = await storage.messages.fetch([id_of(1)])
    assert delivery.payload == payload


async def test_clusters_in_one_database_have_messages_of_their_own(storage: Storage, neighbour: Storage) -> None:
    """m7: the same ids, seats, entities and keys."""
    mine, theirs = message(1, key="k", payload=b"mine"), message(1, key="k", payload=b"theirs")
    assert (await storage.messages.insert(mine)).fresh
    assert await neighbour.messages.find("Account", "alice", "add", "k") is None
    assert (await neighbour.messages.insert(theirs)).fresh
    assert await neighbour.messages.cancel(id_of(1), None, reply=CANCELLED)
    (delivery,) = await storage.messages.fetch([id_of(1)])
    assert delivery.payload == b"mine"
    assert await due_ids(neighbour) == []


async def test_a_bad_message_in_a_group_harms_nobody_else(storage: Storage) -> None:
    """M3: a text that the database cannot take (or can) is one sender's affair."""
    given: list[Message] = [message(n) for n in range(30)]
    given[17] = message(17, entity="lone \ud800 surrogate")
    told = await asyncio.gather(*map(storage.messages.insert, given), return_exceptions=True)
    assert all(isinstance(each, Receipt) for number, each in enumerate(told) if number != 17)
    assert len(await due_ids(storage)) >= 29
