"""The crons that a program defines, and how its runners run them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.cron.definition import Cron, define
from coterie.cron.seat import CronSeat
from coterie.kernel.ids import Seat
from coterie.work.occupants import Occupants
from coterie.work.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextvars import Context

    from coterie.cron.definition import CronBody, CronOptions
    from coterie.ownership.admission import Definition
    from coterie.ownership.seats import Tenure
    from coterie.runner import Runner


class CronRegistry(Registry[Cron]):
    """The crons of one program."""

    kind = "cron"

    def add(self, name: str, schedule: str, body: CronBody, options: CronOptions) -> None:
        """Define a cron.

        Raises:
            ConfigurationError: It is invalid, or its name is taken.
            ScheduleError: Its schedule cannot be parsed.
        """
        self._add(name, define(name, schedule, body, options), what="crons")

    def definitions(self) -> Sequence[Definition]:
        """One seat for each of them."""
        return [each.definition for each in self.known.values()]

    def _held(self, runner: Runner) -> HeldCrons:
        return HeldCrons(self, runner)


class HeldCrons(Occupants[CronSeat]):
    """The crons that one runner holds."""

    def __init__(self, registry: CronRegistry, runner: Runner) -> None:
        super().__init__("crons", runner, registry.cluster)
        self._known = registry.known

    def _make(self, tenure: Tenure, context: Context) -> CronSeat:
        _, name = Seat.split(tenure.seat)
        return CronSeat(self._known[name], tenure, self.services, context)

    def _begin(self) -> None:
        self._supervise(self._sweep, "sweep crons")

    async def _poll(self) -> None:
        polls = [(seat, poll) for seat in self.latest.values() if (poll := seat.begin_poll()) is not None]
        if polls:
            books = await self.services.storage.ticks.take([takeover for _, (_, takeover) in polls])
            for seat, (number, _) in polls:
                seat.end_poll(number, books.get(seat.cron.name))
