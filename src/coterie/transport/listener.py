"""Admission of sockets: those that are not authenticated are few, have little time, and cause few log lines.

Also here: the options of all our sockets, which sockets forked children lose, and the warning at start when payloads
are sent in the clear.
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

__all__ = ["Gate", "PendingSocket", "Plug", "in_the_clear", "is_loopback", "tune", "warn_in_the_clear"]

log = logging.getLogger("coterie")

STRANGERS_MOST = 64
"""Unauthenticated sockets: some hundred runners that all restart get in within a second."""

PROVED_WITHIN_S = 5.0
"""Limit for the whole handshake, from the connection on; nothing prolongs it."""

TOLD_EVERY_S = 5.0
"""At most one log line about refusals in this time, with their number."""

End = Literal["admitted", "refused", "late", "crowded", "left"]
"""How the admission of a socket ends: authenticated; refused; too slow; evicted by newer ones; closed by the peer."""

_OPTIONS: Mapping[str, int] = {
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 10_000,
    "TCP_NODELAY": 1,  # writes are coalesced already
}


class Gate:
    """Counts and limits the unauthenticated sockets of one listener.

    When there are too many, the oldest is closed, not the newest: a handshake takes milliseconds, so the socket that
    has waited longest is the least likely to be one of ours. Sockets that are opened and left idle (slow loris)
    therefore keep no peer out.

    Args:
        most: The maximum number at a time.
        within_s: How long each may take, from its beginning.
        every_s: How often refusals are logged at most.

    Promise:
        Never more than `most`, none for longer than `within_s`. Nothing that an unauthenticated peer sent is logged.
    """

    def __init__(
        self, *, most: int = STRANGERS_MOST, within_s: float = PROVED_WITHIN_S, every_s: float = TOLD_EVERY_S
    ) -> None:
        self.counts: Counter[End] = Counter()
        self._most = most
        self._within_s = within_s
        self._waiting: dict[PendingSocket, None] = {}  # in order of arrival
        self._refusals = Refusals(every_s)

    @property
    def waiting(self) -> int:
        """The number of sockets that are not authenticated yet."""
        return len(self._waiting)

    def enter(self, peer: str, abort: Callable[[], object]) -> PendingSocket:
        """Register a new socket; report to its `PendingSocket` how it ends.

        Args:
            peer: Its address, for the log.
            abort: Closes the socket at once. Called if it is late or evicted, at most once.
        """
        if len(self._waiting) >= self._most:
            next(iter(self._waiting))._drop("crowded", f"{self._most} others wait at the door")  # noqa: SLF001 a part of this class
        pending = PendingSocket(self, peer, abort, within_s=self._within_s)
        self._waiting[pending] = None
        return pending

    def close(self) -> None:
        """Close all waiting sockets, and log what has not been logged."""
        for pending in list(self._waiting):
            pending._drop("left", None)  # noqa: SLF001 a part of this class
        self._refusals.flush()

    def _ended(self, pending: PendingSocket, end: End, reason: str | None) -> None:
        del self._waiting[pending]
        self.counts[end] += 1
        if reason is not None:
            self._refusals.report(pending.peer, reason)


class PendingSocket:
    """One socket during its admission. Exactly one end counts, the first."""

    def __init__(self, gate: Gate, peer: str, abort: Callable[[], object], *, within_s: float) -> None:
        self.peer = peer
        self._gate = gate
        self._abort = abort
        self._within_s = within_s
        self._open = True
        self._timer = asyncio.get_running_loop().call_later(within_s, self._expire)

    def admitted(self) -> None:
        """It is authenticated."""
        self._end("admitted", None)

    def refused(self, reason: str) -> None:
        """It is refused; the caller closes it. The reason is our own text, see `Refused`."""
        self._end("refused", reason)

    def left(self) -> None:
        """The peer has closed it."""
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
    """Logs the first refusal at once, and those that follow in one line per interval.

    Args:
        every_s: The interval.
        what: What is refused.
    """

    def __init__(self, every_s: float = TOLD_EVERY_S, *, what: str = "connection") -> None:
        self._every_s = every_s
        self._what = what
        self._untold = 0
        self._last = ""
        self._quiet: asyncio.TimerHandle | None = None

    def report(self, peer: str, reason: str) -> None:
        """A peer was refused, for a reason in our own words."""
        if self._quiet is not None:
            self._untold += 1
            self._last = f"{peer}: {reason}"
            return
        log.warning("a %s from %s is refused: %s", self._what, peer, reason)
        self._rest()

    def flush(self) -> None:
        """Log what has not been logged."""
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
        if again:  # refusals continue: stay quiet for another interval
            self._rest()


class Plug:
    """A socket that forked children lose [P13, M2]: they would keep its port, or its peer, from noticing our death.

    Keep it as long as the socket is open, then `pull` it: the number of a closed socket is soon reused for another
    file.
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
    """Set the options of every connection: a dead peer is noticed within 11 s, small writes are sent at once."""
    if opened.family not in (socket.AF_INET, socket.AF_INET6):
        return
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        if (option := getattr(socket, name, None)) is not None:
            opened.setsockopt(socket.IPPROTO_TCP, option, value)


def in_the_clear(settings: Settings, address: str) -> str | None:
    """The warning for listening on an address: None on loopback and under TLS."""
    if is_loopback(address) or settings.tls_cert is not None:
        return None
    return (
        f"{address} is reachable from other machines, without TLS: payloads travel in the clear. "
        "Set tls_cert, tls_key and tls_ca"
    )


def warn_in_the_clear(settings: Settings, address: str) -> None:
    """Log the warning at each start."""
    if (warning := in_the_clear(settings, address)) is not None:
        log.warning("%s", warning)
