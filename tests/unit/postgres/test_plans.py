"""Plans of the hot statements: by key on a table that is empty, full or bloated, also if planned when it was empty."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage.postgres import session as session_module
from coterie.storage.postgres.connector import session_settings
from coterie.storage.postgres.writer import SQL
from tests.unit.postgres.conftest import LONG, new_storage, stranger

if TYPE_CHECKING:
    from collections.abc import Iterator

    import asyncpg

pytestmark = pytest.mark.postgres

KEYS, STAMPS = "array['k1', 'k2']::text[]", "array[1, 2]::bigint[]"
VALUES, TTLS = "array['a', 'b']::bytea[]", "array[null, 1]::float8[]"
HOT = {
    "get": "'default', 'k1'",
    "put": f"'default', {KEYS}, {VALUES}, {STAMPS}, {TTLS}",
    "insert": f"'default', {KEYS}, {VALUES}, {STAMPS}, {TTLS}",
    "replace": f"'default', {KEYS}, {STAMPS}, {VALUES}, {STAMPS}, {TTLS}",
    "discard": f"'default', {KEYS}, {STAMPS}",
    "present": f"'default', {KEYS}",
    "remove": f"'default', {KEYS}",
    "count": "'default', 'k1', 'k2'",
    "page": "'default', 100, 'k1', 'k2'",
    "page_from": "'default', 100, 'k1'",
    "clear": "'default', 100, 'k1', 'k2'",
    "purge": "'default', 100",
}
WALKED = ("discard", "present", "remove", "clear", "purge")  # before 17, until the plan is made anew
FILL = """insert into coterie.kv
    select 'default', 'k' || i, 'value', i, case when i % 2 = 0 then now() + interval '1 hour' end
    from generate_series(1, 100000) as i"""
STATES = {
    "empty": [],
    "empty and analyzed": ["vacuum analyze coterie.kv"],
    "grown without statistics": [FILL],
    "100,000 rows": [FILL, "vacuum analyze coterie.kv"],
    "bloated": [FILL, "vacuum analyze coterie.kv", "delete from coterie.kv where stamp % 1000 <> 0"],
    "bloated and analyzed": [FILL, "delete from coterie.kv where stamp % 1000 <> 0", "analyze coterie.kv"],
}


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


async def plan_of(connection: asyncpg.Connection[Any], name: str) -> dict[str, Any]:
    await connection.execute(f"prepare hot as {SQL[name]}")
    text = await connection.fetchval(f"explain (format json) execute hot({HOT[name]})")
    await connection.execute("deallocate hot")
    plan: dict[str, Any] = json.loads(text)[0]["Plan"]
    return plan


@pytest.mark.parametrize("state", STATES)
async def test_hot_statements_find_rows_by_key(postgres_url: str, state: str) -> None:
    """Never a walk over the table, the cluster, or the wrong index; and rows in key order [M3]."""
    async with new_storage(postgres_url):
        pass
    async with stranger(postgres_url) as connection:
        await connection.execute("alter table coterie.kv set (autovacuum_enabled = off)")
        for statement in STATES[state]:
            await connection.execute(statement)
        await connection.execute(session_settings("writer", application="plans", limits=LONG))
        exempt = WALKED if state == "empty and analyzed" and connection.get_server_version() < (17,) else ()
        for name in sorted({*HOT} - {*exempt}):
            plan = await plan_of(connection, name)
            assert problems(name, plan) == [], f"{name}: {json.dumps(plan, indent=1)}"


def problems(name: str, plan: dict[str, Any]) -> list[str]:
    found = []
    for node in nodes(plan):
        kind, cond = node["Node Type"], node.get("Index Cond", "")
        if kind in ("Seq Scan", "Bitmap Heap Scan") and node["Relation Name"] == "kv":
            found.append(f"{kind} of the table")
        if node.get("Operation") == "Insert" and node["Conflict Arbiter Indexes"] != ["kv_pkey"]:
            found.append("conflicts are not found by key")
        if kind in ("Index Scan", "Index Only Scan"):
            by_key = node["Index Name"] == "kv_pkey" and "key " in cond.replace("(key)::text", "key")
            by_expiry = name == "purge" and node["Index Name"] == "kv_expiry" and "expires_at <=" in cond
            if not (by_key or by_expiry):
                found.append(f"{node['Index Name']} by {cond}")
    if name not in ("put", "insert") and not any("Index" in node["Node Type"] for node in nodes(plan)):
        found.append("no index at all")
    return found


async def test_a_plain_join_walks_the_cluster_on_an_empty_table(postgres_url: str) -> None:
    """Why `replace` is written as it is, and that the test above can fail."""
    async with new_storage(postgres_url):
        pass
    async with stranger(postgres_url) as connection:
        await connection.execute(session_settings("writer", application="plans", limits=LONG))
        await connection.execute("""prepare hot as
            update coterie.kv as kv set stamp = u.stamp
            from unnest($2::text[], $3::bigint[]) as u (key, stamp) where kv.cluster = $1 and kv.key = u.key""")
        text = await connection.fetchval(f"explain (format json) execute hot({HOT['discard']})")
        assert problems("replace", json.loads(text)[0]["Plan"]) != []


async def test_plans_are_made_anew_every_few_seconds(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan from the time when the table was empty does not stay, and the old ones do not pile up."""
    ours = "select name from pg_prepared_statements where statement = $1"
    async with new_storage(postgres_url, pool_size=1) as storage:

        async def names() -> set[str]:
            await storage.pool.read(SQL["present"], "default", ["a"])
            return {row[0] for row in await storage.pool.read(ours, SQL["present"])}

        first = await names()
        assert len(first) == 1  # it is kept on the server
        assert await names() == first
        monkeypatch.setattr(session_module, "PLAN_S", 0.0)
        (session,) = storage.pool._idle
        session._prepared = {sql: (statement, 0.0) for sql, (statement, _) in session._prepared.items()}
        later = [await names() for _ in range(20)]
        assert first.isdisjoint(later[-1])
        assert len(later[-1]) <= 2
