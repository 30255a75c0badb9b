"""Random streams of a seed: one per purpose, so that a draw more in one does not shift all the others."""

from __future__ import annotations

import random  # noqa: TID251 the simulator's own choices, repeatable by seed

Stream = random.Random


def stream(seed: int, purpose: str) -> Stream:
    """The random stream of `seed` for one purpose; the same in every process, whatever its hash seed."""
    return Stream(f"{seed}/{purpose}")  # noqa: S311 repeatable is the point; texts are seeded through SHA-512
