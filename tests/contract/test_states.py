"""State in the name of seats: what every engine lets through the fence, and what not [C1, M3, M4]; INV-F2, F3."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from coterie.storage.interface import Claim, KvPut, KvSwap, Registration, SeatDeclaration, StateLoaded, StateSave

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.interface import Ownership, Storage

A, B = "a" * 32, "b" * 32
S1, S2 = "singleton:one", "singleton:two"


@asynccontextmanager
async def joined(storage: Storage, id: str) -> AsyncIterator[Ownership]:
    """A registered runner."""
    async with storage.ownership(id) as session:
        await register(session, id)
        yield session


async def register(session: Ownership, id: str) -> None:
    knows = {S1: "f", S2: "f"}
    me = Registration(id=id, name=id, address="", host_id="", groups=("default",), knows=knows)
    seats = [SeatDeclaration(name, "default", fingerprint) for name, fingerprint in knows.items()]
    await session.register(me, seats, ttl_s=60)


@pytest.fixture
async def a(storage: Storage) -> AsyncIterator[Ownership]:
    async with joined(storage, A) as session:
        yield session


@pytest.fixture
async def b(storage: Storage, a: Ownership) -> AsyncIterator[Ownership]:
    async with joined(storage, B) as session:
        yield session


async def take(session: Ownership, runner: str, seat: str = S1) -> Claim:
    (grant,) = await session.acquire([seat])
    return Claim(runner, seat, grant.epoch)


async def evict(session: Ownership, victim: str) -> None:
    renewal = await session.renew(ttl_s=60)
    assert renewal is not None
    counter = next(other.counter for other in renewal.others if other.id == victim)
    assert await session.evict(victim, counter=counter, expired=False)


async def test_states_follow_each_other_version_by_version(storage: Storage, a: Ownership) -> None:
    claim = await take(a, A)
    assert await storage.states.load(claim, "k") == StateLoaded(None, 0)
    assert await storage.states.save(StateSave(claim, "k", b"\x00\xff", 0)) == "written"
    assert await storage.states.save(StateSave(claim, "k", b"", 1)) == "written"
    assert await storage.states.load(claim, "k") == StateLoaded(b"", 2)
    assert await storage.states.load(claim, "other") == StateLoaded(None, 0)


async def test_another_version_than_expected_is_a_conflict_and_changes_nothing(storage: Storage, a: Ownership) -> None:
    """M4: told apart from a lost seat."""
    claim = await take(a, A)
    assert await storage.states.save(StateSave(claim, "k", b"early", 3)) == "conflict", "there is none yet"
    assert await storage.states.save(StateSave(claim, "k", b"one", 0)) == "written"
    for version in (0, 2, 7):
        assert await storage.states.save(StateSave(claim, "k", b"wrong", version)) == "conflict"
    assert await storage.states.load(claim, "k") == StateLoaded(b"one", 1)


async def test_a_save_of_unknown_outcome_can_be_asked_for(storage: Storage, a: Ownership) -> None:
    """0.6: nobody else writes under this claim, so the version that follows ours is ours."""
    claim = await take(a, A)
    write = StateSave(claim, "k", b"mine", 0)
    assert await storage.states.save(write) == "written"  # and the answer was lost
    assert await storage.states.save(write) == "conflict"
    assert await storage.states.load(claim, "k") == StateLoaded(write.value, write.version + 1)


async def test_without_the_seat_nothing_is_written_read_or_verified(storage: Storage, a: Ownership) -> None:
    """C1: never held, of another epoch, of another runner, of no such seat."""
    claim = await take(a, A)
    await storage.states.save(StateSave(claim, "k", b"old", 0))
    others = [
        Claim(A, S2, 1),
        Claim(A, S1, claim.epoch + 1),
        Claim(A, S1, claim.epoch - 1),
        Claim(B, S1, claim.epoch),
        Claim(A, "singleton:none", claim.epoch),
    ]
    for other in others:
        assert await storage.states.save(StateSave(other, "k", b"new", 1)) == "fenced"
        assert await storage.states.save(StateSave(other, "first", b"new", 0)) == "fenced"
        assert await storage.states.load(other, "k") is None
        assert not await storage.states.verify(other)
    assert await storage.states.verify(claim)
    assert await storage.states.load(claim, "k") == StateLoaded(b"old", 1)
    assert await storage.states.load(claim, "first") == StateLoaded(None, 0)


@pytest.mark.parametrize("lost", ["released", "evicted", "left", "granted to itself again"])
async def test_however_the_seat_was_lost_the_former_holder_writes_nothing(
    storage: Storage, a: Ownership, b: Ownership, lost: str
) -> None:
    """C1, INV-F2: no write of a former holder commits after its successor has been granted the seat."""
    old = await take(a, A)
    await storage.states.save(StateSave(old, "k", b"old", 0))
    if lost == "evicted":
        await evict(b, A)
    elif lost == "left":
        await a.leave()
    else:
        assert await a.release(S1, old.epoch)
    assert await storage.states.save(StateSave(old, "k", b"stale", 1)) == "fenced", "not even before the next grant"
    again = lost == "granted to itself again"
    new = await take(a if again else b, A if again else B)
    assert await storage.states.save(StateSave(old, "k", b"stale", 1)) == "fenced"
    assert await storage.states.save(StateSave(old, "first", b"stale", 0)) == "fenced"
    assert await storage.states.load(old, "k") is None
    assert not await storage.states.verify(old)
    assert await storage.states.load(new, "k") == StateLoaded(b"old", 1)
    assert await storage.states.load(new, "first") == StateLoaded(None, 0)
    assert await storage.states.save(StateSave(new, "k", b"new", 1)) == "written"


async def test_members_of_a_group_are_strangers(storage: Storage, a: Ownership, b: Ownership) -> None:
    """M3: fenced and conflicting saves write nothing, their neighbours commit, keys and values among them."""
    one, other = await take(a, A), await take(b, B, S2)
    await storage.states.save(StateSave(one, "there", b"old", 0))
    lost = Claim(A, S1, one.epoch + 1)
    writes = [
        storage.kv.put(KvPut("there", b"kv", 1)),
        *(storage.states.save(StateSave(one, f"k{n}", b"%d" % n, 0)) for n in range(40)),
        *(storage.states.save(StateSave(lost, f"l{n}", b"lost", 0)) for n in range(40)),
        storage.states.save(StateSave(one, "there", b"wrong", 5)),
        storage.states.save(StateSave(one, "there", b"new", 1)),
        storage.states.save(StateSave(other, "theirs", b"new", 0)),
        storage.kv.swap(KvSwap("absent", 7, b"kv", 2)),
    ]
    results = await asyncio.gather(*writes)
    assert results == [None, *["written"] * 40, *["fenced"] * 40, "conflict", "written", "written", False]
    assert [await storage.states.load(one, f"k{n}") for n in range(40)] == [
        StateLoaded(b"%d" % n, 1) for n in range(40)
    ]
    assert await storage.states.load(one, "l7") == StateLoaded(None, 0)
    assert await storage.states.load(one, "there") == StateLoaded(b"new", 2)
    entry = await storage.kv.get("there")
    assert entry is not None
    assert entry.value == b"kv"


async def test_saves_of_one_key_in_one_group_go_one_after_another(storage: Storage, a: Ownership) -> None:
    """M3: also where one in the middle was told the wrong version."""
    claim = await take(a, A)
    versions = [0, 1, 2, 2, 3, 9, 4]
    saves = (storage.states.save(StateSave(claim, "k", b"%d" % n, n)) for n in versions)
    told = await asyncio.gather(*saves)
    assert told == ["written", "written", "written", "conflict", "written", "conflict", "written"]
    assert await storage.states.load(claim, "k") == StateLoaded(b"4", 5)


async def test_of_many_saves_of_one_version_the_first_wins(storage: Storage, a: Ownership) -> None:
    claim = await take(a, A)
    told = await asyncio.gather(*(storage.states.save(StateSave(claim, "k", b"%d" % n, 0)) for n in range(20)))
    assert told == ["written", *["conflict"] * 19]


async def test_saves_of_two_lives_of_a_process_meet_in_one_group(storage: Storage, a: Ownership, b: Ownership) -> None:
    """An evicted process goes on as another incarnation, while saves of the first still wait in its queue."""
    old = await take(a, A)
    await evict(b, A)
    new = await take(b, B)
    saves = [StateSave(old, "k", b"stale", 0), StateSave(new, "k", b"new", 0), StateSave(old, "j", b"stale", 0)]
    assert await asyncio.gather(*map(storage.states.save, saves)) == ["fenced", "written", "fenced"]
    assert await storage.states.load(new, "k") == StateLoaded(b"new", 1)
    assert await storage.states.load(new, "j") == StateLoaded(None, 0)


async def test_under_hand_overs_all_the_time_every_acknowledged_save_is_seen_by_the_next_holder(
    storage: Storage, a: Ownership, b: Ownership
) -> None:
    """C1, INV-F2, INV-F3: the seat goes back and forth while its holders append; nobody is drained before."""
    chain: list[bytes] = []
    writers: list[asyncio.Task[None]] = []

    async def append(claim: Claim) -> None:
        while (loaded := await storage.states.load(claim, "k")) is not None:
            value = (loaded.value or b"") + b"."
            told = await storage.states.save(StateSave(claim, "k", value, loaded.version))
            assert told != "conflict", "two holders wrote at once"
            if told == "written":
                chain.append(value)

    for turn in range(30):
        session, runner = (a, A) if turn % 2 else (b, B)
        claim = await take(session, runner)
        writers.append(asyncio.create_task(append(claim)))
        seen = len(chain)
        while len(chain) < seen + 3 and not writers[-1].done():
            await asyncio.sleep(0)
        assert await session.release(S1, claim.epoch)
    async with asyncio.timeout(120):
        await asyncio.gather(*writers)
    last = await take(a, A)
    assert await storage.states.load(last, "k") == StateLoaded(b"." * len(chain), len(chain))
    assert sorted(map(len, chain)) == list(range(1, len(chain) + 1))


async def test_clusters_in_one_database_have_states_of_their_own(
    storage: Storage, neighbour: Storage, a: Ownership
) -> None:
    """m7: the same seat, epoch and key, and another runner, since an incarnation is in one cluster only."""
    mine = await take(a, A)
    async with joined(neighbour, B) as session:
        theirs = await take(session, B)
        assert await neighbour.states.save(StateSave(mine, "k", b"mine", 0)) == "fenced"
        assert await storage.states.save(StateSave(theirs, "k", b"theirs", 0)) == "fenced"
        assert await storage.states.save(StateSave(mine, "k", b"mine", 0)) == "written"
        assert await neighbour.states.save(StateSave(theirs, "k", b"theirs", 0)) == "written"
        assert await storage.states.load(mine, "k") == StateLoaded(b"mine", 1)
        assert await neighbour.states.load(theirs, "k") == StateLoaded(b"theirs", 1)
        assert not await neighbour.states.verify(mine)


async def test_a_state_of_a_megabyte_comes_back(storage: Storage, a: Ownership) -> None:
    claim = await take(a, A)
    value = bytes(range(256)) * 4096
    assert await storage.states.save(StateSave(claim, "big 'key' \u202e%", value, 0)) == "written"
    assert await storage.states.load(claim, "big 'key' \u202e%") == StateLoaded(value, 1)
