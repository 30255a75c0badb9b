"""The handshake: both ends prove that they know the cluster's secret, before anything else is read. No I/O.

    client                                      server
      │  hello    magic, versions, incarnation, nonce  │
      │ ─────────────────────────────────────────────▶ │
      │    hello  magic, versions, incarnation, nonce  │
      │ ◀───────────────────────────────────────────── │
      │  proof    under each of the client's secrets   │
      │ ─────────────────────────────────────────────▶ │  the client is authenticated: done
      │    proof  under the secret that both know      │
      │ ◀───────────────────────────────────────────── │
      ▼  the server is authenticated: done             ▼

A hello has one fixed form. A proof is an HMAC over its direction and everything sent before, so a recorded one does not
fit fresh nonces, one that is sent back does not fit its direction, and a changed version or flag fits nothing. The
client proves itself first: a process that merely connects to a port gets nothing that depends on the secret.

What a proof reveals only to those who know the secret is checked after it: cluster, then incarnation. All
messages have a fixed size; an unauthenticated peer can make us keep 209 bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from coterie.transport.protocol import Refused
from coterie.transport.sealed_records import Opener, Sealer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.kernel.random import Random
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
    """One end's first message: the fields that are read, and the bytes that the proofs cover."""

    seals: bool
    newest: int
    least: int
    incarnation: bytes
    nonce: bytes
    raw: bytes

    @staticmethod
    def of(me: Identity, *, role: Role, seal: bool, nonce: bytes) -> Hello:
        """The hello of this end."""
        who = me.incarnation.encode("ascii")
        if not 1 <= len(who) <= INCARNATION_BYTES or b"\0" in who:
            raise ValueError(f"an incarnation has 1 to {INCARNATION_BYTES} ASCII characters, not {me.incarnation!r}")
        flags = _SEAL if seal else 0
        return Hello.read(_FORM.pack(MAGIC, _KIND[role], flags, me.protocol, me.protocol_least, who, nonce))

    @staticmethod
    def read(raw: bytes) -> Hello:
        """Parse the hello of the other end. Any bytes of the right size are one; the proofs show if it is genuine."""
        _, _, flags, newest, least, who, nonce = _FORM.unpack(raw)
        return Hello(bool(flags & _SEAL), newest, least, who, nonce, raw)


def require_beginning(buffer: bytes, role: Role) -> None:
    """Refuse as soon as the first bytes are wrong: another program's port, HTTP, our own hello sent back."""
    expected = MAGIC + _KIND[role]
    if not expected.startswith(buffer[: len(expected)]):
        raise Refused("it does not speak the protocol of coterie")


SECRETS_MOST = 2
SECRET_LEAST_BYTES = 16

_PART_BYTES = 32 + 32  # which cluster, and the proof
_PROOF_BYTES = {"client": SECRETS_MOST * _PART_BYTES, "server": _PART_BYTES}

BYTES_MOST = max(HELLO_BYTES + size_bytes for size_bytes in _PROOF_BYTES.values())
"""What one end reads before the other has proved itself."""


class OtherIncarnation(Refused):
    """The other end has proved that it belongs to the cluster, and that it is not the one we look for [M2]."""

    def __init__(self, *, expected: str, found: str) -> None:
        super().__init__(f"runner {expected} is no longer there: {found} answers at its address")
        self.expected = expected
        self.found = found


@dataclass(frozen=True)
class Established:
    """The result of a handshake, all of it proved.

    Args:
        peer: The other end's incarnation.
        protocol: The newest version that both support.
        leftover: Bytes that came right after the handshake; sealed if the connection is.
        sealer: Seals what is sent; None if nothing is sealed.
        opener: Opens what arrives.
    """

    peer: str
    protocol: int
    leftover: bytes = field(repr=False)
    sealer: Sealer | None
    opener: Opener | None


class Handshake:
    """One end of one handshake.

    Args:
        role: The client connects and sends first.
        me: The identity that this end proves.
        secrets: The secrets to prove it with: one, or two during rotation.
        chance: Source of the nonce.
        expects: The incarnation that a client looks for; None if any will do.
        seal: Whether this end wants the connection sealed (off loopback, without TLS); it is if either end wants it.

    Promise:
        `done` is set only if the other end knows one of the secrets, in this very connection, names the same
        cluster, and both have read the same versions and flags. Timing reveals nothing else.

        Not promised:
            Secrecy: the handshake hides the secret, and nothing else. Use TLS for that.
    """

    def __init__(
        self,
        *,
        role: Role,
        me: Identity,
        secrets: Sequence[bytes],
        chance: Random,
        expects: str | None = None,
        seal: bool,
    ) -> None:
        if not 1 <= len(secrets) <= SECRETS_MOST or any(len(one) < SECRET_LEAST_BYTES for one in secrets):
            raise ValueError(f"a handshake takes 1 or {SECRETS_MOST} secrets of at least {SECRET_LEAST_BYTES} bytes")
        self.done: Established | None = None
        self._role: Role = role
        self._other: Role = "server" if role == "client" else "client"
        self._me = me
        self._secrets = tuple(secrets)
        self._expects = expects
        self._mine = Hello.of(me, role=role, seal=seal, nonce=chance.token(NONCE_BYTES))
        self._theirs: Hello | None = None
        self._said = b""  # the client's proof, once sent and checked: the server's proof covers it
        self._buffer = b""
        self._failed: Refused | None = None

    def begin(self) -> bytes:
        """What to send first: the client's hello; nothing for a server."""
        return self._mine.raw if self._role == "client" else b""

    def receive(self, data: bytes) -> bytes:
        """Process received bytes, in any split. Returns: what to send now, if anything.

        Raises:
            Refused: One end refuses the other: close, without an answer.
        """
        if self._failed is not None:
            raise self._failed
        assert self.done is None, "what comes after the handshake belongs to the connection"
        try:
            return self._receive(data)
        except Refused as refused:
            self._failed = refused
            raise

    def closed(self) -> Refused:
        """The error to report if the other end closed the connection now."""
        if self._role == "client" and self._theirs is not None:
            return Refused("the other end closed after our proof: it has another secret, or is another cluster")
        return Refused(f"the other end closed in the middle of the handshake, after {len(self._buffer)} bytes")

    def _receive(self, data: bytes) -> bytes:
        self._buffer += data
        last = self._role == "client" and self._theirs is not None
        wanted = HELLO_BYTES if self._theirs is None else _PROOF_BYTES[self._other]
        if self._theirs is None:
            require_beginning(self._buffer, self._other)
        if len(self._buffer) < wanted:
            return b""
        message, rest = self._buffer[:wanted], self._buffer[wanted:]
        if rest and not last:  # a peer that sends out of turn does not know the protocol
            raise Refused("it sent more than the handshake asks for")
        self._buffer = b""
        if self._theirs is None:
            return self._greeted(message)
        if self._role == "server":
            return self._judge_client(message)
        self._judge_server(message, leftover=rest)
        return b""

    def _greeted(self, message: bytes) -> bytes:
        self._theirs = Hello.read(message)
        if self._theirs.nonce == self._mine.nonce:
            raise Refused("it sent our own challenge back")
        if self._role == "server":
            return self._mine.raw  # also if versions do not fit: so the client can say what does not
        self._version()
        proofs = [self._prove("client", secret) for secret in self._secrets]
        self._said = b"".join((proofs * SECRETS_MOST)[:SECRETS_MOST])
        return self._said

    def _judge_client(self, message: bytes) -> bytes:
        parts = [message[at : at + _PART_BYTES] for at in range(0, len(message), _PART_BYTES)]
        # Every part against every secret, also after one has fitted: timing reveals nothing.
        found = [(part, secret) for secret in self._secrets for part in parts if self._fits("client", part, secret)]
        if not found:
            raise Refused("it does not know the secret of this cluster")
        part, secret = found[0]
        self._require_cluster("client", part, secret)
        version = self._version()
        self._said = message
        proof = self._prove("server", secret)
        self._establish(secret, version, leftover=b"")
        return proof

    def _judge_server(self, message: bytes, *, leftover: bytes) -> None:
        found = [secret for secret in self._secrets if self._fits("server", message, secret)]
        if not found:
            raise Refused("it does not know the secret of this cluster")
        self._require_cluster("server", message, found[0])
        peer = self._peer()
        if self._expects is not None and peer != self._expects:
            raise OtherIncarnation(expected=self._expects, found=peer)
        self._establish(found[0], self._version(), leftover=leftover)

    def _prove(self, role: Role, secret: bytes) -> bytes:
        cluster = self._cluster(role, secret)
        return cluster + self._mac(f"{role} proof", secret, cluster)

    def _fits(self, role: Role, part: bytes, secret: bytes) -> bool:
        return hmac.compare_digest(self._mac(f"{role} proof", secret, part[:32]), part[32:])

    def _require_cluster(self, role: Role, part: bytes, secret: bytes) -> None:
        if not hmac.compare_digest(self._cluster(role, secret), part[:32]):
            raise Refused(f"it belongs to another cluster than {self._me.cluster!r} (with the same secret)")

    def _cluster(self, role: Role, secret: bytes) -> bytes:
        """A digest of the cluster's name, which can be compared only with the secret."""
        return self._mac(f"{role} cluster", secret, hashlib.sha256(self._me.cluster.encode()).digest())

    def _mac(self, label: str, secret: bytes, rest: bytes) -> bytes:
        """A MAC over the label, both hellos (nonces, incarnations, versions, flags), and what was sent since."""
        head = f"coterie {label}".encode().ljust(32, b"\0")
        hellos = b"".join(hello.raw for hello in self._hellos())
        return hmac.digest(secret, head + hellos + hashlib.sha256(self._said).digest() + rest, "sha256")

    def _version(self) -> int:
        mine, theirs = self._mine, self._known()
        newest = min(mine.newest, theirs.newest)
        if newest < max(mine.least, theirs.least):
            raise Refused(
                f"it speaks protocol {theirs.least} to {theirs.newest}, this program {mine.least} to {mine.newest}"
            )
        return newest

    def _establish(self, secret: bytes, version: int, *, leftover: bytes) -> None:
        sealer, opener = None, None
        if any(hello.seals for hello in self._hellos()):
            sealer = Sealer(self._mac(f"session {self._role}", secret, b""))
            opener = Opener(self._mac(f"session {self._other}", secret, b""))
        self.done = Established(self._peer(), version, leftover, sealer, opener)

    def _peer(self) -> str:
        try:
            return self._known().incarnation.rstrip(b"\0").decode("ascii")
        except UnicodeDecodeError:
            raise Refused("its incarnation is not ASCII") from None

    def _hellos(self) -> tuple[Hello, Hello]:
        pair = self._mine, self._known()
        return pair if self._role == "client" else pair[::-1]

    def _known(self) -> Hello:
        assert self._theirs is not None, "nothing is judged before both have greeted"
        return self._theirs
