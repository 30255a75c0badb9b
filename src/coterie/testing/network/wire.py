"""The transport's wire in the simulator: the same connections over the simulated network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.testing.network.network import Address, Network

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from coterie.testing.loop.nodes import Node
    from coterie.testing.network.transports import SimTransport


class SimWire:
    """Connections from and to one node.

    Args:
        network: The run's network.
        node: The node that owns the connections.
        seals: Whether they are sealed, as those that leave a host are.
        port: The port to listen on; any free one if left out.
    """

    def __init__(self, network: Network, node: Node, *, seals: bool = False, port: int | None = None) -> None:
        self._network = network
        self._node = node
        self._seals = seals
        self._port = port
        self._address: Address | None = None

    async def listen(self, factory: Callable[[], asyncio.Protocol]) -> str:
        """Accept connections on the node."""
        self._address = self._network.listen(self._node, factory, port=self._port)
        return str(self._address)

    async def connect(self, address: str, factory: Callable[[], asyncio.Protocol]) -> SimTransport:
        """Connect from the node; raises `OSError`."""
        host, _, port = address.rpartition(":")
        transport, _protocol = await self._network.connect(self._node, Address(host, int(port)), factory)
        return transport

    def made(self, transport: asyncio.BaseTransport) -> bool:
        """Whether the connection must be sealed."""
        del transport
        return self._seals

    def gone(self, transport: asyncio.BaseTransport) -> None:
        """Do nothing: there is nothing to undo."""

    async def close(self) -> None:
        """Stop listening."""
        if self._address is not None:
            self._network.close(self._address)
