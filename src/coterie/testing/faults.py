"""Faults that strike by themselves; the seed decides when and which runner."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.kernel import chaos
from coterie.kernel.service import Tasks
from coterie.testing.chaos import SeededChaos
from coterie.testing.loop.seeds import Stream, stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.testing.database import Way
    from coterie.testing.runner import Runner
    from coterie.testing.simulation import Simulation


_FAILING_MOST = 0.05
"""The probability of a failure at each point where a background task resumes: a few errors in some seconds."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that breaks now and then.

    Args:
        every_s: The mean time between two strikes, in seconds.
        lasting_s: How long one lasts at most.
    """

    every_s: float = 30.0
    lasting_s: float = 15.0

    async def strike(self, simulation: Simulation, random: Stream) -> None:
        """Break something, wait, and repair it."""
        raise NotImplementedError

    async def _last(self, random: Stream) -> None:
        await asyncio.sleep(random.uniform(0, self.lasting_s))


class Kills(Fault):
    """A runner is killed and started again later."""

    async def strike(self, simulation: Simulation, random: Stream) -> None:
        """Kill one, wait, start it again."""
        if (runner := _one(simulation, random)) is not None:
            runner.kill()
            await self._last(random)
            _revive(runner)


class Blackouts(Fault):
    """All runners are killed at once, as by a loss of power; some restart at once, the others later."""

    async def strike(self, simulation: Simulation, random: Stream) -> None:
        """Kill all, start some again, wait, start the rest."""
        runners = [runner for runner in simulation.runners if runner.alive]
        for runner in runners:
            runner.kill()
        if not runners:
            return
        first = random.sample(runners, random.randrange(1, len(runners) + 1))
        for runner in first:
            _revive(runner)
        await self._last(random)
        for runner in runners:
            _revive(runner)


class Stops(Fault):
    """A runner is stopped gracefully and started again."""

    async def strike(self, simulation: Simulation, random: Stream) -> None:
        """Stop one, wait, start it again."""
        if (runner := _one(simulation, random)) is not None:
            runner.stop()
            await self._last(random)
            _revive(runner)


class Freezes(Fault):
    """A runner is frozen for a while: SIGSTOP, a suspended machine, a long pause."""

    async def strike(self, simulation: Simulation, random: Stream) -> None:
        """Freeze one, wait, thaw it."""
        if (runner := _one(simulation, random)) is not None and not runner.frozen:
            runner.freeze()
            await self._last(random)
            runner.thaw()


class Blocks(Fault):
    """A runner's event loop is blocked for a while, as by a long computation; its lease thread goes on."""

    async def strike(self, simulation: Simulation, random: Stream) -> None:
        """Block one and wait."""
        if (runner := _one(simulation, random)) is not None:
            await runner.block(random.uniform(0, self.lasting_s))


class StorageCuts(Fault):
    """A runner is cut off from the database, in one direction or both."""

    async def strike(self, simulation: Simulation, random: Stream) -> None:
        """Cut, wait, heal."""
        if (runner := _one(simulation, random)) is not None:
            ways: list[tuple[Way, ...]] = [(), ("requests",), ("replies",)]
            runner.cut("storage", *random.choice(ways))
            await self._last(random)
            runner.heal()


class PeerCuts(Fault):
    """A runner is cut off from its peers, but not from the database."""

    async def strike(self, simulation: Simulation, random: Stream) -> None:
        """Cut, wait, heal."""
        if (runner := _one(simulation, random)) is not None:
            runner.cut("peers")
            await self._last(random)
            runner.heal()


class StorageRestarts(Fault):
    """The database restarts: every connection breaks, nothing committed is lost."""

    async def strike(self, simulation: Simulation, random: Stream) -> None:
        """Restart it."""
        simulation.database.restart(down_ns=random.randrange(int(self.lasting_s * 1e9) + 1))


class StorageErrors(Fault):
    """For a while some requests fail, before the work or after its commit."""

    async def strike(self, simulation: Simulation, random: Stream) -> None:
        """Raise the rates, wait, lower them."""
        weather = simulation.database.weather
        weather.error_before, weather.error_after = random.uniform(0, 0.2), random.uniform(0, 0.3)
        await self._last(random)
        weather.error_before = weather.error_after = 0.0


class SlowStorage(Fault):
    """For a while the database is slow."""

    async def strike(self, simulation: Simulation, random: Stream) -> None:
        """Slow it down, wait, speed it up."""
        weather = simulation.database.weather
        weather.slow = random.uniform(0.05, 0.5)
        await self._last(random)
        weather.slow = 0.002


class ClockSteps(Fault):
    """A runner's wall clock is set: an hour off, or back by some seconds while it draws ids [GAP-04]."""

    async def strike(self, simulation: Simulation, random: Stream) -> None:
        """Set one."""
        if (runner := _one(simulation, random)) is not None:
            runner.step_clock(random.choice((-3600.0, 3600.0, -5.0, -5.0)))


class StorageClockSteps(Fault):
    """The database's clock is set, forward or back, by more than a lease lasts [M1]."""

    async def strike(self, simulation: Simulation, random: Stream) -> None:
        """Set it."""
        simulation.database.step_clock(random.choice((-10.0, 10.0)))


class TaskFailures(Fault):
    """For a while background tasks of coterie raise unexpected errors at any point."""

    async def strike(self, simulation: Simulation, random: Stream) -> None:
        """Let them fail now and then, wait, and stop it."""
        del simulation
        source = chaos.source()
        if isinstance(source, SeededChaos):
            source.failures = random.uniform(0.0, _FAILING_MOST)
            await self._last(random)
            source.failures = 0.0


EVERYTHING: tuple[Fault, ...] = (
    Kills(),
    Stops(every_s=60),
    Freezes(every_s=20, lasting_s=30),
    Blocks(every_s=40, lasting_s=12),
    StorageCuts(),
    PeerCuts(every_s=60),
    StorageRestarts(every_s=60, lasting_s=8),
    StorageErrors(every_s=40, lasting_s=10),
    SlowStorage(every_s=40, lasting_s=10),
    ClockSteps(every_s=40),
    StorageClockSteps(every_s=90),
    Blackouts(every_s=120),
    TaskFailures(every_s=30, lasting_s=10),
)
"""All faults, at rates at which a cluster is rarely intact and never down for long."""


class Nemesis:
    """Runs faults, each in a task of its own."""

    def __init__(self, simulation: Simulation, faults: Sequence[Fault]) -> None:
        self._simulation = simulation
        self._faults = faults
        self._tasks = Tasks("nemesis")

    def start(self) -> None:
        """Start all faults."""
        for number, fault in enumerate(self._faults):
            random = stream(self._simulation.seed, f"fault {number}")
            self._tasks.spawn(self._haunt(fault, random), name=type(fault).__name__)

    async def stop(self) -> None:
        """Stop: no fault strikes after this."""
        await self._tasks.stop()

    async def _haunt(self, fault: Fault, random: Stream) -> None:
        while True:
            await asyncio.sleep(random.expovariate(1 / fault.every_s))
            self._simulation.loop.strikes[type(fault).__name__] += 1
            await fault.strike(self._simulation, random)


def _one(simulation: Simulation, random: Stream) -> Runner | None:
    alive = [runner for runner in simulation.runners if runner.alive]
    return random.choice(alive) if alive else None


def _revive(runner: Runner) -> None:
    if not runner.alive:
        if runner.frozen:
            runner.thaw()
        runner.start()
