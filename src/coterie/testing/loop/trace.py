"""The record of a run: a hash over every step, and the notable events in readable form."""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from typing import NamedTuple

from coterie.testing.loop.nodes import Node, current_node

_BATCH = 1_024
_KEPT = 2_000
_SHOWN = 60
_WORK_SHOWN = 30


class TraceEvent(NamedTuple):
    """A notable event: when, on which node, what, and the facts."""

    at_ns: int
    node: str
    what: str
    facts: str


class Trace:
    """The record of one run.

    Promise:
        Two runs of the same seed and code have the same `digest()`, in any process and with any hash seed.
    """

    def __init__(self, seed: int, *, test: Node, kept: int = _KEPT) -> None:
        self.now_ns = 0  # set by the loop
        self.left_out = 0
        self.events: deque[TraceEvent] = deque(maxlen=kept)
        self.work: deque[TraceEvent] = deque(maxlen=_WORK_SHOWN)
        """The last work of the program itself: rpcs, messages, steps, ticks, singletons."""
        self._test = test
        self._hash = hashlib.blake2b(digest_size=16)
        self._batch: list[str] = [f"seed {seed}"]

    def step(self, node: Node, label: str) -> None:
        """Record that a callback runs. Called for every step: cheap."""
        batch = self._batch
        batch.append(f"{self.now_ns} {node.label} {label}")
        if len(batch) >= _BATCH:
            self._flush()

    def note(self, what: str, **facts: object) -> None:
        """Record a notable event of the running node. Facts must not contain addresses or other random values."""
        node = current_node.get(self._test)
        event = TraceEvent(self.now_ns, node.label, what, " ".join(f"{name}={fact}" for name, fact in facts.items()))
        self.left_out += len(self.events) == self.events.maxlen
        self.events.append(event)
        self._batch.append(f"{self.now_ns} {node.label} {what} {event.facts}")

    def saw(self, what: str, name: str) -> None:
        """Record that code of the program runs now. Kept apart, so that many calls do not displace the faults."""
        node = current_node.get(self._test)
        self.work.append(TraceEvent(self.now_ns, node.label, what, name))
        self._batch.append(f"{self.now_ns} {node.label} {what} {name}")

    def digest(self) -> str:
        """The hash over everything so far."""
        self._flush()
        return self._hash.hexdigest()

    def text(self, *, last: int = _SHOWN) -> str:
        """The last notable events, and the program's last work, one per line, in the order of virtual time."""
        shown = list(self.events)[-last:]
        hidden = self.left_out + len(self.events) - len(shown)
        shown = list(heapq.merge(shown, self.work, key=lambda event: event.at_ns))
        widths = [max((len(field) for field in column), default=0) for column in zip(*map(_fields, shown), strict=True)]
        lines = [
            "  ".join(field.ljust(width) for field, width in zip(_fields(event), widths, strict=True)).rstrip()
            for event in shown
        ]
        return "\n".join(([f"({hidden} earlier events left out)"] if hidden else []) + lines)

    def _flush(self) -> None:
        if self._batch:
            self._hash.update("\n".join([*self._batch, ""]).encode("utf-8", "backslashreplace"))
            self._batch.clear()


def moment(at_ns: int) -> str:
    """A virtual instant as traces and errors show it: seconds since the start of the run."""
    return f"+{at_ns / 1e9:.6f}s"


def _fields(event: TraceEvent) -> tuple[str, str, str, str]:
    return moment(event.at_ns).rjust(14), event.node, event.what, event.facts
