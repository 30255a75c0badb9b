"""Sends persisted calls: stores the message, hands it to its owner, and waits for the reply.

    stored ──▶ handed over ──▶ the owner's reply, after its commit
                   │
                   └── no owner, no answer, "look" ──▶ storage: done, dead, or pending: the owner is asked again

A call is handed to a connected owner as soon as its insert commits, without waking the caller (`DirectDelivery`). If
the key was used before, or the owner is in this process or not connected, the caller is woken and does the rest.

Promise:
    Once stored, a message runs, even if its sender or its owner fails. A caller that stops waiting does not affect it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from coterie.entities.calls.spans import trace_of
from coterie.entities.calls.wire import LOOK
from coterie.entities.host.work import Work, handling
from coterie.entities.idempotency_key import derived_key, key_of
from coterie.entities.persisted.commit import effects_of, has_ended
from coterie.entities.persisted.inbox import AHEAD_S, StoredCall
from coterie.entities.persisted.outcome import (
    cancelled,
    conflict,
    dead,
    read_reply,
    refuse_commit_of_its_own,
    refuse_far_away,
    refuse_inside_transaction,
    refuse_waiting_for_itself,
    require_same,
    require_small,
)
from coterie.entities.persisted.receiver import HandoverKind, handover_of, pack, read_cancelled
from coterie.entities.persisted.reply import SLICE_S, ReplyWaiter
from coterie.errors import CoterieError, MessageExpired, NotCommitted, PersistenceError, SendTimeout
from coterie.kernel import spans
from coterie.kernel.clock import to_datetime
from coterie.kernel.context import context_here, refuse_in_transaction
from coterie.kernel.ids import MessageId, MessageIds
from coterie.kernel.service import Tasks
from coterie.kernel.text import require_text
from coterie.ownership.directory import peer_of
from coterie.storage.contracts.messages import Insert, Message, MessageRow, Receipt
from coterie.storage.interface import GROUP_MOST
from coterie.transport.interface import Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from datetime import datetime

    from coterie.entities.calls.client import CallClient
    from coterie.entities.definition import EntityType
    from coterie.entities.persisted.outcome import ReplyType
    from coterie.entities.reference import Call
    from coterie.entities.rpc import RpcMetrics
    from coterie.storage.contracts.messages import Transaction
    from coterie.storage.interface import Storage
    from coterie.transport.in_flight import PendingReply

T = TypeVar("T")


class DirectDelivery(Struct, eq=False, gc=False):
    """Receives the result of a call's insert (a `Waiter` of the group commit), without a future or a task."""

    calling: CallClient
    counted: RpcMetrics
    message: Message
    until_s: float
    answer: asyncio.Future[bytes | None]
    """The future that the caller awaits: the owner's answer, or None if the owner was not asked."""
    receipt: Receipt | None = None  # once it is stored
    asked: PendingReply | None = None  # the request to the owner

    def set_result(self, receipt: Receipt) -> None:
        """The message is stored: ask its owner."""
        self.receipt = receipt
        self.counted.sent.value += receipt.fresh
        if self.answer.done():
            return  # its caller no longer waits: a sweep finds the message
        try:
            self.asked = self._ask(self.message, receipt) if receipt.fresh else None
        except Exception as error:  # noqa: BLE001 any error goes to the caller, which would wait for ever
            self.answer.set_exception(error)
        else:
            if self.asked is None:
                self.answer.set_result(None)

    def set_exception(self, error: BaseException) -> None:
        """The insert failed, or its outcome is unknown."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def cancel(self) -> None:
        """Stop waiting for the owner; the message stays."""
        if self.asked is not None:
            self.asked.cancel()

    def _ask(self, message: Message, receipt: Receipt) -> PendingReply | None:
        calling = self.calling
        shard, transport = calling.routing.of_seat(message.seat), calling.transport
        left_s = min(self.until_s - calling.time(), SLICE_S)
        if shard.peer is None or transport is None or left_s <= 0:
            return None
        packed = pack(HandoverKind.NEW, message, epoch=shard.epoch, due_s=receipt.due_at.timestamp())
        return transport.ask(shard.peer, Route.MESSAGE, packed, within_s=left_s, target=message.id, answer=self.answer)


_PAUSE_S, _PAUSE_MOST_S = 0.02, 0.5
_INCOMING_MOST_S = 0.2
"""The longest pause between two looks at a message that SQL has sent: it is moved every 200 ms."""
_LEFT_MOST = 10_000
_BRING_S = 1.0
"""How long to try to reach the owner of a message without a waiter: by then the owner's own sweep has found it."""


class PersistedSender:
    """Sends the persisted calls of one process.

    Args:
        calling: Finds owners and connects to them.
        storage: Stores the messages.
    """

    def __init__(self, calling: CallClient, storage: Storage) -> None:
        self._calling = calling
        self._storage = storage
        self._most_bytes = calling.here.settings.frame_limit
        self._ids = MessageIds(calling.clock, calling.chance)
        self._replies = ReplyWaiter(calling, storage)
        self._tasks = Tasks("messages/bring")
        self._skipped: dict[tuple[str, str], None] = {}
        """Entities with a message that could not be handed over: the next one must not overtake it [M5]."""

    async def call(self, call: Call[Any], entity_type: EntityType[Any]) -> Any:
        """Store a call and wait for its reply."""
        outer = handling.get()
        if outer is not None:
            refuse_inside_transaction(repr(call), outer)
            refuse_waiting_for_itself(call, entity_type, outer)
        calling = self._calling
        within_s = calling.within_s(call.timeout_s)
        until_s = calling.time() + within_s
        message = self._message(call, entity_type, outer, derives=True)
        refuse_in_transaction(call)
        if isinstance(outer, StoredCall):
            outer.inbox.suspects.acquit(outer)  # it is idle while it waits, maybe for a suspect behind it [C5]
        answer = calling.create_future()
        delivery = DirectDelivery(calling, call.rpc.counted, message, until_s, answer)
        try:
            self._storage.messages.save(Insert(message), delivery)
            body = await answer
        except asyncio.CancelledError:
            delivery.cancel()
            raise
        except CoterieError as error:
            body = await self._recover(delivery, error)
        if body and body != LOOK:
            return read_reply(body, call.rpc)
        receipt = delivery.receipt
        assert receipt is not None, "it is stored"
        if not receipt.fresh:
            require_same(call, message, receipt)
            message = msgspec.structs.replace(message, id=receipt.id)
            if receipt.status == "done":
                return read_reply(receipt.reply or b"", call.rpc)
            if receipt.status == "dead":
                raise dead(await self._row(receipt.id, until_s=until_s))
        if body is not None:
            calling.routing.refresh_soon()
        due_s, ask = receipt.due_at.timestamp(), receipt.fresh and body is None
        return await self._replies.reply(
            call.rpc, message, due_s=due_s, until_s=until_s, within_s=within_s, answer=body, is_new=ask
        )

    async def send(
        self, call: Call[Any], entity_type: EntityType[Any], *, at: datetime | None = None, delay_s: float = 0.0
    ) -> MessageId[Any]:
        """Store a call. Inside a handler, it is stored with the handler's other effects when the handler succeeds."""
        outer, message = handling.get(), self.message(call, entity_type, at=at, delay_s=delay_s)
        if outer is not None and outer.has_begun and not has_ended(outer):
            collected = await self._collect(call, message, outer)
            if collected is not None:
                return collected
        until_s = self._calling.time() + self._calling.within_s(call.timeout_s)
        receipt = await self._stored(call, message, until_s=until_s)
        if receipt.fresh:
            if (receipt.due_at - receipt.now).total_seconds() <= AHEAD_S:
                self._deliver(message, receipt.due_at.timestamp())
        else:
            await self._require_usable(call, message, receipt, until_s=until_s)
        return MessageId(receipt.id)

    # In a transaction of the user

    def message(
        self, call: Call[Any], entity_type: EntityType[Any], *, at: datetime | None = None, delay_s: float = 0.0
    ) -> Message:
        """The message of a call that is sent."""
        refuse_far_away(call, at=at, delay_s=delay_s)
        return self._message(call, entity_type, handling.get(), at=at, delay_s=delay_s)

    async def add(self, transaction: Transaction, call: Call[Any], message: Message) -> MessageId[Any]:
        """Send a message with the commit of a transaction; its owner gets it then.

        Raises:
            KeyConflict: The key was used before with other arguments.
        """
        there = await self._used_before(call, message, transaction.sends)
        if there is None:
            transaction.send(message, then=lambda: self._sent_with_commit(call, message))
        return MessageId(there or message.id)

    async def judged(self, call: Call[Any], message: Message, receipt: Receipt) -> MessageId[Any]:
        """The id of a message that was stored on a connection of the user, and is not committed yet.

        Raises:
            KeyConflict: The key was used before with other arguments.
            MessageDead: The message that has the key is dead.
        """
        if receipt.fresh:
            call.rpc.counted.sent.value += 1
            if self._calling.time() > self._calling.routing.fresh_until_s:
                self._calling.routing.refresh_soon()  # by the commit it should be known whom to wake
        else:
            until_s = self._calling.time() + self._calling.within_s(call.timeout_s)
            await self._require_usable(call, message, receipt, until_s=until_s)
        return MessageId(receipt.id)

    def _sent_with_commit(self, call: Call[Any], message: Message) -> None:
        call.rpc.counted.sent.value += 1
        self.hand_over(message)

    async def ask_to_poll(self, seats: Iterable[str]) -> None:
        """Ask the owners of seats to poll storage, connecting if need be. One that is not reached polls anyway."""
        directory, seats = self._calling.here.directory, list(seats)
        if any(directory.holder(seat) is None for seat in seats):
            with contextlib.suppress(CoterieError):
                await directory.refresh()
        owners = {seat: directory.holder(seat) for seat in seats}
        once = {owner.id: seat for seat, owner in owners.items() if owner is not None}
        await asyncio.gather(*(self._ask_to_poll(seat) for seat in once.values()))

    async def _ask_to_poll(self, seat: str) -> None:
        calling, owner = self._calling, self._calling.here.directory.holder(seat)
        with contextlib.suppress(CoterieError, TimeoutError):
            if owner is not None and owner.id != calling.here.incarnation and calling.transport is not None:
                async with asyncio.timeout(_BRING_S):
                    await calling.transport.connect(peer_of(owner))
            self.hint(seat)

    async def send_many(
        self, calls: Sequence[tuple[Call[Any], EntityType[Any]]], at: datetime | None, delay_s: float
    ) -> list[MessageId[Any]]:
        """Store calls, one group after the other. Inside a handler, as `send` does.

        Raises:
            CoterieError: The first error of the group in which one failed; its `stored` has the ids that are stored.
        """
        ids: list[MessageId[Any]] = []
        if handling.get() is not None:  # one by one: they are collected in this order
            return [await self.send(call, entity_type, at=at, delay_s=delay_s) for call, entity_type in calls]
        for first in range(0, len(calls), GROUP_MOST):
            group = calls[first : first + GROUP_MOST]
            # All of them queue in one turn of the loop, so that they share a commit.
            sends = (self.send(call, entity_type, at=at, delay_s=delay_s) for call, entity_type in group)
            results = await asyncio.gather(*sends, return_exceptions=True)
            ids += [each for each in results if not isinstance(each, BaseException)]
            error = next((each for each in results if isinstance(each, BaseException)), None)
            if error is not None:
                if isinstance(error, CoterieError):
                    error.stored = tuple(ids)
                raise error
        return ids

    async def result(self, message_id: str, *, within_s: float, rpc_of: Callable[[str, str], ReplyType]) -> Any:
        """Wait for the reply to a message.

        Args:
            message_id: The id of the message.
            within_s: How long to wait.
            rpc_of: Finds the reader of the reply by the names of entity type and method.
        """
        message_id = require_text(str(message_id), what="message id")  # a plain str for databases and codecs
        outer = handling.get()
        if (
            outer is not None
            and outer.effects is not None
            and any(each.id == message_id for each in outer.effects.sends)
        ):
            raise RuntimeError(
                f"message {message_id} is stored when {outer.target} has ended: its result cannot be awaited in there"
            )
        until_s = self._calling.time() + within_s
        row = await self._replies.find(message_id, until_s=until_s)
        if row is None:
            if self._calling.here.commits.is_open(message_id):
                raise NotCommitted(message_id=message_id)
            row = await self._came_in(message_id, until_s=until_s, within_s=within_s)
        rpc = rpc_of(row.entity_type, row.method)
        if row.status != "pending":
            return self._replies.read(row, rpc)
        due_s = row.due_at.timestamp()
        return await self._replies.reply(rpc, _named(row), due_s=due_s, until_s=until_s, within_s=within_s)

    async def cancel(self, message_id: str) -> bool:
        """Cancel a message that has not started: through its owner, or in storage if it has no owner."""
        message_id = require_text(str(message_id), what="message id")
        if _unsend(message_id):
            return True
        refuse_commit_of_its_own("cluster.cancel")
        within_s = self._calling.within_s(None)
        until_s = self._calling.time() + within_s
        while True:
            row = await self._replies.find(message_id, until_s=until_s)
            if row is None:
                return await self._storage.incoming.cancel(message_id)
            if row.status != "pending":
                return False
            answer = await self._try_cancel(row)
            if answer is not None:
                return answer
            if self._calling.time() >= until_s:
                raise SendTimeout(target=f"the owner of message {message_id}", waited_s=within_s)
            await self._calling.routing.wait_for_change(within_s=_PAUSE_MOST_S)

    def message_of(self, call: Call[Any], entity_type: EntityType[Any], *, id: str, at: datetime | None) -> Message:
        """The message of a call that has an id already: SQL has sent it [O2].

        Raises:
            MalformedMessage: It is too large, or its key is none.
        """
        message = self._message(call, entity_type, None, at=at)
        return msgspec.structs.replace(message, id=id)

    def hand_over(self, message: Message) -> None:
        """Hand a message that a handler sent, and that is stored now, to its owner, without waiting for an answer."""
        now_s = self._storage_now_s()
        due_s = now_s if message.due_at is None else message.due_at.timestamp()
        if due_s - now_s <= AHEAD_S:
            self._deliver(message, due_s)

    def hint(self, seat: str) -> None:
        """Ask the owner of a seat to poll storage."""
        owner = self._calling.here.directory.holder(seat)
        if owner is None:
            return
        if owner.id == self._calling.here.incarnation and self._calling.host is not None:
            self._calling.host.wake()
        elif self._calling.transport is not None:
            message = Message(id="", seat=seat, entity_type="", entity_id="", method="", payload=b"")
            self._calling.transport.notify(
                peer_of(owner), Route.MESSAGE, pack(HandoverKind.LOOK, message, epoch=0, due_s=0.0)
            )

    async def stop(self) -> None:
        """Stop all hand-overs and waits."""
        await self._tasks.stop()
        await self._replies.stop()

    # Storing

    def _message(
        self,
        call: Call[Any],
        entity_type: EntityType[Any],
        outer: Work | None,
        *,
        derives: bool = False,
        at: datetime | None = None,
        delay_s: float = 0.0,
    ) -> Message:
        rpc, payload, type_name, entity_id = call.rpc, call.payload, entity_type.name, call.address.id
        require_small(payload, what=call, most_bytes=self._most_bytes)
        key, digest = (None, b"") if call.key is None and not rpc.key else key_of(rpc, payload, call.key)
        if derives and key is None and outer is not None and outer.is_stored and not has_ended(outer):
            number = effects_of(outer).number_call()
            key, digest = derived_key(rpc, payload, message_id=outer.message_id, number=number)
        seat = self._calling.routing.find(type_name, entity_id, entity_type.group).seat
        trace_id = None if outer is None and context_here(None) is None and not spans.on else trace_of(outer)
        return Message(
            self._ids.draw(),
            seat,
            type_name,
            entity_id,
            rpc.name,
            payload,
            key,
            digest,
            at,
            delay_s,
            trace_id,
            call.tags,
        )

    async def _stored(self, call: Call[Any], message: Message, *, until_s: float) -> Receipt:
        """Store a call's message; retry under the same id until the deadline while the database is unreachable."""
        refuse_in_transaction(call, instead="or send it with via= and what the block gave")
        try:
            receipt = await self._storage.messages.insert(message)
        except PersistenceError as error:
            receipt = await self._retry(message, error, until_s=until_s)
        call.rpc.counted.sent.value += receipt.fresh
        return receipt

    async def _recover(self, delivery: DirectDelivery, error: CoterieError) -> bytes | None:
        """Handle a call that could not be stored at first or not be handed over. Returns the owner's answer, if any."""
        if delivery.receipt is not None:
            return b"" if isinstance(error, SendTimeout) else LOOK
        if not isinstance(error, PersistenceError):
            raise error
        delivery.receipt = await self._retry(delivery.message, error, until_s=delivery.until_s)
        delivery.counted.sent.value += delivery.receipt.fresh
        return None

    async def _retry(self, message: Message, error: PersistenceError, *, until_s: float) -> Receipt:
        """Retry a failed insert until the deadline."""
        insert = self._storage.messages.insert
        return await retried(lambda: insert(message), error, until_s=until_s, time=self._calling.time)

    async def _collect(self, call: Call[Any], message: Message, outer: Work) -> MessageId[Any] | None:
        """Add a message to the handler's effects. Returns None if the handler has ended: a task it left behind sends.

        A key that was used before is looked up now: in the commit it would be a conflict [M6].
        """
        effects = effects_of(outer)
        there = await self._used_before(call, message, effects.sends)
        if there is not None:
            return MessageId(there)
        if not effects.is_open:
            return None
        if message.delay_s:
            due_at = to_datetime(int((self._storage_now_s() + message.delay_s) * 1e9))
            message = msgspec.structs.replace(message, due_at=due_at, delay_s=0.0)
        effects.sends.append(message)
        return MessageId(message.id)

    async def _used_before(self, call: Call[Any], message: Message, sends: Sequence[Message]) -> str | None:
        """The id of the message that has the same key: one of those to be sent with the same commit, or a stored one.

        Raises:
            KeyConflict: It has other arguments.
        """
        if message.key is None:
            return None
        same = next((each for each in sends if _has_same_key(each, message)), None)
        if same is not None:
            if same.digest != message.digest:
                raise conflict(call, message, same.id)
            return same.id
        found = await self._storage.messages.find(message.entity_type, message.entity_id, message.method, message.key)
        if found is None:
            return None
        require_same(call, message, found)
        return found.id

    async def _require_usable(self, call: Call[Any], message: Message, found: Receipt, *, until_s: float) -> None:
        """Refuse a key whose message has other arguments, or is dead."""
        require_same(call, message, found)
        if found.status == "dead":
            raise dead(await self._row(found.id, until_s=until_s))

    async def _row(self, message_id: str, *, until_s: float) -> MessageRow:
        row = await self._replies.find(message_id, until_s=until_s)
        if row is None:
            raise MessageExpired(message_id=message_id)
        return row

    async def _came_in(self, message_id: str, *, until_s: float, within_s: float) -> MessageRow:
        """The row of a message that SQL has sent, once it is moved; of the one that it is the same as [O2]."""
        pause_s = _PAUSE_S
        while (found := await self._storage.incoming.find(message_id)) is not None and found.same_as is None:
            if self._calling.time() + pause_s >= until_s:
                raise SendTimeout(target=f"message {message_id} of {found.type}", waited_s=within_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _INCOMING_MOST_S)
        return await self._row(message_id if found is None else found.same_as or "", until_s=until_s)

    # Handing over

    def _deliver(self, message: Message, due_s: float) -> None:
        calling = self._calling
        shard = calling.routing.of_seat(message.seat)
        if (shard.peer is None and not shard.is_mine) or calling.time() > calling.routing.fresh_until_s:
            calling.routing.refresh_soon()  # who only sends gets no replies that show stale routing
        address = (message.entity_type, message.entity_id)
        kind = HandoverKind.AGAIN if address in self._skipped else HandoverKind.NEW
        self._skipped.pop(address, None)
        if shard.peer is not None and calling.transport is not None:
            body = pack(kind, message, epoch=shard.epoch, due_s=due_s)
            if not calling.transport.notify(shard.peer, Route.MESSAGE, body):  # no connection yet: open one
                self._skip(address)
                request = self._replies.request(message, HandoverKind.AGAIN, due_s=due_s, within_s=_BRING_S)
                self._tasks.spawn(request, name=f"bring {message.id}")
        elif shard.is_mine and calling.host is not None and calling.host.inbox is not None:
            calling.host.inbox.hand_over(handover_of(kind, message, due_s=due_s))
        else:
            self._skip(address)

    def _skip(self, address: tuple[str, str]) -> None:
        """Leave a message for a sweep. Beyond the limit the oldest address is forgotten: it may be overtaken."""
        self._skipped[address] = None
        if len(self._skipped) > _LEFT_MOST:
            del self._skipped[next(iter(self._skipped))]

    async def _try_cancel(self, row: MessageRow) -> bool | None:
        """Try to cancel a message. Returns None if its owner was not reached, or has just changed."""
        calling = self._calling
        shard = calling.routing.of_seat(row.seat)
        if shard.is_mine and calling.host is not None:
            return await calling.host.cancel_stored(row.id, row.seat)
        if shard.peer is None:
            return (
                await self._storage.messages.cancel(row.id, None, reply=cancelled(row.id)) or None
            )  # a runner may have become its owner meanwhile
        answer = await self._replies.request(_named(row), HandoverKind.CANCEL, due_s=0.0, within_s=1.0)
        return read_cancelled(answer)

    def _storage_now_s(self) -> float:
        """The best estimate here of the database's clock."""
        host = self._calling.host
        if host is not None and host.inbox is not None:
            return host.inbox.now_s()
        return self._calling.clock.wall_ns() / 1e9


async def retried(
    insert: Callable[[], Awaitable[T]], error: PersistenceError, *, until_s: float, time: Callable[[], float]
) -> T:
    """Retry a failed insert until the deadline."""
    pause_s, doubt = _PAUSE_S, None
    while True:
        doubt = error if error.outcome == "unknown" else doubt
        if error.outcome == "refused" or time() + pause_s >= until_s:
            raise doubt or error from None  # an earlier try may have committed, even if this one failed
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _PAUSE_MOST_S)
        try:
            return await insert()
        except PersistenceError as problem:
            error = problem


def _unsend(message_id: str) -> bool:
    """Remove a message that the running handler sent and that is not stored yet. Returns whether there was one."""
    outer = handling.get()
    if outer is None or outer.effects is None or not outer.effects.is_open:
        return False
    mine = next((each for each in outer.effects.sends if each.id == message_id), None)
    if mine is not None:
        outer.effects.sends.remove(mine)
    return mine is not None


def _has_same_key(one: Message, other: Message) -> bool:
    return (one.entity_type, one.entity_id, one.method, one.key) == (
        other.entity_type,
        other.entity_id,
        other.method,
        other.key,
    )


def _named(row: MessageRow) -> Message:
    """A message without its payload, used to ask for its reply or to cancel it."""
    return Message(
        id=row.id,
        seat=row.seat,
        entity_type=row.entity_type,
        entity_id=row.entity_id,
        method=row.method,
        payload=b"",
    )
