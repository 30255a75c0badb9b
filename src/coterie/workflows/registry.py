"""The workflows that a program defines, and how its runners run them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

from coterie.errors import PersistenceError
from coterie.work.occupants import GRACE_S, LoopOccupant, Occupants
from coterie.work.registry import Registry
from coterie.work.while_held import AWAY_S
from coterie.workflows.definition import WorkflowOptions, WorkflowType, define
from coterie.workflows.execution import Execution

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from contextvars import Context

    from coterie.cluster import Cluster
    from coterie.ownership.seats import Tenure
    from coterie.runner import Runner
    from coterie.storage.contracts.units import TakenUnits, UnitRow, UnitStartResult
    from coterie.tasks.sender import JobSender


class StartChild(Protocol):
    """Stores a workflow whose parent waits for it under a name."""

    def __call__(
        self, workflow: object, payload: object, id: str, *, parent: str, waited_as: str
    ) -> Awaitable[UnitStartResult]: ...


log = logging.getLogger("coterie.workflows")

_MORE = 500
"""How many runs of one shard one poll starts, beyond those in memory; if there are that many, it polls again."""
_JOBS_S = 1.0
"""Between looks for suspended runs whose jobs are over, once a run was suspended so here."""
_CHILDREN = 500
"""How many children are interrupted by one statement."""


class WorkflowRegistry(Registry[WorkflowType]):
    """The workflows of one program; they live on the seats of shards."""

    kind = "shard"

    def __init__(self, cluster: Cluster, start_child: StartChild) -> None:
        super().__init__(cluster)
        self._by_body: dict[Any, WorkflowType] = {}
        self._start_child = start_child

    def add(self, body: Any, options: WorkflowOptions) -> None:
        """Define a workflow.

        Raises:
            ConfigurationError: It is invalid, or its name is taken.
        """
        kind = define(body, options)
        self._add(kind.name, kind, what="workflows", hint="give one of them name=")
        self._by_body[body] = kind

    def of(self, body: Any) -> WorkflowType:
        """The definition of a function.

        Raises:
            TypeError: It is not a workflow of this cluster.
        """
        try:
            return self._by_body[body]
        except (KeyError, TypeError):
            shown = getattr(body, "__name__", repr(body))
            raise TypeError(f"{shown} is no workflow of this cluster: write @cluster.workflow before it") from None

    def _held(self, runner: Runner) -> HeldWorkflows:
        return HeldWorkflows(self, runner, self._start_child)


class ShardWorkflows(LoopOccupant):
    """The workflows of one shard. Their bodies inherit `context`."""

    _grace_s = 2 * GRACE_S  # a run waits that long for its body

    def __init__(self, held: HeldWorkflows, tenure: Tenure, context: Context) -> None:
        super().__init__(tenure, held.services, context)
        self.runs: dict[str, tuple[Execution, asyncio.Task[None]]] = {}
        self._held = held
        self._known = held.registry.known
        self._timer: asyncio.TimerHandle | None = None
        self._unknown: set[str] = set()
        self._unknown_count = 0
        """The number of runs whose function this program does not have: they must not keep others from being taken."""
        self._loop = held.services.supervise(  # "resigned": its entities must not be left without a runner
            self._live, "run workflows", tenure, context=context, cause="resigned"
        )

    @property
    def most(self) -> int:
        """How many runs it asks for, including those it has."""
        return len(self.runs) + self._unknown_count + _MORE

    @property
    def is_open(self) -> bool:
        """Whether it still starts runs."""
        return not self._closing and self.tenure.held

    # The seat

    def _release(self) -> None:
        for run, _ in self.runs.values():
            run.release()

    def _close(self) -> None:
        super()._close()
        if self._timer is not None:
            self._timer.cancel()

    def _running(self) -> list[asyncio.Task[None]]:
        return [task for _, task in self.runs.values()]

    # Notifications

    def wake(self, unit: str) -> None:
        """There is news about a unit, or a new unit."""
        if unit in self.runs:
            self.runs[unit][0].hint()
        else:
            self._news.set()

    def receive(self, taken: TakenUnits) -> None:
        """Start the runs that a poll found."""
        self._services.dial.observe(taken.now)
        if not self.is_open:
            return
        before = len(self.runs)
        for row in taken.rows:
            self._begin(row)
        if len(self.runs) - before >= _MORE:  # a full page is not the last one
            self._news.set()
        unknown = sum(row.name not in self._known for row in taken.rows)
        if unknown > self._unknown_count:
            self._news.set()
        self._unknown_count = unknown
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if taken.wake_at is not None:
            wait_s = max(self._services.dial.until_s(taken.wake_at), 0.0)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._news.set)

    # Lifecycle

    async def _live(self) -> None:
        fresh = True
        while not self._closing:
            self._news.clear()
            try:
                taken = await self._services.units.take([self.tenure.claim], most=self.most, fresh=fresh)
            except PersistenceError as error:
                log.info("workflows of %s wait for the database: %s", self.tenure.seat, error)
                await asyncio.sleep(AWAY_S)
                continue
            fresh = False
            if self.tenure.seat not in taken:
                return
            self.receive(taken[self.tenure.seat])
            await self._news.wait()

    def _begin(self, row: UnitRow) -> None:
        if row.unit in self.runs:
            if row.interrupting:
                self.runs[row.unit][0].interrupt()  # the hint may have been lost
            return
        if not self.tenure.may_start:
            return
        kind = self._known.get(row.name)
        if kind is None:
            if row.name not in self._unknown:
                self._unknown.add(row.name)
                log.warning("this program has no workflow %r: its runs wait for a runner that has it", row.name)
            return
        context = self._context.copy()
        execution = Execution(kind, row, self.tenure, self._held)
        task = self._services.tasks.spawn(execution.run(), name=f"run {row.unit}", context=context)
        self.runs[row.unit] = execution, task
        task.add_done_callback(lambda _: self._ended(row.unit))

    def _ended(self, unit: str) -> None:
        del self.runs[unit]
        # It may have been suspended, and whatever resolved its wait at that moment found it still here [M11]. And its
        # own due time is in the tables.
        self._news.set()


class HeldWorkflows(Occupants[ShardWorkflows]):
    """The workflows of all shards that one runner holds."""

    def __init__(self, registry: WorkflowRegistry, runner: Runner, start_child: StartChild) -> None:
        super().__init__("workflows", runner, registry.cluster)
        self.registry = registry
        self.start_child = start_child
        self._watches_jobs = asyncio.Event()

    @property
    def job_sender(self) -> JobSender:
        """Sends the jobs of maps."""
        return self._runner.job_sender

    def _make(self, tenure: Tenure, context: Context) -> ShardWorkflows:
        return ShardWorkflows(self, tenure, context)

    def _begin(self) -> None:
        self._supervise(self._sweep, "sweep workflows")
        self._supervise(self._sweep_jobs, "sweep jobs of workflows")

    async def _poll(self) -> None:
        shards = [each for each in self.latest.values() if each.is_open]
        if not shards:
            return
        most = max(each.most for each in shards)
        taken = await self.services.units.take([each.tenure.claim for each in shards], most=most)
        for each in shards:
            if each.tenure.seat in taken:
                each.receive(taken[each.tenure.seat])
        await self._interrupt_children(list(taken))
        await self._wake_after_jobs()

    def watch_jobs(self) -> None:
        """A run was suspended that waits for jobs."""
        self._watches_jobs.set()

    async def _sweep_jobs(self) -> None:
        while True:
            await self._watches_jobs.wait()
            await asyncio.sleep(_JOBS_S)
            try:
                await self._wake_after_jobs()
            except PersistenceError as error:
                log.info("the jobs of suspended workflows are looked at again in %g s: %s", _JOBS_S, error)

    async def _wake_after_jobs(self) -> None:
        seats = [each.tenure.seat for each in self.latest.values() if each.is_open]
        for unit, seat in await self.services.units.after_jobs(seats) if seats else ():
            await self.services.units.resume(unit)
            self.wake(seat, unit)

    def send_hint(self, seat: str, unit: str) -> None:
        """Wake the holder of a seat, on whichever runner: there is news about a unit."""
        self._own.spawn(self._runner.wake(seat, about=unit), name="wake", report=False)

    def interrupt_children(self, seat: str) -> None:
        """Interrupt the children of workflows on a seat that failed or were interrupted."""
        self._own.spawn(self._interrupt_children([seat]), name="interrupt children", report=False)

    async def _interrupt_children(self, seats: Sequence[str]) -> None:
        found: Sequence[tuple[str, str]] = [("", "")] * _CHILDREN
        while len(found) == _CHILDREN:
            try:
                found = await self.services.units.interrupt_children(seats, most=_CHILDREN)
            except PersistenceError as error:
                log.info("children of ended workflows are interrupted by the next poll: %s", error)
                return
            for unit, seat in found:
                self.send_hint(seat, unit)
