"""Jobs in real processes: whoever dies or leaves, each ends once, its bodies never run side by side (T1, T2, T7)."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from coterie import Cluster, MessageCancelled
from coterie.testing.processes import children, processes
from tests.cluster import job_program
from tests.cluster.seat_cluster import STEADY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from coterie.tasks.task import Task
    from coterie.testing.processes import Processes

KINDS = ["in_coroutine", "in_thread", "in_process"]


class Body(NamedTuple):
    """One body, from its beginning to its end; without one, it was cut off."""

    attempt: int
    pid: int
    began_ns: int
    ended_ns: int | None


class Jobs:
    """A cluster of runners, and a client that sends jobs to them."""

    def __init__(self, there: Processes, client: Cluster, tasks: dict[str, Task[Any, int, Any]]) -> None:
        self.there = there
        self.client = client
        self._tasks = tasks

    async def send(self, kind: str, name: str, *for_s: float) -> Any:
        return await self.client.send(self._tasks[kind].job(name, *for_s))

    async def holder(self, seat: str) -> str | None:
        """The incarnation that holds a seat."""
        view = await self.client._acting().storage.view()
        return next((each.holder for each in view.seats if each.name == seat), None)

    async def move(self, seat: str) -> None:
        """Ask the holder of a seat to release it; return when another runner holds it."""
        here = self.client._acting()
        view = await here.storage.view()
        row = next(each for each in view.seats if each.name == seat)
        holder = next(each for each in view.runners if each.id == row.holder)
        await here.ask_to_resign(holder, row, within_s=60.0)

        async def moved() -> bool:
            return await self.holder(seat) not in (None, holder.id)

        await self.there.wait_until(moved)

    def bodies(self) -> dict[str, list[Body]]:
        """All bodies so far, by the name of their job, in the order in which they began."""
        found: defaultdict[str, list[Body]] = defaultdict(list)
        log = self.there.directory / job_program.LOG
        for line in log.read_text().splitlines() if log.exists() else ():
            what, name, attempt, pid, at_ns = line.split()
            if what == "begin":
                found[name].append(Body(int(attempt), int(pid), int(at_ns), None))
            else:
                index = next(n for n, each in enumerate(found[name]) if each.pid == int(pid) and each.ended_ns is None)
                found[name][index] = found[name][index]._replace(ended_ns=int(at_ns))
        return found

    async def begun(self, *names: str) -> None:
        """Wait until a body of each has begun."""
        await self.there.wait_until(lambda: all(self.bodies().get(name) for name in names))

    async def have_begun(self, number: int) -> None:
        """Wait until bodies of so many jobs have begun."""
        await self.there.wait_until(lambda: len(self.bodies()) >= number)

    def require_one_at_a_time(self) -> None:
        """No body of a job began before the one before had ended, or its process was killed."""
        for name, bodies in self.bodies().items():
            for one, other in pairwise(bodies):
                assert one.ended_ns is None or one.ended_ns <= other.began_ns, f"two bodies of {name}: {one}, {other}"


@asynccontextmanager
async def jobs(url: str, folder: Path, *, runners: int, times: Mapping[str, str] | None = None) -> AsyncIterator[Jobs]:
    program = Path(job_program.__file__)
    async with processes(program, runners=runners, url=url, env=times, directory=folder) as there:
        client = Cluster(url)
        tasks = job_program.define(client)
        async with client.connect():
            yield Jobs(there, client, tasks)


async def test_jobs_of_a_killed_runner_run_again_and_end_once(url: str, tmp_path: Path) -> None:
    """T1: kill -9 takes the processes of bodies with it."""
    async with jobs(url, tmp_path, runners=2) as here:
        names = [f"{kind}-{number}" for kind in KINDS for number in range(8)]
        ids = {name: await here.send(name.partition("-")[0], name, 0.4) for name in names}
        await here.begun(*(f"{kind}-0" for kind in KINDS))
        victim = random.Random(7).choice(here.there.runners)
        bodies = children(victim.pid)
        victim.kill()
        for name, id_ in ids.items():
            assert await here.client.result(id_, timeout="2m") >= 1, name
        await here.there.wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in bodies))
        here.require_one_at_a_time()
        rows = [await here.client.jobs.show(id_) for id_ in ids.values()]
        assert {row.state for row in rows} == {"done"}
        assert all(row.failures == 0 for row in rows), "a lost runner is no failure of the job"
        assert {row.lost for row in rows} <= {0, 1}


async def test_a_runner_that_leaves_lets_short_jobs_end_and_gives_long_ones_back(url: str, tmp_path: Path) -> None:
    """T1: a deploy counts nothing."""
    async with jobs(url, tmp_path, runners=1) as here:
        short = await here.send("in_coroutine", "short", 1.5)
        long = {kind: await here.send(kind, kind, 6.0) for kind in KINDS}
        await here.begun("short", *KINDS)
        leaver = here.there.runners[0]
        starting = here.there.start()
        assert await leaver.stop() == 0
        await starting
        assert await here.client.result(short, timeout="2m") == 1
        for id_ in long.values():
            assert await here.client.result(id_, timeout="2m") == 1, "the same attempt"
        here.require_one_at_a_time()
        assert len(here.bodies()["short"]) == 1
        rows = [await here.client.jobs.show(id_) for id_ in (short, *long.values())]
        assert [(row.failures, row.lost) for row in rows] == [(0, 0)] * 4
        assert all(len(here.bodies()[kind]) == 2 for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_running_job_is_cancelled_wherever_its_body_runs(url: str, tmp_path: Path, kind: str) -> None:
    """T6."""
    async with jobs(url, tmp_path, runners=2) as here:
        id_ = await here.send(kind, "long", 600.0)
        await here.begun("long")
        assert await here.client.cancel(id_)
        with pytest.raises(MessageCancelled):
            await here.client.result(id_, timeout="2m")
        await here.there.wait_until(lambda: here.bodies()["long"][0].ended_ns is not None)
        assert not await here.client.cancel(id_)
        assert len(here.bodies()["long"]) == 1


async def test_a_queue_keeps_its_limit_while_runners_are_killed(url: str, tmp_path: Path) -> None:
    """T2: three at a time, however often the runners change."""
    async with jobs(url, tmp_path, runners=2) as here:
        ids = [await here.send("in_thread", f"in_thread-{number}", 0.3) for number in range(30)]
        for round_ in range(3):
            await here.have_begun(5 * round_ + 3)
            here.there.runners[round_].kill()
            await here.there.start()
        await asyncio.gather(*(here.client.result(each, timeout="2m") for each in ids))
        here.require_one_at_a_time()
        whole = [each for bodies in here.bodies().values() for each in bodies if each.ended_ns is not None]
        changes = sorted([(each.began_ns, 1) for each in whole] + [(each.ended_ns or 0, -1) for each in whole])
        running = most = 0
        for _, change in changes:
            running += change
            most = max(most, running)
        assert most <= 3


async def test_bodies_of_a_frozen_runner_are_cancelled_when_it_wakes_and_write_nothing(
    url_by_day: str, tmp_path: Path
) -> None:
    """T1, T2: it was evicted, and others have run its jobs."""
    async with jobs(url_by_day, tmp_path, runners=1) as here:
        ids = {kind: await here.send(kind, kind, 15.0) for kind in ("in_coroutine", "in_thread")}
        await here.begun(*ids)
        sleeper = here.there.runners[0]
        sleeper.freeze()
        await here.there.start()
        await here.there.wait_until(lambda: all(len(here.bodies()[kind]) == 2 for kind in ids))
        sleeper.thaw()
        await here.there.wait_until(lambda: all(here.bodies()[kind][0].ended_ns is not None for kind in ids))
        assert all(here.bodies()[kind][1].ended_ns is None for kind in ids), "the second bodies go on"
        for kind, id_ in ids.items():
            assert await here.client.result(id_, timeout="2m") == 1, kind
        rows = [await here.client.jobs.show(id_) for id_ in ids.values()]
        assert [(row.state, row.failures, row.lost) for row in rows] == [("done", 0, 1)] * 2
        assert all(len(here.bodies()[kind]) == 2 for kind in ids)


@pytest.mark.parametrize("for_s", [0.0, pytest.param(600.0, marks=pytest.mark.nightly)])
async def test_a_long_job_outlives_the_move_of_its_seat_a_rolling_deploy_and_a_restart_of_the_database(
    url: str, tmp_path: Path, request: pytest.FixtureRequest, for_s: float
) -> None:
    """T1: its body ends when all of that has happened, and not before."""
    seat, began_s = "queue:slow", time.monotonic()
    async with jobs(url, tmp_path, runners=3, times=STEADY) as here:
        id_ = await here.send("until_told", "long")
        await here.begun("long")
        await here.move(seat)
        others = [each for each in here.there.runners if each.pid != here.bodies()["long"][0].pid]
        assert len(others) == 2
        for each in others:
            assert await each.stop() == 0, each.tail()
            await each.start()
            assert await here.client.result(await here.send("in_thread", each.name, 0.0), timeout="2m") == 1
        if not url.startswith("sqlite"):
            request.getfixturevalue("postgres_server").restart("immediate")
        await asyncio.sleep(for_s - (time.monotonic() - began_s))
        assert [body.ended_ns for body in here.bodies()["long"]] == [None], "one body, which goes on"
        (tmp_path / "long").touch()
        assert await here.client.result(id_, timeout="2m") == 1
        row = await here.client.jobs.show(id_)
        assert (row.state, row.failures, row.lost) == ("done", 0, 0)
        assert len(here.bodies()["long"]) == 1
