"""History checkers for messages: nothing is lost, nothing is applied twice, and all see one reply."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coterie.testing.checkers import Violation
from coterie.testing.message_events import Began, Cancelled, Completed, Counted, Died, Left, Replied, Revived, Sent

if TYPE_CHECKING:
    from coterie.testing.checkers import Event


@dataclass
class EverySendEnds:
    """INV-D1, D6: what was acknowledged has ended (or is pending, if so allowed); what was said to have failed is not.

    A try that failed says nothing if another try of the same message did not.
    """

    pending_allowed: bool = False
    _told: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _left: dict[str, Left] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Remember what was told, and what is there."""
        if isinstance(event, Sent):
            self._told[event.message].add(event.outcome)
        elif isinstance(event, Left):
            self._left[event.message] = event

    def finish(self) -> None:
        """Compare them."""
        for message, outcomes in self._told.items():
            left = self._left.get(message)
            if "ok" in outcomes and left is None:
                raise Violation("INV-D1", f"{message} was acknowledged and is not there")
            if outcomes == {"failed"} and left is not None:
                raise Violation("INV-D6", f"{message} was said to have failed and is {left.status}")
        for left in self._left.values():
            if left.status == "pending" and not self.pending_allowed:
                raise Violation("INV-D1", f"{left.message} is still pending")


@dataclass
class OneReply:
    """INV-D2: a message is done once, stays so, and everybody sees the reply that was stored then."""

    _stored: dict[str, Completed] = field(default_factory=dict)
    _ended: dict[str, str] = field(default_factory=dict)
    _seen: list[Replied] = field(default_factory=list)

    def see(self, event: Event) -> None:
        """Refuse a second end."""
        if isinstance(event, Completed):
            self._end(event.message, "done")
            self._stored[event.message] = event
        elif isinstance(event, Died):
            self._end(event.message, "dead")
        elif isinstance(event, Cancelled):
            self._end(event.message, "cancelled")
        elif isinstance(event, Revived):
            self._revive(event.message)
        elif isinstance(event, Replied):
            self._seen.append(event)
        elif isinstance(event, Left):
            self._compare(event)

    def finish(self) -> None:
        """Compare what callers saw with what was stored, perhaps after they saw it."""
        for seen in self._seen:
            stored = self._stored.get(seen.message)
            if stored is None:
                raise Violation("INV-D2", f"{seen.message}: a caller was told {seen.reply!r}, and nothing was stored")
            if stored.reply != seen.reply:
                raise Violation("INV-D2", f"{seen.message}: a caller was told {seen.reply!r}, not {stored.reply!r}")

    def _end(self, message: str, how: str) -> None:
        if message in self._ended:
            raise Violation("INV-D2", f"{message} is {how} after it was {self._ended[message]}")
        self._ended[message] = how

    def _revive(self, message: str) -> None:
        if self._ended.pop(message, "") != "dead":
            raise Violation("INV-D2", f"{message} was revived and was not dead")

    def _compare(self, left: Left) -> None:
        ended = self._ended.get(left.message, "pending")
        if left.status != ended:
            raise Violation("INV-D2", f"{left.message} is {left.status} at the end and was {ended}")
        if left.status == "done" and left.reply != self._stored[left.message].reply:
            raise Violation("INV-D2", f"{left.message}: the reply changed after it was stored")


@dataclass
class OneMessagePerKey:
    """INV-D3, D6: all who send to an entity with one key are told the same message, and one at most is done.

    The key of a message that was cancelled is free again.
    """

    _told: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    _keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    _done: list[str] = field(default_factory=list)
    _cancelled: set[str] = field(default_factory=set)

    def see(self, event: Event) -> None:
        """Remember: what is done, or cancelled, may be so before its sender is told."""
        if isinstance(event, Sent) and event.key:
            self._keys[event.message] = (event.entity, event.key)
            if event.outcome == "ok":
                self._told[event.entity, event.key].add(event.message)
        elif isinstance(event, Cancelled):
            self._cancelled.add(event.message)
        elif isinstance(event, Completed):
            self._done.append(event.message)

    def finish(self) -> None:
        """Compare the ids that were told, and count what was done for each key."""
        for (entity, key), messages in self._told.items():
            if len(told := sorted(messages - self._cancelled)) > 1:
                raise Violation("INV-D3", f"{entity}, key {key}: {told[0]} and {told[1]} were told")
        done = Counter(self._keys[message] for message in self._done if message in self._keys)
        for (entity, key), count in done.items():
            if count > 1:
                raise Violation("INV-D3", f"{entity}, key {key}: {count} messages were done")


@dataclass
class EffectsOnce:
    """INV-D4: after each commit an entity's state is the sum of what its messages that are done have added.

    What was committed at one instant is judged together: a message and its state are two events.
    """

    _sums: Counter[str] = field(default_factory=Counter)
    _values: Counter[str] = field(default_factory=Counter)
    _touched: set[str] = field(default_factory=set)
    _at_ns: int = -1

    def see(self, event: Event) -> None:
        """Judge the instant before, when another one begins."""
        if not isinstance(event, Completed | Counted):
            return
        if event.at_ns != self._at_ns:
            self.finish()
        self._at_ns = event.at_ns
        self._touched.add(event.entity)
        if isinstance(event, Completed):
            self._sums[event.entity] += event.adds
        else:
            self._values[event.entity] = event.value

    def finish(self) -> None:
        """Judge the last instant."""
        for entity in sorted(self._touched):
            value, total = self._values[entity], self._sums[entity]
            if value != total:
                raise Violation("INV-D4", f"{entity} is {value}, and its messages added {total}")
        self._touched.clear()


@dataclass
class LossesBounded:
    """INV-D7, C5: what has killed its process as often as it may is set aside; what nobody has begun never is."""

    losses: int
    _begun: Counter[str] = field(default_factory=Counter)

    def see(self, event: Event) -> None:
        """Count beginnings, and compare each end with them."""
        if isinstance(event, Began):
            self._begun[event.message] += 1
        elif isinstance(event, Died) and event.losses and not self._begun[event.message]:
            raise Violation("INV-D7", f"{event.message} was set aside after {event.losses} losses, and never began")
        elif isinstance(event, Left) and event.status == "pending" and event.losses >= self.losses:
            raise Violation("INV-D7", f"{event.message} had {event.losses} of {self.losses} losses, and goes on")

    def finish(self) -> None:
        """Nothing is left to judge."""
