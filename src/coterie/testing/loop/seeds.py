"""Random streams of a seed: one per purpose, so that an extra draw in one does not shift the others."""

from __future__ import annotations

import random

Stream = random.Random


def stream(seed: int, purpose: str) -> Stream:
    """The random stream of `seed` for one purpose; the same in every process, whatever its hash seed."""
    # `Random` hashes strings with SHA-512, not with `hash`.
    return Stream(f"{seed}/{purpose}")
