"""Things between us and a server: a network that goes silent, and a pooler that lends sessions per transaction."""

from __future__ import annotations

import asyncio
import struct
from typing import Self


class Proxy:
    """Passes bytes on, until it is told to swallow them: connections stay open, nothing answers."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._writers: list[asyncio.StreamWriter] = []
        self._serving: list[asyncio.Task[None]] = []
        self.silent = False
        self.accepted = 0

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._listener.close()
        self.cut()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def cut(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._serving.append(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._writers += [writer, back]
        await asyncio.gather(self._pass(reader, back), self._pass(there, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if not self.silent:
                    writer.write(data)
        except OSError:
            pass
        if not self.silent:
            writer.transport.abort()


class TransactionPooler(Proxy):
    """Lends a server session from the first message of a transaction to its end, the longest idle one first."""

    def __init__(self, port: int, *, user: str, database: str, sessions: int = 3) -> None:
        super().__init__(port)
        self._startup = _message(b"", struct.pack("!i", 196608) + f"user\0{user}\0database\0{database}\0\0".encode())
        self._sessions = sessions
        self._idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._greeting = b""

    async def __aenter__(self) -> Self:
        for _ in range(self._sessions):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._server_port)
            self._writers.append(writer)
            writer.write(self._startup)
            self._greeting, _ = await _until_ready(reader)
            self._idle.put_nowait((reader, writer))
        return await super().__aenter__()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            await self._greet(reader, writer)
            while True:
                await self._transaction(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            (size,) = struct.unpack("!i", await reader.readexactly(4))
            (code,) = struct.unpack("!i", (await reader.readexactly(size - 4))[:4])
            if code == 196608:
                break
            writer.write(b"N")  # no encryption
        writer.write(self._greeting)

    async def _transaction(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kind, first = await _read(reader)
        session = await self._idle.get()
        there, back = session
        back.write(first)
        forward = asyncio.create_task(self._forward(reader, back))
        try:
            if kind == b"X":
                raise ConnectionResetError
            while True:
                kind, answer = await _read(there)
                writer.write(answer)
                if kind == b"Z" and answer[-1:] == b"I":
                    return
        finally:
            forward.cancel()
            await asyncio.gather(forward, return_exceptions=True)
            self._idle.put_nowait(session)

    async def _forward(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        while True:
            _, message = await _read(reader)
            back.write(message)


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    (size,) = struct.unpack("!i", head[1:])
    return head[:1], head + await reader.readexactly(size - 4)


async def _until_ready(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    greeting = b""
    while True:
        kind, message = await _read(reader)
        greeting += message
        if kind == b"Z":
            return greeting, message


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body
