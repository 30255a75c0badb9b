"""Receives persisted messages that senders hand over directly, so that the owner need not poll for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import msgspec
from msgspec import Meta, Struct

from coterie.entities.calls.wire import LOOK, MALFORMED, Name, encode
from coterie.errors import CoterieError, MalformedMessage
from coterie.kernel.service import Tasks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coterie.entities.host.host import Host
    from coterie.storage.contracts.messages import Message
    from coterie.transport.interface import Request


class HandoverKind:
    """What the sender requests. A number is never reused for another kind."""

    NEW: Final = 0
    """The message was just stored: run it."""
    AGAIN: Final = 1
    """It was stored a while ago and may have run: reply, or poll storage."""
    CANCEL: Final = 2
    """Cancel it if it has not started."""
    LOOK: Final = 3
    """Something has changed in storage: poll."""


class Handover(Struct, array_like=True, gc=False):
    """A persisted message on its way to its owner. Fields are only ever added at the end, with a default.

    The owner handles it like a `Delivery`.
    """

    kind: Annotated[int, Meta(ge=0)]
    seat: Name
    epoch: int
    """The epoch at which the sender believes the receiver to hold the seat; 0 if it does not know."""
    id: str = ""
    entity_type: str = ""
    entity_id: str = ""
    method: str = ""
    payload: bytes = b""
    due_s: float = 0.0
    key: str | None = None
    trace_id: str | None = None
    is_immediate: bool = False
    """Whether it was due when it was stored: then the database's clock is past `due_s`, whatever is estimated here."""
    attempts: ClassVar[int] = 0
    """Failed attempts: none, as far as its sender knows."""
    suspicion: ClassVar[int] = 0
    losses: ClassVar[int] = 0


_decode = msgspec.msgpack.Decoder(Handover).decode
_YES, _NO = encode(True), encode(False)


def handover_of(kind: int, message: Message, *, due_s: float, epoch: int = 0) -> Handover:
    """A message on its way to its owner, in this process or, packed, in another."""
    return Handover(
        kind,
        message.seat,
        epoch,
        id=message.id,
        entity_type=message.entity_type,
        entity_id=message.entity_id,
        method=message.method,
        payload=message.payload,
        due_s=due_s,
        key=message.key,
        trace_id=message.trace_id,
        is_immediate=message.is_immediate,
    )


def pack(kind: int, message: Message, *, epoch: int, due_s: float) -> bytes:
    """Encode a message for its owner in another process."""
    return encode(handover_of(kind, message, epoch=epoch, due_s=due_s))


class Receiver:
    """Handles requests and notifications on the message route.

    Args:
        host: Runs the messages.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._tasks = Tasks("handovers")

    def on_request(self, request: Request) -> None:
        """Handle a request: the sender waits for the reply."""
        inbox = self._host.inbox
        try:
            handover = _decode(request.body)
        except MALFORMED:
            request.fail(*MalformedMessage(what="a message", problem="its envelope cannot be read").to_wire())
            return
        if handover.kind == HandoverKind.CANCEL:
            self._tasks.spawn(self._cancel(request, handover), name=f"cancel {handover.id}")
        elif inbox is None:
            request.reply(LOOK)
        else:
            inbox.hand_over(handover, waiter=request.reply, arrived_s=request.arrived_s)

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Handle a notification: the sender does not wait."""
        del peer, route, headers
        handover, inbox = _opened(body), self._host.inbox
        if handover is None or inbox is None:
            return
        if handover.kind == HandoverKind.LOOK:
            self._host.wake()
        else:
            inbox.hand_over(handover)

    def on_cancel(self, request: Request) -> None:
        """The sender no longer waits; the message stays."""
        handover, inbox = _opened(request.body), self._host.inbox
        if handover is not None and inbox is not None:
            inbox.remove_waiter(handover.id, request.reply)

    async def stop(self) -> None:
        """Stop the cancellations in progress."""
        await self._tasks.stop()

    async def _cancel(self, request: Request, handover: Handover) -> None:
        try:
            taken_back = await self._host.cancel_stored(handover.id, handover.seat)
        except CoterieError as error:
            request.fail(*error.to_wire())
        else:
            request.reply(LOOK if taken_back is None else _YES if taken_back else _NO)


def _opened(body: bytes) -> Handover | None:
    try:
        return _decode(body)
    except MALFORMED:
        return None


def read_cancelled(body: bytes) -> bool | None:
    """Decode an owner's answer to a cancellation. Returns None if it is not one."""
    return {_YES: True, _NO: False}.get(body)
