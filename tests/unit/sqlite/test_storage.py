"""The engine as a whole."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from coterie.errors import NotStarted, PersistenceError, ShuttingDown
from coterie.kernel.clock import ManualClock
from coterie.storage.interface import KvPut, Storage
from coterie.storage.sqlite.connection import open_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    import apsw

    from coterie.storage.sqlite.executor import Executor, Role
    from tests.unit.sqlite.conftest import Opener

T = TypeVar("T")


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("SQLite")}


async def test_concurrent_writes_share_few_transactions(new: Opener) -> None:
    """M3: nobody calls a batch interface."""
    async with new() as storage:
        await asyncio.gather(*(storage.kv.put(KvPut(f"k{n}", b"v", n)) for n in range(100)))
        assert storage.groups.members == 100
        assert storage.groups.groups <= 5
        assert await storage.kv.count("") == 100


async def test_a_cancelled_caller_disturbs_no_other(new: Opener) -> None:
    async with new() as storage:
        tasks = [asyncio.create_task(storage.kv.put(KvPut(f"k{n}", b"v", n))) for n in range(60)]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results[::3])
        assert [result for n, result in enumerate(results) if n % 3] == [None] * 40
        assert await storage.kv.count("") >= 40


async def test_writes_in_flight_at_stop_are_answered_and_the_answers_are_true(new: Opener) -> None:
    """D1: what was acknowledged is there; what was called unreachable is not."""
    storage = new()
    await storage.start()
    tasks = {n: asyncio.create_task(storage.kv.put(KvPut(f"k{n:04}", b"v", n))) for n in range(1500)}
    await asyncio.sleep(0.002)
    await storage.stop()
    results = dict(zip(tasks, await asyncio.gather(*tasks.values(), return_exceptions=True), strict=True))
    async with new() as again:
        present = {int(entry.key[1:]) for entry in await again.kv.page("", after=None, most=9999)}
    for n, result in results.items():
        if result is None:
            assert n in present
        else:
            assert isinstance(result, PersistenceError)
            assert result.outcome == "unknown" or n not in present


async def test_before_and_after_its_life_it_says_so(new: Opener) -> None:
    storage = new()
    with pytest.raises(NotStarted):
        await storage.kv.get("k")
    with pytest.raises(NotStarted):
        await storage.kv.put(KvPut("k", b"v", 1))
    await storage.start()
    await storage.stop()
    await storage.stop()
    for use in (storage.kv.get("k"), storage.kv.put(KvPut("k", b"v", 1)), storage.now(), storage.dedicated()):
        with pytest.raises(ShuttingDown):
            await use


async def test_it_runs_a_writer_and_a_reader_and_leaves_nothing_behind(new: Opener, path: Path) -> None:
    async with new() as storage:
        assert threads() == {"SQLite writer", "SQLite reader"}
        await storage.kv.put(KvPut("k", b"v", 1))
    assert threads() == set()
    assert [file.name for file in path.parent.iterdir()] == ["coterie.db"]


async def test_the_reader_cannot_write(new: Opener) -> None:
    async with new() as storage:
        with pytest.raises(PersistenceError):
            await storage._main.read(lambda c: c.execute("delete from kv"), doing="misbehave")


async def test_memory_needs_one_thread_and_no_file(
    new: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with new(url="sqlite://") as storage:
        assert threads() == {"SQLite writer"}
        await storage.kv.put(KvPut("k", b"v", 1))
        assert await storage.kv.get("k") is not None
        leases = await storage.dedicated()
        assert await leases.read(lambda c: c.execute("select count(*) from leases").get, doing="look") == 0
        assert storage.write_lock_holder() is None
        assert storage.address == "memory"
    assert list(tmp_path.iterdir()) == []


async def test_leases_have_a_file_and_a_connection_of_their_own_on_request(new: Opener, path: Path) -> None:
    """C3, F3: a bare client opens none."""
    file = Path(f"{path}-leases")
    async with new() as storage:
        assert not file.exists()
        first, second = await asyncio.gather(storage.dedicated(), storage.dedicated())
        assert first is second
        assert file.exists()
        assert threads() == {"SQLite writer", "SQLite reader", "SQLite leases"}
    assert threads() == set()


async def test_leases_are_set_up_even_where_the_main_file_may_not_be(new: Opener) -> None:
    async with new():
        pass
    async with new(migrate=False) as storage:
        await storage.dedicated()


async def test_a_leases_file_that_cannot_be_used_is_refused_and_may_be_tried_again(new: Opener, path: Path) -> None:
    file = Path(f"{path}-leases")
    file.write_text("not a database, but long enough to look like none at all" * 20)
    async with new() as storage:
        for _ in range(2):
            with pytest.raises(Exception, match="not a SQLite database"):
                await storage.dedicated()
        file.unlink()
        await storage.dedicated()


async def test_the_clock_that_it_is_given_decides(new: Opener) -> None:
    """H6."""
    clock = ManualClock(datetime(2026, 3, 29, 1, 30, tzinfo=UTC))
    async with new(clock=clock) as storage:
        assert await storage.now() == datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
        await storage.kv.put(KvPut("k", b"v", 1, ttl_s=60))
        clock.advance(timedelta(seconds=59))
        assert await storage.kv.get("k") is not None
        clock.advance(timedelta(seconds=1))
        assert await storage.kv.get("k") is None
        assert await storage.kv.purge(most=10) == 1


async def test_the_address_is_the_path_as_it_was_given(new: Opener, path: Path) -> None:
    assert new().address == str(path)
    assert new(url="sqlite:///coterie.db").address == "coterie.db"


async def test_clusters_in_one_file_do_not_see_each_other(new: Opener) -> None:
    """m7."""
    async with new() as one, new(name="two") as two:
        await one.kv.put(KvPut("k", b"v", 1))
        assert await two.kv.get("k") is None
        assert await two.kv.clear("") == 0
        assert await one.kv.get("k") is not None


class Inline:
    """What a simulator puts in the place of threads: the work is done at once, in the loop."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def run(self, work: Callable[[apsw.Connection], T]) -> T:
        return work(self._connection)


async def test_several_storages_can_share_a_database_in_memory_without_any_thread(new: Opener) -> None:
    """B4: the simulator runs the real SQL at a virtual instant."""
    connection = open_memory()

    def inline(role: Role, connect: Callable[[], apsw.Connection]) -> Executor:
        return Inline(connection)

    clock = ManualClock()
    options: dict[str, Any] = {"url": "sqlite://", "executors": inline, "clock": clock}
    before = threading.active_count()
    async with new(**options) as one, new(**options) as two:
        await asyncio.gather(*(one.kv.put(KvPut(f"k{n}", b"v", n)) for n in range(20)))
        assert await two.kv.count("k") == 20
        assert threading.active_count() == before
        assert isinstance(one, Storage)
    connection.close()
