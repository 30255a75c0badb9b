"""The effects of a handler besides its reply: collected while it runs, committed with its reply (B3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.storage.contracts.messages import Message, Transaction


class HandlerEffects:
    """The effects of one call of one handler.

    Created at first use (`ledger_of`): most volatile calls have none, most persisted messages only `BARE`.
    """

    __slots__ = ("calls", "forgets", "in_block", "is_open", "sends", "transaction")

    def __init__(self) -> None:
        self.sends: list[Message] = []
        """Messages that the handler sent: stored when it succeeds, then handed over."""
        self.transaction: Transaction | None = None
        """The handler's own SQL, begun and not rolled back."""
        self.in_block = False
        """Whether the handler is inside `async with self.transaction()`."""
        self.forgets = False
        """Whether the entity's state is to be deleted."""
        self.calls = 0
        """The number of persisted calls that the handler awaited: a retry finds them again by their numbers [M6]."""
        self.is_open = True
        """Whether the handler is still running: tasks that it left behind can no longer add effects."""

    def number_call(self) -> int:
        """The number of the next persisted call that the handler awaits, from 1."""
        self.calls += 1
        return self.calls


BARE = HandlerEffects()
"""Stands for a persisted message without effects yet: its end is committed in any case."""


def has_ended(work: Any) -> bool:
    """Whether the handler of a started work has ended, so that the caller of this is a task that it left behind."""
    if work.ledger is None:  # volatile: closed when it has ended, or when its caller is gone and it is stopped
        return not work.is_open and not work.is_stopped
    return not work.ledger.is_open


ENDED = HandlerEffects()
"""Stands for an ended call whose only effects are its reply and its state: closed while these are committed."""
ENDED.is_open = False


def ledger_of(work: Any) -> HandlerEffects:
    """The effects of a running work, created at first use."""
    if work.ledger is None or work.ledger is BARE:
        work.ledger = HandlerEffects()
    ledger: HandlerEffects = work.ledger
    return ledger
