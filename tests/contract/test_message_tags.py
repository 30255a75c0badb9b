"""Tags of messages on all engines: stored with their message, found by name and value, removed with it (T10)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from coterie.errors import PersistenceError
from coterie.storage.contracts.messages import Commit, MessageFilter
from tests.contract.messages import A, id_of, joined, look, message, take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from coterie.storage.contracts.messages import Status
    from coterie.storage.interface import Ownership, Storage

SEVEN, EIGHT = ("order", "7"), ("invoice", "8")
ODD = ("Kunde \"ü\" 'x' \\ \n", "%_{}[]$1 ?")
MANY = tuple((f"{'ä' * 48}{n:02}", "ö" * 250) for n in range(10))


@pytest.fixture
async def a(storage: Storage) -> AsyncIterator[Ownership]:
    async with joined(storage, A) as ownership:
        yield ownership


async def tagged(
    storage: Storage, tag: tuple[str, str], *, status: Status | None = None, newest: bool = False, after: int = 0
) -> Sequence[int]:
    """The numbers of the messages with a tag, in the order in which they are listed."""
    rows = await storage.messages.list(
        MessageFilter(tag=tag, status=status), after=id_of(after) if after else None, newest=newest, most=3
    )
    return [int(row.id, 16) for row in rows]


async def test_a_message_is_found_by_each_of_its_tags(storage: Storage) -> None:
    """T10: alone in its group and in one, with a key and without."""
    await storage.messages.insert(message(1, tags=(SEVEN, ODD)))
    await storage.messages.insert(message(2, tags=(SEVEN,), key="k"))
    await asyncio.gather(*(storage.messages.insert(message(n, tags=(SEVEN,) if n < 5 else MANY)) for n in (3, 4, 5)))
    await asyncio.gather(*(storage.messages.insert(message(n)) for n in (6, 7)))
    assert await tagged(storage, SEVEN) == [1, 2, 3]
    assert await tagged(storage, SEVEN, after=3) == [4]
    assert await tagged(storage, SEVEN, newest=True) == [4, 3, 2]
    assert await tagged(storage, SEVEN, newest=True, after=2) == [1]
    assert await tagged(storage, ODD) == [1]
    assert [await tagged(storage, tag) for tag in MANY] == [[5]] * 10
    assert await tagged(storage, EIGHT) == await tagged(storage, ("7", "order")) == []
    rows = [await look(storage, number) for number in (1, 5, 6)]
    assert [row and row.tags for row in rows] == [dict((SEVEN, ODD)), dict(MANY), {}]


async def test_what_a_handler_sends_has_its_tags_with_the_commit_or_not_at_all(storage: Storage, a: Ownership) -> None:
    claim = await take(a, A)
    for number in (1, 2, 3):
        await storage.messages.insert(message(number))
    await storage.messages.insert(message(4, key="taken"))
    told = await asyncio.gather(
        storage.messages.commit(Commit(claim, id_of(1), sends=(message(11, tags=(SEVEN,)), message(12)))),
        storage.messages.commit(Commit(claim, id_of(2), sends=(message(13, tags=(SEVEN,)), message(14, key="taken")))),
        storage.messages.commit(Commit(claim, id_of(3), b"", None, (message(15, tags=(SEVEN, EIGHT)),))),
    )
    assert list(told) == ["written", "taken", "written"]
    assert await tagged(storage, SEVEN) == [11, 15]
    again = Commit(claim, id_of(3), b"", None, (message(15, tags=(SEVEN, EIGHT)),))
    assert await storage.messages.commit(again) == "written", "an earlier try of it has happened"
    assert await tagged(storage, EIGHT) == [15]


async def test_a_transaction_stores_the_tags_of_what_it_sends(storage: Storage) -> None:
    async def transact(number: int, *, commits: bool) -> None:
        transaction = storage.transaction(limit_s=60)
        transaction.send(message(number, tags=(SEVEN,), key=f"k{number}"), then=lambda: None)
        await (transaction.commit(None) if commits else transaction.rollback())

    await transact(1, commits=True)
    await transact(2, commits=False)
    assert await tagged(storage, SEVEN) == [1]
    await storage.messages.insert(message(3, key="k4"))
    with pytest.raises(PersistenceError):
        await transact(4, commits=True)  # its key was used meanwhile
    assert await tagged(storage, SEVEN) == [1]


async def test_a_message_whose_key_is_there_keeps_the_tags_of_the_first(storage: Storage) -> None:
    await storage.messages.insert(message(1, key="k", digest=b"d", tags=(SEVEN,)))
    receipts = await asyncio.gather(
        storage.messages.insert(message(2, key="k", digest=b"d", tags=(EIGHT,))),
        storage.messages.insert(message(1, key="k", digest=b"d", tags=(SEVEN,))),  # an earlier try of it
        storage.messages.insert(message(3, tags=(EIGHT,))),
    )
    assert [receipt.fresh for receipt in receipts] == [False, True, True]
    assert await tagged(storage, SEVEN) == [1]
    assert await tagged(storage, EIGHT) == [3]


async def test_tags_are_removed_with_their_message_however_that_is(storage: Storage, a: Ownership) -> None:
    """Otherwise a list would find what is gone, and the table would grow for ever."""
    claim = await take(a, A)
    for number in (1, 2, 3, 4):
        await storage.messages.insert(message(number, tags=(SEVEN, EIGHT), entity=f"e{number}"))
    for number in (1, 2, 3):
        await storage.messages.commit(Commit(claim, id_of(number)))
    assert await tagged(storage, SEVEN, status="done") == [1, 2, 3]
    assert await tagged(storage, SEVEN, status="pending") == [4]
    assert await storage.messages.discard([id_of(1)], "done") == 1
    assert await storage.messages.remove(MessageFilter(entity_type="Account", entity_id="e2"), most=10) == 1
    assert await tagged(storage, SEVEN) == [3, 4]
    await storage.messages.purge(after="", retention_s=-1, key_retention_s=-1, most=10)
    assert await tagged(storage, SEVEN) == await tagged(storage, EIGHT) == [4]
    await storage.messages.insert(message(3, tags=(("other", "tag"),)))
    assert await tagged(storage, EIGHT) == [4], "a new message has no tags of one that was there before"


async def test_a_tag_restricts_a_list_beside_all_else(storage: Storage, a: Ownership) -> None:
    claim = await take(a, A)
    await storage.messages.insert(message(1, tags=(SEVEN,), entity="x", method="add"))
    await storage.messages.insert(message(2, tags=(SEVEN,), entity="x", method="take"))
    await storage.messages.insert(message(3, tags=(SEVEN,), entity="y"))
    await storage.messages.commit(Commit(claim, id_of(3)))
    found = [
        [int(row.id, 16) for row in await storage.messages.list(MessageFilter(tag=SEVEN, **chosen))]
        for chosen in (
            {"entity_id": "x"},
            {"entity_id": "x", "method": "add"},
            {"status": "done"},
            {"status": "dead"},
            {"entity_type": "Other"},
            {"older_than_s": 3600.0},
        )
    ]
    assert found == [[1, 2], [1], [3], [], [], []]
