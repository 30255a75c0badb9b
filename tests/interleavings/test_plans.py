"""The plans of ownership: fenced parts read the fence, which is locked [M3]; rows are found by index, in name order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from coterie.storage import statements
from coterie.storage.postgres.connector import ConnectionLimits, session_settings
from tests.interleavings.database import SQL
from tests.interleavings.plants import PLANTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.interleavings.conftest import NewDatabase

pytestmark = pytest.mark.postgres

FENCED = [name for name in statements.load("coterie.storage.postgres.sql", "fenced_writes.sql") if name != "verify"]
BACKLOG = """
insert into coterie.runners (id, cluster, name, address, host_id, groups, weight, version, knows)
select 'r' || n, 'c', '', '', '', '{default}', 1, '', '{}' from generate_series(1, 200) as n;
insert into coterie.leases (id, cluster, expires_at, counter)
select 'r' || n, 'c', now(), 1 from generate_series(1, 200) as n;
insert into coterie.states select 'c', 'k' || n, 's' || n % 100, 'x', 1, 1 from generate_series(1, 20000) as n;
insert into coterie.seats (cluster, name, "group", holder)
select 'c', 's' || n, 'default', case when n % 10 > 0 then 'r' || n % 200 + 1 end from generate_series(1, 3000) as n;
insert into coterie.kv select 'c', 'k' || n, 'x', 1 from generate_series(1, 20000) as n;
"""


@pytest.fixture(params=["empty", "unknown backlog", "backlog"])
async def session(request: pytest.FixtureRequest, new_database: NewDatabase) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A session of ours on tables that are empty, full without the planner knowing, or full."""
    connection = await asyncpg.connect(new_database("" if request.param == "empty" else BACKLOG), ssl=False)
    if request.param == "backlog":
        await connection.execute("analyze")
    await connection.execute(session_settings("writer", application="plans", limits=ConnectionLimits()))
    yield connection
    await connection.close()


async def test_every_part_that_writes_joins_the_fence(session: asyncpg.Connection[Any]) -> None:
    for name in FENCED:
        assert await _unfenced(session, SQL[name]) == [], name


async def test_a_part_that_joins_no_fence_is_seen(session: asyncpg.Connection[Any]) -> None:
    """The planted bug, so that this test is known to look at the right thing."""
    plant = next(plant for plant in PLANTS if plant.name == "a CTE that joins no fence")
    assert await _unfenced(session, plant.sql["write_states"]) == ["states", "states"]


async def test_the_fence_locks_the_seats_and_reads_the_locked_runner(session: asyncpg.Connection[Any]) -> None:
    for name in FENCED:
        parts = {
            node["Subplan Name"]: node for node in _nodes(await _plan(session, SQL[name])) if "Subplan Name" in node
        }
        held, me = parts["CTE held"], parts["CTE me"]
        assert (held["Node Type"], me["Node Type"]) == ("LockRows", "LockRows"), name
        assert "me" in {node.get("CTE Name") for node in _nodes(held)}, name


async def test_rows_are_found_by_their_key(session: asyncpg.Connection[Any]) -> None:
    """On a table that looks empty the planner must not choose to walk it."""
    for name in FENCED:
        for node in _nodes(await _plan(session, SQL[name])):
            if node.get("Relation Name") in ("states", "kv") and "Scan" in node["Node Type"]:
                assert "key = " in node["Index Cond"], f"{name}: {node}"


@pytest.mark.parametrize(
    ("name", "finds"),
    [
        ("renew", {"leases": "id = $2", "seats": "cluster = $1"}),
        ("view", {"seats": "cluster = $1"}),
        ("release", {"seats": "name = $3"}),
        ("acquire", {"runners": "id = $2", "seats": ""}),
        ("lock_still_lease", {"leases": "id = $2"}),
        ("evict", {"runners": "id = $2"}),
        ("contest", {"seats": "cluster = $1"}),
        ("redefine", {"seats": "cluster = $1", "fingerprints": "seat = "}),
    ],
)
async def test_ownership_finds_rows_by_index(
    session: asyncpg.Connection[Any], name: str, finds: dict[str, str]
) -> None:
    """The first scan of each table; what a renewal tells of the others is a walk over all leases, as it must be."""
    seen: set[str] = set()
    for node in _nodes(await _plan(session, SQL[name])):
        table = node.get("Relation Name")
        if "Scan" in node["Node Type"] and table in finds.keys() - seen:
            seen.add(table)
            assert "Index" in node["Node Type"], f"{name}: {node}"
            assert finds[table] in node["Index Cond"], f"{name}: {node}"
    assert seen == finds.keys()


async def test_free_seats_are_locked_in_name_order_and_the_runner_before(session: asyncpg.Connection[Any]) -> None:
    """C4 c: by a sort, or by an index that has them in this order."""
    plan = await _plan(session, SQL["acquire"])
    free = next(node for node in _nodes(plan) if node.get("Subplan Name") == "CTE free")
    assert free["Node Type"] == "LockRows"
    below = list(_nodes(free))
    (scan,) = (node for node in below if node.get("Relation Name") == "seats")
    assert scan["Index Name"] == "seats_pkey" or any(node.get("Sort Key") for node in below)
    assert "me" in {node.get("CTE Name") for node in below}


async def _unfenced(session: asyncpg.Connection[Any], sql: str) -> list[str]:
    """The tables that a statement writes without reading the fence."""
    writers = [node for node in _nodes(await _plan(session, sql)) if node["Node Type"] == "ModifyTable"]
    assert writers, "it writes nothing"
    return [w["Relation Name"] for w in writers if "held" not in {node.get("CTE Name") for node in _nodes(w)}]


async def _plan(session: asyncpg.Connection[Any], sql: str) -> Any:
    """The plan that serves every value: our sessions ask for no other."""
    count = len((await session.prepare(sql)).get_parameters())
    await session.execute(f"prepare looked_at as {sql}")
    text = await session.fetchval(f"explain (format json) execute looked_at({', '.join(['null'] * count)})")
    await session.execute("deallocate looked_at")
    return json.loads(text)[0]["Plan"]


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)
