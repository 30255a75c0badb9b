"""More runs and more children than one page holds: none of them waits until somebody looks at all shards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from coterie import WorkflowInterrupted
from coterie.workflows import registry
from tests.scenario.workflows.workflow_cluster import (
    SWEEP_S,
    Diary,
    holder,
    new_cluster,
    over,
    rows,
    seconds,
    simulated,
)

if TYPE_CHECKING:
    from coterie import Workflow

AROUND = [1, 2, 3, 4, 5]
"""Numbers about one and two pages of two."""


@pytest.mark.simulated(seeds=1)
@pytest.mark.parametrize("many", AROUND)
async def test_w10_children_of_more_than_one_page_are_interrupted_with_their_parent(
    monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    monkeypatch.setattr(registry, "_CHILDREN", 2)
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def child(workflow: Workflow, _: None) -> None:
        never = workflow.deferred("never", int)
        diary.give(workflow.id, never)
        await never.wait()

    @cluster.workflow
    async def parent(workflow: Workflow, _: None) -> None:
        await asyncio.gather(*(workflow.child(child, None, id=f"{number}") for number in range(many)))

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(parent, None, id="1")
        await sim.wait_until(lambda: len(diary.tokens) == many)
        await sim.advance(1)
        began_s = seconds(sim)
        await run.interrupt()
        assert isinstance(await over(run), WorkflowInterrupted)
        for number in range(many):
            assert isinstance(await over(cluster.workflow_handle(child, f"{number}")), WorkflowInterrupted)
        assert seconds(sim) - began_s < SWEEP_S
        await sim.wait_until(lambda: not rows(sim, "units", where="interrupts_children"))


@pytest.mark.simulated(seeds=1)
@pytest.mark.parametrize("many", AROUND)
async def test_all_runs_of_a_shard_go_on_when_it_is_taken_over_however_many_they_are(
    monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """None of them ends: nothing but the look that found a full page says that there are more."""
    monkeypatch.setattr(registry, "_MORE", 2)
    cluster, diary = new_cluster(shards=1), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> None:
        await workflow.step("gate", diary.gated, workflow.id)

    async with simulated(cluster) as sim:
        for number in range(many):
            await cluster.start_workflow(work, None, id=f"{number}")
        await sim.wait_until(lambda: len(diary.lines) == many)
        holder(sim, work).kill()
        await sim.wait_until(lambda: len(diary.lines) > many)
        began_s = seconds(sim)
        await sim.wait_until(lambda: len(diary.lines) == 2 * many)
        assert seconds(sim) - began_s < SWEEP_S / 5
        assert sorted(diary.ran) == sorted(f"{number}" for number in range(many) for _ in range(2))
