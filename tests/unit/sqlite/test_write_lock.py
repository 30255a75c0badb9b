"""C3: who waits for the write lock learns who holds it."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import apsw
import pytest

from coterie.errors import PersistenceError
from coterie.storage.interface import KvPut, Registration
from coterie.storage.sqlite.file.write_lock import described
from tests.unit.sqlite.conftest import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from coterie.storage.sqlite import SqliteStorage
    from tests.unit.sqlite.conftest import Child, Opener


async def begun(storage: SqliteStorage) -> None:
    """Wait until a group is on its way."""
    async with asyncio.timeout(120):
        while storage.groups.groups == 0:
            await asyncio.sleep(0.001)


async def test_a_frozen_writer_is_named_in_the_error(new: Opener, path: Path, child: Callable[..., Child]) -> None:
    """C3: a process stopped inside a commit stops everybody; the kernel knows which one."""
    async with new(lock_limit_s=0.3) as storage:
        await storage.kv.put(KvPut("before", b"1", 1))
        assert storage._main.write_lock_holder() is None
        frozen = child("hold", str(path))
        assert frozen.line() == "holding"
        frozen.send_signal(signal.SIGSTOP)
        until(lambda: frozen.state() == "T")
        assert storage._main.write_lock_holder() == frozen.pid
        with pytest.raises(PersistenceError) as caught:
            await storage.kv.put(KvPut("during", b"2", 2))
        assert f"process {frozen.pid}" in caught.value.message
        assert "child_process.py hold" in caught.value.message
        assert "stopped" in caught.value.message
        assert str(frozen.pid) in caught.value.hint
        assert caught.value.outcome == "unreachable"
        assert await storage.kv.get("before") is not None  # readers go on
        frozen.kill()
        frozen.wait()
        await storage.kv.put(KvPut("after", b"3", 3))
        assert storage._main.write_lock_holder() is None
        assert await storage.kv.get("during") is None


async def test_leases_can_be_written_while_the_main_file_is_stuck(
    new: Opener, path: Path, child: Callable[..., Child]
) -> None:
    """C3: that is why they have a file of their own."""
    async with new(lock_limit_s=0.2) as storage, storage.ownership("a" * 32) as session:
        me = Registration(id="a" * 32, name="a", address="", host_id="", groups=("default",))
        await session.register(me, [], ttl_s=60)
        holder = child("hold", str(path))
        assert holder.line() == "holding"
        renewal = await session.renew(ttl_s=60)
        assert renewal is not None
        assert renewal.counter == 2
        with pytest.raises(PersistenceError):
            await storage.kv.put(KvPut("k", b"v", 1))


async def test_a_whole_group_waits_once_and_not_member_by_member(new: Opener, path: Path) -> None:
    """C3, M3: nothing began, so there is nothing to run again one by one."""
    async with new(lock_limit_s=0.3) as storage:
        other = apsw.Connection(str(path))
        other.execute("begin immediate")
        writes = [asyncio.create_task(storage.kv.put(KvPut(f"k{n}", b"v", n))) for n in range(50)]
        results = await asyncio.gather(*writes, return_exceptions=True)
        other.execute("rollback")
        other.close()
        assert all(isinstance(result, PersistenceError) for result in results)
        assert storage.groups.reruns == 0
        assert storage.groups.groups <= 2
        await storage.kv.put(KvPut("k", b"v", 1))


async def test_a_writer_that_is_only_slow_is_waited_for(new: Opener, path: Path) -> None:
    async with new(lock_limit_s=20) as storage:
        other = apsw.Connection(str(path))
        other.execute("begin immediate")
        write = asyncio.create_task(storage.kv.put(KvPut("k", b"v", 1)))
        await begun(storage)
        assert not write.done()
        other.execute("commit")
        other.close()
        await write


async def test_what_queues_while_the_lock_is_waited_for_shares_the_transaction(new: Opener, path: Path) -> None:
    """M3: they need not wait for another turn."""
    async with new(lock_limit_s=20) as storage:
        other = apsw.Connection(str(path))
        other.execute("begin immediate")
        first = storage.groups.submit(KvPut("first", b"v", 1))
        await begun(storage)
        late = [storage.groups.submit(KvPut(f"k{n}", b"v", n)) for n in range(20)]
        other.execute("commit")
        other.close()
        await asyncio.gather(first, *late)
        assert (storage.groups.groups, storage.groups.members) == (1, 21)
        assert await storage.kv.count("k") == 20


async def test_stop_does_not_wait_for_a_lock_that_never_comes(new: Opener, path: Path) -> None:
    storage = new(lock_limit_s=3600)
    await storage.start()
    other = apsw.Connection(str(path))
    other.execute("begin immediate")
    write = asyncio.create_task(storage.kv.put(KvPut("k", b"v", 1)))
    await begun(storage)
    async with asyncio.timeout(120):
        await storage.stop()
    with pytest.raises(PersistenceError, match="shutting down"):
        await write
    assert other.execute("select count(*) from kv").get == 0
    other.execute("rollback")
    other.close()


def test_a_process_is_described_by_its_command() -> None:
    assert described(os.getpid()).startswith(f"process {os.getpid()} (")
    assert described(2**22 + 1) == f"process {2**22 + 1}"
