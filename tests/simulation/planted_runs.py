"""Planted workloads of which one seed never ends, each in its own way; the others end at once."""

from __future__ import annotations

import asyncio
import os
import signal

from coterie.kernel import chaos
from coterie.testing.run import current_loop

SICK = 2


async def grows() -> None:
    """Takes a MiB more each second, in small pieces, until nothing at all is left."""
    held: object = None
    while _is_sick():
        await asyncio.sleep(1)
        for _ in range(2**10):
            held = (held, bytearray(2**10))


async def goes_on() -> None:
    """Waits for what never comes, while others keep the loop busy."""
    if _is_sick():
        busy = asyncio.ensure_future(_ticks())
        await asyncio.get_running_loop().create_future()
        busy.cancel()


async def computes() -> None:
    """Never comes back to the loop, as a checker does that tries every order."""
    while _is_sick():
        pass


async def is_deaf() -> None:
    """As `computes`, and no signal reaches it, as in C."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    await computes()


async def dies() -> None:
    """Takes its process with it, as what the system kills for its memory."""
    if _is_sick():
        os.kill(os.getpid(), signal.SIGKILL)


async def reaches() -> None:
    """Is well, and comes by a chaos point."""
    await chaos.point("planted")


async def _ticks() -> None:
    while True:
        await asyncio.sleep(1)


def _is_sick() -> bool:
    return current_loop().seed == SICK
