"""A pooler in transaction mode: it lends a server's session for one transaction, and another one for the next.

    client ──frames──▶ the session it has on loan; none: the longest idle one, once there is one
    client ◀──frames── the session, until it is ready for the next transaction: then the loan is over

A login is the first loan: the client's own goes through to a new session, whatever proof the server wants, and the
session joins the others of its kind. Nothing is reset between two loans, so that whatever is left behind does harm.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit, urlunsplit

from coterie.kernel.service import Tasks

if TYPE_CHECKING:
    from collections.abc import Coroutine

_ENCRYPT = {80877103, 80877104}  # asks for TLS, for GSSAPI
_CANCEL = 80877102
_ANSWERED = {b"Q", b"S", b"F"}  # of what a client sends: each is answered by one ReadyForQuery
_READY, _KEY, _GOODBYE = b"Z", b"K", b"X"
_IDLE = b"I"  # outside of a transaction
_VERB_S = 120.0


class Pooler:
    """Stands between clients and one server as PgBouncer does with `pool_mode = transaction`.

    Use it with `with`. It lives in a thread of its own, so that a test that blocks does not slow it. It does not
    encrypt.

    Args:
        url: A database of the server.
        sessions: Server sessions at most, of each kind of login. Loans go round, so that no client keeps one.
    """

    def __init__(self, url: str, *, sessions: int = 6) -> None:
        self._url = urlsplit(url)
        self._server = self._url.hostname or "127.0.0.1", self._url.port or 5432
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pooler", daemon=True)
        self._tasks = Tasks("pooler")
        self._listener: asyncio.Server | None = None
        self._pools: defaultdict[bytes, _Pool] = defaultdict(lambda: _Pool(sessions))
        self._clients: dict[int, _Client] = {}
        self._numbers = 1 << 30  # of clients, in place of process ids: no process has such a one
        self.url = ""
        """The database, through the pooler."""
        self.moves = 0
        """How often a client got another session than it had before."""

    def __enter__(self) -> Self:
        """Take connections."""
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(self, *exc: object) -> None:
        """Drop all connections and end."""
        self._do(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_VERB_S)

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        user, at, _ = self._url.netloc.rpartition("@")
        port = self._listener.sockets[0].getsockname()[1]
        self.url = urlunsplit(self._url._replace(netloc=f"{user}{at}127.0.0.1:{port}"))

    async def _shut(self) -> None:
        if self._listener is not None:
            self._listener.close()
        await self._tasks.stop()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._numbers += 1
        self._tasks.spawn(self._serve(_Client(reader, writer, number=self._numbers)), name="client")

    async def _serve(self, client: _Client) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            try:
                code, login = await client.greet()
                if code == _CANCEL:
                    await self._cancel(login)
                else:
                    await self._pass_on(client, login)
            finally:
                self._clients.pop(client.number, None)
                client.leave()

    async def _pass_on(self, client: _Client, login: bytes) -> None:
        """From the login on: what a client sends goes to the session it has on loan."""
        pool = self._pools[login]
        self._clients[client.number] = client
        self._lend(await self._open(login, pool), client)
        while True:
            kind, frame = await _read(client.reader)
            if kind == _GOODBYE:
                return
            if client.session is None:
                self._lend(await pool.take(), client)
            assert client.session is not None
            await client.session.send(kind, frame)

    def _lend(self, session: _Session, client: _Client) -> None:
        self.moves += client.last not in (None, session)
        session.client, client.session, client.last = client, session, session

    async def _open(self, login: bytes, pool: _Pool) -> _Session:
        session = _Session(*await asyncio.open_connection(*self._server), pool=pool)
        session.writer.write(login)
        session.waiting = 1
        pool.live[session] = None
        self._tasks.spawn(session.answer(), name="session")
        return session

    async def _cancel(self, request: bytes) -> None:
        """Pass on the wish to cancel what a client runs, under the key of the session that runs it."""
        (number,) = struct.unpack("!i", request[8:12])
        client = self._clients.get(number)
        if client is not None and client.session is not None:
            _, writer = await asyncio.open_connection(*self._server)
            writer.write(request[:8] + client.session.key)
            await writer.drain()
            writer.close()


class _Client:
    """One connection of a client, and what it has on loan."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, number: int) -> None:
        self.reader, self.writer, self.number = reader, writer, number
        self.session: _Session | None = None
        self.last: _Session | None = None

    async def greet(self) -> tuple[int, bytes]:
        """The first thing it asks for, other than encryption."""
        while True:
            head = await self.reader.readexactly(8)
            size, code = struct.unpack("!ii", head)
            if code not in _ENCRYPT:
                return code, head + await self.reader.readexactly(size - 8)
            self.writer.write(b"N")

    def leave(self) -> None:
        """Go; a transaction that is still open goes too."""
        self.writer.transport.abort()
        if self.session is not None:
            self.session.end()


class _Session:
    """One session of the server, idle or on loan."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, pool: _Pool) -> None:
        self.reader, self.writer = reader, writer
        self.client: _Client | None = None
        self.key = b""
        self.waiting = 0  # for so many answers
        self._pool = pool

    async def send(self, kind: bytes, frame: bytes) -> None:
        self.waiting += kind in _ANSWERED
        self.writer.write(frame)
        await self.writer.drain()

    async def answer(self) -> None:
        """Pass on what the server says to whoever has the session, until the server or the client is gone."""
        with suppress(OSError, asyncio.IncompleteReadError):
            try:
                while True:
                    await self._pass_on(*await _read(self.reader))
            finally:
                self._pool.live.pop(self, None)
                self._pool.idle.put_nowait(self)  # whoever waits must learn of it
                self.writer.transport.abort()
                if self.client is not None:
                    self.client.writer.transport.abort()

    async def _pass_on(self, kind: bytes, frame: bytes) -> None:
        if self.client is None:
            return  # said to nobody: a setting has changed, the server is about to go
        if kind == _KEY:
            self.key, frame = frame[5:], frame[:5] + struct.pack("!ii", self.client.number, 0)
        self.client.writer.write(frame)
        if kind == _READY:
            self.waiting -= 1
            if frame[5:] == _IDLE and not self.waiting:
                self.client.session, self.client = None, None
                self._pool.give_back(self)
                return
        await self.client.writer.drain()

    def end(self) -> None:
        """Close it; the server rolls back."""
        self.client = None
        self._pool.live.pop(self, None)
        self.writer.transport.abort()


class _Pool:
    """The sessions of one kind of login: same user, database and parameters."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.live: dict[_Session, None] = {}
        self.idle: asyncio.Queue[_Session] = asyncio.Queue()

    async def take(self) -> _Session:
        """The longest idle one. If there is none any more the client is cut off, and its next login brings one."""
        while self.live:
            session = await self.idle.get()
            if session in self.live:
                return session
            if not self.live:
                self.idle.put_nowait(session)  # others who wait must learn of it too
        raise ConnectionResetError("the server has ended all sessions")

    def give_back(self, session: _Session) -> None:
        """It is idle; the longest idle one goes if there are too many."""
        self.idle.put_nowait(session)
        while len(self.live) > self._most and not self.idle.empty():
            self.idle.get_nowait().end()


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """One message: its kind, and all of it."""
    head = await reader.readexactly(5)
    (size,) = struct.unpack("!i", head[1:])
    return head[:1], head + await reader.readexactly(size - 4)
