"""A cluster with stored calls, state and workflows, for the commands that look at them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coterie import Cluster, Entity, Retry, Workflow, rpc
from tests.unit.cli.command_runner import SHARDS, Served

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

GATES: dict[str, asyncio.Event] = {}
"""What `hold` waits for, by key: a test opens it."""


@dataclass
class Balance:
    cents: int = 0


class Overdrawn(Exception):
    pass


class Account(Entity[Balance]):
    @rpc
    async def balance(self) -> int:
        return self.state.cents

    @rpc(persisted=True, key="order_id")
    async def deposit(self, order_id: str, cents: int) -> int:
        self.state.cents += cents
        return self.state.cents

    @rpc(persisted=True, errors=[Overdrawn])
    async def charge(self, order_id: str, cents: int) -> int:
        if cents > 1_000:
            raise Overdrawn(f"{order_id} costs {cents}")
        if GATES.get("payments") is None:
            raise ConnectionRefusedError("payments.internal:443")
        return cents

    @rpc(persisted=True)
    async def slow(self) -> None:
        raise TimeoutError("after 30s")

    @rpc(persisted=True)
    async def hold(self, gate: str) -> str:
        await GATES.setdefault(gate, asyncio.Event()).wait()
        return gate

    @rpc
    async def wait(self) -> None:
        await asyncio.Event().wait()

    @rpc
    async def history(self) -> AsyncIterator[int]:
        yield 1


async def checkout(workflow: Workflow, order: str) -> str:
    paid = await workflow.step("charge", _paid, order)
    approval = await workflow.deferred("approval", str).wait()
    return f"{paid} {approval}"


CARRIERS: set[str] = set()
"""Orders that a carrier takes."""


async def delivery(workflow: Workflow, order: str) -> str:
    await workflow.publish("status", "packed")
    await workflow.start(checkout, order, id=f"of {order}", on_parent_end="leave")
    by = await workflow.receive("dispatch", str)
    carrier = await workflow.step("book", _book, order)
    await workflow.publish("status", "gone")
    return f"{carrier}, dispatched by {by}"


async def _book(order: str) -> str:
    if order not in CARRIERS:
        raise ConnectionRefusedError("carrier.example")
    return "by train"


async def _paid(order: str) -> str:
    return f"{order} is paid"


def program(url: str, name: str) -> Cluster:
    """A runner's program."""
    cluster = Cluster(url, runner_name=name, shards=SHARDS, http_listen=None, lease_ttl="30s")
    cluster.entity(retry=Retry(attempts=2, base="10ms"))(Account)
    cluster.workflow(checkout)
    cluster.workflow(on_failure="hold")(delivery)
    return cluster


class Stored(Served):
    """Runners with it."""

    def __init__(self, url: str, made: Callable[[str, str], Cluster] = program) -> None:
        super().__init__(url)
        self._made = made

    async def _start(self, names: tuple[str, ...]) -> None:
        for name in names:
            self.clusters[name] = cluster = self._made(self.url, name)
            await cluster.start()
        for name in names:
            await self.clusters[name].ready()

    @property
    def cluster(self) -> Cluster:
        """The first one."""
        return next(iter(self.clusters.values()))

    def send(self, entity: str, method: str, *args: Any, **options: Any) -> str:
        """Send a call; the id of its message."""
        return str(self.do(self._send(entity, method, args, options)))

    def dead(self, entity: str, method: str, *args: Any) -> str:
        """Send a call that fails, and wait until it is dead; its id."""
        return str(self.do(self._dead(entity, method, args)))

    async def _send(self, entity: str, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> str:
        return await self.cluster.send(getattr(self.cluster.ref(Account, entity), method)(*args), **options)

    async def _dead(self, entity: str, method: str, args: tuple[Any, ...]) -> str:
        message = await self._send(entity, method, args, {})
        await self.until(self._has_status(message, "dead"))
        return message

    def _has_status(self, message: str, status: str) -> Callable[[], Coroutine[Any, Any, bool]]:
        async def has() -> bool:
            return (await self.cluster.messages.show(message)).status == status

        return has

    def until_status(self, message: str, status: str) -> None:
        """Wait until a message stands so."""
        self.do(self.until(self._has_status(message, status)))

    def close(self) -> None:
        """Let go of whoever holds something, and stop."""
        self.do(self._let_go())
        super().close()

    async def _let_go(self) -> None:
        for gate in GATES.values():
            gate.set()

        async def is_quiet() -> bool:
            return not [each for each in await self.cluster.messages.list(status="pending") if each.method == "hold"]

        await self.until(is_quiet)

    async def until(self, holds: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """Wait for a condition."""
        async with asyncio.timeout(120):
            while not await holds():
                await asyncio.sleep(0.01)
