"""A file that is deleted, moved or replaced while it is open: nothing more is acknowledged, and the runner ends."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from coterie import Cluster, Leader, StorageReplaced
from coterie.kernel.service import State
from coterie.storage.contracts.messages import Commit
from coterie.storage.interface import Claim, KvPut
from coterie.storage.sqlite import database
from coterie.storage.sqlite.file import file_guard
from tests.unit.sqlite.test_ownership import A, join

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.unit.sqlite.conftest import Opener


def delete(path: Path) -> None:
    path.unlink()


def delete_wal(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


def delete_shm(path: Path) -> None:
    path.with_name(f"{path.name}-shm").unlink()


def move_away(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def replace(path: Path) -> None:
    """As a restore does: another whole file takes the name."""
    other = path.with_name("backup.db")
    other.touch()
    other.rename(path)


async def again_and_again(write: Callable[[], Awaitable[object]]) -> None:
    while True:
        await write()


@pytest.fixture
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a look of the last 10 ms may stand for the next."""
    monkeypatch.setattr(file_guard, "LOOK_NS", 0)


WAYS = [delete, delete_wal, delete_shm, move_away, replace]


@pytest.mark.usefixtures("looks_each_time")
@pytest.mark.parametrize("way", WAYS)
async def test_no_write_is_acknowledged_and_no_read_answered_once_the_file_is_another(
    new: Opener, path: Path, way: Callable[[Path], None]
) -> None:
    async with new() as storage:
        await storage.kv.put(KvPut("k", b"1", 1))
        transaction = storage.transaction(limit_s=30)
        await transaction.fetch("select 1 as one")
        way(path)
        for _ in range(2):
            with pytest.raises(StorageReplaced, match="while it was in use") as caught:
                await storage.kv.put(KvPut("k", b"2", 2))
            assert caught.value.outcome == "refused"
        with pytest.raises(StorageReplaced):
            await storage.kv.get("k")
        with pytest.raises(StorageReplaced):
            await transaction.commit(Commit(Claim(A, "seat", 1)))
        with pytest.raises(StorageReplaced):
            async with storage.ownership(A):
                pass  # must not begin an empty file beside the one that is open
    assert not caught.value.retryable
    assert path.exists() == (way not in (delete, move_away))


@pytest.mark.usefixtures("looks_each_time")
async def test_a_file_that_goes_during_a_commit_is_noticed_before_anybody_is_told(
    new: Opener, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit went to a file without a name: whether it is ever seen again is not known."""
    async with new() as storage:
        commit = database.commit

        def commit_and_delete(connection: apsw.Connection, **options: Any) -> None:
            commit(connection, **options)
            path.unlink()

        monkeypatch.setattr(database, "commit", commit_and_delete)
        with pytest.raises(StorageReplaced) as caught:
            await storage.kv.put(KvPut("k", b"1", 1))
        assert caught.value.outcome == "unknown"


@pytest.mark.usefixtures("looks_each_time")
async def test_a_file_that_was_missed_once_is_not_trusted_when_it_is_back(new: Opener, path: Path) -> None:
    """Others may have begun another file meanwhile, and noticed nothing."""
    async with new() as storage:
        elsewhere = path.rename(path.with_name("elsewhere.db"))
        with pytest.raises(StorageReplaced):
            await storage.kv.put(KvPut("k", b"1", 1))
        elsewhere.rename(path)
        with pytest.raises(StorageReplaced):
            await storage.kv.put(KvPut("k", b"1", 1))
    async with new() as storage:  # a process that starts anew may use it
        await storage.kv.put(KvPut("k", b"2", 2))


async def test_whoever_writes_all_the_time_is_stopped_within_milliseconds(new: Opener, path: Path) -> None:
    """Not each commit looks: three looks at each would cost a fifth of the commits."""
    async with new() as storage:
        await storage.kv.put(KvPut("k", b"1", 1))
        path.unlink()
        async with asyncio.timeout(120):
            with pytest.raises(StorageReplaced):
                await again_and_again(lambda: storage.kv.put(KvPut("k", b"1", 1)))
        with pytest.raises(StorageReplaced):  # and from then on at each
            await storage.kv.put(KvPut("k", b"1", 1))


async def test_a_file_that_is_back_before_anybody_has_looked_is_the_same_file(new: Opener, path: Path) -> None:
    async with new() as storage:
        path.rename(path.with_name("elsewhere.db")).rename(path)
        await storage.kv.put(KvPut("k", b"1", 1))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ending", ["", "-leases"])
async def test_renewals_and_grants_notice_both_files(
    new: Opener, path: Path, way: Callable[[Path], None], ending: str
) -> None:
    async with new() as storage, storage.ownership(A) as session:
        await join(session, A)
        assert await session.renew(ttl_s=60) is not None
        way(path.with_name(path.name + ending))
        with pytest.raises(StorageReplaced):
            await session.acquire(["seat"])
        with pytest.raises(StorageReplaced):
            await session.renew(ttl_s=60)


@pytest.mark.usefixtures("looks_each_time")
async def test_the_log_of_the_file_that_took_its_place_is_left_alone(new: Opener, path: Path) -> None:
    """SQLite's last connection deletes -wal and -shm by name when it is closed, unless the main file has moved."""
    old = new()
    await old.start()
    for file in (path, *(path.with_name(path.name + ending) for ending in ("-wal", "-shm"))):
        file.rename(file.with_name(f"old-{file.name}"))
    successor = apsw.Connection(str(path))
    successor.pragma("journal_mode", "wal")
    successor.execute("create table orders (id integer); insert into orders values (1)")
    with pytest.raises(StorageReplaced):
        await old.kv.put(KvPut("k", b"1", 1))
    await old.stop()
    assert path.with_name(f"{path.name}-wal").stat().st_size > 0
    reader = apsw.Connection(str(path))
    assert reader.execute("select id from orders").fetchall() == [(1,)]
    reader.close()
    successor.close()


async def test_a_runner_whose_file_is_gone_ends_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """522 calls were acknowledged into nowhere, and a newcomer led beside the old leader, at the same epoch."""
    cluster = Cluster(f"sqlite:///{tmp_path}/life.db", runner_name="anna", shards=3)
    leads, ended = asyncio.Event(), asyncio.Event()

    @cluster.singleton("importer")
    async def importer(leader: Leader[None]) -> None:
        leads.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with cluster:
        runner: Any = cluster._acting()
        async with asyncio.timeout(120):
            await leads.wait()
            (tmp_path / "life.db").unlink()
            with pytest.raises(StorageReplaced):
                await again_and_again(lambda: cluster.kv.set("a", 1))
            await runner.gone.wait()  # by the next renewal
        assert ended.is_set()
        assert runner.state in (State.STOPPING, State.STOPPED)
        assert not runner.seats
        with pytest.raises(StorageReplaced, match=r"life\.db was deleted"):
            await cluster.kv.set("a", 1)
    assert not (tmp_path / "life.db").exists()
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]
    assert said.startswith("runner anna ends: cannot go on: ")
    assert "restore a backup" in said
