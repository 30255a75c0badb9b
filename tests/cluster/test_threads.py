"""Processes that are ended while a plain function runs in a thread (T7)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster import thread_program

if TYPE_CHECKING:
    from collections.abc import Iterator

FAR_S = 120.0


class Runners:
    """Processes of the program, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/threads.db"
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.cluster.thread_program", self.url, str(self.folder)]
        self.started.append(subprocess.Popen(command, cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL))
        return self.started[-1]

    def wait_for_body(self) -> None:
        until_s = time.monotonic() + FAR_S
        while not (self.folder / "begun").exists():
            assert time.monotonic() < until_s, "no body has begun"
            time.sleep(0.01)


@pytest.fixture
def runners(tmp_path: Path) -> Iterator[Runners]:
    made = Runners(tmp_path)
    yield made
    for each in made.started:
        each.kill()
        each.wait()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_a_message_whose_body_was_cut_off_runs_again_and_is_done_once(runners: Runners, how: signal.Signals) -> None:
    """SIGKILL in the middle of a body; and SIGTERM, after which a body that does not end keeps no process alive."""
    cluster: Any = thread_program.program(runners.url, str(runners.folder))
    first = runners.start()
    with cluster.sync() as c:
        account = c.ref(cluster.account, "alice")
        message = c.send(account.deposit(5))
        runners.wait_for_body()
        first.send_signal(how)
        assert first.wait(FAR_S) == (0 if how == signal.SIGTERM else -how)
        runners.start()
        assert c.result(message, timeout=FAR_S) == 5
        assert c.call(account.deposit(1), timeout=FAR_S) == 6
        c.disconnect()
