"""A host without a cluster, and calls into it whose answers can be looked at."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from coterie.entities.calls.wire import read_failure
from coterie.entities.definition import define
from coterie.entities.host.host import Host
from coterie.entities.host.work import Work, handling
from coterie.errors import CoterieError, RunnerUnavailable
from coterie.kernel.ids import Seat, ShardId
from coterie.kernel.random import Random
from coterie.ownership.seats import Tenure, Trust
from coterie.settings import Settings
from coterie.storage.interface import Claim
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.entities.entity import Entity
    from coterie.entities.host.shard import ShardOccupant

_ids = itertools.count(1)

PROMPTLY_S = 20.0
"""How long a test waits for what should happen at once: a loaded machine is slow."""


class NotMine(Exception):
    """The runner said that it does not hold the shard."""


class Asked(Work):
    """A call that keeps its answer."""

    future: Any = None
    items: Any = None  # a queue of what a stream sent
    room: Any = None  # a semaphore: how many items the reader takes before it reads
    answers: int = 0
    answered_s: float = 0.0

    def reply(self, body: bytes) -> None:
        self._answered()
        self._resolve(self.rpc.decode_result(body))

    def failed(self, failure: bytes) -> None:
        self._answered()
        self._fail(read_failure(failure, self.rpc.errors))

    def refuse(self, error: CoterieError) -> None:
        self._answered()
        self._fail(error)

    def not_mine(self) -> None:
        self._answered()
        self._fail(NotMine(self.target))

    async def send(self, item: bytes) -> None:
        if self.room is not None:
            await self.room.acquire()
        if self.items is None:
            raise RunnerUnavailable(runner="reader", target=self.target, problem="the reader has left")
        self.items.put_nowait(self.rpc.decode_result(item))

    def end(self) -> None:
        self._answered()
        self._resolve(None)

    def _answered(self) -> None:
        self.answers += 1
        self.answered_s = asyncio.get_running_loop().time()
        assert self.answers == 1, f"{self.target} was answered twice"

    def _resolve(self, value: Any) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def _fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # tests may not look


class LoopClock(ManualClock):
    """Its steady clock goes with the loop's, and can be moved on besides."""

    def steady_ns(self) -> int:
        return super().steady_ns() + int(asyncio.get_running_loop().time() * 1e9) + 1


class LocalHost:
    """A host on which all shards are held, with a trust that the test decides about."""

    clean = True
    """Whether its shards were given back by whoever held them before."""

    def __init__(
        self,
        *classes: type[Entity[Any]] | tuple[type[Entity[Any]], dict[str, Any]],
        storage: Any = None,
        hand_over: Callable[[Any], None] = lambda _: None,
        clock: ManualClock | None = None,
        **settings: Any,
    ) -> None:
        self.clock = clock or LoopClock()
        self.trust = Trust(self.clock)
        self.trust.connected = True
        self.trust.extend(self.clock.steady_ns() + 10**15)
        settings = {"shards": 4, "drain": "1s"} | settings
        pairs = [each if isinstance(each, tuple) else (each, {}) for each in classes]
        types = [define(cls, **options) for cls, options in pairs]
        self.types = {each.name: each for each in types}
        self.host = Host(
            self.types,
            cluster=None,
            settings=Settings.load(settings),
            clock=self.clock,
            chance=Random(1),
            name="runner-1",
            storage=storage,
            hand_over=hand_over,
        )
        self.epoch = 0
        self.shards: list[ShardOccupant] = []
        self.occupy()

    def occupy(self) -> None:
        """Take all seats, at the next epoch."""
        self.epoch += 1
        self.shards = [self._occupy(number) for number in range(self.host.settings.shards)]

    def ask(self, id: str, method: str, *args: Any, within_s: float = PROMPTLY_S, **options: Any) -> Asked:
        """Deliver a call; its answer comes to `.future`."""
        return self.ask_for(next(iter(self.types)), id, method, *args, within_s=within_s, **options)

    def ask_for(
        self, type_name: str, id: str, method: str, *args: Any, within_s: float = PROMPTLY_S, **options: Any
    ) -> Asked:
        """The same for one of several types."""
        loop = asyncio.get_running_loop()
        known = self.types[type_name].rpcs.get(method) if type_name in self.types else None
        payload = options.pop("payload", None)
        if payload is None:
            payload = b"" if known is None else known.arguments.encode(args, {})
        work = Asked(
            type_name,
            id,
            method,
            payload,
            loop.time() + within_s,
            within_s,
            f"m{next(_ids)}",
            future=loop.create_future(),
            **options,
        )
        self.host.deliver(work)
        return work

    async def call(self, id: str, method: str, *args: Any, **options: Any) -> Any:
        """Deliver a call and await its answer."""
        return await self.ask(id, method, *args, **options).future

    async def onward(self, id: str, method: str, *args: Any) -> Any:
        """Call from inside of a handler: the chain goes on."""
        work = handling.get()
        assert work is not None, "inside of a handler"
        return await self.call(id, method, *args, chain=work.onward())

    async def drain(self) -> None:
        """Give up all seats."""
        await asyncio.gather(*(shard.drain() for shard in self.shards))

    def abandon(self) -> None:
        """Lose all seats."""
        for shard in self.shards:
            shard.tenure.ended = True
            shard.abandon()

    def _occupy(self, number: int) -> ShardOccupant:
        claim = Claim("incarnation-1", Seat.shard(ShardId("default", number)), self.epoch)
        return self.host.occupy(Tenure(claim, clean=self.clean, trust=self.trust))


async def until(condition: Callable[[], object], *, what: str = "it") -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(PROMPTLY_S):
        while not condition():
            await asyncio.sleep(0.001)
    assert condition(), what
