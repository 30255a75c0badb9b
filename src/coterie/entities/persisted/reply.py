"""Seeking: what storage knows about messages, asked for by many at once and read together.

Awaiting: waiting for the reply to a stored message: from its owner, or from storage when that is out of reach.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from coterie.entities.calls.wire import LOOK
from coterie.entities.persisted.outcome import dead, read_reply, too_late
from coterie.entities.persisted.receiver import HandoverKind, delivery_of, pack
from coterie.errors import CoterieError, MessageExpired, PersistenceError, SendTimeout, ShuttingDown
from coterie.kernel.service import Tasks
from coterie.transport.routes import Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.entities.calls.client import CallClient
    from coterie.entities.persisted.inbox import Inbox
    from coterie.entities.rpc import Rpc
    from coterie.storage.contracts.messages import Message, MessageRow
    from coterie.storage.interface import Storage


_TOGETHER = 500


class ReplyLookup:
    """Looks messages up. Those who ask while a read is under way share the next one.

    Args:
        storage: Where they are.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._tasks = Tasks("messages/seek")
        self._wanted: dict[str, asyncio.Future[MessageRow | None]] = {}
        self._reading = False
        self._is_stopped = False

    async def find(self, message_id: str) -> MessageRow | None:
        """All that is known about a message; None: there is none of this id, or none any more.

        Raises:
            PersistenceError: Storage cannot be asked.
            ShuttingDown: This process looks no more.
        """
        if self._is_stopped:
            raise _stopped()
        found = self._wanted.get(message_id)
        if found is None:
            found = self._wanted[message_id] = asyncio.get_running_loop().create_future()
        if not self._reading:
            self._reading = True
            self._tasks.spawn(self._read(), name="read")
        return await asyncio.shield(found)

    async def stop(self) -> None:
        """Look no more. Nobody goes on waiting."""
        self._is_stopped = True
        await self._tasks.stop()
        waiting, self._wanted = self._wanted, {}
        for each in waiting.values():
            _fail(each, _stopped())

    async def _read(self) -> None:
        try:
            while self._wanted:
                ids = list(self._wanted)[:_TOGETHER]
                asked = {each: self._wanted.pop(each) for each in ids}
                await self._answer(ids, asked)
        finally:
            self._reading = False

    async def _answer(self, ids: Sequence[str], asked: dict[str, asyncio.Future[MessageRow | None]]) -> None:
        try:
            rows = {row.id: row for row in await self._storage.messages.look(ids)}
        except BaseException as error:
            for each in asked.values():
                _fail(each, error if isinstance(error, Exception) else _stopped())
            if not isinstance(error, Exception):
                raise
        else:
            for message_id, each in asked.items():
                if not each.done():
                    each.set_result(rows.get(message_id))


def _fail(asked: asyncio.Future[MessageRow | None], error: Exception) -> None:
    if not asked.done():
        asked.set_exception(error)
        asked.exception()  # whoever asked may have left


def _stopped() -> ShuttingDown:
    return ShuttingDown(what="the cluster")


SLICE_S = 0.5
"""How long to wait for an owner before storage is asked: it may have frozen or be cut off, and another one may have
answered since. Most answers come sooner, and cost no look."""
_MESSAGE = int(Route.MESSAGE)
_SLICE_MOST_S = 2.0
"""How long to wait for an owner later, after the first slice."""
_PAUSE_S, _PAUSE_MOST_S = 0.02, 0.5


class ReplyWaiter:
    """Waits for replies.

    Args:
        calling: By which owners are found and reached.
        storage: Where messages are.
    """

    def __init__(self, calling: CallClient, storage: Storage) -> None:
        self._calling = calling
        self._seeking = ReplyLookup(storage)

    async def reply(
        self,
        rpc: Rpc,
        message: Message,
        *,
        due_s: float,
        until_s: float,
        within_s: float,
        answer: bytes | None = None,
        is_new: bool = False,
    ) -> Any:
        """The reply, as its caller gets it.

        Args:
            rpc: How it is read.
            message: What was stored, and may have been brought to its owner before.
            due_s: When it may run.
            until_s: When the caller stops waiting.
            within_s: How long it was ready to wait, for the error.
            answer: What its owner has answered, if it was asked: nothing, or `LOOK`.
            is_new: Whether it was stored just now, and nobody has brought it to its owner yet.

        Raises:
            SendTimeout: It took too long. The message stays.
            MessageDead: It was set aside.
            MessageCancelled: It was cancelled.
            MessageExpired: It is not there any more: purged.
        """
        time = self._calling.time
        pause_s, slice_s, kind = _PAUSE_S, SLICE_S, HandoverKind.NEW if is_new else HandoverKind.AGAIN
        while True:
            body, answer = answer, None
            if body is None:
                left_s = min(slice_s, until_s - time())
                body = await self._ask(message, kind, due_s=due_s, within_s=left_s) if left_s > 0 else LOOK
                kind = HandoverKind.AGAIN
            if body and body != LOOK:
                return read_reply(body, rpc)
            slice_s = min(slice_s * 2, _SLICE_MOST_S)
            try:
                row = await self.seek(message.id, until_s=until_s)
            except PersistenceError as error:  # of the look, not of the message, which is stored
                raise too_late(message, within_s) from error
            if row is None:
                raise MessageExpired(message_id=message.id)
            if row.status != "pending":
                return self.read(row, rpc)
            if time() >= until_s:
                raise too_late(message, within_s)
            if body:  # the owner was not found, or knows less than storage; otherwise it is still at work
                await asyncio.sleep(min(pause_s, until_s - time()))
                pause_s = min(pause_s * 2, _PAUSE_MOST_S)

    def read(self, row: MessageRow, rpc: Rpc) -> Any:
        """The reply of a message that has ended."""
        if row.status == "dead":
            raise dead(row)
        return read_reply(row.reply or b"", rpc)

    async def seek(self, message_id: str, *, until_s: float) -> MessageRow | None:
        """What storage knows; while it is away it is asked again, until the deadline."""
        pause_s = _PAUSE_S
        while True:
            try:
                return await self._seeking.find(message_id)
            except PersistenceError:
                if self._calling.time() + pause_s >= until_s:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MOST_S)

    async def request(self, message: Message, kind: HandoverKind, *, due_s: float, within_s: float) -> bytes:
        """What the runner that owns a message answers: nothing if it takes longer, `LOOK` if it is not reached."""
        calling = self._calling
        shard = calling.routing.of_seat(message.seat)
        if shard.peer is None or calling.wires is None:
            return LOOK
        body = pack(kind, message, epoch=calling.here.directory.epoch(message.seat), due_s=due_s)
        try:
            answer = await calling.wires.request(shard.peer, _MESSAGE, body, within_s=within_s, target=message.id)
        except SendTimeout:
            return b""
        except CoterieError:
            return LOOK
        return bytes(answer)

    async def stop(self) -> None:
        """Wait no more."""
        await self._seeking.stop()

    async def _ask(self, message: Message, kind: HandoverKind, *, due_s: float, within_s: float) -> bytes:
        """What the owner answers, here or elsewhere, as `request` does."""
        calling = self._calling
        if calling.routing.of_seat(message.seat).is_mine and calling.host is not None:
            if calling.host.deliveries is not None:
                return await _ask_here(calling.host.deliveries, message, kind, due_s=due_s, within_s=within_s)
            return LOOK
        answer = await self.request(message, kind, due_s=due_s, within_s=within_s)
        if not answer or answer == LOOK:
            calling.routing.doubt()
        return answer


async def _ask_here(deliveries: Inbox, message: Message, kind: HandoverKind, *, due_s: float, within_s: float) -> bytes:
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def told(body: bytes) -> None:
        if not answer.done():
            answer.set_result(body)

    again, is_due = kind is not HandoverKind.NEW, message.is_immediate
    deliveries.hand_over(delivery_of(message, due_s), epoch=0, again=again, waiter=told, is_due=is_due)
    try:
        async with asyncio.timeout(within_s):
            return await answer
    except TimeoutError:
        return b""
    finally:
        deliveries.leave(message.id, told)
