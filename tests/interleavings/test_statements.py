"""The statements of ownership one by one: what they return, and that clusters in one database are strangers."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from tests.interleavings.database import ORPHANS, SQL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.interleavings.conftest import NewDatabase

pytestmark = pytest.mark.postgres


class Database:
    """Statements by name, in one cluster."""

    def __init__(self, connection: asyncpg.Connection[Any], cluster: str = "c") -> None:
        self.connection = connection
        self.cluster = cluster

    async def do(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.connection.fetch(SQL[name], self.cluster, *values)]

    async def join(self, id: str, *, ttl_s: float = 6.0) -> None:
        about = "127.0.0.1:1", "host", ["default"], 1.0, "0.1", "{}", ""
        await self.do("register", id, id, *about, ttl_s, True, "")

    async def declare(self, *names: str) -> list[tuple[Any, ...]]:
        await self.do("raise_generation")
        return await self.do("declare", list(names), ["default"] * len(names), [""] * len(names))


@pytest.fixture
async def database(new_database: NewDatabase) -> AsyncIterator[Database]:
    connection = await asyncpg.connect(new_database(), ssl=False)
    yield Database(connection)
    await connection.close()


async def test_a_renewal_tells_the_counters_of_all_and_what_i_hold(database: Database) -> None:
    """M1, M13: one statement, one row."""
    await database.join("a")
    await database.join("b", ttl_s=-1)
    await database.declare("s2", "s1", "s10")
    await database.do("acquire", "a", ["s10", "s2"])
    counter, leaving, ids, counters, expired, others, checksum, stamp, *_ = (await database.do("renew", "a", 6.0))[0]
    assert (counter, leaving, ids, counters, expired, others) == (2, False, ["b"], [1], [True], [False])
    assert checksum == hashlib.sha256(b"1 s10\n1 s2").hexdigest()
    assert stamp.startswith("3 2 2 ")


async def test_an_evicted_runner_renews_acquires_and_writes_nothing(database: Database) -> None:
    """C4, INV-F2."""
    await database.join("a")
    await database.declare("s1")
    assert await database.do("acquire", "a", ["s1"]) == [("s1", 1, True)]
    assert await database.do("evict", "a") == [("a",)]
    assert await database.do("renew", "a", 6.0) == []
    assert await database.do("acquire", "a", ["s1"]) == []
    assert await database.do("release", "a", "s1", 1) == []
    assert await database.do("write_states", "a", ["s1"], [1], ["k"], [b"x"], [0]) == [("k", False, False)]
    assert await database.do("verify", "a", ["s1"], [1]) == []
    assert await database.connection.fetchval("select holder from coterie.seats") is None


async def test_a_lost_fence_and_another_version_are_told_apart(database: Database) -> None:
    """M4: members of a group are independent, each knows its own reason."""
    await database.join("a")
    await database.declare("s1", "s2")
    await database.do("acquire", "a", ["s1", "s2"])
    await database.do("write_states", "a", ["s1"], [1], ["there"], [b"x"], [0])
    seats, keys = ["s1", "s1", "s2", "s1"], ["lost", "there", "new", "there2"]
    told = await database.do("write_states", "a", seats, [9, 1, 1, 1], keys, [b"y"] * 4, [0, 0, 0, 3])
    assert sorted(told) == [
        ("lost", False, False),
        ("new", True, True),
        ("there", True, False),
        ("there2", True, False),
    ]


async def test_a_new_holder_claims_what_it_loads(database: Database) -> None:
    """INV-F3: the row carries its epoch from then on; what does not exist is version 0."""
    await database.join("a")
    await database.join("b")
    await database.declare("s1")
    await database.do("acquire", "a", ["s1"])
    await database.do("write_states", "a", ["s1"], [1], ["k"], [b"x"], [0])
    await database.do("release", "a", "s1", 1)
    assert await database.do("acquire", "b", ["s1"]) == [("s1", 2, True)]
    loaded = await database.do("claim_states", "b", ["s1", "s1"], [2, 2], ["k", "none"])
    assert sorted(loaded) == [("k", True, b"x", 1, False), ("none", True, None, 0, False)]
    assert await database.connection.fetchval("select epoch from coterie.states") == 2


async def test_epochs_of_a_new_generation_are_greater_than_all_before(database: Database) -> None:
    """M13: and nothing is granted before somebody has taken note of the new server."""
    await database.join("a")
    await database.declare("s1")
    await database.do("acquire", "a", ["s1"])
    await database.do("release", "a", "s1", 1)
    await database.connection.execute("update coterie.generations set timeline = timeline + 1")
    assert await database.do("acquire", "a", ["s1"]) == []
    assert await database.do("raise_generation") == [(1,)]
    assert await database.do("acquire", "a", ["s1"]) == [("s1", (1 << 40) + 1, True)]


async def test_clusters_in_one_database_are_strangers(database: Database) -> None:
    """m7: the same names and keys, and no way to touch each other's."""
    other = Database(database.connection, "other")
    await database.join("a")
    await other.join("b")
    for each in (database, other):
        assert await each.declare("s1") == [("s1",)]
    assert await other.do("acquire", "a", ["s1"]) == []
    assert await other.do("evict", "a") == []
    assert await other.do("renew", "a", 6.0) == []
    assert await database.do("acquire", "a", ["s1"]) == await other.do("acquire", "b", ["s1"]) == [("s1", 1, True)]
    for each, me, value in ((database, "a", b"1"), (other, "b", b"2")):
        assert await each.do("write_states", me, ["s1"], [1], ["k"], [value], [0]) == [("k", True, True)]
        assert await each.do("put_kv", me, ["s1"], [1], ["k"], [value], [1], [None]) == [("k", True, True)]
    assert await database.do("claim_states", "a", ["s1"], [1], ["k"]) == [("k", True, b"1", 1, False)]
    assert (await database.do("renew", "a", 6.0))[0][2] == []
    for each in (database, other):
        assert await each.connection.fetch(ORPHANS, each.cluster) == []


async def test_an_incarnation_is_registered_once(database: Database) -> None:
    """Identity is the incarnation, never a name or an address."""
    await database.join("a")
    with pytest.raises(asyncpg.UniqueViolationError):
        await database.join("a")
