"""Jobs of queues with limits while runners are killed, frozen and stopped: a short sample of `make chaos`."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

from tests.cluster.job_cluster import load
from tests.cluster.job_history import ends_of, peaks

if TYPE_CHECKING:
    from pathlib import Path

SPELL_S = 6.0


async def test_no_job_is_lost_ends_twice_or_exceeds_a_limit(url_by_day: str, tmp_path: Path) -> None:
    """T1, T2, T6, T9: a runner is killed, another one freezes and leaves, an operator changes what he can."""
    async with load(url_by_day, tmp_path) as here:
        killed, frozen = await here.start_runners(2)
        await here.start_clients(1, senders=24)
        here.feed()
        operating = asyncio.create_task(here.operate(until_s=time.monotonic() + SPELL_S, seed=7))
        await here.wait_until(lambda: len(here.notes().bodies) > 50)
        killed.kill()
        await killed.start()
        frozen.freeze()
        await asyncio.sleep(random.uniform(0.5, 2.0))
        frozen.thaw()
        assert await frozen.stop() == 0, frozen.tail()
        await operating
        counts, committed = await here.close()
        assert counts["done"] > 50, f"hardly anything was done: the test shows nothing: {counts}"
        assert ends_of(committed) >= counts["done"]
        most = {each.seat: each for each in peaks(committed)}
        assert most["queue:narrow"].running > 1 < most["queue:shared"].in_partition, "no limit was reached"
