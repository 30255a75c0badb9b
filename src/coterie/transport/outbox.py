"""The outgoing frames of one connection: coalesced, sealed where needed, and bounded.

Frames of one turn of the loop are sent together (some hundreds at a time), those that a read caused when it is
processed, and a frame for which nothing else is pending at once (a lone call is a sixth faster for it).

What the socket does not accept is kept here. Above the bound nothing is read either, so that no more is requested of
us; at four times the bound the connection is closed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from coterie.kernel import metrics
from coterie.transport.protocol import encode as _encode

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from coterie.transport.in_flight import OutgoingRequests
    from coterie.transport.sealed_records import Sealer

HIGH_BYTES = 1024 * 1024
"""About how much is joined into one write at most."""

SOCKET_BYTES = 8 * 1024
"""What the event loop's own buffer holds before writing pauses. Low, since above it uvloop writes at once instead of
at the end of its turn: so the peer works on the first frames of a large turn while we still make the last ones."""

_EARLY = 2 * 200
"""After this many frames (two pieces each) of one turn the first ones are sent. One in flight pays nothing for it; with
1,000 in flight it measured 1.3 to 1.8 times the requests per second; with 64 frames less, with 128 to 256 alike."""

_GIVE_UP = 4
_SMALL_BYTES = 2_048
_pack = struct.Struct(">I").pack
_sent_frames, _sent_bytes = metrics.FRAMES.of("sent"), metrics.BYTES.of("sent")


class Outbox:
    """The queue of outgoing frames.

    Args:
        loop: Its turns count.
        transport: The destination.
        most_bytes: The bound.
        give_up: Called with a reason when too much is kept because the peer does not read.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        *,
        most_bytes: int,
        give_up: Callable[[str], None],
    ) -> None:
        self.calls: OutgoingRequests | None = None  # learns up to which request everything may have been sent
        self.sealer: Sealer | None = None
        self.frames: list[bytes] = []  # the queue, two pieces for each frame: its length and its body
        self.held_bytes = 0  # small frames of this turn are left out while the socket accepts everything
        self.is_holding = False  # a flush will come: at the end of a read, or of the loop's turn
        self.is_reading_paused = False
        self._loop = loop
        self._transport = transport
        self._most_bytes = most_bytes
        self._give_up = give_up
        self._paused = False
        self._closed = False
        self._unwritten_bytes = 0
        self._small_bytes = _SMALL_BYTES  # zero while every byte is counted: paused or closed
        transport.set_write_buffer_limits(high=SOCKET_BYTES)

    @property
    def is_full(self) -> bool:
        """Whether more is kept than the bound."""
        return self.held_bytes > self._most_bytes

    def send(self, frame: object, lone: bool = False) -> None:
        """Queue a frame; a lone one is sent at once."""
        body = _encode(frame)
        size = len(body)
        if size > self._small_bytes:
            self._send_counted(size, body)
            return
        frames, head = self.frames, _pack(size)
        if not self.is_holding:
            if lone and not frames:
                _sent_frames.value += 1
                self._write(head + body)
                return
            self.is_holding = True
            self._loop.call_soon(self._turn_over)
        frames.append(head)
        frames.append(body)
        if len(frames) >= _EARLY:
            self.flush()

    def _send_counted(self, size: int, body: bytes) -> None:
        if self._closed:
            return
        self.frames += (_pack(size), body)
        self.held_bytes += size + 4
        if not self.is_holding:
            self.is_holding = True
            self._loop.call_soon(self._turn_over)
        if self.is_full:
            self._crowded()

    def flush(self) -> None:
        """Write the queue, as far as the socket accepts it."""
        if self._paused or self._closed:
            return
        if self.held_bytes <= HIGH_BYTES:
            frames, self.frames, self.held_bytes = self.frames, [], 0
            if frames:
                _sent_frames.value += len(frames) // 2
                self._write(b"".join(frames))
            return
        while self.frames and not self._paused:
            self._write(self._piece())

    def pause(self) -> None:
        """The socket's buffer is full."""
        self._paused = True
        self._small_bytes = 0
        self.held_bytes = sum(map(len, self.frames))

    def resume(self) -> None:
        """There is room again."""
        self._paused = False
        self._small_bytes = 0 if self._closed else _SMALL_BYTES
        self.flush()
        if self.is_reading_paused and self.held_bytes * 2 <= self._most_bytes and not self._closed:
            self.is_reading_paused = False
            self._transport.resume_reading()

    def moves(self) -> bool:
        """Whether the peer has read something since the last call; used while nothing is read from it."""
        before, self._unwritten_bytes = self._unwritten_bytes, self._transport.get_write_buffer_size()
        return self.is_reading_paused and before != self._unwritten_bytes

    def close(self) -> None:
        """Write no more; what is kept is dropped, and was provably never sent."""
        self._closed = True
        self._small_bytes = 0
        self.frames.clear()
        self.held_bytes = 0

    def _turn_over(self) -> None:
        self.is_holding = False
        if self.frames:
            self.flush()

    def _write(self, data: bytes) -> None:
        calls, sealer = self.calls, self.sealer
        if calls is not None:
            # If only a part is written, more may be counted as sent than was: never less.
            calls.left_id = calls.last_id
        _sent_bytes.value += len(data)
        self._transport.write(data if sealer is None else sealer.seal(data))

    def _piece(self) -> bytes:
        """The first frames, together about what the socket's buffer holds."""
        size, count = 0, 0
        while count < len(self.frames) and size < HIGH_BYTES:
            size += len(self.frames[count]) + len(self.frames[count + 1])
            count += 2
        _sent_frames.value += count // 2
        piece = b"".join(self.frames[:count])
        del self.frames[:count]
        self.held_bytes = max(0, self.held_bytes - size)
        return piece

    def _crowded(self) -> None:
        self.flush()
        if self.is_full and not (self.is_reading_paused or self._closed):
            self.is_reading_paused = True
            self._transport.pause_reading()
        if self.held_bytes > self._most_bytes * _GIVE_UP:
            self._give_up(f"it reads nothing, and {self.held_bytes} bytes wait for it")
