"""Plans of the fenced statements and of machine ids: rows by key, on tables that are empty, full or bloated."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage.postgres.connector import session_settings
from coterie.storage.postgres.machine_ids import SQL as MACHINES
from coterie.storage.postgres.writer import SQL as WRITES
from tests.unit.postgres.conftest import LONG, new_storage, stranger

if TYPE_CHECKING:
    from collections.abc import Iterator

    import asyncpg

pytestmark = pytest.mark.postgres

SEATS, EPOCHS, KEYS = "array['s1', 's2']::text[]", "array[1, 1]::bigint[]", "array['k1', 'k2']::text[]"
BYTES, TTLS, STAMPS = "array['a', 'b']::bytea[]", "array[1, null]::float8[]", "array[1, 2]::bigint[]"
HOT = {
    "write_states": f"'default', 'r1', {SEATS}, {EPOCHS}, {KEYS}, array['a', 'b']::bytea[], array[0, 1]::bigint[]",
    "claim_states": f"'default', 'r1', {SEATS}, {EPOCHS}, {KEYS}",
    "put_kv": f"'default', 'r1', {SEATS}, {EPOCHS}, {KEYS}, {BYTES}, {STAMPS}, {TTLS}",
    "swap_kv": f"'default', 'r1', {SEATS}, {EPOCHS}, {KEYS}, {STAMPS}, {BYTES}, {STAMPS}, {TTLS}",
    "remove_kv": f"'default', 'r1', {SEATS}, {EPOCHS}, {KEYS}",
    "verify": f"'default', 'r1', {SEATS}, {EPOCHS}",
    "extend": "'default', 1, 'r1', 60, 1000",
    "give_back": "'default', 1, 'r1'",
    "lease": "'default', 'r1', 60, 1000",
}
SQL = {**WRITES, **MACHINES}
KEY = {"kv": "key ", "states": "key ", "seats": "name ", "runners": "id ", "machines": "id "}
"""By which column a row of each table is found, besides the cluster."""

FILL = [
    """insert into coterie.runners (cluster, id, name, address, host_id, groups, weight, version, knows)
       select 'default', 'r' || i, '', '', '', '{}', 1, '', '{}' from generate_series(1, 100) as i""",
    """insert into coterie.seats (cluster, name, "group", holder, epoch)
       select 'default', 's' || i, 'default', 'r' || i % 100 + 1, 1 from generate_series(1, 3000) as i""",
    """insert into coterie.states select 'default', 'k' || i, 's' || i % 3000, 'value', 1, 1
       from generate_series(1, 50000) as i""",
    "insert into coterie.kv select 'default', 'k' || i, 'value', 1 from generate_series(1, 50000) as i",
    MACHINES["stock"].replace("$1", "'default'"),
]
ANALYZE = [
    "vacuum analyze coterie.kv",
    "vacuum analyze coterie.states",
    "vacuum analyze coterie.seats",
    "vacuum analyze coterie.runners",
]
BLOAT = [
    "delete from coterie.kv where key not like '%000'",
    "delete from coterie.states where key not like '%000'",
    "delete from coterie.seats where name not like '%00'",
]
TABLES = {
    "empty": [],
    "grown without statistics": FILL,
    "full": FILL + ANALYZE,
    "bloated": FILL + ANALYZE + BLOAT,
    "bloated and analyzed": FILL + BLOAT + ["analyze"],
}


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


async def plan_of(connection: asyncpg.Connection[Any], sql: str, values: str) -> dict[str, Any]:
    await connection.execute(f"prepare hot as {sql}")
    text = await connection.fetchval(f"explain (format json) execute hot({values})")
    await connection.execute("deallocate hot")
    plan: dict[str, Any] = json.loads(text)[0]["Plan"]
    return plan


def problems(name: str, plan: dict[str, Any]) -> list[str]:
    """Scans that walk more than the rows that were asked for.

    A lease looks at the 1,024 rows of its cluster. Seats may be looked for among those that the runner holds.
    """
    found = []
    for node in nodes(plan):
        if (table := node.get("Relation Name")) is None or node["Node Type"] == "ModifyTable":
            continue
        condition = node.get("Index Cond", "").replace("(key)::text", "key")
        by_key = node.get("Index Name") == f"{table}_pkey" and KEY[table] in condition
        of_few = (name == "lease" and table == "machines") or "(holder = " in condition
        if not (by_key or of_few):
            found.append(f"{node['Node Type']} of {table} by {condition or 'nothing'}")
    return found


@pytest.mark.parametrize("tables", TABLES)
async def test_fenced_statements_and_machine_ids_find_rows_by_key(postgres_url: str, tables: str) -> None:
    """Never a walk over seats, states or runners, whatever the planner believes [M3]."""
    async with new_storage(postgres_url):
        pass
    async with stranger(postgres_url) as connection:
        for table in KEY:
            await connection.execute(f"alter table coterie.{table} set (autovacuum_enabled = off)")
        for statement in TABLES[tables]:
            await connection.execute(statement)
        await connection.execute(session_settings("writer", application="plans", limits=LONG))
        for name, values in HOT.items():
            plan = await plan_of(connection, SQL[name], values)
            assert problems(name, plan) == [], f"{name}: {json.dumps(plan, indent=1)}"


async def test_no_state_is_locked_before_the_fence_has_given_its_row(postgres_url: str) -> None:
    """C1: in every plan the lookup of a state is the inner side of a join whose outer side has read `held`."""
    async with new_storage(postgres_url):
        pass
    async with stranger(postgres_url) as connection:
        await connection.execute(session_settings("writer", application="plans", limits=LONG))
        plan = await plan_of(connection, SQL["write_states"], HOT["write_states"])
    updated = next(node for node in nodes(plan) if node.get("Subplan Name") == "CTE updated")
    (join,) = [node for node in nodes(updated) if any(part["Node Type"] == "LockRows" for part in inner(node))]
    assert "held" in {node.get("CTE Name") for node in nodes(join["Plans"][0])}


def inner(node: dict[str, Any]) -> list[dict[str, Any]]:
    """The inner side of a join, without the subquery's wrapping."""
    sides = [part for part in node.get("Plans", []) if part.get("Parent Relationship") == "Inner"]
    return [each for side in sides for each in (side, *side.get("Plans", []))]


async def test_a_walk_is_seen(postgres_url: str) -> None:
    """That the tests above can fail."""
    async with new_storage(postgres_url):
        pass
    async with stranger(postgres_url) as connection:
        await connection.execute(session_settings("writer", application="plans", limits=LONG))
        careless = SQL["write_states"].replace("s.cluster = $1 and s.key = i.key", "s.cluster = $1")
        assert careless != SQL["write_states"]
        assert problems("write_states", await plan_of(connection, careless, HOT["write_states"])) != []
