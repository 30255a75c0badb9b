"""Runners of flows on a real database, a client, and the judgement of all steps."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie import Cluster
from coterie.kernel.serialization.codec import codec_for
from coterie.storage.interface import Claim
from coterie.testing import Process, processes
from tests.cluster.seat_cluster import NO_HTTP, QUICK
from tests.cluster.seat_history import Journals
from tests.cluster.seat_program import now_ns
from tests.cluster.workflow_history import Effect, judge
from tests.cluster.workflow_program import SHARDS, flow, program

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from coterie.storage.contracts.units import StepRow, UnitRow, UnitSnapshot
    from coterie.storage.interface import Storage
    from coterie.testing import Processes
    from tests.cluster.workflow_program import Plan

FLOWS = Path(__file__).with_name("workflow_program.py")
ROOT = FLOWS.parent.parent.parent
EVERY_S = 1.0


class WorkflowCluster:
    """The runners, a client in this process, and what all have noted."""

    def __init__(self, cluster: Processes, client: Cluster, journals: Journals) -> None:
        self.cluster = cluster
        self.client = client
        self.journals = journals
        self.runners = cluster.runners
        self.wait_until = cluster.wait_until
        self.plans: dict[str, Plan] = {}
        self.dead: set[int] = set()
        """Processes that were killed."""
        self.stored: dict[str, list[str]] = {}
        """What was found in the rows of runs before they ended."""
        self.results: dict[str, list[str]] = {}

    @property
    def storage(self) -> Storage:
        """The database, for our own eyes."""
        return self.client._acting().storage

    async def start(self, n: int = 1, **variables: str) -> list[Process]:
        """Start more processes."""
        before = len(self.runners)
        await self.cluster.start(n, env=variables)
        return self.runners[before:]

    async def kill(self, *victims: Process) -> None:
        """SIGKILL."""
        for each in victims:
            await each.kill()
            self.dead.add(each.pid)

    async def dies(self, victim: Process, moment: str) -> None:
        """Wait until a process has died by its own hand."""
        await self.wait_until(lambda: not victim.alive)
        assert victim.exit_code == -9, f"{moment}: {victim.tail()}"
        self.dead.add(victim.pid)

    async def begin(self, plans: Mapping[str, Plan]) -> None:
        """Start runs."""
        self.plans |= plans
        await asyncio.gather(*(self.client.start_workflow(flow, plan, id=run) for run, plan in plans.items()))

    async def suspended(self, runs: Iterable[str], *, within: str = "120s") -> bool:
        """Wait until nobody has these in memory; False: one of them is over already."""
        expected, found = set(runs), dict[str, str]()

        async def is_decided() -> bool:
            found.update({info.id: info.status for info in await self.client.workflows.list(limit=1000)})
            return self._are_suspended(expected, found) or any(found.get(run) == "done" for run in expected)

        await self.wait_until(is_decided, within=within)
        return self._are_suspended(expected, found)

    def _are_suspended(self, runs: Iterable[str], found: Mapping[str, str]) -> bool:
        return all(found.get(run) == "suspended" for run in runs)

    async def read(self, runs: Iterable[str]) -> None:
        """Read what is stored of runs that wait, whoever holds them: all runners may be dead."""
        for run in runs:
            row, steps = await self._stored(run)
            if row.steps != _done(steps):  # the server has just committed what a runner sent before it was killed
                row, steps = await self._stored(run)
            rows = [step for step in steps if step.kind == "step"]
            assert [step.name for step in rows] == [f"step {number}" for number in range(len(rows))]
            assert all(step.done for step in rows), f"a step of {run} is stored and not done: {rows}"
            assert row.steps == _done(steps), f"{run} says that {row.steps} are done: {steps}"
            self.stored[run] = [codec_for(str).decode(step.value or b"", what=step.name) for step in rows]

    async def _stored(self, run: str) -> tuple[UnitRow, Sequence[StepRow]]:
        unit = self.client._program.workflows.of(flow).unit(run)
        row = await self.storage.units.get(unit)
        assert row is not None, f"{run} is not stored"
        return row, await self.storage.units.steps(unit)

    async def loaded(self, run: str) -> UnitSnapshot:
        """All that is stored of a run, as its holder finds it: whoever that is just now."""
        kind = self.client._program.workflows.of(flow)
        seat = kind.seat(run, SHARDS)
        found: list[UnitSnapshot] = []

        async def is_held() -> bool:
            holders = [row for row in (await self.storage.view()).seats if row.name == seat and row.holder]
            for row in holders:
                loaded = await self.storage.units.load(Claim(str(row.holder), seat, row.epoch), kind.unit(run))
                found.extend([loaded] if loaded else [])
            return bool(found)

        await self.wait_until(is_held)
        return found[0]

    async def require_kept(self, runs: Iterable[str]) -> None:
        """Raise an AssertionError if steps of a run that is over are missing [W8]."""
        for run in runs:
            left = await self.loaded(run)
            assert left.row.steps == sum(each.done for each in left.steps), f"{run} has left {left}"
            names = [each.name for each in left.steps if each.kind == "step"]
            assert names == [f"step {number}" for number in range(len(names))], f"{run} has left {left}"

    async def due(self, runs: Iterable[str]) -> None:
        """Wait until what these wait for is due by itself, by the database's clock."""
        expected = set(runs)

        async def are_due() -> bool:
            now = await self.storage.now()
            infos = await self.client.workflows.list(status="suspended", limit=1000)
            return expected <= {each.id for each in infos if each.wake_at is not None and each.wake_at < now}

        await self.wait_until(are_due)

    async def finish(self, runs: Iterable[str] | None = None, *, within: str = "120s") -> None:
        """Wait for the results of runs, all if none are named."""
        for run in list(self.plans if runs is None else runs):
            self.results[run] = await self.client.workflow_handle(flow, run).result(timeout=within)

    def effects(self, what: str) -> list[Effect]:
        """What was noted."""
        return [Effect.of(event) for event in self.journals.of(what)]

    def worked(self, *, since_ns: int) -> bool:
        """Whether a body has gone on after a moment."""
        return bool(self.journals.of("ran", since_ns=since_ns) or self.journals.of("saw", since_ns=since_ns))

    def judge(self) -> Counter[str]:
        """Raise an AssertionError if a step of a run that is over was recorded twice, or is missing; what there was."""
        own: dict[str, list[str]] = {}
        for run, given in self.results.items():
            own |= stamps_of(run, self.plans[run], given)
        return judge(self.effects("ran"), self.effects("saw"), own, dead=self.dead, rows=self.stored)


def stamps_of(run: str, plan: Plan, given: Sequence[str]) -> dict[str, list[str]]:
    """What the steps of a run and of its child have given, of all that is in its result."""
    waits, naps = bool(plan.gate), bool(plan.nap)
    assert len(given) == plan.steps + plan.child + waits + naps, f"{run}: {plan} has given {given}"
    own, childs = list(given[: plan.steps]), list(given[plan.steps : plan.steps + plan.child])
    found = {run: [*own, *given[-1:]] if naps else own}
    return found | {f"{run}-child": childs} if plan.child else found


@asynccontextmanager
async def flowing(
    url: str, folder: Path, *, runners: int = 3, takes_s: float = 0.0, times: Mapping[str, str] = QUICK
) -> AsyncIterator[WorkflowCluster]:
    """Runners of flows."""
    journals = Journals(folder / f"journals-{time.monotonic_ns()}")
    journals.folder.mkdir()
    env = {
        "HOLDER_JOURNAL": str(journals.folder),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/src",
        "COTERIE_SHARDS": str(SHARDS),
        "FLOW_TAKES_S": str(takes_s),
        **NO_HTTP,
        **times,
    }
    client = program(Cluster(url, shards=SHARDS))

    def ready(process: Process) -> object:
        ups = journals.of("up", runner=process.name)
        return any(event.more["pid"] == process.pid for event in ups)

    opened = processes(FLOWS, runners=runners, url=url, env=env, ready=ready, proxied=False)
    async with opened as cluster, client.connect():
        yield WorkflowCluster(cluster, client, journals)


def _done(steps: Iterable[StepRow]) -> int:
    return sum(step.done for step in steps)  # a gate that was decided, or a nap that is over, too


@asynccontextmanager
async def killing(there: WorkflowCluster) -> AsyncIterator[list[int]]:
    """A SIGKILL each second, and another runner in the place of the dead one, while the block lasts; who was killed."""
    killed: list[int] = []
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_kill_on(there, killed))
        yield killed
        task.cancel()


async def _kill_on(there: WorkflowCluster, killed: list[int]) -> None:
    """Who has lived longest dies, unless nothing was done since the last kill, or nobody else is there yet.

    One that dies before others have seen it alive is replaced when its lease has run out, by one that has watched it
    for so long: if all of them died sooner than that, nobody would ever work again.
    """
    starts: dict[Process, asyncio.Future[None]] = {}
    since_ns = 0
    while True:
        await asyncio.sleep(EVERY_S)
        living = [each for each in there.runners if each not in starts] + [p for p, up in starts.items() if up.done()]
        if len(living) > 1 and there.worked(since_ns=since_ns):
            victim = living[0]
            await there.kill(victim)
            killed.append(victim.pid)
            since_ns = now_ns()
            starts.pop(victim, None)
            starts[victim] = asyncio.ensure_future(victim.start())
