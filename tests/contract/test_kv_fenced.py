"""Keys and values in the name of seats: what every engine lets through the fence (K1) [C1, M3]; INV-F2."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import LeadershipLost
from coterie.storage.interface import Claim, KvPut, KvRemove, KvSwap, StateSave
from tests.contract.test_states import S1, S2, A, B, a, b, evict, take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.interface import Ownership, Storage
    from tests.contract.conftest import Passing

__all__ = ["a", "b"]  # fixtures

Write = KvPut | KvSwap | KvRemove


async def write(storage: Storage, write: Write) -> Any:
    """The result, or "lost" where the fence refused it."""
    try:
        if isinstance(write, KvPut):
            return await storage.kv.put(write)
        return await (storage.kv.swap(write) if isinstance(write, KvSwap) else storage.kv.remove(write))
    except LeadershipLost as lost:
        claim = write.claim
        return "lost" if claim is not None and (lost.seat, lost.epoch) == (claim.seat, claim.epoch) else lost


async def together(storage: Storage, writes: Sequence[Write]) -> list[Any]:
    return list(await asyncio.gather(*(write(storage, each) for each in writes)))


async def rows(storage: Storage) -> dict[str, tuple[bytes, int]]:
    return {row.key: (row.value, row.stamp) for row in await storage.kv.page("", after=None, most=1000)}


def every_kind(claim: Claim) -> list[Write]:
    """Each would change something, or say yes, where the key "there" has the stamp 1."""
    return [
        KvPut("there", b"new", 2, claim=claim),
        KvPut("first", b"new", 2, claim=claim),
        KvSwap("there", 1, b"new", 2, claim=claim),
        KvSwap("there", 1, None, 2, claim=claim),
        KvSwap("first", None, b"new", 2, claim=claim),
        KvSwap("absent", None, None, 2, claim=claim),
        KvRemove("there", claim=claim),
    ]


async def test_under_a_held_seat_writes_do_what_they_do_without(storage: Storage, a: Ownership) -> None:
    claim = await take(a, A)
    steps: list[tuple[Write, Any]] = [
        (KvPut("k", b"1", 1, claim=claim), None),
        (KvPut("k", b"2", 2, claim=claim), None),
        (KvSwap("k", 1, b"x", 3, claim=claim), False),
        (KvSwap("k", None, b"x", 3, claim=claim), False),
        (KvSwap("k", None, None, 3, claim=claim), False),
        (KvSwap("k", 2, b"\x00", 3, claim=claim), True),
        (KvSwap("k", 2, None, 4, claim=claim), False),
        (KvSwap("k", 3, None, 4, claim=claim), True),
        (KvSwap("k", None, None, 4, claim=claim), True),
        (KvSwap("k", 3, b"x", 4, claim=claim), False),
        (KvRemove("k", claim=claim), False),
        (KvSwap("k", None, b"5", 5, claim=claim), True),
        (KvRemove("k", claim=claim), True),
    ]
    for step, told in steps:
        assert await write(storage, step) is told, step
    assert await rows(storage) == {}


@pytest.mark.parametrize("place", range(7))
async def test_without_the_seat_nothing_is_written(storage: Storage, a: Ownership, place: int) -> None:
    """C1: never held, of another epoch, of another runner, of no such seat."""
    claim = await take(a, A)
    await storage.kv.put(KvPut("there", b"old", 1))
    for other in (
        Claim(A, S2, 1),
        Claim(A, S1, claim.epoch + 1),
        Claim(A, S1, claim.epoch - 1),
        Claim(B, S1, claim.epoch),
        Claim(A, "singleton:none", claim.epoch),
    ):
        assert await write(storage, every_kind(other)[place]) == "lost"
    assert await rows(storage) == {"there": (b"old", 1)}
    assert await write(storage, every_kind(claim)[place]) in (None, True)


@pytest.mark.parametrize("lost", ["released", "evicted", "left", "granted to itself again"])
async def test_however_the_seat_was_lost_the_former_holder_writes_nothing(
    storage: Storage, a: Ownership, b: Ownership, lost: str
) -> None:
    """C1, INV-F2."""
    old = await take(a, A)
    await storage.kv.put(KvPut("there", b"old", 1, claim=old))
    if lost == "evicted":
        await evict(b, A)
    elif lost == "left":
        await a.leave()
    else:
        assert await a.release(S1, old.epoch)
    assert await together(storage, every_kind(old)) == ["lost"] * 7, "not even before the next grant"
    again = lost == "granted to itself again"
    new = await take(a if again else b, A if again else B)
    assert await together(storage, every_kind(old)) == ["lost"] * 7
    assert await rows(storage) == {"there": (b"old", 1)}
    assert await write(storage, KvPut("there", b"new", 2, claim=new)) is None
    assert await rows(storage) == {"there": (b"new", 2)}


async def test_members_of_a_group_are_strangers(storage: Storage, a: Ownership, b: Ownership) -> None:
    """M3: of many that meet, those without their seat write nothing, and all others commit."""
    mine, theirs = await take(a, A), await take(b, B, S2)
    gone = Claim(A, S1, mine.epoch + 1)
    await storage.kv.put(KvPut("there", b"old", 1))
    some: list[Write] = [
        *(KvPut(f"m{n}", b"mine", n, claim=mine) for n in range(30)),
        *(KvPut(f"g{n}", b"gone", n, claim=gone) for n in range(30)),
        *(KvPut(f"t{n}", b"theirs", n, claim=theirs) for n in range(30)),
        *(KvPut(f"n{n}", b"nobody's", n) for n in range(30)),
        KvSwap("there", 1, None, 0, claim=gone),
        KvSwap("there", 1, b"new", 2, claim=mine),
        KvSwap("new", None, b"new", 3, claim=theirs),
        KvRemove("there", claim=gone),
    ]
    states = storage.states.save(StateSave(mine, "there", b"state", 0))
    told: list[Any] = list(await asyncio.gather(states, *(write(storage, each) for each in some)))
    assert told == ["written", *[None] * 30, *["lost"] * 30, *[None] * 60, "lost", True, True, "lost"]
    found = await rows(storage)
    assert {key[0] for key in found} == {"m", "t", "n"}
    assert (found["there"], found["new"]) == ((b"new", 2), (b"new", 3))


async def test_writes_of_one_key_in_one_group_go_one_after_another_whoever_makes_them(
    storage: Storage, a: Ownership, b: Ownership
) -> None:
    """M3: one that is fenced off takes nobody else's place."""
    mine, theirs = await take(a, A), await take(b, B, S2)
    gone = Claim(A, S1, mine.epoch + 1)
    some: list[tuple[Write, Any]] = [
        (KvPut("k", b"", 1, claim=mine), None),
        (KvPut("k", b"", 2, claim=mine), None),
        (KvPut("k", b"", 3, claim=gone), "lost"),
        (KvSwap("k", 2, b"", 4, claim=theirs), True),
        (KvSwap("k", 2, b"", 5, claim=theirs), False),
        (KvSwap("k", 4, None, 6, claim=gone), "lost"),
        (KvSwap("k", 4, None, 6, claim=mine), True),
        (KvSwap("k", None, b"", 7, claim=mine), True),
        (KvRemove("k", claim=gone), "lost"),
        (KvRemove("k", claim=mine), True),
        (KvRemove("k", claim=mine), False),
        (KvPut("k", b"", 8), None),
        (KvPut("k", b"last", 9, claim=theirs), None),
        (KvPut("k", b"", 10, claim=gone), "lost"),
    ]
    assert await together(storage, [each for each, _ in some]) == [told for _, told in some]
    assert await rows(storage) == {"k": (b"last", 9)}


async def test_under_the_fence_keys_expire_too(storage: Storage, a: Ownership, passing: Passing) -> None:
    claim = await take(a, A)
    for key in "abcd":
        await storage.kv.put(KvPut(key, b"old", 1, 0.05, claim))
    await passing(0.06)
    assert await rows(storage) == {}
    assert await write(storage, KvRemove("a", claim)) is False
    assert await write(storage, KvSwap("b", 1, b"new", 2, None, claim)) is False
    assert await write(storage, KvSwap("c", None, b"new", 2, 3600, claim)) is True
    assert await write(storage, KvSwap("d", None, None, 2, None, claim)) is True
    assert await rows(storage) == {"c": (b"new", 2)}


async def test_under_hand_overs_all_the_time_no_former_holder_writes(
    storage: Storage, a: Ownership, b: Ownership
) -> None:
    """C1, INV-F2: a holder that was granted the seat finds the key as it leaves it, whoever wrote before."""
    stamps = iter(range(1, 1_000_000))
    writers: list[asyncio.Task[None]] = []

    async def keep_writing(claim: Claim) -> None:
        while await write(storage, KvPut("k", claim.runner.encode(), next(stamps), claim=claim)) is None:
            pass

    for turn in range(30):
        session, runner = (a, A) if turn % 2 else (b, B)
        claim = await take(session, runner)
        assert await write(storage, KvPut("k", b"mine", next(stamps), claim=claim)) is None
        first = await storage.kv.get("k")
        assert first is not None
        assert first.value == b"mine", "somebody else's"
        writers.append(asyncio.create_task(keep_writing(claim)))
        while (entry := await storage.kv.get("k")) is None or entry.stamp == first.stamp:
            await asyncio.sleep(0)
        assert await session.release(S1, claim.epoch)
    async with asyncio.timeout(120):
        await asyncio.gather(*writers)


async def test_clusters_in_one_database_have_seats_of_their_own(
    storage: Storage, neighbour: Storage, a: Ownership
) -> None:
    """m7."""
    mine = await take(a, A)
    assert await together(neighbour, [KvPut("k", b"", 1, claim=mine), KvRemove("k", claim=mine)]) == ["lost", "lost"]
    assert await rows(neighbour) == {}
