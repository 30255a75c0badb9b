"""Looking messages up: many ask, few reads; whoever leaves or fails harms nobody else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coterie.entities.persisted import reply
from coterie.entities.persisted.reply import RowLookup
from coterie.errors import PersistenceError, ShuttingDown
from tests.unit.entities.fake_storage import FakeStorage, unreachable
from tests.unit.entities.test_outcome import message

pytestmark = pytest.mark.simulated(seeds=2)


def stocked(count: int) -> tuple[FakeStorage, RowLookup[Any], list[str]]:
    storage = FakeStorage()
    ids = [storage.messages.add(message(id=f"{number:032x}")).id for number in range(count)]
    return storage, RowLookup(storage.messages.look), ids


async def test_those_who_ask_while_a_read_is_under_way_share_the_next_one() -> None:
    storage, seek, ids = stocked(5)
    gate = storage.messages.hold("look")
    asked = [asyncio.create_task(seek.find(each)) for each in ids]
    await asyncio.sleep(0.1)
    asked += [asyncio.create_task(seek.find(each)) for each in [*ids, "unknown"]]
    await asyncio.sleep(0.1)
    gate.set()
    found = [row and row.id for row in await asyncio.gather(*asked)]
    assert found == [*ids, *ids, None]
    assert [len(each) for each in storage.messages.asked["look"]] == [5, 6]


async def test_a_read_names_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "_TOGETHER", 2)
    storage, seek, ids = stocked(5)
    rows = await asyncio.gather(*(seek.find(each) for each in ids))
    assert [row and row.id for row in rows] == ids
    assert [len(each) for each in storage.messages.asked["look"]] == [2, 2, 1]


async def test_whoever_leaves_takes_nothing_from_the_others() -> None:
    storage, seek, ids = stocked(1)
    gate = storage.messages.hold("look")
    one, other = (asyncio.create_task(seek.find(ids[0])) for _ in range(2))
    await asyncio.sleep(0.1)
    one.cancel()
    await asyncio.sleep(0.1)
    gate.set()
    found = await other
    assert found is not None
    assert found.id == ids[0]
    assert one.cancelled()


async def test_an_error_is_told_to_those_who_asked_and_the_next_read_works() -> None:
    storage, seek, ids = stocked(2)
    storage.messages.failing["look"] = [unreachable]
    asked = [asyncio.create_task(seek.find(each)) for each in ids]
    for each in asked:
        with pytest.raises(PersistenceError):
            await each
    assert await seek.find(ids[0]) is not None


async def test_r3_when_it_stops_nobody_waits_on() -> None:
    """Those whose read is under way, and those whose turn has not come."""
    storage, seek, ids = stocked(2)
    storage.messages.hold("look")
    asked = [asyncio.create_task(seek.find(ids[0]))]
    await asyncio.sleep(0.1)
    asked.append(asyncio.create_task(seek.find(ids[1])))
    await asyncio.sleep(0.1)
    await seek.stop()
    done, waiting = await asyncio.wait(asked, timeout=5)
    assert not waiting
    assert [type(each.exception()) for each in done] == [ShuttingDown] * 2
    with pytest.raises(ShuttingDown):
        await seek.find(ids[0])
