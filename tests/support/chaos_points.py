"""Chaos points, for tests that want something to happen just there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from coterie.kernel import chaos

if TYPE_CHECKING:
    from collections.abc import Callable


class At:
    """Does something when a runner comes to a chaos point for the n-th time."""

    def __init__(self, name: str, act: Callable[[], object], *, time: int = 1) -> None:
        self._name = name
        self._act = act
        self._left = time
        self.happened = False
        chaos.install(self)

    async def point(self, name: str, /) -> None:
        """Come back at once, but for that one time."""
        if name != self._name or self.happened:
            return
        self._left -= 1
        if not self._left:
            self.happened = True
            self._act()
            await asyncio.sleep(0)

    def flip(self, name: str, /) -> bool:
        """Never the rare way."""
        del name
        return False

    def saw(self, what: str, name: str, /) -> None:
        """The reports of failures are not looked at here."""

    def failure(self, task: str, /) -> Exception | None:
        """No standing task raises."""
        del task
        return None
