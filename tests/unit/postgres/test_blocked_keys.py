"""A key that a user's open transaction holds delays sends of that key, and nothing else (O1, M3)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import PersistenceError
from coterie.storage.contracts.messages import Commit, Message
from coterie.storage.interface import Claim
from tests.unit.postgres.conftest import SHORT, new_storage, stranger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import asyncpg

    from coterie.storage.postgres import PostgresStorage

pytestmark = pytest.mark.postgres


def message(id: str, *, key: str | None = None) -> Message:
    return Message(id=id, seat="s", entity_type="E", entity_id="e", method="m", payload=b"p", key=key, digest=b"d")


@asynccontextmanager
async def holding(url: str, storage: PostgresStorage) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A user's transaction that has stored the key `k`."""
    async with stranger(url) as connection:
        await connection.execute("begin")
        write = await storage.user_writes.insert([message("held", key="k")])
        statement = next(write)
        await connection.fetch(statement.sql, *statement.values)
        yield connection


async def test_others_are_stored_while_one_waits_for_its_key(postgres_url: str) -> None:
    """In one group with it, and later ones of the same key. It gets the message that was committed."""
    async with new_storage(postgres_url) as storage, holding(postgres_url, storage) as user:
        waiting = [storage.messages.insert(message(f"w{number}", key="k")) for number in range(3)]
        others = [storage.messages.insert(message(f"o{number}", key=f"k{number}")) for number in range(3)]
        others += [storage.messages.insert(message(f"p{number}")) for number in range(3)]
        assert [(await each).fresh for each in others] == [True] * 6
        groups = storage.writer.groups
        later = storage.messages.insert(message("w3", key="k"))
        assert (await storage.messages.insert(message("p3"))).fresh
        assert storage.writer.groups == groups + 1, "what waits for a key that is known to be held joins no group"
        assert not any(each.done() for each in (*waiting, later))
        await user.execute("commit")
        receipts = [await each for each in (*waiting, later)]
        assert [(each.id, each.fresh) for each in receipts] == [("held", False)] * 4
        assert (await storage.messages.insert(message("w4", key="k"))).id == "held"


async def test_when_it_is_rolled_back_one_of_those_that_wait_is_stored(postgres_url: str) -> None:
    async with new_storage(postgres_url) as storage, holding(postgres_url, storage) as user:
        waiting = [storage.messages.insert(message(f"w{number}", key="k")) for number in range(3)]
        assert (await storage.messages.insert(message("p"))).fresh
        await user.execute("rollback")
        receipts = [await each for each in waiting]
        (stored,) = {each.id for each in receipts}
        assert stored in {"w0", "w1", "w2"}
        assert [each.fresh for each in receipts].count(True) == 1


async def test_a_key_that_is_held_for_too_long_is_an_error_that_says_so(postgres_url: str) -> None:
    async with new_storage(postgres_url, limits=SHORT) as storage, holding(postgres_url, storage):
        with pytest.raises(PersistenceError, match="open transactions") as refused:
            await storage.messages.insert(message("w", key="k"))
        assert refused.value.outcome == "refused"
        assert (await storage.messages.insert(message("p"))).fresh


async def test_a_handler_that_sends_such_a_key_keeps_no_others_waiting(postgres_url: str) -> None:
    """Its seat is held until its commit is refused or done; all other commits go on."""
    async with new_storage(postgres_url) as storage, stranger(postgres_url) as owner:
        await owner.execute(
            "insert into coterie.runners (cluster, id, name, address, host_id, groups, weight, version, knows)"
            " values ('default', 'r', '', '', '', '{}', 1, '', '{}');"
            "insert into coterie.seats (cluster, name, \"group\", holder, epoch) values ('default', 's', 'g', 'r', 1)"
        )
        async with holding(postgres_url, storage) as user:
            claim = Claim("r", "s", 1)
            handler = storage.messages.commit(Commit(claim, sends=(message("sent", key="k"),)))
            assert (await storage.messages.insert(message("p"))).fresh
            other = Commit(claim, sends=(message("sent too", key="k2"),))
            assert await storage.messages.commit(other) == "written"
            assert not handler.done()
            await user.execute("rollback")
            assert await handler == "written"


async def test_those_that_wait_are_bounded_and_end_with_the_storage(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.storage.group_commit._APART_MOST", 2)
    storage = new_storage(postgres_url)
    await storage.start()
    async with holding(postgres_url, storage):
        waiting = [storage.messages.insert(message(f"w{number}", key="k")) for number in range(3)]
        async with asyncio.timeout(120):
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        (refused,) = [each for each in waiting if each.done()]
        with pytest.raises(PersistenceError, match="2 writes wait already"):
            refused.result()
        await storage.stop()
        for each in waiting:
            with pytest.raises(PersistenceError):
                await each
