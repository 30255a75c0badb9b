"""Decides, by the seed, which node runs next.

Inside a node callbacks run in the order in which they were scheduled, as asyncio promises. Between nodes there is no
such promise. Three policies, since each finds what the others miss: the plain order, in which a failure is easiest to
read; a random one; and priorities with few changes, which starve a node for long, as random choice hardly ever does
(PCT).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.testing.loop.nodes import Node
    from coterie.testing.loop.seeds import Stream

    Hold = Callable[[Node, int], None]

_CHANGE_MOST = 4_000  # steps between two changes of priority: a node that spins does not starve the rest for ever
_HOLD_MOST_NS = 30_000_000


class SchedulingPolicy(Protocol):
    """Chooses among nodes that have something to run."""

    name: str

    def added(self, node: Node, /) -> None:
        """A callback was added to `node.ready`, and the node may run."""
        ...

    def removed(self, node: Node) -> None:
        """The node may not run any more; `added` is called again for each of its callbacks when it may."""
        ...

    def pick(self) -> Node | None:
        """The node to run next, from whose `ready` the caller takes one; None if there is none."""
        ...


def schedule_of(seed: int, chance: Stream, hold: Hold) -> SchedulingPolicy:
    """The policy of a seed. Seed 0 is in plain order, the easiest to read."""
    draw = chance.random()
    if seed == 0 or draw < 0.25:
        return InOrder()
    return Shuffled(chance) if draw < 0.65 else Priorities(chance, hold)


class InOrder:
    """First come, first served, as in one asyncio loop."""

    name = "in order"

    def __init__(self) -> None:
        self._order: deque[Node] = deque()
        self.added = self._order.append

    def removed(self, node: Node) -> None:
        kept = [other for other in self._order if other is not node]
        self._order.clear()
        self._order.extend(kept)

    def pick(self) -> Node | None:
        return self._order.popleft() if self._order else None


class Shuffled:
    """Any node with a ready callback, each with the same probability."""

    name = "shuffled"

    def __init__(self, chance: Stream) -> None:
        self._chance = chance.random
        self._busy: list[Node] = []

    def added(self, node: Node) -> None:
        if node not in self._busy:
            self._busy.append(node)

    def removed(self, node: Node) -> None:
        if node in self._busy:
            self._busy.remove(node)

    def pick(self) -> Node | None:
        busy = self._busy
        if not busy:
            return None
        index = int(self._chance() * len(busy)) if len(busy) > 1 else 0
        node = busy[index]
        if len(node.ready) == 1:
            busy[index] = busy[-1]
            busy.pop()
        return node


class Priorities:
    """The first node of a list that has a ready callback; now and then the first one moves to the end.

    Steps cost no virtual time, so a node that only waits for its turn loses none. A node that moves to the end is
    therefore also paused for a moment, as on a busy machine.
    """

    name = "priorities"

    def __init__(self, chance: Stream, hold: Hold) -> None:
        self._chance = chance
        self._hold = hold
        self._order: list[Node] = []
        self._until_change = self._draw_change()

    def added(self, node: Node) -> None:
        if node not in self._order:
            self._order.insert(self._chance.randint(0, len(self._order)), node)

    def removed(self, node: Node) -> None:
        if not node.alive:
            self._order = [other for other in self._order if other is not node]

    def pick(self) -> Node | None:
        for node in self._order:
            if node.ready and node.runnable:
                self._until_change -= 1
                return node if self._until_change > 0 else self._change(node)
        return None

    def _change(self, node: Node) -> Node | None:
        self._until_change = self._draw_change()
        self._order.remove(node)
        self._order.append(node)
        self._hold(node, int(_HOLD_MOST_NS ** self._chance.random()))
        return self.pick()

    def _draw_change(self) -> int:
        return self._chance.randint(1, _CHANGE_MOST)
