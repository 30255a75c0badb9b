"""`start_workflow` in a task's transaction is part of the end of its job (W11)."""

from __future__ import annotations

from typing import Any

import pytest

from coterie import Cluster, Retry, Workflow, WorkflowNotFound, current


async def test_w11_a_run_that_a_job_starts_in_its_transaction_is_there_if_the_job_succeeds(url: str) -> None:
    cluster = Cluster(url, shards=2, http_listen=None)
    begun: list[str] = []

    @cluster.workflow
    async def fulfil(workflow: Workflow, order: str) -> str:
        begun.append(order)
        return f"fulfilled {order}"

    @cluster.task(retry=Retry(attempts=2, base="10ms"))
    async def order(name: str) -> str:
        async with order.transaction():
            run: Any = await cluster.start_workflow(fulfil, name, id=f"{name} {current().attempt}")
        if current().attempt == 1:
            raise ValueError("not yet")
        return str(run.id)

    async with cluster:
        run_id = await cluster.result(await cluster.send(order.job("lamp")), timeout="60s")
        assert run_id == "lamp 2"
        assert await cluster.workflow_handle(fulfil, run_id).result(timeout="60s") == "fulfilled lamp"
        with pytest.raises(WorkflowNotFound):
            await cluster.workflow_handle(fulfil, "lamp 1").status()
        assert begun == ["lamp"]
