"""A process that does one thing to a SQLite file: `python child.py COMMAND ARGUMENT…`."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time

import apsw

from coterie.errors import CoterieError
from coterie.kernel.chance import Chance
from coterie.kernel.clock import SystemClock
from coterie.settings import Settings
from coterie.storage.interface import KvPut
from coterie.storage.sqlite import SqliteStorage


def opened(url: str) -> SqliteStorage:
    settings = Settings.load({"url": url}, environ={})
    return SqliteStorage(settings, incarnation="0" * 32, clock=SystemClock(), chance=Chance())


def say(text: object) -> None:
    print(text, flush=True)


async def start(url: str) -> None:
    """Wait for a line, so that all start at once; then start, write, stop."""
    say("ready")
    sys.stdin.readline()
    async with opened(url) as storage:
        await storage.kv.put(KvPut(str(os.getpid()), b"here", 1))
        say(len(await storage.schema.applied()))


async def write(url: str) -> None:
    """Write as fast as it goes for a second; say how often, and the longest wait."""
    async with opened(url) as storage:
        say("ready")
        sys.stdin.readline()
        end, count, longest = time.monotonic() + 1.0, 0, 0.0
        while (began := time.monotonic()) < end:
            await storage.kv.put(KvPut(f"{os.getpid()}:{count}", b"x", count))
            count, longest = count + 1, max(longest, time.monotonic() - began)
        say(json.dumps({"count": count, "longest_s": longest}))
        sys.stdin.readline()


async def hold(path: str) -> None:
    """Begin a write transaction and stay in it."""
    connection = apsw.Connection(path)
    connection.execute("begin immediate")
    connection.execute("create table held (it)")
    say("holding")
    sys.stdin.readline()
    connection.execute("rollback")
    say("let go")


async def unprivileged(url: str) -> None:
    """Start as a user whom file permissions bind, and say what came of it."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        async with opened(url):
            say("started")
    except CoterieError as error:
        say(f"{type(error).__name__}: {error}")


async def fork(url: str) -> None:
    """Fork with an open storage; say what the child found, then whether the parent still works."""
    async with opened(url) as storage:
        await storage.dedicated()
        await storage.kv.put(KvPut("before", b"1", 1))
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            asyncio.run(_in_child(url, storage, writing))
        os.waitpid(pid, 0)
        found = json.loads(os.read(reading, 100_000))
        await storage.kv.put(KvPut("after", b"2", 2))
        found["parent reads"] = (await storage.kv.get("after")) is not None
    say(json.dumps(found))


async def _in_child(url: str, storage: SqliteStorage, writing: int) -> None:
    found: dict[str, object] = {
        "get": await _error(storage.kv.get("before")),
        "put": await _error(storage.kv.put(KvPut("child", b"3", 3))),
        "clear": await _error(storage.kv.clear("")),
        "applied": await _error(storage.schema.applied()),
        "now": await _error(storage.now()),
        "dedicated": await _error(storage.dedicated()),
        "open again": await _error(opened(url).start()),
        "stop": await _error(storage.stop()),
    }
    before = len(apsw.connections())
    del storage
    gc.collect()
    found["closed"] = before - len(apsw.connections())
    os.write(writing, json.dumps(found).encode())
    os._exit(0)


async def _error(use: object) -> str:
    try:
        await use  # type: ignore[misc]  # whatever the caller wants to see fail
    except BaseException as error:
        return type(error).__name__
    return "no error"


COMMANDS = {"start": start, "write": write, "hold": hold, "unprivileged": unprivileged, "fork": fork}

if __name__ == "__main__":
    asyncio.run(COMMANDS[sys.argv[1]](*sys.argv[2:]))
