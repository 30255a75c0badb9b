"""Probes of real processes: through a freeze, a blocked loop, an outage, a drain, a body that hangs (H1, H3, L4)."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from coterie.testing import Process, processes
from coterie.web.openapi import document
from tests.cluster.probe_program import NAME
from tests.cluster.seat_cluster import QUICK, STEADY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from coterie.testing import Processes

PROBED = Path(__file__).with_name("probe_program.py")
FAILING_TASK = Path(__file__).with_name("failing_task_program.py")
PATIENCE_S = 60.0
"""More than any answer takes, on however busy a machine."""
SOON_S = 1.0
"""Whoever has not answered by then may be frozen or blocked."""
WELL = {"live": 200, "startup": 200, "ready": 200}
UNREADY = WELL | {"ready": 503}

_URL = re.compile(r"probes and metrics at (http://\S+)")


def url_of(process: Process) -> str | None:
    """Where a process serves, if it has said so: in its present life."""
    found = _URL.findall("\n".join(process.log))
    return str(found[-1]) if found else None


async def ask(process: Process, path: str, *, within_s: float = PATIENCE_S) -> httpx.Response:
    async with httpx.AsyncClient(timeout=within_s, verify=False) as http:
        return await http.get(f"{url_of(process)}/{path}")


async def probes(process: Process, *, within_s: float = PATIENCE_S) -> dict[str, int]:
    """What the three probes say; empty: nobody answers."""
    try:
        return {path: (await ask(process, path, within_s=within_s)).status_code for path in WELL}
    except httpx.TransportError:
        return {}


async def health(process: Process) -> dict[str, Any]:
    told: dict[str, Any] = (await ask(process, "health")).json()
    return told


@asynccontextmanager
async def probed(
    url: str, *, runners: int, times: Mapping[str, str] = STEADY, **variables: str
) -> AsyncIterator[Processes]:
    """Runners that are all well."""
    env = {"COTERIE_SHARDS": "4", **times, **variables}
    async with processes(PROBED, runners=runners, url=url, env=env, ready=url_of) as cluster:
        for each in cluster.runners:
            await says(cluster, each, WELL)
        yield cluster


async def says(cluster: Processes, process: Process, wanted: dict[str, int], *, within_s: float = PATIENCE_S) -> None:
    """Wait until the probes of a process say something."""

    async def said() -> bool:
        return await probes(process, within_s=within_s) == wanted

    await cluster.wait_until(said)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/probes.db"


async def test_h1_a_body_that_hangs_turns_its_runner_unready_and_everybody_sees_it(sqlite_url: str) -> None:
    """The dead man's switch from end to end: the loop turns, the lease is renewed, and nothing is done."""
    async with probed(sqlite_url, runners=3) as cluster:
        host = await leader(cluster)
        host.send(signal.SIGUSR2)
        await says(cluster, host, UNREADY)
        (reason,) = (await ask(host, "ready")).json()["reasons"]
        assert reason["what"] == f"singleton {NAME}"
        assert "no progress for" in reason["problem"]
        for other in cluster.runners:
            if other is not host:
                await says(cluster, other, WELL)
                await names(cluster, other, host)
        host.send(signal.SIGUSR2)
        await says(cluster, host, WELL)


async def leader(cluster: Processes) -> Process:
    """Wait until the singleton has run; the process in which it did."""
    led: list[str] = []

    async def leads() -> bool:
        led[:] = [info["leader"] for info in (await health(cluster.runners[0])).get("singletons", ()) if info["runs"]]
        return bool(led)

    await cluster.wait_until(leads)
    return next(each for each in cluster.runners if each.name == led[0])


async def names(cluster: Processes, process: Process, host: Process) -> None:
    """Wait until the health that a process tells is that the singleton of another one is unhealthy."""

    async def named() -> bool:
        answer = await ask(process, "health")
        told = [(why["status"], why.get("runner")) for why in answer.json()["reasons"] if NAME in why["what"]]
        return answer.status_code == 503 and told == [("unhealthy", host.name)]

    await cluster.wait_until(named)


async def test_b2_a_runner_that_freezes_or_blocks_does_not_answer_and_comes_back(sqlite_url: str) -> None:
    """L4: liveness is that the loop turns. The other one stays as it is."""
    async with probed(sqlite_url, runners=2, times=QUICK) as cluster:
        victim, other = cluster.runners
        await victim.freeze()
        assert await probes(victim, within_s=SOON_S) == {}
        await says(cluster, other, WELL)
        await victim.thaw()
        if not victim.alive:  # it froze inside a commit, and was ended for it [C3]
            await victim.start()
        await says(cluster, victim, WELL)
        victim.send(signal.SIGUSR1)
        await says(cluster, victim, {}, within_s=SOON_S)
        await says(cluster, other, WELL)
        (cluster.directory / "unblock").touch()
        await says(cluster, victim, WELL)


@pytest.mark.postgres
async def test_a_database_that_is_away_costs_readiness_only(postgres_url: str) -> None:
    """Nobody is restarted for it. Nobody waits for it either."""
    async with probed(postgres_url, runners=2, times=QUICK) as cluster:
        for each in cluster.runners:
            await each.cut("storage")
        for each in cluster.runners:
            await says(cluster, each, UNREADY)
        first = cluster.runners[0]
        answer = await ask(first, "health")
        assert answer.status_code == 503
        assert answer.json()["reasons"]
        assert (await ask(first, "metrics")).status_code == 200
        for each in cluster.runners:
            await each.heal()
        for each in cluster.runners:
            await says(cluster, each, WELL)


async def test_f6_a_drain_is_seen_at_once_and_answered_until_its_end(sqlite_url: str) -> None:
    """And a connection that is kept does not delay it."""
    async with probed(sqlite_url, runners=1, PROBED_CLOSE_S="2") as cluster:
        (runner,) = cluster.runners
        async with httpx.AsyncClient(timeout=PATIENCE_S, verify=False, base_url=url_of(runner) or "") as kept:
            await kept.get("/live")
            leaving = runner.stop()
            await says(cluster, runner, UNREADY)
            problems = [reason["problem"] for reason in (await kept.get("/ready")).json()["reasons"]]
            assert "it is draining" in problems, problems
            assert (await kept.get("/live")).status_code == 200
            assert await leaving == 0
        assert await probes(runner) == {}
        log = "\n".join(runner.log)
        assert "5 of 5 seats released" in log
        assert "Traceback" not in log


async def test_a_runner_whose_own_task_keeps_failing_says_so_and_ends_with_code_1(sqlite_url: str) -> None:
    """Not ready, and alive but degraded, until it gives up: then whoever supervises the process starts another one."""
    env = {"COTERIE_SHARDS": "4", **STEADY}
    async with processes(FAILING_TASK, runners=1, url=sqlite_url, env=env, ready=url_of) as cluster:
        (runner,) = cluster.runners
        await says(cluster, runner, UNREADY)

        async def is_named() -> bool:
            reasons = (await ask(runner, "ready")).json()["reasons"]
            return any("its task 'prune' keeps failing, 3 times within a minute" in each["problem"] for each in reasons)

        await cluster.wait_until(is_named)
        live = (await ask(runner, "live")).json()
        assert live["status"] == "degraded"
        assert "'prune' keeps failing" in live["reasons"][0]["problem"]
        runner.send(signal.SIGUSR1)
        await cluster.wait_until(lambda: runner.exit_code is not None)
        assert runner.exit_code == 1
        (line,) = [each for each in runner.log if " ends: " in each]
        assert "its standing task 'prune' failed 7 times within a minute, OSError: no such disk" in line


async def test_the_default_port_moves_and_a_chosen_one_is_refused(sqlite_url: str) -> None:
    """Said once, in the announcement."""
    async with probed(sqlite_url, runners=2, COTERIE_HTTP_LISTEN="") as cluster:
        urls = {url_of(each) for each in cluster.runners}
        assert len(urls) == 2
        said = [line for each in cluster.runners for line in each.log if "probes and metrics at" in line]
        assert len(said) == 2
        moved = [line for line in said if line.endswith("(port 7650 is taken)")]
        assert len(moved) == sum(not str(url).endswith(":7650") for url in urls) >= 1
        taken = str(url_of(cluster.runners[0])).removeprefix("http://")
        done = subprocess.run(
            [sys.executable, PROBED],
            env=cluster.environment("third", None) | {"COTERIE_HTTP_LISTEN": taken},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 1
        assert f"http_listen is {taken}: this port is taken" in done.stderr


@pytest.mark.parametrize("examples", [5, pytest.param(100, marks=pytest.mark.nightly)])
async def test_schemathesis_finds_nothing(sqlite_url: str, tmp_path: Path, examples: int) -> None:
    """The surface is what the document says, for whatever is sent to it."""
    async with probed(sqlite_url, runners=1) as cluster:
        url = url_of(cluster.runners[0])
        tool = str(Path(sys.executable).with_name("schemathesis"))
        endless = ["--exclude-path", "/api/stream"]  # has tests of its own: tests/unit/web/test_feed.py
        command = [tool, "run", f"{url}/openapi.json", "--url", f"{url}", *endless]
        options = ["--max-examples", str(examples), "--seed", "1", "--no-color", "--generation-database", "none"]
        done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"Tested: {len(document('')['paths']) - 2}" in done.stdout, "all but the document itself and the stream"
        assert await probes(cluster.runners[0]) == WELL
        assert "Traceback" not in "\n".join(cluster.runners[0].log)
