"""The simulated network: who reaches whom, how fast, and what a crash looks like from outside.

Connections are byte streams as TCP gives them (see `streams`). Links join two machines by name, one for each
direction; a cut link holds what is sent over it, as TCP does by sending again, until it heals or a side gives up.

    listen(node, factory) ──▶ address        connect(node, address, factory) ──▶ transport, protocol
    cut(a, b) · heal(a, b)                   what is under way waits; new connections wait, then time out
    reset(a, b)                              connections break, at any byte
    a node crashes                           by seed: its peers see a reset at once, or silence for ever

"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from coterie.testing.nodes import current_node
from coterie.testing.seeds import stream
from coterie.testing.streams import Connection, SimTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.testing.loop import SimLoop
    from coterie.testing.nodes import Node

P = TypeVar("P", bound=asyncio.Protocol)

_CONNECT_S = 127.0  # six retries of a SYN, as Linux has them
_FIRST_PORT = 40_000


class Address(NamedTuple):
    """Where somebody listens: the name of a machine, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Link:
    """How bytes travel in one direction between two machines.

    Args:
        latency_ns: What a packet takes at least.
        jitter_ns: What it takes more, at most, in the usual case.
        slow: How often, as a probability, it takes up to a hundred times the jitter.
        split: How often a packet is divided at a random byte, and how often a read returns only a part.
        reset: How often a packet breaks its connection.
    """

    latency_ns: int = 200_000
    jitter_ns: int = 300_000
    slow: float = 0.01
    split: float = 0.2
    reset: float = 0.0


@dataclass(slots=True)
class _Listener:
    node: Node
    factory: Callable[[], asyncio.Protocol]


class Network:
    """All links and connections of a simulation.

    Promise:
        The bytes of one direction of a connection arrive once, in order, or the connection breaks. How they are
        divided and how long they take is the seed's choice.
    """

    def __init__(self, loop: SimLoop, *, link: Link | None = None) -> None:
        self.loop = loop
        self.chance = stream(loop.seed, "network")
        self.connections: dict[Connection, None] = {}  # not a set: their order must repeat
        self._usual = link or Link()
        self._links: dict[tuple[str, str], Link] = {}
        self._cut: dict[tuple[str, str], None] = {}
        self._listeners: dict[Address, _Listener] = {}
        self._silent: dict[str, None] = {}  # machines that went away without a word
        self._ports = _FIRST_PORT
        self._healed: list[asyncio.Future[None]] = []
        loop.nodes.on_crash.append(self._crashed)

    def link(self, source: str, target: str) -> Link:
        """How bytes travel from one machine to another."""
        return self._links.get((source, target), self._usual)

    def set_link(self, a: str, b: str, link: Link, *, both: bool = True) -> None:
        """Change how bytes travel from `a` to `b`, and by default back."""
        for pair in _pairs(a, b, both=both):
            self._links[pair] = link

    # Connections

    def listen(self, node: Node, factory: Callable[[], asyncio.Protocol], *, port: int | None = None) -> Address:
        """Accept connections on a node; the address stays valid until `close`, or until the node crashes."""
        address = Address(node.process.name, self._next_port() if port is None else port)
        if address in self._listeners:
            raise OSError(f"{address} is in use")
        self._listeners[address] = _Listener(node, factory)
        self._silent.pop(address.host, None)
        return address

    def close(self, address: Address) -> None:
        """Listen no more. Connections that exist go on."""
        self._listeners.pop(address, None)

    async def connect(
        self, node: Node, address: Address, factory: Callable[[], P], *, timeout_s: float = _CONNECT_S
    ) -> tuple[SimTransport, P]:
        """Connect from a node to an address.

        Raises:
            ConnectionRefusedError: Nobody listens there.
            TimeoutError: No answer: the link is cut, or the machine is gone.
        """
        source, target = node.process.name, address.host
        async with asyncio.timeout(timeout_s):
            await self._travel(source, target)
            await self._heard_by(target)
            listener = self._listeners.get(address)
            connection = None if listener is None else self._accept(node, listener, address)
            await self._travel(target, source)
        if listener is None or connection is None:
            self.loop.trace.note("refused", by=address)
            raise ConnectionRefusedError(f"nobody listens on {address}")
        return connection.open(factory)
