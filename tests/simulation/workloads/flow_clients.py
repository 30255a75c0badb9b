"""The clients of the flows workload: they start, resolve and reject, interrupt and resume."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from typing import TYPE_CHECKING

from coterie import AlreadyResolved, CoterieError, PersistenceError
from coterie.testing.loop.seeds import stream
from coterie.workflows.execution import IDLE_S
from tests.simulation.workloads.flow_plans import names_of, unit_of
from tests.support.history.workflow_events import Planned, ResolveTold, StartTold

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.testing.loop.seeds import Stream
    from coterie.testing.simulation import Simulation
    from tests.simulation.workloads.flow_plans import Act
    from tests.simulation.workloads.flow_program import SimulatedFlows


class Client:
    """Somebody who starts, resolves, interrupts and resumes."""

    def __init__(self, stage: SimulatedFlows, sim: Simulation, draw: Callable[[Stream], list[Act]]) -> None:
        self._stage = stage
        self._draw = draw
        self._cluster = stage.cluster
        self._random: Stream = stream(sim.seed, "client")
        self._seed = sim.seed
        self._ids = itertools.count(1)
        self._started: list[str] = []
        self._answering: dict[tuple[str, str], list[asyncio.Task[None]]] = {}

    async def act(self, group: asyncio.TaskGroup, *, flows: int, lasting_s: float) -> None:
        """Start runs over a time, and disturb them."""
        disturbing = group.create_task(self._disturb())
        for _ in range(flows):
            group.create_task(self._start(group, f"{next(self._ids)}", self._draw(self._random)))
            await asyncio.sleep(self._random.uniform(0, 2 * lasting_s / flows))
        disturbing.cancel()

    async def answer(self, group: asyncio.TaskGroup) -> None:
        """Resolve what is waited for, one after the other; each as the seed decides."""
        while True:
            unit, name, token = await self._stage.asks.get()
            if all(task.done() for task in self._answering.get((unit, name), [])):
                self._answer(group, unit, name, token)

    def stop(self) -> None:
        """Nobody waits for anything any more."""
        for task in itertools.chain.from_iterable(self._answering.values()):
            task.cancel()

    def _answer(self, group: asyncio.TaskGroup, unit: str, name: str, token: str, *, early: bool = False) -> None:
        random = stream(self._seed, f"{unit} {name}")
        pauses_s = [0.0, IDLE_S + random.uniform(-0.004, 0.004), random.uniform(0, 1), random.uniform(0, 20)]
        rivals = 2 if random.random() < 0.3 else 1
        pause_s = 0.0 if early else random.choice(pauses_s)
        self._answering[unit, name] = [
            group.create_task(self._resolve(unit, name, token, pause_s, rejects=random.random() < 0.1))
            for _ in range(rivals)
        ]

    async def _resolve(self, unit: str, name: str, token: str, pause_s: float, *, rejects: bool) -> None:
        """Resolve it, until somebody says how that went."""
        await asyncio.sleep(pause_s)
        number = next(self._stage.numbers)
        given = f"rejected {number}" if rejects else str(number)
        while True:
            try:
                if rejects:
                    await self._cluster.reject(token, str(number))
                else:
                    await self._cluster.resolve(token, number)
            except AlreadyResolved:
                self._stage.history.note(ResolveTold(unit, name, given, "already"))
                return
            except PersistenceError:
                self._stage.history.note(ResolveTold(unit, name, given, "unknown"))
                await asyncio.sleep(0.3)
            else:
                self._stage.history.note(ResolveTold(unit, name, given, "ok"))
                return

    async def _start(self, group: asyncio.TaskGroup, id: str, plan: list[Act]) -> None:
        unit = unit_of(id)
        self._stage.history.note(Planned(unit, names_of(id, plan)))
        early = [act.name for act in plan if act.kind in ("wait", "timed") and self._random.random() < 0.2]
        times = 1 + (self._random.random() < 0.2)
        for _ in range(times):
            await self._insist_on_start(id, plan)
        for name in early:
            if (life := await self._life(unit)) is not None:
                token = self._cluster._acting().tokens.make(unit, name, life=life)
                self._answer(group, unit, name, token, early=True)

    async def _life(self, unit: str) -> int | None:
        """Of a run that was started; None: it is gone already."""
        while True:
            try:
                row = await self._cluster._acting().storage.units.get(unit)
            except PersistenceError:
                await asyncio.sleep(0.3)
            else:
                return None if row is None else row.life

    async def _insist_on_start(self, id: str, plan: list[Act]) -> None:
        while True:
            try:
                await self._cluster.start_workflow(self._stage.flow, plan, id=id)
            except PersistenceError:
                await asyncio.sleep(0.3)
            else:
                self._stage.history.note(StartTold(unit_of(id)))
                self._started.append(id)
                return

    async def _disturb(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1 / 2))
            if self._started:
                handle = self._cluster.workflow_handle(self._stage.flow, self._random.choice(self._started[-10:]))
                with suppress(CoterieError):
                    await (handle.interrupt() if self._random.random() < 0.3 else handle.resume())
