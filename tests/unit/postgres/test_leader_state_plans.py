"""Plans of what leaders write: rows by key, on tables that are empty, full or bloated; expired ones by their index."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage.postgres.connector import session_settings
from coterie.storage.postgres.writer import SQL
from tests.unit.postgres import test_states_plans as plans
from tests.unit.postgres.conftest import LONG, new_storage, stranger
from tests.unit.postgres.test_states_plans import BYTES, EPOCHS, KEYS, SEATS, STAMPS, TTLS, nodes, plan_of

if TYPE_CHECKING:
    import asyncpg

pytestmark = pytest.mark.postgres

MINE = f"'default', 'r1', {SEATS}, {EPOCHS}"
TEXTS = "array['x', null]::text[]"
HOT = {
    "save_states": f"{MINE}, {KEYS}, {BYTES}, array[0, 1]::bigint[], {TTLS}, array[20, 20]::int[]",
    "save_state": "'default', 'r1', 's1', 1, 'k1', 'x', 1, null, 20",
    "set_aside": f"{MINE}, {KEYS}, array['why', 'why']::text[], 5",
    "begin_execution": f"{MINE}, array['r', 'r']::text[], {TTLS}",
    "stamp_executions": f"{MINE}, {SEATS}, {STAMPS}, {TTLS}, {TTLS}, {TEXTS}, {TTLS}, {KEYS}, {STAMPS}, {STAMPS}",
    "peek_state": "'default', 'k1'",
    "history_of_state": "'default', 'k1'",
    "purge_states": "'default', 100",
}
PLACES = {
    "states": ("states_pkey", "key "),
    "state_history": ("state_history_pkey", "key "),
    "executions": ("executions_pkey", "seat "),
    "seats": ("seats_pkey", "name "),
    "runners": ("runners_pkey", "id "),
}
"""By which index and column a row of each table is found, besides the cluster."""

FILL = [
    """insert into coterie.state_history (cluster, key, slot, version, epoch, runner, saved_at, value)
       select 'default', 'k' || i, slot, slot, 1, 'r1', now(), 'value'
       from generate_series(1, 2000) as i, generate_series(-5, 19) as slot""",
    """insert into coterie.executions (cluster, seat, epoch, leader, known_at, since_at, alive_at)
       select 'default', 's' || i, 1, 'r1', now(), now(), now() from generate_series(1, 3000) as i""",
    "update coterie.states set expires_at = now() where key like '%77'",
    "update coterie.states set expires_at = now() + interval '1 day' where key like '%1'",
]
BLOAT = [
    "delete from coterie.state_history where key not like '%000'",
    "delete from coterie.executions where seat not like '%00'",
]
TABLES = {
    "empty": [],
    "grown without statistics": plans.FILL + FILL,
    "full": plans.FILL + FILL + ["vacuum analyze coterie." + name for name in PLACES],
    "bloated and analyzed": plans.FILL + FILL + plans.BLOAT + BLOAT + ["analyze"],
}


def problems(name: str, plan: dict[str, Any]) -> list[str]:
    """Scans that walk more than the rows that were asked for."""
    found = []
    for node in nodes(plan):
        if (table := node.get("Relation Name")) is None or node["Node Type"] == "ModifyTable":
            continue
        index, condition = node.get("Index Name"), node.get("Index Cond", "").replace("(key)::text", "key")
        place, column = PLACES[table]
        by_key = index == place and column in condition
        expired = name == "purge_states" and index == "states_expiring" and "expires_at <=" in condition
        if not (by_key or expired or "(holder = " in condition):
            found.append(f"{node['Node Type']} of {table} by {condition or 'nothing'}")
    return found


async def prepared(connection: asyncpg.Connection[Any], tables: str) -> None:
    for table in PLACES:
        await connection.execute(f"alter table coterie.{table} set (autovacuum_enabled = off)")
    for statement in TABLES[tables]:
        await connection.execute(statement)
    await connection.execute(session_settings("writer", application="plans", limits=LONG))


@pytest.mark.parametrize("tables", TABLES)
async def test_what_leaders_write_finds_rows_by_key(postgres_url: str, tables: str) -> None:
    """M3: never a walk over states, histories, seats or runners, whatever the planner believes."""
    async with new_storage(postgres_url):
        pass
    async with stranger(postgres_url) as connection:
        await prepared(connection, tables)
        for name, values in HOT.items():
            plan = await plan_of(connection, SQL[name], values)
            assert problems(name, plan) == [], f"{name}: {json.dumps(plan, indent=1)}"


async def test_no_state_is_locked_before_the_fence_has_given_its_row(postgres_url: str) -> None:
    """C1: in every plan the lookup of a state is the inner side of a join whose outer side has read `held`."""
    async with new_storage(postgres_url):
        pass
    async with stranger(postgres_url) as connection:
        await prepared(connection, "empty")
        plan = await plan_of(connection, SQL["save_states"], HOT["save_states"])
        careless = SQL["save_states"].replace("s.cluster = $1 and s.key = i.key", "s.cluster = $1")
        assert careless != SQL["save_states"]
        walk = await plan_of(connection, careless, HOT["save_states"])
    updated = next(node for node in nodes(plan) if node.get("Subplan Name") == "CTE updated")
    (join,) = [node for node in nodes(updated) if any(part["Node Type"] == "LockRows" for part in plans.inner(node))]
    assert "held" in {node.get("CTE Name") for node in nodes(join["Plans"][0])}
    assert problems("save_states", walk) != [], "that these tests can fail"
