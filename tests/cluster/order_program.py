"""A shop whose orders start workflows in one transaction: `python order_program.py` is a runner that may die there.

Variables:
    HOLDER_JOURNAL: The folder of the journals, see `seat_program`.
    ORDER: The number of the order that this runner takes when all earlier ones are fulfilled; without it none.
    ORDER_DIE: The moment of that transaction at which to die by SIGKILL, see `MOMENTS`.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from coterie import Cluster, Entity, Workflow, WorkflowNotFound, rpc
from coterie.kernel.service import Tasks
from coterie.storage.postgres.units import PostgresUnits
from coterie.storage.sqlite import units as sqlite_units
from coterie.storage.user_transaction import UserTransaction
from tests.cluster.kill_points import DURING_S, die
from tests.cluster.seat_program import Journal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SHARDS = 4
MOMENTS = {
    "in the block": False,
    "before the commit": False,
    "after the workflow is stored": False,
    "during the commit": None,
    "after the commit": True,
}
"""When a runner dies, and whether the order is there then; None: it may be."""
DIE = os.environ.get("ORDER_DIE", "")


async def fulfil(workflow: Workflow, number: int) -> int:
    """One step, which notes that it runs."""
    return await workflow.step("ship", ship, number)


async def ship(number: int) -> int:
    """What must be done once."""
    journal().note("ran", key=str(number))
    return number


class Shop(Entity):
    """Takes orders."""

    @rpc
    async def order(self, number: int) -> None:
        """A row and a workflow, both or neither."""
        async with self.transaction() as sql:
            await sql.execute("insert into orders (id) values ($1)", number)
            await self.cluster.start_workflow(fulfil, number, id=f"{number}")
            if DIE == "in the block":
                die()

    @rpc
    async def orders(self) -> list[int]:
        """The rows."""
        async with self.transaction() as sql:
            await sql.execute("create table if not exists orders (id integer primary key)")
            return [row["id"] for row in await sql.fetch("select id from orders order by id")]


def program(cluster: Cluster) -> Cluster:
    """Define the shop."""
    cluster.workflow(fulfil)
    cluster.entity(Shop)
    return cluster


async def results(cluster: Cluster, numbers: range) -> list[int]:
    """The orders among these whose workflow is there, when all of them have ended."""
    found = []
    for number in numbers:
        with suppress(WorkflowNotFound):
            found.append(await cluster.workflow_handle(fulfil, f"{number}").result(timeout="2m"))
    return found


@cache
def journal() -> Journal:
    """Of this process."""
    return Journal()


def install(moment: str) -> None:
    """Let this process die in the commit of its transaction that starts a workflow."""
    commit, in_postgres, in_sqlite = (
        UserTransaction._commit,
        PostgresUnits.require_started,
        sqlite_units.require_started,
    )

    async def dying_commit(self: UserTransaction, write: Any, collected: Any) -> Any:
        if collected.starts and moment == "before the commit":
            die()
        if collected.starts and moment == "during the commit":
            asyncio.get_running_loop().call_later(DURING_S, die)
        told = await commit(self, write, collected)
        if collected.starts:
            die()
        return told

    async def dying_postgres(self: PostgresUnits, fetch: Any, starts: Any) -> None:
        await in_postgres(self, fetch, starts)
        die_if_stored(starts)

    def dying_sqlite(connection: Any, scope: Any, starts: Any) -> None:
        in_sqlite(connection, scope, starts)
        die_if_stored(starts)

    def die_if_stored(starts: Any) -> None:
        if starts and moment == "after the workflow is stored":
            die()

    UserTransaction._commit = dying_commit  # type: ignore[method-assign]  # in this process alone
    PostgresUnits.require_started = dying_postgres  # type: ignore[method-assign]
    sqlite_units.require_started = dying_sqlite


@asynccontextmanager
async def ordering(cluster: Cluster) -> AsyncIterator[None]:
    """Note when this runner takes part, and take an order."""

    async def take() -> None:
        await cluster.ready()
        await cluster.ref(Shop, "a").orders()
        journal().note("up", pid=os.getpid())
        if "ORDER" in os.environ:
            number = int(os.environ["ORDER"])
            await results(cluster, range(number))
            await cluster.ref(Shop, "a").order(number)

    taking = Tasks("order")
    taking.spawn(take(), name="order")
    yield
    await taking.stop()


def main() -> None:
    if DIE:
        install(DIE)
    cluster = program(Cluster())
    cluster.setup(lambda: ordering(cluster))
    cluster.run()


if __name__ == "__main__":
    main()
