"""The harness itself, on a trivial program: its verbs do what they say, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from coterie.testing import Process, Server, processes

COUNTER = """
import os, signal, sys, time
print("hello from", os.environ["COTERIE_RUNNER_NAME"], os.environ["COTERIE_URL"])
print("unasked" if "COTERIE_SHARDS" in os.environ else "clean", os.environ.get("COLOUR"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
for number in range(1_000_000):
    print("count", number)
    time.sleep(0.002)
"""
FORKS = """
import os, time
child = os.fork()
if child:
    print("child", child)
time.sleep(600)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "counter.py"
    path.write_text(COUNTER)
    return path


def counts(process: Process) -> int:
    return sum(line.startswith("count") for line in process.log)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_processes_start_with_their_names_and_our_variables_only(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_SHARDS", "7")
    async with processes(program, runners=2, env={"COLOUR": "blue"}, ready=counts) as cluster:
        await cluster.start(env={"COLOUR": "red"})
        assert [process.name for process in cluster.runners] == ["runner-1", "runner-2", "runner-3"]
        for process, colour in zip(cluster.runners, ("blue", "blue", "red"), strict=True):
            assert process.log[:2] == [f"hello from {process.name} {cluster.url}", f"clean {colour}"]
            assert process.alive
            assert lives(process.pid)


async def test_a_killed_one_is_gone_and_starts_again_under_its_name(program: Path) -> None:
    async with processes(program, runners=1, ready=counts) as cluster:
        (process,) = cluster.runners
        first = process.pid
        await process.kill()
        assert not process.alive
        assert process.exit_code == -signal.SIGKILL
        assert not lives(first)
        await process.start()
        assert process.pid != first
        await cluster.wait_until(lambda: sum(line.startswith("hello") for line in process.log) == 2)


async def test_a_frozen_one_does_nothing_until_it_is_thawed(program: Path) -> None:
    async with processes(program, runners=1, ready=counts) as cluster:
        (process,) = cluster.runners
        await process.freeze()
        before = counts(process)
        time.sleep(0.05)  # 25 lines of a running one
        assert process.frozen
        assert counts(process) == before
        await process.thaw()
        await cluster.wait_until(lambda: counts(process) > before)


async def test_a_stopped_one_gets_sigterm_and_its_exit_code_is_told(program: Path) -> None:
    async with processes(program, runners=1, ready=counts) as cluster:
        assert await cluster.runners[0].stop() == 3


async def test_one_that_ignores_sigterm_is_reported(tmp_path: Path) -> None:
    program = tmp_path / "deaf.py"
    program.write_text(COUNTER.replace("lambda *_: sys.exit(3)", "lambda *_: print('no')"))
    async with processes(program, runners=1, ready=counts) as cluster:
        with pytest.raises(TimeoutError, match=r"still runs 0\.1s after SIGTERM"):
            await cluster.runners[0].stop(within="100ms")


async def test_one_that_ends_before_it_is_ready_is_reported_with_its_log(tmp_path: Path) -> None:
    program = tmp_path / "broken.py"
    program.write_text("raise SystemExit('no such thing')")
    with pytest.raises(RuntimeError, match=r"runner-1 ended with 1 before it was ready:\nno such thing"):
        async with processes(program, runners=1, ready=lambda process: False):
            pytest.fail("it cannot start")


async def test_a_failing_test_leaves_nothing_behind_and_shows_the_logs(tmp_path: Path) -> None:
    program = tmp_path / "forks.py"
    program.write_text(FORKS)
    pids = []
    with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012 the block is what is tested
        async with processes(program, runners=3, ready=lambda process: process.log) as cluster:
            one, two, three = cluster.runners
            pids = [process.pid for process in cluster.runners]
            pids += [int(process.log[0].split()[1]) for process in cluster.runners]
            await one.kill()
            await one.start()
            await two.freeze()
            three.send(signal.SIGSTOP)
            assert [lives(pid) for pid in pids] == [False, True, True, True, True, True]
            raise ZeroDivisionError
    await until(lambda: not any(lives(pid) for pid in pids))
    assert "── runner-2 (exit code None)\nchild " in caught.value.__notes__[0]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")
def test_a_killed_test_run_leaves_no_process_behind(program: Path) -> None:
    script = f"""
import asyncio, time
from coterie.testing import processes
async def main():
    async with processes({str(program)!r}, runners=1, ready=lambda process: process.log) as cluster:
        await cluster.runners[0].freeze()
        print(cluster.runners[0].pid, flush=True)
        time.sleep(600)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        assert lives(pid)
        run.kill()
    asyncio.run(until(lambda: not lives(pid)))


async def test_a_wait_that_does_not_come_true_says_so(program: Path) -> None:
    async with processes(program, runners=0) as cluster:
        with pytest.raises(TimeoutError, match=r"the condition did not come true within 0\.05s"):
            await cluster.wait_until(lambda: False, within="50ms")


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.postgres
async def test_a_process_is_cut_off_from_postgres_and_healed(postgres_url: str, tmp_path: Path) -> None:
    program = tmp_path / "asks.py"
    program.write_text(
        "import asyncio, asyncpg, os\n"
        "async def main():\n"
        "    connection = await asyncpg.connect(os.environ['COTERIE_URL'])\n"
        "    while True:\n"
        "        print('count', await connection.fetchval('select 1'))\n"
        "        await asyncio.sleep(0.002)\n"
        "asyncio.run(main())\n"
    )
    async with processes(program, runners=2, url=postgres_url, ready=counts) as cluster:
        one, other = cluster.runners
        await one.cut("storage")
        time.sleep(0.05)
        before = counts(one), counts(other)
        await cluster.wait_until(lambda: counts(other) > before[1] + 5)
        assert counts(one) == before[0]
        await one.heal()
        await cluster.wait_until(lambda: counts(one) > before[0])


@pytest.mark.postgres
def test_a_frozen_server_answers_when_it_is_thawed() -> None:
    with closing(Server()) as server:
        server.start()
        server.freeze()
        began = time.monotonic()
        threading.Timer(0.3, server.thaw).start()
        assert server.execute("select 1")[0][0] == 1
        assert time.monotonic() - began >= 0.3
        server.freeze()  # it is closed all the same
