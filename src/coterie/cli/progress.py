"""Progress of long work, on stderr: what, how far, how fast, and the time left.

Nothing is shown within the first 0.3 s. A terminal has one line that is redrawn, other outputs a line each 5 s and at
each phase, and programs (`--json`) the same as objects. At the end one line stays, with the total.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import click

from coterie.cli.output import as_json, echo, lasting, safe
from coterie.kernel.clock import steady_s
from coterie.kernel.service import Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

QUIET_S = 0.3
"""Work that ends sooner shows nothing."""
_REDRAW_S = 0.1
_SAY_S = 5.0
_BAR = 10
_CLEAR = "\r\x1b[K"


class ProgressLine:
    """The progress of one piece of work: `with ProgressLine("purging dead messages", total=402) as line: line.at(17)`.

    Args:
        what: The work, at the start of the line.
        total: How much there is to do; None: unknown, so there is no percentage and no time left.
        about: Whether the total is an estimate: then it is shown as one, without a bar.
        note: Shown at the end of the line.
        json: Whether to write JSON for a program.
        now_s: The clock.
    """

    def __init__(
        self,
        what: str,
        *,
        total: int | None = None,
        about: bool = False,
        note: str = "",
        json: bool = False,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        self._what = what
        self._total = total
        self._about = about
        self._note = note
        self._json = json
        self._now_s = now_s or steady_s
        self._redraws = sys.stderr.isatty() and not json
        self._began_s = self._now_s()
        self._next_s = self._began_s + (QUIET_S if self._redraws else _SAY_S)
        self._done = 0
        self._phase = ""
        self._is_open = False  # whether a line is shown that is redrawn

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._clear()

    @property
    def took_s(self) -> float:
        """How long it has taken so far."""
        return self._now_s() - self._began_s

    @property
    def done(self) -> int:
        """How much is done."""
        return self._done

    def at(self, done: int) -> None:
        """Set how much is done."""
        self._done = done
        now_s = self._now_s()
        if now_s >= self._next_s:
            self._next_s = now_s + (_REDRAW_S if self._redraws else _SAY_S)
            self._say()

    @asynccontextmanager
    async def ticking(self) -> AsyncIterator[None]:
        """Keep redrawing the line while awaiting something that reports no progress."""

        async def tick() -> None:
            while True:
                await asyncio.sleep(_REDRAW_S)
                self.at(self._done)

        tasks = Tasks("progress")
        tasks.spawn(tick(), name="tick")
        try:
            yield
        finally:
            await tasks.stop()

    def phase(self, name: str) -> None:
        """Begin another part of the work."""
        self._phase = name
        now_s = self._now_s()
        if now_s - self._began_s >= QUIET_S:
            self._next_s = now_s + (_REDRAW_S if self._redraws else _SAY_S)
            self._say()

    def end(self, text: str) -> None:
        """End with a line that stays. Not for programs: they get the answer."""
        self._clear()
        if not self._json:
            echo(text, err=True)

    def _say(self) -> None:
        if self._json:
            echo(as_json(self._object()), err=True)
        elif self._redraws:
            click.echo(f"{_CLEAR}{safe(self.line())}", nl=False, err=True)
            self._is_open = True
        else:
            echo(self.line(), err=True)

    def line(self) -> str:
        """The whole progress in one line."""
        parts = [self._what, self._phase, self._share(), self._rate(), self._left(), self._note]
        return "   ".join(part for part in parts if part)

    def _share(self) -> str:
        if self._total is None:
            return f"{self._done:,}" if self._done else lasting(self.took_s)
        if self._about:
            return f"{self._done:,} of about {self._total:,}"
        share = min(self._done / self._total, 0.99) if self._total else 0.0  # never 100 % before the end
        full = int(share * _BAR)
        bar = "█" * full + "░" * (_BAR - full) if _is_utf8() else "#" * full + "." * (_BAR - full)
        return f"{bar} {share:.0%}  {self._done:,} of {self._total:,}"

    def _rate(self) -> str:
        return f"{self._per_s():,.0f}/s" if self._done else ""

    def _left(self) -> str:
        left_s = self._left_s()
        return "" if left_s is None else f"{lasting(round(left_s))} left"

    def _per_s(self) -> float:
        return self._done / max(self.took_s, 0.001)

    def _left_s(self) -> float | None:
        if self._total is None or not self._done:
            return None
        return max(0.0, (self._total - self._done) / self._per_s())

    def _object(self) -> dict[str, Any]:
        return {
            "event": "progress",
            "what": self._what,
            "phase": self._phase or None,
            "done": self._done,
            "total": self._total,
            "per_s": round(self._per_s(), 1),
            "left_s": None if (left_s := self._left_s()) is None else round(left_s, 1),
        }

    def _clear(self) -> None:
        if self._is_open:
            click.echo(_CLEAR, nl=False, err=True)
        self._is_open = False


def _is_utf8() -> bool:
    return (sys.stderr.encoding or "").lower().replace("-", "") == "utf8"
