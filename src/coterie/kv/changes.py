"""The storage side of the key-value store: writes with a stamp, and atomic changes of one key.

A change is a compare-and-swap on the stamp that was read: the loser of a race reads again and applies its function
once more. Concurrent changes of one key in this process are applied one after another in memory and share one swap,
so a hot counter costs a commit per group, not a commit per caller.

A write with a claim proves that the seat is still held: after another runner has taken the seat it raises
`LeadershipLost` and changes nothing [C1]. Changes for different seats are not combined: each swap proves one claim.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coterie.errors import PersistenceError
from coterie.kernel import chaos
from coterie.kernel.service import Service
from coterie.storage.interface import Entry, KvPut, KvRemove, KvSwap

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from coterie.kernel.random import Random
    from coterie.storage.interface import Claim, Kv

    Apply = Callable[[bytes | None], bytes | None]
    _Result = bytes | None | Exception

TRIES_MOST = 1000
BACKOFF_S = 0.001
BACKOFF_MOST_S = 0.05
PAGE = 500

_STAMP_BITS = 63  # a positive integer in both databases


@dataclass(eq=False, slots=True)
class _Change:
    apply: Apply
    ttl_s: float | None
    claim: Claim | None
    done: asyncio.Future[bytes | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class KeyValues(Service):
    """Keys and encoded values of one process on one storage."""

    def __init__(self, kv: Kv, *, chance: Random) -> None:
        super().__init__(what="key-value store")
        self._kv = kv
        self._chance = chance
        self._changes: dict[str, list[_Change]] = {}

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None."""
        self.require_running()
        entry = await self._kv.get(key)
        return None if entry is None else entry.value

    async def set(self, key: str, value: bytes, *, ttl_s: float | None, claim: Claim | None = None) -> None:
        """Durable when it returns."""
        self.require_running()
        await self._kv.put(KvPut(key, value, self._stamp(), ttl_s, claim))

    async def remove(self, key: str, *, claim: Claim | None = None) -> bool:
        """Remove a key, durable when it returns. Returns whether it existed."""
        self.require_running()
        return await self._kv.remove(KvRemove(key, claim))

    async def count(self, prefix: str) -> int:
        """Count the keys that start with `prefix`."""
        self.require_running()
        return await self._kv.count(prefix)

    async def clear(self, prefix: str, *, claim: Claim | None = None) -> int:
        """Remove all keys that start with `prefix`. Returns the number removed."""
        self.require_running()
        return await (self._kv.clear(prefix) if claim is None else self._clear(prefix, claim))

    async def _clear(self, prefix: str, claim: Claim) -> int:
        """Remove page by page under the fence, with one write per key; the writes share transactions."""
        removed, after = 0, None
        while page := await self._kv.page(prefix, after=after, most=PAGE):
            writes = (self._kv.remove(KvRemove(entry.key, claim)) for entry in page)
            removed += sum(await asyncio.gather(*writes))
            after = page[-1].key
        return removed

    async def scan(self, prefix: str, *, most: int = PAGE) -> AsyncIterator[Entry]:
        """Yield the entries that start with `prefix`, in key order, read page by page."""
        self.require_running()
        after = None
        while page := await self._kv.page(prefix, after=after, most=most):
            for entry in page:
                yield entry
            after = page[-1].key

    async def modify(self, key: str, apply: Apply, *, ttl_s: float | None, claim: Claim | None = None) -> bytes | None:
        """Replace a value by a function of it, atomically. Returns the new value.

        Promise:
            The function's last run saw the value that its result replaced. An error it raises changes nothing.
        """
        self.require_running()
        change = _Change(apply, ttl_s, claim)
        if (queued := self._changes.get(key)) is not None:
            queued.append(change)
        else:
            self._changes[key] = [change]
            self.tasks.spawn(self._work_off(key), name="modify")
        return await change.done

    async def _work_off(self, key: str) -> None:
        group: list[_Change] = []
        try:
            while waiting := [change for change in self._changes[key] if not change.done.done()]:
                group = [change for change in waiting if change.claim == waiting[0].claim]
                self._changes[key] = [change for change in waiting if change.claim != waiting[0].claim]
                try:
                    await self._swap(key, group)
                except Exception as error:  # noqa: BLE001 any error must reach the callers
                    _fail(group, error)
        except asyncio.CancelledError:
            problem = "the process is shutting down"
            _fail(group, PersistenceError(doing=f"modify {key!r}", problem=problem, outcome="unknown"))
            _fail(self._changes[key], PersistenceError(doing=f"modify {key!r}", problem=problem))
            raise
        finally:
            del self._changes[key]

    async def _swap(self, key: str, group: list[_Change]) -> None:
        for tried in range(TRIES_MOST):
            entry = await self._kv.get(key)
            if chaos.on:
                await chaos.point("modify.between_read_and_swap")
            old = None if entry is None else entry.value
            new, results = _apply_all(group, old)
            winners = [change for change, result in zip(group, results, strict=True) if not _failed(result)]
            unchanged = not winners or (old is None and new is None)
            if unchanged or await self._swapped(key, entry, new, winners[-1]):
                _deliver(group, results)  # errors too: only now it is certain that the values they saw were committed
                return
            await asyncio.sleep(self._chance.between(0, min(BACKOFF_S * 2 ** min(tried, 10), BACKOFF_MOST_S)))
        raise PersistenceError(
            doing=f"modify {key!r}",
            problem=f"somebody else was faster {TRIES_MOST} times",
            hint="spread the writes over several keys",
        )

    async def _swapped(self, key: str, entry: Entry | None, new: bytes | None, last: _Change) -> bool:
        stamp = self._stamp()
        expected = None if entry is None else entry.stamp
        try:
            return await self._kv.swap(KvSwap(key, expected, new, stamp, last.ttl_s, last.claim))
        except PersistenceError as error:
            if error.outcome == "unknown" and await self._is_there(key, stamp):
                return True
            raise

    async def _is_there(self, key: str, stamp: int) -> bool:
        """Whether a swap of unknown outcome happened. False proves nothing: it may still become visible [C1]."""
        try:
            entry = await self._kv.get(key)
        except PersistenceError:
            return False
        return entry is not None and entry.stamp == stamp

    def _stamp(self) -> int:
        return self._chance.bits(_STAMP_BITS)


def _apply_all(group: list[_Change], value: bytes | None) -> tuple[bytes | None, list[_Result]]:
    """Apply the functions in sequence; one that raises leaves the value unchanged for the next."""
    results: list[_Result] = []
    for change in group:
        try:
            value = change.apply(value)
        except Exception as error:  # noqa: BLE001 the user's error goes to the user
            results.append(error)
        else:
            results.append(value)
    return value, results


def _failed(result: _Result) -> bool:
    return isinstance(result, Exception)


def _deliver(group: list[_Change], results: list[_Result]) -> None:
    for change, result in zip(group, results, strict=True):
        if change.done.done():
            continue
        if isinstance(result, Exception):
            change.done.set_exception(result)
        else:
            change.done.set_result(result)


def _fail(group: list[_Change], error: Exception) -> None:
    _deliver(group, [error] * len(group))
