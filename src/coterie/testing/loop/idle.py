"""Skips idle virtual time, as if an intact, quiet cluster had renewed its leases meanwhile.

    quiet for a while ──▶ the next timer that is not routine is far off ──▶ jump to shortly before it

Routine is what a runner does periodically although nothing happens: it renews its lease, polls for messages, pings its
peers. Skipping it has no observable effect, as long as nothing is broken, nothing that is stored becomes due before,
and nothing has been written for longer than a runner needs to notice a change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from coterie.transport.connection import Pulse

if TYPE_CHECKING:
    from coterie.testing.loop.tasks import SimTimer
    from coterie.testing.runner import Runner
    from coterie.testing.simulation import Simulation

_ROUTINES: Final = (
    "/keep the lease",
    "/end with trust",
    "/sweep messages",
    "/sweep crons",
    "/sweep workflows",
    "/fire schedules",
    "/prune",
    "/watch calls",
)
"""The tasks whose timers are routine, by the ends of their names. Timers of all other tasks are kept."""
_QUIET_NS: Final = 20_000_000_000
"""How long nothing must have been written: longer than a lease and a takeover."""
_LEAST_NS: Final = 15_000_000_000
"""A shorter jump is not worth it."""
_BEFORE_NS: Final = 5_000_000_000
"""How long before the next timer the routine resumes, so that the timer fires in a cluster at work."""
_LOOK_NS: Final = 4_830_000_000
"""Between looks. No multiple of a second: each look could meet a renewal of a lease that is under way, for ever."""


class IdleTime:
    """Skips idle time of a simulation.

    Args:
        simulation: The simulation.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.skipped_ns = 0
        """Time skipped so far."""
        self._simulation = simulation
        self._loop = simulation.loop
        self._look_ns = 0
        self._changes = -1
        self._changed_ns = 0

    def skip(self, timers: list[tuple[int, int, SimTimer]]) -> None:
        """Jump to shortly before the next timer that is not routine, if nothing happens until then."""
        now_ns = self._loop.now_ns
        if now_ns < self._look_ns:
            return
        self._look_ns = now_ns + _LOOK_NS
        if not self._is_quiet(now_ns):
            return
        kept = [at_ns for at_ns, _, timer in timers if not timer._cancelled and not _is_routine(timer)]
        until_ns = min([*kept, *self._runs_due(now_ns)], default=now_ns) - _BEFORE_NS
        if until_ns - now_ns < _LEAST_NS:
            return
        before = {runner: runner.clock.steady_ns() for runner in self._simulation.runners}
        self._loop.now_ns = self._loop.trace.now_ns = until_ns
        self.skipped_ns += until_ns - now_ns
        self._renew(until_ns - now_ns)
        for runner, steady_ns in before.items():
            _forgive(runner, runner.clock.steady_ns() - steady_ns)
        self._loop.trace.note("idle time skipped", seconds=f"{(until_ns - now_ns) / 1e9:.1f}")

    def _is_quiet(self, now_ns: int) -> bool:
        """Whether all runners are well, nothing was written for a while, and no stored work is pending."""
        database, runners = self._simulation.database, self._simulation.runners
        is_well = database.is_well and self._simulation.network.is_well
        if not is_well or not all(runner.is_well for runner in runners):
            self._changes = -1
            return False
        changes = database.main.total_changes()
        if changes != self._changes:
            self._changes, self._changed_ns = changes, now_ns
        if now_ns - self._changed_ns < _QUIET_NS:
            return False
        sql = """
            select (select count(*) from messages where status = 0)
                 + (select count(*) from units where status = 'running')
                 + (select count(*) from schedules where next_at_ns is not null and paused_at_ns is null)
                 + (select count(*) from seats where holder is null)
                 + abs((select count(*) from runners) - ?)
        """
        return not database.main.execute(sql, (len(runners),)).get

    def _runs_due(self, now_ns: int) -> list[int]:
        """When the next run resumes, times out or begins another life by itself, if any does."""
        database = self._simulation.database
        sql = """
            select min(at_ns) from (
                select wake_at_ns as at_ns from units
                union all select times_out_at_ns from units
                union all select next_at_ns from units where next_life is not null and ended_at_ns is not null
            )
        """
        at_ns: int | None = database.main.execute(sql).get
        return [] if at_ns is None else [now_ns + at_ns - database.clock.wall_ns()]

    def _renew(self, by_ns: int) -> None:
        self._simulation.database.leases.execute("update leases set expires_boot_ns = expires_boot_ns + ?", (by_ns,))


def _is_routine(timer: SimTimer) -> bool:
    if isinstance(getattr(timer._callback, "__self__", None), Pulse):
        return True
    return timer.task is not None and timer.task.get_name().endswith(_ROUTINES)


def _forgive(runner: Runner, by_ns: int) -> None:
    """Tell a runner's lease thread that its lease was renewed and its event loop has run during the jump."""
    membership = runner.membership
    assert membership is not None, "it is well"
    keeping, trust = membership._lease_keeper, membership.trust
    keeper = keeping._keeper
    keeper.trusted_until_ns += by_ns
    keeping._pulse_ns += by_ns
    trust.until_ns += by_ns
    if keeper._loop.wake_ns is not None:
        keeper._loop.wake_ns += by_ns
