"""A runner that is probed: `python probe_program.py`. It leads a singleton with others, which hangs when it is told to.

SIGUSR1 blocks the event loop until there is a file `unblock`. SIGUSR2 makes the body of the singleton hang wherever it
runs in this process, and the next one lets it go on.

Variables:
    PROBED_CLOSE_S: How long it takes to close what was opened, at the end of a drain.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie import Cluster, Leader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NAME = "importer"
EXPECTED_S = 2
UNBLOCK = Path("unblock")
CLOSE_S = float(os.environ.get("PROBED_CLOSE_S", "0"))


class Valve:
    """What the body passes in each round."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    def turn(self) -> None:
        """Close it if it is open, and the other way round."""
        if self._open.is_set():
            self._open.clear()
        else:
            self._open.set()

    async def passed(self) -> None:
        """Return when it is open."""
        await self._open.wait()


def block() -> None:
    """Block the loop."""
    while not UNBLOCK.exists():
        time.sleep(0.05)


def main() -> None:
    cluster, valve = Cluster(), Valve()

    @cluster.singleton(NAME, every="200ms", expected_interval=f"{EXPECTED_S}s")
    async def importer(leader: Leader[None]) -> None:
        await valve.passed()

    @cluster.setup
    @asynccontextmanager
    async def obey() -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, block)
        loop.add_signal_handler(signal.SIGUSR2, valve.turn)
        yield
        await asyncio.sleep(CLOSE_S)

    cluster.run()


if __name__ == "__main__":
    main()
