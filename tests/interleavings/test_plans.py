"""The plans of the fenced statements: every part that writes reads the fence, and the fence is locked [M3]."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from coterie.storage import statements
from coterie.storage.postgres.connections import Limits, session_settings
from tests.interleavings.ground import SQL
from tests.interleavings.plants import PLANTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.interleavings.conftest import NewDatabase

pytestmark = [pytest.mark.postgres, pytest.mark.interleavings]

FENCED = [name for name in statements.load("coterie.storage.postgres.sql", "fence.sql") if name != "verify"]
BACKLOG = """
insert into coterie.states select 'c', 'k' || n, 's' || n % 100, 'x', 1, 1 from generate_series(1, 20000) as n;
insert into coterie.seats (cluster, name, "group") select 'c', 's' || n, 'default' from generate_series(1, 100) as n;
insert into coterie.kv select 'c', 'k' || n, 'x', 1 from generate_series(1, 20000) as n;
"""


@pytest.fixture(params=["empty", "unknown backlog", "backlog"])
async def session(request: pytest.FixtureRequest, new_database: NewDatabase) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A session of ours on tables that are empty, full without the planner knowing, or full."""
    connection = await asyncpg.connect(new_database("" if request.param == "empty" else BACKLOG), ssl=False)
    if request.param == "backlog":
        await connection.execute("analyze")
    await connection.execute(session_settings("writer", application="plans", limits=Limits()))
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
