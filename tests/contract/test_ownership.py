"""Runners, leases and seats, as every engine keeps them [C4, C5, M1, M2, M8, M13]; F3-F6 rest on it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import PersistenceError
from coterie.ownership.lease_thread import ThreadSideLoop
from coterie.storage.interface import KvPut, Registration, SeatDeclaration, SeatRow, checksum

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.interface import ClusterSnapshot, Ownership, Renewal, Sighting, Storage

A, B, C = "a" * 32, "b" * 32, "c" * 32
S1, S2, S10, LONE = "shard:default:1", "shard:default:2", "shard:default:10", "singleton:lone"
SHARDS = [SeatDeclaration(name, "default") for name in (S10, S2, S1)]
LONG_S = 60.0


def who(id: str, **values: Any) -> Registration:
    told = {"name": f"runner {id[0]}", "address": "127.0.0.1:7001", "host_id": "here", "groups": ("default",)}
    return Registration(id=id, **{**told, **values})


async def join(session: Ownership, id: str, *seats: SeatDeclaration, ttl_s: float = LONG_S, **values: Any) -> None:
    knows = {seat.name: seat.fingerprint for seat in seats}
    await session.register(who(id, knows=knows, **values), [*SHARDS, *seats], ttl_s=ttl_s)


async def take(session: Ownership, *names: str) -> dict[str, int]:
    return {grant.name: grant.epoch for grant in await session.acquire(names)}


async def renewed(session: Ownership) -> Renewal:
    renewal = await session.renew(ttl_s=LONG_S)
    assert renewal is not None
    return renewal


async def sighted(session: Ownership, id: str) -> Sighting:
    return next(each for each in (await renewed(session)).others if each.id == id)


async def expiry(session: Ownership, id: str) -> Sighting:
    """What the renewal says of another runner once it has expired."""
    async with asyncio.timeout(120):
        while not (sighting := await sighted(session, id)).expired:
            await asyncio.sleep(0.01)
    return sighting


def seat(view: ClusterSnapshot, name: str) -> SeatRow:
    return next(each for each in view.seats if each.name == name)


def ids(view: ClusterSnapshot) -> set[str]:
    return {runner.id for runner in view.runners}


@pytest.fixture
async def a(storage: Storage) -> AsyncIterator[Ownership]:
    """A registered runner with free shards."""
    async with storage.ownership(A) as session:
        await join(session, A)
        yield session


@pytest.fixture
async def b(storage: Storage, a: Ownership) -> AsyncIterator[Ownership]:
    """A second one."""
    async with storage.ownership(B) as session:
        await join(session, B)
        yield session


# Registering.


async def test_a_runner_appears_as_it_has_registered(storage: Storage) -> None:
    me = who(
        A,
        name='Jürgens "Läufer"',
        address="10.0.0.1:7001",
        groups=("default", "gpu"),
        weight=2.5,
        version="1.2.3",
        knows={LONE: "f1", "cron:näch'tlich": "f2"},
        process="4711 99",
        credentials='{"secrets":["database"]}',
    )
    before = await storage.now()
    async with storage.ownership(A) as session:
        await session.register(me, [], ttl_s=LONG_S)
        (found,) = (await session.view()).runners
    assert {name: getattr(found, name) for name in me.__struct_fields__} == {
        name: getattr(me, name) for name in me.__struct_fields__
    }
    assert before - timedelta(seconds=1) <= found.started_at <= await storage.now() + timedelta(seconds=1)
    assert not found.leaving


async def test_declared_seats_are_there_and_free(a: Ownership) -> None:
    view = await a.view()
    assert {each.name for each in view.seats} == {S1, S2, S10}
    for each in view.seats:
        assert (each.group, each.holder, each.epoch, each.fingerprint, each.clean) == ("default", None, 0, "", True)


async def test_clients_see_the_same_view(storage: Storage, a: Ownership, b: Ownership) -> None:
    await a.acquire([S1])
    await b.leaving(B)
    assert await storage.view() == await a.view() == await b.view()


async def test_an_empty_cluster_has_an_empty_view(storage: Storage) -> None:
    view = await storage.view()
    assert (view.runners, view.seats) == ((), ())


async def test_an_incarnation_registers_once(a: Ownership) -> None:
    """INV-F1: identity is the incarnation; and a refused registration declares nothing."""
    with pytest.raises(PersistenceError) as caught:
        await a.register(who(A, name="again"), [SeatDeclaration("singleton:new", "default")], ttl_s=LONG_S)
    assert caught.value.outcome == "refused"
    view = await a.view()
    assert [runner.name for runner in view.runners] == ["runner a"]
    assert {each.name for each in view.seats} == {S1, S2, S10}


async def test_declaring_again_changes_nothing(a: Ownership, b: Ownership) -> None:
    await a.acquire([S1])
    before = await a.view()
    await b.declare(SHARDS)
    await a.declare([])
    assert await a.view() == before


async def test_many_seats_are_declared_at_once(a: Ownership) -> None:
    names = [f"shard:wide:{number}" for number in range(3000)]
    await a.declare([SeatDeclaration(name, "wide") for name in names])
    assert len(await take(a, *names)) == 3000
    held = {each.name: each.epoch for each in (await a.view()).seats if each.holder == A}
    assert (await renewed(a)).held == checksum(held)


async def test_runners_that_join_at_once_all_do(storage: Storage) -> None:
    async def live(number: int) -> None:
        async with storage.ownership(f"{number:032x}") as session:
            await join(session, f"{number:032x}", SeatDeclaration(LONE, "default", f"f{number % 2}"))

    await asyncio.gather(*(live(number) for number in range(8)))
    view = await storage.view()
    assert len(view.runners) == 8
    assert {each.name for each in view.seats} == {S1, S2, S10, LONE}


# Settings that all must share.


async def test_the_first_decides_what_all_agree_on(a: Ownership, b: Ownership) -> None:
    """K2: who joins later is told what is stored."""
    assert await a.agree({"shards": "100"}) == {"shards": "100"}
    assert await b.agree({"shards": "50", "lease_ttl": "6s"}) == {"shards": "100", "lease_ttl": "6s"}
    assert await a.agree({"shards": "1", "lease_ttl": "9s"}) == {"shards": "100", "lease_ttl": "6s"}


# Definitions [M8].


async def test_a_new_definition_replaces_the_current_one(a: Ownership, b: Ownership) -> None:
    await a.declare([SeatDeclaration(LONE, "default", "v1")])
    before = seat(await a.view(), LONE)
    await b.declare([SeatDeclaration(LONE, "gpu", "v2")])
    after = seat(await a.view(), LONE)
    assert (before.fingerprint, after.fingerprint) == ("v1", "v2")
    assert (before.group, after.group) == ("default", "gpu")
    assert before.effective_from < after.effective_from


async def test_a_new_definition_leaves_holder_and_epoch_alone(a: Ownership, b: Ownership) -> None:
    await a.declare([SeatDeclaration(LONE, "default", "v1")])
    await a.acquire([LONE])
    await b.declare([SeatDeclaration(LONE, "default", "v2")])
    found = seat(await b.view(), LONE)
    assert (found.fingerprint, found.holder, found.epoch) == ("v2", A, 1)


async def test_the_current_definition_stays_in_force_since_it_came(a: Ownership, b: Ownership) -> None:
    await a.declare([SeatDeclaration(LONE, "default", "v1")])
    before = seat(await a.view(), LONE)
    await b.declare([SeatDeclaration(LONE, "default", "v1")])
    assert seat(await a.view(), LONE) == before


async def test_a_definition_after_the_registration_is_declared_and_its_runner_is_a_candidate(storage: Storage) -> None:
    """Line by line: what it knew stays, an odd name too; the definition becomes current as at a registration [M8]."""
    odd = "cron:\"a'.b$\\"
    async with storage.ownership(A) as a, storage.ownership(B) as b:
        await join(a, A, SeatDeclaration(LONE, "default", "v1"))
        await join(b, B)
        assert await b.define([SeatDeclaration(LONE, "default", "v2"), SeatDeclaration(odd, "gpu", "v1")])
        view = await a.view()
        knows = {row.id: row.knows for row in view.runners}
        assert knows == {A: {LONE: "v1"}, B: {LONE: "v2", odd: "v1"}}
        assert (seat(view, LONE).fingerprint, seat(view, odd).group) == ("v2", "gpu")
        assert await a.define([SeatDeclaration(odd, "gpu", "v1")])
        assert {row.id: row.knows for row in (await b.view()).runners} == {
            A: {LONE: "v1", odd: "v1"},
            B: {LONE: "v2", odd: "v1"},
        }


async def test_a_runner_that_was_evicted_defines_nothing(storage: Storage) -> None:
    async with storage.ownership(A) as a, storage.ownership(B) as b:
        await join(a, A)
        await join(b, B)
        await b.leave()
        assert not await b.define([SeatDeclaration("cron:x", "default", "v1")])
        assert "cron:x" not in {row.name for row in (await a.view()).seats}


async def test_an_older_definition_waits_while_a_runner_has_the_current_one(storage: Storage) -> None:
    """M8: a runner of the last release that restarts during a deploy brings its schedule back to nobody."""
    v1, v2 = SeatDeclaration(LONE, "default", "v1"), SeatDeclaration(LONE, "default", "v2")
    async with storage.ownership(A) as old, storage.ownership(B) as new, storage.ownership(C) as late:
        await join(old, A, v1)
        await join(new, B, v2)
        before = seat(await old.view(), LONE)
        await join(late, C, v1)
        await old.declare([v1])
        assert seat(await old.view(), LONE) == before
        assert before.fingerprint == "v2"


async def test_an_older_definition_comes_back_when_nobody_has_the_current_one(storage: Storage) -> None:
    """M8: a finished rollback."""
    v1, v2 = SeatDeclaration(LONE, "default", "v1"), SeatDeclaration(LONE, "default", "v2")
    async with storage.ownership(A) as old, storage.ownership(B) as new:
        await join(old, A, v1)
        await join(new, B, v2)
        before = seat(await old.view(), LONE)
        await new.leave()
        assert seat(await old.view(), LONE) == before
        await old.declare([v1])
        after = seat(await old.view(), LONE)
    assert after.fingerprint == "v1"
    assert before.effective_from < after.effective_from


async def test_a_runner_that_registers_alone_brings_an_older_definition_back(storage: Storage) -> None:
    v1, v2 = SeatDeclaration(LONE, "default", "v1"), SeatDeclaration(LONE, "default", "v2")
    for runner, definition in ((A, v1), (B, v2), (C, v1)):
        async with storage.ownership(runner) as session:
            await join(session, runner, definition)
            assert seat(await session.view(), LONE).fingerprint == definition.fingerprint
            await session.leave()


# Leases.


async def test_a_renewal_counts_and_shows_everybody(a: Ownership, b: Ownership) -> None:
    """M1: counters tell who has renewed, without anybody's clock."""
    first = await renewed(b)
    second = await renewed(b)
    assert second.counter == first.counter + 1
    told = await renewed(a)
    assert [(each.id, each.counter) for each in told.others] == [(B, second.counter)]
    assert [each.id for each in second.others] == [A]
    assert not told.leaving


async def test_a_renewal_tells_the_databases_time(storage: Storage, a: Ownership) -> None:
    before = await storage.now()
    now = (await renewed(a)).now
    assert before - timedelta(seconds=1) <= now <= await storage.now() + timedelta(seconds=1)
    assert now.utcoffset() == timedelta(0)


async def test_a_lease_expires_and_is_renewed_all_the_same(a: Ownership, b: Ownership) -> None:
    assert not (await sighted(a, B)).expired
    await b.renew(ttl_s=0.05)
    sighting = await expiry(a, B)
    assert (await renewed(b)).counter == sighting.counter + 1
    assert not (await sighted(a, B)).expired


async def test_a_registration_comes_with_a_lease(storage: Storage, a: Ownership) -> None:
    async with storage.ownership(B) as session:
        await join(session, B, ttl_s=0.05)
        await expiry(a, B)


async def test_who_is_not_registered_has_nothing_to_renew(storage: Storage) -> None:
    async with storage.ownership(C) as stranger:
        assert await stranger.renew(ttl_s=LONG_S) is None


async def test_a_runner_that_leaves_says_so_to_all(a: Ownership, b: Ownership) -> None:
    assert await a.leaving(A)
    assert (await renewed(a)).leaving
    assert not (await renewed(b)).leaving
    assert (await sighted(b, A)).leaving
    assert not (await sighted(a, B)).leaving
    assert {runner.id: runner.leaving for runner in (await b.view()).runners} == {A: True, B: False}


async def test_a_runner_is_asked_to_leave_by_another(a: Ownership, b: Ownership) -> None:
    """`cluster.runners.drain`: it learns of it with its next renewal, and renewing does not undo it."""
    assert await b.leaving(A)
    assert (await renewed(a)).leaving
    assert (await renewed(a)).leaving
    assert await b.leaving(A)
    assert not await b.leaving(C)


# Seats.


async def test_a_free_seat_is_granted_at_the_next_epoch(a: Ownership) -> None:
    assert await take(a, S2, S1, S10) == {S1: 1, S2: 1, S10: 1}
    found = seat(await a.view(), S1)
    assert (found.holder, found.epoch) == (A, 1)


async def test_what_is_held_is_granted_to_nobody(a: Ownership, b: Ownership) -> None:
    assert await take(a, S1) == {S1: 1}
    assert await take(b, S1, S2) == {S2: 1}
    assert await take(a, S1) == {}


async def test_unknown_seats_and_none_at_all_are_granted_to_nobody(a: Ownership) -> None:
    assert await take(a, "shard:default:99") == {}
    assert await take(a) == {}


async def test_who_is_not_registered_is_granted_nothing(storage: Storage, a: Ownership) -> None:
    async with storage.ownership(C) as stranger:
        assert await take(stranger, S1) == {}
    assert seat(await a.view(), S1).holder is None


async def test_a_released_seat_is_free_and_clean(a: Ownership, b: Ownership) -> None:
    """C5, INV-F1: epochs grow over release and re-grant, also to the same runner."""
    await a.acquire([S1, S2])
    assert await a.release(S1, 1)
    found = seat(await a.view(), S1)
    assert (found.holder, found.epoch, found.clean) == (None, 1, True)
    assert seat(await a.view(), S2).holder == A
    (grant,) = await b.acquire([S1])
    assert (grant.name, grant.epoch, grant.clean) == (S1, 2, True)
    assert await b.release(S1, 2)
    (grant,) = await b.acquire([S1])
    assert (grant.epoch, grant.clean) == (3, True)


async def test_the_first_grant_of_a_seat_is_clean(a: Ownership) -> None:
    (grant,) = await a.acquire([S1])
    assert grant.clean


async def test_what_is_not_held_cannot_be_released(a: Ownership, b: Ownership) -> None:
    """C1: a late release of an older epoch must not free the seat of a later one."""
    await a.acquire([S1])
    assert not await b.release(S1, 1)
    assert not await a.release(S1, 2)
    assert not await a.release(S2, 0)
    assert await a.release(S1, 1)
    assert not await a.release(S1, 1)
    await a.acquire([S1])
    assert not await a.release(S1, 1)
    assert seat(await a.view(), S1).holder == A


async def test_the_checksum_names_what_the_table_says_i_hold(a: Ownership, b: Ownership) -> None:
    """M13: whoever believes something else drops it. By bytes: `:10` stands before `:2`."""
    assert (await renewed(a)).held == checksum({})
    await a.acquire([S10, S2])
    await b.acquire([S1])
    assert (await renewed(a)).held == checksum({S2: 1, S10: 1})
    assert (await renewed(b)).held == checksum({S1: 1})
    await a.release(S2, 1)
    assert (await renewed(a)).held == checksum({S10: 1})


async def test_names_beyond_ascii_are_in_the_checksum(a: Ownership) -> None:
    names = ["singleton:ä", "singleton:z", "singleton:日本"]
    await a.declare([SeatDeclaration(name, "default", "f") for name in names])
    await a.acquire(names)
    assert (await renewed(a)).held == checksum(dict.fromkeys(names, 1))


async def test_the_stamp_is_another_one_whenever_a_seat_changed(a: Ownership, b: Ownership) -> None:
    stamps: list[str] = []

    async def look() -> None:
        stamp = (await renewed(a)).stamp
        assert (await a.view()).stamp == stamp == (await renewed(b)).stamp
        stamps.append(stamp)

    await look()
    for definition in ("v1", "v2"):
        await a.declare([SeatDeclaration(LONE, "default", definition)])
        await look()
    for epoch in (1, 2):
        await a.acquire([S1])
        await look()
        await a.release(S1, epoch)
        await look()
    await b.acquire([S1, S2])
    await look()
    await b.leave()
    stamps.append((await renewed(a)).stamp)
    assert len(set(stamps)) == len(stamps) == 9


async def test_the_stamp_stays_while_seats_do(a: Ownership, b: Ownership) -> None:
    await a.acquire([S1])
    before = (await renewed(a)).stamp
    await b.leaving(B)
    await b.declare(SHARDS)
    await b.acquire([S1])
    await b.release(S1, 1)
    await b.leave()
    assert (await renewed(a)).stamp == before


async def test_of_two_that_take_the_same_seats_each_gets_its_own(a: Ownership, b: Ownership) -> None:
    """INV-F1: in whatever order they ask."""
    for _ in range(10):
        one, other = await asyncio.gather(take(a, S1, S2, S10), take(b, S10, S2, S1))
        assert not one.keys() & other.keys()
        assert one.keys() | other.keys() == {S1, S2, S10}
        for session, granted in ((a, one), (b, other)):
            for name, epoch in granted.items():
                assert await session.release(name, epoch)


# Losing it all.


async def test_an_evicted_runner_has_nothing_and_can_do_nothing(a: Ownership, b: Ownership) -> None:
    """C4, C5: its seats are free at once, and not clean."""
    await a.acquire([S1, S2])
    counter = (await sighted(b, A)).counter
    assert await b.evict(A, counter=counter, expired=False)
    assert ids(await b.view()) == {B}
    assert await a.renew(ttl_s=LONG_S) is None
    assert await take(a, S1, S10) == {}
    assert not await a.release(S1, 1)
    assert not await a.leaving(A)
    for name in (S1, S2):
        found = seat(await b.view(), name)
        assert (found.holder, found.epoch, found.clean) == (None, 1, False)
    (grant,) = await b.acquire([S1])
    assert (grant.epoch, grant.clean) == (2, False)
    assert (await renewed(b)).others == ()


async def test_who_has_renewed_since_is_spared(a: Ownership, b: Ownership) -> None:
    """C4 b: also if it has expired."""
    seen = (await sighted(b, A)).counter
    await a.renew(ttl_s=0.01)
    await expiry(b, A)
    assert not await b.evict(A, counter=seen, expired=False)
    assert not await b.evict(A, counter=seen, expired=True)
    assert ids(await b.view()) == {A, B}


async def test_who_has_not_expired_is_spared_if_so_asked(a: Ownership, b: Ownership) -> None:
    """M1."""
    seen = (await sighted(b, A)).counter
    assert not await b.evict(A, counter=seen, expired=True)
    await a.renew(ttl_s=0.01)
    assert await b.evict(A, counter=(await expiry(b, A)).counter, expired=True)


async def test_a_runner_is_evicted_once(a: Ownership, b: Ownership) -> None:
    seen = (await sighted(b, A)).counter
    assert await b.evict(A, counter=seen, expired=False)
    assert not await b.evict(A, counter=seen, expired=False)
    assert not await b.evict(C, counter=1, expired=False)


async def test_of_several_evictors_one_succeeds(storage: Storage, a: Ownership, b: Ownership) -> None:
    await a.acquire([S1, S2])
    seen = (await sighted(b, A)).counter
    async with storage.ownership(C) as c:
        await join(c, C)
        tries = [session.evict(A, counter=seen, expired=False) for session in (b, c)]
        assert sorted(await asyncio.gather(*tries)) == [False, True]
    assert [each.holder for each in (await b.view()).seats] == [None] * 3


async def test_who_leaves_frees_what_it_has_not_released(a: Ownership, b: Ownership) -> None:
    """C5: but not cleanly."""
    await a.acquire([S1, S2])
    await a.release(S1, 1)
    await a.leave()
    view = await b.view()
    assert ids(view) == {B}
    assert [(seat(view, name).holder, seat(view, name).clean) for name in (S1, S2)] == [(None, True), (None, False)]
    assert await a.renew(ttl_s=LONG_S) is None
    await a.leave()


# The witness [M2].


async def test_an_open_session_is_a_sign_of_life(storage: Storage, a: Ownership) -> None:
    async with storage.ownership(B) as session:
        if not session.witnessed:
            pytest.skip("leases alone decide here")
        there = await a.presences([A, B, C])
        assert there.held == {A, B}
        assert (await a.presences([C])).held == frozenset()
        assert (await a.presences([])).held == frozenset()
        await join(session, B)
    async with asyncio.timeout(120):
        while B in (gone := await a.presences([A, B])).held:
            await asyncio.sleep(0.01)
    assert gone.server == there.server
    assert B in ids(await a.view()), "the witness goes, the row stays"


async def test_a_session_is_opened_again_under_the_same_name(storage: Storage, a: Ownership) -> None:
    """A runner whose session was cut comes back, also while the server has not noticed yet."""
    async with storage.ownership(A) as again:
        assert again.witnessed == a.witnessed
        assert (await renewed(again)).held == checksum({})
        assert await take(again, S1) == {S1: 1}
        if again.witnessed:
            assert (await a.presences([A])).held == {A}


async def test_presences_tell_the_counters_of_leases(a: Ownership, b: Ownership) -> None:
    """M2: what an eviction by witnesses must find unmoved."""
    if a.leases_only:
        pytest.skip("leases alone decide here")
    counter = (await renewed(b)).counter
    assert (await a.presences([B, C])).counters == {B: counter}
    await b.leave()
    assert (await a.presences([B])).counters == {}


async def test_where_leases_alone_decide_nobody_is_ever_taken_for_gone(storage: Storage, a: Ownership) -> None:
    """GAP-07: what has no lock that could vanish must not be missed."""
    if not a.leases_only:
        pytest.skip("this engine has witnesses")
    assert not a.witnessed
    async with storage.ownership(B) as session:
        await join(session, B)
    found = await a.presences([B, C])
    assert found.held == found.unwitnessed == {B, C}
    assert not found.gone


async def test_presences_tell_whose_lease_has_run_out_and_who_has_a_lock_to_lose(
    storage: Storage, a: Ownership, b: Ownership
) -> None:
    """What a runner that starts needs to know of those that were there before it."""
    found = await a.presences([B, C])
    assert found.expired == found.gone == frozenset()
    assert found.unwitnessed == ({B, C} if a.leases_only else frozenset())
    async with storage.ownership(C) as session:
        await join(session, C, ttl_s=0.01)
        async with asyncio.timeout(120):
            while not (found := await a.presences([B, C])).expired:
                await asyncio.sleep(0.01)
    assert found.expired == {C}
    assert found.counters.keys() == {B, C}
    assert found.up_s > 0


async def test_looking_for_a_sign_of_life_takes_none_away(storage: Storage, a: Ownership) -> None:
    """M2: of two probes with `try_lock` one saw "held", and the owner's own try failed."""
    assert bool((await a.presences([B])).held) == a.leases_only
    async with storage.ownership(B) as session:
        assert session.witnessed == a.witnessed


# Neighbours and threads.


async def test_clusters_in_one_database_are_strangers_m7_lock_14(
    storage: Storage, neighbour: Storage, a: Ownership
) -> None:
    """The same names, and no way to touch each other's."""
    async with neighbour.ownership(B) as other:
        await join(other, B)
        assert await take(a, S1) == await take(other, S1) == {S1: 1}
        assert ids(await storage.view()) == {A}
        assert ids(await neighbour.view()) == {B}
        assert (await renewed(a)).others == (await renewed(other)).others == ()
        assert (await renewed(a)).held == checksum({S1: 1})
        assert not await other.leaving(A)
        assert not await other.evict(A, counter=(await renewed(a)).counter, expired=False)
        if not a.leases_only:
            assert (await other.presences([A])).held == (await a.presences([B])).held == frozenset()
        assert await a.agree({"shards": "100"}) == {"shards": "100"}
        assert await other.agree({"shards": "50"}) == {"shards": "50"}
        await other.leave()
    assert seat(await storage.view(), S1).holder == A


async def test_two_clusters_define_one_name_each_for_itself_m7(storage: Storage, neighbour: Storage) -> None:
    async with storage.ownership(A) as a, neighbour.ownership(B) as b:
        await join(a, A, SeatDeclaration(LONE, "default", "v1"))
        await join(b, B, SeatDeclaration(LONE, "default", "v1"))
        await b.declare([SeatDeclaration(LONE, "default", "v2")])
        await a.declare([SeatDeclaration(LONE, "default", "v2")])
        assert seat(await storage.view(), LONE).fingerprint == "v2", "seen in the other cluster only"


async def test_a_runner_of_another_cluster_keeps_no_definition_current_m7(
    storage: Storage, neighbour: Storage, a: Ownership
) -> None:
    v1, v2 = SeatDeclaration(LONE, "default", "v1"), SeatDeclaration(LONE, "default", "v2")
    async with neighbour.ownership(B) as stranger, storage.ownership(C) as c:
        await a.declare([v1])
        await join(stranger, B, v2)
        await join(c, C, v2)
        await c.leave()
        await a.declare([v1])
    assert seat(await storage.view(), LONE).fingerprint == "v1"


async def test_a_session_lives_on_the_loop_that_opened_it(storage: Storage) -> None:
    """The lease keeper's thread has it, while the storage works on the main loop."""

    async def live() -> dict[str, int]:
        async with storage.ownership(A) as session:
            await join(session, A)
            granted = await take(session, S1, S2)
            for _ in range(20):
                await renewed(session)
            await session.release(S1, granted[S1])
            return granted

    async with ThreadSideLoop() as aside:
        granted, *_ = await asyncio.gather(
            aside.run(live), *(storage.kv.put(KvPut(f"k{number}", b"", number)) for number in range(20))
        )
    assert granted == {S1: 1, S2: 1}
    assert seat(await storage.view(), S2).holder == A


async def test_work_goes_on_under_another_name(storage: Storage) -> None:
    await storage.kv.put(KvPut("k", b"1", 1))
    storage.rename(B)
    await storage.kv.put(KvPut("k", b"2", 2))
    entry = await storage.kv.get("k")
    assert entry is not None
    assert entry.value == b"2"
    async with storage.ownership(B) as session:
        await join(session, B)
        assert (await renewed(session)).counter == 2
