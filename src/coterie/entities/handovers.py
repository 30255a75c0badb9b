"""Handovers: stored messages that senders bring to this runner directly, so that nobody has to look for them."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from coterie.entities.envelopes import LOOK, MALFORMED, Name, encode
from coterie.errors import CoterieError, MalformedMessage
from coterie.kernel.tasks import Tasks
from coterie.storage.messages import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coterie.entities.hosting import Host
    from coterie.storage.messages import Message
    from coterie.transport.interface import Request


class Kind(IntEnum):
    """What a sender wants. A number is never used again for something else."""

    NEW = 0
    """The message was just stored: run it."""
    AGAIN = 1
    """It was stored a while ago and may have run: tell its reply, or look in storage."""
    CANCEL = 2
    """Take it back if it has not begun."""
    LOOK = 3
    """Something has changed in storage: look there."""


class Handover(Struct, array_like=True, gc=False):
    """A stored message on its way to its owner. Fields are only ever added at the end, with a default."""

    kind: Annotated[int, Meta(ge=0)]
    seat: Name
    epoch: int
    """At which the sender believes the seat to be held by the receiver; 0: it does not know."""
    id: str = ""
    entity_type: str = ""
    entity_id: str = ""
    method: str = ""
    payload: bytes = b""
    due_s: float = 0.0
    key: str | None = None
    trace_id: str | None = None
    is_immediate: bool = False
    """Whether it was due when it was stored: then the database's clock is past `due_s`, whatever is believed here."""


_decode = msgspec.msgpack.Decoder(Handover).decode
_YES, _NO = encode(True), encode(False)


def pack(kind: Kind, message: Message, *, epoch: int, due_s: float) -> bytes:
    """A message for its owner."""
    return encode(
        Handover(
            int(kind),
            message.seat,
            epoch,
            message.id,
            message.entity_type,
            message.entity_id,
            message.method,
            message.payload,
            due_s,
            message.key,
            message.trace_id,
            message.is_immediate,
        )
    )


def delivery_of(message: Message | Handover, due_s: float) -> Delivery:
    """A message as its owner takes it."""
    return Delivery(
        id=message.id,
        seat=message.seat,
        entity_type=message.entity_type,
        entity_id=message.entity_id,
        method=message.method,
        payload=message.payload,
        key=message.key,
        due_at=datetime.fromtimestamp(due_s, UTC),
        attempts=0,
        trace_id=message.trace_id,
    )


class Handovers:
    """Answers what arrives on the route of messages.

    Args:
        host: Who runs them.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._waiting: dict[Request, tuple[str, Callable[[bytes], None]]] = {}
        self._tasks = Tasks("handovers")

    def on_request(self, request: Request) -> None:
        """A sender that waits for the reply."""
        handover = self._opened(request.body)
        if handover is None:
            request.fail(*MalformedMessage(what="a message", problem="its envelope cannot be read").to_wire())
        elif handover.kind == Kind.CANCEL:
            self._tasks.spawn(self._cancel(request, handover), name=f"cancel {handover.id}")
        elif self._host.deliveries is None:
            request.reply(LOOK)
        else:
            self._take(request, handover)

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None:
        """A sender that does not wait."""
        del peer, route, headers
        handover, deliveries = self._opened(body), self._host.deliveries
        if handover is None or deliveries is None:
            return
        if handover.kind == Kind.LOOK:
            self._host.wake()
        else:
            deliveries.hand_over(
                delivery_of(handover, handover.due_s),
                epoch=handover.epoch,
                again=handover.kind != Kind.NEW,
                waiter=None,
                is_due=handover.is_immediate,
            )

    def on_cancel(self, request: Request) -> None:
        """Whoever waited has left; the message stays."""
        found = self._waiting.pop(request, None)
        if found is not None and self._host.deliveries is not None:
            self._host.deliveries.leave(*found)

    async def stop(self) -> None:
        """Answer nothing more."""
        await self._tasks.stop()

    def _take(self, request: Request, handover: Handover) -> None:
        def told(body: bytes) -> None:
            self._waiting.pop(request, None)
            request.reply(body)

        self._waiting[request] = (handover.id, told)
        assert self._host.deliveries is not None, "asked before"
        self._host.deliveries.hand_over(
            delivery_of(handover, handover.due_s),
            epoch=handover.epoch,
            again=handover.kind != Kind.NEW,
            waiter=told,
            is_due=handover.is_immediate,
        )

    async def _cancel(self, request: Request, handover: Handover) -> None:
        try:
            taken_back = await self._host.cancel_stored(handover.id, handover.seat)
        except CoterieError as error:
            request.fail(*error.to_wire())
        else:
            request.reply(LOOK if taken_back is None else _YES if taken_back else _NO)

    def _opened(self, body: bytes) -> Handover | None:
        try:
            return _decode(body)
        except MALFORMED:
            return None


def read_cancelled(body: bytes) -> bool | None:
    """What an owner said to a cancellation; None: it is none."""
    return {_YES: True, _NO: False}.get(body)
