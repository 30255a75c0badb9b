"""The worlds that the transport's contract is played in: TCP, TLS, and the simulator's network with any seed."""

from __future__ import annotations

import abc
import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coterie.kernel.random import Random
from coterie.settings import Settings
from coterie.testing import run_simulation
from coterie.testing.network.network import Link, Network
from coterie.testing.network.wire import SimWire
from coterie.testing.run import current_loop
from coterie.transport.identity import Identity
from coterie.transport.interface import PeerAddress, TransportLimits
from coterie.transport.peers import Peers
from coterie.transport.tcp import TcpWire
from tests.unit.transport.certificate_authority import Authority

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

    from coterie.testing.loop.nodes import Node
    from coterie.transport.connection import Connection
    from coterie.transport.interface import Request, Wire

    Scenario = Callable[["TransportRunners"], Coroutine[Any, Any, None]]

ECHO, KEEP, FAIL, COUNT, BROKEN = 1, 2, 3, 4, 5
SECRET = b"the cluster's secret, of 32 bytes"
QUICK = TransportLimits(ping_s=0.05, pings=3, connect_s=2.0, backoff_s=0.01, backoff_most_s=0.05)


class RecordingHandler:
    """A handler that does what the route says, and remembers."""

    def __init__(self) -> None:
        self.kept: list[Request] = []
        self.bodies: list[bytes] = []
        self.cancelled: list[Request] = []
        self.notices: list[tuple[str, int, bytes, dict[str, str]]] = []
        self.sent_items = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.routes: dict[int, Callable[[Request], None]] = {
            ECHO: lambda request: request.reply(request.body),
            KEEP: self.kept.append,
            FAIL: lambda request: request.fail("mailbox_full", {"entity": "Account/alice", "waiting": 7}),
            COUNT: lambda request: self.tasks.append(asyncio.ensure_future(self._count(request))),
            BROKEN: lambda request: [][1],
        }

    def on_request(self, request: Request) -> None:
        self.bodies.append(request.body)
        self.routes[request.route](request)

    def on_cancel(self, request: Request) -> None:
        self.cancelled.append(request)

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.notices.append((peer, route, body, dict(headers)))

    async def _count(self, request: Request) -> None:
        """A stream of as many items as the body says, each of a size."""
        count, size = map(int, request.body.split())
        for number in range(count):
            await request.send(b"%d " % number + bytes(size))
            self.sent_items += 1
        request.end()


@dataclass(eq=False)
class Runner:
    """A transport with its handler, and how others reach it."""

    transport: Peers
    desk: RecordingHandler
    incarnation: str
    node: Node | None = None
    is_dead: bool = field(default=False)

    @property
    def peer(self) -> PeerAddress:
        return PeerAddress(self.transport.address or "", self.incarnation)

    @property
    def connections(self) -> list[Connection]:
        return [one for one in self.transport._known.everyone if not one.is_lost]

    def request(self, to: Runner, route: int, body: bytes, *, within_s: float = 120.0) -> Any:
        return self.transport.request(to.peer, route, body, within_s=within_s)


class TransportRunners(abc.ABC):
    """Makes runners, and lets them fail. The same verbs everywhere."""

    def __init__(self) -> None:
        self.runners: list[Runner] = []
        self.seed = 0

    async def runner(
        self,
        *,
        name: str | None = None,
        limits: TransportLimits = QUICK,
        listens: bool = True,
        instead_of: Runner | None = None,
    ) -> Runner:
        """A started runner; `name` gives its incarnation. `instead_of` a dead one it takes its host and port."""
        name = name or f"runner-{len(self.runners)}"
        node, port = self._node(name), None
        if instead_of is not None:
            node = self._node(instead_of.node.name) if instead_of.node is not None else None
            port = int(instead_of.peer.address.rpartition(":")[2])
        desk, incarnation = RecordingHandler(), f"{name:->32}"
        transport = Peers(
            me=Identity("contract", incarnation),
            wire=self._wire(node, port),
            handler=desk,
            secrets=_secrets,
            chance=Random(len(self.runners) + 1000 * self.seed),
            limits=limits,
            listens=listens,
        )
        runner = Runner(transport, desk, incarnation, node)
        self.runners.append(runner)
        await self._start(runner)
        return runner

    async def close(self) -> None:
        """Stop everybody; tasks of desks end by themselves or are cancelled."""
        for runner in self.runners:
            if not (runner.node is not None and not runner.node.alive):
                await runner.transport.stop()
            for task in runner.desk.tasks:
                task.cancel()
            await asyncio.gather(*runner.desk.tasks, return_exceptions=True)

    @abc.abstractmethod
    def _node(self, name: str) -> Node | None: ...
    @abc.abstractmethod
    def _wire(self, node: Node | None, port: int | None) -> Wire: ...
    @abc.abstractmethod
    async def _start(self, runner: Runner) -> None: ...
    @abc.abstractmethod
    async def kill(self, runner: Runner) -> None:
        """It dies at once, as by SIGKILL; its peers are told by their systems."""

    @abc.abstractmethod
    async def silence(self, runner: Runner) -> None:
        """From now on nothing goes in or out of it, and nobody is told."""

    @abc.abstractmethod
    def reset(self, a: Runner, b: Runner) -> None:
        """Break the connections between two."""


class TcpTransportRunners(TransportRunners):
    """Sockets on loopback: plain, with TLS, or sealed as if they led to other hosts."""

    def __init__(self, settings: Mapping[str, str], *, seals: bool = False) -> None:
        super().__init__()
        self._settings = settings
        self._seals = seals

    def _node(self, name: str) -> None:
        return None

    def _wire(self, node: Node | None, port: int | None) -> Wire:
        listen = f"127.0.0.1:{port or 0}"
        settings = Settings.load({"url": "sqlite://", "listen": listen, **self._settings}, environ={})
        return (SealedWire if self._seals else TcpWire)(settings)

    async def _start(self, runner: Runner) -> None:
        await runner.transport.start()

    async def kill(self, runner: Runner) -> None:
        await runner.transport._wire.close()
        runner.is_dead = True
        runner.transport._callbacks.clear()
        for connection in runner.connections:
            if connection._transport is not None:
                connection._transport.abort()
        await asyncio.sleep(0)

    async def silence(self, runner: Runner) -> None:
        await runner.transport._wire.close()
        for connection in runner.connections:
            if connection._established is not None:
                connection._pulse.stop()
            connection.data_received = lambda data: None  # type: ignore[method-assign] # deaf
            connection._out._write = lambda data: None  # type: ignore[method-assign] # and dumb

    def reset(self, a: Runner, b: Runner) -> None:
        for connection in a.connections:
            if connection.peer == b.incarnation and connection._transport is not None:
                connection._transport.abort()


class SealedWire(TcpWire):
    """Sockets on loopback that are taken for those of a foreign network."""

    def made(self, transport: asyncio.BaseTransport) -> bool:
        assert not super().made(transport), "it is loopback"
        return True


class SimulatedTransportRunners(TransportRunners):
    """The simulator's network: packets divided and delayed by the seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.loop = current_loop()
        self.network = Network(self.loop, link=Link(split=0.3))

    def _node(self, name: str) -> Node:
        return self.loop.nodes.add(name)

    def _wire(self, node: Node | None, port: int | None) -> Wire:
        assert node is not None
        return SimWire(self.network, node, seals=self.seed % 2 == 1, port=port)

    async def _start(self, runner: Runner) -> None:
        assert runner.node is not None
        await self.loop.spawn(runner.node, runner.transport.start())

    async def kill(self, runner: Runner) -> None:
        assert runner.node is not None
        self.loop.nodes.crash(runner.node)

    async def silence(self, runner: Runner) -> None:
        for other in self.runners:
            if other is not runner and other.node is not None and runner.node is not None:
                self.network.cut(other.node.name, runner.node.name)

    def reset(self, a: Runner, b: Runner) -> None:
        assert a.node is not None
        assert b.node is not None
        self.network.reset(a.node.name, b.node.name)


async def _secrets() -> list[bytes]:
    return [SECRET]


def play(world: str, scenario: Scenario, folder: Path) -> None:
    """Play a scenario in a world: "tcp", "tls", "sealed", or "sim-SEED"."""
    if world.startswith("sim-"):
        seed = int(world[4:])
        run_simulation(lambda: _play(lambda: SimulatedTransportRunners(seed), scenario), seed=seed)
        return
    settings: Mapping[str, str] = {}
    if world == "tls":
        settings = vars(Authority(folder).sign())
    asyncio.run(_play(lambda: TcpTransportRunners(settings, seals=world == "sealed"), scenario))


async def _play(make: Callable[[], TransportRunners], scenario: Scenario) -> None:
    world = make()
    try:
        await scenario(world)
    finally:
        await world.close()


async def until(condition: Callable[[], bool], *, within_s: float = 120.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.001)
