"""Random streams of a seed: one per purpose, so that a draw more in one does not shift all the others."""

from __future__ import annotations

import random

Stream = random.Random


def stream(seed: int, purpose: str) -> Stream:
    """The random stream of `seed` for one purpose; the same in every process, whatever its hash seed."""
    # Texts are seeded through SHA-512, not through `hash`.
    return Stream(f"{seed}/{purpose}")
