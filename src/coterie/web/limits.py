"""What one request may cost: connections that say nothing, say it slowly, or come by the thousand are closed."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from coterie.transport.identity import is_loopback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.transport.listener import Refusals

ASKED_WITHIN_S = 5.0
"""From the first byte, or none, to the end of a request; nothing prolongs it."""

READ_WITHIN_S = 10.0
"""How long the other end may let an answer wait that it asked for."""

KEPT_S = 15
"""How long a connection may wait for its next request: scrapers and kubelets come each ten seconds."""

CONNECTIONS_MOST = 64
"""Open at once. A newcomer pushes out somebody else, see `superfluous`: a probe always gets in."""

ADDRESS_MOST = 32
"""Of one address. Loopback may have all: there may be a proxy, for many."""

HEAD_MOST_BYTES = 16 * 1024
"""Of a request before its body, which nobody reads."""

_MUTE = logging.Logger("uvicorn.error", logging.CRITICAL + 1)  # noqa: LOG001 outside of everybody's settings
"""What uvicorn has to say is about strangers, in a line or a traceback for each: `Refusals` counts them. What our own
application raises is in our log."""

_numbers = itertools.count(1)


class Bounded(H11Protocol):
    """uvicorn's protocol, which has a limit for idle connections between two requests, and none before the first.

    Args:
        refusals: Who is told of what is no request.
        given: What uvicorn gives to its protocols.
    """

    number = 0
    """Later ones are larger."""
    _deadline: asyncio.TimerHandle | None = None
    _patience: asyncio.TimerHandle | None = None

    def __init__(self, refusals: Refusals, **given: Any) -> None:
        super().__init__(**given)
        self.conn = BoundedHead(h11.SERVER, HEAD_MOST_BYTES)
        self.logger = _MUTE
        self._refusals = refusals

    def connection_made(self, transport: Any) -> None:
        """Make room for it if there are too many; then it has to ask soon."""
        super().connection_made(transport)
        self.number = next(_numbers)
        # What is closing is counted until the loop has told it so, which may be after many more have come.
        left = [each for each in self.connections if isinstance(each, Bounded) and not each.transport.is_closing()]
        if (out := superfluous(self, left)) is not None:
            out.transport.abort()
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Part of a request, or the rest of it."""
        if self._deadline is None and self._is_open:
            self._expect()
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001 whatever a stranger's bytes do to those who read them
            self._refusals.tell(self._peer, f"its bytes cannot be read ({type(error).__name__})")
            self.transport.abort()
        if not self._is_open:
            self._forget()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, also while what came before it is being answered."""
        self._refusals.tell(self._peer, "it is no HTTP request, or its head is too large")
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # whatever is on its way to it is dropped
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.abort()
                return
        super().send_400_response(msg)

    def pause_writing(self) -> None:
        """The other end does not read what it asked for."""
        super().pause_writing()
        self._patience = asyncio.get_running_loop().call_later(READ_WITHIN_S, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        self._calm_down()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody asks any more."""
        self._forget()
        self._calm_down()
        super().connection_lost(exc)

    @property
    def origin(self) -> str:
        """Whose it is: an address, or what one customer of a provider has of them."""
        return origin_of(self._peer)

    @property
    def is_stuck(self) -> bool:
        """Whether the other end leaves unread what was answered."""
        return self.transport.get_write_buffer_size() > 0

    @property
    def waits(self) -> bool:
        """Whether nothing is being answered on it."""
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
    """h11 counts the bytes of a head only while it is incomplete: one that comes at once may be of any size."""

    def __init__(self, our_role: type[h11.SERVER], most_bytes: int) -> None:
        super().__init__(our_role, most_bytes)
        self._most_bytes = most_bytes

    def next_event(self) -> Any:
        """What came next; a head that is too large is no request."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            headers = sum(len(name) + len(value) for name, value in event.headers)
            if len(event.target) + headers > self._most_bytes:
                raise h11.RemoteProtocolError("the head is too large", error_status_hint=431)
        return event


def superfluous(newcomer: Bounded, open_ones: Sequence[Bounded]) -> Bounded | None:
    """Whom to close now that somebody has come; None: there is room. Pure.

    Of the address that has too many, else of those with the most connections: first one whose answers are not read,
    then the one that has waited longest without being answered, then the oldest. Never the newcomer: it may be a probe,
    and connections that pipeline requests without reading look busy until the buffers of the kernel are full.

    Args:
        newcomer: Whoever has come.
        open_ones: All that are open, the newcomer too.
    """
    counts = Counter(each.origin for each in open_ones)
    if counts[newcomer.origin] > ADDRESS_MOST and not is_loopback(newcomer.origin):
        crowd = {newcomer.origin}
    elif len(open_ones) > CONNECTIONS_MOST:
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
