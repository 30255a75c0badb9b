"""Runners die while they take in what SQL has sent: each call and each run is there once (O2, INV-D1)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from coterie import Cluster
from coterie.testing import Process, processes
from tests.cluster.seat_cluster import NO_HTTP, QUICK
from tests.cluster.seat_history import Journals
from tests.cluster.sql_program import SHARDS, Ledger, follow, program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.testing import Processes

pytestmark = pytest.mark.postgres

RUNNERS = Path(__file__).with_name("sql_program.py")
ROOT = RUNNERS.parent.parent.parent
CALLS, LEDGERS, RUNS = 250, 5, 5
"""Of each moment: more calls than one statement moves."""
SEND = """
do $$ begin
    for n in {first} .. {last} loop
        perform coterie.send('Ledger', 'ledger-' || n % {ledgers}, 'add', jsonb_build_object('number', n));
    end loop;
    for n in {first} .. {first} + {runs} - 1 loop
        perform coterie.start_workflow('follow', to_jsonb(n), 'run-' || n);
    end loop;
end $$
"""
METHODS = ["take", "take 2", "move", "move 2", "start"]


async def die_at(moments: Sequence[str], url: str, folder: Path) -> None:
    """One runner after the other is alone and dies at a moment; the last one lives, and all that was sent is done."""
    journals = Journals(folder / "journals")
    journals.folder.mkdir()
    env = {"HOLDER_JOURNAL": str(journals.folder), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/src"}
    env |= {"COTERIE_SHARDS": str(SHARDS), **NO_HTTP, **QUICK}

    def ready(process: Process) -> object:
        ups = [event for event in journals.of("up", runner=process.name) if event.more["pid"] == process.pid]
        return ups or not process.alive  # it may die sooner than it is ready

    client = program(Cluster(url, shards=SHARDS))
    async with processes(RUNNERS, runners=1, url=url, env=env, ready=ready, proxied=False) as cluster:
        await cluster.runners[0].stop()  # it has made the tables
        connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
        try:
            for number, moment in enumerate(moments):
                first = number * CALLS
                given = {"first": first, "last": first + CALLS - 1, "ledgers": LEDGERS, "runs": RUNS}
                await connection.execute(SEND.format(**given))
                await cluster.start(1, env={"SQL_DIE": moment})
                await dies(cluster, cluster.runners[-1], moment)
            await cluster.start(1)
            await require_all(client, connection, len(moments))
        finally:
            await connection.close()


async def dies(cluster: Processes, victim: Process, moment: str) -> None:
    """Wait until a process has died by its own hand."""
    await cluster.wait_until(lambda: not victim.alive)
    assert victim.exit_code == -9, f"{moment}: {victim.tail()}"


async def require_all(client: Cluster, connection: asyncpg.Connection[Any], moments: int) -> None:
    """Nothing waits, nothing is dead, and each number is there once."""
    left = "select (select count(*) from coterie.incoming) + (select count(*) from coterie.messages where status = 0)"
    async with client.connect():
        async with asyncio.timeout(120):
            while await connection.fetchval(left):
                await asyncio.sleep(0.05)
        numbers = [each for name in range(LEDGERS) for each in await client.ref(Ledger, f"ledger-{name}").numbers()]
        assert sorted(numbers) == list(range(moments * CALLS))
        assert not await client.messages.list(status="dead")
        for run in (moment * CALLS + number for moment in range(moments) for number in range(RUNS)):
            assert await client.workflow_handle(follow, f"run-{run}").result(timeout="2m") == run
    runs = await connection.fetchval("select count(*) from coterie.units where kind = 'workflow'")
    assert runs == moments * RUNS


def each_moment(whens: Sequence[str]) -> list[str]:
    return [f"{when} incoming.{method}" for when in whens for method in METHODS]


async def test_o2_runners_die_while_they_move_what_sql_has_sent_and_each_call_runs_once(
    postgres_url: str, tmp_path: Path
) -> None:
    """A sample of the moments below."""
    moments = ["before incoming.move 2", "after incoming.move", "during incoming.start"]
    await die_at(moments, postgres_url, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("when", ["before", "during", "after"])
async def test_a_runner_may_die_at_each_statement_that_moves(when: str, postgres_url: str, tmp_path: Path) -> None:
    await die_at(each_moment([when]), postgres_url, tmp_path)
