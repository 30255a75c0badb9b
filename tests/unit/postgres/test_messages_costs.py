"""What hot statements of messages cost, in pages: the same right after a burst, and beside a million that are done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage.contracts.messages import Commit, Insert, Setback
from coterie.storage.interface import Claim
from coterie.storage.postgres.batch import messages, plan, single
from coterie.storage.postgres.connector import ConnectionLimits, session_settings
from coterie.storage.postgres.writer import SQL
from tests.contract.messages import change, id_of, message
from tests.support.finished_messages import fill_postgres
from tests.unit.postgres.conftest import new_storage, stranger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import asyncpg

    from coterie.storage.contracts.messages import Message
    from coterie.storage.interface import Write
    from tests.support.postgres import Server

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
GROUP = 100
DAY_S = 86_400.0

OLD = f"""
insert into coterie.messages
    (cluster, id, seat, entity_type, entity_id, method, sent_at, due_at, completed_at, status, digest, payload)
select 'default', lpad(to_hex(i), 32, '0'), 's9', 'Account', 'e', 'add', at, at, at, 1, '', ''
from generate_series(1, {GROUP}) as i, lateral (select now() - interval '9 days' as at)
"""
"""Done long ago, with ids before all others."""
MINE = Claim("me", "s7", 1)
LATE = 1 << 124
"""Numbers of messages that come after all others."""

PAGES = """
select sum(pg_stat_get_xact_blocks_fetched(oid))::int from pg_class
where relnamespace = 'coterie'::regnamespace and relkind in ('r', 'i')
"""
PAGES_MOST = 60
"""Of one statement for one message. Measured: 5 to 35, depending on the statement and the height of the trees."""
DEEPER = 15
"""Pages more for each message, as trees are up to two pages higher, and a write goes down several of them."""


def lone(write: Write) -> Sequence[Any]:
    """What the statement takes after the cluster's name for a write that is alone."""
    shape = single.shape_of(write)
    assert shape is not None
    return single.values(shape, write)


def of(*writes: Write) -> Sequence[Any]:
    """The same for those of a group."""
    return plan.values(plan.Bucket(plan.shape_of(writes[0]), [*range(len(writes))]), writes)


def here(number: int) -> Message:
    """One that is pending, to an entity that had some before."""
    return message(number, seat="s7", entity=f"e{number % 5000}", key=f"old {number}")


def new(number: int, **more: Any) -> Message:
    """One that is not there yet."""
    return message(number + GROUP, seat="s7", entity=f"e{number % 5000}", **more)


def hot(number: int) -> dict[str, Sequence[Any]]:
    """The hot statements for one message that is pending, and one that is not there yet."""
    one, sent = here(number), new(number, key=f"new {number}")
    name = (one.entity_type, one.entity_id, one.method, one.key)
    return {
        "insert_messages": of(Insert(sent)),
        "insert_message": lone(Insert(sent)),
        "add_message": lone(Insert(new(number))),
        "read_back": messages.sought([one]),
        "end_messages": of(Commit(MINE, one.id, b"reply")),
        "end_message": lone(Commit(MINE, one.id, b"reply")),
        "commit_handlers": of(Commit(MINE, one.id, b"reply", change("e", b"state"), (sent,))),
        "set_back": of(Setback(MINE, one.id, 1, "boom", 1.0)),
        "fetch": [[one.id]],
        "look": [[one.id]],
        "find": name,
        "due": [["s7"], [None], [None], 0.0, 100],
        "suspect": ["me", "s7", 1, ["Account"], [1], 3],
        "mark_suspect": ["me", "s7", 1, one.id, 2],
        "cancel_fenced": ["me", "s7", 1, one.id, b"cancelled"],
        "purge_messages": [id_of(number - 1), 1000, DAY_S, 7 * DAY_S],
    }


def hot_groups(number: int) -> dict[str, Sequence[Any]]:
    """Those that come in groups, for a hundred of each, and what is done for all seats or for a batch."""
    numbers = range(number, number + GROUP)
    return {
        "insert_messages": of(*(Insert(new(each)) for each in numbers)),
        "end_messages": of(*(Commit(MINE, id_of(each), b"reply") for each in numbers)),
        "commit_handlers": of(*(Commit(MINE, id_of(each), b"reply", change(f"e{each}", b"")) for each in numbers)),
        "fetch": [[id_of(each) for each in numbers]],
        "due": [[f"s{seat}" for seat in range(300)], [None] * 300, [None] * 300, 0.0, 100],
        "backlog": [100, 1000],
        "suspect": ["me", "s7", 1, ["Account"], [1], 3],
        "purge_messages": ["", GROUP, DAY_S, 7 * DAY_S],
    }


Works = Callable[[int], dict[str, Sequence[Any]]]

TIMES_MOST: dict[Works, float] = {hot: 1.7, hot_groups: 2.5}
"""How many times as long they may take. Measured: 0.7 to 1.2, and up to 1.4: keys of a group lie on many pages."""


class PreparedSession:
    """A session as the writer's, with its statements prepared when the table was empty."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection
        self._prepared: dict[str, Callable[..., Any]] = {}

    async def prepare(self) -> None:
        """Prepare and run each once, which makes its plan: there is one for all values."""
        await self._connection.execute(session_settings("writer", application="costs", limits=ConnectionLimits()))
        for name in {**hot(LATE), **hot_groups(LATE)}:
            self._prepared[name] = (await self._connection.prepare(SQL[name])).fetch
        await self.pages()

    async def pages(self, works: Works = hot) -> dict[str, int]:
        """The pages that each touches, the least of a few tries; nothing of it stays.

        Whoever comes first marks the dead entries that it meets, and now and then one must find a page with room.
        """
        return {name: min([(await self._cost(name, works))[0] for _ in range(4)]) for name in works(LATE)}

    async def seconds(self, name: str, works: Works = hot) -> float:
        """How long one of them takes."""
        return (await self._cost(name, works))[1]

    async def _cost(self, name: str, works: Works) -> tuple[int, float]:
        await self._connection.execute("begin")
        pending = [Insert(here(LATE + number)) for number in range(1 if works is hot else GROUP)]
        await self._connection.fetch(SQL["insert_messages"], "default", *of(*pending))
        if works is hot_groups:
            await self._connection.execute(OLD)
        before = await self._connection.fetchval(PAGES)
        values = works(LATE)[name]
        began = time.perf_counter()
        rows = await self._prepared[name]("default", *values)
        took_s = time.perf_counter() - began
        pages = await self._connection.fetchval(PAGES) - before
        await self._connection.execute("rollback")
        assert rows, name
        return pages, took_s


@asynccontextmanager
async def desk(url: str) -> AsyncIterator[tuple[PreparedSession, asyncpg.Connection[Any]]]:
    """A desk, and a connection to change the tables behind its back."""
    async with new_storage(url):
        pass
    async with stranger(url) as connection, stranger(url) as other:
        await other.execute("alter table coterie.messages set (autovacuum_enabled = off)")
        await other.execute(HELD)
        made = PreparedSession(connection)
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


WALKS = {
    "alter table coterie.messages drop constraint messages_pkey": (
        "end_messages", "end_message", "commit_handlers", "set_back", "fetch", "look", "cancel_fenced", "purge_messages"
    ),
    "drop index coterie.messages_key": ("find", "commit_handlers"),
    "drop index coterie.messages_pending": ("due", "suspect"),
}  # fmt: skip
"""Without an index these must walk."""


@pytest.mark.parametrize("drop", WALKS)
async def test_a_walk_is_seen(postgres_url: str, drop: str) -> None:
    """That the tests here can fail."""
    async with desk(postgres_url) as (at, other):
        await other.execute(BURST.replace("$", "10000"))
        await other.execute(drop)
        after = await at.pages()
    assert min(after[name] for name in WALKS[drop]) > PAGES_MOST, after


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_beside_a_million_finished_messages_hot_statements_are_as_fast_as_alone(
    postgres_server: Server, postgres_url: str
) -> None:
    """In pages, and in time: by turns, and of each the fastest, as a machine is never quiet."""
    name = postgres_server.create_database()
    try:
        async with desk(postgres_url) as (full, other), desk(postgres_server.url(name)) as (empty, another):
            await fill_postgres(other, 1_000_000)
            pages = await full.pages()
            assert max(pages.values()) <= PAGES_MOST, pages
            await compare(full, empty, hot, tries=300)
            for each in (other, another):  # of what the tries have left
                await each.execute("vacuum coterie.messages")
            await compare(full, empty, hot_groups, tries=50)
    finally:
        postgres_server.drop_database(name)


async def compare(full: PreparedSession, empty: PreparedSession, works: Works, *, tries: int) -> None:
    """Hold that statements cost beside others what they cost alone."""
    beside_pages, alone_pages = await full.pages(works), await empty.pages(works)
    for name, pages in beside_pages.items():
        times = [(await full.seconds(name, works), await empty.seconds(name, works)) for _ in range(tries)]
        beside, alone = (min(taken) for taken in zip(*times, strict=True))
        ratio = beside / alone
        said = f"{name} {ratio:.2f} times {1e6 * alone:.0f} µs, {pages} pages, alone {alone_pages[name]}"
        print(f"\n{said}", end="")
        assert pages <= alone_pages[name] + DEEPER * (1 if works is hot else GROUP), said
        assert ratio < TIMES_MOST[works], said
