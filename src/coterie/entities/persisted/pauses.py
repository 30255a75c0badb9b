"""What a runner knows of paused entity types and groups, whose messages it does not begin.

Messages begin in memory, without a statement that could prove anything. So what a runner knows of pauses is good for a
limited time, counted from before it was read, and without it no message begins. Whoever pauses waits for a little more
than that time: by then each runner either knows of the pause, or begins nothing until it does. That needs neither a
list of the runners nor an answer of each, and holds for those that are frozen, cut off, or only starting.

The sweep of the poller reads it, in the statement that reads what is due, about once a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.kernel.ids import Seat

if TYPE_CHECKING:
    from collections.abc import Collection

_GOOD_FOR_NS = 1_800_000_000
"""How long what was read is good for. Sweeps come each second; where the database is slower, messages wait for it."""
HELD_WITHIN_S = 1.9
"""After this time no runner begins messages of what was paused: more, since clocks of machines differ in speed."""


class KnownPauses:
    """The pauses that the poller of one runner has read."""

    __slots__ = ("_groups", "_types", "until_ns")

    def __init__(self) -> None:
        self.until_ns = 0
        """Until when it is good, on the steady clock."""
        self._types: frozenset[str] = frozenset()
        self._groups: frozenset[str] = frozenset()

    def learn(self, types: Collection[str], groups: Collection[str], *, asked_ns: int) -> None:
        """They were read by a statement that was sent at that time of the steady clock."""
        self._types, self._groups = frozenset(types), frozenset(groups)
        self.until_ns = asked_ns + _GOOD_FOR_NS

    def __contains__(self, place: tuple[str, str]) -> bool:
        """Whether messages of an entity type wait, on this shard."""
        if not (self._types or self._groups):
            return False
        entity_type, seat = place
        return entity_type in self._types or group_of(seat) in self._groups


def group_of(seat: str) -> str:
    """The group of a shard."""
    return Seat.split(seat)[1].rpartition(":")[0]
