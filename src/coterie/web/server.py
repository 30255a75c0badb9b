"""The HTTP server of a runner: uvicorn as a task of our event loop, from before the runner starts until after it
stopped.

It listens on the address of `http_listen`, or on the next free port if that is the default. `cluster.run` owns the
signals, so uvicorn handles none; it neither configures logging nor logs requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import uvicorn

from coterie.errors import ConfigurationError
from coterie.kernel.service import Service, Tasks
from coterie.kernel.supervisor import Supervisor
from coterie.settings.parsers import split_address
from coterie.transport.identity import is_loopback
from coterie.transport.listener import Plug, Refusals
from coterie.web import limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp

    from coterie.settings import Settings


TRIED_MOST = 100
"""Ports to try, from the default one upwards; with more runners on one machine, `http_listen` must be set."""


@dataclass(frozen=True, slots=True)
class BoundSocket:
    """A listening socket; connections are not accepted yet."""

    socket: socket.socket
    host: str
    port: int
    wanted: int
    """The requested port."""

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def was_taken(self) -> bool:
        """Whether the requested port was in use."""
        return self.wanted not in (0, self.port)


def bind(settings: Settings, *, number: int = 1) -> BoundSocket:
    """Bind the port of `http_listen`, or the next free one if that is the default.

    Args:
        settings: The settings with `http_listen`.
        number: Number of this process among several with these settings. The first one binds the port itself; the
            others search for a free port from their own offset on, so that they never take the first one's.

    Raises:
        ConfigurationError: The port was set and is in use, or it cannot be bound at all.
    """
    assert settings.http_listen is not None, "off serves nothing"
    host, wanted = split_address(settings.http_listen)
    may_move = wanted != 0 and (number > 1 or settings.origin("http_listen") == "default")
    wanted += number - 1 if may_move else 0
    ports = range(wanted, min(wanted + TRIED_MOST, 65536)) if may_move else [wanted]
    for port in ports:
        try:
            opened = _bind(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _refusal(settings, f"it cannot be bound, {error.strerror or error}") from None
        else:
            name, bound = opened.getsockname()[:2]
            return BoundSocket(opened, host=name, port=bound, wanted=wanted)
    raise _refusal(settings, "this port is taken" + (f", and {len(ports) - 1} after it, too" if len(ports) > 1 else ""))


def _bind(host: str, port: int) -> socket.socket:
    # A name that resolves to several addresses gets one listener, on the first of them.
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen()  # else two processes could bind it, and the second would fail only when it listens
    except BaseException:
        opened.close()
        raise
    return opened


def _refusal(settings: Settings, problem: str) -> ConfigurationError:
    return ConfigurationError(
        problem=f"http_listen is {settings.http_listen}: {problem}",
        hint="choose another port, 0 for any free one, or off to serve neither probes nor metrics",
    )


log = logging.getLogger("coterie")

CLOSED_WITHIN_S = 1
"""Time limit for open responses, streams too, when the server closes: the runner has stopped, the process waits."""
_SPARE_S = 1
_TICK_S = 1.0
"""Between two updates of the Date header."""


class HttpServer(Service):
    """Serves an application at `http_listen`.

    Args:
        app: The application.
        settings: The settings with `http_listen`.
        number: Number of this process among several with these settings: see `bind`.
        supervisor: The one of this process.

    Promise:
        Stopping it takes little more than `CLOSED_WITHIN_S`, whatever is connected.
    """

    def __init__(
        self, app: ASGIApp, settings: Settings, *, number: int = 1, supervisor: Supervisor | None = None
    ) -> None:
        super().__init__(what=f"the HTTP server at {settings.http_listen}")
        self._settings = settings
        self._number = number
        self._refusals = Refusals(what="request")
        most = limits.PAGE_LIMITS if settings.http_calls is None else limits.CALL_LIMITS
        self._server = _Server(
            uvicorn.Config(
                app,
                http=partial(limits.Bounded, self._refusals, most),  # type: ignore[arg-type]  # a factory does
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,  # forwarding headers are not trusted: see `application`
                server_header=False,
                h11_max_incomplete_event_size=limits.HEAD_MOST_BYTES,
                timeout_keep_alive=limits.KEPT_S,
                timeout_graceful_shutdown=CLOSED_WITHIN_S + _SPARE_S,
            ),
            supervisor or Supervisor(),
        )
        self._apart = Tasks(self.what)  # `stop` cancels the service's own tasks at once; this one has to end in order
        self._bound: BoundSocket | None = None
        self._plug: Plug | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The URL of the server."""
        assert self._bound is not None, "it is started"
        return self._bound.url

    @property
    def moved_from(self) -> int | None:
        """The requested port, if it was in use."""
        assert self._bound is not None, "it is started"
        return self._bound.wanted if self._bound.was_taken else None

    @property
    def announcement(self) -> str:
        """One line for the person who started the process."""
        assert self._bound is not None, "it is started"
        taken = f" (port {self._bound.wanted} is taken)" if self._bound.was_taken else ""
        page = "" if self._settings.web == "off" else "page, "
        return f"{page}probes and metrics at {self.url}{taken}"

    async def _start(self) -> None:
        self._bound = bind(self._settings, number=self._number)
        if not is_loopback(self._bound.host):
            log.warning("%s is reachable from other machines, %s", self.url, self._exposed())
        self._plug = Plug(self._bound.socket)
        self._serving = self._apart.spawn(self._serve(self._bound.socket), name="serve")
        await self._server.began.wait()
        if self._serving.done():
            await self._serving  # raises the error that kept it from serving

    def _exposed(self) -> str:
        if self._settings.http_token is not None:
            return "without TLS: http_token travels in the clear"
        return (
            "without http_token: every client can read whether this runner is alive, has started and is ready, "
            "and nothing else"
        )

    async def _serve(self, listener: socket.socket) -> None:
        try:
            await self._server.serve([listener])
        finally:
            self._server.began.set()  # wakes the waiters, which see that it did not start

    async def _stop(self) -> None:
        self._server.ask_to_end()
        try:
            async with asyncio.timeout(CLOSED_WITHIN_S + 2 * _SPARE_S):
                await asyncio.gather(*([self._serving] if self._serving else []), return_exceptions=True)
        except TimeoutError:
            log.warning("%s did not close in time and is cut off", self.what)
        finally:
            await self._apart.stop()
            self._refusals.flush()
            if self._bound is not None and self._plug is not None:
                self._plug.pull()
                self._bound.socket.close()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, and without polling ten times a second whether to exit."""

    def __init__(self, config: uvicorn.Config, supervisor: Supervisor) -> None:
        super().__init__(config)
        self._supervisor = supervisor
        self._ticking = Tasks("uvicorn")
        self.began = asyncio.Event()
        self._asked = asyncio.Event()

    def ask_to_end(self) -> None:
        """Have it close, or not even start."""
        self.should_exit = True
        self._asked.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none: `cluster.run` handles the signals of the process."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving."""
        await super().startup(sockets)
        self.began.set()

    async def main_loop(self) -> None:
        """Wait until it is asked to end. Connections are served meanwhile."""
        try:
            await self._ticking.supervise(self._tick, name="serve HTTP", supervisor=self._supervisor)
        finally:
            await self._ticking.stop()

    async def _tick(self) -> None:
        """Update the Date header each second."""
        while not self.should_exit:
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._asked.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close; connections still open at the limit are cut off, which also ends responses that stream."""
        cut = asyncio.get_running_loop().call_later(CLOSED_WITHIN_S, self._cut)
        try:
            await super().shutdown(sockets)
        finally:
            cut.cancel()

    def _cut(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
