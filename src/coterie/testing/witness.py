"""The first liveness witness of a simulation: knows which nodes live, until the server restarts."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from coterie.testing.loop.nodes import Node, current_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from coterie.testing.loop.loop import SimLoop


class SimulatedWitness:
    """Liveness locks as a server keeps them: until the process that took them is gone, or the server restarts [M2]."""

    is_proof = False

    def __init__(self, loop: SimLoop, restarts: Callable[[], int], up_ns: Callable[[], int]) -> None:
        self._loop = loop
        self._restarts = restarts
        self._up_ns = up_ns
        self._signs: list[tuple[str, Node, str]] = []

    @property
    def server(self) -> str:
        """The id of the server's current start."""
        return f"start {self._restarts()}"

    @property
    def up_s(self) -> float:
        """How long the server has been up."""
        return (self._loop.now_ns - self._up_ns()) / 1e9

    @asynccontextmanager
    async def taken(self, incarnation: str) -> AsyncIterator[bool]:
        """Take a liveness lock in the name of the calling process."""
        sign = incarnation, current_node.get(self._loop.test).process, self.server
        self._signs.append(sign)
        try:
            yield False
        finally:
            self._signs.remove(sign)

    def held(self, incarnations: Iterable[str]) -> frozenset[str]:
        """The incarnations whose liveness locks are held now."""
        there = {who for who, process, server in self._signs if process.alive and server == self.server}
        return frozenset(incarnations) & there

    def gone(self, incarnations: Iterable[str]) -> frozenset[str]:
        """Always empty: a lost session proves nothing."""
        del incarnations
        return frozenset()

    def remove(self, incarnation: str) -> None:
        """Do nothing: there is nothing to remove."""
