"""Rivals for the transport, each a server in another process and a caller here: raw echo and grpc.aio.

Our own bare frames are in `prototypes`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Call = Callable[[bytes], Awaitable[bytes]]
Serve = Callable[[], Awaitable[str]]

CORE = {0}


def run(main: Any) -> Any:
    """asyncio.run on uvloop where it is installed, as users with the extra `fast` do."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


@asynccontextmanager
async def elsewhere(serve: Serve, *, pinned: bool) -> AsyncIterator[str]:
    """A server in a process of its own; where it listens. Pinned: both processes share one core."""
    before = os.sched_getaffinity(0)
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(serve, there, pinned), daemon=True)
    process.start()
    try:
        address = await asyncio.get_running_loop().run_in_executor(None, here.recv)
        if pinned:
            os.sched_setaffinity(0, CORE)
        yield address
    finally:
        os.sched_setaffinity(0, before)
        process.terminate()
        process.join()


def _serve(serve: Serve, pipe: Any, pinned: bool) -> None:
    if pinned:
        os.sched_setaffinity(0, CORE)

    async def main() -> None:
        pipe.send(await serve())
        await asyncio.Event().wait()

    run(main())


# Raw TCP echo: the ceiling.


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class _EchoCaller(_Echo):
    def __init__(self) -> None:
        self.waiter: asyncio.Future[bytes] | None = None
        self.size = self.got = 0

    def data_received(self, data: bytes) -> None:
        self.got += len(data)
        if self.got >= self.size and self.waiter is not None:
            self.waiter.set_result(data)

    def call(self, body: bytes) -> Awaitable[bytes]:
        self.waiter = asyncio.get_running_loop().create_future()
        self.size, self.got = len(body), 0
        self.transport.write(body)
        return self.waiter


async def serve_echo() -> str:
    return await listen(_Echo)


@asynccontextmanager
async def call_echo(address: str) -> AsyncIterator[Call]:
    caller = await connect(address, _EchoCaller)
    yield caller.call
    caller.transport.close()


# grpc.aio, unary, without generated code.


async def serve_grpc() -> str:
    import grpc  # type: ignore[import-untyped]  # only here

    async def echo(body: bytes, _: Any) -> bytes:
        return body

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"Echo": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    keep.append(server)
    return f"127.0.0.1:{port}"


@asynccontextmanager
async def call_grpc(address: str) -> AsyncIterator[Call]:
    import grpc

    async with grpc.aio.insecure_channel(address) as channel:
        yield channel.unary_unary("/bench/Echo")


keep: list[Any] = []


async def listen(factory: Callable[[], asyncio.Protocol]) -> str:
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
    keep.append(server)
    host, port = server.sockets[0].getsockname()[:2]
    return f"{host}:{port}"


async def connect(address: str, factory: Callable[[], Any]) -> Any:
    host, _, port = address.rpartition(":")
    _, protocol = await asyncio.get_running_loop().create_connection(factory, host, int(port))
    return protocol
