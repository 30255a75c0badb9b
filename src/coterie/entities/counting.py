"""What is counted of one rpc: found once, when the program is loaded, so that a call only adds to it."""

from __future__ import annotations

from coterie.kernel import metrics
from coterie.kernel.metrics import SECONDS, Series


class Counted:
    """The numbers of one rpc: how its calls ended, and how long its handler took; of its messages the usual ones.

    Args:
        entity_type: The name of its entity type.
        rpc: Its own.
        persisted: Whether its calls are messages.
    """

    __slots__ = ("declared", "done", "done_declared", "failed", "ok", "sent", "took")

    def __init__(self, entity_type: str, rpc: str, *, persisted: bool) -> None:
        self.ok = metrics.CALLS.of(entity_type, rpc, "ok")
        self.declared = metrics.CALLS.of(entity_type, rpc, "declared")
        self.failed = metrics.CALLS.of(entity_type, rpc, "failed")
        self.took = metrics.CALL_DURATION.spread(entity_type, rpc)
        self.sent = metrics.MESSAGES_SENT.of(entity_type, rpc) if persisted else Series()
        self.done = metrics.MESSAGES.of(entity_type, rpc, "ok") if persisted else Series()
        self.done_declared = metrics.MESSAGES.of(entity_type, rpc, "declared") if persisted else Series()
        assert self.took.bounds is SECONDS, "the hot path counts by them"

    @property
    def successes(self) -> float:
        """Calls and messages that have ended by a result, or by an error that the rpc declares."""
        return self.ok.value + self.declared.value + self.done.value + self.done_declared.value
