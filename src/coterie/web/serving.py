"""The HTTP server of a runner: uvicorn as a task of our loop, from before the runner starts until after it left.

`cluster.run` owns the signals, so uvicorn gets none; it neither configures logging nor writes a line per request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import uvicorn

from coterie.kernel.service import Service, Tasks
from coterie.kernel.supervisor import Supervisor
from coterie.transport.identity import is_loopback
from coterie.transport.listener import Plug, Refusals
from coterie.web import limits
from coterie.web.ports import bind

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from starlette.types import ASGIApp

    from coterie.settings import Settings
    from coterie.web.ports import Bound

log = logging.getLogger("coterie")

CLOSED_WITHIN_S = 1
"""What answers may take when the server closes, streams too: the runner has left by then, and the process waits."""
_SPARE_S = 1


class Serving(Service):
    """Serves an application at `http_listen`.

    Args:
        app: What to serve.
        settings: Where.
        number: Which one it is of several processes of these settings: see `bind`.
        supervisor: The one of this process.

    Promise:
        Stopping it takes `CLOSED_WITHIN_S` and a moment, whoever is connected.
    """

    def __init__(
        self, app: ASGIApp, settings: Settings, *, number: int = 1, supervisor: Supervisor | None = None
    ) -> None:
        super().__init__(what=f"the HTTP server at {settings.http_listen}")
        self._settings = settings
        self._number = number
        self._refusals = Refusals(what="request")
        self._server = _Server(
            uvicorn.Config(
                app,
                http=partial(limits.Bounded, self._refusals),  # type: ignore[arg-type]  # a factory does
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,  # whoever forwards is not believed: see `access`
                server_header=False,
                h11_max_incomplete_event_size=limits.HEAD_MOST_BYTES,
                timeout_keep_alive=limits.KEPT_S,
                timeout_graceful_shutdown=CLOSED_WITHIN_S + _SPARE_S,
            ),
            supervisor or Supervisor(),
        )
        self._apart = Tasks(self.what)  # `stop` cancels the service's own tasks at once, and this one ends in order
        self._bound: Bound | None = None
        self._plug: Plug | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where it serves."""
        assert self._bound is not None, "it is started"
        return self._bound.url

    @property
    def moved_from(self) -> int | None:
        """The port that was asked for, if it was somebody else's."""
        assert self._bound is not None, "it is started"
        return self._bound.wanted if self._bound.was_taken else None

    @property
    def announcement(self) -> str:
        """One line for whoever started the process."""
        assert self._bound is not None, "it is started"
        taken = f" (port {self._bound.wanted} is taken)" if self._bound.was_taken else ""
        return f"probes and metrics at {self.url}{taken}"

    async def _start(self) -> None:
        self._bound = bind(self._settings, number=self._number)
        if not is_loopback(self._bound.host):
            log.warning("%s is reachable from other machines, %s", self.url, self._exposed())
        self._plug = Plug(self._bound.socket)
        self._serving = self._apart.spawn(self._serve(self._bound.socket), name="serve")
        await self._server.began.wait()
        if self._serving.done():
            await self._serving  # raises what kept it from serving

    def _exposed(self) -> str:
        if self._settings.http_token is not None:
            return "without TLS: http_token travels in the clear"
        return (
            "without http_token: whoever reaches it can read whether this runner lives, has started and is ready, "
            "and nothing else"
        )

    async def _serve(self, listener: socket.socket) -> None:
        try:
            await self._server.serve([listener])
        finally:
            self._server.began.set()  # whoever waits for it learns that it will not come

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
    """uvicorn, without its handlers of signals and without looking ten times a second whether it is to end."""

    def __init__(self, config: uvicorn.Config, supervisor: Supervisor) -> None:
        super().__init__(config)
        self._supervisor = supervisor
        self._ticking = Tasks("uvicorn")
        self.began = asyncio.Event()
        self._asked = asyncio.Event()

    def ask_to_end(self) -> None:
        """Have it close, or not even open."""
        self.should_exit = True
        self._asked.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none: those of the process are `cluster.run`'s."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve."""
        await super().startup(sockets)
        self.began.set()

    async def main_loop(self) -> None:
        """Until it is asked to end. Connections are served beside it."""
        try:
            await self._ticking.supervise(self._tick, name="serve HTTP", supervisor=self._supervisor)
        finally:
            await self._ticking.stop()

    async def _tick(self) -> None:
        """Each second a new Date header."""
        while not self.should_exit:
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._asked.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close; whoever is not through within the limit is cut off, which also ends what streams to it."""
        cut = asyncio.get_running_loop().call_later(CLOSED_WITHIN_S, self._cut)
        try:
            await super().shutdown(sockets)
        finally:
            cut.cancel()

    def _cut(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
