"""The program of the flows workload: a workflow that does what its plan says, and a leader with units."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coterie import (
    Cluster,
    DeferredRejected,
    DeferredTimeout,
    Leader,
    Retry,
    Workflow,
    WorkflowFailed,
    WorkflowInterrupted,
    current,
)
from coterie.testing.loop.seeds import stream
from coterie.testing.run import current_loop
from coterie.workflows.workflow import waited_as_of
from tests.simulation.workloads.flow_history import Defect, FlowHistory, said
from tests.simulation.workloads.flow_plans import BRANCHED, Act, child_id, names_of, unit_of
from tests.support.history.workflow_checkers import shown
from tests.support.history.workflow_events import Ended, Planned, Promised, Saw, StepBegan, Waits

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from coterie.durable.unit import Durable

RETRY = Retry(3, base="200ms")


@dataclass
class Number:
    """The state of the leader."""

    n: int = 0


@dataclass
class SimulatedFlows:
    """A cluster with its workflow and its leader, and what was noted."""

    cluster: Cluster
    history: FlowHistory = field(default_factory=FlowHistory)
    asks: asyncio.Queue[tuple[str, str, str]] = field(default_factory=asyncio.Queue)
    """Deferreds that somebody waits for: unit, name and token."""
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    is_over: bool = False
    flow: Any = None
    fails: float = 0.15

    async def do(self, unit: str, name: str, branch: str, longest_s: float, fails: float) -> str:
        """A step, or what undoes one: its mark says who ran it."""
        epoch = current().epoch or 0
        mark = f"{epoch}.{next(self.numbers)}"
        random = stream(current_loop().seed, f"{unit} {name} {mark}")
        self.history.note(StepBegan(unit, name, epoch, name.startswith("undo "), branch))
        await asyncio.sleep(random.uniform(0, longest_s) ** 2)
        if random.random() < fails:
            raise Defect(mark)
        return mark

    def saw(self, unit: str, name: str, given: str, kind: str = "step") -> str:
        """A body was given something."""
        self.history.note(Saw(unit, name, given, kind, self.history.now_s))
        return f"{name}={given}"

    async def wait(self, unit: str, durable: Durable, name: str, timeout_s: float | None = None) -> str:
        """Wait for a deferred; what it gave."""
        deferred, kind = durable.deferred(name, int), "wait" if timeout_s is None else "timed"
        self.asks.put_nowait((unit, name, deferred.token))
        self.history.note(Waits(unit, name))
        try:
            given = str(await deferred.wait(timeout=timeout_s))
        except (DeferredRejected, DeferredTimeout) as error:
            given = said(error)
        return self.saw(unit, name, given, kind)


async def _grouped(parts: list[Coroutine[Any, Any, list[str]]]) -> list[list[str]]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part) for part in parts]
    return [task.result() for task in tasks]


async def _gathered(parts: list[Coroutine[Any, Any, list[str]]]) -> list[list[str]]:
    return list(await asyncio.gather(*parts))


BRANCHES = {"both": _gathered, "group": _grouped}


@dataclass
class Player:
    """Does what a plan says, in one run of a workflow."""

    stage: SimulatedFlows
    workflow: Workflow
    unit: str

    async def play(self, plan: list[Act], branch: str = "") -> list[str]:
        """One act after the other; what each gave."""
        seen: list[str] = []
        for act in plan:
            if act.kind in BRANCHED:
                parts = [self.play(part, f"{branch}/{n}") for n, part in enumerate(act.parts)]
                seen += itertools.chain.from_iterable(await BRANCHES[act.kind](parts))
            else:
                seen.append(await getattr(self, act.kind)(act, branch))
        return seen

    async def step(self, act: Act, branch: str, *, fails: float | None = None) -> str:
        """A step that may fail, also for good."""
        fails = self.stage.fails if fails is None else fails
        steps = self.workflow.options(retry=RETRY)
        try:
            given = await steps.step(act.name, self.stage.do, self.unit, act.name, branch, act.seconds, fails)
        except Defect as error:
            self.stage.saw(self.unit, act.name, said(error))
            raise
        return self.stage.saw(self.unit, act.name, given)

    async def undone(self, act: Act, branch: str) -> str:
        """A step that has to be undone."""
        seen = await self.step(act, branch)
        undo = f"undo {act.name}"
        self.stage.history.note(Promised(self.unit, undo, branch))
        self.workflow.compensate(undo, self.stage.do, self.unit, undo, branch, act.seconds, self.stage.fails)
        return seen

    async def doomed(self, act: Act, branch: str) -> str:
        """A step that fails for good."""
        return await self.step(act, branch, fails=1.0)

    async def sleep(self, act: Act, _: str) -> str:
        """A durable sleep."""
        await self.workflow.sleep(act.seconds, name=act.name)
        return self.stage.saw(self.unit, act.name, "", "sleep")

    async def wait(self, act: Act, _: str) -> str:
        """A deferred."""
        return await self.stage.wait(self.unit, self.workflow, act.name)

    async def timed(self, act: Act, _: str) -> str:
        """A deferred, for a while."""
        return await self.stage.wait(self.unit, self.workflow, act.name, act.seconds)

    async def child(self, act: Act, _: str) -> str:
        """Another run; if that ends badly, so does this one."""
        own_id = child_id(self.workflow.id, act)
        child, waited_as = unit_of(own_id), waited_as_of(self.stage.flow, own_id)
        self.stage.history.note(Planned(child, names_of(own_id, act.parts[0])))
        self.stage.history.note(Waits(self.unit, waited_as))
        try:
            result = await self.workflow.child(self.stage.flow, act.parts[0], id=own_id)
        except (WorkflowFailed, WorkflowInterrupted) as error:
            status = "failed" if isinstance(error, WorkflowFailed) else "interrupted"
            self._told(child, waited_as, shown(Ended(child, status)))
            raise
        return self._told(child, waited_as, shown(Ended(child, "done", tuple(result[1:]))))

    def _told(self, child: str, waited_as: str, given: str) -> str:
        self.stage.saw(self.unit, waited_as, "", "told")
        return self.stage.saw(self.unit, child, given, "child")


def new_stage(**settings: Any) -> SimulatedFlows:
    """A fresh program."""
    stage = SimulatedFlows(Cluster("sqlite://", **{"shards": 4, "drain": "3s", **settings}))

    @stage.cluster.workflow
    async def flow(workflow: Workflow, plan: list[Act]) -> list[str]:
        return [str(current().epoch), *await Player(stage, workflow, unit_of(workflow.id)).play(plan)]

    @stage.cluster.singleton("importer", state=Number)
    async def importer(leader: Leader[Number]) -> None:
        while not stage.is_over:
            await _import(stage, leader)
            async with leader.update() as state:
                state.n += 1
            await leader.sleep("500ms")
        await leader.sleep("1d")

    stage.flow = flow
    return stage


async def _import(stage: SimulatedFlows, leader: Leader[Number]) -> None:
    """A unit of a leader, which whoever leads next goes on with."""
    key = f"import {leader.state.n}"
    name = f"singleton:{leader.name}/{key}"
    async with leader.unit(key) as unit:
        for step in ("first", "second", "third"):
            if step == "third":
                await stage.wait(name, unit, "gate")
            try:
                given = await unit.step(step, stage.do, name, step, "", 0.5, stage.fails)
            except Defect as error:
                given = said(error)
            stage.saw(name, step, given)
            await unit.sleep("300ms", name=f"after {step}")
            stage.saw(name, f"after {step}", "", "sleep")
