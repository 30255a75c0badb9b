"""A runner whose standing task `prune` fails whenever it begins: `python failing_task_program.py`.

It fails three times, then stays until SIGUSR1 lets it fail on, so that its probes can be asked before it is given up.
The pauses of the supervisor are short, and no time makes the task count as well again.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from coterie import Cluster, Retry
from coterie.kernel import supervisor
from coterie.work.pruner import Pruner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STAYS_AFTER = 3


def main() -> None:
    cluster, goes_on, begun = Cluster(), asyncio.Event(), 0

    async def prune_on(self: Pruner) -> None:
        nonlocal begun
        begun += 1
        if begun > STAYS_AFTER:
            await goes_on.wait()
        raise OSError("no such disk")

    Pruner._prune_on = prune_on  # type: ignore[method-assign]
    supervisor.PAUSES = Retry(attempts=supervisor.MOST + 1, base="10ms", max="20ms")
    supervisor.WELL_S = 3600.0

    @cluster.setup
    @asynccontextmanager
    async def obey() -> AsyncIterator[None]:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, goes_on.set)
        yield

    cluster.run()


if __name__ == "__main__":
    main()
