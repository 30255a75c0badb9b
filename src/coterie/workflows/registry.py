"""The workflows that a program defines, and how its runners run them."""

from __future__ import annotations

import asyncio
import logging
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from coterie.errors import PersistenceError
from coterie.kernel.clock import Dial
from coterie.kernel.service import Tasks
from coterie.kernel.supervisor import Seated
from coterie.work.definition import refusal
from coterie.work.limits import settled
from coterie.workflows.definition import define
from coterie.workflows.execution import GRACE_S, Execution

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextvars import Context

    from coterie.cluster import Cluster
    from coterie.durable.token import Tokens
    from coterie.kernel.random import Random
    from coterie.kernel.supervisor import Supervisor
    from coterie.ownership.admission import Definition
    from coterie.ownership.seats import Occupy, Tenure
    from coterie.runner import Runner
    from coterie.settings import Settings
    from coterie.storage.contracts.units import TakenUnits, UnitRow, UnitStartResult
    from coterie.storage.interface import Storage
    from coterie.workflows.definition import WorkflowOptions, WorkflowType


class StartChild(Protocol):
    """Stores a workflow whose parent waits for it under a name."""

    def __call__(
        self, workflow: object, payload: object, id: str, *, parent: str, waited_as: str
    ) -> Awaitable[UnitStartResult]: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class WorkflowServices:
    """Services that all workflows of one runner share."""

    cluster: Cluster
    settings: Settings
    storage: Storage
    chance: Random
    dial: Dial
    tasks: Tasks
    tokens: Callable[[], Tokens]
    wake: Callable[[str, str], object]
    """Makes the holder of a seat check a unit."""
    start_child: StartChild
    supervisor: Supervisor
    resign: Callable[[str], object]
    """Releases a seat soon."""
    name_of: Callable[[object], str]
    """The registered name of a workflow's function."""
    interrupt_children: Callable[[str], object]
    """Interrupts the children of workflows on a seat that failed or were interrupted."""


log = logging.getLogger("coterie.workflows")

_SWEEP_S = 5.0
"""Approximate interval at which a runner polls all its shards: news arrives by hints, but hints may be lost."""
_MORE = 500
"""How many runs of one shard one poll starts, beyond those in memory; if there are that many, it polls again."""
_CHILDREN = 500
"""How many children are interrupted by one statement."""
_AWAY_S = 0.2


class WorkflowRegistry:
    """The workflows of one program; occupies the seats of shards (`runner.Workplace`)."""

    kind = "shard"

    def __init__(self, cluster: Cluster, start_child: StartChild) -> None:
        self.known: dict[str, WorkflowType] = {}
        self._by_body: dict[Any, WorkflowType] = {}
        self._cluster = cluster
        self._start_child = start_child

    def add(self, body: Any, options: WorkflowOptions) -> None:
        """Define a workflow.

        Raises:
            ConfigurationError: It is invalid, or its name is taken.
        """
        kind = define(body, options)
        if kind.name in self.known:
            raise refusal(f"there are two workflows of the name {kind.name!r}", hint="give one of them name=")
        self.known[kind.name] = kind
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

    # As a `Workplace`

    def definitions(self) -> Sequence[Definition]:
        """None: shards exist anyway."""
        return []

    def occupants(self, runner: Runner) -> Occupy:
        """Run the workflows of the shards that a runner holds."""
        holdings = HeldWorkflows(self, self._cluster, runner, self._start_child)
        runner.on_wake(self.kind, holdings.wake)
        return holdings.occupy


class HeldWorkflows:
    """The workflows of all shards that one runner holds."""

    def __init__(self, room: WorkflowRegistry, cluster: Cluster, runner: Runner, start_child: StartChild) -> None:
        self._room = room
        self._known = room.known
        self._cluster = cluster
        self._runner = runner
        self._start_child = start_child
        self._tasks = Tasks("workflows")
        self._ours = Tasks("workflows/ours")
        self._latest: dict[str, ShardWorkflows] = {}
        self._desk: WorkflowServices | None = None
        runner.at_end(self.stop)

    def occupy(self, tenure: Tenure) -> ShardWorkflows:
        """Occupy the seat of a shard, beside its entities (`ownership.Occupy`)."""
        if self._desk is None:
            self._desk = self._new_desk()
            desk, supervisor = self._desk, self._runner.supervisor
            self._ours.supervise(partial(self._sweep, desk), name="sweep workflows", supervisor=supervisor)
        holding = self._latest[tenure.seat] = ShardWorkflows(self._known, tenure, self._desk, copy_context())
        return holding

    def wake(self, seat: str, about: str) -> None:
        """There is news about a workflow of a shard."""
        if seat in self._latest:
            self._latest[seat].wake(about)

    async def stop(self) -> None:
        """Wait for shards that are ending; none of it takes long."""
        await self._ours.stop()
        await asyncio.gather(*(each.end() for each in self._latest.values()), return_exceptions=True)

    def _new_desk(self) -> WorkflowServices:
        runner = self._runner
        time = asyncio.get_running_loop().time
        return WorkflowServices(
            cluster=self._cluster,
            settings=runner.settings,
            storage=runner.storage,
            chance=runner.calling.chance,
            dial=Dial(time, runner.calling.clock.wall_ns() / 1e9),
            tasks=self._tasks,
            tokens=lambda: runner.tokens,
            wake=lambda seat, unit: self._ours.spawn(runner.wake(seat, about=unit), name="wake", report=False),
            start_child=self._start_child,
            supervisor=runner.supervisor,
            resign=lambda seat: self._ours.spawn(runner.resign(seat), name=f"resign {seat}"),
            name_of=lambda body: self._room.of(body).name,
            interrupt_children=lambda seat: self._ours.spawn(
                self._interrupt_children([seat]), name="interrupt children", report=False
            ),
        )

    async def _interrupt_children(self, seats: Sequence[str]) -> None:
        """Interrupt the children of workflows on these seats that failed or were interrupted."""
        assert self._desk is not None, "a held seat has its services"
        found: Sequence[tuple[str, str]] = [("", "")] * _CHILDREN
        while len(found) == _CHILDREN:
            try:
                found = await self._desk.storage.units.interrupt_children(seats, most=_CHILDREN)
            except PersistenceError as error:
                log.info("children are interrupted later: %s", error)
                return
            for unit, seat in found:
                self._desk.wake(seat, unit)

    async def _sweep(self, desk: WorkflowServices) -> None:
        while True:
            await asyncio.sleep(desk.chance.between(_SWEEP_S / 2, _SWEEP_S))
            holdings = [each for each in self._latest.values() if each.is_open]
            if not holdings:
                continue
            most = max(each.most for each in holdings)
            try:
                taken = await desk.storage.units.take([each.tenure.claim for each in holdings], most=most)
            except PersistenceError as error:
                log.info("workflows are not looked at yet: %s", error)
                continue
            for each in holdings:
                if each.tenure.seat in taken:
                    each.hear(taken[each.tenure.seat])
            await self._interrupt_children(list(taken))


class ShardWorkflows:
    """The workflows of one shard (`ownership.Occupant`).

    Promise:
        Once `drain` has returned, or `abandon` was called, nothing more is written under its tenure. Running steps get
        the time of the setting `drain`; runs that have not ended by then run again elsewhere, from what is stored.
    """

    def __init__(
        self, known: dict[str, WorkflowType], tenure: Tenure, desk: WorkflowServices, context: Context
    ) -> None:
        self.tenure = tenure
        self.runs: dict[str, tuple[Execution, asyncio.Task[None]]] = {}
        self._known = known
        self._desk = desk
        self._context = context
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._unknown: set[str] = set()
        self._strange = 0
        """The number of runs whose function this program does not have: they must not keep others from being taken."""
        seated = Seated(tenure.seat, lambda: desk.resign(tenure.seat))
        self._work = desk.tasks.supervise(
            self._live, name="run workflows", supervisor=desk.supervisor, seated=seated, context=context
        )

    @property
    def most(self) -> int:
        """How many runs it asks for, including those it has."""
        return len(self.runs) + self._strange + _MORE

    @property
    def is_open(self) -> bool:
        """Whether it still starts runs."""
        return not self._closing and self.tenure.held

    # The seat

    async def drain(self) -> None:
        """Start nothing new; let running steps end, and leave the rest."""
        self._close()
        await settled([self._work], limit_s=GRACE_S)
        for run, _ in self.runs.values():
            run.leave()
        await settled(self._tasks(), limit_s=self._desk.settings.drain.total_seconds())
        await self.end()

    def abandon(self) -> None:
        """The seat is lost: stop everything."""
        self._close()
        for task in (self._work, *self._tasks()):
            task.cancel()

    async def end(self) -> None:
        """Cancel what is left, and wait for it."""
        self._close()
        tasks = [self._work, *self._tasks()]
        for task in tasks:
            task.cancel()
        await settled(tasks, limit_s=2 * GRACE_S)

    def _close(self) -> None:
        self._closing = True
        self._wake.set()
        if self._timer is not None:
            self._timer.cancel()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for _, task in self.runs.values()]

    # Notifications

    def wake(self, unit: str) -> None:
        """There is news about a unit, or a new unit."""
        if unit in self.runs:
            self.runs[unit][0].hint()
        else:
            self._wake.set()

    def hear(self, taken: TakenUnits) -> None:
        """Start the runs that a poll found."""
        self._desk.dial.hear(taken.now)
        if not self.is_open:
            return
        before = len(self.runs)
        for row in taken.rows:
            self._begin(row)
        if len(self.runs) - before >= _MORE:  # a full page is not the last one
            self._wake.set()
        strange = sum(row.name not in self._known for row in taken.rows)
        if strange > self._strange:
            self._wake.set()
        self._strange = strange
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if taken.wake_at is not None:
            self._ring_in(self._desk.dial.until_s(taken.wake_at))

    # Lifecycle

    async def _live(self) -> None:
        while not self._closing:
            self._wake.clear()
            try:
                taken = await self._desk.storage.units.take([self.tenure.claim], most=self.most)
            except PersistenceError as error:
                log.info("workflows of %s wait for the database: %s", self.tenure.seat, error)
                await asyncio.sleep(_AWAY_S)
                continue
            if self.tenure.seat not in taken:
                return
            self.hear(taken[self.tenure.seat])
            await self._wake.wait()

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
                log.warning("workflow %r is not known here: its runs wait for a runner that knows it", row.name)
            return
        context = self._context.copy()
        execution = Execution(kind, row, self.tenure, self._desk, context)
        task = self._desk.tasks.spawn(execution.run(), name=f"run {row.unit}", context=context)
        self.runs[row.unit] = execution, task
        task.add_done_callback(lambda _: self._ended(row.unit))

    def _ended(self, unit: str) -> None:
        del self.runs[unit]
        # It may have been suspended, and whatever resolved its wait at that moment found it still here [M11]. And its
        # own due time is in the tables.
        self._wake.set()

    def _ring_in(self, wait_s: float) -> None:
        ring: Callable[[], None] = self._wake.set
        self._timer = asyncio.get_running_loop().call_later(max(wait_s, 0.0), ring)
