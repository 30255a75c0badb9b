"""The tests' own server: its verbs work, and it does not outlive the test run."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coterie.testing.postgres import reachable

if TYPE_CHECKING:
    from tests.support.postgres import Server

pytestmark = pytest.mark.postgres


def open_port(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_databases_come_and_go_and_survive_a_kill(postgres_server: Server) -> None:
    name = postgres_server.create_database()
    postgres_server.execute("create table t (n int)", "insert into t values (1)", database=name)
    if postgres_server.owned:
        postgres_server.kill()
        assert not open_port(postgres_server.port)
        postgres_server.start()
    assert postgres_server.execute("select n from t", database=name)[0][0] == 1
    copy = postgres_server.create_database(template=name)
    assert postgres_server.execute("select n from t", database=copy)[0][0] == 1
    postgres_server.drop_database(copy)
    postgres_server.drop_database(name)
    assert not postgres_server.execute(f"select 1 from pg_database where datname = '{name}'")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")
def test_a_killed_test_run_leaves_no_server_behind() -> None:
    program = """
from tests.support.postgres import Server
s = Server(); s.start(); print(s.port, s.directory, flush=True); input()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    with run:
        assert run.stdout is not None
        port, directory = run.stdout.readline().decode().split()
        assert open_port(int(port))
        run.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 120
    while open_port(int(port)):
        assert time.monotonic() < deadline, "the server is still there"
        time.sleep(0.02)
    shutil.rmtree(directory, ignore_errors=True)


def test_binaries_that_another_user_cannot_reach_are_copied_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    home = tmp_path / "package" / "install"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "postgres").write_text("binary")
    (tmp_path / "package.libs").mkdir()
    (tmp_path / "package.libs" / "lib.so").write_text("library")
    stranger = os.geteuid() + 1
    copied = reachable(home / "bin", uid=stranger)
    try:
        assert reachable(home / "bin", uid=stranger) == copied
        assert reachable(home / "bin", uid=os.geteuid()) == home / "bin"
        assert (copied / "postgres").read_text() == "binary"
        assert (copied.parents[2] / "package.libs" / "lib.so").read_text() == "library"
        assert tmp_path.stat().st_mode & 0o777 == 0o700
    finally:
        shutil.rmtree(copied.parents[2])
        Path(f"{copied.parents[2]}.lock").unlink()
