"""Workflows that are started on PostgreSQL while others are purged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage.contracts.units import UnitStart
from coterie.storage.postgres.writer import SQL

if TYPE_CHECKING:
    from coterie.storage.postgres import PostgresStorage

pytestmark = pytest.mark.postgres


async def test_a_workflow_whose_former_run_is_purged_before_it_was_read_is_started(storage: PostgresStorage) -> None:
    start = UnitStart(unit="workflow:W/1", name="W", id="1", seat="shard:default:1", payload=b"", digest=b"d")
    await storage.units.start(start)
    asked: list[str] = []

    async def fetch(sql: str, *values: Any) -> Any:
        asked.append(sql)
        if len(asked) == 2:
            await storage.pool.write("delete from coterie.units")
        return await storage.pool.read(sql, *values)

    await storage.units.require_started(fetch, [start])
    assert asked == [SQL["start_unit"], SQL["get_unit"], SQL["start_unit"]]
    assert await storage.units.get(start.unit) is not None
