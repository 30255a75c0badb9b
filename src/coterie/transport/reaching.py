"""Peers that cannot be reached: what that means, how to say it, and how long to leave them alone. Pure."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from coterie.transport.frames import Refused
from coterie.transport.handshake import OtherIncarnation

if TYPE_CHECKING:
    from coterie.kernel.random import Chance
    from coterie.transport.interface import Presence

_KEPT_MOST = 1_024


def presence(error: Exception | None) -> Presence:
    """What an attempt to connect has shown [M2]: only "refused" and "other" say that the runner is gone."""
    if error is None:
        return "present"
    if isinstance(error, OtherIncarnation):
        return "other"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, Refused | ssl.SSLError):
        return "stranger"
    return "silent"


def problem_of(error: Exception, address: str) -> str:
    """Why a peer cannot be reached, for `RunnerUnavailable`."""
    if isinstance(error, Refused):
        return f"{address}: {error.reason}"
    if isinstance(error, ConnectionRefusedError):
        return f"nobody listens on {address}"
    if isinstance(error, TimeoutError):
        return f"no answer from {address}"
    return f"{address}: {str(error) or type(error).__name__}"


class Troubles:
    """Peers that could not be reached lately: not tried again for a while, which doubles each time, with jitter."""

    def __init__(self, chance: Chance, *, first_s: float, most_s: float) -> None:
        self._chance = chance
        self._first_s, self._most_s = first_s, most_s
        self._peers: dict[str, tuple[float, float, str]] = {}  # until when, how long that was, why

    def __len__(self) -> int:
        return len(self._peers)

    def of(self, peer: str, now_s: float) -> str | None:
        """Why not to try this peer now; None if it may be tried."""
        until_s, _, problem = self._peers.get(peer, (0.0, 0.0, ""))
        return f"{problem} (tried again in {until_s - now_s:.2g}s)" if now_s < until_s else None

    def add(self, peer: str, problem: str, now_s: float) -> None:
        """It could not be reached."""
        _, last_s, _ = self._peers.pop(peer, (0.0, 0.0, ""))
        wait_s = min(self._most_s, max(self._first_s, last_s * 2))
        while len(self._peers) >= _KEPT_MOST:
            del self._peers[next(iter(self._peers))]  # the one tried longest ago
        self._peers[peer] = (now_s + self._chance.between(wait_s / 2, wait_s), wait_s, problem)

    def over(self, peer: str) -> None:
        """It was reached."""
        self._peers.pop(peer, None)
