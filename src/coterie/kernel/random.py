"""Randomness: the one place that draws it, so that a seed determines everything in simulation."""

from __future__ import annotations

import random


class Random:
    """A source of randomness: the operating system's, or a seeded one."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.SystemRandom() if seed is None else random.Random(seed)
        self.seed = seed

    def bits(self, count: int) -> int:
        """A whole number of `count` random bits."""
        return self._random.getrandbits(count)

    def token(self, size_bytes: int) -> bytes:
        """Random bytes; unguessable unless seeded."""
        return self._random.getrandbits(size_bytes * 8).to_bytes(size_bytes, "big")

    def between(self, low: float, high: float) -> float:
        """A number in [low, high]."""
        return self._random.uniform(low, high)
