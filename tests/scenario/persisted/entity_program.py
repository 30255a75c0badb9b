"""What the suites of durable calls share: a program whose entities write down what they did, run on real runners."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coterie import Cluster, Entity, Retry, rpc
from coterie.kernel.clock import SystemClock
from coterie.kernel.random import Random
from coterie.settings import Settings
from coterie.storage.engines import open_storage
from coterie.storage.interface import Registration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coterie import MessageInfo
    from coterie.storage.interface import Storage

SHARDS = 4
PROMPTLY_S = 120.0
"""How long a test waits for what should happen soon: a loaded machine is slow."""
QUICK = Retry(attempts=3, base="10ms")


class Notes:
    """What handlers did: they run in this process, whoever runs them."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, Any]] = []
        self.cancelled: list[tuple[str, Any]] = []
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """By entity id: `wait` ends when it is set."""
        self.left: asyncio.Task[None] | None = None
        """What a handler left running."""

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc] # the same object: entities know it


notes = Notes()


class Overdrawn(Exception):
    """Declared."""


@dataclass
class Balance:
    cents: int = 0
    orders: list[str] = field(default_factory=list)


class Account(Entity[Balance]):
    """An account whose orders are charged once each."""

    @rpc(persisted=True, key="order", errors=[Overdrawn])
    async def charge(self, order: str, cents: int = 1) -> int:
        notes.ran.append((self.id, order))
        self.state.cents += cents
        self.state.orders.append(order)
        if cents < 0:
            raise Overdrawn(self.id, cents)
        return self.state.cents

    @rpc(persisted=True)
    async def wait(self, number: int = 0) -> int:
        """Until its gate opens."""
        notes.ran.append((self.id, number))
        try:
            await notes.gates[self.id].wait()
        except asyncio.CancelledError:
            notes.cancelled.append((self.id, number))
            raise
        return number

    @rpc(persisted=True, key="order")
    async def fail(self, order: str) -> int:
        notes.ran.append((self.id, order))
        self.state.cents += 1_000
        raise ValueError(f"cannot {order}")

    @rpc(persisted=True, key="order")
    async def lie(self, order: str) -> int:
        notes.ran.append((self.id, order))
        self.state.cents += 1_000
        return "five"  # type: ignore[return-value] # that is the point

    @rpc
    async def cents(self) -> int:
        return self.state.cents

    @rpc
    async def linger(self) -> None:
        """A volatile call that takes its time."""
        notes.ran.append((self.id, "linger"))
        await notes.gates[self.id].wait()
        notes.ran.append((self.id, "lingered"))


def program(url: str, name: str, *entities: type[Entity[Any]], **settings: Any) -> Cluster:
    """A process of the program. Seats move within half a second, and nothing else is hurried."""
    given: dict[str, Any] = {"lease_renew": "200ms", "call_timeout": "20s", "retry": QUICK, "drain": "5s", **settings}
    cluster = Cluster(url, runner_name=name, shards=SHARDS, **given)
    for entity in entities or (Account,):
        cluster.entity(name=getattr(entity, "called", None))(entity)
    return cluster


async def shared(*clusters: Cluster) -> None:
    """Wait until all runners hold some seats."""
    for cluster in clusters:
        await cluster.ready(timeout=PROMPTLY_S)
    await until(lambda: all(cluster._acting().seats for cluster in clusters))  # type: ignore[attr-defined] # of runners


def id_on(cluster: Cluster, entity: type[Entity[Any]] = Account) -> str:
    """An entity that lives on a runner."""
    return next(who for who in map(str, range(100)) if cluster.is_local(cluster.ref(entity, who)))


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(PROMPTLY_S):
        while not condition():
            await asyncio.sleep(0.005)


async def found(cluster: Cluster, count: int, **chosen: Any) -> Sequence[MessageInfo]:
    """Wait until there are so many messages of a kind; those."""
    async with asyncio.timeout(PROMPTLY_S):
        while len(messages := await cluster.messages.list(**chosen)) != count:
            await asyncio.sleep(0.01)
    return messages


async def counts(cluster: Cluster) -> tuple[int, int, int]:
    """How many messages are pending, done and dead."""
    statuses = [message.status for message in await cluster.messages.list(limit=10_000)]
    return statuses.count("pending"), statuses.count("done"), statuses.count("dead")


async def evict(url: str, victim: Cluster) -> None:
    """Take all seats from a runner that knows nothing of it, as if it had been frozen for too long."""
    witness = "e" * 32
    gone = victim._acting().incarnation
    host_id = next(row.host_id for row in await victim.runners.list() if row.id == gone)
    address = "127.0.0.1:9"  # nobody listens there
    me = Registration(id=witness, name="witness", address=address, host_id=host_id, groups=("none",), knows={})
    async with _storage(url) as storage, storage.ownership(witness) as session:
        await session.register(me, [], ttl_s=60)
        async with asyncio.timeout(PROMPTLY_S):
            while True:  # it renews: the counter that was seen may not be the one that counts
                renewal = await session.renew(ttl_s=60)
                assert renewal is not None
                counter = next((other.counter for other in renewal.others if other.id == gone), None)
                if counter is None or await session.evict(gone, counter=counter, expired=False):
                    break
        await session.leave()


def _storage(url: str) -> Storage:
    settings = Settings.load({"url": url}, environ={})
    return open_storage(settings, incarnation="f" * 32, clock=SystemClock(), chance=Random())
