"""Seeded chaos: what happens at the chaos points of the product, and which of them were reached."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from coterie.testing.loop.nodes import current_node
from coterie.testing.loop.seeds import stream

if TYPE_CHECKING:
    from collections.abc import Callable

_ENABLED = 0.4  # share of the points in one run: with all of them at once, runs would be alike
_DELAY, _FLIP = 0.1, 0.05
_SHORT_S, _LONG_S = 0.01, 3.0
_ERRORS: tuple[type[Exception], ...] = (OSError, ValueError, KeyError, AssertionError, RuntimeError)
"""Types of unexpected errors: of the machine, of data, of the program."""
_TEST = "test"
"""The node of the test's client, which never fails."""
_SPARED_S = 10.0
"""After a failure a task is spared for so long: it would be given up after seven within a minute."""


class SeededChaos:
    """A source of chaos that a seed repeats. Each run enables only some of the points.

    `hits` counts how often each point was reached, `taken` how often it did something.
    """

    def __init__(self, seed: int) -> None:
        self.hits: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()
        self.quiet = False
        self.failures = 0.0
        """The probability that a background task raises at a point where it resumes."""
        self.on_work: Callable[[str, str], object] = lambda _what, _name: None
        """Called with the kind and name of the program's code that runs now, for the report."""
        self._spared_until_s: dict[str, float] = {}
        self._seed = seed
        self._chance = stream(seed, "chaos")
        self._strikes = stream(seed, "failures of standing tasks")
        self._enabled: dict[str, bool] = {}

    async def point(self, name: str, /) -> None:
        if self._happens(name, _DELAY):
            await asyncio.sleep(self._delay_s())

    def flip(self, name: str, /) -> bool:
        return self._happens(name, _FLIP)

    def failure(self, task: str, /) -> Exception | None:
        if self.quiet or not self.failures or self._strikes.random() >= self.failures:
            return None
        if (node := current_node.get(None)) is None or node.name == _TEST:
            return None
        now_s = asyncio.get_running_loop().time()
        if now_s < self._spared_until_s.get(task, 0.0):
            return None
        self._spared_until_s[task] = now_s + _SPARED_S
        self.taken[f"failure of {task}"] += 1
        return self._strikes.choice(_ERRORS)("thrown into a standing task by the simulator")

    def saw(self, what: str, name: str, /) -> None:
        self.on_work(what, name)

    def _happens(self, name: str, probability: float) -> bool:
        self.hits[name] += 1
        happens = not self.quiet and self._is_enabled(name) and self._chance.random() < probability
        self.taken[name] += happens
        return happens

    def _is_enabled(self, name: str) -> bool:
        if name not in self._enabled:
            # A stream of its own, so that a new point does not change which others are enabled.
            self._enabled[name] = stream(self._seed, f"chaos/{name}").random() < _ENABLED
        return self._enabled[name]

    def _delay_s(self) -> float:
        """Mostly a mere yield or a short delay, sometimes long enough for a lease to expire."""
        draw = self._chance.random()
        if draw < 0.5:
            return 0.0
        return self._chance.random() * (_SHORT_S if draw < 0.9 else _LONG_S)
