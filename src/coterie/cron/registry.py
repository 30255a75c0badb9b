"""The crons that a program defines, and how its runners run them."""

from __future__ import annotations

import asyncio
import logging
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from coterie.cron.definition import define
from coterie.cron.seat import CronSeat
from coterie.errors import PersistenceError
from coterie.kernel.clock import Dial
from coterie.kernel.ids import Seat
from coterie.kernel.service import Tasks
from coterie.work.definition import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coterie.cluster import Cluster
    from coterie.cron.definition import Cron, CronBody, CronOptions
    from coterie.durable.token import Tokens
    from coterie.kernel.random import Random
    from coterie.kernel.supervisor import Supervisor
    from coterie.ownership.admission import Definition
    from coterie.ownership.seats import Occupy, Tenure
    from coterie.runner import Runner
    from coterie.settings import Settings
    from coterie.storage.contracts.units import UnitStore
    from coterie.storage.interface import Storage


@dataclass(frozen=True, kw_only=True, eq=False)
class CronServices:
    """Services that all crons of one runner share."""

    cluster: Cluster
    settings: Settings
    storage: Storage
    chance: Random
    dial: Dial
    tasks: Tasks
    tokens: Tokens
    supervisor: Supervisor
    resign: Callable[[str], object]
    """Releases a seat soon."""

    @property
    def units(self) -> UnitStore:
        """Where steps are stored."""
        return self.storage.units


log = logging.getLogger("coterie.cron")

_SWEEP_S = 5.0
"""Approximate interval at which a runner polls all its crons: triggers, pauses and resumptions arrive by hints, but
hints may be lost [M9]."""


class CronRegistry:
    """The crons of one program; occupies their seats (`runner.Workplace`).

    Args:
        cluster: Passed to bodies as `tick.cluster`.
    """

    kind = "cron"

    def __init__(self, cluster: Cluster) -> None:
        self.known: dict[str, Cron] = {}
        self._cluster = cluster

    def add(self, name: str, schedule: str, body: CronBody, options: CronOptions) -> None:
        """Define a cron.

        Raises:
            ConfigurationError: It is invalid, or its name is taken.
            ScheduleError: Its schedule cannot be parsed.
        """
        cron = define(name, schedule, body, options)
        if name in self.known:
            raise refusal(f"there are two crons of the name {name!r}", hint="give one of them another name")
        self.known[name] = cron

    # As a `Workplace`

    def definitions(self) -> Sequence[Definition]:
        """One seat for each cron."""
        return [cron.definition for cron in self.known.values()]

    def occupants(self, runner: Runner) -> Occupy:
        """Run the crons whose seats a runner holds."""
        holdings = HeldCrons(self.known, self._cluster, runner)
        runner.on_wake(self.kind, holdings.wake)
        return holdings.occupy


class HeldCrons:
    """The crons that one runner holds."""

    def __init__(self, known: dict[str, Cron], cluster: Cluster, runner: Runner) -> None:
        self._known = known
        self._runner = runner
        self._cluster = cluster
        self._tasks = Tasks("crons")
        self._ours = Tasks("crons/ours")
        self._latest: dict[str, CronSeat] = {}
        self._desk: CronServices | None = None
        runner.at_end(self.stop)

    def occupy(self, tenure: Tenure) -> CronSeat:
        """Occupy the seat of a cron (`ownership.Occupy`). Bodies inherit the context of this call."""
        if self._desk is None:
            self._desk = self._new_desk()
            desk, supervisor = self._desk, self._runner.supervisor
            self._ours.supervise(partial(self._sweep, desk), name="sweep crons", supervisor=supervisor)
        _, name = Seat.split(tenure.seat)
        holding = self._latest[name] = CronSeat(self._known[name], tenure, self._desk, copy_context())
        return holding

    def wake(self, seat: str, about: str = "") -> None:
        """There is news about a cron."""
        _, name = Seat.split(seat)
        if name in self._latest:
            self._latest[name].wake(about)

    async def stop(self) -> None:
        """Wait for seats that are ending; none takes long. Bodies that ignore their cancellation are abandoned."""
        await self._ours.stop()
        await asyncio.gather(*(each.end() for each in self._latest.values()), return_exceptions=True)

    def _new_desk(self) -> CronServices:
        runner = self._runner
        time = asyncio.get_running_loop().time
        return CronServices(
            cluster=self._cluster,
            settings=runner.settings,
            storage=runner.storage,
            chance=runner.calling.chance,
            dial=Dial(time, runner.calling.clock.wall_ns() / 1e9),
            tasks=self._tasks,
            tokens=runner.tokens,
            supervisor=runner.supervisor,
            resign=lambda seat: self._ours.spawn(runner.resign(seat, cause="failed"), name=f"resign {seat}"),
        )

    async def _sweep(self, desk: CronServices) -> None:
        while True:
            await asyncio.sleep(desk.chance.between(_SWEEP_S / 2, _SWEEP_S))
            wishes = [(holding, wish) for holding in self._latest.values() if (wish := holding.wish()) is not None]
            if not wishes:
                continue
            try:
                books = await desk.storage.ticks.take([take for _, (_, take) in wishes])
            except PersistenceError as error:
                log.info("crons are not looked at yet: %s", error)
                continue
            for holding, (number, _) in wishes:
                holding.hear(number, books.get(holding.cron.name))
