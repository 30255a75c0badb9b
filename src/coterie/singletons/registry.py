"""The singletons that a program defines, and how its runners lead them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.kernel.ids import Seat
from coterie.singletons.definition import Singleton, define
from coterie.singletons.leadership import Leadership
from coterie.work.occupants import Occupants
from coterie.work.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextvars import Context

    from coterie.ownership.admission import Definition
    from coterie.ownership.seats import Tenure
    from coterie.runner import Runner
    from coterie.singletons.definition import SingletonBody, SingletonOptions


class SingletonRegistry(Registry[Singleton[Any]]):
    """The singletons of one program."""

    kind = "singleton"

    def add(self, name: str, body: SingletonBody, options: SingletonOptions[Any]) -> None:
        """Define a singleton.

        Raises:
            ConfigurationError: It is invalid, or its name is taken.
        """
        self._add(name, define(name, body, options), what="singletons")

    def definitions(self) -> Sequence[Definition]:
        """One seat for each of them."""
        return [each.definition for each in self.known.values()]

    def _held(self, runner: Runner) -> HeldSingletons:
        return HeldSingletons(self, runner)


class HeldSingletons(Occupants[Leadership]):
    """The singletons that one runner leads. Nothing is polled: hints are about units, which poll by themselves."""

    def __init__(self, registry: SingletonRegistry, runner: Runner) -> None:
        super().__init__("singletons", runner, registry.cluster)
        self._known = registry.known

    def _make(self, tenure: Tenure, context: Context) -> Leadership:
        _, name = Seat.split(tenure.seat)
        return Leadership(self._known[name], tenure, self.services, context, self.latest.get(tenure.seat))
