"""The durable side of the key-value store (K1)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from coterie.kernel.random import Random
from coterie.kv.changes import KeyValues
from coterie.storage.interface import Claim, KvSwap

if TYPE_CHECKING:
    from coterie.storage.interface import Kv


class Store:
    """Takes everything, and holds nothing."""

    def __init__(self) -> None:
        self.swaps: list[KvSwap] = []

    async def get(self, key: str) -> None:
        """Nothing is there."""

    async def put(self, write: Any) -> None:
        """Taken."""

    async def swap(self, write: KvSwap) -> bool:
        self.swaps.append(write)
        return True


async def test_changes_of_one_key_share_a_swap_only_in_the_name_of_one_seat() -> None:
    """K1, M3: each swap proves one claim; those without one go together."""
    store = Store()

    async def change(seat: str | None, epoch: int = 1) -> None:
        claim = None if seat is None else Claim("me", seat, epoch)
        await values.modify("a", lambda old: (old or b"") + b".", ttl_s=None, claim=claim)

    async with KeyValues(cast("Kv", store), chance=Random(1)) as values:
        await asyncio.gather(change("s1"), change("s2"), change("s1"), change(None), change("s1", 2), change(None))
    found = {write.claim: write.value for write in store.swaps}
    assert len(found) == len(store.swaps)
    assert found == {Claim("me", "s1", 1): b"..", Claim("me", "s2", 1): b".", None: b"..", Claim("me", "s1", 2): b"."}
