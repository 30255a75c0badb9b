"""An rpc that is an async generator, item by item (STRM-06, STRM-07, as far as volatile)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coterie.entities.entity import Entity
from coterie.entities.rpc import rpc
from coterie.errors import RemoteError, RunnerUnavailable, SendTimeout
from tests.unit.entities.local_host import Asked, LocalHost, until

seen: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    seen.clear()


class Spent(Exception):
    """Declared."""


class Tap(Entity):
    @rpc(errors=[Spent])
    async def drip(self, to: int, pause_s: float = 0.0, end: str = "") -> AsyncIterator[int]:
        try:
            for number in range(to):
                seen.append(number)
                yield number
                if pause_s:
                    await asyncio.sleep(pause_s)
            if end == "declared":
                raise Spent("no more")
            if end == "defect":
                raise ZeroDivisionError("burst")
            if end == "wrong":
                yield "water"  # type: ignore[misc] # that is the point
        finally:
            await asyncio.sleep(0)
            seen.append("closed")

    @rpc
    async def hang_on_close(self) -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.Event().wait()

    @rpc
    async def calls(self) -> str:
        return "fine"


def read(ground: LocalHost, method: str, *args: Any, room: int | None = None, **options: Any) -> Asked:
    queue: asyncio.Queue[Any] = asyncio.Queue()
    semaphore = None if room is None else asyncio.Semaphore(room)
    return ground.ask("a", method, *args, items=queue, room=semaphore, **options)


def items(work: Asked) -> list[Any]:
    return [work.items.get_nowait() for _ in range(work.items.qsize())]


async def test_a_stream_gives_its_items_and_then_its_end() -> None:
    """STRM-06."""
    ground = LocalHost(Tap)
    work = read(ground, "drip", 3)
    assert await work.future is None
    assert items(work) == [0, 1, 2]
    assert seen == [0, 1, 2, "closed"]
    assert ground.host.counts.replied == 1
    await ground.host.stop()


@pytest.mark.parametrize(("end", "error"), [("declared", Spent), ("defect", RemoteError), ("wrong", RemoteError)])
async def test_a_stream_that_fails_says_so_once_after_its_items(end: str, error: type[Exception]) -> None:
    """STRM-07: also for a value that cannot be encoded."""
    ground = LocalHost(Tap)
    work = read(ground, "drip", 2, 0.0, end)
    with pytest.raises(error):
        await work.future
    assert items(work) == [0, 1]
    assert seen == [0, 1, "closed"]
    assert await ground.call("a", "calls") == "fine"
    await ground.host.stop()


async def test_the_handler_goes_no_faster_than_its_reader() -> None:
    ground = LocalHost(Tap)
    work = read(ground, "drip", 100, room=2)
    await until(lambda: len(seen) == 3)
    for _ in range(20):
        await asyncio.sleep(0)
    assert seen == [0, 1, 2]
    for _ in range(98):
        work.room.release()
    await work.future
    assert items(work) == list(range(100))
    await ground.host.stop()


@pytest.mark.parametrize("where", ["in the handler", "behind the reader"])
async def test_a_reader_that_leaves_closes_the_generator(where: str) -> None:
    ground = LocalHost(Tap)
    work = read(ground, "drip", 100, 1000.0 if where == "in the handler" else 0.0, room=1)
    await until(lambda: work.items.qsize() == 1 and seen[-1] == (0 if where == "in the handler" else 1))
    ground.host.cancel(work)
    await until(lambda: seen[-1] == "closed")
    assert await ground.call("a", "calls") == "fine"
    assert ground.host.counts.activations == 1
    await ground.host.stop()


async def test_a_reader_that_cannot_be_reached_ends_the_stream() -> None:
    ground = LocalHost(Tap)
    work = ground.ask("a", "drip", 100)
    await until(lambda: seen and seen[-1] == "closed")
    assert seen == [0, "closed"]
    assert await ground.call("a", "calls") == "fine"
    assert ground.host.counts.activations == 1
    assert work.answers == 0
    await ground.host.stop()


@pytest.mark.simulated(seeds=3)
async def test_the_deadline_of_a_stream_is_its_longest_silence() -> None:
    ground = LocalHost(Tap)
    work = read(ground, "drip", 10, 4.0, within_s=5.0)
    await work.future
    assert items(work) == list(range(10))
    silent = read(ground, "drip", 10, 6.0, within_s=5.0)
    with pytest.raises(SendTimeout):
        await silent.future
    assert items(silent) == [0]
    await until(lambda: seen[-1] == "closed")
    await ground.host.stop()


@pytest.mark.simulated(seeds=2)
async def test_a_reader_that_is_behind_has_its_own_time() -> None:
    ground = LocalHost(Tap)
    work = read(ground, "drip", 3, 4.0, room=1, within_s=5.0)
    for _ in range(2):
        await until(lambda: seen and seen[-1] != 0)
        await asyncio.sleep(4)
        work.room.release()
    await work.future
    assert items(work) == [0, 1, 2]
    await ground.host.stop()


async def test_a_stream_is_cut_short_when_the_seat_is_lost() -> None:
    ground = LocalHost(Tap)
    work = read(ground, "drip", 100, room=2)
    await until(lambda: seen == [0, 1, 2])
    ground.trust.end()
    work.room.release()
    with pytest.raises(RunnerUnavailable, match="lost the shard"):
        await work.future
    assert items(work) == [0, 1, 2]
    await until(lambda: seen[-1] == "closed")
    await ground.host.stop()


@pytest.mark.simulated(seeds=2)
async def test_a_generator_that_hangs_while_closing_frees_its_entity_after_a_while() -> None:
    ground = LocalHost(Tap)
    loop = asyncio.get_running_loop()
    work = read(ground, "hang_on_close", room=0)
    await until(lambda: len(ground.host.handlers.waiting) == 1)
    ground.host.cancel(work)
    began_s = loop.time()
    assert await ground.call("a", "calls") == "fine"
    assert loop.time() - began_s < 4.0
    await ground.host.stop()
