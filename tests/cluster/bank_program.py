"""A bank whose accounts pay each other by persisted calls: `python bank_program.py` is a runner or a client.

An account keeps the numbers of all payments that it has seen, in its state: what was done twice is there twice.

Variables:
    BANK_JOURNAL: The folder of the journals.
    BANK_PAYS: How many payments a client has under way at once; without it this process is a runner.
    BANK_HOW: In which ways it pays; all if left out.
    BANK_TIMEOUT_S: How long it waits for an answer; now shortly, now long, if left out.
    BANK_PAUSE_S: How long it waits before the next one, at most.
    BANK_FLAW: Which part of its handlers ends by a defect; none if left out.
    BANK_DIE: The moment at which to die or to freeze, see `kill_points`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from coterie import Cluster, Entity, current, rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SHARDS = 12
ACCOUNTS = 60
OPENING = 200
FLAW = float(os.environ.get("BANK_FLAW", "0"))
EARLY_S = 0.005
"""By how much a handler may run too early: two clocks are read, one of them by the database."""


@dataclass
class Book:
    """The state of an account."""

    cents: int = OPENING
    paid: list[int] = field(default_factory=list)
    got: list[int] = field(default_factory=list)
    early: list[int] = field(default_factory=list)


class Overdrawn(Exception):
    """There is not enough in it."""


class Account(Entity[Book]):
    """An account."""

    @rpc
    async def book(self) -> Book:
        """All that it knows."""
        return self.state

    @rpc(persisted=True, key="number", errors=[Overdrawn])
    async def transfer(
        self, number: int, to: str, cents: int, *, strict: bool = False, not_before: float = 0.0, think_s: float = 0.0
    ) -> str:
        """Pay another account, in one commit with the message to it; the runner that did."""
        note("began", number=number)
        if time.time() < not_before - EARLY_S:
            self.state.early.append(number)
        self._pay(number, cents, strict=strict)
        await self.cluster.send(self.cluster.ref(Account, to).receive(number, cents))
        await asyncio.sleep(think_s)
        fail_at_times()
        return current().runner_id or ""

    @rpc(persisted=True, errors=[Overdrawn])
    async def withdraw(self, number: int, cents: int) -> None:
        """Give money to a desk."""
        self._pay(number, cents, strict=True)

    @rpc(persisted=True)
    async def receive(self, number: int, cents: int) -> None:
        """Get money."""
        self.state.cents += cents
        self.state.got.append(number)

    def _pay(self, number: int, cents: int, *, strict: bool) -> None:
        self.state.cents -= cents
        self.state.paid.append(number)
        if strict and self.state.cents < 0:
            raise Overdrawn(self.id)


def fail_at_times() -> None:
    """A defect, when all is done: nothing of it may stay, and it is tried again."""
    if random.random() < FLAW:
        raise RuntimeError("a defect")


class Desk(Entity):
    """Pays for others, by calls that it awaits: run again, it finds their replies [M6]."""

    @rpc(persisted=True, key="number", errors=[Overdrawn])
    async def pay(self, number: int, payer: str, to: str, cents: int) -> str:
        """Take from one account, then give to the other; the runner that did."""
        note("began", number=number)
        await self.cluster.ref(Account, payer).withdraw(number, cents)
        await self.cluster.ref(Account, to).receive(number, cents)
        fail_at_times()
        return current().runner_id or ""


def program(cluster: Cluster) -> Cluster:
    """Define the bank."""
    cluster.entity(Account)
    cluster.entity(concurrency=8)(Desk)
    return cluster


class Journal:
    """Lines of JSON, each written at once: what was noted before a kill is there."""

    def __init__(self) -> None:
        path = Path(os.environ["BANK_JOURNAL"]) / f"{os.environ['COTERIE_RUNNER_NAME']}.{os.getpid()}.jsonl"
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def note(self, what: str, **fields: object) -> None:
        os.write(self._file, json.dumps({"what": what, **fields}).encode() + b"\n")


_journal: list[Journal] = []


def note(what: str, **fields: object) -> None:
    """Note something in the journal of this process."""
    if not _journal:
        _journal.append(Journal())
    _journal[0].note(what, **fields)


@asynccontextmanager
async def noted_start() -> AsyncIterator[None]:
    """Open the journal: this process works from now on."""
    note("up")
    yield


def main() -> None:
    from tests.cluster import kill_points  # which knows us

    if moment := os.environ.get("BANK_DIE"):
        kill_points.install(moment)
    if "BANK_PAYS" in os.environ:
        asyncio.run(pay_on())
    else:
        cluster = program(Cluster())
        cluster.setup(noted_start)
        cluster.run()


async def pay_on() -> None:
    from tests.cluster.bank_client import TIMEOUTS, How, pay

    told = os.environ
    hows = [how for how in get_args(How) if how in told.get("BANK_HOW", how)]
    timeouts = [float(told["BANK_TIMEOUT_S"])] if "BANK_TIMEOUT_S" in told else TIMEOUTS
    await pay(int(told["BANK_PAYS"]), hows=hows, timeouts=timeouts, pause_s=float(told["BANK_PAUSE_S"]))


if __name__ == "__main__":
    main()
