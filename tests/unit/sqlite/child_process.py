"""A process that does one thing to a SQLite file: `python child_process.py COMMAND ARGUMENT…`."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import apsw

from coterie.errors import CoterieError
from coterie.kernel.clock import SystemClock
from coterie.kernel.random import Random
from coterie.settings import Settings
from coterie.storage.interface import KvPut, Ownership, Registration, SeatDeclaration
from coterie.storage.sqlite import SqliteStorage, ownership
from coterie.transport.identity import process_id

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from coterie.storage.contracts.messages import Transaction


def opened(url: str) -> SqliteStorage:
    settings = Settings.load({"url": url}, environ={})
    return SqliteStorage(settings, incarnation="0" * 32, clock=SystemClock(), chance=Random())


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
    """Write as fast as it goes for a second, each time it is told to go; say how often, and the longest wait."""
    async with opened(url) as storage:
        say("ready")
        total = 0
        while sys.stdin.readline() == "go\n":
            end, count, longest = time.monotonic() + 1.0, 0, 0.0
            while (began := time.monotonic()) < end:
                await storage.kv.put(KvPut(f"{os.getpid()}:{total + count}", b"x", count))
                count, longest = count + 1, max(longest, time.monotonic() - began)
            total += count
            say(json.dumps({"count": count, "longest_s": longest}))


async def hold(path: str) -> None:
    """Begin a write transaction and stay in it."""
    connection = apsw.Connection(path)
    connection.execute("begin immediate")
    connection.execute("create table held (it)")
    say("holding")
    sys.stdin.readline()
    connection.execute("rollback")
    say("let go")


async def draft(url: str) -> None:
    """Write in a user's transaction, and stay in it."""
    async with opened(url) as storage:
        transaction = storage.transaction(limit_s=600)
        await transaction.execute("insert into orders (id) values (1)")
        say("writing")
        sys.stdin.readline()


async def own(url: str, *leases: str) -> None:
    """Be runners (`incarnation=ttl`), then do what is told, line by line."""
    async with opened(url) as storage, AsyncExitStack() as stack:
        for lease in leases:
            incarnation, _, ttl_s = lease.partition("=")
            session = await stack.enter_async_context(storage.ownership(incarnation))
            me = Registration(id=incarnation, name="child", address="", host_id="", groups=(), process=process_id())
            await session.register(me, [SeatDeclaration("seat", "default")], ttl_s=float(ttl_s))
        say("registered")
        while order := sys.stdin.readline().strip():
            say(_obey(order, url.removeprefix("sqlite:///")))


UNPRIVILEGED = 65534
"""The user and group nobody."""
_HELD: list[apsw.Connection] = []


def _obey(order: str, path: str) -> object:
    if order == "fork":
        if pid := os.fork():
            return pid
        time.sleep(600)
    _HELD.append(apsw.Connection({"hold": path, "hold leases": f"{path}-leases"}[order]))
    _HELD[-1].execute("begin immediate")
    return "holding"


async def juggle(url: str, incarnation: str) -> None:
    """Register, take and give back seats, leave, again and again; say what was granted."""
    ownership._LIMIT_S = 30.0  # four at once, on a machine that may be busy
    granted: list[tuple[str, int]] = []
    async with opened(url) as storage:
        say("ready")
        sys.stdin.readline()
        began = time.monotonic()
        while (passed := time.monotonic() - began) < 1.5 or (len(granted) < 50 and passed < 60):  # on a busy machine
            async with storage.ownership(incarnation) as session:
                me = Registration(id=incarnation, name="child", address="", host_id="", groups=())
                await session.register(me, [SeatDeclaration(f"seat-{n}", "default") for n in range(5)], ttl_s=60)
                for _ in range(5):
                    grants = await session.acquire([f"seat-{n}" for n in range(5)])
                    granted += [(grant.name, grant.epoch) for grant in grants]
                    await session.renew(ttl_s=60)
                    for grant in grants[1:]:
                        assert await session.release(grant.name, grant.epoch)
                await session.leave()
    say(json.dumps(granted))


async def unprivileged(url: str) -> None:
    """Start as a user whom file permissions bind, and say what came of it."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(UNPRIVILEGED)
        os.setuid(UNPRIVILEGED)
    try:
        async with opened(url):
            say("started")
    except CoterieError as error:
        say(f"{type(error).__name__}: {error}")


async def fork(url: str) -> None:
    """Fork with an open storage; say what the child found, then whether the parent still works."""
    async with opened(url) as storage, storage.ownership("a" * 32) as session:
        await storage.kv.put(KvPut("before", b"1", 1))
        transaction = storage.transaction(limit_s=600)
        await transaction.execute("create table mine (id integer)")
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            asyncio.run(_in_child(url, storage, session, transaction, writing))
        os.waitpid(pid, 0)
        found = json.loads(os.read(reading, 100_000))
        await transaction.execute("insert into mine values (1)")
        await transaction.rollback()
        await storage.kv.put(KvPut("after", b"2", 2))
        found["parent reads"] = (await storage.kv.get("after")) is not None
    say(json.dumps(found))


async def _in_child(
    url: str, storage: SqliteStorage, session: Ownership, transaction: Transaction, writing: int
) -> None:
    found: dict[str, object] = {
        "get": await _error(storage.kv.get("before")),
        "put": await _error(storage.kv.put(KvPut("child", b"3", 3))),
        "clear": await _error(storage.kv.clear("")),
        "applied": await _error(storage.schema.applied()),
        "now": await _error(storage.now()),
        "view": await _error(storage.view()),
        "ownership": await _error(storage.ownership("b" * 32).__aenter__()),
        "session": await _error(session.renew(ttl_s=1)),
        "transaction": await _error(transaction.execute("delete from mine")),
        "open again": await _error(opened(url).start()),
        "stop": await _error(storage.stop()),
    }
    before = len(apsw.connections())
    del storage, session, transaction
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


COMMANDS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "start": start,
    "write": write,
    "hold": hold,
    "draft": draft,
    "own": own,
    "juggle": juggle,
    "unprivileged": unprivileged,
    "fork": fork,
}

if __name__ == "__main__":
    asyncio.run(COMMANDS[sys.argv[1]](*sys.argv[2:]))
