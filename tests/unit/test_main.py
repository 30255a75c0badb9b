"""`cluster.run` as a whole process: what signals do to it, how soon it ends, and with which exit code (F6, L1)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coterie import Cluster
from coterie.main import Signals
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = 120.0  # for what takes a fraction of a second on an idle machine

HEAD = """
import asyncio, os, signal, sys, time
from contextlib import asynccontextmanager
from coterie import Cluster
from coterie import main as process_main
cluster = Cluster(shards=3, runner_name="anna", drain="500ms")

def say(*what):
    print(*what, flush=True)

def setup(*, opening=None, closing=None):
    @cluster.setup
    @asynccontextmanager
    async def setup():
        if opening: await opening()
        say("open")
        yield
        say("closing")
        if closing: await closing()
        say("closed")
"""


class Program:
    """A process that runs a program of ours, and everything that it has said."""

    def __init__(self, folder: Path, text: str) -> None:
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", HEAD + text],
                env={**os.environ, "COTERIE_URL": f"sqlite:///{folder}/run.db", "PYTHONUNBUFFERED": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + LIMIT_S
        while text not in self.said:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.said}"
            assert time.monotonic() < until, f"it has not said {text!r}:\n{self.said}"
            time.sleep(0.005)

    def ends_after_many(self, number: signal.Signals) -> None:
        """Signal it until it has ended: those that come soon after the first are the same one."""
        until = time.monotonic() + LIMIT_S
        while self.process.poll() is None:
            assert time.monotonic() < until, f"it goes on:\n{self.said}"
            self.process.send_signal(number)
            time.sleep(0.01)

    def ends_with(self, code: int) -> None:
        assert self.process.wait(LIMIT_S) == code, self.said


@contextmanager
def program(folder: Path, text: str = "cluster.run()") -> Iterator[Program]:
    running = Program(folder, text)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def runners_left(folder: Path) -> int:
    async def count() -> int:
        cluster = Cluster(f"sqlite:///{folder}/run.db", shards=3)
        async with cluster.connect():
            return len(await cluster.runners.list())

    return asyncio.run(count())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains_and_ends_with_zero(tmp_path: Path, number: int) -> None:
    """F6: everything is handed over, the row is gone, what was opened is closed, and the program goes on after run."""
    with program(tmp_path, "setup(); cluster.run(); say('over')") as running:
        running.wait_for("joined and holds 3 seats")
        assert runners_left(tmp_path) == 1
        running.process.send_signal(number)
        running.ends_with(0)
        assert runners_left(tmp_path) == 0
        told = running.said
    assert told.index("draining anna (limit 500ms") < told.index("closing") < told.index("anna left after")
    assert "3 of 3 seats released" in told
    assert "Traceback" not in told
    assert told.strip().endswith("over")


def test_one_line_says_who_runs_where(tmp_path: Path) -> None:
    with program(tmp_path) as running:
        running.wait_for("listening on")
        (line,) = [line for line in running.said.splitlines() if "listening on" in line]
        address = line.rpartition(" ")[2]
        assert line == f"coterie runner anna of cluster default on sqlite:///{tmp_path}/run.db, listening on {address}"
        host, port = address.split(":")
        assert host == "127.0.0.1"
        assert 0 < int(port) < 65536


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    text = "async def hang(): await asyncio.sleep(3600)\nsetup(closing=hang); cluster.run()"
    with program(tmp_path, text) as running:
        running.wait_for("listening on")
        running.process.send_signal(signal.SIGTERM)
        running.wait_for("closing")
        running.ends_after_many(signal.SIGTERM)
        running.ends_with(128 + signal.SIGTERM)
        assert running.said.count("ending at once") == 1


def test_two_signals_within_half_a_second_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Supervisors signal a process and its group; wrappers pass on a Ctrl-C that all of them got."""
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    with Signals(limit_s=60) as caught:
        caught._clock = clock = ManualClock()
        os.kill(os.getpid(), signal.SIGTERM)
        clock.advance(timedelta(seconds=0.499))
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert (caught.asked, ends) == (True, [])
        clock.advance(timedelta(seconds=0.001))
        os.kill(os.getpid(), signal.SIGINT)
        assert ends == [128 + signal.SIGINT]


def test_a_second_signal_ends_at_once_even_if_the_loop_is_blocked(tmp_path: Path) -> None:
    """P11: a handler of the loop would wait for it."""
    text = "async def block(): say('blocks'); time.sleep(3600)\nsetup(closing=block); cluster.run()"
    with program(tmp_path, text) as running:
        running.wait_for("listening on")
        running.process.send_signal(signal.SIGTERM)
        running.wait_for("blocks")
        running.ends_after_many(signal.SIGINT)
        running.ends_with(128 + signal.SIGINT)


@pytest.mark.parametrize("how", ["while True: pass", "time.sleep(3600)"])
def test_a_shutdown_that_hangs_is_ended_within_its_limit_and_shows_where(tmp_path: Path, how: str) -> None:
    """L1, P19: drain and some seconds after the signal it is over, whatever user code does."""
    text = f"""
process_main.GRACE_S = 1.0
async def hang():
    {how}
setup(closing=hang); cluster.run()
"""
    with program(tmp_path, text) as running:
        running.wait_for("listening on")
        running.process.send_signal(signal.SIGTERM)
        running.ends_with(1)
        assert "Timeout" in running.said
        assert "in hang" in running.said


def test_a_thread_of_the_default_executor_does_not_keep_the_process(tmp_path: Path) -> None:
    """P19: closing a loop waits for its threads, without a limit on 3.11."""
    text = """
process_main.GRACE_S = 1.0
async def leave_a_thread():
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)
setup(opening=leave_a_thread); cluster.run()
"""
    with program(tmp_path, text) as running:
        running.wait_for("listening on")
        running.process.send_signal(signal.SIGTERM)
        running.ends_with(1)
        assert runners_left(tmp_path) == 0


def test_a_signal_during_the_start_ends_it(tmp_path: Path) -> None:
    text = "async def slow(): say('opening'); await asyncio.sleep(3600)\nsetup(opening=slow); cluster.run()"
    with program(tmp_path, text) as running:
        running.wait_for("opening")
        running.process.send_signal(signal.SIGTERM)
        running.ends_with(0)
        assert "Traceback" not in running.said
        assert runners_left(tmp_path) == 0


def test_a_signal_before_there_is_a_loop_is_not_forgotten() -> None:
    async def main() -> None:
        caught.on_first(lambda: called.append(True))
        assert called

    called: list[bool] = []
    with Signals(limit_s=60) as caught:
        os.kill(os.getpid(), signal.SIGTERM)
        assert caught.asked
        asyncio.run(main())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_start_that_fails_ends_with_its_error(tmp_path: Path) -> None:
    with program(tmp_path, "Cluster('sqlite:////nowhere/at/all.db').run()") as running:
        running.ends_with(1)
        assert "ConfigurationError" in running.said


def test_whoever_stops_the_cluster_ends_run(tmp_path: Path) -> None:
    text = """
async def stop_when_ready():
    await cluster.ready()
    await cluster.stop()
stopping = []
async def begin():
    stopping.append(asyncio.create_task(stop_when_ready()))
setup(opening=begin); cluster.run(); say("over")
"""
    with program(tmp_path, text) as running:
        running.ends_with(0)
        assert running.said.strip().endswith("over")


def test_whoever_stops_the_cluster_while_it_starts_ends_run_in_order(tmp_path: Path) -> None:
    text = """
stopping = []
async def begin():
    stopping.append(asyncio.create_task(cluster.stop()))
    await asyncio.sleep(3600)
setup(opening=begin); cluster.run(); say("over")
"""
    with program(tmp_path, text) as running:
        running.ends_with(0)
        assert running.said.strip().endswith("over")
        assert "Traceback" not in running.said


def test_seats_that_cannot_be_given_back_cost_the_zero(tmp_path: Path) -> None:
    text = """
class Stubborn:
    async def drain(self): await asyncio.sleep(3600)
    def abandon(self): pass
make = lambda: cluster._program.new_runner(cluster.settings, occupy=lambda _: lambda _: Stubborn())
process_main.run(lambda: cluster._participant.bind(make), cluster.settings)
"""
    with program(tmp_path, text) as running:
        running.wait_for("joined and holds 3 seats")
        running.process.send_signal(signal.SIGTERM)
        running.ends_with(1)
        assert "s: 0 of 3 seats released" in running.said
        assert "Traceback" not in running.said


def test_a_forked_child_obeys_signals_as_it_did_before(tmp_path: Path) -> None:
    """P13: `multiprocessing` ends its children with SIGTERM; one of a runner must not take it for a drain."""
    text = """
async def fork():
    if os.fork() == 0:
        say("child", os.getpid())
        time.sleep(3600)
setup(opening=fork); cluster.run()
"""
    with program(tmp_path, text) as running:
        running.wait_for("child")
        running.wait_for("listening on")
        child = int(running.said.split("child ")[1].split()[0])
        os.kill(child, signal.SIGTERM)
        until = time.monotonic() + LIMIT_S
        while _lives(child):
            assert time.monotonic() < until, "the child swallows its SIGTERM"
            time.sleep(0.005)
        assert "draining" not in running.said
        assert "Timeout" not in running.said, "it died of the signal, not of the limit of a shutdown"
        running.process.send_signal(signal.SIGTERM)
        running.ends_with(0)


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


def test_it_uses_uvloop_where_that_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("uvloop")
    text = """
async def tell(): say("loop of", type(asyncio.get_running_loop()).__module__)
setup(opening=tell); cluster.run()
"""
    with program(tmp_path, text) as running:
        running.wait_for("listening on")
        assert "loop of uvloop" in running.said


def test_without_uvloop_it_runs_on_asyncio_and_obeys(tmp_path: Path) -> None:
    with program(tmp_path, "sys.modules['uvloop'] = None; cluster.run()") as running:
        running.wait_for("listening on")
        running.process.send_signal(signal.SIGINT)
        running.ends_with(0)
        assert "Traceback" not in running.said


def test_outside_of_the_main_thread_it_says_what_to_use(tmp_path: Path) -> None:
    caught: list[BaseException] = []

    def attempt() -> None:
        try:
            Cluster(f"sqlite:///{tmp_path}/run.db").run()
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert "async with cluster" in str(caught[0])
