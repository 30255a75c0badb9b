"""Other task queues beside ours: each in an environment of its own, two workers and one sender, on the same server.

The environments are made below `.venv-peers` when they are first used, from PyPI. Redis, for Celery, is the
`redis-server` on PATH (Debian's package), with its log of writes on; without one Celery is left out.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.testing.proxy import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Drain = Callable[[int], Awaitable[float]]
    """Send so many jobs and wait until they are over: how many seconds it took."""

ROOT = Path(__file__).parents[1]
PROGRAM = Path(__file__).with_name("task_peer_programs.py")
WORKERS = 2
READY_S = 120.0
PEERS = {
    "pgqueuer": ("pgqueuer==1.6.0", "asyncpg==0.32.0"),
    "procrastinate": ("procrastinate==3.10.0", "psycopg-binary==3.3.9"),
    "dbos": ("dbos==3.4.0",),
    "celery": ("celery[redis]==5.7.0", "packaging"),
}


@asynccontextmanager
async def peer(name: str, url: str) -> AsyncIterator[Drain]:
    """The sender of one of `PEERS` and its workers, on a database of their own."""
    python = _environment(name)
    async with AsyncExitStack() as stack:
        if name == "celery":
            url = await stack.enter_async_context(_redis())
        sender = await stack.enter_async_context(_process(python, name, "send", url))
        for _ in range(WORKERS):
            await stack.enter_async_context(_process(python, name, "work", url))

        async def drain(count: int) -> float:
            assert sender.stdin is not None
            assert sender.stdout is not None
            sender.stdin.write(f"{count}\n".encode())
            return float(await sender.stdout.readline())

        yield drain


def set_up() -> list[str]:
    """Make the environments of all that can be run here; their names."""
    names = list(PEERS)
    if shutil.which("redis-server") is None:
        print("celery is left out: there is no redis-server on PATH", file=sys.stderr)
        names.remove("celery")
    for name in names:
        _environment(name)
    return names


def _environment(name: str) -> Path:
    """The Python of an environment that has what `PEERS` says."""
    folder = ROOT / ".venv-peers" / name
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join(PEERS[name])
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"set-up: {', '.join(PEERS[name])} into {folder.relative_to(ROOT)}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PEERS[name]], check=True, stdout=sys.stderr)
        stamp.write_text(wanted)
    return python


@asynccontextmanager
async def _process(python: Path, name: str, role: str, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Once it is ready."""
    process = await asyncio.create_subprocess_exec(
        *(python, PROGRAM, name, role, url), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL, start_new_session=True
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(READY_S):
            while (line := await process.stdout.readline()) != b"ready\n":
                if not line:
                    raise RuntimeError(f"{name} did not start: {python} {PROGRAM} {name} {role} {url} says why")
        yield process
    finally:
        os.killpg(process.pid, 9)  # with the processes that it has started
        await process.wait()


@asynccontextmanager
async def _redis() -> AsyncIterator[str]:
    """A server of Redis on loopback that logs each write, and syncs that log each second."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        line = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", folder, "--save", ""]
        server = await asyncio.create_subprocess_exec(*line, "--appendonly", "yes", stdout=asyncio.subprocess.DEVNULL)
        try:
            await _accepts(port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.kill()
            await server.wait()


async def _accepts(port: int) -> None:
    async with asyncio.timeout(READY_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return
