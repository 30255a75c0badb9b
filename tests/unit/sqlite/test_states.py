"""State under the fence in a file: the audit of what was refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from coterie.kernel.clock import SystemClock
from coterie.kernel.random import Random
from coterie.settings import Settings
from coterie.storage.interface import Claim, StateSave
from coterie.storage.sqlite import SqliteStorage

if TYPE_CHECKING:
    from pathlib import Path

LOST = Claim("a" * 32, "shard:default:1", 3)


@pytest.mark.parametrize("audit", [True, False])
async def test_what_the_fence_refuses_is_noted_if_that_is_set(path: Path, audit: bool) -> None:
    settings = Settings.load({"url": f"sqlite:///{path}", "name": "c", "audit": audit}, environ={})
    storage = SqliteStorage(settings, incarnation="0" * 32, clock=SystemClock(), chance=Random())
    async with storage:
        saves = (storage.states.save(StateSave(LOST, key, b"", 0)) for key in ("k1", "k2"))
        assert await asyncio.gather(*saves) == ["fenced", "fenced"]
        sql = "select cluster, kind, runner, seat, epoch, note from audit order by id"
        rows = await storage._main.read(lambda connection: connection.execute(sql).fetchall(), doing="look")
    noted = [("c", "refused", LOST.runner, LOST.seat, LOST.epoch, key) for key in ("k1", "k2")]
    assert rows == (noted if audit else [])
