"""Entities, a leader, a cron and a workflow, by public names only, for two versions: `python version_program.py`.

The version is that of the first `coterie` on PYTHONPATH. Each line that begins with "@ " is an event, for the test.

Variables:
    VERSION_CALLS: Numbers that a client adds to all accounts, by persisted calls; without it this process is a runner.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import coterie
from coterie import Cluster, Entity, Leader, Tick, Workflow, rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ACCOUNTS = [f"account-{number}" for number in range(16)]
SHARDS = 8


@dataclass
class Sums:
    """The state of an account: all that it was given, by calls and by its neighbour."""

    added: list[int] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)


@dataclass
class Tally:
    """The state of the leader."""

    number: int = 0


class Account(Entity[Sums]):
    """Answers, calls its neighbour, and keeps numbers."""

    @rpc
    async def where(self) -> str:
        """The runner that it lives on."""
        return os.environ["COTERIE_RUNNER_NAME"]

    @rpc
    async def ask(self, other: str) -> list[str]:
        """The runners that this account and another one live on, by a call from one to the other."""
        return [await self.where(), await self.cluster.ref(Account, other).where()]

    @rpc
    async def sums(self) -> Sums:
        """All that it was given."""
        return self.state

    @rpc(persisted=True, key="number")
    async def add(self, number: int, other: str) -> str:
        """Keep a number, and send it to another account in the same commit."""
        self.state.added.append(number)
        await self.cluster.send(self.cluster.ref(Account, other).take(number))
        return await self.where()

    @rpc(persisted=True)
    async def take(self, number: int) -> None:
        """Keep a number that another account sends."""
        self.state.passed.append(number)


def next_of(account: str) -> str:
    """The account that another one sends to."""
    return ACCOUNTS[(ACCOUNTS.index(account) + 1) % len(ACCOUNTS)]


def note(what: str, **fields: object) -> None:
    print("@ " + json.dumps({"what": what, "pid": os.getpid(), **fields}), flush=True)


async def lead(leader: Leader[Tally]) -> None:
    note("leads", number=leader.state.number, epoch=leader.epoch)
    while True:
        async with leader.update() as tally:
            tally.number += 1
        note("saved", number=tally.number)
        await asyncio.sleep(0.05)


async def tick(tick: Tick) -> None:
    note("tick", at=tick.scheduled_at.timestamp(), attempt=tick.attempt)


async def travel(workflow: Workflow, number: int) -> int:
    """Steps and sleeps, each of which another version may take over."""
    total = 0
    for leg in range(4):
        total += await workflow.step(f"leg {leg}", go, number, leg)
        await workflow.sleep("200ms", name=f"rest {leg}")
    return total


async def go(number: int, leg: int) -> int:
    note("leg", number=number, leg=leg)
    return number


def program(cluster: Cluster) -> Cluster:
    """Define all of it."""
    cluster.entity(Account)
    cluster.workflow(travel)
    cluster.singleton("tally", state=Tally)(lead)
    cluster.cron("each", "* * * * * *", catch_up="all")(tick)
    return cluster


async def call(numbers: list[int]) -> None:
    """Add numbers to all accounts, as a client of this version."""
    cluster = program(Cluster())
    async with cluster.connect():
        for account in ACCOUNTS:
            for number in numbers:
                await cluster.ref(Account, account, timeout=60.0).add(number, next_of(account))
    note("called", code=str(Path(coterie.__file__).parent))


@asynccontextmanager
async def noted() -> AsyncIterator[None]:
    note("up", code=str(Path(coterie.__file__).parent))
    yield


def main() -> None:
    if "VERSION_CALLS" in os.environ:
        asyncio.run(call([int(word) for word in os.environ["VERSION_CALLS"].split()]))
        return
    cluster = program(Cluster())
    cluster.setup(noted)
    cluster.run()


if __name__ == "__main__":
    main()
