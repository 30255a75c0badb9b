"""Notices about seats between runners, for speed only: whatever is lost is found in the tables.

offer     I have released these seats, and you are their target
granted   I was granted these seats, at these epochs: route by it
look      something has changed: read the tables now, not with your next renewal
wake      there is something new to do on these seats: their occupants check now (1 instead of an epoch: forwarded)
resign    a request, not a notice: release these seats if you hold them at these epochs
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from coterie.errors import MalformedMessage
from coterie.ownership.directory import peer_of
from coterie.transport.interface import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coterie.ownership.directory import Directory
    from coterie.transport.interface import PeerAddress, Request, Transport


Kind = Literal["offer", "granted", "look", "wake", "resign"]


class PeerNotice(msgspec.Struct, array_like=True, frozen=True):
    """One notice. Fields are only ever added at the end."""

    kind: str
    seats: list[tuple[str, int]] = []
    """Names and epochs."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PeerNotice)


def encode(kind: Kind, seats: list[tuple[str, int]] | None = None) -> bytes:
    """Encode a notice."""
    return _encoder.encode(PeerNotice(kind, seats or []))


def decode(body: bytes) -> PeerNotice | None:
    """Decode a notice; None if it cannot be decoded: it was only a hint."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, ValueError):
        return None


class PeerNotices:
    """The handler of the route for notices.

    Args:
        me: Our incarnation.
        offered: Called with a seat that another runner released for us, and its epoch until then.
        look: Called when the tables have changed.
        wake: Called when there is something new to do on a seat.
        resign: Releases a seat that we hold at an epoch. Returns: whether we held it.
    """

    def __init__(
        self,
        me: str,
        *,
        transport: Transport,
        directory: Directory,
        offered: Callable[[str, int], None],
        refresh: Callable[[], None],
        wake: Callable[[str], None],
        resign: Callable[[str, int], bool],
    ) -> None:
        self._me = me
        self._transport = transport
        self._directory = directory
        self._offered = offered
        self._refresh = refresh
        self._wake = wake
        self._resign = resign

    def send(self, peer: PeerAddress, kind: Kind, seats: list[tuple[str, int]] | None = None) -> None:
        """Notify one runner, if we are connected to it."""
        self._transport.notify(peer, Route.OWNERSHIP, encode(kind, seats))

    def send_all(self, kind: Kind, seats: list[tuple[str, int]] | None = None) -> None:
        """Notify all other runners that we are connected to."""
        notice = encode(kind, seats)
        for runner in self._directory.runners:
            if runner.id != self._me:
                self._transport.notify(peer_of(runner), Route.OWNERSHIP, notice)

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Handle a notice of another runner."""
        del route, headers
        notice = decode(body)
        if notice is None:
            return
        if notice.kind == "granted" and self._directory.runner(peer) is not None:
            self._directory.learn_grants(peer, notice.seats)
        elif notice.kind == "offer":
            for seat, epoch in notice.seats:
                self._offered(seat, epoch)
        elif notice.kind == "wake":
            for told, passed_on in notice.seats:
                self._wake_or_forward(told, passed_on=bool(passed_on))
        elif notice.kind == "look":
            self._refresh()

    def _wake_or_forward(self, told: str, *, passed_on: bool) -> None:
        """The sender may not know yet that the seat has moved: then the notice is forwarded, once, to its holder."""
        seat, _, _ = told.partition("\n")
        holder = self._directory.holder(seat)
        if passed_on or holder is None or holder.id == self._me:
            self._wake(told)
        else:
            self.send(peer_of(holder), "wake", [(told, 1)])

    def on_request(self, request: Request) -> None:
        """Release the requested seats. The reply says that this has begun, or that we do not hold them."""
        notice = decode(request.body)
        if notice is None or notice.kind != "resign":
            request.fail(*MalformedMessage(what="a request about seats", problem="it is not known here").to_wire())
            return
        given = [name for name, epoch in notice.seats if self._resign(name, epoch)]
        request.reply(encode("resign", [(name, 0) for name in given]))

    def on_cancel(self, request: Request) -> None:
        """Nothing to cancel."""
