"""Request and reply between two processes: ours beside bare frames, a raw echo and grpc.aio in the same run."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tests.unit.transport.certificate_authority import Authority

from bench import peers, prototypes
from bench.measure import Row, Work, compare, compare_alone
from coterie.kernel.random import Random
from coterie.settings import Settings
from coterie.transport.identity import Identity
from coterie.transport.interface import PeerAddress
from coterie.transport.peers import Peers
from coterie.transport.tcp import TcpWire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from coterie.transport.interface import Request

Answers = Literal["inline", "task"]
Shield = Literal["plain", "sealed", "tls"]

IN_FLIGHT = 1_000
BODY = b"b" * 100
SECRET = b"only for this benchmark, nothing to protect"
THERE, HERE = "1" * 32, "2" * 32


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """A row for each way to answer and each shield, then the rivals, then one call at a time on one core."""
    with tempfile.TemporaryDirectory() as folder:
        many = partial(compare, callers=IN_FLIGHT, rounds=rounds, seconds=seconds)
        async with _calls(ours("inline"), same_inline()) as (mine, raw):
            yield await many("rpc inline / same shape", ours=mine, raw=raw, goal=0.85)
        async with _calls(ours("task"), same_task()) as (mine, raw):
            yield await many("rpc task / same shape", ours=mine, raw=raw, goal=0.85)
        async with _calls(ours("inline"), bare_inline()) as (mine, raw):
            yield await many("rpc inline / bare frames", ours=mine, raw=raw, goal=None)
        async with _calls(ours("task"), bare_task()) as (mine, raw):
            yield await many("rpc task / bare frames", ours=mine, raw=raw, goal=None)
        async with _calls(ours("task"), grpc()) as (mine, raw):
            yield await many("rpc task / grpc.aio", ours=mine, raw=raw, goal=10.0)
        async with _calls(ours("inline", "sealed"), ours("inline")) as (mine, raw):
            yield await many("rpc sealed / rpc plain", ours=mine, raw=raw, goal=None)
        async with _calls(ours("inline", "tls", Path(folder)), ours("inline")) as (mine, raw):
            yield await many("rpc tls / rpc plain", ours=mine, raw=raw, goal=0.7)
        alone = partial(compare_alone, rounds=rounds, times=int(4000 * seconds))
        async with _calls(ours("inline", pinned=True), echo(pinned=True)) as (mine, raw):
            yield await alone("lone rpc / raw echo, p50", ours=mine, raw=raw, goal=1 / 1.8)
        async with _calls(ours("inline", pinned=True), grpc(pinned=True)) as (mine, raw):
            yield await alone("lone rpc / grpc.aio, p50", ours=mine, raw=raw, goal=None)


@asynccontextmanager
async def _calls(first: Any, second: Any) -> AsyncIterator[tuple[Work, Work]]:
    async with AsyncExitStack() as stack:
        calls = [await stack.enter_async_context(each) for each in (first, second)]
        yield partial(calls[0], BODY), partial(calls[1], BODY)


@asynccontextmanager
async def _rival(serve: Any, call: Any, *, pinned: bool = False) -> AsyncIterator[peers.Call]:
    async with peers.elsewhere(serve, pinned=pinned) as address, call(address) as caller:
        yield caller


bare_inline = partial(_rival, prototypes.serve_bare_inline, prototypes.call_bare)
bare_task = partial(_rival, prototypes.serve_bare_task, prototypes.call_bare)
same_inline = partial(_rival, prototypes.serve_same_inline, prototypes.call_same)
same_task = partial(_rival, prototypes.serve_same_task, prototypes.call_same)
echo = partial(_rival, peers.serve_echo, peers.call_echo)
grpc = partial(_rival, peers.serve_grpc, peers.call_grpc)


@asynccontextmanager
async def ours(
    answers: Answers, shield: Shield = "plain", folder: Path | None = None, *, pinned: bool = False
) -> AsyncIterator[peers.Call]:
    """Our transport, client here and server elsewhere."""
    files = vars(Authority(folder).sign()) if folder is not None else {}
    serve = partial(_serve, answers, shield, files)
    async with peers.elsewhere(serve, pinned=pinned) as address, _transport(HERE, shield, files, None) as transport:
        peer, request = PeerAddress(address, THERE), transport.request
        # Not a partial: with keywords those cost more than the request does, and nobody calls so.
        yield lambda body: request(peer, 1, body, within_s=30.0)


async def _serve(answers: Answers, shield: Shield, files: Mapping[str, str]) -> str:
    transport = _transport(THERE, shield, files, Echo(answers))
    await transport.start()
    peers.keep.append(transport)
    assert transport.address is not None
    return transport.address


def _transport(incarnation: str, shield: Shield, files: Mapping[str, str], handler: Echo | None) -> Peers:
    settings = Settings.load(files, environ={})
    return Peers(
        me=Identity(cluster="bench", incarnation=incarnation),
        wire=(SealedWire if shield == "sealed" else TcpWire)(settings),
        handler=handler or Echo("inline"),
        secrets=_secrets,
        chance=Random(),
        listens=handler is not None,
    )


async def _secrets() -> list[bytes]:
    return [SECRET]


class SealedWire(TcpWire):
    """Loopback treated as a foreign network."""

    def made(self, transport: asyncio.BaseTransport) -> bool:
        super().made(transport)
        return True


class Echo:
    """Answers with what it was asked."""

    def __init__(self, answers: Answers) -> None:
        self.on_request = self._inline if answers == "inline" else self._task
        self._loop = asyncio.get_running_loop()

    def _inline(self, request: Request) -> None:
        request.reply(request.body)

    def _task(self, request: Request) -> None:
        self._loop.create_task(self._answer(request))

    async def _answer(self, request: Request) -> None:
        request.reply(request.body)

    def on_cancel(self, request: Request) -> None:
        """Nothing to stop."""

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Nothing to do."""
