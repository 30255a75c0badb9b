"""`coterie run`: one runner or several, started again when they die, drained together (B6)."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from typing import TYPE_CHECKING

import pytest

from coterie.testing.processes import children
from coterie.testing.proxy import Proxy, free_port
from tests.cluster.cli_process import LIMIT_S, command, command_at_terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.cli_process import Command
    from tests.support.postgres import Server

PROGRAM = """
from coterie import Cluster, Leader

cluster = Cluster(shards=4, drain="5s")


@cluster.singleton("importer")
async def importer(leader: Leader[None]) -> None:
    print(f"version {VERSION}\\n", end="", flush=True)  # at once: the log goes the same way
    await leader.sleep("1h")


VERSION = 1
"""
ANY_PORT = {"COTERIE_HTTP_LISTEN": "127.0.0.1:0"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(PROGRAM)
    return tmp_path


def joined(running: Command) -> list[int]:
    """The processes whose runners have joined, in that order: default names end with them."""
    return [int(pid) for pid in re.findall(r"-(\d+)  joined", running.said)]


def workers(running: Command) -> list[int]:
    return children(running.process.pid)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_one_runner_says_what_it_found_and_leaves_cleanly(folder: Path) -> None:
    """At a terminal: times of day, and the drain behind the ^C."""
    with command_at_terminal(folder, "run", "app.py", env=ANY_PORT) as running:
        running.wait_for("importer: leader, epoch 1")
        head, _, rest = running.said.partition("\n\n")
        assert re.fullmatch(r"coterie \S+ · runner \S+-\d+ · cluster default", head)
        table, _, lines = rest.partition("\n\n")
        app, database, page, tip = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()]
        assert app == ["app", "app.py: cluster", "1 singleton"]
        assert database == ["database", "coterie.db", "default; set COTERIE_URL for PostgreSQL"]
        assert re.fullmatch(r"http://127.0.0.1:\d+/", page[1])
        assert page[2] == "probes /live /ready /startup, metrics /metrics"
        assert tip == ["tip", "one runner is a cluster too; start another in a second terminal"]
        said = [line for line in lines.splitlines() if not line.startswith("version")]
        assert re.fullmatch(r"\d\d:\d\d:\d\d  joined, 4 shards owned", said[0])
        assert re.fullmatch(r"\d\d:\d\d:\d\d  ★ importer: leader, epoch 1", said[1])
        running.send(signal.SIGINT)
        running.ends_with(0)
        assert "  draining (limit 5s; press again to stop at once)" in running.said
        assert re.search(r"left cleanly in \S+: 4 shards handed over, 0 messages returned to storage\n$", running.said)


@pytest.mark.parametrize(
    ("options", "joined", "left"),
    [((), "has joined", "left after"), (("--workers", "2"), "joined, ", "left cleanly in")],
)
def test_with_log_format_json_every_line_is_an_object(
    folder: Path, options: tuple[str, ...], joined: str, left: str
) -> None:
    """With workers the supervisor's lines were plain, and the program's own always."""
    with (folder / "app.py").open("a") as app:
        app.write('\nimport logging\nlogging.getLogger("shop").warning("loaded before anything is set up")\n')
        app.write("@cluster.setup\n@__import__('contextlib').asynccontextmanager\nasync def shop():\n")
        app.write('    logging.getLogger("shop").warning("charged")\n    yield\n')
    with command(folder, "run", "app.py", *options, env={**ANY_PORT, "COTERIE_LOG_FORMAT": "json"}) as running:
        running.wait_for(joined)
        running.send(signal.SIGTERM)
        running.ends_with(0)
        early = ("version", "loaded before")
        lines = [json.loads(line) for line in running.said.splitlines() if not line.startswith(early)]
        assert all({"time", "level", "logger", "msg", "runner"} <= line.keys() for line in lines)
        assert any(line["logger"] == "shop" and line["msg"] == "charged" for line in lines)
        assert any(left in line["msg"] for line in lines)


@pytest.mark.postgres
@pytest.mark.parametrize("options", [[], ["--workers", "2"]], ids=["alone", "workers"])
def test_a_database_that_comes_up_later_is_waited_for(
    folder: Path, postgres_server: Server, options: list[str]
) -> None:
    """One line says so, for all workers; the first signal ends the wait. A database that is not there is refused."""
    proxy = Proxy("127.0.0.1", postgres_server.port)
    proxy.start()
    proxy.refuse()
    database = postgres_server.create_database()
    url = f"postgresql://postgres@127.0.0.1:{proxy.port}/{database}"
    try:
        with command(folder, "run", "app.py", *options, env={**ANY_PORT, "COTERIE_URL": url}) as running:
            running.wait_for(f"127.0.0.1:{proxy.port}/{database}: connection refused")
            proxy.heal()
            running.wait_for("joined, ", times=2 if options else 1)
            running.send(signal.SIGTERM)
            running.ends_with(0)
            said = [line for line in running.said.splitlines() if "waiting" in line]
            assert "waiting for it (--no-wait refuses instead)" in said[0]
            assert sum("waiting for it" in line for line in said) == 1
        proxy.refuse()
        with command(folder, "run", "app.py", *options, "--no-wait", env={**ANY_PORT, "COTERIE_URL": url}) as running:
            running.ends_with(3)
        with command(folder, "run", "app.py", *options, env={**ANY_PORT, "COTERIE_URL": url}) as running:
            running.wait_for("waiting for it")
            running.send(signal.SIGTERM)
            running.ends_with(0)
        proxy.heal()
        absent = url.replace(database, "absent")
        with command(folder, "run", "app.py", *options, env={**ANY_PORT, "COTERIE_URL": absent}) as running:
            running.ends_with(3)
            assert 'database "absent" does not exist' in running.said
    finally:
        proxy.close()
        postgres_server.drop_database(database)


def test_a_worker_that_dies_is_started_again_and_all_drain_together(folder: Path) -> None:
    """Workers have names of their own, and the ports after the one that was chosen."""
    port, env = str(free_port()), {"COTERIE_RUNNER_NAME": "web"}
    with command(folder, "run", "app.py", "--workers", "2", "--port", port, env=env) as running:
        running.wait_for("joined, ", times=2)
        assert set(re.findall(r"(\S+)  joined", running.said)) == {"web-1", "web-2"}
        ports = set(re.findall(r"joined, \d shards owned, http://127.0.0.1:(\d+)", running.said))
        assert len(ports) == 2
        assert port in ports
        first, second = workers(running)
        os.kill(first, signal.SIGKILL)
        running.wait_for(" was ended by SIGKILL: restarting it in")
        running.wait_for("joined, ", times=3)
        assert set(workers(running)) - {first, second}
        third = next(iter(set(workers(running)) - {second}))
        running.send(signal.SIGTERM)
        running.ends_with(0)
        assert running.said.count("draining (limit 5s; press again to stop at once)") == 1
        # How many it were depends on which were on their way from one to the other.
        assert re.search(r"left cleanly in \S+: \d shards handed over, 0 messages returned to storage\n$", running.said)
        assert is_gone(second)
        assert is_gone(third)


def test_a_worker_that_cannot_leave_costs_the_zero(folder: Path) -> None:
    """And one that stands still when all are to leave is killed in the end; a second signal is quicker."""
    with command(folder, "run", "app.py", "--workers", "2", env=ANY_PORT) as running:
        running.wait_for("joined, ", times=2)
        frozen, _ = joined(running)
        os.kill(frozen, signal.SIGSTOP)
        running.send(signal.SIGTERM)
        running.wait_for("draining (limit 5s")
        until = time.monotonic() + LIMIT_S
        while "a second signal" not in running.said:  # those within half a second of the first are the same one
            assert time.monotonic() < until, running.said
            running.send(signal.SIGTERM)
            time.sleep(0.02)
        running.ends_with(128 + signal.SIGTERM)
        assert f"-{frozen} was ended by SIGKILL" in running.said
        assert "left cleanly" not in running.said
        assert is_gone(frozen)


def test_workers_leave_when_whoever_started_them_is_gone(folder: Path) -> None:
    """P13's neighbour: nothing of a command that was killed goes on in secret."""
    with command(folder, "run", "app.py", "--workers", "2", env=ANY_PORT) as running:
        running.wait_for("joined, ", times=2)
        pids = joined(running)
        running.process.kill()
        running.process.wait()
        until = time.monotonic() + LIMIT_S
        while not all(is_gone(pid) for pid in pids):
            assert time.monotonic() < until, "a worker outlives its starter"
            time.sleep(0.02)


def test_what_never_worked_is_not_started_again_and_again(folder: Path) -> None:
    """The exit code is the worker's: the question was wrong (2), or nobody answered (3)."""
    env = {"COTERIE_URL": "postgresql://app@127.0.0.1:1/app"}
    with command(folder, "run", "app.py", "--workers", "1", "--no-wait", env=env) as running:
        running.ends_with(3)
        assert "error: cannot connect to postgresql://app@127.0.0.1:1/app" in running.said
    (folder / "app.py").write_text("import nonsense_that_is_missing\n")
    with command(folder, "run", "app.py", "--workers", "1") as running:
        running.ends_with(2)
        assert "error: app.py cannot be loaded: ModuleNotFoundError" in running.said
        assert "importlib" not in running.said


def test_reload_drains_and_starts_again_when_a_file_changes(folder: Path) -> None:
    """Also when the program cannot be loaded in between."""
    with command(folder, "run", "app.py", "--reload", env=ANY_PORT) as running:
        running.wait_for("version 1")
        (folder / "app.py").write_text("oops(")
        running.wait_for("app.py changed: draining and starting again")
        running.wait_for("waiting for its files to change")
        assert "error: app.py cannot be loaded: SyntaxError" in running.said
        (folder / "app.py").write_text(PROGRAM.replace("VERSION = 1", "VERSION = 2"))
        running.wait_for("version 2")
        running.send(signal.SIGTERM)
        running.ends_with(0)
        assert running.said.count("left cleanly") == 2
