"""Plans of messages' statements: rows by key whatever the planner believes, and nothing written past the fence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage.postgres.batch import plan as batch_plan
from coterie.storage.postgres.connector import session_settings
from coterie.storage.postgres.writer import SQL
from tests.unit.postgres.conftest import LONG, Grown, stranger
from tests.unit.postgres.test_states_plans import nodes
from tests.unit.postgres.test_ticks_plans import pages_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import asyncpg

    from tests.support.postgres import Server

pytestmark = pytest.mark.postgres

WRITES = {"end_messages", "end_message", "commit_handlers", "set_back"}
FENCED = [*sorted(batch_plan.FENCED & WRITES), "suspect", "mark_suspect", "cancel_fenced"]
STATEMENTS = [
    "insert_messages", "insert_message", "insert_via", "add_message", "read_back", *FENCED, "due", "backlog", "fetch",
    "look", "find", "cancel",
    "revive", "revive_all", "list", "list_newest", "list_newest_pending", "list_dead", "list_tagged",
    "list_tagged_newest", "remove_messages", "remove_dead",
    "purge_messages",
    "count_messages", "count_dead", "discard_messages",
]  # fmt: skip

BY_ID, BY_KEY = ("messages_pkey", " id "), ("messages_key", " key ")
PENDING, FAILED, WALK = ("messages_pending", " seat "), ("messages_failed", " entity_id "), ("messages_pkey", "cluster")
TAGGED = ("message_tags_value", " value ")
FINDS = {
    "read_back": {BY_ID, BY_KEY},
    "end_messages": {BY_ID},
    "end_message": {BY_ID},
    "commit_handlers": {BY_ID, BY_KEY},
    "set_back": {BY_ID},
    "due": {PENDING},
    "backlog": {PENDING, ("messages_pending", "cluster"), ("messages_failed", "cluster")},  # from seat to seat
    "fetch": {BY_ID},
    "look": {BY_ID},
    "find": {BY_KEY},
    "suspect": {PENDING},
    "mark_suspect": {BY_ID},
    "cancel": {BY_ID},
    "cancel_fenced": {BY_ID},
    "revive": {BY_ID},
    "revive_all": {FAILED, BY_ID},
    "list": {BY_ID},  # in order of ids, past one
    "list_newest": {BY_ID},
    "list_newest_pending": {("messages_pending", "cluster"), BY_ID},
    "list_dead": {("messages_failed", "cluster")},
    "list_tagged": {BY_ID, TAGGED},
    "list_tagged_newest": {BY_ID, TAGGED},
    "remove_messages": {WALK, BY_ID},
    "remove_dead": {("messages_failed", "cluster"), BY_ID},
    "purge_messages": {BY_ID},
    "count_messages": {WALK},
    "count_dead": {("messages_failed", "cluster")},
    "discard_messages": {BY_ID},
}
"""By which index, and which of its columns, a statement may look for messages. By their place it always may."""

OFF = ["alter table coterie.messages set (autovacuum_enabled = off)"]
FILL = [
    """insert into coterie.runners (cluster, id, name, address, host_id, groups, weight, version, knows)
       select 'default', 'r' || i, '', '', '', '{}', 1, '', '{}' from generate_series(1, 10) as i""",
    """insert into coterie.seats (cluster, name, "group", holder, epoch)
       select 'default', 's' || i, 'default', 'r' || i % 10 + 1, 1 from generate_series(1, 300) as i""",
    """insert into coterie.states
       select 'default', 'k' || i, 's' || i % 300, 'value', 1, 1 from generate_series(1, 20000) as i""",
    """insert into coterie.messages
           (cluster, id, seat, entity_type, entity_id, method, key, sent_at, due_at, digest, payload, attempts)
       select 'default', lpad(to_hex(i), 32, '0'), 's' || i % 300, 'Account', 'e' || i % 5000, 'add',
           case when i % 3 = 0 then 'k' || i end, now(), now(), '', 'payload', case when i % 1000 = 0 then 1 else 0 end
       from generate_series(1, 100000) as i""",
]
END = "update coterie.messages set status = 1, completed_at = now()"
ANALYZE = "vacuum analyze"
TABLES = {
    "empty": [],
    "empty and analyzed": [ANALYZE],
    "100,000 pending, unknown to the planner": FILL,
    "100,000 pending": [*FILL, ANALYZE],
    "100,000 done": [*FILL, END, ANALYZE],
    "just bloated": [*FILL, ANALYZE, END, "delete from coterie.messages where due_at > '-infinity' and key is null"],
    "bloated and analyzed": [*FILL, END, "delete from coterie.messages where id < lpad('18000', 32, '0')", "analyze"],
}
WALKED = {"suspect", "revive_all", "remove_messages", "remove_dead", "purge_messages", "discard_messages"}
"""Those that find by `id = any(…)`: before 17 that may be a walk as long as the table looks empty, see kv.sql."""


@pytest.fixture(scope="module")
def grown(postgres_server: Server, postgres_template: str) -> Iterator[Grown]:
    grown = Grown(postgres_server, postgres_template, OFF, FILL)
    yield grown
    grown.close()


@pytest.fixture
def filled_url(grown: Grown, tables: str) -> Iterator[str]:
    """The URL of a database in which tables are like that."""
    url = grown.copy(TABLES[tables])
    yield url
    grown.drop(url)


async def plan_of(connection: asyncpg.Connection[Any], sql: str) -> dict[str, Any]:
    """The plan that serves every value: our sessions ask for no other."""
    count = len((await connection.prepare(sql)).get_parameters())
    await connection.execute(f"prepare hot as {sql}")
    text = await connection.fetchval(f"explain (format json) execute hot({', '.join(['null'] * count)})")
    await connection.execute("deallocate hot")
    plan: dict[str, Any] = json.loads(text)[0]["Plan"]
    return plan


def problems(name: str, plan: dict[str, Any]) -> list[str]:
    """Scans of messages and states that walk more than the rows that were asked for."""
    found = []
    for node in nodes(plan):
        table, kind = node.get("Relation Name"), node["Node Type"]
        if table not in ("messages", "message_tags", "states") or kind in ("ModifyTable", "Tid Scan"):
            continue
        ways = {("states_pkey", " key ")} if table == "states" else FINDS[name]
        condition = f"{node.get('Index Cond', '')}".replace("(", " ").replace(")", " ")
        if not any(node.get("Index Name") == index and f" {column.strip()} " in condition for index, column in ways):
            found.append(f"{kind} of {table} by {node.get('Index Name')}, {condition or 'nothing'}")
    return found


@pytest.mark.parametrize(("tables", "newest"), [("100,000 pending", 100_000), ("100,000 done", 7)])
async def test_the_newest_pending_messages_are_found_without_walking_along_what_is_done(
    filled_url: str, tables: str, newest: int
) -> None:
    """Whether they are many, or few and old; no page of what is done is read."""
    async with stranger(filled_url) as connection:
        pending = "id in (lpad('3', 32, '0'), lpad('7', 32, '0'))"
        await connection.execute(f"update coterie.messages set status = 0, completed_at = null where {pending}")
        rows = await connection.fetch(SQL["list_newest_pending"], "default", "~", 2, 0, None, None, None, None)
        assert (len(rows), int(rows[0]["id"], 16)) == (2, newest)
        values = "'default', '~', 2, 0::smallint, null, null, null, null"
        assert await pages_of(connection, SQL["list_newest_pending"], values) < (60 if newest == 7 else 12_000)


@pytest.mark.parametrize("tables", TABLES)
async def test_messages_are_found_by_key(filled_url: str, tables: str) -> None:
    """STACK's trap: an end is found by its id and never through what is pending, a sweep only there; M3."""
    async with stranger(filled_url) as connection:
        await connection.execute(session_settings("writer", application="plans", limits=LONG))
        exempt = WALKED if tables.startswith("empty") and connection.get_server_version() < (17,) else set()
        for name in STATEMENTS:
            plan = await plan_of(connection, SQL[name])
            assert name in exempt or problems(name, plan) == [], f"{name}: {json.dumps(plan, indent=1)}"


@pytest.mark.parametrize("tables", ["empty", "100,000 pending"])
async def test_nothing_is_written_that_does_not_come_through_the_fence(filled_url: str) -> None:
    """C1, M3: each part that writes reads `held`, or what was made of it; both are locked, the runner first."""
    async with stranger(filled_url) as connection:
        await connection.execute(session_settings("writer", application="plans", limits=LONG))
        for name in FENCED:
            plan = await plan_of(connection, SQL[name])
            assert unfenced(plan) == [], name
            parts = named(plan)
            assert parts["held"]["Node Type"] == "LockRows", name
            if "me" in parts:
                assert parts["me"]["Node Type"] == "LockRows", name
                assert "me" in read_by(parts["held"], parts), name
            else:  # one lock for both rows, in the order in which it names them
                assert {"runners", "seats"} <= {node.get("Relation Name") for node in nodes(parts["held"])}, name
                assert "for key share of r for share of s" in SQL[name], name


def named(plan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The parts of a statement by name."""
    found = ((node.get("Subplan Name", ""), node) for node in nodes(plan))
    return {name.removeprefix("CTE "): node for name, node in found if name.startswith("CTE ")}


def read_by(node: dict[str, Any], parts: dict[str, dict[str, Any]]) -> set[str]:
    """The parts that a node reads, those that they read among them."""
    seen: set[str] = set()
    waiting = [node]
    while waiting:
        direct = {each["CTE Name"] for each in nodes(waiting.pop()) if "CTE Name" in each} - seen
        seen |= direct
        waiting += [parts[name] for name in direct]
    return seen


def unfenced(plan: dict[str, Any]) -> list[str]:
    """The tables that are written without reading the fence."""
    parts = named(plan)
    writers = [node for node in nodes(plan) if node["Node Type"] == "ModifyTable"]
    assert writers, "it writes nothing"
    return [
        node["Relation Name"]
        for node in writers
        if "held" not in {name for part in node["Plans"] for name in read_by(part, parts)}
    ]


async def test_a_part_that_joins_no_fence_and_a_walk_are_seen(postgres_url: str) -> None:
    """That the tests above can fail."""
    async with stranger(postgres_url) as connection:
        await connection.execute(session_settings("writer", application="plans", limits=LONG))
        careless = SQL["commit_handlers"].replace(
            "from sends as s join judged as j on j.n = s.n\n", "from sends as s\n"
        )
        careless = careless.replace("where j.outcome is null\n        and (s.key", "where (s.key")
        assert careless != SQL["commit_handlers"]
        assert unfenced(await plan_of(connection, careless)) == ["messages"]
        careless = SQL["end_message"].replace("from held\n", "")
        assert careless != SQL["end_message"]
        assert unfenced(await plan_of(connection, careless)) == ["messages"]
        walking = SQL["fetch"].replace(" offset 0", "")
        assert walking != SQL["fetch"]
        assert problems("fetch", await plan_of(connection, walking)) != []
        trapped = SQL["end_messages"].replace("id = i.message offset 0", "seat = i.seat and status = 0 offset 0")
        assert trapped != SQL["end_messages"]
        assert problems("end_messages", await plan_of(connection, trapped)) != []
        trapped = SQL["end_message"].replace("m.id = $5", "m.seat = $3 and m.status = 0 and m.key = $5")
        assert trapped != SQL["end_message"]
        assert problems("end_message", await plan_of(connection, trapped)) != []
