"""The durable side of the key-value store: expired rows are cleared away by whoever writes keys that expire (K1)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from coterie.durable.changes import KeyValues
from coterie.kernel.chance import Chance
from coterie.kernel.clock import ManualClock
from coterie.storage.interface import Claim, KvSwap

if TYPE_CHECKING:
    from coterie.storage.interface import Kv


class Store:
    """Takes everything, holds nothing, and counts how often it was purged."""

    def __init__(self) -> None:
        self.purges: list[int] = []
        self.swaps: list[KvSwap] = []

    async def get(self, key: str) -> None:
        """Nothing is there."""

    async def put(self, write: Any) -> None:
        """Taken."""

    async def swap(self, write: KvSwap) -> bool:
        self.swaps.append(write)
        return True

    async def purge(self, *, most: int) -> int:
        self.purges.append(most)
        return 0


@pytest.mark.parametrize("how", ["set", "modify"])
async def test_writes_that_expire_purge_once_a_minute(how: str) -> None:
    store, clock = Store(), ManualClock()
    async with KeyValues(cast("Kv", store), clock=clock, chance=Chance(1)) as values:

        async def write(ttl_s: float | None) -> int:
            if how == "set":
                await values.set("a", b"1", ttl_s=ttl_s)
            else:
                await values.modify("a", lambda _: b"1", ttl_s=ttl_s)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return len(store.purges)

        assert await write(1.0) == 0, "it has just begun"
        clock.advance(timedelta(seconds=61))
        assert await write(None) == 0, "what does not expire leaves nothing behind"
        assert await write(1.0) == 1
        assert await write(1.0) == 1
        clock.advance(timedelta(seconds=61))
        assert await write(1.0) == 2
    assert store.purges == [1000, 1000]


async def test_changes_of_one_key_share_a_swap_only_in_the_name_of_one_seat() -> None:
    """K1, M3: each swap proves one claim; those without one go together."""
    store = Store()

    async def change(seat: str | None, epoch: int = 1) -> None:
        claim = None if seat is None else Claim("me", seat, epoch)
        await values.modify("a", lambda old: (old or b"") + b".", ttl_s=None, claim=claim)

    async with KeyValues(cast("Kv", store), clock=ManualClock(), chance=Chance(1)) as values:
        await asyncio.gather(change("s1"), change("s2"), change("s1"), change(None), change("s1", 2), change(None))
    found = {write.claim: write.value for write in store.swaps}
    assert len(found) == len(store.swaps)
    assert found == {Claim("me", "s1", 1): b"..", Claim("me", "s2", 1): b".", None: b"..", Claim("me", "s1", 2): b"."}
