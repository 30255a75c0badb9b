"""Bringing: a call that was just stored goes to its owner in the turn that learned of it; its caller sleeps on.

stored ──▶ asked of its owner ──▶ the owner's answer, or its failure, wakes the caller
   └── it stood there already, the owner is here, or not connected ──▶ the caller is woken, and sees to the rest
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from coterie.entities.awaiting import SLICE_S
from coterie.entities.handovers import Kind, pack
from coterie.transport.routes import Route

if TYPE_CHECKING:
    from coterie.storage.contracts.messages import Message, Receipt

_MESSAGE_CODEC, _NEW = int(Route.MESSAGE), int(Kind.NEW)


class Bringing(Struct, eq=False, gc=False):
    """What waits for the insert of a call (`groups.Waiter`): no future, no task."""

    calling: Any
    counted: Any
    message: Any  # a Message
    until_s: float
    answer: Any
    """The future that its caller waits for: of the owner's answer; of None if it was not asked."""
    receipt: Any = None  # a Receipt, once it is stored
    asked: Any = None  # of the owner: an inflight.Asked

    def set_result(self, receipt: Receipt) -> None:
        """It is stored."""
        self.receipt = receipt
        self.counted.sent.value += receipt.fresh
        if self.answer.done():
            return  # its caller has left: a sweep finds it
        try:
            self.asked = self._ask(self.message, receipt) if receipt.fresh else None
        except Exception as error:  # noqa: BLE001 whatever it is belongs to the caller, who would wait for ever
            self.answer.set_exception(error)
        else:
            if self.asked is None:
                self.answer.set_result(None)

    def set_exception(self, error: BaseException) -> None:
        """It is not, or nobody knows."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def leave(self) -> None:
        """Its caller waits no longer; the message stays."""
        if self.asked is not None:
            self.asked.leave()

    def _ask(self, message: Message, receipt: Receipt) -> Any:
        calling = self.calling
        peer, wires = calling.routing.of_seat(message.seat).peer, calling.wires
        left_s = min(self.until_s - calling.time(), SLICE_S)
        if peer is None or wires is None or left_s <= 0:
            return None
        epoch, due_s = calling.here.directory.epoch(message.seat), receipt.due_at.timestamp()
        packed = pack(_NEW, message, epoch=epoch, due_s=due_s)
        return wires.ask(peer, _MESSAGE_CODEC, packed, within_s=left_s, target=message.id, answer=self.answer)
