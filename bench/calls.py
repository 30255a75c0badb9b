"""Calls between two processes: typed calls of entities beside bare frames and a raw echo in the same run.

A runner in another process holds all shards; this process is its client. RAW is what stands behind the slash: frames
with a task for each request and no codec, no routing, no deadline, no mailbox; or a raw TCP echo.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from bench import entities_local, peers, transport
from bench.measure import Row, compare, compare_alone
from coterie import CallNext, Cluster, Entity, WorkInfo, rpc
from coterie.entities.definition import define

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.measure import Work

IN_FLIGHT = 1_000
ENTITIES = 1_000
BODY = b"b" * 100
SHARDS = 60


class Echo(Entity):
    """The trivial handler."""

    @rpc
    async def echo(self, data: bytes) -> bytes:
        return data

    @rpc
    def threaded(self, data: bytes) -> bytes:
        return data


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """Remote calls in flight, one remote call at a time on one core, calls in one process, and resident entities."""
    many = partial(compare, callers=IN_FLIGHT, rounds=rounds, seconds=seconds)
    alone = partial(compare_alone, rounds=rounds, times=int(4000 * seconds))
    async with _calls() as ours, transport.bare_task() as bare:
        yield await many("call / bare frames, task", ours=ours, raw=partial(bare, BODY), goal=0.5)
    async with _calls() as ours, transport.ours("task") as bare:
        yield await many("call / our transport, task", ours=ours, raw=partial(bare, BODY), goal=None)
    async with _calls(pinned=True) as ours, transport.echo(pinned=True) as echo:
        yield await alone("lone call / raw echo, p50", ours=ours, raw=partial(echo, BODY), goal=1 / 2.5)
        p99_s, echo_p99_s = await _p99_s(ours), await _p99_s(partial(echo, BODY))
        yield Row("lone call / raw echo, p99", 1, 1 / p99_s, 1 / echo_p99_s, echo_p99_s / p99_s, None)
    async with _local() as ours:
        yield await _beside_bare_mailbox(ours, rounds=rounds, seconds=seconds)
    async with _local() as bare, _local(middleware=True) as ours:
        yield await many("local call, middleware / none", ours=ours, raw=bare, goal=0.6)
    async with _local() as bare, _local(method="threaded") as ours:
        yield await many("local call, thread / coroutine", ours=ours, raw=bare, goal=None)
    async for row in entities_local.run(rounds=rounds, seconds=seconds):
        yield row


@asynccontextmanager
async def _calls(*, pinned: bool = False) -> AsyncIterator[Work]:
    """Calls from here to a runner elsewhere, spread over the entities."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/bench.db"
        async with peers.elsewhere(partial(serve, url), pinned=pinned):
            cluster = program(url)
            async with cluster.connect():
                yield spread(cluster)


@asynccontextmanager
async def _local(*, method: str = "echo", middleware: bool = False) -> AsyncIterator[Work]:
    """Calls of a runner to its own entities."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = program(f"sqlite:///{folder}/bench.db")
        if middleware:
            cluster.middleware(_through)
        async with cluster:
            await cluster.ready(timeout="30s")
            yield spread(cluster, method)


async def _through(work: WorkInfo, call_next: CallNext) -> Any:
    del work
    return await call_next()


def spread(cluster: Cluster, method: str = "echo") -> Work:
    """Calls of one entity after the other."""
    refs = itertools.cycle([getattr(cluster.ref(Echo, f"echo-{number}"), method) for number in range(ENTITIES)])
    return lambda: next(refs)(BODY)


async def _beside_bare_mailbox(ours: Work, *, rounds: int, seconds: float) -> Row:
    bare = entities_local.Bare(define(entities_local.Echo), "echo", ENTITIES)
    numbers = itertools.cycle(range(ENTITIES))
    try:
        return await compare(
            "whole local call / mailbox",
            ours=ours,
            raw=lambda: bare.call(next(numbers)),
            callers=IN_FLIGHT,
            goal=0.5,
            rounds=rounds,
            seconds=seconds,
        )
    finally:
        await bare.stop()


async def _p99_s(work: Work, *, times: int = 3_000) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        await work()
        taken.append(time.perf_counter() - began)
    return sorted(taken)[times * 99 // 100]


def program(url: str) -> Cluster:
    """The cluster."""
    cluster = Cluster(url, shards=SHARDS)
    cluster.entity(Echo)
    return cluster


async def serve(url: str) -> str:
    """Run it for as long as the process lives."""
    cluster = program(url)
    await cluster.start()
    await cluster.ready(timeout="30s")
    peers.keep.append(cluster)
    return url
