"""Whether a peer still lives: asked when it is silent, given up when it stays so.

Ticks are counted, not time: after a pause of our own (a blocked loop, a closed laptop) what the peer has sent meanwhile
is read before the next tick, and counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from coterie.transport.interface import Limits


class Pulse:
    """The heartbeat of one connection.

    Args:
        loop: Whose clock counts.
        limits: How often, and how many in vain.
        ping: Asks the peer for a sign of life.
        moves: Whether the peer takes what we write, although we read nothing from it.
        give_up: Called once, with the reason.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        *,
        ping: Callable[[], None],
        moves: Callable[[], bool],
        give_up: Callable[[str], None],
    ) -> None:
        self.heard = True  # set with each read
        self._loop = loop
        self._every_s, self._most = limits.ping_s, limits.pings
        self._ping, self._moves, self._give_up = ping, moves, give_up
        self._in_vain = 0
        self._timer = loop.call_later(self._every_s, self._tick)

    def stop(self) -> None:
        """Ask no more."""
        self._timer.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._every_s, self._tick)
        if self.heard or self._moves():
            self.heard, self._in_vain = False, 0
        elif self._in_vain < self._most:
            self._in_vain += 1
            self._ping()
        else:
            self.stop()
            self._give_up(f"nothing heard from it for {self._every_s * (self._most + 1):g}s")
