"""Nodes: the units of a simulation that can crash, freeze or have a wrong clock.

Not only runners are nodes: each incarnation of a runner is one, and so are its lease thread, a client, and the test
itself. A context variable holds the node of the running code; every callback of asyncio carries its context, and so its
node.
"""

from __future__ import annotations

import contextvars
from collections import deque
from typing import TYPE_CHECKING

from coterie.testing.loop.clocks import LocalTime

if TYPE_CHECKING:
    from coterie.testing.loop.tasks import AnyHandle

current_node: contextvars.ContextVar[Node] = contextvars.ContextVar("coterie_simulated_node")


class Node:
    """One incarnation of something that fails as a whole. Created by `Nodes.add`."""

    def __init__(self, name: str, *, incarnation: int = 1, time: LocalTime | None = None) -> None:
        self.name = name
        self.incarnation = incarnation
        self.label = name if incarnation == 1 else f"{name}.{incarnation}"
        self.time = time or LocalTime()
        self.process: Node = self
        self.threads: list[Node] = []
        self.alive = True
        self.frozen = False
        self.blocked = False
        self.held = False
        self.ready: deque[AnyHandle] = deque()
        self.runnable = True

    def new_context(self) -> contextvars.Context:
        """A context for code of this node, without the variables of the test's context."""
        context = contextvars.Context()
        context.run(current_node.set, self)
        return context

    def update(self) -> bool:
        """Recompute whether anything of this node may run, and return it."""
        self.runnable = self.alive and not (self.frozen or self.blocked or self.held)
        return self.runnable

    @property
    def state(self) -> str:
        """What keeps this node from running, in one word, or "runs"."""
        if not self.alive:
            return "crashed"
        return "frozen" if self.frozen else "blocked" if self.blocked else "runs"

    def __repr__(self) -> str:
        return f"<Node {self.label} {self.state}>"
