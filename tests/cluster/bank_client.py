"""A client of the bank: it pays until it is told to stop, and notes each payment when it is acknowledged."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from typing import TYPE_CHECKING, Literal

from coterie import Cluster, CoterieError, MessageDead
from tests.cluster.bank_program import ACCOUNTS, Account, Desk, Overdrawn, note, program

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

How = Literal["sent", "later", "awaited", "desk"]
"""Sent, sent with a delay, awaited, or awaited while a desk awaits the two accounts."""
DELAY_S = 1.0
TIMEOUTS = (0.3, 3.0, 30.0)
"""Of those who do not get an answer in time some ask again while the first call is still under way."""
PAUSE_S = 0.1


async def pay(tasks: int, *, hows: Sequence[How], timeouts: Sequence[float], pause_s: float) -> None:
    """Pay in so many tasks until SIGTERM; what is under way then is brought to its end."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    numbers = itertools.count(os.getpid() << 24)
    async with program(Cluster()).connect() as cluster:
        note("up")

        async def pay_on() -> None:
            while not over.is_set():
                await pay_once(cluster, next(numbers), random.choice(hows), timeout=random.choice(timeouts))
                await asyncio.sleep(random.uniform(0, pause_s))

        await asyncio.gather(*(pay_on() for _ in range(tasks)))


async def pay_once(cluster: Cluster, number: int, how: How, *, timeout: float = 30.0) -> None:
    """One payment, asked for under the same key until the answer is clear."""
    one, other = (f"account-{each}" for each in random.sample(range(ACCOUNTS), 2))
    act = action(cluster, number, how, one, other, timeout)
    note("tried", number=number)
    began_s = time.monotonic()
    while True:
        try:
            await act()
        except Overdrawn:
            told = "refused"
        except MessageDead:
            told = "dead"
        except CoterieError as error:
            note("failed", number=number, code=error.code)
            await asyncio.sleep(PAUSE_S)
            continue
        else:
            told = how
        note(told, number=number, at_s=began_s, took_s=time.monotonic() - began_s)
        return


def action(
    cluster: Cluster, number: int, how: How, one: str, other: str, timeout: float
) -> Callable[[], Awaitable[object]]:
    """What to do, as often as it takes: always with the same arguments.

    Who sends does not hear whether a payment is refused: those are made however little there is.
    """
    account, cents = cluster.ref(Account, one, timeout=timeout), random.randrange(1, 100)
    delay_s = random.uniform(0, DELAY_S)
    not_before = time.time() + delay_s
    actions: dict[How, Callable[[], Awaitable[object]]] = {
        "sent": lambda: cluster.send(account.transfer(number, other, cents)),
        "later": lambda: cluster.send(account.transfer(number, other, cents, not_before=not_before), delay=delay_s),
        "awaited": lambda: account.transfer(number, other, cents, strict=True),
        "desk": lambda: cluster.ref(Desk, f"desk-{number % 20}", timeout=timeout).pay(number, one, other, cents),
    }
    return actions[how]
