"""A bank of real processes on a real database: runners, clients that pay, and what can be asked of it."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie import Cluster, CoterieError
from coterie.testing import processes
from tests.cluster.bank_history import PaymentReply, Records, judge
from tests.cluster.bank_program import ACCOUNTS, SHARDS, Account, program
from tests.cluster.process_roles import ProcessRoles
from tests.cluster.seat_cluster import NO_HTTP, QUICK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from coterie import MessageId
    from coterie.testing import Process, Processes

BANK = Path(__file__).with_name("bank_program.py")
ROOT = BANK.parent.parent.parent
QUIET_S = 180.0


class Branch(ProcessRoles):
    """The processes of a bank, a client in this process, and what all have noted."""

    def __init__(self, cluster: Processes, client: Cluster, records: Records) -> None:
        super().__init__(cluster)
        self.client = client
        self.records = records
        self.wait_until = cluster.wait_until
        self._numbers = itertools.count(1)
        self.retried = 0
        """Messages that were dead at the end, and were run again."""

    async def start_clients(
        self, n: int = 1, *, pays: int = 8, pause_s: float = 0.1, **variables: str
    ) -> list[Process]:
        """Start clients that pay."""
        new = await self.start(n, {"BANK_PAYS": str(pays), "BANK_PAUSE_S": str(pause_s), **variables})
        self.clients += new
        return new

    async def working(self, *processes: Process, within: str = "2m") -> None:
        """Wait until each of these runners has run a handler after this moment."""
        before = dict(self.records.refresh().by)
        names = [each.name for each in processes]
        await self.wait_until(
            lambda: all(self.records.refresh().by[name] > before.get(name, 0) for name in names), within=within
        )

    async def paying(self, more: int = 50, *, within: str = "2m") -> None:
        """Wait until so many payments more were acknowledged that were asked for after this moment."""
        now_s = time.monotonic()
        await self.wait_until(
            lambda: sum(told.at_s > now_s for told in self.records.refresh().told.values()) >= more, within=within
        )

    def account(self, name: str, *, timeout: float = 120.0) -> Account:
        return self.client.ref(Account, name, timeout=timeout)

    async def pay(self, one: str, *, to: str) -> str:
        """One payment of our own, awaited; the runner that made it."""
        number = self._new_number()
        runner = await self.account(one).transfer(number, to, 1)
        self.records.told[number] = PaymentReply("awaited", 0.0, 0.0)
        return runner

    async def schedule(self, one: str, *, to: str, delay_s: float) -> MessageId[str]:
        """One payment of our own, sent for later."""
        number = self._new_number()
        payment = self.account(one).transfer(number, to, 1, not_before=time.time() + delay_s)
        message = await self.client.send(payment, delay=delay_s)
        self.records.told[number] = PaymentReply("later", 0.0, 0.0)
        return message

    def _new_number(self) -> int:
        number = next(self._numbers)
        self.records.tried.add(number)
        return number

    async def pending(self) -> int | None:
        """How many messages have not ended, 1000 at most; None: the database is away."""
        try:
            return len(await self.client.messages.list(status="pending", limit=1000))
        except CoterieError:
            return None

    async def close_day(self, *, within_s: float = QUIET_S) -> Counter[str]:
        """Let clients and messages come to their end, and judge all of it; what there was."""
        leaving = [each for each in self.clients if each.alive]
        for each, code in zip(
            leaving, await asyncio.gather(*(each.stop(within=within_s) for each in leaving)), strict=True
        ):
            assert code == 0, each.tail()
        await self.wait_until(self._is_quiet, within=within_s)
        names = [f"account-{number}" for number in range(ACCOUNTS)]
        books = await asyncio.gather(*(self.account(name).book() for name in names))
        counts = judge(self.records.refresh(), dict(zip(names, books, strict=True)))
        return counts + Counter(retried=self.retried)

    async def _is_quiet(self) -> bool:
        """Nothing is pending; what is dead is run again: set aside is not lost."""
        messages = self.client.messages
        if await messages.list(status="pending", limit=1):
            return False
        dead = await messages.list(status="dead")
        for each in dead:
            self.retried += await messages.retry(each.id)
        return not dead


@asynccontextmanager
async def bank(
    url: str,
    folder: Path,
    *,
    runners: int = 3,
    clients: int = 2,
    pays: int = 8,
    pause_s: float = 0.1,
    flaw: float = 0.0,
    times: Mapping[str, str] = QUICK,
    directory: Path | None = None,
) -> AsyncIterator[Branch]:
    """A bank, open: all runners work, if somebody pays. Judged at the end."""
    journals = folder / "journals"
    journals.mkdir()
    env = {
        "BANK_JOURNAL": str(journals),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/src",
        "COTERIE_SHARDS": str(SHARDS),
        "COTERIE_DRAIN": "5s",
        "BANK_FLAW": str(flaw),
        **NO_HTTP,
        **times,
    }
    client = program(Cluster(url, shards=SHARDS))

    def ready(process: Process) -> object:
        return (journals / f"{process.name}.{process.pid}.jsonl").exists()

    opened = processes(BANK, runners=0, url=url, env=env, directory=directory, ready=ready)
    async with opened as cluster, client.connect():
        branch = Branch(cluster, client, Records(journals))
        await branch.start_runners(runners)
        await branch.start_clients(clients, pays=pays, pause_s=pause_s)
        if clients:
            await branch.working(*branch.runners)
        yield branch
        counts = await branch.close_day()
        if clients:
            assert counts["made"] > 50, f"hardly anything was paid: the test shows nothing: {counts}"
