"""A busy run that touches every part of the simulator; prints its trace hash. For test_determinism."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import TYPE_CHECKING

from coterie.kernel import chaos
from coterie.testing.loop.clocks import LocalTime
from coterie.testing.network.network import Link, Network
from coterie.testing.run import SeedRun, current_loop

if TYPE_CHECKING:
    from coterie.testing.loop.nodes import Node


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        current_loop().trace.note("echo", size=len(data))
        self.transport.write(data)


async def child(name: str) -> None:
    if chaos.on:
        await chaos.point("child.begins")
    await asyncio.sleep(random.random())
    if chaos.on and chaos.flip("child.fails"):
        raise OSError(name)


async def runner(network: Network, node: Node) -> None:
    address = network.listen(node, Echo)
    names = {"alpha", "beta", "gamma", node.name}  # its order depends on the hash seed: sorted below
    while True:
        transport, _ = await network.connect(node, address, Echo)
        transport.write(b"x" * random.randint(1, 500))
        try:
            async with asyncio.TaskGroup() as group:
                for name in sorted(names):
                    group.create_task(child(name))
        except* OSError:
            current_loop().trace.note("child failed")
        transport.abort()
        done, _ = await asyncio.wait([asyncio.create_task(asyncio.sleep(0.01)) for _ in range(4)])
        for task in done:
            current_loop().trace.note("done", task=task.get_name())


async def main() -> int:
    loop = current_loop()
    network = Network(loop, link=Link(reset=0.01))
    for number in range(4):
        node = loop.nodes.add(f"runner-{number}", time=LocalTime(drift_ppm=number * 100))
        loop.spawn(node, runner(network, node), name="run")
    for number in range(20):
        await asyncio.sleep(1)
        node = loop.nodes.newest[f"runner-{number % 4}"]
        if number % 10 == 9:
            loop.nodes.crash(node)
            node = loop.nodes.add(node.name)
            loop.spawn(node, runner(network, node), name="run")
        elif number % 3 == 0:
            loop.nodes.freeze(node)
            network.cut(node.name, node.name)
        else:
            loop.nodes.thaw(node)
            network.heal(node.name, node.name)
    return loop.steps


def digest(seed: int) -> str:
    run = SeedRun(seed)
    run(main)
    return f"{run.loop.trace.digest()} {run.loop.now_ns} {run.loop.steps}"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(digest(int(argument)))
