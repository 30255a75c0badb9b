"""Workload: runs begin later, are put off by debounced starts and run out of time, while everything breaks (W14).

Each document has one client, which starts its run again and again, with a number that grows. Judged are the order in
which numbers begin, that none begins before its time, that the last one is run to its end, and that no run outlives its
time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coterie import Cluster, PersistenceError, Workflow, WorkflowInterrupted
from coterie.testing.faults import Kills, StorageCuts, StorageErrors
from coterie.testing.loop.seeds import stream
from coterie.testing.simulation import simulate
from tests.support.history.ownership import Violation

if TYPE_CHECKING:
    from datetime import datetime

    from coterie.testing.faults import Fault
    from coterie.testing.loop.seeds import Stream
    from coterie.testing.simulation import Simulation

RUNNERS = 3
DOCUMENTS = 8
STARTS = 8
DEBOUNCE_S = 2.0
TIME_S = 6.0
SILENCE_S = 120
FAULTS: tuple[Fault, ...] = (Kills(every_s=8, lasting_s=3), StorageErrors(every_s=6, lasting_s=4), StorageCuts())


@dataclass
class Documents:
    """A cluster with its workflows, and what was noted, by document."""

    cluster: Cluster
    index: Any = None
    hang: Any = None
    asked: dict[tuple[str, int], datetime] = field(default_factory=dict)
    """When a number was given first."""
    begun: dict[str, dict[int, datetime]] = field(default_factory=dict)
    """When the function was called with it first, in that order."""
    ended: dict[str, list[int]] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    """The last one."""
    sim: Simulation | None = None

    def note_begun(self, id: str, number: int) -> None:
        """The function was called."""
        assert self.sim is not None
        self.begun.setdefault(id, {}).setdefault(number, self.sim.now())


def new_stage(**settings: Any) -> Documents:
    """A fresh program."""
    stage = Documents(Cluster("sqlite://", **{"shards": 4, "drain": "3s", **settings}))

    async def write(id: str, number: int) -> None:
        stage.ended.setdefault(id, []).append(number)

    @stage.cluster.workflow
    async def index(workflow: Workflow, number: int) -> int:
        stage.note_begun(workflow.id, number)
        await workflow.sleep(0.5 * (number % 8), name="work")
        await workflow.step("write", write, workflow.id, number)
        return number

    @stage.cluster.workflow
    async def hang(workflow: Workflow, _: int) -> None:
        await workflow.sleep("1d", name="for ever")

    stage.index, stage.hang = index, hang
    return stage


async def main(*, documents: int = DOCUMENTS, starts: int = STARTS, faults: tuple[Fault, ...] = FAULTS) -> int:
    """One seed: faults throughout, then calm, in which all ends, then judgement."""
    stage = new_stage()
    async with simulate(stage.cluster, runners=0, faults=faults) as sim:
        stage.sim = sim
        await sim.start(RUNNERS)
        async with asyncio.TaskGroup() as group:
            for number in range(documents):
                group.create_task(_write(stage, f"{number}", stream(sim.seed, f"document {number}"), starts))
            await _start(stage, stage.hang, 0, "hang", timeout=TIME_S)
        await sim.calm()
        for runner in sim.runners:
            sim.network.heal(sim.loop.test.name, runner.name)
        await _silence(sim)
        rows = sim.database.main.execute("select id, status from units where name = 'index'").fetchall()
        statuses = {str(row[0]): str(row[1]) for row in rows}
        try:
            await stage.cluster.workflow_handle(stage.hang, "hang").result(timeout="1s")
            hung = "it has a result"
        except WorkflowInterrupted as error:
            hung = "" if "its time was over" in error.message else f"it was interrupted{error.reason}"
    problems = judge(stage, statuses)
    if hung:
        problems.append(f"a run whose time is over goes on: {hung}")
    if problems:
        raise Violation("W14", "; ".join(problems))
    return sum(map(len, stage.begun.values()))


async def _write(stage: Documents, id: str, random: Stream, starts: int) -> None:
    """Somebody who types: starts in quick succession, and pauses."""
    for number in range(1, starts + 1):
        await _start(stage, stage.index, number, id, debounce=DEBOUNCE_S)
        stage.acknowledged[id] = number
        await asyncio.sleep(random.choice((random.uniform(0, DEBOUNCE_S), random.uniform(0, 4 * DEBOUNCE_S))))


async def _start(stage: Documents, workflow: Any, number: int, id: str, **options: Any) -> None:
    assert stage.sim is not None
    stage.asked[id, number] = stage.sim.now()
    while True:
        try:
            await stage.cluster.start_workflow(workflow, number, id=id, **options)
        except PersistenceError:
            await asyncio.sleep(0.3)
        else:
            return


async def _silence(sim: Simulation) -> None:
    for _ in range(SILENCE_S):
        if not sim.database.main.execute(
            "select count(*) from units where ended_at_ns is null or next_life is not null"
        ).get:
            return
        await sim.advance(1)


def judge(stage: Documents, statuses: dict[str, str]) -> list[str]:
    """Sentences about what must not be."""
    problems = []
    for own_id, last in stage.acknowledged.items():
        begun = stage.begun.get(own_id, {})
        if list(begun) != sorted(begun):
            problems.append(f"{own_id} begins with {list(begun)}: an earlier payload after a later one")
        for number, at in begun.items():
            waited_s = (at - stage.asked[own_id, number]).total_seconds()
            if waited_s < DEBOUNCE_S:
                problems.append(f"{own_id} begins with {number} after {waited_s:g}s, before its time")
        if stage.ended.get(own_id, [0])[-1] != last or statuses.get(own_id) != "done":
            ended = stage.ended.get(own_id)
            problems.append(f"{last} was acknowledged for {own_id}, and {ended} have run: it is {statuses.get(own_id)}")
    return problems
