"""Prototypes of the durable path: insert a message, then end it under the fence, both group committed; nothing else.

No wires, no handlers, no keys, no retries: what the database itself allows for this shape of work.
"""

from __future__ import annotations

import asyncio
import queue
import statistics
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import apsw
import asyncpg

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    Work = Callable[[int], Awaitable[None]]

SEATS = 100
GROUP_MOST = 500
PAYLOAD = b"p" * 100
REPLY = b"r" * 20
STATE = b"s" * 100
LONE = 200


@dataclass(frozen=True)
class Figures:
    """What a run has shown."""

    per_s: float
    lone_p50_s: float


async def run(url: str, *, in_flight: int, messages: int, entities: int = 500, state: bool = False) -> Figures:
    """Both commits awaited for so many messages, so many at a time; then one after the other."""
    async with opened(url, entities=entities, state=state) as work:
        return await measure(work, in_flight=in_flight, messages=messages)


def opened(url: str, *, entities: int = 500, state: bool = False) -> AbstractAsyncContextManager[Work]:
    """The prototype on a database; its work takes the number of a message."""
    return (_sqlite if url.startswith("sqlite") else _postgres)(url, entities=entities, state=state)


async def measure(work: Work, *, in_flight: int, messages: int) -> Figures:
    """The same for any work on numbered messages."""
    numbers = iter(range(messages))

    async def caller() -> None:
        for number in numbers:
            await work(number)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(in_flight)))
    took_s = time.perf_counter() - began
    taken = []
    for number in range(messages, messages + LONE):
        began = time.perf_counter()
        await work(number)
        taken.append(time.perf_counter() - began)
    return Figures(messages / took_s, statistics.median(taken))


def id_of(number: int) -> str:
    return f"{number:032x}"


# PostgreSQL: one connection for inserts, one for ends.

_SCHEMA = """
drop schema if exists prototype cascade;
create schema prototype;
create table prototype.runners (id text primary key);
create table prototype.seats (name text primary key, holder text, epoch bigint);
create table prototype.messages (
    id text primary key, seat text not null, entity text not null, payload bytea not null,
    status smallint not null default 0, due_at timestamptz not null default statement_timestamp(),
    completed_at timestamptz, reply bytea, epoch bigint);
create index on prototype.messages (seat, due_at, id) where status = 0;
create table prototype.states (key text primary key, value bytea, version bigint, epoch bigint);
insert into prototype.runners values ('me');
"""
_SETTINGS = (
    "set enable_seqscan = off; set enable_mergejoin = off; set jit = off; set plan_cache_mode = force_generic_plan"
)
_INSERT = """
insert into prototype.messages (id, seat, entity, payload)
select * from unnest($1::text[], $2::text[], $3::text[], $4::bytea[])
on conflict do nothing
"""
_END = """
with r as materialized (select from prototype.runners where id = 'me' for key share),
held as materialized (
    select s.name
    from prototype.seats as s
        join (select distinct * from unnest($2::text[], $3::bigint[])) as u (n, e) on s.name = u.n and s.epoch = u.e
        cross join r
    where s.holder = 'me' order by s.name for share of s
), done as (
    update prototype.messages as m
    set status = 1, completed_at = clock_timestamp(), reply = u.r, epoch = u.e
    from unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[]) as u (i, n, e, r) join held on held.name = u.n
    where m.id = u.i and m.id = any($1::text[]) and m.completed_at is null
    returning m.id, m.entity
)
"""
_ENDED = _END + "select id from done"
_ENDED_WITH_STATE = (
    _END
    + """, saved as (
    insert into prototype.states as s (key, value, version, epoch)
    select entity, $5, 1, 1 from (select distinct entity from done order by entity) as d
    on conflict (key) do update set value = excluded.value, version = s.version + 1
)
select id from done
"""
)


class _Group:
    """Folds what has queued while the last commit ran."""

    def __init__(self, commit: Callable[[Sequence[Any]], Awaitable[None]]) -> None:
        self._commit = commit
        self._waiting: list[tuple[Any, asyncio.Future[None]]] = []
        self._some = asyncio.Event()
        self._task = asyncio.create_task(self._work())

    def put(self, item: Any) -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        self._some.set()
        return done

    def stop(self) -> None:
        self._task.cancel()

    async def _work(self) -> None:
        while True:
            await self._some.wait()
            group, self._waiting = self._waiting[:GROUP_MOST], self._waiting[GROUP_MOST:]
            if not self._waiting:
                self._some.clear()
            await self._commit([item for item, _ in group])
            for _, done in group:
                done.set_result(None)


@asynccontextmanager
async def _postgres(url: str, *, entities: int, state: bool) -> AsyncIterator[Work]:
    first, second = await asyncpg.connect(url), await asyncpg.connect(url)
    try:
        await first.execute(_SCHEMA)
        await first.execute(
            f"insert into prototype.seats select 's' || n, 'me', 1 from generate_series(0, {SEATS - 1}) as n"
        )
        for connection in (first, second):
            await connection.execute(_SETTINGS)
        insert = await first.prepare(_INSERT)
        ended = await second.prepare(_ENDED_WITH_STATE if state else _ENDED)

        async def store(numbers: Sequence[int]) -> None:
            places = [number % entities for number in numbers]
            seats = [f"s{place % SEATS}" for place in places]
            names = [f"entity-{place}" for place in places]
            await insert.fetch([id_of(number) for number in numbers], seats, names, [PAYLOAD] * len(numbers))

        async def end(numbers: Sequence[int]) -> None:
            seats = [f"s{number % entities % SEATS}" for number in numbers]
            ids, count = [id_of(number) for number in numbers], len(numbers)
            rows = await ended.fetch(ids, seats, [1] * count, [REPLY] * count, *([STATE] if state else []))
            assert len(rows) == count, "some were not ended"

        async with _both(store, end) as work:
            yield work
        await first.execute("drop schema prototype cascade")
    finally:
        first.terminate()
        second.terminate()


@asynccontextmanager
async def _both(
    store: Callable[[Sequence[int]], Awaitable[None]], end: Callable[[Sequence[int]], Awaitable[None]]
) -> AsyncIterator[Work]:
    inserts, ends = _Group(store), _Group(end)

    async def work(number: int) -> None:
        await inserts.put(number)
        await ends.put(number)

    yield work
    inserts.stop()
    ends.stop()


# SQLite: one thread, one connection, a transaction for what has queued.

_SQLITE_SCHEMA = """
pragma journal_mode = wal; pragma synchronous = full;
create table seats(name text primary key, holder text, epoch integer) without rowid;
create table messages(id text primary key, seat text, entity text, payload blob, status integer default 0,
    due_at integer, completed_at integer, reply blob, epoch integer) without rowid;
create index pending on messages(seat, due_at, id) where status = 0;
create table states(key text primary key, value blob, version integer, epoch integer) without rowid;
"""
_SQLITE_INSERT = "insert into messages(id, seat, entity, payload, due_at) values (?, ?, ?, ?, ?) on conflict do nothing"
_SQLITE_HELD = "select 1 from seats where name = ? and holder = 'me' and epoch = 1"
_SQLITE_END = """
update messages set status = 1, completed_at = ?, reply = ?, epoch = 1 where id = ? and completed_at is null returning 1
"""
_SQLITE_SAVE = """
insert into states values (?, ?, 1, 1) on conflict do update set value = excluded.value, version = version + 1
"""


@asynccontextmanager
async def _sqlite(url: str, *, entities: int, state: bool) -> AsyncIterator[Work]:
    writer = _Sqlite(urlsplit(url).path, entities=entities, state=state)

    async def work(number: int) -> None:
        await writer.put(number, end=False)
        await writer.put(number, end=True)

    yield work
    writer.close()


class _Sqlite:
    def __init__(self, path: str, *, entities: int, state: bool) -> None:
        self._entities = entities
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[tuple[int, bool, asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(path,))
        self._thread.start()

    def put(self, number: int, *, end: bool) -> asyncio.Future[None]:
        done = self._loop.create_future()
        self._inbox.put((number, end, done))
        return done

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join()

    def _work(self, path: str) -> None:
        connection = apsw.Connection(path)
        connection.execute(_SQLITE_SCHEMA).fetchall()  # the pragma answers, and the rest waits for that
        connection.executemany("insert into seats values (?, 'me', 1)", [(f"s{n}",) for n in range(SEATS)])
        while (job := self._inbox.get()) is not None:
            group = [job]
            for _ in range(min(GROUP_MOST - 1, self._inbox.qsize())):
                if (more := self._inbox.get()) is None:
                    self._inbox.put(None)
                    break
                group.append(more)
            self._commit(connection.execute, group)
            self._loop.call_soon_threadsafe(_resolve, group)
        connection.close()

    def _commit(self, execute: Callable[..., apsw.Cursor], group: Sequence[tuple[int, bool, Any]]) -> None:
        now = time.time_ns()
        execute("begin immediate")
        for number, end, _ in group:
            entity = number % self._entities
            seat, name = f"s{entity % SEATS}", f"entity-{entity}"
            if not end:
                execute(_SQLITE_INSERT, (id_of(number), seat, name, PAYLOAD, now))
                continue
            assert execute(_SQLITE_HELD, (seat,)).fetchall()
            assert execute(_SQLITE_END, (now, REPLY, id_of(number))).fetchall(), "it was not ended"
            if self._state:
                execute(_SQLITE_SAVE, (name, STATE))
        execute("commit")


def _resolve(group: Sequence[tuple[int, bool, asyncio.Future[None]]]) -> None:
    for _, _, done in group:
        done.set_result(None)
