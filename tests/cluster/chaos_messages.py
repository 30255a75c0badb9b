"""Payments while processes are killed and frozen, the database restarts and sockets are cut (GAP-02, GAP-06, GAP-09).

    python -m tests.cluster.chaos_messages --minutes 15 --engine postgres --seed 7

The seed decides what is broken, when and for how long; what the processes make of it, nobody decides. It ends with the
judgement of all payments: none lost, none doubled.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.testing import Server
from tests.cluster.bank_cluster import bank

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from coterie.testing import Process
    from coterie.testing.database import Way
    from coterie.testing.proxy import Proxy
    from tests.cluster.bank_cluster import Branch

RUNNERS, CLIENTS, HANDS = 4, 3, 2
FLAW = 0.01
LONGEST_S = 5.0
"""Of one disturbance: twice as long as a lease."""
PAUSE_S = 3.0
WAYS: tuple[tuple[Way, ...], ...] = ((), ("requests",), ("replies",))


class Chaos:
    """Breaks one thing after the other, and mends it.

    Args:
        branch: What is broken.
        seed: Decides what, when and for how long.
        server: The database's; None: it has none.
        wires: The networks on which runners are reached by others.
    """

    def __init__(self, branch: Branch, *, seed: int, server: Server | None, wires: Iterable[Proxy]) -> None:
        self.done: Counter[str] = Counter()
        self._branch = branch
        self._chance = random.Random(seed)
        self._server = server
        self._wires = list(wires)
        self._busy: set[Process] = set()
        self._faults: list[Callable[[], Awaitable[None]]] = [self._kill, self._kill, self._freeze, self._stop]
        self._faults += [self._kill_client, self._freeze_client, self._cut_wire, self._reset_wire]
        if server is not None:
            self._faults += [self._restart_server, self._freeze_server, self._cut_storage, self._reset_storage]

    async def go_on(self, *, until_s: float) -> None:
        """Break things until the time is over; everything is mended when this returns."""
        while time.monotonic() < until_s:
            await self._chance.choice(self._faults)()
            await asyncio.sleep(self._chance.uniform(0, PAUSE_S))

    async def supervise(self, process: Process) -> None:
        """Have it run: also one that was ended while it was frozen in a commit [C3], or found no database."""
        while not process.alive:
            try:
                await process.start()
            except RuntimeError:
                self._count("start in vain", process)

    async def _kill(self) -> None:
        await self._with(self._branch.runners, self._killed)

    async def _kill_client(self) -> None:
        await self._with(self._branch.clients, self._killed)

    async def _killed(self, victim: Process) -> None:
        self._count("kill", victim)
        await victim.kill()
        await self._a_while()

    async def _freeze(self) -> None:
        await self._with(self._branch.runners, self._frozen)

    async def _freeze_client(self) -> None:
        await self._with(self._branch.clients, self._frozen)

    async def _frozen(self, victim: Process) -> None:
        self._count("freeze", victim)
        await victim.freeze()
        await self._a_while()
        await victim.thaw()

    async def _stop(self) -> None:
        await self._with(self._branch.runners, self._stopped)

    async def _stopped(self, victim: Process) -> None:
        code = await victim.stop(within="60s")
        self._count("stop" if code == 0 else f"stop with {code}", victim)

    async def _cut_storage(self) -> None:
        await self._with(self._branch.cluster.runners, self._cut_off)

    async def _cut_off(self, victim: Process) -> None:
        ways = self._chance.choice(WAYS)
        self._count(f"cut {'and '.join(ways) or 'all'} to storage", victim)
        await victim.cut("storage", *ways)
        await self._a_while()
        await victim.heal()

    async def _reset_storage(self) -> None:
        victim = self._chance.choice(self._branch.cluster.runners)
        self._count("reset storage", victim)
        assert victim.link is not None, "on PostgreSQL each has one"
        victim.link.reset()

    async def _cut_wire(self) -> None:
        self.done["cut wire"] += 1
        wire, ways = self._chance.choice(self._wires), self._chance.choice(WAYS)
        wire.cut(*ways)
        await self._a_while()
        wire.heal()

    async def _reset_wire(self) -> None:
        self.done["reset wire"] += 1
        self._chance.choice(self._wires).reset()

    async def _restart_server(self) -> None:
        assert self._server is not None, "or this is not called"
        self.done["restart server"] += 1
        self._server.thaw()  # the other hand may have frozen it
        self._server.restart(self._chance.choice(("fast", "immediate")))

    async def _freeze_server(self) -> None:
        assert self._server is not None, "or this is not called"
        self.done["freeze server"] += 1
        self._server.thaw()  # as above
        self._server.freeze()
        try:
            await asyncio.sleep(self._chance.uniform(0, LONGEST_S / 2))
        finally:
            self._server.thaw()

    async def _with(self, among: Iterable[Process], act: Callable[[Process], Awaitable[None]]) -> None:
        """Do something to a process with which the other hand does nothing; afterwards it runs."""
        free = [each for each in among if each not in self._busy]
        victim = self._chance.choice(free)
        self._busy.add(victim)
        try:
            if victim.alive:
                await act(victim)
            await self.supervise(victim)
        finally:
            self._busy.discard(victim)

    async def _a_while(self) -> None:
        await asyncio.sleep(self._chance.uniform(0, LONGEST_S))

    def _count(self, what: str, victim: Process) -> None:
        whose = "client" if victim in self._branch.clients else "runner"
        self.done[f"{what} ({whose})"] += 1


async def run(*, engine: str, minutes: float, seed: int, folder: Path) -> None:
    """Chaos for some minutes, then the judgement."""
    with ExitStack() as stack:
        server = None
        url = f"sqlite:///{folder}/bank.db"
        if engine == "postgres":
            server = Server()
            stack.callback(server.close)
            server.start()
            url = server.url(server.create_database())
        async with bank(url, folder, runners=RUNNERS // 2, clients=0, flaw=FLAW, directory=folder) as branch:
            wires = [await branch.start_behind_proxy(stack) for _ in range(RUNNERS - RUNNERS // 2)]
            await branch.start_clients(CLIENTS)
            await branch.paying()
            chaos = Chaos(branch, seed=seed, server=server, wires=wires)
            until_s = time.monotonic() + minutes * 60
            watch = asyncio.create_task(watched(branch))
            await asyncio.gather(*(chaos.go_on(until_s=until_s) for _ in range(HANDS)))
            watch.cancel()
            for each in branch.cluster.runners:
                await chaos.supervise(each)
            broken_s = time.monotonic()
            counts = await branch.close_day()
            report(branch, chaos, counts, engine=engine, quiet_s=time.monotonic() - broken_s)


async def watched(branch: Branch) -> None:
    """Say how it goes, once a minute."""
    while True:
        await asyncio.sleep(60)
        records = branch.records.refresh()
        print(f"{len(records.told)} told, {len(records.tried)} tried, {await branch.pending()} pending", flush=True)


def report(branch: Branch, chaos: Chaos, counts: Counter[str], *, engine: str, quiet_s: float) -> None:
    """What was broken, and what came of it."""
    waits = sorted(told.took_s for told in branch.records.told.values())
    print(f"{engine}: 0 lost, 0 doubled, {branch.retried} dead; all at an end {quiet_s:.1f}s after the last fault")
    print("faults: " + ", ".join(f"{times} {what}" for what, times in sorted(chaos.done.items())))
    print("payments: " + ", ".join(f"{times} {what}" for what, times in counts.most_common()))
    print("errors of clients: " + ", ".join(f"{times} {code}" for code, times in branch.records.failed.most_common()))
    print(
        f"answered after p50 {waits[len(waits) // 2]:.3f}s, p99 {waits[len(waits) * 99 // 100]:.3f}s, {waits[-1]:.1f}s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--engine", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="an empty folder that is kept, with journals and logs")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coterie-chaos-")))
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(run(engine=options.engine, minutes=options.minutes, seed=options.seed, folder=folder))


if __name__ == "__main__":
    main()
