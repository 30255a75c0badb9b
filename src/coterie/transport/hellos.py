"""The first message of a handshake, in its one fixed form: versions, who speaks, and a nonce."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Literal, NamedTuple

from coterie.transport.frames import Refused

if TYPE_CHECKING:
    from coterie.transport.identity import Identity

Role = Literal["client", "server"]

MAGIC = b"coterie\n"  # ends in a line feed: a peer that speaks text fails at once
NONCE_BYTES = 32
INCARNATION_BYTES = 32

_SEAL = 1
_KIND = {"client": b"CLNT", "server": b"SRVR"}
_FORM = struct.Struct(f">8s4sBHH{INCARNATION_BYTES}s{NONCE_BYTES}s")  # magic, kind, flags, versions, who, nonce

HELLO_BYTES = _FORM.size


class Hello(NamedTuple):
    """One end's first message: the fields that are looked at, and the bytes that the proofs cover."""

    seals: bool
    newest: int
    least: int
    incarnation: bytes
    nonce: bytes
    raw: bytes

    @staticmethod
    def of(me: Identity, *, role: Role, seal: bool, nonce: bytes) -> Hello:
        """What this end says."""
        who = me.incarnation.encode("ascii")
        if not 1 <= len(who) <= INCARNATION_BYTES or b"\0" in who:
            raise ValueError(f"an incarnation has 1 to {INCARNATION_BYTES} ASCII characters, not {me.incarnation!r}")
        flags = _SEAL if seal else 0
        return Hello.read(_FORM.pack(MAGIC, _KIND[role], flags, me.protocol, me.protocol_least, who, nonce))

    @staticmethod
    def read(raw: bytes) -> Hello:
        """What the other end said. Any bytes of the right size are a hello; the proofs show whether it is true."""
        _, _, flags, newest, least, who, nonce = _FORM.unpack(raw)
        return Hello(bool(flags & _SEAL), newest, least, who, nonce, raw)


def require_beginning(buffer: bytes, role: Role) -> None:
    """Refuse as soon as the first bytes are wrong: a stranger's port, HTTP, our own hello sent back."""
    expected = MAGIC + _KIND[role]
    if not expected.startswith(buffer[: len(expected)]):
        raise Refused("it does not speak the protocol of coterie")
