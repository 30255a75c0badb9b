"""Entities inside one runner: calls without a socket, the rate of activations, the size of a resident entity.

The rival of a call is a bare mailbox: a queue and a task for each entity, the same codec, nothing else. It has no
deadlines, bounds, contexts, trust or idle times.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.measure import Row, compare, rate
from coterie.entities.definition import define
from coterie.entities.entity import Entity, activated
from coterie.entities.host.host import Host
from coterie.entities.host.work import Work
from coterie.entities.rpc import rpc
from coterie.kernel.clock import SystemClock
from coterie.kernel.ids import Seat, ShardId
from coterie.kernel.random import Random
from coterie.ownership.seats import Tenure, Trust
from coterie.settings import Settings
from coterie.storage.interface import Claim

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.entities.definition import EntityType

ENTITIES = 1_000
RESIDENT = 100_000
RESIDENT_GOAL_BYTES = 2_500
_DATA = b"x" * 100


class Echo(Entity):
    """The trivial handler."""

    @rpc
    async def echo(self, data: bytes) -> bytes:
        return data

    @rpc
    async def pause(self, data: bytes) -> bytes:
        await asyncio.sleep(0)
        return data


class LocalWork(Work):
    """Answers into a future."""

    future: Any = None

    def reply(self, body: bytes) -> None:
        self.future.set_result(body)

    def refuse(self, error: Exception) -> None:
        self.future.set_exception(error)

    def failed(self, failure: bytes) -> None:
        self.future.set_exception(RuntimeError(failure))

    def not_mine(self) -> None:
        self.future.set_exception(RuntimeError("not mine"))


class Bare:
    """The rival: a queue and a task for each entity."""

    def __init__(self, entity_type: EntityType[Any], method: str, entities: int) -> None:
        self._rpc = entity_type.rpcs[method]
        self._loop = asyncio.get_running_loop()
        self._queues: list[deque[tuple[bytes, asyncio.Future[bytes]]]] = [deque() for _ in range(entities)]
        self._wakes: list[asyncio.Future[None] | None] = [None] * entities
        self._tasks = [self._loop.create_task(self._serve(number, entity_type)) for number in range(entities)]

    async def call(self, number: int) -> bytes:
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._queues[number].append((self._rpc.arguments.encode((_DATA,), {}), future))
        wake = self._wakes[number]
        if wake is not None and not wake.done():
            wake.set_result(None)
        result: bytes = self._rpc.decode_result(await future)
        return result

    async def _serve(self, number: int, entity_type: EntityType[Any]) -> None:
        entity = activated(entity_type.cls, str(number), None)  # type: ignore[arg-type] # asks for nothing
        queue, fn = self._queues[number], self._rpc.fn
        while True:
            while queue:
                payload, future = queue.popleft()
                args, kwargs = self._rpc.arguments.decode(payload)
                future.set_result(self._rpc.encode_result(await fn(entity, *args, **kwargs)))
            wake = self._wakes[number] = self._loop.create_future()
            await wake

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Ours:
    """A host that holds all shards, and calls into it."""

    def __init__(self, entity_type: EntityType[Any], *, resident: int = 1_000_000) -> None:
        settings = Settings.load({"resident_entities": resident, "max_idle": "1h"})
        clock = SystemClock()
        trust = Trust(clock)
        trust.connected = True
        trust.extend(clock.steady_ns() + 10**15)
        self.host = Host(
            {entity_type.name: entity_type}, cluster=None, settings=settings, clock=clock, chance=Random(), name="bench"
        )
        for number in range(settings.shards):
            claim = Claim("bench", Seat.shard(ShardId("default", number)), 1)
            self.host.occupy(Tenure(claim, clean=True, trust=trust))
        self._type = entity_type
        self._loop = asyncio.get_running_loop()
        self._sent = 0

    async def call(self, id: str, method: str) -> bytes:
        known = self._type.rpcs[method]
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._sent += 1
        payload = known.arguments.encode((_DATA,), {})
        until_s = self._loop.time() + 30.0
        self.host.deliver(LocalWork("Echo", id, method, payload, until_s, 30.0, str(self._sent), future=future))
        result: bytes = known.decode_result(await future)
        return result


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """All rows, one after the other."""
    entity_type = define(Echo)
    yield await _resident(entity_type)  # first: later the process has room left from what is gone
    for method, name in (("echo", "local call / bare mailbox"), ("pause", "the same, handler waits")):
        yield await _calls(entity_type, name, method, rounds=rounds, seconds=seconds)
    yield await _activations(entity_type, seconds)


async def _calls(entity_type: EntityType[Any], name: str, method: str, *, rounds: int, seconds: float) -> Row:
    bare, ours, turn = Bare(entity_type, method, ENTITIES), Ours(entity_type), _Turn()
    try:
        return await compare(
            name,
            ours=lambda: ours.call(str(turn.next()), method),
            raw=lambda: bare.call(turn.next()),
            callers=1_000,
            goal=0.5 if method == "echo" else None,
            rounds=rounds,
            seconds=seconds,
        )
    finally:
        await bare.stop()
        await ours.host.stop()


class _Turn:
    """Spreads calls over the entities."""

    def __init__(self) -> None:
        self._number = 0

    def next(self) -> int:
        self._number = (self._number + 1) % ENTITIES
        return self._number


async def _activations(entity_type: EntityType[Any], seconds: float) -> Row:
    """First calls per second, each to another entity, at the cap: each evicts another one."""
    ours, number = Ours(entity_type, resident=10_000), 0

    async def call() -> None:
        nonlocal number
        number += 1
        await ours.call(f"new-{number}", "echo")

    per_s = await rate(call, callers=1_000, seconds=seconds)
    await ours.host.stop()
    return Row("activations at the cap", 1_000, per_s, 0.0, 0.0, None)


async def _resident(entity_type: EntityType[Any]) -> Row:
    """Bytes per resident entity, as this process grew; the ratio is the goal divided by it, so more is better."""
    ours = Ours(entity_type)
    gc.collect()
    before = _resident_bytes()
    began = time.perf_counter()
    for start in range(0, RESIDENT, 1_000):
        await asyncio.gather(*(ours.call(f"resident-{start + number}", "echo") for number in range(1_000)))
    took_s = time.perf_counter() - began
    gc.collect()
    each = (_resident_bytes() - before) / RESIDENT
    print(f"  {RESIDENT:,} resident entities: {each:,.0f} bytes each, activated at {RESIDENT / took_s:,.0f}/s")
    await ours.host.stop()
    return Row("bytes per entity / goal", 1, each, RESIDENT_GOAL_BYTES, RESIDENT_GOAL_BYTES / each, 1.0)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
