"""Messages that senders bring to their owner: answered once, whatever they bring."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import msgspec
import pytest

from coterie import Entity, rpc
from coterie.entities.calls.wire import LOOK, encode
from coterie.entities.persisted.receiver import Handover, HandoverKind, Receiver, pack, read_cancelled
from tests.unit.entities.fake_storage import StoredLocalHost, now_at, stored, unknown

pytestmark = pytest.mark.simulated(seeds=2)


class Diary(Entity):
    began: ClassVar[list[int]] = []
    gate: ClassVar[asyncio.Event]

    @rpc(persisted=True)
    async def wait(self, number: int) -> int:
        self.began.append(number)
        await self.gate.wait()
        return number


@pytest.fixture(autouse=True)
def fresh() -> None:
    Diary.began, Diary.gate = [], asyncio.Event()


class Request:
    """`transport.Request`, as far as it is answered here."""

    def __init__(self, body: bytes) -> None:
        self.arrived_s = asyncio.get_running_loop().time()
        self.body = body
        self.told: list[Any] = []

    def reply(self, body: bytes) -> None:
        self.told.append(body)

    def fail(self, code: str, facts: Any) -> None:
        self.told.append(code)


def brought(ground: StoredLocalHost, kind: int, number: int = 1, *, epoch: int = 0, stored: bool = True) -> Request:
    message = ground.message("a", "wait", number)
    if stored:
        ground.messages.add(message)
    return Request(pack(kind, message, epoch=epoch, due_s=now_at().timestamp()))


def opened(request: Request) -> Handover:
    return msgspec.msgpack.decode(request.body, type=Handover)


async def test_a_message_crosses_whole() -> None:
    async with stored(Diary) as ground:
        message = ground.message("a", "wait", 7, key="k", trace_id="t")
        crossed = msgspec.msgpack.decode(pack(HandoverKind.NEW, message, epoch=3, due_s=12.5), type=Handover)
        assert (crossed.kind, crossed.seat, crossed.epoch, crossed.due_s) == (HandoverKind.NEW, message.seat, 3, 12.5)
        for name in ("id", "seat", "entity_type", "entity_id", "method", "payload", "key", "trace_id", "is_immediate"):
            assert getattr(crossed, name) == getattr(message, name)
        assert (crossed.due_s, crossed.attempts) == (12.5, 0)


async def test_whoever_waits_is_answered_after_the_commit_and_once() -> None:
    async with stored(Diary) as ground:
        handovers, request = Receiver(ground.host), brought(ground, HandoverKind.NEW)
        handovers.on_request(request)  # type: ignore[arg-type] # as far as it is needed
        await asyncio.sleep(0.1)
        assert (Diary.began, request.told) == ([1], [])
        Diary.gate.set()
        await asyncio.sleep(0.1)
        assert request.told == [b"\x01"]


async def test_whoever_leaves_is_not_answered_and_the_message_runs() -> None:
    async with stored(Diary) as ground:
        handovers, request = Receiver(ground.host), brought(ground, HandoverKind.NEW)
        handovers.on_request(request)  # type: ignore[arg-type] # as far as it is needed
        handovers.on_cancel(request)  # type: ignore[arg-type] # as above
        handovers.on_cancel(request)  # type: ignore[arg-type] # as above
        Diary.gate.set()
        await asyncio.sleep(0.1)
        assert request.told == []
        assert ground.status(opened(request).id) == ["done"]


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x90", encode("junk"), encode([1, 2, 3]), encode([-1, "s", 0])])
async def test_what_cannot_be_read_fails_that_request_alone(body: bytes) -> None:
    async with stored(Diary) as ground:
        handovers, request = Receiver(ground.host), Request(body)
        handovers.on_request(request)  # type: ignore[arg-type] # as far as it is needed
        assert request.told == ["malformed_message"]
        handovers.on_notify("peer", 0, body, {})


async def test_a_message_brought_without_waiting_runs_and_a_hint_has_storage_looked_at() -> None:
    async with stored(Diary) as ground:
        handovers, new = Receiver(ground.host), brought(ground, HandoverKind.NEW)
        handovers.on_notify("peer", 0, new.body, {})
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert Diary.began == [1]
        Diary.gate.set()
        await asyncio.sleep(0.3)  # past the sweep that may run now
        hinted = brought(ground, HandoverKind.LOOK, 2)
        handovers.on_notify("peer", 0, hinted.body, {})
        await asyncio.sleep(0.1)
        assert Diary.began == [1, 2], "found in storage, long before the next regular sweep"


async def test_a_kind_that_this_version_does_not_know_starts_nothing_from_what_its_sender_says() -> None:
    async with stored(Diary) as ground:
        handovers, request = Receiver(ground.host), brought(ground, HandoverKind.NEW, stored=False)
        request.body = encode([9, *msgspec.msgpack.decode(request.body)[1:], "a field of a later version"])
        handovers.on_request(request)  # type: ignore[arg-type] # as far as it is needed
        handovers.on_notify("peer", 0, request.body, {})
        await asyncio.sleep(2)
        assert Diary.began == [], "storage does not have it"


async def test_a_cancellation_is_answered_by_yes_no_or_look() -> None:
    async with stored(Diary) as ground:
        handovers = Receiver(ground.host)
        running, behind = brought(ground, HandoverKind.NEW, 1), brought(ground, HandoverKind.NEW, 2)
        for each in (running, behind):
            handovers.on_notify("peer", 0, each.body, {})
        await asyncio.sleep(0.1)
        told = []
        for each in (running, behind, behind):
            handover = opened(each)
            handover.kind = HandoverKind.CANCEL
            request = Request(encode(handover))
            handovers.on_request(request)  # type: ignore[arg-type] # as far as it is needed
            await asyncio.sleep(0.1)
            told += [read_cancelled(request.told[0])]
        assert told == [False, True, False]
        ground.messages.failing["cancel"] = [unknown]
        handover = opened(brought(ground, HandoverKind.CANCEL, 3))
        failing = Request(encode(handover))
        handovers.on_request(failing)  # type: ignore[arg-type] # as above
        await asyncio.sleep(0.1)
        assert failing.told == ["persistence_error"]
        ground.abandon()
        lost = Request(encode(handover))
        handovers.on_request(lost)  # type: ignore[arg-type] # as above
        await asyncio.sleep(0.1)
        assert (lost.told, read_cancelled(LOOK)) == ([LOOK], None)
        Diary.gate.set()
        await handovers.stop()
