"""Waits for the reply to a persisted call: asks the owner, and reads storage if the owner cannot be reached.

Lookups that are requested while a read is in progress share the next read (`RowLookup`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from coterie.entities.calls.wire import LOOK
from coterie.entities.persisted.outcome import dead, read_reply, too_late
from coterie.entities.persisted.receiver import HandoverKind, handover_of, pack
from coterie.errors import (
    CoterieError,
    MessageExpired,
    PersistenceError,
    SendTimeout,
    ShuttingDown,
    UnreadablePayload,
)
from coterie.kernel.service import Tasks
from coterie.transport.interface import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from coterie.entities.calls.client import CallClient
    from coterie.entities.persisted.inbox import Inbox
    from coterie.entities.persisted.outcome import ReplyType
    from coterie.storage.contracts.messages import Message, MessageRow
    from coterie.storage.interface import Storage


_TOGETHER = 500


class StoredRow(Protocol):
    """A row that is found by its id."""

    @property
    def id(self) -> str: ...


RowT = TypeVar("RowT", bound=StoredRow)


class RowLookup(Generic[RowT]):
    """Looks messages or jobs up. Requests that arrive while a read is in progress share the next one.

    Args:
        look: Reads those that have these ids.
    """

    def __init__(self, look: Callable[[Sequence[str]], Coroutine[Any, Any, Sequence[RowT]]]) -> None:
        self._look = look
        self._tasks = Tasks("messages/seek")
        self._wanted: dict[str, asyncio.Future[RowT | None]] = {}
        self._reading = False
        self._is_stopped = False

    async def find(self, message_id: str) -> RowT | None:
        """Look a row up. Returns None if none has this id, or none any more.

        Raises:
            PersistenceError: Storage cannot be read.
            ShuttingDown: This lookup has been stopped.
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

    async def find_within(self, message_id: str, *, until_s: float) -> RowT | None:
        """Look a row up; retry until this time of the loop's clock while storage is unreachable."""
        time, pause_s = asyncio.get_running_loop().time, _PAUSE_S
        while True:
            try:
                return await self.find(message_id)
            except UnreadablePayload:
                raise
            except PersistenceError:
                if time() + pause_s >= until_s:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MOST_S)

    async def stop(self) -> None:
        """Stop reading. Pending lookups fail with `ShuttingDown`."""
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

    async def _answer(self, ids: Sequence[str], asked: dict[str, asyncio.Future[RowT | None]]) -> None:
        try:
            rows = {row.id: row for row in await self._look(ids)}
        except UnreadablePayload as error:
            if len(ids) == 1:
                return _fail(asked[ids[0]], error)
            for message_id in ids:  # the others can be read
                await self._answer([message_id], {message_id: asked[message_id]})
        except BaseException as error:
            for each in asked.values():
                _fail(each, error if isinstance(error, Exception) else _stopped())
            if not isinstance(error, Exception):
                raise
        else:
            for message_id, each in asked.items():
                if not each.done():
                    each.set_result(rows.get(message_id))


def _fail(asked: asyncio.Future[Any], error: Exception) -> None:
    if not asked.done():
        asked.set_exception(error)
        asked.exception()  # mark it as retrieved: the caller may be gone


def _stopped() -> ShuttingDown:
    return ShuttingDown(what="the cluster")


SLICE_S = 0.5
"""How long to wait for an owner before storage is read: the owner may be frozen or cut off, and another runner may have
replied since. Most replies come sooner and cost no read."""
_SLICE_MOST_S = 2.0
"""The limit of later waits for an owner; each is twice as long as the one before."""
_PAUSE_S, _PAUSE_MOST_S = 0.02, 0.5


class ReplyWaiter:
    """Waits for replies.

    Args:
        calling: Finds owners and connects to them.
        storage: Stores the messages.
    """

    def __init__(self, calling: CallClient, storage: Storage) -> None:
        self._calling = calling
        self._lookup: RowLookup[MessageRow] = RowLookup(lambda ids: storage.messages.look(ids))

    async def reply(
        self,
        rpc: ReplyType,
        message: Message,
        *,
        due_s: float,
        until_s: float,
        within_s: float,
        answer: bytes | None = None,
        is_new: bool = False,
    ) -> Any:
        """Wait for the reply, and return it as the caller gets it.

        Args:
            rpc: Decodes the reply.
            message: The stored message, which may have been handed to its owner before.
            due_s: When it may run.
            until_s: When the caller stops waiting.
            within_s: The caller's timeout, for the error.
            answer: The owner's answer, if it was asked: empty, or `LOOK`.
            is_new: Whether it was stored just now and not yet handed to its owner.

        Raises:
            SendTimeout: The deadline passed. The message stays.
            MessageDead: The message is dead.
            MessageCancelled: It was cancelled.
            MessageExpired: It no longer exists: it was purged.
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
                row = await self.find(message.id, until_s=until_s)
            except UnreadablePayload:
                raise
            except PersistenceError as error:  # the read failed; the message itself is stored
                raise too_late(message, within_s) from error
            if row is None:
                raise MessageExpired(message_id=message.id)
            if row.status != "pending":
                return self.read(row, rpc)
            if time() >= until_s:
                raise too_late(message, within_s)
            if body:  # the owner was not found, or storage knows more; otherwise the owner is still running it
                await asyncio.sleep(min(pause_s, until_s - time()))
                pause_s = min(pause_s * 2, _PAUSE_MOST_S)

    def read(self, row: MessageRow, rpc: ReplyType) -> Any:
        """The reply of a message that has ended."""
        if row.status == "dead":
            raise dead(row)
        return read_reply(row.reply or b"", rpc)

    async def find(self, message_id: str, *, until_s: float) -> MessageRow | None:
        """Look a message up; retry until the deadline while storage is unreachable."""
        return await self._lookup.find_within(message_id, until_s=until_s)

    async def request(self, message: Message, kind: int, *, due_s: float, within_s: float) -> bytes:
        """Ask the owner of a message. Returns its answer, empty if it takes longer, `LOOK` if it is not reached."""
        calling = self._calling
        shard = calling.routing.of_seat(message.seat)
        if shard.peer is None or calling.transport is None:
            return LOOK
        body = pack(kind, message, epoch=shard.epoch, due_s=due_s)
        try:
            answer = await calling.transport.request(
                shard.peer, Route.MESSAGE, body, within_s=within_s, target=message.id
            )
        except SendTimeout:
            return b""
        except CoterieError:
            return LOOK
        return bytes(answer)

    async def stop(self) -> None:
        """Stop waiting."""
        await self._lookup.stop()

    async def _ask(self, message: Message, kind: int, *, due_s: float, within_s: float) -> bytes:
        """Ask the owner, in this process or another. Returns the same as `request`."""
        calling = self._calling
        if calling.routing.of_seat(message.seat).is_mine and calling.host is not None:
            if calling.host.inbox is not None:
                return await _ask_here(calling.host.inbox, message, kind, due_s=due_s, within_s=within_s)
            return LOOK
        answer = await self.request(message, kind, due_s=due_s, within_s=within_s)
        if not answer or answer == LOOK:
            calling.routing.refresh_soon()
        return answer


async def _ask_here(inbox: Inbox, message: Message, kind: int, *, due_s: float, within_s: float) -> bytes:
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def receive(body: bytes) -> None:
        if not answer.done():
            answer.set_result(body)

    inbox.hand_over(handover_of(kind, message, due_s=due_s), waiter=receive)
    try:
        async with asyncio.timeout(within_s):
            return await answer
    except TimeoutError:
        return b""
    finally:
        inbox.remove_waiter(message.id, receive)
