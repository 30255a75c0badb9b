"""The interleavings by hand: all of them, the planted bugs, or one run again.

python -m tests.interleavings             every pair with every loss, a line each
python -m tests.interleavings plants      every planted bug, and which pair found it after how many runs
python -m tests.interleavings list        the names of the pairs
python -m tests.interleavings '<id>'      one run again, as a failure printed it
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import asyncpg

from tests.interleavings.catalogue import catalogue
from tests.interleavings.database import schema, stage
from tests.interleavings.plants import PLANTS
from tests.interleavings.runs import describe, find, play_pair, repeat
from tests.support.interleaving import Count
from tests.support.postgres import Server, open_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.interleavings.plants import Plant


async def play_all(server: Server) -> bool:
    """Everything; whether all is well."""
    total, began = Count(), time.monotonic()
    with database(server) as url:
        await _execute(url, schema())
        async with stage(url) as on:
            for name, pair in catalogue().items():
                count = await play_pair(on, pair)
                print(f"{name:55} {describe(count)}", flush=True)
                print(*count.failed[:3], sep="\n", end="\n" if count.failed else "")
                total.merge(count)
    print(f"{len(catalogue())} pairs, {describe(total)}, {time.monotonic() - began:.0f} s")
    return not total.failed


async def print_plants(server: Server) -> bool:
    """A table: plant, instrument, found by, after how many runs; whether all were found."""
    print(f"{'planted bug':48} {'instrument':14} {'found by':48} after runs")
    found = [await _print_plant(server, plant) for plant in PLANTS]
    print(f"{sum(found)} of {len(found)} planted bugs found")
    return all(found)


async def _print_plant(server: Server, plant: Plant) -> bool:
    with database(server) as url:
        await _execute(url, f"{schema()};{plant.schema}")
        if plant.level:
            name = url.rpartition("/")[2]
            await _execute(url, f"alter database \"{name}\" set default_transaction_isolation = '{plant.level}'")
        async with stage(url, own_level=not plant.level) as on:
            run, runs = await find(on, catalogue(plant.steps()).values(), says=plant.says)
    by = run.pair.name if run else "NOT FOUND"
    print(f"{plant.name:48} {'interleavings':14} {by:48} {runs:6}", flush=True)
    return run is not None


async def play_one(server: Server, id: str) -> bool:
    """One run again."""
    with database(server) as url:
        await _execute(url, schema())
        async with stage(url) as on:
            run = await repeat(on, id)
    print(run)
    return not run.problems


@contextmanager
def database(server: Server) -> Iterator[str]:
    """A database for a while; its URL."""
    name = server.create_database()
    try:
        yield server.url(name)
    finally:
        server.drop_database(name)


async def _execute(url: str, script: str) -> None:
    connection = await asyncpg.connect(url, ssl=False)
    await connection.execute(script)
    await connection.close()


def main(arguments: list[str]) -> int:
    """Do what the command line says; 0 if all is well."""
    if arguments == ["list"]:
        print(*catalogue(), sep="\n")
        return 0
    server = open_server()
    try:
        if not arguments:
            work = play_all(server)
        else:
            work = print_plants(server) if arguments == ["plants"] else play_one(server, arguments[0])
        return 0 if asyncio.run(work) else 1
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
