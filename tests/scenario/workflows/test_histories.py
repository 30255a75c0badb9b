"""The history of a run: its steps stay until its retention is over (W8)."""

from __future__ import annotations

import pytest

from coterie import Workflow, WorkflowFailed, WorkflowNotFound
from tests.scenario.workflows.workflow_cluster import Diary, new_cluster, over, rows, simulated


@pytest.mark.simulated(seeds=2)
async def test_w8_the_steps_of_a_run_stay_when_it_has_ended() -> None:
    cluster, diary = new_cluster(), Diary()
    diary.fails["ship"] = 9

    @cluster.workflow
    async def pack(workflow: Workflow, n: int) -> int:
        return n + 1

    @cluster.workflow
    async def order(workflow: Workflow, cents: int) -> int:
        await workflow.step("charge", diary.do, "charge", cents)
        workflow.compensate("refund", diary.do, "refund")
        await workflow.sleep("1s", name="think")
        approval = workflow.deferred("approval", str)
        diary.tokens["approval"] = approval.token
        await approval.wait()
        await workflow.child(pack, 3, id="pack")
        return await workflow.step("ship", diary.do, "ship", cents)

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(order, 500, id="1")
        await sim.wait_until(lambda: "approval" in diary.tokens)
        await cluster.resolve(diary.tokens["approval"], "bob")
        assert isinstance(await over(run), WorkflowFailed)
        charge, think, approval, child, ship, refund = sorted(await run.steps(), key=lambda each: each.branch)
        kinds = [each.kind for each in (charge, think, approval, child, ship, refund)]
        assert kinds == ["step", "sleep", "deferred", "child", "step", "compensation"]
        assert (charge.name, charge.result, charge.attempts, charge.error) == ("charge", 500, 1, None)
        assert (approval.result, child.result, approval.done) == ("bob", 4, True)
        assert (ship.result, "ship" in str(ship.error)) == (None, True)
        assert all(each.runner for each in (charge, think, ship, refund))
        times = [charge.began_at, charge.ended_at, think.began_at, think.ended_at, ship.began_at, ship.ended_at]
        assert times == sorted(times)  # type: ignore[type-var] # all are known
        with pytest.raises(WorkflowNotFound):
            await cluster.workflow_handle(order, "2").steps()


@pytest.mark.simulated(seeds=1)
async def test_the_steps_of_a_run_go_with_its_row_when_its_retention_is_over() -> None:
    cluster, diary = new_cluster(retention="40s", key_retention="40s"), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, n: int) -> int:
        return await workflow.step("a", diary.do, "a", n)

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(work, 1, id="1")
        assert await over(run) == 1
        assert [each.name for each in await run.steps()] == ["a"]
        await sim.wait_until(lambda: not rows(sim, "units"), within="5m")
        assert rows(sim, "steps") == rows(sim, "deferreds") == []
        with pytest.raises(WorkflowNotFound):
            await run.steps()
