"""Whatever implements `Service`, for `test_service` to hammer. A new service is added to `CASES`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette

from coterie.client import Client, system_parts
from coterie.kernel.clock import SystemClock
from coterie.kernel.random import Random
from coterie.kernel.service import Service, State
from coterie.ownership.machine_id import IdGenerator
from coterie.runner import Runner
from coterie.settings import Settings
from coterie.storage.engines import open_storage
from coterie.storage.group_commit import GroupWriter
from coterie.storage.interface import Machine
from coterie.transport.identity import Identity
from coterie.transport.peers import Peers
from coterie.transport.tcp import TcpWire
from coterie.web.server import HttpServer
from coterie.work.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from coterie.storage.interface import Write
    from coterie.transport.interface import Request


@dataclass(frozen=True)
class ServiceCase:
    """A kind of service: how to make one (not started), and how many random histories it can afford."""

    name: str
    make: Callable[[Path], Service]
    histories: int = 150


class Watched:
    """A service whose `_start` and `_stop` are counted, slowed down and made to fail from outside."""

    def __init__(
        self, service: Service, *, steps: int = 0, start_fails: bool = False, stop_fails: bool = False
    ) -> None:
        self.service = service
        self.starts = self.stops = self.stopped = 0
        self.starting = False
        self.entered = asyncio.Event()
        self.release = asyncio.Event()
        self.release.set()
        self.stop_entered = asyncio.Event()
        self.stop_release = asyncio.Event()
        self.stop_release.set()
        self._inner = (service._start, service._stop)
        self._steps, self._start_fails, self._stop_fails = steps, start_fails, stop_fails
        service._start = self._start  # type: ignore[method-assign]  # watched from outside, whatever it is
        service._stop = self._stop  # type: ignore[method-assign]  # as above

    async def _start(self) -> None:
        self.starts += 1
        self.starting = True
        self.entered.set()
        try:
            await self._pause(self.release)
            await self._inner[0]()
            await self._pause(self.release)
            if self._start_fails:
                raise ZeroDivisionError("start")
        finally:
            self.starting = False

    async def _stop(self) -> None:
        assert not self.starting, "_stop began before _start had ended"
        assert not len(self.service.tasks), "_stop began before the tasks had ended"
        self.stops += 1
        self.stop_entered.set()
        await self._pause(self.stop_release)
        await self._inner[1]()
        self.stopped += 1
        if self._stop_fails:
            raise OSError("stop")

    async def _pause(self, release: asyncio.Event) -> None:
        await release.wait()
        for _ in range(self._steps):
            await asyncio.sleep(0)

    def assert_over(self) -> None:
        """It lived at most once, ended as often as it began, and left nothing behind."""
        assert self.service.state is State.STOPPED
        assert self.starts <= 1
        assert self.stops == self.stopped == self.starts
        assert asyncio.all_tasks() == {asyncio.current_task()}


class Plain(Service):
    """Nothing of its own."""

    def __init__(self) -> None:
        super().__init__(what="plain")


class Busy(Service):
    """Takes a while for everything, and has tasks that clean up slowly and begin others while they do."""

    def __init__(self) -> None:
        super().__init__(what="busy")

    async def _start(self) -> None:
        for number in range(3):
            self.tasks.spawn(self._work(), name=f"work-{number}")
            await asyncio.sleep(0)

    async def _stop(self) -> None:
        self.tasks.spawn(asyncio.sleep(3600), name="forgotten")
        await asyncio.sleep(0)

    async def _work(self) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            self.tasks.spawn(asyncio.sleep(3600), name="left over")


class SelfStopping(Service):
    """Ends itself from one of its own tasks, as a service does that has lost its reason to live."""

    def __init__(self) -> None:
        super().__init__(what="self-stopping")

    async def _start(self) -> None:
        self.tasks.spawn(self._give_up(), name="give up")
        await asyncio.sleep(0)

    async def _give_up(self) -> None:
        try:
            for _ in range(10):
                await asyncio.sleep(0)
        finally:
            await self.stop()  # also while being cancelled: it must not wait for itself


async def _commit(group: Sequence[Write]) -> Sequence[Any]:
    await asyncio.sleep(0)
    return [None] * len(group)


def _sqlite(folder: Path) -> Service:
    settings = Settings.load({"url": f"sqlite:///{folder}/service.db"}, environ={})
    return open_storage(settings, incarnation="0" * 32, clock=SystemClock(), chance=Random())


def _client(_: Path) -> Service:
    settings = Settings.load({"url": "sqlite://"}, environ={})
    return Client(settings, system_parts(settings))


def _runner(_: Path) -> Service:
    settings = Settings.load({"url": "sqlite://", "shards": 2}, environ={})
    return Runner(settings, system_parts(settings))


def _ids(_: Path) -> Service:
    return IdGenerator(_Machines(), holder="0" * 32, clock=SystemClock())


class _Machines:
    async def lease(self, holder: str, *, ttl_s: float, until_ms: int) -> Machine | None:
        await asyncio.sleep(0)
        return Machine(0, 0)

    async def extend(self, id: int, holder: str, *, ttl_s: float, until_ms: int) -> bool:
        await asyncio.sleep(0)
        return True

    async def give_back(self, id: int, holder: str) -> None:
        await asyncio.sleep(0)


def _transport(_: Path) -> Service:
    return Peers(
        me=Identity("default", "0" * 32),
        wire=TcpWire(Settings.load({"url": "sqlite://"}, environ={})),
        handler=_Deaf(),
        secrets=_secrets,
        chance=Random(),
    )


async def _secrets() -> list[bytes]:
    await asyncio.sleep(0)
    return [bytes(32)]


class _Deaf:
    def on_request(self, request: Request) -> None: ...
    def on_cancel(self, request: Request) -> None: ...
    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None: ...


def _serving(_: Path) -> Service:
    return HttpServer(Starlette(), Settings.load({"http_listen": "127.0.0.1:0"}, {}))


CASES: list[ServiceCase] = [
    ServiceCase("plain", lambda _: Plain()),
    ServiceCase("busy", lambda _: Busy()),
    ServiceCase("self-stopping", lambda _: SelfStopping()),
    ServiceCase("group writer", lambda _: GroupWriter(_commit)),
    ServiceCase("SQLite storage", _sqlite, histories=10),
    ServiceCase("client", _client, histories=10),
    ServiceCase("runner", _runner, histories=10),
    ServiceCase("threads", lambda _: ThreadPool(Settings())),
    ServiceCase("ids", _ids),
    ServiceCase("transport", _transport, histories=50),
    ServiceCase("HTTP server", _serving, histories=10),
]
