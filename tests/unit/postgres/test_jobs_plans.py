"""Plans of jobs' statements: rows by key whatever the planner believes, and nothing written past the fence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage import statements
from coterie.storage.postgres.connector import session_settings
from coterie.storage.postgres.writer import SQL
from tests.unit.postgres.conftest import LONG, Grown, stranger
from tests.unit.postgres.test_messages_plans import named, plan_of, read_by, unfenced
from tests.unit.postgres.test_states_plans import nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.postgres import Server

pytestmark = pytest.mark.postgres

PACKAGE = "coterie.storage.postgres.sql"
HELD = ["claim_jobs", "define_queue", "mature_jobs", "take_back_jobs", "park_jobs", "unpark_jobs"]
RUNNING = ["end_jobs", "end_job", "commit_jobs", "set_jobs_back", "give_jobs_back", "note_progress"]

BY_ID, BY_KEY, WALK = ("jobs_pkey", " id "), ("jobs_key", " key "), ("jobs_pkey", "cluster")
READY, LATER, CLAIMED = ("jobs_ready", " seat "), ("jobs_later", " seat "), ("jobs_claimed", " seat ")
PARKED, DEAD = ("jobs_parked", " seat "), ("jobs_dead", "cluster")
TAG_OF_JOB, TAG = ("job_tags_pkey", " job "), ("job_tags_value", " value ")
FINDS = {
    "insert_jobs": set[tuple[str, str]](),
    "insert_jobs_via": set[tuple[str, str]](),
    "read_back_jobs": {BY_ID, BY_KEY},
    "find_job": {BY_KEY},
    "look_at_jobs": {BY_ID, TAG_OF_JOB},
    "cancel_job": {BY_ID},
    "claimed_for": {("jobs_runner", " runner ")},
    "fetch_jobs": {BY_ID},
    "end_jobs": {BY_ID},
    "end_job": {BY_ID},
    "commit_jobs": {BY_ID, BY_KEY},
    "commit_handlers_and_jobs": {BY_ID, BY_KEY},
    "set_jobs_back": {BY_ID},
    "give_jobs_back": {BY_ID},
    "note_progress": {BY_ID},
    "claim_jobs": {BY_ID},
    "sweep_jobs": {READY},
    "refill_jobs": {("jobs_ready", " part ")},
    "mature_jobs": {LATER},
    "running_jobs": {CLAIMED},
    "take_back_jobs": {CLAIMED},
    "park_jobs": {READY},
    "unpark_jobs": {("jobs_parked", " task ")},
    "parked_tasks": {PARKED},
    "backlog_of_queues": {READY, LATER, CLAIMED, PARKED, ("jobs_dead", " seat ")},
    "list_jobs": {BY_ID, TAG_OF_JOB},
    "list_newest_jobs": {BY_ID, TAG_OF_JOB},
    "list_few_jobs": {BY_ID, TAG_OF_JOB, *((f"jobs_{state}", "cluster") for state in
                                          ("ready", "later", "claimed", "parked", "dead"))},
    "list_tagged_jobs": {BY_ID, TAG, TAG_OF_JOB},
    "list_newest_tagged_jobs": {BY_ID, TAG, TAG_OF_JOB},
    "count_jobs": {WALK},
    "count_few_jobs": {(f"jobs_{state}", "cluster") for state in ("ready", "later", "claimed", "parked", "dead")},
    "count_tagged_jobs": {BY_ID, TAG},
    "revive_jobs": {BY_ID, DEAD, TAG_OF_JOB, TAG},
    "remove_jobs": {WALK, BY_ID, TAG_OF_JOB},
    "remove_tagged_jobs": {TAG, BY_ID, TAG_OF_JOB},
    "purge_jobs": {BY_ID, TAG_OF_JOB},
    "define_queue": set[tuple[str, str]](),
    "queue": set[tuple[str, str]](),
    "queues": set[tuple[str, str]](),
    "set_limits": set[tuple[str, str]](),
    "pause_queue": set[tuple[str, str]](),
}  # fmt: skip
"""By which index, and which of its columns, a statement may look for jobs and tags. By their place it always may."""
WALKED = {"revive_jobs", "remove_jobs", "remove_tagged_jobs", "purge_jobs"}
"""Those that find by `id = any(…)`: before 17 that may be a walk as long as the table looks empty, see kv.sql."""

OFF = [f"alter table coterie.{table} set (autovacuum_enabled = off)" for table in ("jobs", "job_tags")]
FILL = [
    """insert into coterie.runners (cluster, id, name, address, host_id, groups, weight, version, knows)
       select 'default', 'r' || i, '', '', '', '{}', 1, '', '{}' from generate_series(1, 10) as i""",
    """insert into coterie.seats (cluster, name, "group", holder, epoch)
       select 'default', 's' || i, 'default', 'r' || i % 10 + 1, 1 from generate_series(1, 300) as i""",
    """insert into coterie.jobs
           (cluster, id, seat, part, task, fingerprint, key, priority, digest, payload, sent_at, due_at, rank_at, state)
       select 'default', lpad(to_hex(i), 32, '0'), 's' || i % 300, 'p' || i % 50, 't' || i % 7, '',
           case when i % 3 = 0 then 'k' || i end, 0, '', 'payload', now(), now(), now(), i % 3 % 2
       from generate_series(1, 50000) as i""",
    """insert into coterie.job_tags
       select 'default', lpad(to_hex(i), 32, '0'), 'order', 'o' || i % 1000 from generate_series(1, 50000) as i""",
]
CLAIM = "update coterie.jobs set state = 2, runner = 'r' || length(task), claim = 1 where id < lpad('400', 32, '0')"
END = "update coterie.jobs set state = 4, runner = null, ended_at = now()"
ANALYZE = "vacuum analyze"
TABLES = {
    "empty": [],
    "empty and analyzed": [ANALYZE],
    "50,000 waiting, unknown to the planner": [*FILL, CLAIM],
    "50,000 waiting": [*FILL, CLAIM, ANALYZE],
    "50,000 done": [*FILL, CLAIM, END, ANALYZE],
    "just bloated": [*FILL, ANALYZE, CLAIM, END, "delete from coterie.jobs where key is null"],
}


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


def problems(name: str, plan: dict[str, Any]) -> list[str]:
    """Scans of jobs and their tags that walk more than the rows that were asked for."""
    found = []
    for node in nodes(plan):
        table, kind = node.get("Relation Name"), node["Node Type"]
        if table not in ("jobs", "job_tags") or kind in ("ModifyTable", "Tid Scan"):
            continue
        condition = f"{node.get('Index Cond', '')}".replace("(", " ").replace(")", " ")
        ways = FINDS[name]
        if not any(node.get("Index Name") == index and f" {column.strip()} " in condition for index, column in ways):
            found.append(f"{kind} of {table} by {node.get('Index Name')}, {condition or 'nothing'}")
    return found


@pytest.mark.parametrize("tables", TABLES)
async def test_jobs_are_found_by_key(filled_url: str, tables: str) -> None:
    """An end and a claim find jobs by their ids and never through what waits or runs, a sweep only there; M3."""
    async with stranger(filled_url) as connection:
        await connection.execute(session_settings("writer", application="plans", limits=LONG))
        exempt = WALKED if tables.startswith("empty") and connection.get_server_version() < (17,) else set()
        found = {name: problems(name, await plan_of(connection, SQL[name])) for name in FINDS.keys() - exempt}
    assert {name: walks for name, walks in found.items() if walks} == {}


@pytest.mark.parametrize("tables", ["empty", "50,000 waiting"])
async def test_nothing_is_written_that_does_not_come_through_the_fence(filled_url: str) -> None:
    """C1, T1: what a holder writes reads the locked seat, what a runner writes its own locked row."""
    async with stranger(filled_url) as connection:
        await connection.execute(session_settings("writer", application="plans", limits=LONG))
        for name in HELD:
            assert unfenced(await plan_of(connection, SQL[name])) == [], name
        for name in RUNNING:
            plan = await plan_of(connection, SQL[name])
            parts = named(plan)
            assert parts["me"]["Node Type"] == "LockRows", name
            writers = [node for node in nodes(plan) if node["Node Type"] == "ModifyTable"]
            for writer in writers:
                assert "me" in {each for part in writer["Plans"] for each in read_by(part, parts)}, name


def test_all_statements_of_jobs_are_looked_at() -> None:
    known = {*statements.texts(PACKAGE, "jobs.sql"), *statements.texts(PACKAGE, "queues.sql")}
    assert known == FINDS.keys() - {"commit_handlers_and_jobs"}
