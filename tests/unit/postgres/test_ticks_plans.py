"""Plans of crons and ticks: rows by key, on tables that are empty, bloated or full of history, and behind the fence."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage.contracts.ticks import CronTakeover
from coterie.storage.interface import Claim
from coterie.storage.postgres.connector import session_settings
from coterie.storage.postgres.writer import SQL
from tests.unit.postgres.conftest import LONG, Grown, new_storage, stranger
from tests.unit.postgres.test_states_plans import nodes, plan_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import asyncpg

    from tests.support.postgres import Server

pytestmark = pytest.mark.postgres

SEATS = "array['cron:c1', 'cron:c2']::text[]"
MINE = f"'default', 'r1', {SEATS}, array[1, 1]::bigint[], array['c1', 'c2']::text[]"
TEXTS, WHOLE, PARTS = "array['x', '']::text[]", "array[1, 2]::bigint[]", "array[1, null]::float8[]"
TIMES, NOTHING = "array[now(), now()]::timestamptz[]", "array[null, null]::text[]"
HOT = {
    "look_at_crons": f"{MINE}, {TEXTS}",
    "take_crons": f"{MINE}, {TEXTS}",
    "claim_ticks": f"{MINE}, {TEXTS}, {TIMES}, {PARTS}, {SEATS}, {TIMES}, {TIMES}, {WHOLE}, {TEXTS}",
    "note_ticks": f"{MINE}, array['manual', 'scheduled']::text[], {TIMES}, {WHOLE}, {WHOLE}, {NOTHING},"
    f" array[true, false], {TEXTS}, {TEXTS}, {PARTS}, {PARTS}, {TEXTS}, {WHOLE}, {WHOLE}, {TEXTS}",
    "trigger_tick": "'default', 'cron:c1', 'c1', null",
    "pause_cron": "'default', 'cron:c1', 'c1'",
    "resume_cron": "'default', 'cron:c1', 'c1'",
    "get_tick": "'default', 'c1', 'manual', now(), 1",
    "tick_history": "'default', 'c1', 20, now()",
    "tick_histories": "'default', array['c1', 'c2']::text[], 20, now(), now() - interval '1 h'",
    "list_crons": "'default'",
    "purge_ticks": "'default', 3600, 100",
}
FENCED = ("take_crons", "claim_ticks", "note_ticks")
NAMES = ("crons", "cron_pauses", "ticks", "seats", "runners")

CRONS = [
    """insert into coterie.runners (cluster, id, name, address, host_id, groups, weight, version, knows)
       select 'default', 'r' || i, '', '', '', '{}', 1, '', '{}' from generate_series(1, 100) as i""",
    """insert into coterie.seats (cluster, name, "group", holder, epoch)
       select 'default', 'shard:default:' || i, 'default', 'r' || i % 99 + 2, 1 from generate_series(1, 2000) as i""",
    """insert into coterie.seats (cluster, name, "group", holder, epoch)
       select 'default', 'cron:c' || i, 'default', 'r1', 1 from generate_series(0, 999) as i""",
    "analyze coterie.seats",  # the fence is judged elsewhere: before 17 it walks seats while that table looks empty
    """insert into coterie.crons (cluster, name, definition, last_at)
       select 'default', 'c' || i, '{}', now() from generate_series(0, 999) as i""",
    """insert into coterie.cron_pauses (cluster, name, since_at, until_at)
       select 'default', 'c' || i, now() - j * interval '2 s', now() - j * interval '2 s' + interval '1 s'
       from generate_series(0, 999) as i, generate_series(1, 10) as j""",
]
HISTORY = [
    """insert into coterie.ticks
           (cluster, name, kind, at, seq, until_at, epoch, attempt, outcome, runner, claimed_at, ended_at)
       select 'default', 'c' || i % 10, 'scheduled', t.at, 0, t.at, 1, 1,
           case when i % 2 > 0 then 'ran' else 'skipped' end, 'r1', t.at, t.at
       from generate_series(1, 100000) as i, lateral (select now() - i * interval '1 s' as at) as t""",
    """insert into coterie.ticks (cluster, name, kind, at, seq, until_at, epoch, attempt, runner, claimed_at)
       select 'default', 'c' || i, 'manual', now(), 1, now(), 0, 0, '', now() from generate_series(1, 5) as i""",
]
BLOAT = [
    *["update coterie.crons set runs = runs + 1"] * 10,
    "update coterie.ticks set note = 'x'",
    "delete from coterie.ticks where outcome is not null and name <> 'c1'",
]
OFF = [f"alter table coterie.{name} set (autovacuum_enabled = off)" for name in NAMES]
ANALYZE = ["vacuum analyze coterie." + name for name in NAMES]
TABLES = {
    "empty": [],
    "grown without statistics": CRONS + HISTORY,
    "grown since the last look": [*ANALYZE, *CRONS, *HISTORY],
    "full": CRONS + HISTORY + ANALYZE,
    "freshly bloated": CRONS + HISTORY + ANALYZE + BLOAT,
    "bloated and analyzed": CRONS + HISTORY + BLOAT + ["analyze"],
}
FEW = {
    "crons_pkey": ["name "],
    "cron_pauses_pkey": ["name ", "until_at "],
    "runners_pkey": ["id "],
    "seats_pkey": ["name "],
    "seats_holder": ["holder "],
    "ticks_pkey": ["name ", "kind ", "at "],
    "ticks_open": ["name "],
}
"""The indexes by which few rows are found, each with its columns that must be given."""
FIRST = {
    "tick_history": {"ticks_pkey": FEW["ticks_pkey"]},
    "tick_histories": {"ticks_pkey": FEW["ticks_pkey"]},
    "list_crons": {"ticks_latest": ["name "]},
    "purge_ticks": {"ticks_ended": ["ended_at "]},
}
"""Those of which the first or last rows are wanted: they lie in this order, and nothing sorts them."""
PAGES_MOST = {"list_crons": 16_000, "purge_ticks": 1_500, "tick_histories": 300}
"""Of one statement, 100 unless told: for 1,000 crons, for 100 ticks that go, for the last of two crons. Measured:
3 to 35, 7,200, 410 and 153."""


def problems(name: str, plan: dict[str, Any]) -> list[str]:
    """Scans that walk more than the rows that were asked for."""
    found = []
    for node in nodes(plan):
        table, index, condition = node.get("Relation Name"), node.get("Index Name", ""), node.get("Index Cond", "")
        if table is None or node["Node Type"] in ("ModifyTable", "Tid Scan"):
            continue
        given = FIRST.get(name, {}).get(index) or FEW.get(index)
        few = given is not None and all(f"({column}" in condition for column in given)
        if not few and (name, table) != ("purge_ticks", "cron_pauses"):  # there are few of them
            found.append(f"{node['Node Type']} of {table} by {condition or 'nothing'}")
    for index in FIRST.get(name, ()):
        sorts = [node for node in nodes(plan) if node["Node Type"].endswith("Sort") and inside(node, index)]
        limits = [node for node in nodes(plan) if node["Node Type"] == "Limit" and inside(node, index)]
        if len(limits) - len(sorts) < 1:
            found.append(f"rows of {index} are sorted before the first ones are chosen")
    return found


def inside(node: dict[str, Any], index: str) -> bool:
    return any(each.get("Index Name") == index for each in nodes(node))


@pytest.fixture(scope="module")
def grown(postgres_server: Server, postgres_template: str) -> Iterator[Grown]:
    grown = Grown(postgres_server, postgres_template, OFF, CRONS + HISTORY)
    yield grown
    grown.close()


@pytest.fixture
def tables() -> str:
    """How they are where the test does not say."""
    return "full"


@pytest.fixture
def filled_url(grown: Grown, tables: str) -> Iterator[str]:
    """The URL of a database in which tables are like that."""
    url = grown.copy(TABLES[tables])
    yield url
    grown.drop(url)


@asynccontextmanager
async def writer(url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A connection set up as the writer's."""
    async with stranger(url) as connection:
        await connection.execute(session_settings("writer", application="plans", limits=LONG))
        yield connection


@pytest.mark.parametrize("tables", TABLES)
async def test_crons_and_ticks_are_found_by_key(filled_url: str) -> None:
    """M3: never a walk over ticks that have ended, whatever the planner believes; and so it is when they are run."""
    async with writer(filled_url) as connection:
        for name, values in HOT.items():
            plan = await plan_of(connection, SQL[name], values)
            assert problems(name, plan) == [], f"{name}: {json.dumps(plan, indent=1)}"
            pages = await pages_of(connection, SQL[name], values)
            assert pages <= PAGES_MOST.get(name, 100), name


async def pages_of(connection: asyncpg.Connection[Any], sql: str, values: str) -> int:
    """How many pages it touches, the least of a few tries: whoever comes first marks the dead that it meets."""
    await connection.execute(f"prepare hot as {sql}")
    tries: list[int] = []
    for _ in range(3):
        await connection.execute("begin")
        text = await connection.fetchval(f"explain (analyze, buffers, format json) execute hot({values})")
        await connection.execute("rollback")
        plan = json.loads(text)[0]["Plan"]
        tries.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    await connection.execute("deallocate hot")
    return min(tries)


async def test_a_walk_is_seen(filled_url: str) -> None:
    """That the test above can fail."""
    async with writer(filled_url) as connection:
        for name, index in (("look_at_crons", "open"), ("list_crons", "latest"), ("purge_ticks", "ended")):
            await connection.execute(f"begin; drop index coterie.ticks_{index}")
            assert problems(name, await plan_of(connection, SQL[name], HOT[name])) != [], name
            await connection.execute("rollback")
        for name, old, new in (
            ("note_ticks", "and kind = i.kind and at = i.at and seq = i.seq", "and note = i.note"),
            ("tick_history", "order by at desc, seq desc", "order by claimed_at desc"),
        ):
            assert old in SQL[name]
            sql = SQL[name].replace(old, new).replace("and outcome is null\n", "\n")
            assert problems(name, await plan_of(connection, sql, HOT[name])) != [], name


@pytest.mark.parametrize("tables", ["empty", "full"])
async def test_nothing_is_locked_before_the_fence_has_given_its_row(filled_url: str) -> None:
    """C1: every part that writes reads `held`, or what has read it, and `held` has locked the seats after `me`."""
    async with writer(filled_url) as connection:
        plans = {name: await plan_of(connection, SQL[name], HOT[name]) for name in FENCED}
        careless = SQL["take_crons"].replace("join held on held.name = i.seat and held.epoch = i.epoch", "")
        walk = await plan_of(connection, careless.replace("held.runner", "'' as runner"), HOT["take_crons"])
    for name, plan in plans.items():
        parts = {each["Subplan Name"]: each for each in nodes(plan) if "Subplan Name" in each}
        assert (parts["CTE me"]["Node Type"], parts["CTE held"]["Node Type"]) == ("LockRows", "LockRows"), name
        assert "CTE me" in read_by(parts["CTE held"], plan), name
        assert unfenced(plan) == [], name
    assert unfenced(walk) == ["ticks", "crons"], "that this test can fail"


def unfenced(plan: dict[str, Any]) -> list[str]:
    """The tables that are written without reading the fence."""
    writers = [node for node in nodes(plan) if node["Node Type"] == "ModifyTable"]
    assert writers, "it writes nothing"
    return [node["Relation Name"] for node in writers if "CTE held" not in read_by(node, plan)]


def read_by(node: dict[str, Any], plan: dict[str, Any]) -> set[str]:
    """The parts of a statement that one of its parts reads, and what these read.

    Not by way of the clock: that one only waits for the fence, and goes on whatever it says.
    """
    parts = {each["Subplan Name"]: each for each in nodes(plan) if "Subplan Name" in each}
    found = {"CTE clock"}
    ahead = [node]
    while ahead:
        names = {f"CTE {each['CTE Name']}" for each in own_nodes(ahead.pop()) if "CTE Name" in each} - found
        found |= names
        ahead += [parts[name] for name in names]
    return found


def own_nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A part of a statement without the other parts that are made below it."""
    yield node
    for each in node.get("Plans", []):
        if not each.get("Subplan Name", "").startswith("CTE "):
            yield from own_nodes(each)


async def test_a_take_of_a_thousand_crons_with_nothing_new_neither_writes_nor_locks(filled_url: str) -> None:
    """It is what a sweep does every few seconds."""
    takes = [CronTakeover(Claim("r1", f"cron:c{number}", 1), f"c{number}", "{}") for number in range(1000)]
    async with new_storage(filled_url) as storage, writer(filled_url) as connection:
        first = await storage.ticks.take(takes)
        assert sum(len(book.open) for book in first.values()) == 5
        before = await marks(connection)
        await connection.execute("begin; select from coterie.crons for update; select from coterie.seats for update")
        second = await storage.ticks.take(takes)
        await connection.execute("rollback")
        assert {name: book.open for name, book in second.items()} == {name: book.open for name, book in first.items()}
        after = await marks(connection)
        await storage.ticks.take([CronTakeover(takes[0].claim, "c0", "new")])
        last = await marks(connection)
    assert after == before
    assert last != after, "that this test can fail"


async def marks(connection: asyncpg.Connection[Any]) -> list[Any]:
    """The version that each row is in."""
    tables = [await connection.fetch(f"select xmin, ctid from coterie.{table} order by ctid") for table in NAMES]
    return [tuple(row) for rows in tables for row in rows]
