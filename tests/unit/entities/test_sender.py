"""Sending stored messages: stored once whatever breaks, brought to their owner, taken back or not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coterie.entities.calls.wire import LOOK, encode
from coterie.entities.persisted.receiver import Handover, HandoverKind
from coterie.entities.persisted.sender import PersistedSender
from coterie.entities.reference import require_call
from coterie.errors import (
    KeyConflict,
    MalformedMessage,
    MessageDead,
    MessageExpired,
    PersistenceError,
    SendTimeout,
)
from coterie.storage.contracts.messages import Receipt
from tests.unit.entities.account_entity import ACCOUNT, account
from tests.unit.entities.fake_network import LOST, FakeCalling
from tests.unit.entities.fake_storage import now_at, refused, unknown, unreachable
from tests.unit.entities.test_outcome import message

if TYPE_CHECKING:
    from coterie.entities.reference import Call
    from coterie.storage.contracts.messages import Insert

pytestmark = pytest.mark.simulated(seeds=2)

CHARGE = ACCOUNT.rpcs["charge"]
FIVE = CHARGE.encode_result(5)


def persisted(calling: FakeCalling) -> PersistedSender:
    return PersistedSender(calling, calling.storage)  # type: ignore[arg-type] # as far as they are needed


def charge(order: str = "order-7", cents: int = 5) -> Call[Any]:
    """A call that was taken from its reference, as `cluster.call` does."""
    ref, _ = account()
    return require_call(ref.charge(order, cents), what="a test")


async def send(post: PersistedSender, call: Call[Any], **options: Any) -> str:
    return str(await post.send(call, ACCOUNT, **options))


async def call_(post: PersistedSender, call: Call[Any]) -> Any:
    return await post.call(call, ACCOUNT)


def brought(bodies: list[bytes]) -> list[Handover]:
    return [msgspec.msgpack.decode(body, type=Handover) for body in bodies]


@pytest.mark.parametrize("trouble", [unreachable, unknown], ids=["unreachable", "unknown"])
async def test_while_the_database_is_away_a_message_is_stored_again_under_the_same_id(trouble: Exception) -> None:
    """0.6: an earlier try of unknown outcome is recognised by it."""
    calling = FakeCalling()
    calling.storage.messages.failing["insert"] = [trouble] * 3
    calling.transport.answers = [FIVE]
    assert await call_(persisted(calling), charge()) == 5
    tries = calling.storage.messages.asked["insert"]
    assert len(tries) == 4
    assert {each.id for each in tries} == {tries[0].id}


async def test_what_the_database_refuses_is_not_tried_again_and_patience_ends() -> None:
    calling = FakeCalling()
    calling.storage.messages.failing["insert"] = [refused]
    with pytest.raises(PersistenceError, match="does not like it"):
        await send(persisted(calling), charge())
    assert len(calling.storage.messages.asked["insert"]) == 1
    calling.storage.messages.failing["insert"] = [unreachable] * 10_000
    with pytest.raises(PersistenceError, match="is away"):
        await send(persisted(calling), charge())
    assert asyncio.get_running_loop().time() < 31


async def test_a_message_that_is_due_soon_is_brought_and_one_for_later_is_not() -> None:
    calling = FakeCalling()
    post = persisted(calling)
    for delay_s in (0.0, 30.0, 3600.0):
        await send(post, charge(f"in {delay_s}"), delay_s=delay_s)
    kinds = [(each.kind, each.epoch, each.key) for each in brought(calling.transport.notified)]
    assert kinds == [(HandoverKind.NEW, 7, "s:in 0.0"), (HandoverKind.NEW, 7, "s:in 30.0")]
    assert calling.transport.asked == []


async def test_without_a_connection_one_is_made_and_without_an_owner_nothing_is_brought() -> None:
    calling = FakeCalling()
    calling.transport.takes = False
    post = persisted(calling)
    await send(post, charge("one"))
    await asyncio.sleep(0.1)
    assert [each.key for each in brought(calling.transport.asked)] == ["s:one"]
    calling.owner = ""
    await send(post, charge("two"))
    await asyncio.sleep(0.1)
    assert len(calling.transport.asked) == 1
    await post.stop()


async def test_a_repeated_send_is_the_same_message_and_is_not_brought_again() -> None:
    calling = FakeCalling()
    post = persisted(calling)
    first = await send(post, charge())
    assert await send(post, charge()) == first
    assert len(calling.transport.notified) == 1
    with pytest.raises(KeyConflict):
        await send(post, charge(cents=6))
    calling.storage.messages.end(first, "done", FIVE)
    assert await call_(post, charge()) == 5, "from storage: its owner is not asked"
    assert calling.transport.asked == []
    calling.storage.messages.end(first, "dead")
    with pytest.raises(MessageDead):
        await send(post, charge())


async def test_what_is_too_large_or_too_far_is_refused_before_it_is_stored() -> None:
    calling = FakeCalling()
    ref, _ = account()
    call = require_call(ref.charge("order-7", note="x" * 70_000), what="a test")
    with pytest.raises(MalformedMessage, match=r"Account/alice\.charge: 70,\d+ bytes, more than the 65,536"):
        await send(persisted(calling), call)
    with pytest.raises(ValueError, match="a message can wait for"):
        await send(persisted(calling), charge(), delay_s=1e10)
    assert calling.storage.messages.asked["insert"] == []


async def test_a_cancellation_is_the_owners_and_only_without_one_storages() -> None:
    calling = FakeCalling()
    post = persisted(calling)
    sent = calling.storage.messages.add(message()).id
    calling.transport.answers = [encode(False)]
    assert await post.cancel(sent) is False
    calling.transport.answers = [encode(True)]
    assert await post.cancel(sent) is True
    assert [each.kind for each in brought(calling.transport.asked)] == [HandoverKind.CANCEL] * 2
    assert calling.storage.messages.asked["cancel"] == []
    calling.owner = ""
    assert await post.cancel(sent) is True
    assert await post.cancel(sent) is False, "there is none any more"
    assert calling.storage.messages.asked["cancel"] == [(sent, None)]


async def test_a_cancellation_that_storage_refuses_is_asked_for_again_at_whoever_owns_it_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody has taken the shard since this process looked, and may be running it."""
    calling = FakeCalling(owner="")
    post, sent = persisted(calling), calling.storage.messages.add(message()).id

    async def held(id: str, claim: Any, *, reply: bytes) -> bool:
        calling.owner = "there"
        return False

    monkeypatch.setattr(calling.storage.messages, "cancel", held)
    calling.transport.answers = [encode(False)]
    assert await post.cancel(sent) is False
    assert [each.kind for each in brought(calling.transport.asked)] == [HandoverKind.CANCEL]


async def test_m17_the_result_of_what_is_not_there_is_a_typed_error() -> None:
    with pytest.raises(MessageExpired):
        await persisted(FakeCalling()).result("1" * 32, within_s=5, rpc_of=lambda *_: CHARGE)


# From storage to the owner, without its caller


class Gate:
    """Storage that says when a call is stored, in whose turn nobody else's task runs."""

    def __init__(self, calling: FakeCalling) -> None:
        self._messages = calling.storage.messages
        self._posted: list[tuple[Insert, Any]] = []
        calling.storage.messages.save = self._save  # type: ignore[method-assign]

    def _save(self, write: Any, waiter: Any) -> None:
        self._posted.append((write, waiter))

    def store(self) -> None:
        write, waiter = self._posted.pop()
        self._messages.add(write.message)
        waiter.set_result(Receipt(write.message.id, True, now_at(), now_at()))


async def posted(calling: FakeCalling) -> tuple[Gate, asyncio.Task[Any]]:
    """A call that is about to be stored."""
    gate = Gate(calling)
    task = asyncio.create_task(call_(persisted(calling), charge()))
    await asyncio.sleep(0)
    return gate, task


async def test_a_call_is_brought_in_the_turn_that_learns_that_it_is_stored() -> None:
    calling = FakeCalling()
    calling.transport.answers = [FIVE]
    gate, task = await posted(calling)
    assert calling.transport.asked == []
    gate.store()
    (handover,) = brought(calling.transport.asked)
    assert (handover.kind, handover.epoch, handover.is_immediate) == (HandoverKind.NEW, 7, True)
    assert await task == 5
    assert calling.storage.messages.asked["look"] == []


async def test_a_caller_that_leaves_before_its_call_is_stored_has_it_brought_nowhere() -> None:
    """It is stored, and its owner finds it."""
    calling = FakeCalling()
    gate, task = await posted(calling)
    task.cancel()
    await asyncio.wait([task])
    gate.store()
    assert (calling.transport.asked, len(calling.storage.messages.rows)) == ([], 1)


async def test_a_caller_that_leaves_while_its_owner_is_asked_says_so_and_the_message_stays() -> None:
    calling = FakeCalling()
    gate, task = await posted(calling)
    gate.store()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert calling.transport.left == list(calling.storage.messages.rows)


@pytest.mark.parametrize("answer", [LOST, LOOK, None], ids=["lost", "look", "silent"])
async def test_an_owner_that_does_not_answer_is_asked_once_more_as_one_that_may_have_run_it(answer: Any) -> None:
    calling = FakeCalling()
    calling.transport.answers = [answer, FIVE]
    assert await call_(persisted(calling), charge()) == 5
    assert [each.kind for each in brought(calling.transport.asked)] == [HandoverKind.NEW, HandoverKind.AGAIN]
    assert calling.doubts == 1


async def test_without_a_connection_the_caller_has_one_made_and_brings_it_itself() -> None:
    calling = FakeCalling()
    calling.transport.takes = False
    calling.transport.answers = [FIVE]
    assert await call_(persisted(calling), charge()) == 5
    assert [each.kind for each in brought(calling.transport.asked)] == [HandoverKind.NEW]
    assert calling.doubts == 0


async def test_whatever_goes_wrong_on_the_way_to_the_owner_reaches_the_caller() -> None:
    calling = FakeCalling()
    gate, task = await posted(calling)
    vars(calling)["of_seat"] = None
    gate.store()
    with pytest.raises(TypeError):
        await task


async def test_a_call_whose_time_was_over_when_it_was_stored_asks_nobody_and_is_told_so() -> None:
    calling = FakeCalling()
    gate, task = await posted(calling)
    await asyncio.sleep(31)
    gate.store()
    with pytest.raises(SendTimeout):
        await task
    assert (calling.transport.asked, len(calling.storage.messages.rows)) == ([], 1)
