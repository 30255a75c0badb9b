"""Processes of a cluster by what they are: runners, and clients, which only ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.testing.proxy import Proxy, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

    from coterie.testing import Process, Processes


class ProcessRoles:
    """Which processes are runners, and which are clients."""

    def __init__(self, cluster: Processes) -> None:
        self.cluster = cluster
        self.runners: list[Process] = []
        self.clients: list[Process] = []

    async def start_runners(self, n: int = 1, **variables: str) -> list[Process]:
        """Start runners."""
        new = await self.start(n, variables)
        self.runners += new
        return new

    async def start_behind_proxy(self, stack: ExitStack) -> Proxy:
        """Start a runner that others reach over a network which can be broken; it ends with the stack."""
        port = free_port()
        wire = Proxy("127.0.0.1", port)
        wire.start()
        stack.callback(wire.close)
        await self.start_runners(COTERIE_LISTEN=f"127.0.0.1:{port}", COTERIE_ADVERTISE=f"127.0.0.1:{wire.port}")
        return wire

    async def start(self, n: int, variables: Mapping[str, str]) -> list[Process]:
        """Start processes, with variables of their own."""
        before = len(self.cluster.runners)
        await self.cluster.start(n, env=variables)
        return self.cluster.runners[before:]
