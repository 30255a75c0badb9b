"""Plans of durable work: rows by key, on tables that are empty, bloated or full, and behind the fence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage import statements
from coterie.storage.postgres.connector import session_settings
from coterie.storage.postgres.writer import SQL
from tests.unit.postgres.conftest import LONG, new_storage, stranger
from tests.unit.postgres.test_states_plans import nodes, plan_of
from tests.unit.postgres.test_ticks_plans import pages_of, unfenced

if TYPE_CHECKING:
    import asyncpg

pytestmark = pytest.mark.postgres

SEATS, WHOLE, UNITS = "array['s1', 's2']::text[]", "array[1, 1]::bigint[]", "array['u1', 'u2']::text[]"
TEXTS, BYTES, PARTS = "array['x', '']::text[]", "array['a', null]::bytea[]", "array[1, null]::float8[]"
ONE = "'default', 'r1', 's1', 1"
MINE = f"'default', 'r1', {SEATS}, {WHOLE}"
LIVES = "array[7, null]::bigint[]"
KINDS = "array['step', 'step']::text[]"
STEPS = f"{MINE}, {UNITS}, {UNITS}, {TEXTS}, {WHOLE}, {KINDS}, {TEXTS}, array['', '']::bytea[]"
TIMES = f"array[now(), null]::timestamptz[], array[1, null]::int[], {TEXTS}, {LIVES}"
HOT = {
    "add_steps": f"{STEPS}, array[true, false], {BYTES}, {BYTES}, {PARTS}, {TIMES}",
    "add_step": f"{ONE}, 'u1', '', 0, 'n', '', 'a', now(), 1, 'anna', 7",
    "write_steps": f"{STEPS}, array[true, false], {BYTES}, {BYTES}, {PARTS}, {TIMES}",
    "end_units": f"{MINE}, {UNITS}, array['done', 'failed']::text[], {BYTES}, {BYTES}, array['', '']::bytea[]"
    f", {LIVES}, array[0, null]::int[], array[false, true], {TEXTS}",
    "open_unit": f"{ONE}, 'u1', 'leader', 'n', 'i', 7",
    "look_at_unit": f"{ONE}, 'u1'",
    "steps_of_unit": "'default', 'u1'",
    "records_of_unit": "'default', 'u1'",
    "deferreds_of_unit": "'default', 'u1', 7",
    "look_for_units": f"{MINE}, 10",
    "wake_due_units": MINE,
    "units_after_jobs": f"'default', {SEATS}",
    "retry_stuck_units": MINE,
    "suspend_unit": f"{ONE}, 'u1', array['d1', 'd2']::text[], 60, array['n']::text[], null, 0",
    "start_unit": "'default', null, 60, null, 90, 5, null, 'new', 'n', 'i', 's1', 'p', 'd', '', 'u1', 'd1', 7",
    "get_unit": "'default', 'u1'",
    "digest_of_unit": "'default', 'u1'",
    "resolve_deferred": "'default', 'u1', 'd1', 'v', null, 7, 'c', 'manual', now(), 1, now()",
    "interrupt_children": f"'default', {SEATS}, 10",
    "forget_children": f"'default', {SEATS}, 10",
    "interrupt_unit": "'default', 'u1'",
    "resume_unit": "'default', 'u1'",
    "purge_units": "'default', 3600, 100",
}
SELDOM = {"list_units", "list_tagged_units", "start_via"}
"""For people, who ask for whatever they like: it may walk. And for sessions of users, which plan as they are set."""
FENCED = (
    "add_steps",
    "add_step",
    "write_steps",
    "end_units",
    "open_unit",
    "wake_due_units",
    "retry_stuck_units",
    "suspend_unit",
)
NAMES = ("units", "jobs", "steps", "deferreds", "run_inboxes", "seats", "runners")

FENCE = [
    """insert into coterie.runners (cluster, id, name, address, host_id, groups, weight, version, knows)
       select 'default', 'r' || i, '', '', '', '{}', 1, '', '{}' from generate_series(1, 20) as i""",
    """insert into coterie.seats (cluster, name, "group", holder, epoch)
       select 'default', 's' || i, 'default', 'r' || case when i < 3 then 1 else i % 19 + 2 end, 1
       from generate_series(1, 300) as i""",
    "analyze coterie.seats",  # the fence is judged elsewhere: before 17 it walks seats while that table looks empty
]
FILL = [
    # Of ten there are six that have ended, two that are suspended, and two that run, a few of them leaders'.
    """insert into coterie.units
           (cluster, unit, kind, name, id, seat, status, started_at, changed_at, ended_at, wake_at, parent, waited_as)
       select 'default', 'u' || i, case when i % 100 = 3 then 'leader' else 'workflow' end, 'n' || i % 9, i,
           's' || i % 300 + 1,
           case when i % 10 > 3 then 'done' when i % 10 in (0, 2) then 'suspended' else 'running' end, t.at, t.at,
           case when i % 10 > 3 then t.at end,
           case when i % 10 = 0 then now() + i * interval '1 s' end, case when i % 50 = 1 then 'u' || i + 1 end, 'd1'
       from generate_series(1, 100000) as i, lateral (select now() - i * interval '1 s' as at) as t""",
    """insert into coterie.steps (cluster, unit, branch, position, kind, name, digest, done, at)
       select 'default', 'u' || i, '', j, 'step', 'n', '', true, now()
       from generate_series(1, 100000) as i, generate_series(0, 3) as j where i % 10 < 4""",
    # Maps of jobs: a suspended run that waits for ten of them, among many others.
    """insert into coterie.steps (cluster, unit, branch, position, kind, name, digest, done, at)
       select 'default', 'u' || i, '@0.10', 0, 'map', 'resize', '', i > 20, now()
       from generate_series(10, 20000, 10) as i""",
    """insert into coterie.jobs
           (cluster, id, seat, part, task, fingerprint, key, sent_at, due_at, rank_at, priority, state, digest, payload)
       select 'default', 'j' || i || '.' || j, 'q', 'p', case when j < 10 then 'resize' else 'other' end, '',
           'map:u' || i || ':0:@0.10:0:' || j, now(), now(), now(), 0, 1, '', ''
       from generate_series(10, 20000, 10) as i, generate_series(0, 19) as j""",
    """insert into coterie.deferreds (cluster, unit, name, made_at)
       select 'default', 'u' || i, 'd' || j, now()
       from generate_series(1, 100000) as i, generate_series(1, 2) as j where i % 10 in (0, 2)""",
    """insert into coterie.deferreds (cluster, unit, name, made_at, resolved_at, early)
       select 'default', 'e' || i, 'd1', now() - i * interval '1 s', now(), true from generate_series(1, 5000) as i""",
]
BLOAT = [
    "update coterie.units set status = 'running', wake_at = null where status = 'suspended'",
    "update coterie.units set status = 'done', ended_at = now() where unit > 'u2' and status = 'running'",
    "delete from coterie.units where unit > 'u3'",
    "delete from coterie.steps where unit > 'u2'",
    "delete from coterie.deferreds where unit > 'u2'",
]
ANALYZE = ["vacuum analyze coterie." + name for name in NAMES]
TABLES = {
    "empty": FENCE,
    "empty and analyzed": ANALYZE,
    "grown since the last look": FILL,
    "full": ANALYZE,
    "freshly bloated": BLOAT,
    "bloated and analyzed": ["analyze"],
}
"""One after another on the same tables."""

FEW = {
    "units_pkey": ["unit "],
    "units_running": ["seat "],
    "units_due": ["seat ", "wake_at "],
    "units_timing_out": ["seat ", "times_out_at "],
    "units_next": ["seat "],
    "units_stuck": ["seat "],
    "steps_pkey": ["unit "],
    "steps_maps": [],
    "jobs_key": ["task ", "key "],
    "deferreds_pkey": ["unit "],
    "run_inboxes_pkey": ["unit ", "name "],
    "runners_pkey": ["id "],
    "seats_pkey": ["name "],
    "units_children": ["parent "],
    "units_interrupting_children": ["seat "],
    "ticks_pkey": ["name ", "kind ", "at ", "seq "],
    "ticks_open": ["name ", "kind ", "at ", "seq "],
    "seats_holder": ["holder "],
}
"""The indexes by which few rows are found, each with its columns that must be given."""
FIRST = {
    "look_for_units": {
        "units_running": ["seat "],
        "units_due": ["seat "],
        "units_timing_out": ["seat "],
        "units_next": ["seat "],
    },
    "purge_units": {"units_ended": ["ended_at "], "units_others": ["changed_at "], "deferreds_early": ["made_at "]},
}
"""Those of which the first rows are wanted: they lie in this order, and nothing sorts them before they are chosen."""
PAGES_MOST = {"purge_units": 10_000}
"""Of one statement, 250 unless told: for 100 units that go and 1,000 that stay. Measured: 3 to 123, and 5,200."""

WALKED = {"wake_due_units", "retry_stuck_units", "purge_units", "interrupt_children", "forget_children"}
"""Those that find by `unit = any(…)`: before 17 that may be a walk as long as the table looks empty, see kv.sql."""


async def prepared(connection: asyncpg.Connection[Any]) -> None:
    for table in NAMES:
        await connection.execute(f"alter table coterie.{table} set (autovacuum_enabled = off)")
    await connection.execute(session_settings("writer", application="plans", limits=LONG))
    await connection.execute("set statement_timeout = 0")


async def test_units_steps_and_deferreds_are_found_by_key(postgres_url: str) -> None:
    """STACK's trap: a plan that was made for empty tables serves full ones; M3."""
    async with new_storage(postgres_url):
        pass
    assert HOT.keys() | SELDOM == statements.load("coterie.storage.postgres.sql", "units.sql").keys()
    async with stranger(postgres_url) as connection:
        await prepared(connection)
        for tables, changes in TABLES.items():
            for statement in changes:
                await connection.execute(statement)
            exempt = WALKED if tables.startswith("empty") and connection.get_server_version() < (17,) else set()
            for name, values in HOT.items():
                plan = await plan_of(connection, SQL[name], values)
                assert name in exempt or problems(name, plan) == [], f"{tables}, {name}: {json.dumps(plan, indent=1)}"
                pages = await pages_of(connection, SQL[name], values)
                assert pages <= PAGES_MOST.get(name, 250), f"{tables}, {name}"


def problems(name: str, plan: dict[str, Any]) -> list[str]:
    """Scans that walk more than the rows that were asked for."""
    found = []
    for node in nodes(plan):
        table, index, condition = node.get("Relation Name"), node.get("Index Name", ""), node.get("Index Cond", "")
        if table is None or node["Node Type"] in ("ModifyTable", "Tid Scan"):
            continue
        given = FIRST.get(name, {}).get(index, FEW.get(index))
        if given is None or not all(f"({column}" in condition for column in given):
            found.append(f"{node['Node Type']} of {table} by {index} {condition or 'nothing'}")
    for index in FIRST.get(name, ()):
        above = [node["Node Type"] for node in nodes(plan) if inside(node, index)]
        if "Limit" not in above or any("Sort" in kind for kind in above[above.index("Limit") :]):
            found.append(f"rows of {index} are sorted before the first ones are chosen: {above}")
    return found


def inside(node: dict[str, Any], index: str) -> bool:
    return any(each.get("Index Name") == index for each in nodes(node))


async def test_a_walk_is_seen(postgres_url: str) -> None:
    """That the test above can fail: an index more that fits an empty table, guards that fit partial ones."""
    async with new_storage(postgres_url):
        pass
    async with stranger(postgres_url) as connection:
        await prepared(connection)
        for statement in (*FENCE, *ANALYZE):
            await connection.execute(statement)
        for name, old, new in (
            ("open_unit", "coalesce(early, false)", "early"),
            ("wake_due_units", "u.unit = any(array(select unit from due))", "u.unit in (select unit from due)"),
            ("wake_due_units", "(select clock_timestamp())", "clock_timestamp()"),
            ("purge_units", "            offset 0 -- one lookup for each\n", ""),
        ):
            assert old in SQL[name]
            plan = await plan_of(connection, SQL[name].replace(old, new), HOT[name])
            assert problems(name, plan) != [], f"{name}: {new}"
        await connection.execute("create index named on coterie.units (cluster, name, status)")
        for name in ("add_step", "get_unit", "resolve_deferred"):
            assert problems(name, await plan_of(connection, SQL[name], HOT[name])) != [], name


async def test_nothing_is_written_that_does_not_come_through_the_fence(postgres_url: str) -> None:
    """C1, M3: each part that writes reads `held`, or what was made of it, and `held` has locked the seats."""
    async with new_storage(postgres_url):
        pass
    async with stranger(postgres_url) as connection:
        await prepared(connection)
        for name in FENCED:
            plan = await plan_of(connection, SQL[name], HOT[name])
            if name == "add_step":
                assert locks_first(plan)
                continue
            assert unfenced(plan) == [], name
            parts = {node["Subplan Name"]: node for node in nodes(plan) if "Subplan Name" in node}
            assert any(node["Node Type"] == "LockRows" for node in nodes(parts["CTE held"])), name
        careless = SQL["add_steps"].replace("    join held on held.name = i.seat and held.epoch = i.epoch\n", "", 1)
        assert careless != SQL["add_steps"]
        assert unfenced(await plan_of(connection, careless, HOT["add_steps"])) == ["steps"], "that this test can fail"
        for locks in ("for key share of r for share of s for key share of u", "cross join coterie.units as u"):
            assert locks in SQL["add_step"]
        careless = SQL["add_step"].replace("        for key share of r for share of s for key share of u\n", "")
        assert not locks_first(await plan_of(connection, careless, HOT["add_step"])), "that this test can fail"


def locks_first(plan: dict[str, Any]) -> bool:
    """Whether all that a statement writes comes through one lock of runner, seat and unit."""
    (writer,) = (node for node in nodes(plan) if node["Node Type"] == "ModifyTable")
    node = writer
    while node["Node Type"] != "LockRows":
        if len(node.get("Plans", [])) != 1:
            return False
        (node,) = node["Plans"]
    return {"runners", "seats", "units"} <= {each.get("Relation Name") for each in nodes(node)}
