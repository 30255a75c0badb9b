"""Rows of SQL in storage: read in bounded batches, moved once under the fence, found and purged (O2)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from coterie import LeadershipLost
from coterie.storage import statements
from coterie.storage.contracts.incoming_calls import Move, MovedCall, MovedStart
from coterie.storage.contracts.messages import Message
from coterie.storage.contracts.units import UnitStart
from coterie.storage.interface import Claim
from coterie.storage.postgres.connector import session_settings
from tests.unit.postgres.conftest import LONG, stranger
from tests.unit.postgres.test_messages_plans import named, plan_of, read_by, unfenced
from tests.unit.postgres.test_states_plans import nodes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import asyncpg

    from coterie.storage.contracts.incoming_calls import Source
    from coterie.storage.postgres import PostgresStorage

pytestmark = pytest.mark.postgres

MINE, LATE = Claim("a", "incoming:default", 2), Claim("a", "incoming:default", 1)
SQL = statements.load("coterie.storage.postgres.sql", "incoming.sql")
BOUNDS: Any = {"most": 100, "most_bytes": 1 << 20}
ALL: dict[Source, str] = {("call", "E"): "", ("workflow", "W"): ""}


@pytest.fixture
async def hand(postgres_url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A runner that holds the seat at epoch 2, and a session that writes to the tables."""
    async with stranger(postgres_url) as connection:
        await connection.execute(
            "insert into coterie.agreements values ('default', 'shards', '4');"
            "insert into coterie.runners (id, cluster, name, address, host_id, groups, weight, version, knows)"
            " values ('a', 'default', 'a', '', '', '{default}', 1, '', '{}');"
            'insert into coterie.seats (cluster, name, "group", holder, epoch)'
            " values ('default', 'incoming:default', 'default', 'a', 2)"
        )
        yield connection


async def send(hand: asyncpg.Connection[Any], *, type: str = "E", args: str = "{}", more: str = "") -> str:
    return str(await hand.fetchval(f"select coterie.send($1, 'e', 'm', $2::jsonb {more})", type, args))


def call(id: str, *, key: str | None = None, digest: bytes = b"", error: str | None = None) -> MovedCall:
    message = Message(
        id=id, seat="shard:default:1", entity_type="E", entity_id="e", method="m", payload=b"p", key=key, digest=digest
    )
    return MovedCall(message, error)


def start(id: str, *, run: str = "r", payload: bytes = b"p") -> MovedStart:
    unit = UnitStart(
        unit=f"workflow:W/{run}", name="W", id=run, seat="shard:default:1", payload=payload, digest=payload
    )
    return MovedStart(id, unit)


async def counts(hand: asyncpg.Connection[Any]) -> tuple[int, int]:
    sql = "select (select count(*) from coterie.incoming), (select count(*) from coterie.messages)"
    return tuple(await hand.fetchrow(sql) or ())


async def test_inv_d1_a_row_is_moved_once_however_often_that_is_tried(
    storage: PostgresStorage, hand: asyncpg.Connection[Any]
) -> None:
    ids = [await send(hand) for _ in range(20)]
    tries = [storage.incoming.move(MINE, [call(each) for each in ids]) for _ in range(5)]
    told = [[move.told for move in found.values()] for found in await asyncio.gather(*tries)]
    assert sorted(told) == [["left"] * 20] * 4 + [["moved"] * 20]
    assert await counts(hand) == (0, 20)


async def test_c1_a_move_of_a_former_holder_is_refused_and_nothing_is_written(
    storage: PostgresStorage, hand: asyncpg.Connection[Any]
) -> None:
    sent = await send(hand)
    for claim in (LATE, Claim("b", "incoming:default", 2), Claim("a", "incoming:other", 2)):
        with pytest.raises(LeadershipLost):
            await storage.incoming.move(claim, [call(sent)])
        with pytest.raises(LeadershipLost):
            await storage.incoming.start(claim, [start(sent)])
    assert await counts(hand) == (1, 0)
    assert await hand.fetchval("select count(*) from coterie.units") == 0


async def test_m4_keys_of_one_batch_and_of_earlier_messages(
    storage: PostgresStorage, hand: asyncpg.Connection[Any]
) -> None:
    one, same, other, free = [await send(hand) for _ in range(4)]
    batch = [call(one, key="x", digest=b"1"), call(same, key="x", digest=b"1"), call(other, key="x", digest=b"2")]
    told = await storage.incoming.move(MINE, [*batch, call(free)])
    assert {each: move.told for each, move in told.items()} == {
        one: "moved",
        same: "left",
        other: "left",
        free: "moved",
    }
    told = await storage.incoming.move(MINE, batch[1:])
    assert told == {same: Move("same", one), other: Move("conflict", one, b"1")}
    found = await storage.incoming.find(same)
    assert found is not None
    assert (found.kind, found.type, found.same_as) == ("call", "E", one)
    assert await storage.incoming.move(MINE, [call(other, error="odd")]) == {other: Move("moved")}
    (dead,) = await storage.messages.look([other])
    assert (dead.status, dead.attempts, dead.errors[0].error, dead.key) == ("dead", 1, "odd", None)
    assert [row.id for row in await storage.incoming.take(ALL, **BOUNDS)] == []


async def test_o6_a_digest_that_is_known_to_be_of_the_same_arguments_makes_a_row_the_same(
    storage: PostgresStorage, hand: asyncpg.Connection[Any]
) -> None:
    """Encrypted digests of equal arguments differ. Without a rival the row's own digest is stored."""
    one, same, free = [await send(hand) for _ in range(3)]
    await storage.incoming.move(MINE, [call(one, key="x", digest=b"1")])
    members = [call(same, key="x", digest=b"2"), call(free, key="y", digest=b"3")]
    told = await storage.incoming.move(MINE, [replace(each, known=b"1") for each in members])
    assert told == {same: Move("same", one), free: Move("moved")}
    receipt = await storage.messages.find("E", "e", "m", "y")
    assert receipt is not None
    assert receipt.digest == b"3"


async def test_runs_are_started_once_for_each_id(storage: PostgresStorage, hand: asyncpg.Connection[Any]) -> None:
    ids = ["w1", "w2", "w3", "w4"]
    for each in ids:
        await hand.execute(
            "insert into coterie.incoming (cluster, id, kind, type, entity, method, args, sent_at)"
            " values ('default', $1, 'workflow', 'W', 'r', '', '{}', now())",
            each,
        )
    first = await storage.incoming.start(
        MINE, [start("w1"), start("w2"), start("w3", payload=b"q"), start("w4", run="s")]
    )
    assert [first[each].told for each in ids] == ["moved", "left", "left", "moved"]
    again = await storage.incoming.start(MINE, [start("w2"), start("w3", payload=b"q")])
    assert again == {"w2": Move("same", "workflow:W/r"), "w3": Move("conflict", "workflow:W/r", b"p")}
    assert [row.id for row in await storage.incoming.take(ALL, **BOUNDS)] == ["w3"]
    found = await storage.units.get("workflow:W/r")
    assert found is not None
    assert (found.status, found.payload, found.id) == ("running", b"p", "r")


async def test_a_read_is_bounded_by_rows_of_each_type_and_by_bytes_of_all(
    storage: PostgresStorage, hand: asyncpg.Connection[Any]
) -> None:
    many = [await send(hand) for _ in range(30)]
    large = [await send(hand, type="F", args=f'{{"x": "{"x" * 40_000}"}}') for _ in range(5)]
    every = {("call", "E"): "", ("call", "F"): "", ("call", "G"): ""}

    async def taken(after: Any, *, most: int = 100, most_bytes: int = 1 << 20, without: Any = ()) -> list[str]:
        rows = await storage.incoming.take(after, without=without, most=most, most_bytes=most_bytes)
        return [row.id for row in rows]

    assert await taken(every) == many + large
    assert await taken(every, most=7) == many[:7] + large
    assert await taken(every, most_bytes=90_000) == many + large[:3]
    assert await taken({("call", "F"): ""}, most_bytes=1) == large[:1], "one is read however large it is"
    assert await taken({("call", "E"): many[9]}) == many[10:]
    assert await taken({("call", "E"): ""}, without=many[:29]) == many[29:]
    assert await taken({}) == []


async def test_rows_written_by_hand_are_read_whatever_their_instants_are(
    storage: PostgresStorage, hand: asyncpg.Connection[Any]
) -> None:
    for number, due in enumerate(("infinity", "-infinity", "20000-01-01", "0044-03-15 BC")):
        await hand.execute(
            "insert into coterie.incoming (cluster, id, kind, type, entity, method, args, sent_at, due_at)"
            f" values ('default', $1, 'call', 'E', 'e', 'm', 'no json', now(), '{due}')",
            str(number),
        )
    assert [row.id for row in await storage.incoming.take(ALL, **BOUNDS)] == ["0", "1", "2", "3"]


async def test_the_oldest_of_each_type_is_found_and_what_is_cancelled_or_purged_is_gone(
    storage: PostgresStorage, hand: asyncpg.Connection[Any]
) -> None:
    one, two, other = await send(hand), await send(hand), await send(hand, type="A")
    await hand.execute("update coterie.incoming set sent_at = sent_at - interval '1 h' where type = 'A'")
    found = await storage.incoming.backlog(most=10)
    assert [(each.kind, each.type, each.id) for each in found] == [("call", "A", other), ("call", "E", one)]
    assert found[0].waited_s > 3_500 > found[1].waited_s
    assert len(await storage.incoming.backlog(most=1)) == 1
    assert await storage.incoming.cancel(two)
    assert not await storage.incoming.cancel(two)
    await hand.execute("update coterie.incoming set same_as = 'm' where type = 'A'")
    assert not await storage.incoming.cancel(other)
    assert await storage.overdue(retention_s=60, key_retention_s=60) == pytest.approx({"incoming": 3_540}, abs=120)
    assert await storage.incoming.purge(older_s=7_200, most=10) == 0
    assert await storage.incoming.purge(older_s=60, most=10) == 1
    assert [row.id for row in await storage.incoming.take(ALL, **BOUNDS)] == [one]


FILL = (
    "insert into coterie.incoming (cluster, id, kind, type, entity, method, args, sent_at, same_as)"
    " select 'default', lpad(to_hex(n), 32, '0'), 'call', 'T' || n % 20, 'e', 'm', '{}', now(),"
    " case when n % 10 = 0 then 'm' end from generate_series(1, 20000) as n"
)
FINDS = {
    "take_incoming": "incoming_waiting",
    "move_incoming": "incoming_pkey",
    "start_incoming": "incoming_pkey",
    "find_incoming": "incoming_pkey",
    "cancel_incoming": "incoming_pkey",
    "incoming_backlog": "incoming_waiting",
    "purge_incoming": "incoming_same incoming_pkey",
}


@pytest.mark.parametrize("fill", ["", FILL], ids=["empty", "full"])
async def test_rows_are_found_by_index_and_nothing_is_written_past_the_fence(
    hand: asyncpg.Connection[Any], fill: str
) -> None:
    """C1, M3."""
    await hand.execute(f"alter table coterie.incoming set (autovacuum_enabled = off); {fill}")
    if fill:
        await hand.execute("vacuum analyze coterie.incoming")
    await hand.execute(session_settings("writer", application="plans", limits=LONG))
    for name, indexes in FINDS.items():
        plan = await plan_of(hand, SQL[name])
        for node in nodes(plan):
            if node.get("Relation Name") == "incoming" and "Scan" in node["Node Type"]:
                assert node.get("Index Name", "a walk") in indexes.split(), f"{name}: {node}"
    for name in ("move_incoming", "start_incoming"):
        plan = await plan_of(hand, SQL[name])
        assert unfenced(plan) == [], name
        parts = named(plan)
        assert parts["held"]["Node Type"] == parts["me"]["Node Type"] == "LockRows", name
        assert "me" in read_by(parts["held"], parts), name
