"""Ownership on SQLite, beyond the contract: two files, their clocks and locks, and what a crash leaves."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from coterie.errors import PersistenceError
from coterie.kernel.clock import ManualClock
from coterie.storage.interface import Claim, Registration, SeatDeclaration, StateSave
from coterie.storage.sqlite import seats
from tests.unit.sqlite.test_processes import tell

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from coterie.storage.interface import Ownership
    from tests.unit.sqlite.conftest import Child, Opener

A, B, C = "a" * 32, "b" * 32, "c" * 32
SEAT = SeatDeclaration("seat", "default")


async def join(session: Ownership, incarnation: str, *, ttl_s: float = 60) -> None:
    me = Registration(id=incarnation, name=incarnation[0], address="", host_id="", groups=())
    await session.register(me, [SEAT], ttl_s=ttl_s)


async def sighted(session: Ownership, incarnation: str) -> tuple[int, bool]:
    """Counter of another one's lease, and whether it has run out."""
    renewal = await session.renew(ttl_s=60)
    assert renewal is not None
    return next((each.counter, each.expired) for each in renewal.others if each.id == incarnation)


def table(path: Path, query: str) -> list[Any]:
    connection = apsw.Connection(str(path))
    found = connection.execute(query).fetchall()
    connection.close()
    return found


def leases_of(path: Path) -> list[str]:
    return [row[0] for row in table(path.with_name(f"{path.name}-leases"), "select id from leases order by id")]


# Time.


async def test_leases_run_out_by_the_boot_clock_and_not_by_the_wall(new: Opener) -> None:
    """C3, M1: a step of the wall clock expires nobody."""
    clock = ManualClock()
    async with new(clock=clock) as storage, storage.ownership(A) as a, storage.ownership(B) as b:
        await join(a, A, ttl_s=6)
        await join(b, B, ttl_s=6)
        clock.step_wall(timedelta(hours=1))
        assert await sighted(a, B) == (1, False)
        clock.advance(timedelta(seconds=7))
        assert await sighted(a, B) == (1, True)


async def test_a_lease_of_another_boot_has_run_out(new: Opener, path: Path) -> None:
    """C3: the boot clock began anew, so its times mean nothing."""
    async with new() as storage, storage.ownership(A) as a, storage.ownership(B) as b:
        await join(a, A)
        await join(b, B)
        table(path.with_name(f"{path.name}-leases"), f"update leases set boot_id = 'other' where id = '{B}'")
        assert await sighted(a, B) == (1, True)
        await b.renew(ttl_s=60)
        assert await sighted(a, B) == (2, False)


async def test_a_runner_of_another_boot_is_gone_unless_its_lock_is_held(new: Opener, path: Path) -> None:
    """A reboot leaves rows behind whose processes no kernel knows any more."""
    async with new() as storage, storage.ownership(A) as a:
        await join(a, A)
        async with storage.ownership(B) as b:
            await join(b, B)
            table(path.with_name(f"{path.name}-leases"), f"update leases set boot_id = 'other' where id = '{B}'")
            assert (await a.presences([B])).gone == frozenset()
        path.with_name(f"{path.name}-runner-default-{B}").unlink()
        found = await a.presences([A, B, C])
        assert found.held == {A}
        assert found.gone == found.expired == {B}
        table(path.with_name(f"{path.name}-leases"), f"update leases set boot_id = '' where id = '{B}'")
        assert (await a.presences([B])).gone == frozenset(), "an unknown boot proves nothing"


# Two files, two commits.


async def test_a_runner_without_a_lease_has_run_out_at_counter_0_and_can_be_evicted(new: Opener, path: Path) -> None:
    """C4: the leases file may be lost, with or without a loss of power."""
    async with new() as storage, storage.ownership(A) as a, storage.ownership(B) as b:
        await join(a, A)
        await join(b, B)
        await b.acquire(["seat"])
        table(path.with_name(f"{path.name}-leases"), f"delete from leases where id = '{B}'")
        assert await sighted(a, B) == (0, True)
        assert (await a.presences([B, C])).counters == {B: 0}
        assert await b.renew(ttl_s=60) is None
        assert not await a.evict(B, counter=1, expired=False)
        assert await a.evict(B, counter=0, expired=True)
        assert [seat.holder for seat in (await a.view()).seats] == [None]


async def test_a_crash_halfway_through_an_eviction_leaves_a_lease_that_means_nothing(
    new: Opener, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C4: the runner goes first, so it is gone for good; the next registration sweeps up."""

    def crash(*_: object) -> None:
        raise apsw.IOError("gone")

    async with new() as storage, storage.ownership(A) as a, storage.ownership(B) as b:
        await join(a, A)
        await join(b, B)
        with monkeypatch.context() as patched:
            patched.setattr(seats, "end", crash)
            with pytest.raises(PersistenceError):
                await a.evict(B, counter=1, expired=False)
        assert leases_of(path) == [A, B]
        assert [runner.id for runner in (await storage.view()).runners] == [A]
        assert await b.renew(ttl_s=60) is None
        assert not await a.leaving(B)
        renewal = await a.renew(ttl_s=60)
        assert renewal is not None
        assert renewal.others == ()
        async with storage.ownership(C) as c:
            await join(c, C)
        assert leases_of(path) == [A, C]


async def test_a_registration_that_was_cut_off_between_the_commits_can_be_repeated(new: Opener, path: Path) -> None:
    async with new() as storage, storage.ownership(A) as a:
        await join(a, A)
        table(path, f"delete from runners where id = '{A}'")
        assert await a.renew(ttl_s=60) is None
        await join(a, A)
        renewal = await a.renew(ttl_s=60)
        assert renewal is not None
        assert leases_of(path) == [A]


async def test_a_refused_registration_leaves_nothing_in_either_file(new: Opener, path: Path) -> None:
    async with new() as storage, storage.ownership(A) as a:
        table(path, "create trigger no before insert on seats begin select raise(abort, 'no seats today'); end")
        with pytest.raises(PersistenceError, match="no seats today") as caught:
            await join(a, A)
        assert caught.value.outcome == "refused"
        assert leases_of(path) == []
        assert (await a.view()).runners == ()


# Locks.


async def test_who_renews_while_an_eviction_waits_is_spared(
    new: Opener, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C4 b: the lease is looked at once more under both locks; and no renewal waits for the main file [C3]."""
    monkeypatch.setattr("coterie.storage.sqlite.ownership._EVICT_LIMIT_S", 30)
    async with new() as storage, storage.ownership(A) as a, storage.ownership(B) as b:
        await join(a, A)
        await join(b, B)
        writer = apsw.Connection(str(path))
        writer.execute("begin immediate")
        evicting = asyncio.create_task(a.evict(B, counter=1, expired=False))
        for _ in range(100):
            assert await b.renew(ttl_s=60) is not None
        assert not evicting.done()
        writer.execute("rollback")
        writer.close()
        assert not await evicting
        assert [runner.id for runner in (await a.view()).runners] == [A, B]


async def test_a_lock_that_cannot_be_had_is_refused_and_the_session_is_as_good_as_before(
    new: Opener, path: Path
) -> None:
    """Whoever keeps the lease closes a session whose outcome is in doubt; here there is no doubt."""
    async with new() as storage, storage.ownership(A) as a:
        await join(a, A)
        writer = apsw.Connection(str(path))
        writer.execute("begin immediate")
        with pytest.raises(PersistenceError) as caught:
            await a.acquire(["seat"])
        assert caught.value.outcome == "refused"
        assert await a.renew(ttl_s=60) is not None
        writer.execute("rollback")
        writer.close()
        assert len(await a.acquire(["seat"])) == 1


async def test_a_session_is_closed_at_once_while_it_waits_for_a_lock(
    new: Opener, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.storage.sqlite.ownership._LIMIT_S", 3600)
    writer = apsw.Connection(str(path))
    async with new() as storage:
        async with storage.ownership(A) as a:
            await join(a, A)
            writer.execute("begin immediate")
            waiting = asyncio.create_task(a.acquire(["seat"]))
            await asyncio.sleep(0)
        with pytest.raises(PersistenceError, match="shutting down"):
            await waiting
    writer.close()


async def test_declaring_what_is_known_takes_no_lock(new: Opener, path: Path) -> None:
    """M8: it is done often, and nearly always in vain."""
    async with new() as storage, storage.ownership(A) as a:
        await join(a, A)
        writer = apsw.Connection(str(path))
        writer.execute("begin immediate")
        await a.declare([SEAT])
        writer.execute("rollback")
        writer.close()


async def test_leases_need_not_outlive_a_loss_of_power_and_the_main_file_does(new: Opener) -> None:
    """D1, C3: a renewal waits for no disk."""
    async with new() as storage, storage.ownership(A) as a:
        asked = await a._run(lambda desk: (desk.main.pragma("synchronous"), desk.leases.pragma("synchronous")))
        assert asked == (2, 1)


def test_processes_that_juggle_seats_are_never_granted_the_same_epoch(path: Path, child: Callable[..., Child]) -> None:
    """INV-F1: registering, taking, giving back and leaving, all at once."""
    children = [child("juggle", f"sqlite:///{path}", letter * 32) for letter in "abcd"]
    assert [each.line() for each in children] == ["ready"] * 4
    tell(children, "go")
    granted = [json.loads(each.line()) for each in children]
    assert [each.wait() for each in children] == [0] * 4
    pairs = [(name, epoch) for each in granted for name, epoch in each]
    assert len(pairs) > 100, "hardly anything was granted: it shows nothing"
    assert len(set(pairs)) == len(pairs)
    last = {name: max(epoch for seat, epoch in pairs if seat == name) for name, _ in pairs}
    assert dict(table(path, "select name, epoch from seats")) == last
    assert table(path, "select count(*) from runners") == [(0,)]
    assert table(path, "select count(*) from seats where holder is not null") == [(0,)]
    assert leases_of(path) == []


# The audit.


async def test_what_happens_to_seats_is_written_down_on_request(new: Opener, path: Path) -> None:
    async with new(settings={"audit": True}) as storage, storage.ownership(A) as a, storage.ownership(B) as b:
        await join(a, A)
        await join(b, B)
        await a.acquire(["seat"])
        await a.acquire(["seat"])
        await storage.states.save(StateSave(Claim(B, "seat", 1), "key", b"", 0))
        await a.release("seat", 1)
        await a.release("seat", 1)
        await b.acquire(["seat"])
        await a.evict(B, counter=1, expired=True)
        await a.evict(B, counter=1, expired=False)
        await a.leave()
        await a.leave()
    assert table(path, "select kind, runner, seat, epoch, note from audit order by id") == [
        ("granted", A, "seat", 1, ""),
        ("refused", B, "seat", 1, "key"),
        ("released", A, "seat", 1, ""),
        ("granted", B, "seat", 2, ""),
        ("evicted", B, None, None, f"by {A}"),
        ("left", A, None, None, ""),
    ]


async def test_nothing_is_written_down_unless_asked_for(new: Opener, path: Path) -> None:
    async with new() as storage, storage.ownership(A) as a:
        await join(a, A)
        await a.acquire(["seat"])
        await a.leave()
    assert table(path, "select count(*) from audit") == [(0,)]


async def test_releases_do_not_wait_for_the_disk_and_all_else_does(
    new: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner with thousands of seats could not give them back in time. A loss of power ends their holder too."""
    found: list[int] = []
    release = seats.release

    def seen(main: apsw.Connection, *args: Any, **options: Any) -> bool:
        found.append(main.pragma("synchronous"))
        return release(main, *args, **options)

    monkeypatch.setattr(seats, "release", seen)
    async with new() as storage, storage.ownership(A) as session:
        await join(session, A)
        (grant,) = await session.acquire(["seat"])
        assert await session.release("seat", grant.epoch)
        assert not await session.release("seat", grant.epoch)
        assert found == [1, 1]
        assert await session._run(lambda desk: desk.main.pragma("synchronous")) == 2
