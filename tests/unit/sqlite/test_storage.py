"""The engine as a whole."""

from __future__ import annotations

import asyncio
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import apsw
import pytest

from coterie.errors import ConfigurationError, NotStarted, PersistenceError, ShuttingDown
from coterie.kernel.random import Random
from coterie.storage import migrations
from coterie.storage.interface import KvPut, Storage
from coterie.storage.sqlite.database import Patience, desk_in_memory
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.storage.sqlite.database import SqliteConnections
    from coterie.storage.sqlite.executor import Executor, Role
    from tests.unit.sqlite.conftest import Opener

T = TypeVar("T")


@pytest.fixture
def threads() -> Callable[[], set[str]]:
    """The names of SQLite's threads that were begun in this test: other tests may keep a runner in this process."""
    before = set(threading.enumerate())
    return lambda: {each.name for each in set(threading.enumerate()) - before if each.name.startswith("SQLite")}


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
    opening = storage.ownership("a" * 32).__aenter__()
    for use in (storage.kv.get("k"), storage.kv.put(KvPut("k", b"v", 1)), storage.now(), storage.view(), opening):
        with pytest.raises(ShuttingDown):
            await use


async def test_it_runs_a_writer_and_a_reader_and_leaves_nothing_behind(
    new: Opener, path: Path, threads: Callable[[], set[str]]
) -> None:
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
    new: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: Callable[[], set[str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    async with new(url="sqlite://") as storage:
        assert threads() == {"SQLite writer"}
        await storage.kv.put(KvPut("k", b"v", 1))
        assert await storage.kv.get("k") is not None
        async with storage.ownership("a" * 32) as session:
            assert (await session.view()).runners == ()
        assert storage._main.write_lock_holder() is None
        assert storage.address == "memory"
    assert list(tmp_path.iterdir()) == []


async def test_a_session_has_a_thread_and_connections_of_its_own_and_leaves_nothing_behind(
    new: Opener, path: Path, threads: Callable[[], set[str]]
) -> None:
    """C3, F3: a bare client opens no leases."""
    file = Path(f"{path}-leases")
    async with new() as storage:
        assert not file.exists()
        async with storage.ownership("a" * 32):
            assert file.exists()
            assert threads() == {"SQLite writer", "SQLite reader", "SQLite ownership"}
        assert threads() == {"SQLite writer", "SQLite reader"}
    assert threads() == set()
    assert {each.name for each in path.parent.iterdir()} == {"coterie.db", "coterie.db-leases"}


async def test_leases_are_set_up_even_where_the_main_file_may_not_be(new: Opener) -> None:
    async with new():
        pass
    async with new(migrate=False) as storage, storage.ownership("a" * 32):
        pass


async def test_a_leases_file_of_an_earlier_version_is_brought_up_to_date(new: Opener, path: Path) -> None:
    """K4: nobody is asked, since leases end with their processes."""
    ground = migrations.load("coterie.storage.sqlite.migrations.leases")[0]
    earlier = apsw.Connection(f"{path}-leases")
    earlier.execute(ground.sql)
    earlier.execute("insert into migrations values (1, 'pre', 'ground', 'then')")
    earlier.close()
    async with new() as storage, storage.ownership("a" * 32) as session:
        assert not await session.leaving("b" * 32)


async def test_a_leases_file_that_cannot_be_used_is_refused_and_may_be_tried_again(new: Opener, path: Path) -> None:
    file = Path(f"{path}-leases")
    file.write_text("not a database, but long enough to look like none at all" * 20)
    async with new() as storage:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="not a SQLite database"):
                async with storage.ownership("a" * 32):
                    pass
        assert not list(path.parent.glob("*-runner-*"))
        file.unlink()
        async with storage.ownership("a" * 32):
            pass


async def test_new_files_are_for_their_owner_alone_and_present_ones_stay_as_they_are(new: Opener, path: Path) -> None:
    """X4: the file holds the cluster's secret."""
    before = os.umask(0o022)
    try:
        async with new() as storage, storage.ownership("a" * 32):
            modes = {each.name: oct(each.stat().st_mode & 0o777) for each in path.parent.iterdir()}
            assert len(modes) == 7, modes
            assert set(modes.values()) == {"0o600"}, modes
    finally:
        os.umask(before)
    path.chmod(0o640)
    async with new() as storage:
        await storage.kv.put(KvPut("k", b"v", 1))
        assert path.stat().st_mode & 0o777 == 0o640


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

    def __init__(self, desk: SqliteConnections) -> None:
        self._desk = desk

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def run(self, work: Callable[[SqliteConnections], T]) -> T:
        return work(self._desk)


async def test_several_storages_can_share_a_database_in_memory_without_any_thread(new: Opener) -> None:
    """B4: the simulator runs the real SQL at a virtual instant."""
    clock = ManualClock()
    patience = Patience(chance=Random(), limit_s=0, pause_s=0, holder=lambda: None)
    desk = desk_in_memory(patience=patience, clock=clock)

    def inline(role: Role, connect: Callable[[], SqliteConnections]) -> Executor[SqliteConnections]:
        return Inline(desk)

    options: dict[str, Any] = {"url": "sqlite://", "executors": inline, "clock": clock}
    before = threading.active_count()
    async with new(**options) as one, new(**options) as two:
        await asyncio.gather(*(one.kv.put(KvPut(f"k{n}", b"v", n)) for n in range(20)))
        assert await two.kv.count("k") == 20
        assert threading.active_count() == before
        assert isinstance(one, Storage)
    desk.close()
