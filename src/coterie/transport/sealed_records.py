"""Sealed records: off loopback without TLS no third party can add, repeat, reorder, drop or change what runners send.

    length (4 bytes)  MAC (16 bytes)  payload

Each direction has its own key, which both ends derive in the handshake. The MAC covers the record's number and its
payload; both ends count, so the number is not sent. A record is verified before any of it is passed on, and its length
is limited, so what waits for verification is bounded.

Not promised: secrecy (use TLS), and noticing that the connection was cut between two records: that looks like a peer
that went away, and is treated so.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

from coterie.transport.protocol import ProtocolError

RECORD_MOST_BYTES = 256 * 1024
"""The largest payload of one record; a longer write becomes several. As much as one read of a socket returns."""

MAC_BYTES = 16
KEY_BYTES = 32

_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_HEAD_BYTES = _LENGTH.size + MAC_BYTES


class Sealer:
    """Seals one direction of one connection."""

    def __init__(self, key: bytes) -> None:
        self._macs = _Macs(key)

    def seal(self, write: bytes) -> bytes:
        """The write as one record, or as several if it is long."""
        if len(write) <= RECORD_MOST_BYTES:
            return self._record(write) if write else b""
        pieces = (write[at : at + RECORD_MOST_BYTES] for at in range(0, len(write), RECORD_MOST_BYTES))
        return b"".join(map(self._record, pieces))

    def _record(self, payload: bytes) -> bytes:
        return b"".join((_LENGTH.pack(len(payload)), self._macs.next(payload), payload))


class Opener:
    """Opens the other direction.

    Promise:
        Its output is what the other end sealed, whole, in order and once. Anything else raises `ProtocolError`, then
        and ever after; never more than one record is kept.
    """

    def __init__(self, key: bytes) -> None:
        self._macs = _Macs(key)
        self._buffer = bytearray()
        self._need_bytes = 0  # how long the buffer must be before there is anything new to parse
        self._broken = False

    def open(self, data: bytes) -> list[bytes]:
        """The payloads that are complete and verified, for data in any split."""
        if self._broken:
            raise ProtocolError("a sealed record was not genuine: nothing after it is read")
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._need_bytes:
                return []
            data = bytes(self._buffer)
        payloads, at = [], 0
        while (end := self._end(data, at)) <= len(data):
            payload = data[at + _HEAD_BYTES : end]
            if not hmac.compare_digest(self._macs.next(payload), data[at + _LENGTH.size : at + _HEAD_BYTES]):
                raise self._refusal("a sealed record is not genuine: it was changed, repeated, moved or made up")
            payloads.append(payload)
            at = end
        if self._buffer or at < len(data):  # usually neither: writes arrive as they were sent
            self._buffer = bytearray(data[at:])
            self._need_bytes = end - at
        return payloads

    def end(self) -> None:
        """The connection has ended: raise if that is in the middle of a record."""
        if self._buffer:
            raise self._refusal(f"the connection ended {len(self._buffer)} bytes into a sealed record")

    def _end(self, data: bytes, at: int) -> int:
        """Where the record at `at` ends, or its header while that is incomplete."""
        if len(data) - at < _LENGTH.size:
            return at + _HEAD_BYTES
        (size_bytes,) = _LENGTH.unpack_from(data, at)
        if not 0 < size_bytes <= RECORD_MOST_BYTES:
            raise self._refusal(f"a sealed record of {size_bytes} bytes is announced, {RECORD_MOST_BYTES} is the most")
        return at + _HEAD_BYTES + int(size_bytes)

    def _refusal(self, reason: str) -> ProtocolError:
        self._broken = True
        self._buffer.clear()
        return ProtocolError(reason)


class _Macs:
    """The MACs of one direction, one after the other."""

    def __init__(self, key: bytes) -> None:
        assert len(key) == KEY_BYTES, "a session key has one size"
        self._keyed = hashlib.blake2b(key=key, digest_size=MAC_BYTES, person=b"coterie record")
        self._count = 0

    def next(self, payload: bytes) -> bytes:
        mac = self._keyed.copy()  # half the price of keying again
        mac.update(_NUMBER.pack(self._count))
        mac.update(payload)
        self._count += 1
        return mac.digest()
