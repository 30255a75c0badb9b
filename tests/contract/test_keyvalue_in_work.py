"""The key-value store inside of work: every write of every view proves the seat of the work that makes it (K1) [C1]."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from coterie import LeadershipLost
from coterie.kernel.context import within_cluster
from coterie.kernel.random import Random
from coterie.kernel.serialization.codec import PLAIN
from coterie.kv.changes import KeyValues
from coterie.kv.store import KeyValueStore
from tests.contract.test_keyvalue import Theme
from tests.contract.test_states import S1, S2, A, B, a, b, take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from coterie.storage.interface import Claim, Ownership, Storage
    from tests.contract.conftest import Passing

__all__ = ["a", "b"]  # fixtures


@pytest.fixture
async def kv(storage: Storage) -> AsyncIterator[KeyValueStore[Any]]:
    async with KeyValues(storage.kv, chance=Random()) as values:
        yield KeyValueStore(lambda: values, PLAIN)


@contextmanager
def working(claim: Claim) -> Iterator[None]:
    with within_cluster(runner_id=claim.runner, seat=claim.seat, epoch=claim.epoch):
        yield


async def test_all_of_it_works_while_the_seat_is_held(kv: KeyValueStore[Any], a: Ownership, passing: Passing) -> None:
    with working(await take(a, A)):
        await kv.set("n", 1)
        assert await kv.modify("n", lambda n: (n or 0) + 1) == 2
        assert await kv.modify("n", lambda _: None) is None
        assert await kv.modify("n", lambda n: n) is None
        themes = kv.prefix("theme:").typed(Theme)
        await themes.set("day", Theme("day"))
        await themes.set("night", Theme("night"), ttl="50ms")
        assert await kv.modify("soon", lambda _: 1, ttl="50ms") == 1
        await passing(0.06)
        assert [pair async for pair in themes.items()] == [("day", Theme("day"))]
        assert await themes.remove("day") is True
        assert await themes.remove("night") is False
        assert not await kv.has("soon")
        await asyncio.gather(*(kv.set(f"many:{n:04}", n) for n in range(1201)))
        await kv.set("one", 1)
        assert await kv.prefix("many:").clear() == 1201
        assert await kv.size() == 1


async def test_without_the_seat_every_write_is_refused_and_every_read_works(
    kv: KeyValueStore[Any], a: Ownership, b: Ownership
) -> None:
    """C1: the work goes on for a moment after its seat went to somebody else."""
    claim = await take(a, A)
    await kv.set("n", 1)
    view = kv.prefix("n").prefix("")
    with working(claim):
        assert await a.release(S1, claim.epoch)
        await take(b, B)
        for write in (
            kv.set("n", 2),
            kv.set("m", 2, ttl="1h"),
            kv.typed(int).set("n", 2),
            kv.remove("n"),
            kv.modify("n", lambda n: (n or 0) + 1),
            kv.modify("m", lambda _: 1),
            kv.modify("n", lambda _: None),
            view.clear(),
            kv.clear(),
        ):
            with pytest.raises(LeadershipLost, match=rf'leadership of "one" is lost: epoch {claim.epoch} '):
                await write
        assert await kv.get("n") == 1
        assert [pair async for pair in kv.items()] == [("n", 1)]
    await kv.set("n", 3)  # outside of work nobody asks


async def test_a_task_that_outlives_its_work_is_refused_too(kv: KeyValueStore[Any], a: Ownership) -> None:
    claim = await take(a, A)
    go = asyncio.Event()

    async def later() -> None:
        await go.wait()
        await kv.set("n", 1)

    with working(claim):
        task = asyncio.create_task(later())
    assert await a.release(S1, claim.epoch)
    go.set()
    with pytest.raises(LeadershipLost):
        await task
    assert await kv.is_empty()


async def test_changes_of_one_key_under_many_seats_lose_no_update_and_stop_at_none(
    kv: KeyValueStore[Any], a: Ownership, b: Ownership
) -> None:
    """K1: one whose seat is lost changes nothing, whoever else changes the key at the same time."""
    mine, theirs = await take(a, A), await take(b, B, S2)
    lost = type(mine)(A, S1, mine.epoch + 1)

    async def count(claim: Claim | None) -> Any:
        with working(claim) if claim else within_cluster():
            return await kv.modify("n", lambda n: (n or 0) + 1)

    told = await asyncio.gather(
        *(count(claim) for _ in range(25) for claim in (mine, lost, theirs, None)), return_exceptions=True
    )
    assert sorted(n for n in told if isinstance(n, int)) == list(range(1, 76))
    assert all(isinstance(error, LeadershipLost) for error in told[1::4])
    assert await kv.get("n") == 75
