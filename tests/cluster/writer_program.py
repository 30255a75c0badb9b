"""A process that writes until it is killed and prints each acknowledged write: `python writer_program.py URL NAME`."""

from __future__ import annotations

import asyncio
import os
import sys

from coterie import Cluster, PersistenceError


async def main(url: str, name: str) -> None:
    cluster = Cluster(url)
    async with cluster.connect():
        say("ready")
        await asyncio.gather(*(write(cluster, f"{name}:{task}") for task in range(4)), count(cluster, name))


async def write(cluster: Cluster, prefix: str) -> None:
    for n in range(1_000_000):
        key = f"{prefix}:{n}"
        try:
            await cluster.kv.set(key, n)
        except PersistenceError:
            continue  # not acknowledged: it may or may not be there
        say(f"set {key} {n}")


async def count(cluster: Cluster, name: str) -> None:
    for n in range(1_000_000):
        say(f"try counter {n}")
        try:
            await cluster.kv.modify("counter", lambda total: (total or 0) + 1)
        except PersistenceError:
            continue
        say(f"add counter {n}")


def say(line: str) -> None:
    os.write(1, (line + "\n").encode())  # one unbuffered write: what was said before the kill is in the pipe


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
