"""Standing tasks that the simulator lacks (sockets, HTTP, the page, commands, SQL), struck by an error of each kind."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import os
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import httpx
import pytest

from coterie import Cluster
from coterie.cli.run.events import LeadershipBegan
from coterie.cli.run.reporter import Reporter
from coterie.cli.run.supervisor import Watched, WorkerSupervisor
from coterie.entities.persisted.commit_watcher import CommitWatcher
from coterie.incoming.mover import IncomingMover
from coterie.kernel import chaos, metrics
from coterie.kernel.service import Tasks
from coterie.kernel.supervisor import Supervisor
from coterie.transport.tcp import TcpWire
from coterie.web.application import build
from coterie.web.cluster_view import ClusterView
from tests.simulation.test_supervision import ELSEWHERE, ERRORS, Strikes
from tests.support.services import services
from tests.unit.transport.certificate_authority import Authority
from tests.unit.transport.test_certificates import Installed
from tests.unit.web.test_server import serving_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    Progress = Callable[[], Awaitable[None]]
    """Does something that the task is for, and returns when it is done."""


CALLED = {
    "on_tick": "serve HTTP",
    "view": "feed the page",
    "take": "move incoming work",
    "ended": "watch users' commits",
}


def raises_once(target: Any, name: str) -> None:
    """Strike where the task calls this: no error can be thrown into a wait that a time limit ends."""
    call = getattr(target, name)

    async def called(*args: Any, **kwargs: Any) -> Any:
        task = CALLED[name]
        if (error := chaos.failure(task)) is not None:
            raise error
        return await call(*args, **kwargs)

    setattr(target, name, called)


@asynccontextmanager
async def wire(folder: Path) -> AsyncIterator[tuple[TcpWire, str, Installed, Authority]]:
    authority, installed = Authority(folder), Installed(folder)
    installed.put(authority.sign())
    made = TcpWire(installed.settings)
    address = await made.listen(asyncio.Protocol)
    try:
        yield made, address, installed, authority
    finally:
        await made.close()


@asynccontextmanager
async def accepting(folder: Path) -> AsyncIterator[Progress]:
    async with wire(folder) as (open_wire, address, _, _):
        made: Any = open_wire

        async def connect() -> None:
            within_s = 0.25
            while True:
                within_s *= 2
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(within_s):  # the one on which the error struck is not answered
                        transport, _ = await made.connect(address, asyncio.Protocol)
                        transport.abort()
                        return

        yield connect


@asynccontextmanager
async def watching_certificates(folder: Path) -> AsyncIterator[Progress]:
    async with wire(folder) as (made, _, installed, authority):

        async def replace() -> None:
            assert made._certificates is not None
            before = made._certificates.server
            installed.put(authority.sign())
            while made._certificates.server is before:
                await asyncio.sleep(0.001)

        yield replace


@asynccontextmanager
async def serving(_: Path) -> AsyncIterator[Progress]:
    async with serving_app() as server, httpx.AsyncClient(base_url=server.url) as http:
        state = server._server.server_state
        raises_once(server._server, "on_tick")

        async def ask() -> None:
            """The task makes the headers anew that tell the date."""
            assert (await http.get("/live")).status_code == 200
            before = state.default_headers
            while state.default_headers is before:
                await asyncio.sleep(0.001)

        yield ask


@asynccontextmanager
async def feeding(folder: Path) -> AsyncIterator[Progress]:
    cluster = Cluster(f"sqlite:///{folder}/fed.db", shards=2, http_listen=None)
    async with cluster:
        await cluster.ready()
        view = ClusterView(cluster.settings, cluster._acting)
        raises_once(view, "view")
        app = build(view)
        async with (
            serving_app(app) as server,
            httpx.AsyncClient(base_url=server.url, timeout=None) as http,
            http.stream("GET", "/api/stream?pages=overview") as answer,
        ):
            lines = answer.aiter_lines()

            async def receive() -> None:
                while not (await anext(lines)).startswith("event: "):
                    pass

            yield receive


class FakeRunner:
    """What a report is about: it leads one singleton, at an epoch that grows."""

    name = "web-1"

    def __init__(self) -> None:
        self.seats = {"singleton:importer": 1, "shard:default:0": 1}

    def tenure(self, seat: str) -> Any:
        return SimpleNamespace(epoch=self.seats[seat])

    async def ready(self) -> None:
        await asyncio.sleep(0)


@asynccontextmanager
async def reporting(_: Path) -> AsyncIterator[Progress]:
    runner: Any = FakeRunner()
    loaded: Any = None
    said: list[object] = []

    async def lead() -> None:
        epoch = runner.seats["singleton:importer"] = runner.seats["singleton:importer"] + 1
        began = LeadershipBegan(runner=runner.name, singleton="importer", epoch=epoch)
        while began not in said:
            await asyncio.sleep(0.001)

    tasks, follow = Tasks("reporter"), functools.partial(Reporter(loaded, said.append).follow, runner)
    tasks.supervise(follow, name="report the runner", supervisor=Supervisor())  # as `main._run` does
    yield lead
    await tasks.stop()


@asynccontextmanager
async def watching_files(folder: Path) -> AsyncIterator[Progress]:
    program, starts = folder / "app.py", 0
    program.touch()
    command = WorkerSupervisor("app.py", workers=0, wait=False, env=lambda _: {})

    async def run() -> int:
        nonlocal starts
        starts += 1
        await command._stopping.wait()
        return 0

    async def change() -> None:
        before = starts
        program.write_text(f"print({starts})\n" + "# longer" * starts)
        os.utime(program, ns=(starts, starts))
        while starts == before:
            await asyncio.sleep(0.001)

    with patch.object(command, "run", run):
        reloading = asyncio.create_task(command.run_again_and_again(Watched(folder)))
        while not starts:
            await asyncio.sleep(0.001)
        yield change
        reloading.cancel()
        await asyncio.gather(reloading, return_exceptions=True)


class FakeSql:
    """What SQL and users' transactions have written: no rows, and all transactions have committed."""

    def __init__(self) -> None:
        self.reads = 0

    async def take(self, *_: Any, **__: Any) -> list[Any]:
        self.reads += 1
        return []

    async def ended(self, transactions: list[str]) -> dict[str, bool]:
        return dict.fromkeys(transactions, True)


@asynccontextmanager
async def moving_incoming_work(_: Path) -> AsyncIterator[Progress]:
    sql = FakeSql()
    raises_once(sql, "take")
    tenure: Any = SimpleNamespace(seat="incoming:default", require_held=lambda: None)
    given = services(storage=SimpleNamespace(incoming=sql))
    unused: Any = SimpleNamespace()
    mover: Any = IncomingMover(
        tenure, given, copy_context(), runner=unused, sources=lambda: [("call", "Account")], check=unused
    )

    async def read() -> None:
        before = sql.reads
        while sql.reads == before:
            mover.wake()
            await asyncio.sleep(0.001)

    yield read
    mover.abandon()
    await mover.end()


@asynccontextmanager
async def watching_commits(_: Path) -> AsyncIterator[Progress]:
    sql: Any = FakeSql()
    raises_once(sql, "ended")
    woken: list[object] = []

    async def wake(news: object) -> None:
        woken.append(news)

    watcher, numbers = CommitWatcher(sql, wake=wake, supervisor=Supervisor()), itertools.count()

    async def commit() -> None:
        before = len(woken)
        watcher.watch(f"transaction {next(numbers)}", [("shard:default:0", "")])
        while len(woken) == before:
            await asyncio.sleep(0.001)

    yield commit
    await watcher.stop()


CASES: dict[str, Callable[[Path], AbstractAsyncContextManager[Progress]]] = {
    "accept connections": accepting,
    "watch certificates": watching_certificates,
    "serve HTTP": serving,
    "feed the page": feeding,
    "report the runner": reporting,
    "watch files": watching_files,
    "move incoming work": moving_incoming_work,
    "watch users' commits": watching_commits,
}

DEALT_WITH = {
    ("accept connections", "OSError"),
    *((task, "PersistenceError") for task in ("feed the page", "move incoming work", "watch users' commits")),
}
"""Errors that such a task expects, and goes on after by itself."""
PAUSES = (
    "coterie.transport.tls._LOOKED_EVERY_S",
    "coterie.web.server._TICK_S",
    "coterie.web.feed.SAMPLED_S",
    "coterie.entities.persisted.commit_watcher._AWAY_S",
    "coterie.cli.run.reporter._LOOK_S",
    "coterie.cli.run.supervisor.WATCH_S",
)


def test_each_standing_task_is_struck_here_or_in_the_simulator() -> None:
    assert CASES.keys() == ELSEWHERE


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # see its end
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("task", CASES)
async def test_one_error_of_any_kind_does_not_end_it(
    task: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for pause in PAUSES:
        monkeypatch.setattr(pause, 0.01)
    failures = metrics.TASK_FAILURES.of(task).value
    strikes = Strikes(ERRORS[error])
    try:
        async with asyncio.timeout(120), CASES[task](tmp_path) as progress:
            await progress()
            strikes.wanted = {task}
            while task not in strikes.went_on:
                await progress()
            await progress()
    finally:
        chaos.install(None)
    for record in caplog.records:  # their frames have a socket that was just accepted when the error struck:
        record.exc_info = record.args = None
    gc.collect()  # it is found here, not in a later test
    if (task, error) not in DEALT_WITH:
        assert metrics.TASK_FAILURES.of(task).value == failures + 1
