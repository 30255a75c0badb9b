"""What hot statements of messages cost, in pages: the same right after a burst, and beside a million that are done."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage.interface import Claim
from coterie.storage.messages import Commit, Insert, Setback
from coterie.storage.postgres import folding
from coterie.storage.postgres.commits import SQL
from coterie.storage.postgres.connections import Limits, session_settings
from tests.contract.messages import change, id_of, message
from tests.unit.postgres.conftest import new_storage, stranger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    import asyncpg

    from coterie.storage.interface import Write
    from tests.postgres import Server

pytestmark = pytest.mark.postgres

HELD = """
insert into coterie.runners (cluster, id, name, address, host_id, groups, weight, version, knows)
values ('default', 'me', '', '', '', '{}', 1, '', '{}');
insert into coterie.seats (cluster, name, "group", holder, epoch)
select 'default', 's' || i, 'default', 'me', 1 from generate_series(0, 299) as i;
"""
BURST = """
insert into coterie.messages
    (cluster, id, seat, entity_type, entity_id, method, key, sent_at, due_at, digest, payload)
select 'default', lpad(to_hex(i), 32, '0'), 's' || i % 300, 'Account', 'e' || i % 5000, 'add',
    case when i % 3 = 0 then 'k' || i end, now(), now(), '', 'payload'
from generate_series(1, $) as i;
update coterie.messages set status = 1, completed_at = now(), reply = 'reply', epoch = 1;
"""
MINE = Claim("me", "s7", 1)
LATE = 1 << 100
"""Numbers of messages that come after all others."""

PAGES = """
select sum(pg_stat_get_xact_blocks_fetched(oid))::int from pg_class
where relnamespace = 'coterie'::regnamespace and relkind in ('r', 'i')
"""
PAGES_MOST = 60
"""Of one statement for one message. Measured: 5 to 35, depending on the statement and the height of the trees."""


def lone(write: Write) -> Sequence[Any]:
    """What the statement takes after the cluster's name for a write that is alone."""
    (bucket,) = folding.fold([write])
    return folding.values(bucket, [write])


def of(write: Write) -> Sequence[Any]:
    """The same for one of many."""
    return folding.values(folding.Bucket(folding.shape_of(write), [0]), [write])


def hot(number: int) -> dict[str, Sequence[Any]]:
    """The hot statements for one message that is pending, and one that is not there yet."""
    here, new = id_of(number), message(number + 1, seat="s7", key=f"new {number}")
    return {
        "insert_messages": of(Insert(new)),
        "insert_message": lone(Insert(new)),
        "end_messages": of(Commit(MINE, here, b"reply")),
        "end_message": lone(Commit(MINE, here, b"reply")),
        "commit_handlers": of(Commit(MINE, here, b"reply", change("e", b"state"), (new,))),
        "set_back": of(Setback(MINE, here, 1, "boom", 1.0)),
        "fetch": [[here]],
        "look": [[here]],
        "find": ["Account", "alice", "add", f"old {number}"],
        "due": [["s7"], [None], [None], 0.0, 100],
        "cancel_fenced": ["me", "s7", 1, here],
    }


class Desk:
    """A session as the writer's, with its statements prepared when the table was empty."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection
        self._prepared: dict[str, Callable[..., Any]] = {}

    async def prepare(self) -> None:
        """Prepare and run each once, which makes its plan: there is one for all values."""
        await self._connection.execute(session_settings("writer", application="costs", limits=Limits()))
        for name in hot(LATE):
            self._prepared[name] = (await self._connection.prepare(SQL[name])).fetch
        await self.pages()

    async def pages(self, number: int = LATE) -> dict[str, int]:
        """The pages that each touches, the least of a few tries; nothing of it stays.

        Whoever comes first marks the dead entries that it meets, and now and then one must find a page with room.
        """
        return {name: min([(await self._cost(name, number))[0] for _ in range(4)]) for name in hot(number)}

    async def seconds(self, name: str) -> float:
        """How long one of them takes."""
        return (await self._cost(name, LATE))[1]

    async def _cost(self, name: str, number: int) -> tuple[int, float]:
        await self._connection.execute("begin")
        given = message(number, seat="s7", key=f"old {number}")
        await self._connection.fetch(SQL["insert_messages"], "default", *of(Insert(given)))
        before = await self._connection.fetchval(PAGES)
        began = time.perf_counter()
        rows = await self._prepared[name]("default", *hot(number)[name])
        took_s = time.perf_counter() - began
        pages = await self._connection.fetchval(PAGES) - before
        await self._connection.execute("rollback")
        assert rows, name
        return pages, took_s


@asynccontextmanager
async def desk(url: str) -> AsyncIterator[tuple[Desk, asyncpg.Connection[Any]]]:
    """A desk, and a connection to change the tables behind its back."""
    async with new_storage(url):
        pass
    async with stranger(url) as connection, stranger(url) as other:
        await other.execute("alter table coterie.messages set (autovacuum_enabled = off)")
        await other.execute(HELD)
        made = Desk(connection)
        await made.prepare()
        yield made, other


async def test_right_after_a_burst_a_lone_message_costs_what_it_did_before(postgres_url: str) -> None:
    """STACK's trap: no plan walks what the burst has left, not even one that was made for empty tables."""
    async with desk(postgres_url) as (at, other):
        before = await at.pages()
        await other.execute(BURST.replace("$", "100000"))
        after = await at.pages()
    assert max(before.values()) <= PAGES_MOST, before
    assert max(after.values()) <= PAGES_MOST, after


async def test_a_walk_is_seen(postgres_url: str) -> None:
    """That the test above can fail."""
    async with desk(postgres_url) as (at, other):
        await other.execute(BURST.replace("$", "10000"))
        await other.execute("alter table coterie.messages drop constraint messages_pkey")
        after = await at.pages()
    assert min(after[name] for name in ("end_messages", "commit_handlers", "set_back", "fetch")) > PAGES_MOST, after


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_beside_a_million_finished_messages_hot_statements_are_as_fast_as_alone(
    postgres_server: Server, postgres_url: str
) -> None:
    """In pages, and in time: by turns, and of each the fastest, as a machine is never quiet."""
    name = postgres_server.create_database()
    try:
        async with desk(postgres_url) as (full, other), desk(postgres_server.url(name)) as (empty, _):
            await other.execute(BURST.replace("$", "1000000"))
            await other.execute("vacuum analyze coterie.messages")
            pages = await full.pages()
            assert max(pages.values()) <= PAGES_MOST, pages
            for statement in pages:
                times = [(await full.seconds(statement), await empty.seconds(statement)) for _ in range(300)]
                beside, alone = (min(taken) for taken in zip(*times, strict=True))
                ratio = beside / alone
                print(f"\n{statement:16} {ratio:.2f} times as long, {pages[statement]} pages", end="")
                assert ratio < 1.7, f"{statement} takes {ratio:.2f} times as long"
    finally:
        postgres_server.drop_database(name)
