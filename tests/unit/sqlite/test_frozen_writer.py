"""C3: a process that stands still inside a commit stops everybody, until it is ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import PersistenceError
from coterie.storage.interface import Registration, SeatDeclaration
from coterie.storage.sqlite.file import write_lock
from coterie.storage.sqlite.file.write_lock import standing
from coterie.transport.identity import process_id

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from coterie.storage.interface import Ownership, Renewal
    from tests.unit.sqlite.conftest import Child, Opener

A, B, C = "a" * 32, "b" * 32, "c" * 32


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for locks less long than in real life."""
    monkeypatch.setattr("coterie.storage.sqlite.ownership._LIMIT_S", 0.2)
    monkeypatch.setattr("coterie.storage.sqlite.ownership._EVICT_LIMIT_S", 0.1)


async def join(session: Ownership, incarnation: str) -> None:
    me = Registration(id=incarnation, name="me", address="", host_id="", groups=(), process=process_id())
    await session.register(me, [SeatDeclaration("seat", "default")], ttl_s=60)


async def expiry(session: Ownership, incarnation: str) -> int:
    """The counter of another one's lease once that has run out."""
    async with asyncio.timeout(120):
        while True:
            renewal = await session.renew(ttl_s=60)
            assert renewal is not None
            for each in renewal.others:
                if each.id == incarnation and each.expired:
                    return each.counter
            await asyncio.sleep(0.01)


async def attempt(renewing: Coroutine[Any, Any, Renewal | None]) -> Renewal | None:
    try:
        return await renewing
    except PersistenceError:
        return None


def frozen(child: Callable[..., Child], path: Path, order: str, *leases: str) -> Child:
    """A process with runners (`incarnation=ttl`) that froze inside a write transaction."""
    started = child("own", f"sqlite:///{path}", *leases)
    assert started.line() == "registered"
    assert started.told(order) == "holding"
    started.freeze()
    return started


async def test_a_runner_frozen_inside_a_commit_is_ended_and_evicted(
    new: Opener, path: Path, child: Callable[..., Child], caplog: pytest.LogCaptureFixture
) -> None:
    async with new() as storage, storage.ownership(A) as session:
        await join(session, A)
        victim = frozen(child, path, "hold", f"{B}=0.1")
        counter = await expiry(session, B)
        assert await session.evict(B, counter=counter, expired=True)
        assert victim.wait() == -signal.SIGKILL
        assert [runner.id for runner in (await session.view()).runners] == [A]
        assert len(await session.acquire(["seat"])) == 1
    assert f"process {victim.pid} (" in caplog.text
    assert "it was ended" in caplog.text


async def test_it_is_only_named_where_the_setting_says_so(
    new: Opener, path: Path, child: Callable[..., Child], caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with what helps; and the eviction succeeds as soon as somebody has done it."""
    async with new(settings={"sqlite_kill_frozen": False}) as storage, storage.ownership(A) as session:
        await join(session, A)
        victim = frozen(child, path, "hold", f"{B}=0.1")
        counter = await expiry(session, B)
        for _ in range(2):
            with pytest.raises(PersistenceError) as caught:
                await session.evict(B, counter=counter, expired=True)
            assert caught.value.outcome == "refused"
        assert victim.state() == "T"
        assert caplog.text.count(f"kill -KILL {victim.pid}") == 1
        victim.kill()
        victim.wait()
        assert await session.evict(B, counter=counter, expired=True)


async def test_a_process_that_is_no_runner_is_named_and_left_alone(
    new: Opener, path: Path, child: Callable[..., Child], caplog: pytest.LogCaptureFixture
) -> None:
    async with new() as storage, storage.ownership(A) as session, storage.ownership(B) as other:
        await join(session, A)
        await join(other, B)
        holder = child("hold", str(path))
        assert holder.line() == "holding"
        holder.freeze()
        with pytest.raises(PersistenceError, match=f"process {holder.pid}"):
            await session.evict(B, counter=1, expired=False)
        assert holder.state() == "T"
    assert caplog.text.count(f"kill -CONT {holder.pid}") == 1


async def test_a_process_lives_on_while_one_of_its_runners_renews(
    new: Opener, path: Path, child: Callable[..., Child]
) -> None:
    """After an eviction the process is another incarnation, and its old row may still be there."""
    async with new() as storage, storage.ownership(A) as session:
        await join(session, A)
        busy = frozen(child, path, "hold", f"{B}=0.1", f"{C}=60")
        counter = await expiry(session, B)
        with pytest.raises(PersistenceError):
            await session.evict(B, counter=counter, expired=True)
        assert busy.state() == "T"


async def test_a_runner_frozen_while_it_renews_is_ended_after_a_whole_ttl(
    new: Opener, path: Path, child: Callable[..., Child], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can renew then, so nobody could ever evict it."""
    async with new() as storage, storage.ownership(A) as session:
        await join(session, A)
        victim = frozen(child, path, "hold leases", f"{B}=0.1")
        for _ in range(2):
            with pytest.raises(PersistenceError) as caught:
                await session.renew(ttl_s=3600)
            assert caught.value.outcome == "refused"
            assert victim.state() == "T", "it may have been frozen for a moment only"
        async with asyncio.timeout(120):
            while await attempt(session.renew(ttl_s=0.5)) is None:
                pass
        assert victim.wait() == -signal.SIGKILL
    assert "it was ended" in caplog.text


def test_only_who_holds_the_lock_at_every_look_stands_still() -> None:
    """A busy process is met with the lock now and then, and must not be taken for a frozen one."""
    me, parent = os.getpid(), os.getppid()
    assert standing(lambda: me) == process_id()
    for seen in ([None], [me, None], [me, me, me, me, parent], [me, 2**22 + 1]):
        assert standing(iter(seen).__next__) == ""


def test_a_process_is_told_from_a_later_one_of_the_same_number() -> None:
    assert write_lock.process_of(os.getpid()) == process_id()
    process = subprocess.Popen(["sleep", "600"])
    try:
        named = write_lock.process_of(process.pid)
        assert not write_lock.end(f"{process.pid}:1")
        assert process.poll() is None
        assert write_lock.end(named)
        assert process.wait() == -signal.SIGKILL
        assert not write_lock.end(named)
        assert write_lock.process_of(process.pid) == ""
    finally:
        process.kill()
        process.wait()


async def test_no_wait_for_a_lock_is_longer_than_the_time_between_renewals(
    new: Opener, path: Path, child: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """M1: renewals that lie too far apart count for nothing, and the frozen one would never be found dead [GAP-02]."""
    monkeypatch.setattr("coterie.storage.sqlite.ownership._LIMIT_S", 30.0)
    async with new(settings={"lease_renew": 0.05}) as storage, storage.ownership(A) as session:
        await join(session, A)
        frozen(child, path, "hold", f"{B}=60")
        with pytest.raises(PersistenceError, match=r"and [01]\.\ds were waited"):
            await session.acquire(["seat"])
