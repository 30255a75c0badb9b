"""`cluster.sync()` in processes: how they end and fork, and how they serve under gunicorn (O3)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coterie.testing import processes
from coterie.testing.processes import end, launch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PROGRAM = Path(__file__).with_name("sync_program.py")
FLASK = Path(__file__).parents[2] / "docs" / "flask.md"
LIMIT_S = 120.0
"""For what takes a second: a process that hangs at its end hangs for ever."""
THREADS, REQUESTS = 32, 400

pytestmark = pytest.mark.timeout(300)


def ran(what: str, url: str, *, code: int = 0) -> list[str]:
    """The lines of a program that has ended, with nothing else said."""
    line = [sys.executable, "-W", "error", str(PROGRAM), what]
    done = subprocess.run(line, env=environment(url), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (code, ""), done
    return done.stdout.splitlines()


def environment(url: str) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("COTERIE_")} | {"COTERIE_URL": url}


# How it ends


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("use", 0, ["1"]),
        ("unused", 0, ["nothing"]),
        ("beside", 0, ["1"]),
        ("outlive", 0, ["1", "2"]),
        ("raise_error", 3, ["1"]),
    ],
)
async def test_it_ends_with_the_program(url: str, what: str, code: int, said: list[str]) -> None:
    async with processes(PROGRAM, runners=1, url=url, proxied=False):
        assert await asyncio.to_thread(ran, what, url, code=code) == said


# Forks


@pytest.mark.postgres
async def test_a_forked_child_starts_anew_and_leaves_its_parent_alone(postgres_url: str) -> None:
    async with processes(PROGRAM, runners=1, url=postgres_url, proxied=False):
        said = await asyncio.to_thread(ran, "fork", postgres_url)
    assert said[0] == "0"
    assert sorted(said[1:-1]) == ["1", "2", "3", "4", "5"]
    assert said[-1] == "[0, 0, 0, 0, 0] 9"


async def test_on_sqlite_a_forked_child_of_one_that_has_the_file_open_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/coterie.db"
    async with processes(PROGRAM, runners=1, url=url, proxied=False):
        said = await asyncio.to_thread(ran, "fork", url)
    assert said == ["0", *["Forked"] * 5, "[0, 0, 0, 0, 0] 9"]


# Under gunicorn


def flask_program(*, used_before_the_fork: bool) -> str:
    """The program of docs/flask.md."""
    found = re.search(r"^```python\n(.*?)^```$", FLASK.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    used = "\n\nif __name__ != '__main__':\n    with cluster.sync() as c:\n        c.kv.set('loaded', True)\n"
    run = "\n\nif __name__ == '__main__':\n    cluster.run()\n"
    return found[1] + (used if used_before_the_fork else "") + run


@contextmanager
def gunicorn(folder: Path, url: str, *options: str) -> Iterator[Callable[[str, dict[str, str] | None], object]]:
    """A server of `shop.py`; gives a function that asks it."""
    listening = re.compile(r"Listening at: (http://\S+)")
    line = [sys.executable, "-m", "gunicorn", *options, "--bind", "127.0.0.1:0", "--no-control-socket"]
    line += ["--graceful-timeout", f"{LIMIT_S:.0f}", "shop:app"]  # a worker that hangs at its end is waited for
    path = folder / "gunicorn.log"
    with path.open("wb") as log:
        server = launch(line, death=signal.SIGKILL, output=log, env=environment(url), cwd=folder)
    try:
        until = time.monotonic() + LIMIT_S
        while (found := listening.search(path.read_text())) is None:
            assert server.poll() is None, path.read_text()
            assert time.monotonic() < until, path.read_text()
            time.sleep(0.02)

        def ask(place: str, form: dict[str, str] | None = None) -> object:
            data = None if form is None else urllib.parse.urlencode(form).encode()
            with urllib.request.urlopen(f"{found[1]}{place}", data=data, timeout=LIMIT_S) as answer:
                return json.load(answer)

        yield ask
        server.terminate()
        assert server.wait(LIMIT_S) == 0, path.read_text()
        said = path.read_text()
        assert said.count("Worker exiting") == said.count("Booting worker"), said
        assert "Traceback" not in said, said
        assert "was sent" not in said, f"a worker was killed:\n{said}"
    finally:
        if server.poll() is None:
            end(server, signal.SIGKILL)


@pytest.mark.parametrize("options", [("--preload", "--workers", "4", "--threads", "8")], ids=" ".join)
async def test_flask_under_gunicorn(url: str, tmp_path: Path, options: Sequence[str]) -> None:
    """4 workers of 8 threads, loaded before they are forked. On PostgreSQL even the loading has used the cluster."""
    program = tmp_path / "shop.py"
    program.write_text(flask_program(used_before_the_fork=not url.startswith("sqlite")))
    async with processes(program, runners=1, url=url, directory=tmp_path, proxied=False):
        told = await asyncio.to_thread(load, tmp_path, url, options)
    assert told == Counter({"202": REQUESTS, "balance": REQUESTS})


def load(folder: Path, url: str, options: Sequence[str]) -> Counter[str]:
    """Deposits and reads by many threads at once, then every cent counted."""
    with gunicorn(folder, url, *options) as ask, ThreadPoolExecutor(THREADS) as threads:

        def shop(number: int) -> list[str]:
            name = f"account-{number % 20}"
            try:
                stored = ask(f"/accounts/{name}/deposits/order-{number}", {"cents": "5"})
                read = ask(f"/accounts/{name}", None)
            except urllib.error.HTTPError as error:
                return [f"{error.code} {error.read().decode()}"]
            assert isinstance(stored, dict)
            assert isinstance(read, dict)
            return ["202" if stored["message"] else "", "balance" if read["cents"] % 5 == 0 else str(read)]

        told = Counter(each for found in threads.map(shop, range(REQUESTS)) for each in found)

        def cents(name: str) -> int:
            read = ask(f"/accounts/{name}", None)
            assert isinstance(read, dict)
            found: int = read["cents"]
            return found

        until = time.monotonic() + LIMIT_S
        while sum(cents(f"account-{number}") for number in range(20)) != 5 * REQUESTS:
            assert time.monotonic() < until, "some deposits have not run"
    return told
