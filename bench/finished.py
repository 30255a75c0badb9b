"""Messages beside many that are done: an insert and an end under the fence, on a full table and on an empty one."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import apsw
import asyncpg
from tests.support.finished_messages import fill_postgres, fill_sqlite

from coterie.kernel.clock import SystemClock
from coterie.kernel.ids import MessageIds
from coterie.kernel.random import Random
from coterie.settings import Settings
from coterie.storage.contracts.messages import Commit, Message
from coterie.storage.engines import open_storage
from coterie.storage.interface import Claim, Registration, SeatDeclaration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from bench.measure import Work
    from coterie.storage.interface import Storage

RUNNER, SEATS, ENTITIES = "a" * 32, 100, 500
PAYLOAD, REPLY = b"p" * 60, b"r" * 10


@asynccontextmanager
async def opened(url: str, *, count: int) -> AsyncIterator[Work]:
    """The work on a new database that holds so many."""
    async with _storage(url):
        pass  # it has its tables now
    await _fill(url, count)
    names = [f"shard:default:{number}" for number in range(SEATS)]
    me = Registration(id=RUNNER, name="bench", address="", host_id="", groups=("default",))
    async with _storage(url) as storage, storage.ownership(RUNNER) as session:
        await session.register(me, [SeatDeclaration(name, "default") for name in names], ttl_s=3600)
        claims = [Claim(RUNNER, grant.name, grant.epoch) for grant in await session.acquire(names)]
        yield _work(storage, claims)


def _storage(url: str) -> Storage:
    settings = Settings.load({"url": url}, environ={})
    return open_storage(settings, incarnation=RUNNER, clock=SystemClock(), chance=Random())


def _work(storage: Storage, claims: Sequence[Claim]) -> Work:
    turns, ids = itertools.cycle(claims), MessageIds(SystemClock(), Random())
    entities = itertools.cycle([f"e{number}" for number in range(ENTITIES)])

    async def insert_and_end() -> None:
        claim, name, entity = next(turns), ids.draw(), next(entities)
        message = Message(
            id=name, seat=claim.seat, entity_type="Account", entity_id=entity, method="add", payload=PAYLOAD
        )
        await storage.messages.insert(message)
        assert await storage.messages.commit(Commit(claim, name, REPLY)) == "written"

    return insert_and_end


async def _fill(url: str, count: int) -> None:
    if not count:
        return
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        fill_sqlite(connection, count, now_ns=SystemClock().wall_ns())
        connection.close()
        return
    session = await asyncpg.connect(url)
    await fill_postgres(session, count)
    await session.close()
