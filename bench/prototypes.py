"""Prototypes of our transport, to see what it costs beyond the work that any would have to do."""

from __future__ import annotations

import asyncio
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from bench.peers import connect, listen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from bench.peers import Call

_LENGTH = struct.Struct(">I")

# Bare frames: the shape of our transport without handshake, limits, deadlines, back-pressure and cancellation.


class _Frame(msgspec.Struct, array_like=True, gc=False):
    id: int
    body: bytes


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(_Frame).decode


class _Bare(asyncio.Protocol):
    def __init__(self) -> None:
        self.buffer = b""
        self.out: list[bytes] = []
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def send(self, frame: _Frame) -> None:
        body = _ENCODE(frame)
        if not self.out:
            self.loop.call_soon(self._flush)
        self.out.append(_LENGTH.pack(len(body)))
        self.out.append(body)

    def _flush(self) -> None:
        self.transport.write(b"".join(self.out))
        self.out.clear()

    def data_received(self, data: bytes) -> None:
        buffer = self.buffer + data if self.buffer else data
        at, size = 0, len(buffer)
        while size - at >= 4:
            end = at + 4 + _LENGTH.unpack_from(buffer, at)[0]
            if end > size:
                break
            self.received(_DECODE(buffer[at + 4 : end]))
            at = end
        self.buffer = buffer[at:]

    def received(self, frame: _Frame) -> None:
        raise NotImplementedError


class _BareInline(_Bare):
    def received(self, frame: _Frame) -> None:
        self.send(frame)


class _BareTask(_Bare):
    def received(self, frame: _Frame) -> None:
        self.loop.create_task(self._handle(frame))

    async def _handle(self, frame: _Frame) -> None:
        self.send(frame)


class _BareCaller(_Bare):
    def __init__(self) -> None:
        super().__init__()
        self.last = 0
        self.waiting: dict[int, asyncio.Future[bytes]] = {}

    def call(self, body: bytes) -> Awaitable[bytes]:
        self.last += 1
        waiter = self.waiting[self.last] = self.loop.create_future()
        self.send(_Frame(self.last, body))
        return waiter

    def received(self, frame: _Frame) -> None:
        self.waiting.pop(frame.id).set_result(frame.body)


async def serve_bare_inline() -> str:
    return await listen(_BareInline)


async def serve_bare_task() -> str:
    return await listen(_BareTask)


@asynccontextmanager
async def call_bare(address: str) -> AsyncIterator[Call]:
    caller = await connect(address, _BareCaller)
    yield caller.call
    caller.transport.close()


# Bare frames of the same shape: our envelopes, the table of calls, deadlines and cancellation; no handshake, no bounds,
# no back-pressure, no streams, no sealing. Written as fast as we know how: what ours costs beyond it is what it keeps.
# It also leaves out what any transport that is used must do: it takes frames of any length, breaks by a malformed one,
# tells no caller when the connection is lost and sees no silence on it, is up to a second late with deadlines, keeps
# them from the handler, and cancels no handler that has begun.


class _Ask(msgspec.Struct, array_like=True, tag=1, gc=False):
    id: int
    route: int
    body: bytes
    left_ms: int = 0
    headers: bytes = b""
    window_bytes: int = 0


class _Answer(msgspec.Struct, array_like=True, tag=2, gc=False):
    id: int
    body: bytes


class _Leave(msgspec.Struct, array_like=True, tag=4, gc=False):
    id: int


_DECODE_SAME = msgspec.msgpack.Decoder(_Ask | _Answer | _Leave).decode
_pack, _unpack_from = _LENGTH.pack, _LENGTH.unpack_from


def _echo(body: bytes) -> bytes:
    return body


class _Same(asyncio.Protocol):
    def __init__(self) -> None:
        self.buffer = b""
        self.out: list[bytes] = []
        self.loop = asyncio.get_running_loop()
        self.kinds: dict[type, Callable[[Any], None]] = {}
        self.handle = _echo  # not a part of the server: ours is called, too

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        transport.set_write_buffer_limits(high=8 * 1024)  # type: ignore[attr-defined] # as ours: large turns leave early

    def send(self, frame: Any) -> None:
        body, out = _ENCODE(frame), self.out
        if not out:
            self.loop.call_soon(self._flush)
        out.append(_pack(len(body)))
        out.append(body)
        if len(out) >= 400:
            self._flush()

    def _flush(self) -> None:
        if self.out:
            self.transport.write(b"".join(self.out))
            self.out.clear()

    def data_received(self, data: bytes) -> None:
        buffer = self.buffer + data if self.buffer else data
        at, size, kinds = 0, len(buffer), self.kinds
        while size - at >= 4:
            end = at + 4 + _unpack_from(buffer, at)[0]
            if end > size:
                break
            frame = _DECODE_SAME(buffer[at + 4 : end])
            kinds[type(frame)](frame)
            at = end
        self.buffer = buffer[at:]


class _SameInline(_Same):
    def __init__(self) -> None:
        super().__init__()
        self.kinds = {_Ask: self.asked, _Leave: lambda _: None}

    def asked(self, frame: _Ask) -> None:
        self.send(_Answer(frame.id, self.handle(frame.body)))


class _SameTask(_Same):
    def __init__(self) -> None:
        super().__init__()
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.kinds = {_Ask: self.asked, _Leave: self.left}

    def asked(self, frame: _Ask) -> None:
        self.tasks[frame.id] = self.loop.create_task(self._handle(frame))

    async def _handle(self, frame: _Ask) -> None:
        del self.tasks[frame.id]
        self.send(_Answer(frame.id, self.handle(frame.body)))

    def left(self, frame: _Leave) -> None:
        if task := self.tasks.pop(frame.id, None):
            task.cancel()


class _SameCaller(_Same):
    def __init__(self) -> None:
        super().__init__()
        self.last = 0
        self.waiting: dict[int, tuple[asyncio.Future[bytes], float]] = {}
        self.kinds = {_Answer: self.answered}
        self.loop.call_later(1, self.sweep)

    async def call(self, route: int, body: bytes, *, within_s: float) -> bytes:
        number = self.last = self.last + 1
        waiter: asyncio.Future[bytes] = self.loop.create_future()
        self.waiting[number] = (waiter, self.loop.time() + within_s)
        self.send(_Ask(number, route, body, int(within_s * 1000)))
        try:
            return await waiter
        except asyncio.CancelledError:
            if self.waiting.pop(number, None) is not None:
                self.send(_Leave(number))
            raise

    def answered(self, frame: _Answer) -> None:
        found = self.waiting.pop(frame.id, None)
        if found is not None and not found[0].cancelled():
            found[0].set_result(frame.body)

    def sweep(self) -> None:
        now_s = self.loop.time()
        for number, (waiter, until_s) in list(self.waiting.items()):
            if until_s <= now_s:
                waiter.set_exception(TimeoutError())
                del self.waiting[number]
        self.loop.call_later(1, self.sweep)


async def serve_same_inline() -> str:
    return await listen(_SameInline)


async def serve_same_task() -> str:
    return await listen(_SameTask)


@asynccontextmanager
async def call_same(address: str) -> AsyncIterator[Call]:
    caller = await connect(address, _SameCaller)
    call = caller.call
    yield lambda body: call(1, body, within_s=30.0)
    caller.transport.close()
