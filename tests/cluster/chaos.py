"""What is broken at random while real processes work: they are killed and frozen, their database and networks cut.

The seed decides what is broken, when and for how long; what the processes make of it, nobody decides.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from coterie.testing import Process, Server
    from coterie.testing.database import Way
    from coterie.testing.proxy import Proxy
    from tests.cluster.process_roles import ProcessRoles

LONGEST_S = 5.0
"""Of one disturbance: twice as long as a lease."""
PAUSE_S = 3.0
WAYS: tuple[tuple[Way, ...], ...] = ((), ("requests",), ("replies",))


class Chaos:
    """Breaks one thing after the other, and mends it.

    Args:
        roles: The processes that are broken.
        seed: Decides what, when and for how long.
        server: The database's; None: it has none.
        wires: The networks on which runners are reached by others.
    """

    def __init__(self, roles: ProcessRoles, *, seed: int, server: Server | None, wires: Iterable[Proxy]) -> None:
        self.done: Counter[str] = Counter()
        self._roles = roles
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
        await self._with(self._roles.runners, self._killed)

    async def _kill_client(self) -> None:
        await self._with(self._roles.clients, self._killed)

    async def _killed(self, victim: Process) -> None:
        self._count("kill", victim)
        await victim.kill()
        await self._a_while()

    async def _freeze(self) -> None:
        await self._with(self._roles.runners, self._frozen)

    async def _freeze_client(self) -> None:
        await self._with(self._roles.clients, self._frozen)

    async def _frozen(self, victim: Process) -> None:
        self._count("freeze", victim)
        await victim.freeze()
        await self._a_while()
        await victim.thaw()

    async def _stop(self) -> None:
        await self._with(self._roles.runners, self._stopped)

    async def _stopped(self, victim: Process) -> None:
        code = await victim.stop(within="60s")
        self._count("stop" if code == 0 else f"stop with {code}", victim)

    async def _cut_storage(self) -> None:
        await self._with(self._roles.cluster.runners, self._cut_off)

    async def _cut_off(self, victim: Process) -> None:
        ways = self._chance.choice(WAYS)
        self._count(f"cut {'and '.join(ways) or 'all'} to storage", victim)
        await victim.cut("storage", *ways)
        await self._a_while()
        await victim.heal()

    async def _reset_storage(self) -> None:
        victim = self._chance.choice(self._roles.cluster.runners)
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
        whose = "client" if victim in self._roles.clients else "runner"
        self.done[f"{what} ({whose})"] += 1
