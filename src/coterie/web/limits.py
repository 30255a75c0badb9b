"""Limits on what one connection may cost: silent, slow or too many connections are closed."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from coterie.transport.identity import is_loopback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.transport.listener import Refusals

ASKED_WITHIN_S = 5.0
"""Time from the start of a connection or a request to the end of the request; nothing extends it."""

READ_WITHIN_S = 10.0
"""How long a client may leave a response unread."""

KEPT_S = 15
"""How long an idle connection may wait for its next request: scrapers and kubelets come every ten seconds."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """How many connections may be open. A new one evicts another, see `superfluous`: a probe always gets in."""

    connections: int = 64
    address: int = 32
    """Connections of one address. Loopback may use all: it may be a proxy for many clients."""


PAGE_LIMITS = HttpLimits()
CALL_LIMITS = HttpLimits(connections=512, address=384)
"""Where calls are served: more than may be under way at once, so that none of them is evicted by another."""

HEAD_MOST_BYTES = 16 * 1024
"""Size of a request before its body, which only acts read, up to a limit of their own."""

_MUTE = logging.Logger("uvicorn.error", logging.CRITICAL + 1)  # noqa: LOG001 outside the logging hierarchy
"""uvicorn logs each malformed request: `Refusals` counts them instead. Errors of our application are in our log."""

_numbers = itertools.count(1)


class Bounded(H11Protocol):
    """uvicorn's protocol with limits; uvicorn itself limits idle connections only after their first request.

    Args:
        refusals: Counts malformed requests.
        most: How many connections may be open.
        given: What uvicorn passes to its protocols.
    """

    number = 0
    """Increases with each connection."""
    _deadline: asyncio.TimerHandle | None = None
    _patience: asyncio.TimerHandle | None = None

    def __init__(self, refusals: Refusals, most: HttpLimits = PAGE_LIMITS, **given: Any) -> None:
        super().__init__(**given)
        self._most = most
        self.conn = BoundedHead(h11.SERVER, HEAD_MOST_BYTES)
        self.logger = _MUTE
        self._refusals = refusals

    def connection_made(self, transport: Any) -> None:
        """Evict a connection if there are too many; then start the time limit for the request."""
        super().connection_made(transport)
        self.number = next(_numbers)
        # A closing connection is counted until `connection_lost` is called, which may be after many more were opened.
        left = [each for each in self.connections if isinstance(each, Bounded) and not each.transport.is_closing()]
        if (out := superfluous(self, left, self._most)) is not None:
            out.transport.abort()
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Receive part of a request."""
        if self._deadline is None and self._is_open:
            self._expect()
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001 untrusted bytes may raise anything
            self._refusals.report(self._peer, f"its bytes cannot be read ({type(error).__name__})")
            self.transport.abort()
        if not self._is_open:
            self._forget()

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request, also while an earlier one is being answered."""
        self._refusals.report(self._peer, "it is no HTTP request, or its head is too large")
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # drops the rest of the response
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.abort()
                return
        super().send_400_response(msg)

    def pause_writing(self) -> None:
        """Start the time limit for unread responses."""
        super().pause_writing()
        self._patience = asyncio.get_running_loop().call_later(READ_WITHIN_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read its responses."""
        super().resume_writing()
        self._calm_down()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limits."""
        self._forget()
        self._calm_down()
        super().connection_lost(exc)

    @property
    def origin(self) -> str:
        """The client's address, or its network for IPv6: see `origin_of`."""
        return origin_of(self._peer)

    @property
    def is_stuck(self) -> bool:
        """Whether the client leaves responses unread."""
        return self.transport.get_write_buffer_size() > 0

    @property
    def waits(self) -> bool:
        """Whether no request is being answered on it."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    @property
    def _peer(self) -> str:
        return "unknown" if self.client is None else self.client[0]

    @property
    def _is_open(self) -> bool:
        """Whether a request is not complete."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _expect(self) -> None:
        self._deadline = asyncio.get_running_loop().call_later(ASKED_WITHIN_S, self.transport.abort)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _calm_down(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class BoundedHead(h11.Connection):
    """h11 checks the size of a head only while it is incomplete; this also limits a head that arrives at once."""

    def __init__(self, our_role: type[h11.SERVER], most_bytes: int) -> None:
        super().__init__(our_role, most_bytes)
        self._most_bytes = most_bytes

    def next_event(self) -> Any:
        """The next event; a head that is too large is a protocol error."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            headers = sum(len(name) + len(value) for name, value in event.headers)
            if len(event.target) + headers > self._most_bytes:
                raise h11.RemoteProtocolError("the head is too large", error_status_hint=431)
        return event


def superfluous(newcomer: Bounded, open_ones: Sequence[Bounded], most: HttpLimits = PAGE_LIMITS) -> Bounded | None:
    """The connection to close now that a new one was opened; None if there is room. Pure.

    Of the address that has too many, else of those with the most connections: first one whose responses are not read,
    then the one that has been idle longest, then the oldest. Never the new one: it may be a probe, and connections that
    pipeline requests without reading look busy until the buffers of the kernel are full.

    Args:
        newcomer: The new connection.
        open_ones: All open connections, the new one included.
        most: How many may be open.
    """
    counts = Counter(each.origin for each in open_ones)
    if counts[newcomer.origin] > most.address and not is_loopback(newcomer.origin):
        crowd = {newcomer.origin}
    elif len(open_ones) > most.connections:
        crowd = {origin for origin, count in counts.items() if count == max(counts.values())}
    else:
        return None

    def rank(each: Bounded) -> tuple[int, int]:
        return 0 if each.is_stuck else 1 if each.waits else 2, each.number

    return min((each for each in open_ones if each.origin in crowd and each is not newcomer), key=rank)


def origin_of(address: str) -> str:
    """An IPv4 address, the first half of an IPv6 address, or the text itself if it is neither."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.version == 4 or ip.is_loopback:
        return str(ip)
    return str(ipaddress.ip_network((ip, 64), strict=False).network_address)
