"""The door: sockets that have not proved themselves are few, have little time, and are told of in few lines.

Also here: what every socket of ours is set to, which ones forked children lose, and what is said at start
when payloads travel in the clear.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from typing import TYPE_CHECKING, Literal

from coterie.kernel import fork_guard
from coterie.transport.identity import is_loopback

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket
    from collections.abc import Callable, Mapping

    from coterie.settings import Settings

__all__ = ["Gate", "Listener", "Plug", "in_the_clear", "is_loopback", "tune", "warn_in_the_clear"]

log = logging.getLogger("coterie")

STRANGERS_MOST = 64
"""Sockets that have not proved themselves: some hundred runners that all restart get in within a second."""

PROVED_WITHIN_S = 5.0
"""From the first byte or none to the end of the handshake; nothing prolongs it."""

TOLD_EVERY_S = 5.0
"""At most one line about refusals in this time, with their number."""

End = Literal["admitted", "refused", "late", "crowded", "left"]
"""How it ends at the door: proved; not let in; too slow; pushed out by newcomers; gone by itself."""

_OPTIONS: Mapping[str, int] = {
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 10_000,
    "TCP_NODELAY": 1,  # writes are coalesced already
}


class Gate:
    """Counts and limits the sockets of one listener that have not proved themselves.

    When there are too many, the oldest goes, not the newest: a handshake takes milliseconds, so whoever has
    been at the door for longest is the least likely to be one of us. Sockets that are opened and left idle
    (slow loris) therefore keep nobody out.

    Args:
        most: How many at a time.
        within_s: How long each may take, from its beginning.
        every_s: How often refusals are logged at most.

    Promise:
        Never more than `most`, none for longer than `within_s`. Nothing that a stranger sent is logged.
    """

    def __init__(
        self, *, most: int = STRANGERS_MOST, within_s: float = PROVED_WITHIN_S, every_s: float = TOLD_EVERY_S
    ) -> None:
        self.counts: Counter[End] = Counter()
        self._most = most
        self._within_s = within_s
        self._waiting: dict[Listener, None] = {}  # in the order of their coming
        self._refusals = Refusals(every_s)

    @property
    def waiting(self) -> int:
        """Sockets that have not proved themselves yet."""
        return len(self._waiting)

    def enter(self, peer: str, abort: Callable[[], object]) -> Listener:
        """A socket has come; tell its `Listener` how it ends.

        Args:
            peer: Its address, for the log.
            abort: Closes the socket at once. Called if it is late or pushed out, at most once.
        """
        if len(self._waiting) >= self._most:
            next(iter(self._waiting))._drop("crowded", f"{self._most} others wait at the door")  # noqa: SLF001 a part of this class
        door = Listener(self, peer, abort, within_s=self._within_s)
        self._waiting[door] = None
        return door

    def close(self) -> None:
        """Close all that wait, and say what has not been said."""
        for door in list(self._waiting):
            door._drop("left", None)  # noqa: SLF001 a part of this class
        self._refusals.flush()

    def _ended(self, door: Listener, end: End, reason: str | None) -> None:
        del self._waiting[door]
        self.counts[end] += 1
        if reason is not None:
            self._refusals.tell(door.peer, reason)


class Listener:
    """One socket on its way in. Exactly one of its ends counts, the first."""

    def __init__(self, gate: Gate, peer: str, abort: Callable[[], object], *, within_s: float) -> None:
        self.peer = peer
        self._gate = gate
        self._abort = abort
        self._within_s = within_s
        self._open = True
        self._timer = asyncio.get_running_loop().call_later(within_s, self._expire)

    def admitted(self) -> None:
        """It has proved itself."""
        self._end("admitted", None)

    def refused(self, reason: str) -> None:
        """It is not let in; the caller closes it. The reason is in our words, see `Refused`."""
        self._end("refused", reason)

    def left(self) -> None:
        """It has closed by itself."""
        self._end("left", None)

    def _expire(self) -> None:
        self._drop("late", f"no proof within {self._within_s:g}s")

    def _drop(self, end: End, reason: str | None) -> None:
        self._end(end, reason)
        self._abort()

    def _end(self, end: End, reason: str | None) -> None:
        if self._open:
            self._open = False
            self._timer.cancel()
            self._gate._ended(self, end, reason)  # noqa: SLF001 a part of that class


class Refusals:
    """Tells of the first refusal at once, and of those that follow in one line per while.

    Args:
        every_s: How long a while is.
        what: What is refused.
    """

    def __init__(self, every_s: float = TOLD_EVERY_S, *, what: str = "connection") -> None:
        self._every_s = every_s
        self._what = what
        self._untold = 0
        self._last = ""
        self._quiet: asyncio.TimerHandle | None = None

    def tell(self, peer: str, reason: str) -> None:
        """Somebody was refused, for a reason in our words."""
        if self._quiet is not None:
            self._untold += 1
            self._last = f"{peer}: {reason}"
            return
        log.warning("a %s from %s is refused: %s", self._what, peer, reason)
        self._rest()

    def flush(self) -> None:
        """Say what has not been said."""
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
        if self._untold:
            log.warning("%d more %ss were refused, the last from %s", self._untold, self._what, self._last)
            self._untold = 0

    def _rest(self) -> None:
        self._quiet = asyncio.get_running_loop().call_later(self._every_s, self._rested)

    def _rested(self) -> None:
        again = self._untold > 0
        self.flush()
        if again:  # it goes on: stay quiet for another while
            self._rest()


class Plug:
    """A socket that forked children lose [P13, M2]: they would keep its port, or its peer, from noticing our death.

    Keep it as long as the socket is open, then `pull` it: the number of a closed socket soon is another file's.
    """

    def __init__(self, opened: socket.socket | TransportSocket) -> None:
        self._number = opened.fileno()
        fork_guard.watch(self)

    def fileno(self) -> int:
        """The socket's number; -1 once it is pulled."""
        return self._number

    def pull(self) -> None:
        """The socket is closed."""
        self._number = -1


def tune(opened: socket.socket | TransportSocket) -> None:
    """Set what every connection of ours has: a dead peer is noticed within 11 s, small writes leave at once."""
    if opened.family not in (socket.AF_INET, socket.AF_INET6):
        return
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        if (option := getattr(socket, name, None)) is not None:
            opened.setsockopt(socket.IPPROTO_TCP, option, value)


def in_the_clear(settings: Settings, address: str) -> str | None:
    """What to warn of when listening on an address: None on loopback and under TLS."""
    if is_loopback(address) or settings.tls_cert is not None:
        return None
    return (
        f"{address} is reachable from other machines, without TLS: payloads travel in the clear. "
        "Set tls_cert, tls_key and tls_ca"
    )


def warn_in_the_clear(settings: Settings, address: str) -> None:
    """Say so at each start."""
    if (warning := in_the_clear(settings, address)) is not None:
        log.warning("%s", warning)
