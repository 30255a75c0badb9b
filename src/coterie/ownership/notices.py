"""What runners tell each other about seats, for speed alone: whatever gets lost is found in the tables.

offer     I have given these seats back, and you are their target
granted   I was granted these seats, at these epochs: route by it
look      something has changed: read the tables now, not with your next renewal
wake      there is something new to do on these seats: whoever sits on them looks now (1 instead of an epoch: passed on)
resign    asked, not told: give up these seats if you hold them at these epochs
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["offer", "granted", "look", "wake", "resign"]


class Notice(msgspec.Struct, array_like=True, frozen=True):
    """One notice. Fields are only ever added at the end."""

    kind: str
    seats: list[tuple[str, int]] = []
    """Names and epochs."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Notice)


def encode(kind: Kind, seats: list[tuple[str, int]] | None = None) -> bytes:
    """A notice as it is sent."""
    return _encoder.encode(Notice(kind, seats or []))


def decode(body: bytes) -> Notice | None:
    """The notice that arrived; None if it cannot be read: it was only a hint."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, ValueError):
        return None
