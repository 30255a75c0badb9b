"""What a call over HTTP costs: beside an endpoint on the same server that does nothing, and beside the call alone.

The callers share the process and the core with the server, over connections that stay open.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from bench import calls
from bench.measure import Row, compare
from coterie import Cluster, Entity, rpc, web
from coterie.web.server import HttpServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from bench.measure import Work

TOKEN = "calls-token-of-the-bench"  # no secret
CALLERS = (1, 16)


class Adder(Entity[None]):
    """What is called."""

    @rpc
    async def add(self, one: int, two: int) -> int:
        """A little of everything: arguments, a check of them, a result."""
        return one + two


class Connection:
    """An HTTP client that does as little as one can.

    Args:
        host: Of the server.
        port: Of the server.
        path: What is posted to.
    """

    def __init__(self, host: str, port: int, path: str) -> None:
        self._place = host, port
        body = b'{"one":1,"two":2}'
        head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {TOKEN}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(*self._place)

    async def post(self) -> None:
        """Send the request and read the answer."""
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        await self._reader.readexactly(size)

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """A call over HTTP beside an endpoint without one, then beside the same call without HTTP."""
    quiet = {"lease_ttl": "60s", "stall_limit": "60s"}
    cluster = Cluster("sqlite://", http_listen="127.0.0.1:0", http_calls=["Adder"], http_calls_token=TOKEN, **quiet)  # type: ignore[arg-type]
    cluster.entity(Adder)

    async def nothing(request: Request) -> Response:
        await request.body()
        return Response(b"3", media_type="application/json")

    app = web.app(cluster)
    app.router.routes.append(Route("/nothing", nothing, methods=["POST"]))
    server = HttpServer(app, cluster.settings)
    async with cluster, server:
        await cluster.ready()
        host, port = server.url.removeprefix("http://").split(":")
        refs = itertools.cycle([cluster.ref(Adder, f"adder-{number}") for number in range(calls.ENTITIES)])

        async def alone() -> None:
            await next(refs).add(1, 2)

        for callers in CALLERS:
            async with (
                posting(host, int(port), "/api/call/Adder/a/add", callers) as ours,
                posting(host, int(port), "/nothing", callers) as raw,
            ):
                yield await compare(
                    "http call / empty endpoint",
                    ours=ours,
                    raw=raw,
                    callers=callers,
                    goal=0.4,
                    rounds=rounds,
                    seconds=seconds,
                )
                yield await compare(
                    "http call / local call",
                    ours=ours,
                    raw=alone,
                    callers=callers,
                    goal=None,
                    rounds=rounds,
                    seconds=seconds,
                )


@asynccontextmanager
async def posting(host: str, port: int, path: str, many: int) -> AsyncIterator[Work]:
    """Work that posts, over as many connections as there are callers."""
    free: asyncio.Queue[Connection] = asyncio.Queue()
    opened = [Connection(host, port, path) for _ in range(many)]
    for each in opened:
        await each.open()
        free.put_nowait(each)

    async def post() -> None:
        connection = free.get_nowait()
        await connection.post()
        free.put_nowait(connection)

    try:
        yield post
    finally:
        for each in opened:
            each.close()
