"""Standing tasks that an unexpected error ends, each of them by errors of each kind: their work goes on."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from coterie import Cluster, Entity, PersistenceError, RunnerUnavailable, rpc
from coterie.kernel import chaos, metrics
from coterie.kernel.supervisor import MOST
from coterie.testing.simulation import Simulation, simulate
from tests.unit.test_standing_tasks import SUPERVISED

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie import Leader, Tick, Workflow

ERRORS: dict[str, Callable[[], Exception]] = {
    "PersistenceError": lambda: PersistenceError(doing="read", problem="no such table", outcome="refused"),
    "OSError": lambda: OSError("no space left on device"),
    "ValueError": lambda: ValueError("year -44 is out of range"),
    "KeyError": lambda: KeyError("seat"),
    "AssertionError": lambda: AssertionError("it was taken"),
}
ELSEWHERE = {
    *("accept connections", "watch certificates", "serve HTTP", "feed the page"),
    *("watch files", "report the runner", "move incoming work", "watch users' commits"),
}
"""Not in the simulator: sockets, HTTP, commands, what only PostgreSQL has; tests/unit/test_standing_tasks_struck.py
strikes them."""
HERE = SUPERVISED.keys() - ELSEWHERE - {"hand over", "watch the lease keeper"}  # begun by a drain; waits for a thread


class Strikes:
    """Throws an error into each standing task that is named, once, where it next goes on."""

    def __init__(self, error: Callable[[], Exception], *, most: int = 1) -> None:
        self.wanted: set[str] = set()
        self.struck: dict[str, int] = {}
        self.went_on: set[str] = set()
        self._error = error
        self._most = most
        chaos.install(self)

    async def point(self, _: str, /) -> None:
        """Come back at once."""

    def flip(self, _: str, /) -> bool:
        """Never the rare way."""
        return False

    def saw(self, what: str, name: str, /) -> None:
        """The reports of failures are not looked at here."""

    def failure(self, task: str, /) -> Exception | None:
        if task not in self.wanted:
            return None
        if self.struck.get(task, 0) < self._most:
            self.struck[task] = self.struck.get(task, 0) + 1
            return self._error()
        self.went_on.add(task)
        return None


@dataclass
class Counter:
    """How far a leader is."""

    n: int = 0


@dataclass
class Program:
    """One of everything, and what it has done."""

    cluster: Cluster = field(default_factory=lambda: Cluster("sqlite://", shards=4, drain="3s"))
    ticks: int = 0
    led: int = 0
    posted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        program = self

        @self.cluster.entity
        class Account(Entity):
            @rpc(persisted=True)
            async def post(self, what: str) -> None:
                program.posted.append(what)

            @rpc
            async def touch(self) -> int:
                return 1

        @self.cluster.singleton("counting", state=Counter, ttl="1h")
        async def counting(leader: Leader[Counter]) -> None:
            while True:
                async with leader.update() as state:
                    state.n += 1
                self.led += 1
                await leader.sleep("1s")

        @self.cluster.cron("ticking", "@every 2s")
        async def ticking(tick: Tick) -> None:
            self.ticks += 1

        self.cluster.queue("copies", concurrency=2)

        @self.cluster.task(queue="copies")
        async def copying(what: str) -> str:
            await asyncio.sleep(5)  # so that a run that waits for it is suspended
            return f"{what} is copied"

        @self.cluster.workflow
        async def shipping(workflow: Workflow, order: str) -> str:
            await workflow.sleep("2s", name="wait")
            await workflow.map(copying, [order], name="copies")
            return await workflow.step("ship", lambda: _shipped(order))

        self.account, self.shipping, self.copying = Account, shipping, copying

    async def require_progress(self, what: str) -> None:
        """Everything goes on."""
        ticks, led = self.ticks, self.led
        for number in range(4):
            await self.touch(f"{what}{number}")
        await self.cluster.send(self.cluster.ref(self.account, "a").post(f"{what} later"), delay="3s")
        handle = await self.cluster.start_workflow(self.shipping, what, id=what)
        assert await self.cluster.call(self.copying.job(what), timeout="60s") == f"{what} is copied"
        async with asyncio.timeout(60):
            assert await handle.result() == f"{what} shipped"
            while not (self.ticks > ticks + 2 and self.led > led + 2 and f"{what} later" in self.posted):
                await asyncio.sleep(0.5)

    async def touch(self, account: str) -> None:
        """Call an account; whoever was killed meanwhile may be asked once in vain."""
        try:
            await self.cluster.ref(self.account, account).touch()
        except RunnerUnavailable:
            await self.cluster.ref(self.account, account).touch()


async def _shipped(order: str) -> str:
    return f"{order} shipped"


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.simulated(seeds=1)
async def test_each_standing_task_goes_on_after_an_error_of_each_kind(error: str) -> None:
    strikes = Strikes(ERRORS[error])
    program = Program()
    async with simulate(program.cluster, runners=2) as sim:
        await program.cluster.ready()
        await program.require_progress("before")
        counted = {name: metrics.TASK_FAILURES.of(name).value for name in HERE}
        strikes.wanted = set(HERE)
        await program.cluster.start_workflow(program.shipping, "meanwhile", id="meanwhile")
        await program.cluster.singletons.resign("counting")
        sim.runners[1].freeze()  # it is evicted, and lives again
        for number in range(10):
            await program.cluster.send(program.copying.job(f"meanwhile {number}"))
            await sim.advance("2s")
        sim.runners[1].thaw()
        await sim.wait_until(lambda: strikes.went_on >= HERE, within="200s")
        counts = {name: metrics.TASK_FAILURES.of(name).value - counted[name] for name in HERE}
        if error != "PersistenceError":  # which some deal with themselves
            assert counts == dict.fromkeys(HERE, 1)
        await program.require_progress("after")
        # And who takes over does so as ever.
        sim.runners[0].kill()
        await sim.wait_until(lambda: _holds_everything(sim), within="30s")
        await program.require_progress("alone")
        sim.runners[0].start()
        await sim.wait_until(lambda: len(sim.runners[0].real.seats) > 0, within="60s")
        strikes.wanted = {"hand over"}
        await program.cluster.runners.drain(sim.runners[1].name)
        await sim.wait_until(lambda: not sim.runners[1].real.seats, within="30s")
        assert strikes.struck["hand over"] == 1


def _holds_everything(sim: Simulation) -> bool:
    return len(sim.runners[1].real.seats) == 7  # shards, singleton, cron, queue


@pytest.mark.simulated(seeds=2)
async def test_a_cron_whose_holder_keeps_failing_on_one_runner_moves_to_another() -> None:
    """One `OSError` left a cron dead and its seat kept; one after the other they give the seat up."""
    program = Program()
    async with simulate(program.cluster, runners=2) as sim:
        await program.cluster.ready()
        await sim.wait_until(lambda: program.ticks > 1, within="30s")
        first = sim.owner("cron:ticking")
        strikes = Strikes(ERRORS["OSError"], most=MOST)
        strikes.wanted = {"hold cron"}
        await sim.wait_until(lambda: "cron:ticking" not in first.real.seats, within="60s")
        ticks = program.ticks
        await sim.wait_until(lambda: program.ticks > ticks + 2, within="30s")


@pytest.mark.simulated(seeds=2)
async def test_a_runner_whose_own_task_keeps_failing_tells_before_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="coterie")
    program = Program()
    async with simulate(program.cluster, runners=1) as sim:
        await program.cluster.ready()
        strikes = Strikes(ERRORS["ValueError"], most=99)
        strikes.wanted = {"settle seats"}
        runner = sim.runners[0]

        async def says_so() -> bool:
            reasons = await runner.spawn(runner.real.collector.readiness())
            return any("'settle seats' keeps failing" in reason.problem for reason in reasons)

        await sim.wait_until(says_so, within="30s")
        assert not runner.real.failure
        await sim.wait_until(lambda: runner.real.gone.is_set(), within="90s")
        assert "'settle seats' failed 7 times within a minute" in runner.real.failure
        assert "runner runner-1 ends: its standing task 'settle seats'" in caplog.text
