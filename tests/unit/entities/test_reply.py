"""Waiting for the reply of a stored message: from its owner, or from storage, and no longer than the caller wants."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from coterie.entities.calls.wire import FAILED, LOOK, pack_failure
from coterie.entities.persisted.receiver import Handover, HandoverKind
from coterie.entities.persisted.reply import ReplyWaiter
from coterie.errors import MessageDead, MessageExpired, SendTimeout
from tests.unit.entities.account_entity import ACCOUNT, Overdrawn
from tests.unit.entities.fake_network import LOST, FakeCalling
from tests.unit.entities.fake_storage import unreachable
from tests.unit.entities.test_outcome import message

pytestmark = pytest.mark.simulated(seeds=2)

CHARGE = ACCOUNT.rpcs["charge"]
FIVE = CHARGE.encode_result(5)


def waiting(calling: FakeCalling, *, within_s: float = 10.0, is_new: bool = True) -> asyncio.Task[Any]:
    """Wait for a message that was stored."""
    sent = message()
    if sent.id not in calling.storage.messages.rows:
        calling.storage.messages.add(sent)
    until_s = asyncio.get_running_loop().time() + within_s
    awaiting: Any = ReplyWaiter(calling, calling.storage)  # type: ignore[arg-type] # as far as they are needed
    reply = awaiting.reply(CHARGE, sent, due_s=0.0, until_s=until_s, within_s=within_s, is_new=is_new)
    return asyncio.create_task(reply)


def kinds(calling: FakeCalling) -> list[int]:
    return [msgspec.msgpack.decode(body, type=Handover).kind for body in calling.transport.asked]


async def test_the_owners_answer_is_the_reply_and_storage_is_not_asked() -> None:
    calling = FakeCalling()
    calling.transport.answers = [FIVE]
    assert await waiting(calling) == 5
    calling.transport.answers = [FAILED + pack_failure(Overdrawn(7), CHARGE.errors)]
    with pytest.raises(Overdrawn):
        await waiting(calling)
    assert calling.storage.messages.asked["look"] == []
    assert kinds(calling) == [HandoverKind.NEW, HandoverKind.NEW]


async def test_an_owner_that_is_lost_is_not_brought_the_message_as_new_again() -> None:
    """It may have run: whoever owns it next looks in storage."""
    calling = FakeCalling()
    calling.transport.answers = [LOST, LOOK, FIVE]
    assert await waiting(calling) == 5
    assert kinds(calling) == [HandoverKind.NEW, HandoverKind.AGAIN, HandoverKind.AGAIN]
    assert calling.doubts == 2


async def test_a_reply_that_is_in_storage_is_found_there() -> None:
    calling = FakeCalling()
    task = waiting(calling)
    await asyncio.sleep(0.2)
    calling.storage.messages.end(message().id, "done", FIVE)
    assert await task == 5
    assert asyncio.get_running_loop().time() < 2, "a silent owner is not waited for to the end"


async def test_without_an_owner_storage_is_asked_with_growing_pauses_until_the_deadline() -> None:
    calling = FakeCalling(owner="")
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(SendTimeout, match=r"no reply from Account/alice\.charge within 5s: the message is stored"):
        await waiting(calling, within_s=5)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(5, abs=0.1), "neither sooner nor later"
    assert 10 < len(calling.storage.messages.asked["look"]) < 25
    assert calling.storage.messages.rows[message().id].status == "pending"


async def test_dead_and_gone_are_told_apart() -> None:
    calling = FakeCalling(owner="")
    task = waiting(calling)
    await asyncio.sleep(0.1)
    calling.storage.messages.end(message().id, "dead")
    with pytest.raises(MessageDead):
        await task
    task = waiting(calling)
    await asyncio.sleep(0)
    calling.storage.messages.rows.clear()
    with pytest.raises(MessageExpired):
        await task


async def test_a_database_that_is_away_is_asked_again() -> None:
    calling = FakeCalling(owner="")
    calling.storage.messages.failing["look"] = [unreachable] * 5
    task = waiting(calling)
    await asyncio.sleep(0.5)
    calling.storage.messages.end(message().id, "done", FIVE)
    assert await task == 5
    calling.storage.messages.failing["look"] = [unreachable] * 1000
    with pytest.raises(SendTimeout, match="the message is stored and will run"):
        await waiting(calling, within_s=3)
