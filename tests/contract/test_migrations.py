"""Migrations lead from every earlier version of the schema to the present one, on every storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage import migrations
from coterie.storage.interface import KvPut
from tests.contract.conftest import new_storage

if TYPE_CHECKING:
    from coterie.storage.interface import Storage

STEPS = len(migrations.load("coterie.storage.sqlite.migrations"))


def unchecked(url: str) -> Any:
    """A storage whose schema can be made an earlier program's: `known` is the engines' own, not the contract's."""
    return new_storage(url, check_schema=False)


async def applied(storage: Storage) -> list[str]:
    return [str(step) for step in await storage.schema.applied()]


@pytest.mark.parametrize("version", range(STEPS + 1))
async def test_every_earlier_version_is_brought_to_the_present_one(url: str, version: int) -> None:
    if url == "sqlite://":
        pytest.skip("memory has no earlier version")
    async with unchecked(url) as old:
        present = old.schema.known
        old.schema.known = present[:version]  # what a program of that version knew
        await old.schema.apply()
        assert len(await old.schema.applied()) == version
    async with unchecked(url) as new:
        done = await new.schema.apply()
        assert [str(step) for step in done] == [str(step) for step in present[version:]]
        assert await applied(new) == [str(step) for step in present]
        assert await new.schema.apply() == []
    async with new_storage(url) as storage:
        await storage.kv.put(KvPut("a", b"1", 1))
        assert await storage.kv.get("a") is not None
        assert len(await storage.secret()) == 32
