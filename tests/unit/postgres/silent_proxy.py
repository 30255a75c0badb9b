"""A network between us and a server that goes silent."""

from __future__ import annotations

import asyncio
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
