"""New runs with the steps that another one made before a step (W9)."""

from __future__ import annotations

import asyncio

import pytest

from coterie import AlreadyUndone, KeyConflict, Workflow, WorkflowFailed, WorkflowNotFound
from tests.scenario.workflows.workflow_cluster import Diary, new_cluster, over, rows, simulated


@pytest.mark.simulated(seeds=2)
async def test_w9_a_fork_goes_on_before_a_step_with_what_was_stored_until_then() -> None:
    cluster, diary = new_cluster(), Diary()
    diary.fails["mail"] = 1

    async def _price(_id: str, cents: int) -> int:
        return await diary.do("price", cents)

    @cluster.workflow
    async def leaf(workflow: Workflow, n: int) -> int:
        return await workflow.step("leaf", diary.do, "leaf", n)

    @cluster.workflow
    async def order(workflow: Workflow, cents: int) -> list[int]:
        seen = [await workflow.step("price", _price, workflow.id, cents)]
        try:
            await workflow.step("mail", diary.do, "mail")
        except ValueError:
            seen.append(-1)
        seen += await asyncio.gather(*(_two(workflow, name) for name in ("x", "y")))
        seen.append(await workflow.child(leaf, 3, id="leaf"))
        approval = workflow.deferred("approval", int)
        diary.give(workflow.id, approval)
        seen.append(await approval.wait())
        seen.append(await workflow.step("charge", diary.do, "charge", 10))
        seen += await asyncio.gather(_two(workflow, "z"))
        return seen

    async def _two(workflow: Workflow, name: str) -> int:
        return await workflow.step(f"{name} 1", diary.do, f"{name} 1", 1) + await workflow.step(
            f"{name} 2", diary.do, f"{name} 2", 1
        )

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(order, 500, id="1")
        await sim.wait_until(lambda: "1" in diary.tokens)
        await cluster.resolve(diary.tokens["1"], 8)
        expected = [500, -1, 2, 2, 3, 8, 10, 2]
        assert await over(run) == expected
        ran = list(diary.ran)
        fork = await run.fork(before="charge", id="2")
        assert await over(fork) == expected
        assert diary.ran == [*ran, "charge", "z 1", "z 2"]
        assert "2" not in diary.tokens or diary.tokens["2"] != diary.tokens["1"], "a token is of its own run"
        first, second = await run.steps(), await fork.steps()
        price, same = (next(each for each in some if each.name == "price") for some in (first, second))
        assert (price.result, price.began_at, price.runner) == (same.result, same.began_at, same.runner)
        with pytest.raises(KeyConflict):
            await run.fork(before="charge", id="2")
        with pytest.raises(ValueError, match="has reached no step 'other'"):
            await run.fork(before="other", id="3")
        with pytest.raises(WorkflowNotFound):
            await cluster.workflow_handle(order, "9").fork(before="charge", id="3")
        assert len(rows(sim, "units", where="name = 'order'")) == 2


@pytest.mark.simulated(seeds=2)
async def test_w9_a_run_that_has_begun_to_undo_is_not_forked() -> None:
    cluster, diary = new_cluster(), Diary()
    diary.fails["b"] = 1

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> int:
        await workflow.step("a", diary.do, "a")
        workflow.compensate("undo a", diary.do, "undo a")
        return await workflow.step("b", diary.do, "b", 5)

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        assert isinstance(await over(run), WorkflowFailed)
        with pytest.raises(AlreadyUndone):
            await run.fork(before="b", id="2")
        assert len(rows(sim, "units")) == 1
