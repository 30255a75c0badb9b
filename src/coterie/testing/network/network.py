"""The simulated network: which machines are connected, how fast, and how a crash looks from outside.

Connections are byte streams, as with TCP (`transports`, `pipes`). A link leads from one machine to another, in one
direction; a cut link holds what is sent over it, as TCP does by retransmission.

    listen(node, factory) ──▶ address           connect(node, address, factory) ──▶ transport, protocol
    cut(a, b), heal(a, b)     bytes in flight wait; new connections wait too, and then time out
    reset(a, b)               connections break, at any byte
    a node crashes            by seed its peers see the end of the stream, a reset, or nothing at all
    a node is frozen          its machine still accepts connections and bytes, up to a window; they are not read
"""

from __future__ import annotations

import asyncio
import contextvars
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from coterie.testing.loop.nodes import Node, current_node
from coterie.testing.loop.seeds import stream
from coterie.testing.network.pipes import Mark, Pipe
from coterie.testing.network.transports import SimTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coterie.testing.loop.loop import SimLoop

P = TypeVar("P", bound=asyncio.Protocol)

_CONNECT_S = 127.0  # six retries, as Linux has them
_FIRST_PORT = 40_000
_FATES = ("end", "reset", "silence")


class Address(NamedTuple):
    """The name of a machine, and a port on it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Link:
    """How bytes travel from one machine to another.

    Args:
        latency_ns: The minimum delay of a packet.
        jitter_ns: The maximum extra delay, in the usual case.
        slow: The probability that the extra delay is up to a hundred times the jitter.
        split: The probability that a packet or a read is divided at a random byte, and the rest again.
        reset: The probability that a packet breaks its connection.
    """

    latency_ns: int = 200_000
    jitter_ns: int = 300_000
    slow: float = 0.01
    split: float = 0.2
    reset: float = 0.0


@dataclass(eq=False, slots=True)
class _Listener:
    node: Node
    factory: Callable[[], asyncio.Protocol]
    is_open: bool = True

    def accept(self) -> asyncio.Protocol | None:
        return self.factory() if self.is_open else None


class Network:
    """All links and connections of one run.

    Promise:
        The bytes of one direction of a connection arrive once and in order, or the connection breaks. The seed decides
        how they are divided and how long they take.
    """

    def __init__(self, loop: SimLoop, *, link: Link | None = None) -> None:
        self.loop = loop
        self.chance = stream(loop.seed, "network")
        self.usual_link = link or Link()
        self._links: dict[tuple[str, str], Link] = {}
        self._cuts: dict[tuple[str, str], None] = {}
        self._silent: dict[str, None] = {}  # machines that disappeared without closing their connections
        self._listeners: dict[Address, _Listener] = {}
        self._ends: dict[SimTransport, None] = {}  # not a set: the order must repeat
        self._hearing: asyncio.Future[None] | None = None
        self._last_port = _FIRST_PORT
        loop.nodes.on_crash.append(self._crashed)

    # Connections

    def listen(self, node: Node, factory: Callable[[], asyncio.Protocol], *, port: int | None = None) -> Address:
        """Accept connections on a node, until `close` or until it crashes."""
        address = Address(node.process.name, self._next_port() if port is None else port)
        if address in self._listeners:
            raise OSError(f"{address} is in use")
        self._listeners[address] = _Listener(node, factory)
        self._is_back(address.host)
        return address

    def close(self, address: Address) -> None:
        """Stop listening. Existing connections go on."""
        listener = self._listeners.pop(address, None)
        if listener is not None:
            listener.is_open = False

    async def connect(
        self, node: Node, address: Address, factory: Callable[[], P], *, timeout_s: float = _CONNECT_S
    ) -> tuple[SimTransport, P]:
        """Connect from a node to an address.

        Raises:
            ConnectionRefusedError: The machine is up, but nothing listens on the port.
            TimeoutError: No answer: a link is cut, or the machine is gone.
        """
        here = node.process.name
        self._is_back(here)
        try:
            async with asyncio.timeout(timeout_s):
                await self._travel(here, address.host)
                listener = self._listeners.get(address)
                await self._travel(address.host, here)
        except TimeoutError:
            raise TimeoutError(f"no answer from {address} in {timeout_s:g} s") from None
        if listener is None:
            raise ConnectionRefusedError(f"nobody listens on {address}")
        return self._join(node, Address(here, self._next_port()), listener, address, factory)

    def reset(self, a: str, b: str) -> None:
        """Break all connections between two machines, at any byte."""
        self.loop.trace.note("reset", a=a, b=b)
        for end in list(self._ends):
            if end.outgoing.route in ((a, b), (b, a)):
                end.outgoing.reset()

    # Links

    def link(self, source: str, target: str) -> Link:
        """How bytes travel from one machine to another."""
        return self._links.get((source, target), self.usual_link)

    def set_link(self, a: str, b: str, link: Link, *, both: bool = True) -> None:
        """Change how bytes travel from `a` to `b`, and by default back."""
        for pair in _pairs(a, b, both=both):
            self._links[pair] = link

    def cut(self, a: str, b: str, *, both: bool = True) -> None:
        """Block everything from `a` to `b`, and by default back."""
        self.loop.trace.note("cut", a=a, b=b, both=both)
        for pair in _pairs(a, b, both=both):
            self._cuts[pair] = None
            for end in self._ends:
                if end.outgoing.route == pair:
                    end.outgoing.cut()

    def heal(self, a: str, b: str) -> None:
        """Undo `cut`, in both directions."""
        self.loop.trace.note("heal", a=a, b=b)
        for pair in _pairs(a, b, both=True):
            if self._cuts.pop(pair, ()) is None:
                self._healed(pair)
        self._hear()

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing passes from one machine to another."""
        return (source, target) in self._cuts

    @property
    def is_well(self) -> bool:
        """Whether no link is cut and no machine is silent."""
        return not self._cuts and not self._silent

    def delay_ns(self, source: str, target: str) -> int:
        """Draw the delay of a packet."""
        link, draw = self.link(source, target), self.chance.random
        jitter_ns = link.jitter_ns * (100 if link.slow and draw() < link.slow else 1)
        return link.latency_ns + int(draw() * jitter_ns)

    # For the transports and pipes

    def forget(self, end: SimTransport) -> None:
        """An end has lost its connection; it is forgotten when the other end stops reading too."""
        peer = end.incoming.source
        if peer.is_lost or not peer.node.alive:
            self._ends.pop(end, None)
            self._ends.pop(peer, None)

    def _join(
        self, node: Node, here: Address, listener: _Listener, there: Address, factory: Callable[[], P]
    ) -> tuple[SimTransport, P]:
        ours = current_node.get(self.loop.test) is node
        context = contextvars.copy_context() if ours else node.new_context()
        near = SimTransport(self, node, context, here, there)
        far = SimTransport(self, listener.node, listener.node.new_context(), there, here)
        near.outgoing = far.incoming = Pipe(self, source=near, target=far)
        far.outgoing = near.incoming = Pipe(self, source=far, target=near)
        far.accept = listener.accept
        self._ends |= {near: None, far: None}
        self.loop.trace.note("connect", to=there)
        near.outgoing.send(Mark.OPEN)
        protocol = context.run(factory)
        near.begin(protocol)
        return near, protocol

    async def _travel(self, source: str, target: str) -> None:
        while self.is_cut(source, target) or source in self._silent or target in self._silent:
            if self._hearing is None:
                self._hearing = self.loop.create_future()
            await asyncio.shield(self._hearing)
        await asyncio.sleep(self.delay_ns(source, target) / 1e9)

    def _hear(self) -> None:
        if self._hearing is not None:
            self._hearing.set_result(None)
            self._hearing = None

    def _healed(self, pair: tuple[str, str]) -> None:
        for end in self._ends:
            if end.outgoing.route == pair:
                end.outgoing.heal()
                end.incoming.acknowledge()

    def _crashed(self, node: Node) -> None:
        fate = _FATES[int(self.chance.random() * len(_FATES))]
        self.loop.trace.note("peers see", of=node.label, fate=fate)
        for address in [each for each, listener in self._listeners.items() if listener.node.process is node]:
            self.close(address)
        if fate == "silence":
            self._silent[node.name] = None
        for end in [end for end in self._ends if end.node.process is node]:
            self._end_of_process(end, fate)

    def _end_of_process(self, end: SimTransport, fate: str) -> None:
        end.outgoing.buffer.clear()  # the kernel sends what it has; the process's own buffer is lost
        if fate == "silence":
            end.incoming.lose_patience()
            return
        end.incoming.refuse()
        if fate == "end":
            end.outgoing.finish_now()
        else:
            end.outgoing.reset()

    def _is_back(self, host: str) -> None:
        """A machine that was silent runs something again, and knows nothing of its former connections."""
        if self._silent.pop(host, ()) is None:
            for end in [end for end in self._ends if end.address.host == host and not end.node.alive]:
                end.incoming.refuse()
            self._hear()

    def _next_port(self) -> int:
        self._last_port += 1
        return self._last_port


def _pairs(a: str, b: str, *, both: bool) -> Iterator[tuple[str, str]]:
    yield a, b
    if both:
        yield b, a
