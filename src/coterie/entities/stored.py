"""StoredWork: a message from the database on its way through this runner; Shelf: what it knows of a shard's."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

from coterie.entities.work import Work

if TYPE_CHECKING:
    from coterie.entities.handovers import Handover
    from coterie.errors import CoterieError
    from coterie.ownership.seats import Tenure
    from coterie.storage.contracts.messages import Delivery, Mark

_EARLY_MOST = 1_000
"""Hand-overs that wait for a shard's first read; those beyond it are found by a sweep."""


class StoredWork(Work, eq=False):
    """A stored message. It has no deadline: whoever waits for it may leave, and it runs all the same."""

    deliveries: Any = None  # the Deliveries that it belongs to
    shelf: Any = None  # the Shelf of its shard
    due_s: float = 0.0  # until when it waits in memory, by the database's clock
    is_stored: ClassVar[bool] = True

    def reply(self, body: bytes) -> None:
        self.deliveries.completed(self, body)

    def failed(self, failure: bytes) -> None:
        raise AssertionError(f"{self.target} is stored: its failures are committed, not answered: {failure!r}")

    def refuse(self, error: CoterieError) -> None:
        self.deliveries.refused(self, error)

    def not_mine(self) -> None:
        self.deliveries.dropped(self)

    def set_back(self, error: BaseException) -> None:
        """This attempt has failed."""
        self.deliveries.failed(self, error)


class Shelf:
    """The stored messages of one shard, as far as this runner knows them.

    Args:
        tenure: By which right it runs them.
    """

    __slots__ = ("blocked", "early", "is_read", "is_suspected", "later", "left", "mark", "rounds", "tenure", "works")

    def __init__(self, tenure: Tenure) -> None:
        self.tenure = tenure
        self.works: dict[str, StoredWork] = {}
        """Those in memory, by message id."""
        self.is_read = False
        """Whether a sweep has seen all that was pending when the seat was taken: hand-overs queue behind [M5]."""
        self.is_suspected = tenure.clean
        """Whether what the holder before may have died of was counted [C5]."""
        self.early: deque[tuple[Delivery | Handover, bool]] = deque()
        """Hand-overs that wait for the first read, with whether they were due when they were stored."""
        self.mark: Mark | None = None
        """How far the present round of sweeps has come."""
        self.rounds = 0
        """How many rounds have seen all that was pending."""
        self.left: set[tuple[str, str]] = set()
        """Entities of which a message was left in storage: later ones are left too, until a round caught up [M5]."""
        self.blocked: set[tuple[str, str]] = set()
        """The same, found in the present round, of which the sweep takes nothing more."""
        self.later: set[tuple[str, str]] = set()
        """The same, of hand-overs since the present round began, which it may have missed."""

    def wait(self, delivery: Delivery | Handover, *, is_due: bool) -> None:
        """Let a hand-over wait for the first read. There is room for some; the others are found by a sweep."""
        if len(self.early) < _EARLY_MOST:
            self.early.append((delivery, is_due))
        else:  # those behind it must not overtake it [M5]
            self.later.add((delivery.entity_type, delivery.entity_id))

    def leaves(self, address: tuple[str, str]) -> bool:
        """Whether messages of an entity stay in storage for now."""
        return address in self.left or address in self.blocked

    def begin_round(self) -> None:
        """A round is about to ask: what was left until now it will see, and can take in order."""
        self.left |= self.blocked
        self.blocked, self.later = set(), set()

    def caught_up(self) -> None:
        """A round has seen all that was pending."""
        self.mark = None
        self.rounds += 1
        self.left, self.blocked, self.later = self.blocked | self.later, set(), set()
