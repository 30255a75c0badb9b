"""The load of the demo: deposits whose number is recorded, so that lost and doubled ones can be counted."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from coterie.cli.demo.program import Account
from coterie.cli.output import plural
from coterie.errors import CoterieError
from coterie.kernel.service import Tasks
from coterie.work.limits import set_within

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coterie.cluster import Cluster

ACCOUNTS = 1_000
_SENDERS = 8
_PAUSE_S = 0.05
"""Pause of each sender after each deposit: a steady hundred or so a second, which leaves the machine to the runners."""
_AGAIN_S = 0.1
_ANSWERED_WITHIN_S = 90.0
"""Longer than any takeover and the timeout of a call: a call without a reply by then never gets one."""
_AT_ONCE = 50


class DepositCount(NamedTuple):
    """The number of deposits, lost and doubled ones."""

    deposits: int
    lost: int
    """Acknowledged, but in no balance."""
    doubled: int
    """In a balance more often than they were made."""
    unanswered: int = 0

    @property
    def is_right(self) -> bool:
        """Whether nothing is missing, and nothing is there twice."""
        return not (self.lost or self.doubled or self.unanswered)

    def __str__(self) -> str:
        silent = f", {self.unanswered} without an answer" if self.unanswered else ""
        return f"{plural(self.lost, 'message')} lost, {self.doubled} doubled{silent}"


class DepositLoad:
    """Makes deposits of one cent, each with a key of its own, until it is stopped. Used on one loop.

    A deposit without a clear reply is made again with the same key. So when all of them are acknowledged, each account
    has to hold exactly as many cents as deposits were made to it.

    Args:
        cluster: A client.
        run: Tells accounts and keys of this run from those of earlier ones in the same database.
    """

    def __init__(self, cluster: Cluster, *, run: str) -> None:
        self._cluster = cluster
        self._run = run
        self._numbers = itertools.count(1)
        self._made: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()
        self._unchecked: set[str] = set()
        self._pending = 0
        self._may_begin = asyncio.Event()
        self._may_begin.set()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._tasks = Tasks("deposits")
        self.slowest_s = 0.0
        """Duration of the slowest deposit since this was last set to 0."""

    @property
    def deposits(self) -> int:
        """The number of deposits acknowledged so far."""
        return self._answered.total()

    def start(self) -> None:
        """Start the senders."""
        for number in range(_SENDERS):
            self._tasks.spawn(self._send(), name=f"sender {number}")

    async def stop(self) -> None:
        """Stop the senders."""
        await self._tasks.stop()

    async def check(self, *, everything: bool = False) -> DepositCount:
        """Pause the senders, wait for all replies, and compare balances with the records.

        Args:
            everything: All accounts, not only those that were used since the last check.
        """
        self._may_begin.clear()
        try:
            unanswered = await self._come_to_rest()
            accounts = sorted(self._made if everything else self._unchecked)
            lost, doubled = await self._compare(accounts)
            self._unchecked.clear()
            return DepositCount(self.deposits, lost, doubled, unanswered)
        finally:
            self._may_begin.set()

    async def _come_to_rest(self) -> int:
        return 0 if await set_within(self._quiet, _ANSWERED_WITHIN_S) else self._pending

    async def _compare(self, accounts: Iterable[str]) -> tuple[int, int]:
        turn = asyncio.Semaphore(_AT_ONCE)

        async def balance(account: str) -> tuple[str, int]:
            async with turn:
                return account, await self._balance(account)

        balances = await asyncio.gather(*(balance(account) for account in accounts))
        lost = sum(max(self._answered[account] - cents, 0) for account, cents in balances)
        doubled = sum(max(cents - self._made[account], 0) for account, cents in balances)
        return lost, doubled

    async def _balance(self, account: str) -> int:
        async with asyncio.timeout(_ANSWERED_WITHIN_S):
            while True:
                try:
                    return await self._cluster.ref(Account, account).balance()
                except CoterieError:
                    await asyncio.sleep(_AGAIN_S)

    async def _send(self) -> None:
        while True:
            while not self._may_begin.is_set():  # another check may have begun before this one is woken
                await self._may_begin.wait()
            number = next(self._numbers)
            account = f"{self._run}-{number % ACCOUNTS}"
            self._made[account] += 1
            self._unchecked.add(account)
            self._pending += 1
            self._quiet.clear()
            await self._deposit(account, f"{self._run}-{number}")
            self._answered[account] += 1
            self._pending -= 1
            if not self._pending:
                self._quiet.set()
            await asyncio.sleep(_PAUSE_S)

    async def _deposit(self, account: str, key: str) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            try:
                await self._cluster.ref(Account, account).deposit(key, 1)
            except CoterieError:  # whatever the outcome: with the same key it happens once
                await asyncio.sleep(_AGAIN_S)
            else:
                self.slowest_s = max(self.slowest_s, loop.time() - began_s)
                return
