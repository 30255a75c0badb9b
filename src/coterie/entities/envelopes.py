"""What calls look like between runners: small arrays around arguments and results that were encoded before. No I/O.

A result travels as it is. Other answers begin with a byte with which no msgpack value begins, so that the everyday
answer is neither wrapped nor copied:

    result…                     what the handler returned; of a stream: an item
    0xC1 1 failure…             what it raised, see `failures`
    0xC1 2 [seat, holder, …]    "not mine", with what that runner knows
    0xC1 3                      of a stored message: look in storage, which knows more

Fields are only ever added at the end, with a default: two versions of coterie talk to each other.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from coterie.entities.work import Chain

MARK: Final = 0xC1
FAILED: Final = b"\xc1\x01"
NOT_MINE: Final = b"\xc1\x02"
LOOK: Final = b"\xc1\x03"

Name = Annotated[str, Meta(min_length=1, max_length=1_000)]
Depth = Annotated[Chain, Meta(max_length=1_000)]


class Envelope(Struct, array_like=True, gc=False):
    """A call. How much time it has left is the transport's to tell."""

    entity_type: Name
    entity_id: Name
    method: Name
    payload: bytes
    message_id: Name
    within_s: float
    """What the caller was ready to wait, for errors."""
    trace_id: str | None = None
    chain: Depth = ()
    key: str | None = None
    discards: bool = False
    """Whether nobody waits for the answer: it is told when it was taken."""


class Broadcast(Struct, array_like=True, gc=False):
    """A call of all resident entities of a type."""

    entity_type: Name
    method: Name
    payload: bytes
    within_s: float
    trace_id: str | None = None
    chain: Depth = ()


class Told(Struct, array_like=True, gc=False):
    """What one entity answered to a broadcast: a body as above, or an error of ours by code and facts."""

    entity_id: str
    body: bytes
    code: str = ""
    facts: bytes = b""


class NotMine(Struct, array_like=True, gc=False):
    """A runner does not hold a seat; who does, as far as it knows, and at which epoch."""

    seat: str = ""
    holder: str = ""
    epoch: int = 0
    shards: int = 0
    """How many it counts in each group; 0: it does not say. Whoever counts otherwise looks in the wrong place."""


MALFORMED = (ValueError, RecursionError)  # as in the transport's envelopes

encode = msgspec.msgpack.Encoder().encode
decode_call = msgspec.msgpack.Decoder(Envelope).decode
decode_broadcast = msgspec.msgpack.Decoder(Broadcast).decode
decode_told = msgspec.msgpack.Decoder(Told).decode
_decode_not_mine = msgspec.msgpack.Decoder(NotMine).decode


def pack_not_mine(known: NotMine) -> bytes:
    """The answer of a runner that does not hold the seat."""
    return NOT_MINE + encode(known)


def read_marked(body: bytes) -> bytes | NotMine:
    """What an answer that begins with the mark says: a failure, or "not mine". Never raises."""
    head, rest = body[:2], body[2:]
    if head != NOT_MINE:
        return rest if head == FAILED else b""  # of a newer version: a failure that cannot be read
    try:
        return _decode_not_mine(rest)
    except MALFORMED:
        return NotMine()
