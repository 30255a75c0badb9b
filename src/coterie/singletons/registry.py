"""The singletons that a program defines, and how its runners lead them."""

from __future__ import annotations

import asyncio
import logging
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from coterie.kernel.clock import Dial
from coterie.kernel.ids import Seat
from coterie.kernel.service import Tasks
from coterie.singletons.definition import define
from coterie.singletons.leadership import Leadership
from coterie.work.definition import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coterie.cluster import Cluster
    from coterie.durable.token import Tokens
    from coterie.kernel.clock import Clock
    from coterie.kernel.random import Random
    from coterie.kernel.supervisor import Supervisor
    from coterie.ownership.admission import Definition
    from coterie.ownership.exclusion import Cause
    from coterie.ownership.seats import Occupy, Tenure
    from coterie.runner import Runner
    from coterie.settings import Settings
    from coterie.singletons.definition import Singleton, SingletonBody, SingletonOptions
    from coterie.storage.contracts.units import UnitStore
    from coterie.storage.interface import Storage


class Resign(Protocol):
    """Releases a seat soon. This runner does not take it again for a while; if it is refused, not in this life."""

    def __call__(self, seat: str, /, *, cause: Cause, error: str) -> None: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class SingletonServices:
    """Services that all leaderships of one runner share."""

    cluster: Cluster
    settings: Settings
    storage: Storage
    clock: Clock
    chance: Random
    name: str
    """The name of the runner."""
    tasks: Tasks
    resign: Resign
    dial: Dial
    tokens_of: Callable[[], Tokens]
    supervisor: Supervisor

    @property
    def units(self) -> UnitStore:
        """Where steps are stored."""
        return self.storage.units

    @property
    def tokens(self) -> Tokens:
        """Makes and reads the tokens of deferreds."""
        return self.tokens_of()


log = logging.getLogger("coterie.singletons")


class SingletonRegistry:
    """The singletons of one program; occupies their seats (`runner.Workplace`).

    Args:
        cluster: Passed to bodies as `leader.cluster`.
    """

    kind = "singleton"

    def __init__(self, cluster: Cluster) -> None:
        self.known: dict[str, Singleton[Any]] = {}
        self._cluster = cluster

    def add(self, name: str, body: SingletonBody, options: SingletonOptions) -> None:
        """Define a singleton.

        Raises:
            ConfigurationError: It is invalid, or its name is taken.
        """
        singleton = define(name, body, options)
        if name in self.known:
            raise refusal(f"there are two singletons of the name {name!r}", hint="give one of them another name")
        self.known[name] = singleton

    # As a `Workplace`

    def definitions(self) -> Sequence[Definition]:
        """One seat for each singleton."""
        return [singleton.definition for singleton in self.known.values()]

    def occupants(self, runner: Runner) -> Occupy:
        """Lead the singletons whose seats a runner holds."""
        leaderships = HeldSingletons(self.known, self._cluster, runner)
        runner.on_wake(self.kind, leaderships.wake)
        return leaderships.occupy


class HeldSingletons:
    """The singletons that one runner leads."""

    def __init__(self, known: dict[str, Singleton[Any]], cluster: Cluster, runner: Runner) -> None:
        self._known = known
        self._runner = runner
        self._tasks = Tasks("singletons")
        self._ours = Tasks("singletons/ours")
        self._latest: dict[str, Leadership] = {}
        clock = runner.calling.clock
        self._post = SingletonServices(
            cluster=cluster,
            settings=runner.settings,
            storage=runner.storage,
            clock=clock,
            chance=runner.calling.chance,
            name=runner.name,
            tasks=self._tasks,
            resign=self._resign,
            dial=Dial(lambda: clock.steady_ns() / 1e9, clock.wall_ns() / 1e9),
            tokens_of=lambda: runner.tokens,
            supervisor=runner.supervisor,
        )
        runner.at_end(self.stop)

    def occupy(self, tenure: Tenure) -> Leadership:
        """Occupy the seat of a singleton (`ownership.Occupy`). The body inherits the context of this call."""
        _, name = Seat.split(tenure.seat)
        former = self._latest.get(name)
        singleton = self._known[name]
        leadership = self._latest[name] = Leadership(singleton, tenure, self._post, copy_context(), former)
        return leadership

    def wake(self, seat: str, about: str) -> None:
        """There is news about a unit of a leader."""
        _, name = Seat.split(seat)
        if name in self._latest:
            self._latest[name].hint(about)

    async def stop(self) -> None:
        """Wait for leaderships that are ending, not long. Bodies that ignore their cancellation are abandoned."""
        await asyncio.gather(*(each.ended for each in self._latest.values()), return_exceptions=True)
        await self._ours.stop()

    def _resign(self, seat: str, *, cause: Cause, error: str) -> None:
        self._ours.spawn(self._runner.resign(seat, cause=cause, error=error), name=f"resign {seat}")
