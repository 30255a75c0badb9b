"""A runner is killed in a transaction that starts a workflow: that is there if and only if its row is [B3]."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coterie import Cluster
from coterie.testing import Process, processes
from tests.cluster.order_program import MOMENTS, SHARDS, Shop, program, results
from tests.cluster.seat_cluster import NO_HTTP, QUICK
from tests.cluster.seat_history import Journals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.testing import Processes

ORDERS = Path(__file__).with_name("order_program.py")
ROOT = ORDERS.parent.parent.parent


async def die_at(moments: Sequence[str], url: str, folder: Path) -> None:
    """One runner after the other is alone, takes an order and dies; the last one lives, and all that is there ends."""
    journals = Journals(folder / "journals")
    journals.folder.mkdir()
    env = {"HOLDER_JOURNAL": str(journals.folder), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/src"}
    env |= {"COTERIE_SHARDS": str(SHARDS), **NO_HTTP, **QUICK}

    def ready(process: Process) -> object:
        return [event for event in journals.of("up", runner=process.name) if event.more["pid"] == process.pid]

    client = program(Cluster(url, shards=SHARDS))
    async with processes(ORDERS, runners=0, url=url, env=env, ready=ready, proxied=False) as cluster:
        for number, moment in enumerate(moments):
            await cluster.start(1, env={"ORDER": str(number), "ORDER_DIE": moment})
            await dies(cluster, cluster.runners[-1], moment)
        await cluster.start(1)
        async with client.connect():
            rows = await client.ref(Shop, "a").orders()
            runs = await results(client, range(len(moments)))
    sure = [number for number, moment in enumerate(moments) if MOMENTS[moment]]
    maybe = [number for number, moment in enumerate(moments) if MOMENTS[moment] is None]
    assert runs == rows, "a row without its workflow, or a workflow without its row"
    assert [number for number in rows if number not in maybe] == sure
    assert sorted(int(event.key) for event in journals.of("ran")) == rows, "each of them ran once"


async def dies(cluster: Processes, victim: Process, moment: str) -> None:
    """Wait until a process has died by its own hand."""
    await cluster.wait_until(lambda: not victim.alive)
    assert victim.exit_code == -9, f"{moment}: {victim.tail()}"


async def test_a_workflow_is_there_if_the_row_of_its_transaction_is_whenever_its_runner_was_killed(
    url_by_day: str, tmp_path: Path
) -> None:
    """A sample of the moments below."""
    await die_at(["after the workflow is stored", "after the commit"], url_by_day, tmp_path)


@pytest.mark.nightly
async def test_a_runner_may_die_at_each_moment_of_a_transaction_that_starts_a_workflow(
    url: str, tmp_path: Path
) -> None:
    """During the commit three times: it falls now here, now there."""
    await die_at([*MOMENTS, "during the commit", "during the commit"], url, tmp_path)
