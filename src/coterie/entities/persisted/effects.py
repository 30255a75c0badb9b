"""Ledger: what a handler leaves behind besides its reply, collected while it runs, committed with it (B3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.storage.contracts.messages import Message, Transaction


class HandlerEffects:
    """Of one call of one handler.

    Most volatile calls have none, most stored messages only `BARE`: it is made at its first use (`ledger_of`).
    """

    __slots__ = ("calls", "forgets", "in_block", "is_open", "sends", "transaction")

    def __init__(self) -> None:
        self.sends: list[Message] = []
        """Messages that the handler sent: stored when it has ended well, then handed over."""
        self.transaction: Transaction | None = None
        """SQL of the handler's own, begun and not undone."""
        self.in_block = False
        """Whether the handler is inside of `async with self.transaction()`."""
        self.forgets = False
        """Whether the entity's state is to be deleted."""
        self.calls = 0
        """Persisted calls that the handler awaited: by their numbers a retry finds them again [M6]."""
        self.is_open = True
        """Whether the handler still runs: what it left running may not add anything any more."""

    def number_call(self) -> int:
        """The number of the next persisted call that the handler awaits, from 1."""
        self.calls += 1
        return self.calls


BARE = HandlerEffects()
"""Of a stored message, until its handler leaves something behind: it has an end to commit in any case."""


def has_ended(work: Any) -> bool:
    """Whether the handler of a work that has begun runs no more: what asks now is something that it left running."""
    if work.ledger is None:  # a volatile call: it is closed when it has ended, or when nobody waits and it is stopped
        return not work.is_open and not work.is_stopped
    return not work.ledger.is_open


ENDED = HandlerEffects()
"""Of a call that has ended and left nothing behind but its end and its state: closed while these are committed."""
ENDED.is_open = False


def ledger_of(work: Any) -> HandlerEffects:
    """The ledger of a work whose handler runs, made at its first use."""
    if work.ledger is None or work.ledger is BARE:
        work.ledger = HandlerEffects()
    ledger: HandlerEffects = work.ledger
    return ledger
