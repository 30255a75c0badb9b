"""Machine ids of snowflakes, as every engine leases them [K2, M15]."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from coterie.kernel.ids import MACHINES
from coterie.storage.interface import Machine
from tests.contract.conftest import opened

if TYPE_CHECKING:
    from coterie.storage.interface import Storage
    from tests.contract.conftest import Passing

LONG_S = 3600.0
PAST_MS = 1_700_000_000_000
"""Some mark that has passed."""


async def lease(storage: Storage, holder: str, *, ttl_s: float = LONG_S, until_ms: int = PAST_MS) -> Machine:
    machine = await storage.machines.lease(holder, ttl_s=ttl_s, until_ms=until_ms)
    assert machine is not None
    return machine


async def future_ms(storage: Storage) -> int:
    return int((await storage.now()).timestamp() * 1000) + 3_600_000


async def test_each_gets_the_lowest_that_is_free_and_no_mark(storage: Storage) -> None:
    """M15."""
    assert [await lease(storage, name) for name in "abc"] == [Machine(0, 0), Machine(1, 0), Machine(2, 0)]
    await storage.machines.give_back(1, "b")
    assert await lease(storage, "d") == Machine(1, PAST_MS)


async def test_the_next_holder_learns_the_mark_up_to_which_the_one_before_may_have_drawn(storage: Storage) -> None:
    """M15: also one that was raised, and never one that was lowered."""
    await lease(storage, "a", until_ms=100)
    assert await storage.machines.extend(0, "a", ttl_s=LONG_S, until_ms=900)
    assert await storage.machines.extend(0, "a", ttl_s=LONG_S, until_ms=500)
    await storage.machines.give_back(0, "a")
    assert await lease(storage, "b", until_ms=300) == Machine(0, 900)
    await storage.machines.give_back(0, "b")
    assert await lease(storage, "c", until_ms=2000) == Machine(0, 900)
    await storage.machines.give_back(0, "c")
    assert await lease(storage, "d") == Machine(0, 2000)


async def test_one_that_has_expired_is_free_and_its_former_holder_cannot_raise_the_mark(
    storage: Storage, passing: Passing
) -> None:
    """S1: whoever comes late draws nothing beyond the mark that its successor was told."""
    await lease(storage, "a", ttl_s=0.05, until_ms=700)
    await passing(0.06)
    assert await lease(storage, "b", until_ms=800) == Machine(0, 700)
    assert not await storage.machines.extend(0, "a", ttl_s=LONG_S, until_ms=10**9)
    await storage.machines.give_back(0, "a")
    assert await storage.machines.extend(0, "b", ttl_s=LONG_S, until_ms=900), "a stranger cannot give it back"
    await storage.machines.give_back(0, "b")
    assert await lease(storage, "c") == Machine(0, 900)


async def test_one_that_has_expired_is_still_its_holders_while_nobody_wants_it(
    storage: Storage, passing: Passing
) -> None:
    await lease(storage, "a", ttl_s=0.05)
    await passing(0.06)
    assert await storage.machines.extend(0, "a", ttl_s=LONG_S, until_ms=PAST_MS)
    assert (await lease(storage, "b")).id == 1


async def test_what_was_given_back_is_not_extended(storage: Storage) -> None:
    await lease(storage, "a")
    await storage.machines.give_back(0, "a")
    assert not await storage.machines.extend(0, "a", ttl_s=LONG_S, until_ms=PAST_MS)
    assert not await storage.machines.extend(5, "a", ttl_s=LONG_S, until_ms=PAST_MS), "never leased at all"


async def test_one_whose_mark_lies_ahead_is_taken_last_so_that_ids_do_not_run_ahead_of_time(storage: Storage) -> None:
    """GAP-04: whoever had a wrong clock, or restarts all the time, does not push others into the future."""
    ahead_ms = await future_ms(storage)
    for number in range(3):
        assert (await lease(storage, "a", until_ms=ahead_ms - number)).id == number
        await storage.machines.give_back(number, "a")
    held = [await lease(storage, "b") for _ in range(MACHINES - 3)]
    assert [machine.id for machine in held] == list(range(3, MACHINES))
    lagging = [await lease(storage, "c") for _ in range(3)]
    assert [machine.id for machine in lagging] == [2, 1, 0], "the mark that passes first, first"


async def test_incident_7_the_1025th_gets_none_until_one_comes_back(storage: Storage) -> None:
    held = [await lease(storage, "a") for _ in range(MACHINES)]
    assert sorted(machine.id for machine in held) == list(range(MACHINES))
    assert await storage.machines.lease("b", ttl_s=LONG_S, until_ms=PAST_MS) is None
    await storage.machines.give_back(77, "a")
    assert await lease(storage, "b") == Machine(77, PAST_MS)


async def test_two_never_get_the_same_one_however_many_ask_at_once(url: str, storage: Storage) -> None:
    """S1: of a fresh cluster, and when all that is free has been used before."""
    if url == "sqlite://":
        pytest.skip("memory is one process's")
    async with opened(url) as other:
        for _ in range(3):
            asked = [lease(each, "a") for _ in range(60) for each in (storage, other)]
            got = [machine.id for machine in await asyncio.gather(*asked)]
            assert sorted(got) == list(range(120))
            await asyncio.gather(*(storage.machines.give_back(number, "a") for number in got))


async def test_clusters_in_one_database_have_machine_ids_of_their_own(storage: Storage, neighbour: Storage) -> None:
    """m7."""
    assert await lease(storage, "a", until_ms=100) == await lease(neighbour, "a", until_ms=200) == Machine(0, 0)
    assert await storage.machines.extend(0, "a", ttl_s=LONG_S, until_ms=100)
    await storage.machines.give_back(0, "a")
    assert await neighbour.machines.extend(0, "a", ttl_s=LONG_S, until_ms=200)
    assert await lease(storage, "b") == Machine(0, 100)
