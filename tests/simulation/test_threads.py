"""Plain functions in simulated runners: the same order for the same seed, and faults in the middle of them (T7)."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest

from coterie import Cluster, Entity, Retry, Workflow, current, rpc
from coterie.errors import CoterieError, RunnerUnavailable
from coterie.testing.run import current_loop, run_simulation
from coterie.testing.simulation import simulate


@dataclass
class Balance:
    cents: int = 0


def program(seen: list[Any]) -> Cluster:
    loop, cluster = current_loop(), Cluster("sqlite://", shards=4, retry=Retry(attempts=50, base="10ms"))

    @cluster.entity
    class Log(Entity[Balance]):
        @rpc(persisted=True)
        def add(self, cents: int) -> None:
            self.state.cents += cents

        @rpc
        async def total(self) -> int:
            return self.state.cents

    @cluster.entity
    class Account(Entity[Balance]):
        @rpc(persisted=True, key="order")
        def deposit(self, order: str, cents: int) -> int:
            seen.append((loop.now_ns, self.id, order))
            time.sleep(0.05)
            with cluster.sync() as c:
                c.send(c.ref(Log, "log").add(cents))
                c.kv.get("nothing")
            self.state.cents += cents
            return self.state.cents

        @rpc(timeout="1s")
        def slow(self) -> None:
            while not current().cancelled:
                time.sleep(0.25)
            seen.append("told")

    @cluster.workflow
    async def double(workflow: Workflow, number: int) -> int:
        return await workflow.step("double", twice, number)

    def twice(number: int) -> int:
        time.sleep(3600)
        return 2 * number

    cluster.log, cluster.account, cluster.double = Log, Account, double  # type: ignore[attr-defined]
    return cluster


async def workload(seen: list[Any], *, kills: bool) -> int:
    program_: Any = program(seen)
    async with simulate(program_) as sim:
        client = sim.runners[0]

        async def deposits(name: str) -> None:
            account = program_.ref(program_.account, name, timeout="10m")
            for number in range(5):
                while True:
                    try:
                        await account.deposit(f"order-{number}", 1)
                        break
                    except CoterieError:
                        await asyncio.sleep(0.1)

        tasks = [client.spawn(deposits(name)) for name in ("a", "b", "c")]
        if kills:
            await asyncio.sleep(0.4)
            sim.runners[1].kill()
            await asyncio.sleep(0.3)
            sim.runners[1].start()
        await asyncio.gather(*tasks)

        async def total() -> int:
            log, found = program_.ref(program_.log, "log", timeout="10m"), 0
            while found < 15:
                try:
                    found = await log.total()
                except RunnerUnavailable:  # the runner that was killed: a call that is not persisted may have run
                    await asyncio.sleep(0.1)
            return found

        found: int = await client.spawn(total())
        return found


@pytest.mark.simulated(seeds=3)
async def test_plain_handlers_commit_once_while_runners_are_killed_in_the_middle_of_them() -> None:
    before = threading.active_count()
    assert await workload([], kills=True) == 15
    assert threading.active_count() == before, "their threads are not Python's"


@pytest.mark.parametrize("kills", [False, True])
def test_the_same_seed_gives_the_same_run(kills: bool) -> None:
    runs: list[list[Any]] = []
    for _ in range(2):
        seen: list[Any] = []
        run_simulation(lambda seen=seen: workload(seen, kills=kills), seed=7)  # type: ignore[misc]
        runs.append(seen)
    assert runs[0] == runs[1]
    assert len(runs[0]) >= 15


@pytest.mark.simulated(seeds=2)
async def test_a_body_sleeps_in_virtual_time_and_is_told_when_nobody_waits() -> None:
    seen: list[Any] = []
    program_: Any = program(seen)
    async with simulate(program_, runners=1) as sim:

        async def work() -> int:
            with pytest.raises(CoterieError):
                await program_.ref(program_.account, "a").slow()
            run = await program_.start_workflow(program_.double, 4, id="x")
            doubled: int = await run.result(timeout="2h")
            return doubled

        assert await sim.runners[0].spawn(work()) == 8
        assert seen == ["told"]
        assert asyncio.get_running_loop().time() > 3600


@pytest.mark.simulated(seeds=1)
async def test_time_is_refused_in_a_body_as_everywhere_in_a_simulation() -> None:
    cluster = Cluster("sqlite://", shards=1)

    @cluster.entity
    class Clock(Entity):
        @rpc
        def read(self) -> str:
            try:
                return str(time.time())
            except RuntimeError as error:
                return str(error)

    async with simulate(cluster, runners=1) as sim:
        said = await sim.runners[0].spawn(_read(cluster, Clock))
        assert said.startswith("time.time() inside a simulation differs from run to run")


async def _read(cluster: Cluster, kind: Any) -> str:
    said: str = await cluster.ref(kind, "x").read()
    return said


def waits_in_process(number: int) -> int:
    time.sleep(1)
    current().progress(1, 2)
    return number


@pytest.mark.simulated(seeds=3)
async def test_jobs_in_threads_and_processes_run_while_a_runner_is_killed() -> None:
    """A simulation has no other processes: their bodies run in threads, in virtual time."""
    cluster = Cluster("sqlite://", shards=4, retry=Retry(attempts=50, base="10ms"))

    @cluster.task
    def in_thread(number: int) -> int:
        time.sleep(1)
        return number

    in_process = cluster.task(pool="process")(waits_in_process)

    async with simulate(cluster, runners=2) as sim:

        async def work() -> list[int]:
            ids = [await cluster.send(task.job(number)) for number in range(5) for task in (in_thread, in_process)]
            await asyncio.sleep(0.5)
            sim.runners[1].kill()
            return [await cluster.result(each, timeout="10m") for each in ids]

        assert await sim.runners[0].spawn(work()) == [number for number in range(5) for _ in range(2)]
