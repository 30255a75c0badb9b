"""The thread that owns a connection."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from coterie.errors import NotStarted, PersistenceError, ShuttingDown
from coterie.storage.sqlite.database import open_memory
from coterie.storage.sqlite.executor import ThreadExecutor
from tests.unit.sqlite.conftest import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@asynccontextmanager
async def executor(**options: Any) -> AsyncIterator[ThreadExecutor[apsw.Connection]]:
    async with ThreadExecutor(open_memory, what="test executor", **options) as started:
        yield started


def answer(connection: apsw.Connection) -> int:
    value: int = connection.execute("select 42").get
    return value


class Gate:
    """Work that stays in the thread until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self, connection: apsw.Connection) -> str:
        self.entered.set()
        assert self.open.wait(120)
        return "passed"


async def entered(gate: Gate) -> None:
    async with asyncio.timeout(120):
        while not gate.entered.is_set():
            await asyncio.sleep(0.001)


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "test executor"]


async def test_work_runs_on_one_thread_in_order_and_gives_results() -> None:
    async with executor() as tested:
        seen: list[tuple[int, int]] = []
        works: list[Callable[[apsw.Connection], Any]]
        works = [lambda _, n=n: seen.append((n, threading.get_ident())) for n in range(50)]  # type: ignore[misc]  # a default binds the loop's value
        await asyncio.gather(*(tested.run(work) for work in works))
        assert [n for n, _ in seen] == list(range(50))
        assert len({thread for _, thread in seen} | {threading.get_ident()}) == 2
        assert await tested.run(answer) == 42


async def test_an_error_reaches_its_caller_alone() -> None:
    def wrong(connection: apsw.Connection) -> None:
        connection.execute("select * from nowhere")

    def exhausted(connection: apsw.Connection) -> None:
        next(iter(()))

    async with executor() as tested:
        results = await asyncio.gather(
            tested.run(wrong), tested.run(exhausted), tested.run(answer), return_exceptions=True
        )
    assert isinstance(results[0], apsw.SQLError)
    assert isinstance(results[1], RuntimeError)
    assert results[2] == 42


async def test_a_cancelled_caller_disturbs_nobody_and_its_waiting_work_is_left_out() -> None:
    gate, ran = Gate(), list[str]()
    async with executor() as tested:
        running = asyncio.create_task(tested.run(gate))
        await entered(gate)
        waiting = asyncio.create_task(tested.run(lambda _: ran.append("waiting")))
        after = asyncio.create_task(tested.run(answer))
        await asyncio.sleep(0)
        running.cancel()
        waiting.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        gate.open.set()
        assert await after == 42
        assert ran == []
        assert await tested.run(answer) == 42


async def test_the_inbox_is_bounded_and_room_comes_back() -> None:
    gate = Gate()
    async with executor(waiting_most=3) as tested:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(tested.run(gate))]
        await entered(gate)
        tasks += [asyncio.create_task(tested.run(answer)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(PersistenceError, match="3 pieces are waiting") as caught:
            await tested.run(answer)
        assert caught.value.outcome == "unreachable"
        gate.open.set()
        assert await asyncio.gather(*tasks) == ["passed", 42, 42]
        assert await tested.run(answer) == 42


async def test_results_that_pile_up_are_handed_over_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with executor() as tested:
        hops: list[object] = []
        loop = asyncio.get_running_loop()
        real, ended = loop.call_soon_threadsafe, threading.Event()

        def counted(*args: Any) -> object:
            hops.append(args)
            return real(*args)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(tested.run(answer)) for _ in range(100)]
        tasks.append(asyncio.create_task(tested.run(lambda _: ended.set())))
        await asyncio.sleep(0)
        assert ended.wait(120)  # blocks the loop, so that all results wait for it
        await asyncio.gather(*tasks)
        assert len(hops) <= 2


async def test_stop_runs_what_was_accepted_and_leaves_no_thread() -> None:
    gate = Gate()
    tested = ThreadExecutor(open_memory, what="test executor")
    await tested.start()
    first, second = asyncio.create_task(tested.run(gate)), asyncio.create_task(tested.run(answer))
    await entered(gate)
    stopping = asyncio.create_task(tested.stop())
    await asyncio.sleep(0)
    with pytest.raises(ShuttingDown):
        await tested.run(answer)
    gate.open.set()
    await stopping
    assert (await first, await second) == ("passed", 42)
    assert not ours()


async def test_before_start_it_says_so() -> None:
    tested = ThreadExecutor(open_memory, what="test executor")
    with pytest.raises(NotStarted):
        await tested.run(answer)
    await tested.stop()


async def test_a_connection_that_cannot_be_opened_fails_the_start_and_leaves_no_thread() -> None:
    def refuse() -> apsw.Connection:
        raise apsw.CantOpenError("no")

    with pytest.raises(apsw.CantOpenError):
        await ThreadExecutor(refuse, what="test executor").start()
    assert not ours()


async def test_a_start_that_is_cancelled_closes_what_it_opened() -> None:
    gate, opened = Gate(), list[apsw.Connection]()

    def slowly() -> apsw.Connection:
        opened.append(open_memory())
        gate(opened[0])
        return opened[0]

    starting = asyncio.create_task(ThreadExecutor(slowly, what="test executor").start())
    await entered(gate)
    starting.cancel()
    await asyncio.sleep(0)
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not ours()
    with pytest.raises(apsw.ConnectionClosedError):
        opened[0].execute("select 1")


def test_a_loop_that_was_closed_meanwhile_is_tolerated() -> None:
    gate = Gate()
    loop = asyncio.new_event_loop()

    async def leave_running() -> ThreadExecutor[apsw.Connection]:
        tested = ThreadExecutor(open_memory, what="test executor")
        await tested.start()
        work = asyncio.create_task(tested.run(gate))
        await entered(gate)
        work.cancel()
        return tested

    tested = loop.run_until_complete(leave_running())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    gate.open.set()
    tested._inbox.put(None)
    until(lambda: not ours())
