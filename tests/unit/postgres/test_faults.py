"""A server that crashes and comes back: acknowledged writes are there, and work goes on (D1, R3, incident 30)."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Literal

import pytest

from coterie.errors import PersistenceError
from coterie.storage.interface import KvPut
from coterie.storage.postgres import ConnectionLimits, PostgresStorage
from tests.support.loop_time import LoopTime
from tests.unit.postgres.conftest import new_storage

if TYPE_CHECKING:
    from tests.support.postgres import Server

pytestmark = pytest.mark.postgres


class Writers:
    """Concurrent writers that note what became of each write."""

    def __init__(self, storage: PostgresStorage) -> None:
        self._storage = storage
        self._stopped = False
        self.acknowledged: list[str] = []
        self.failed: dict[str, str] = {}
        self.last_at = 0.0

    async def run(self, writer: int) -> None:
        number = 0
        while not self._stopped:
            number += 1
            key = f"{writer}/{number}"
            try:
                await self._storage.kv.put(KvPut(key, key.encode(), writer * 1_000_000 + number))
            except PersistenceError as error:
                self.failed[key] = error.outcome
            else:
                self.acknowledged.append(key)
                self.last_at = time.monotonic()

    def stop(self) -> None:
        self._stopped = True


@pytest.mark.parametrize("how", ["immediate", "fast", "kill"])
async def test_acknowledged_writes_survive_a_server_that_crashes(
    postgres_server: Server, postgres_url: str, how: Literal["immediate", "fast", "kill"]
) -> None:
    """D1, R3: each write is acknowledged and there, or failed with what is known; then writing goes on."""
    limits = ConnectionLimits(connect_s=2.0, backoff_s=0.05, call_s=5.0)
    async with new_storage(postgres_url, limits=limits) as storage:
        writers = Writers(storage)
        running = [asyncio.create_task(writers.run(writer)) for writer in range(20)]
        for _ in range(3):
            await _progress(writers)
            if how == "kill":
                postgres_server.kill()
            else:
                postgres_server.stop(how)
            await asyncio.sleep(0.1)
            postgres_server.start()
            await _progress(writers)
        writers.stop()
        await asyncio.gather(*running)
        found = set()
        after: str | None = None
        while page := await storage.kv.page("", after=after, most=5000):
            found |= {entry.key for entry in page}
            after = page[-1].key
        assert set(writers.acknowledged) <= found
        assert set(writers.failed.values()) <= {"unknown"}  # what was not sent was tried again until it worked
        assert len(writers.failed) <= 3 * 20
        missing = {key for key in writers.failed if key not in found}
        assert found - missing == found


async def _progress(writers: Writers) -> None:
    """R3: some writes are acknowledged that began after now."""
    count = len(writers.acknowledged)
    async with asyncio.timeout(120):
        while len(writers.acknowledged) < count + 100:
            await asyncio.sleep(0.005)


async def test_a_server_that_stays_away_fails_writes_and_reads_as_unreachable_and_soon(
    postgres_server: Server, postgres_url: str
) -> None:
    limits = ConnectionLimits(connect_s=0.5, backoff_s=0.05, call_s=0.6)
    async with new_storage(postgres_url, limits=limits) as storage:
        postgres_server.stop("immediate")
        try:
            await asyncio.sleep(0.05)
            calls = [storage.kv.put(KvPut(str(number), b"", number)) for number in range(5000)]  # ten groups
            async with LoopTime() as taken:
                results = await asyncio.gather(*calls, storage.kv.get("a"), return_exceptions=True)
        finally:
            postgres_server.start()
        assert {getattr(result, "outcome", result) for result in results} == {"unreachable"}
        assert taken.seconds < 4  # the later groups did not wait for a deadline of their own
        await storage.kv.put(KvPut("a", b"", 1))
        assert await storage.kv.get("a") is not None
