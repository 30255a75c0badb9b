"""Two processes talk over the transport; a third one without the secret is turned away.

    python examples/transport.py

What `Cluster` will do between runners, by hand: both ends prove that they know the cluster's secret, then requests,
a stream and a refusal go over one connection.
"""

import asyncio
import multiprocessing
from collections.abc import Mapping
from multiprocessing.connection import Connection as Pipe

from coterie import RunnerUnavailable
from coterie.kernel.random import Random
from coterie.kernel.service import Tasks
from coterie.settings import Settings
from coterie.transport.identity import Identity
from coterie.transport.interface import PeerAddress, Request
from coterie.transport.peers import Peers
from coterie.transport.tcp import TcpWire

SECRET, ANOTHER = b"known to all of this cluster", b"known to somebody else only"
UPPER, COUNT = 1, 2


class Handler:
    """Answers in upper case, and counts in a stream."""

    def __init__(self) -> None:
        self._tasks = Tasks("example")

    def on_request(self, request: Request) -> None:
        if request.route == UPPER:
            request.reply(request.body.upper())
        else:
            self._tasks.spawn(self._count(request), name="count")

    async def _count(self, request: Request) -> None:
        for number in range(int(request.body)):
            await request.send(str(number).encode())  # waits while the reader is a window behind
        request.end()

    def on_cancel(self, request: Request) -> None:
        print("  the caller of route", request.route, "has left")

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None:
        print("  a notice on route", route, "from", peer, dict(headers), body.decode())


def transport(incarnation: str, secret: bytes, *, listens: bool) -> Peers:
    async def secrets() -> list[bytes]:
        return [secret]

    return Peers(
        me=Identity(cluster="example", incarnation=incarnation),
        wire=TcpWire(Settings()),
        handler=Handler(),
        secrets=secrets,
        chance=Random(),
        listens=listens,
    )


def server(pipe: Pipe) -> None:
    async def main() -> None:
        async with transport("1" * 32, SECRET, listens=True) as peers:
            pipe.send(peers.address)
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    asyncio.run(main())


async def client(address: str) -> None:
    peer = PeerAddress(address, "1" * 32)
    async with transport("2" * 32, SECRET, listens=False) as peers:
        print("reply: ", (await peers.request(peer, UPPER, b"hello", within_s=5)).decode())
        items = [item.decode() async for item in peers.stream(peer, COUNT, b"5", within_s=5)]
        print("stream:", *items)
    async with transport("3" * 32, ANOTHER, listens=False) as stranger:
        try:
            await stranger.request(peer, UPPER, b"let me in", within_s=5)
        except RunnerUnavailable as error:
            print("stranger:", error.message)


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=server, args=(there,))
    process.start()
    try:
        asyncio.run(client(here.recv()))
    finally:
        here.send("done")
        process.join()


if __name__ == "__main__":
    main()
