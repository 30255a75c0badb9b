"""The project of docs/django.md: its tests, its commands, and its processes (O3)."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from coterie.testing.processes import end, launch
from tests.cluster.django_project import DjangoProject

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

LIMIT_S = 120.0
ORDERS = 60
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> DjangoProject:
    url = None if request.param == "sqlite" else str(request.getfixturevalue("empty_postgres_url"))
    return DjangoProject(tmp_path, url)


@pytest.fixture
def small(tmp_path: Path) -> DjangoProject:
    """On SQLite: for what does not depend on the database."""
    return DjangoProject(tmp_path)


def tables_of(project: DjangoProject) -> None:
    """Make the tables of the project; ours are made by the first runner."""
    project.manage("makemigrations", "shop")
    project.manage("migrate")


# Tests and commands


def test_its_own_tests_pass_on_the_database_of_the_tests(project: DjangoProject) -> None:
    """And that database can be dropped afterwards."""
    project.manage("makemigrations", "shop")
    assert "Found 1 test" in project.manage("test", "--noinput")


def test_the_commands_are_those_of_coterie_with_the_settings_of_the_project(small: DjangoProject) -> None:
    assert "no issues" in small.manage("check")
    where = small.manage("coterie", "config")
    assert re.search(r"http_listen +127\.0\.0\.1:0 +argument", where), where
    assert str(small.folder / "coterie.db") in where
    assert str(small.folder / "coterie.db") in small.manage("coterie", "migrate")
    assert "Commands" in small.manage("help", "coterie")
    small.manage("coterie", "nonsense", code=2)


# Processes


@pytest.mark.parametrize(
    "project",
    [pytest.param("sqlite", marks=pytest.mark.nightly), pytest.param("postgres", marks=pytest.mark.postgres)],
    indirect=True,
)
def test_runners_and_gunicorn(project: DjangoProject, tmp_path: Path) -> None:
    """Two runners, and two workers of four threads that were forked from a loaded program."""
    tables_of(project)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with running(project, "coterie", "run", "--workers", "2", cwd=elsewhere, until="2 (of 2|runners)|joined"):
        line = ["-m", "gunicorn", "--preload", "--workers", "2", "--threads", "4", "--bind", "127.0.0.1:0"]
        line += ["--no-control-socket", "mysite.wsgi"]
        with server([project.line()[0], *line], project, r"Listening at: (http://\S+)") as ask:
            told = shop(ask)
    assert told == Counter({"202": ORDERS})


@pytest.mark.nightly
def test_runserver_loads_changed_code_anew(small: DjangoProject) -> None:
    """Its first process has connected by then."""
    tables_of(small)
    port = free_port()
    with (
        running(small, "coterie", "run", until="joined"),
        server(small.line("runserver", str(port)), small, r"server at (http://127\.0\.0\.1:\d+)/") as ask,
    ):
        assert ask("/accounts/alice", None) == {"cents": 0}
        views = small.folder / "shop" / "views.py"
        views.write_text(views.read_text().replace('{"cents": c.call', '{"anew": c.call'))
        until = time.monotonic() + LIMIT_S
        while ask("/accounts/alice", None) != {"anew": 0}:
            assert time.monotonic() < until
            time.sleep(0.1)


def shop(ask: Callable[[str, dict[str, str] | None], object]) -> Counter[str]:
    """Orders by many threads at once, then every cent counted."""

    def order(number: int) -> str:
        told = ask(f"/accounts/account-{number % 5}/orders/o-{number}", {"cents": "5"})
        assert isinstance(told, dict)
        return "202" if told["message"] else str(told)

    def cents(name: str) -> int:
        read = ask(f"/accounts/{name}", None)
        assert isinstance(read, dict)
        found: int = read["cents"]
        return found

    with ThreadPoolExecutor(8) as threads:
        told = Counter(threads.map(order, range(ORDERS)))
    until = time.monotonic() + LIMIT_S
    while sum(cents(f"account-{number}") for number in range(5)) != 5 * ORDERS:
        assert time.monotonic() < until, "some orders are not paid"
    return told


@contextmanager
def running(
    project: DjangoProject, *arguments: str, until: str, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs until the block ends, and then ends in order."""
    path = project.folder / "runner.log"
    with path.open("wb") as log:
        process = launch(
            project.line(*arguments),
            death=signal.SIGKILL,
            output=log,
            env=project.environment(),
            cwd=cwd or project.folder,
        )
    try:
        wait(path, process, until)
        yield process
        process.terminate()
        assert process.wait(LIMIT_S) == 0, path.read_text()
    finally:
        if process.poll() is None:
            end(process, signal.SIGKILL)


@contextmanager
def server(
    line: list[str], project: DjangoProject, listening: str
) -> Iterator[Callable[[str, dict[str, str] | None], object]]:
    """A web server; gives a function that asks it."""
    path = project.folder / "server.log"
    environ = project.environment() | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(project.folder)}
    with path.open("wb") as log:
        process = launch(line, death=signal.SIGKILL, output=log, env=environ, cwd=project.folder)
    try:
        url = wait(path, process, listening)[1]

        def ask(place: str, form: dict[str, str] | None) -> object:
            data = None if form is None else urllib.parse.urlencode(form).encode()
            try:
                with urllib.request.urlopen(f"{url}{place}", data=data, timeout=LIMIT_S) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                return f"{error.code} {error.read().decode()[:2000]}"
            except OSError as error:
                return str(error)  # it starts anew

        yield ask
        process.terminate()
        process.wait(LIMIT_S)
        assert "was sent SIGKILL" not in path.read_text()
    finally:
        if process.poll() is None:
            end(process, signal.SIGKILL)


def free_port() -> int:
    """A port that nobody listens on: this server names its port only if it is told one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def wait(path: Path, process: subprocess.Popen[bytes], said: str) -> re.Match[str]:
    """Wait until a process has said something."""
    until = time.monotonic() + LIMIT_S
    while (found := re.search(said, path.read_text())) is None:
        assert process.poll() is None, path.read_text()
        assert time.monotonic() < until, path.read_text()
        time.sleep(0.05)
    return found
