"""Volatile calls that nobody waits for: `cluster.send` returns when a runner has taken them (DUR-07)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.entities.envelopes import NOT_MINE
from coterie.entities.work import Work

if TYPE_CHECKING:
    from coterie.entities.hosting import Host
    from coterie.errors import CoterieError

TAKEN = b"\xc0"
"""The answer that says so: nothing, as msgpack has it."""


class Detached(Work, eq=False):
    """A call whose answer goes nowhere. What keeps it from being taken is told; defects are in the log."""

    trouble: Any = None  # a CoterieError, or NOT_MINE

    def reply(self, body: bytes) -> None:
        """Nobody waits."""

    def failed(self, failure: bytes) -> None:
        """Nobody waits."""

    def refuse(self, error: CoterieError) -> None:
        self.trouble = error

    def not_mine(self) -> None:
        self.trouble = NOT_MINE

    async def send(self, item: bytes) -> None:
        """Nobody reads."""

    def end(self) -> None:
        """Nobody reads."""


def take(host: Host, work: Detached) -> bytes:
    """Have a call run; `TAKEN`, or `NOT_MINE`.

    Raises:
        CoterieError: It cannot be taken: its mailbox is full, nobody knows it.
    """
    host.deliver(work)
    if work.trouble is None:
        return TAKEN
    if isinstance(work.trouble, bytes):
        return work.trouble
    raise work.trouble
