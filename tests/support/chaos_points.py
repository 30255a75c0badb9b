"""Chaos points: for tests that want something to happen just there, and which of them a campaign reached."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from coterie.kernel import chaos

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

_POINT = re.compile(r"""chaos\.(?:point|flip)\(\s*["']([^"']+)["']""")


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


def declared_points(sources: Iterable[Path]) -> list[str]:
    """The names of all chaos points in source files, sorted."""
    return sorted({name for source in sources for name in _POINT.findall(source.read_text(encoding="utf-8"))})


def coverage_table(declared: Iterable[str], hits: Mapping[str, int], taken: Mapping[str, int]) -> str:
    """One line per point: how often it was reached, and how often it did something."""
    names = sorted({*declared, *hits})
    width = max(map(len, names), default=0)
    rows = [
        f"{name:{width}}  {hits.get(name, 0):>10,}  {taken.get(name, 0):>10,}{_remark(hits, name)}" for name in names
    ]
    return "\n".join([f"{'point':{width}}  {'reached':>10}  {'taken':>10}", *rows])


def _remark(hits: Mapping[str, int], name: str) -> str:
    return "" if hits.get(name) else "  never reached"
