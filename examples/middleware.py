"""Middleware around every attempt: an audit of all work, and a session that each body finds in a context variable.

python examples/middleware.py            # in memory
COTERIE_URL=postgresql://… python examples/middleware.py
"""

import asyncio
import os
from collections import Counter
from contextvars import ContextVar
from typing import Any

from coterie import CallNext, Cluster, Entity, RemoteError, Workflow, WorkInfo, rpc

cluster = Cluster(os.environ.get("COTERIE_URL", "sqlite://"))
outcomes: Counter[str] = Counter()


class Session:
    """A session of an ORM, for one attempt."""

    def __init__(self) -> None:
        self.rows: list[str] = []


sessions: ContextVar[Session] = ContextVar("session")


@cluster.middleware  # the outermost: it sees the errors of the others too
async def audited(work: WorkInfo, call_next: CallNext) -> Any:
    try:
        result = await call_next()
    except Exception as error:
        outcomes[f"{work.kind} {work.name}.{work.method} {type(error).__name__}"] += 1
        raise
    outcomes[f"{work.kind} {work.name}.{work.method} ok"] += 1
    return result


@cluster.middleware
async def with_session(work: WorkInfo, call_next: CallNext) -> Any:  # noqa: ARG001
    session = Session()
    sessions.set(session)
    result = await call_next()
    print("commit", session.rows)  # not reached if the body raised
    return result


@cluster.entity
class Customer(Entity):
    @rpc
    def rename(self, name: str) -> str:  # in a thread, which has the session as well
        sessions.get().rows.append(f"{self.id} is {name}")
        if not name:
            raise ValueError("a name is not empty")
        return name


async def insert(order: str) -> int:
    sessions.get().rows.append(order)
    return len(sessions.get().rows)


@cluster.workflow
async def checkout(workflow: Workflow, order: str) -> int:
    return await workflow.step("insert", insert, order)


async def main() -> None:
    async with cluster:
        customer = cluster.ref(Customer, "alice")
        assert await customer.rename("Alice") == "Alice"
        try:
            await customer.rename("")
        except RemoteError as error:
            print(error)
        run = await cluster.start_workflow(checkout, "order-7", id="7")
        assert await run.result() == 1
    assert outcomes == {
        "rpc Customer.rename ok": 1,
        "rpc Customer.rename ValueError": 1,
        "step checkout.insert ok": 1,
    }, outcomes


if __name__ == "__main__":
    asyncio.run(main())
