"""Volatile calls that nobody waits for: taken, or a reason why not (DUR-07)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator  # annotations of rpcs are read at run time
from typing import ClassVar

import pytest

from coterie import Entity, rpc
from coterie.entities.calls.local import ACCEPTED, DetachedCall, accept
from coterie.entities.calls.wire import NOT_MINE
from coterie.errors import MailboxFull, UnknownEntity
from tests.unit.entities.local_host import LocalHost

pytestmark = pytest.mark.simulated(seeds=2)


class Diary(Entity):
    began: ClassVar[list[str]] = []
    gate: ClassVar[asyncio.Event]

    @rpc
    async def wait(self) -> int:
        self.began.append(self.id)
        await self.gate.wait()
        return 1

    @rpc
    async def fail(self) -> int:
        self.began.append(self.id)
        raise ValueError

    @rpc
    async def items(self) -> AsyncIterator[int]:
        self.began.append(self.id)
        yield 1
        yield 2
        self.began.append("end")


@pytest.fixture(autouse=True)
def fresh() -> None:
    Diary.began, Diary.gate = [], asyncio.Event()


def detached(method: str, *, entity_type: str = "Diary") -> DetachedCall:
    loop = asyncio.get_running_loop()
    return DetachedCall(entity_type, "a", method, b"\x80", loop.time() + 60, 60.0, f"m{loop.time()}")


async def test_dur_07_it_is_taken_before_its_handler_has_ended() -> None:
    ground = LocalHost(Diary)
    assert accept(ground.host, detached("wait")) == ACCEPTED
    await asyncio.sleep(0.1)
    assert Diary.began == ["a"]
    assert ground.host.counts.replied == 0
    Diary.gate.set()
    await asyncio.sleep(0.1)
    assert ground.host.counts.replied == 1
    await ground.host.stop()


async def test_a_defect_and_a_stream_end_without_anybody_who_waits() -> None:
    ground = LocalHost(Diary)
    assert [accept(ground.host, detached(method)) for method in ("fail", "items")] == [ACCEPTED, ACCEPTED]
    await asyncio.sleep(0.1)
    assert Diary.began == ["a", "a", "end"]
    await ground.host.stop()


async def test_what_keeps_it_from_being_taken_is_told() -> None:
    ground = LocalHost((Diary, {"mailbox": 1}))
    for _ in range(2):
        accept(ground.host, detached("wait"))
    await asyncio.sleep(0.1)
    with pytest.raises(MailboxFull):
        accept(ground.host, detached("wait"))
    with pytest.raises(UnknownEntity):
        accept(ground.host, detached("wait", entity_type="Unknown"))
    ground.abandon()
    assert accept(ground.host, detached("wait")) == NOT_MINE
    Diary.gate.set()
    await ground.host.stop()
