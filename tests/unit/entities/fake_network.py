"""A caller's side without a network: who owns what, and what owners answer, is up to the test."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from coterie.errors import RunnerUnavailable, SendTimeout
from coterie.kernel.random import Random
from coterie.kernel.service import Tasks
from coterie.settings import Settings
from tests.support.manual_clock import ManualClock
from tests.support.waiters import pass_on
from tests.unit.entities.fake_storage import FakeStorage

if TYPE_CHECKING:
    from coterie.entities.host.host import Host

SEAT = "shard:default:1"
LOST = RunnerUnavailable(runner="peer", target="x", problem="it is gone", sent=True)


class FakeWires:
    """`Transport`, as far as stored messages need it. An answer is bytes, an error, or None: it never comes."""

    def __init__(self) -> None:
        self.answers: list[bytes | Exception | None] = []
        self.asked: list[bytes] = []
        self.notified: list[bytes] = []
        self.left: list[str] = []
        """What somebody has stopped waiting for."""
        self.takes = True
        """Whether there is a connection, for what does not wait for one."""
        self._tasks = Tasks("transport")

    async def request(self, peer: Any, route: int, body: bytes, *, within_s: float, target: object) -> bytes:
        self.asked.append(body)
        return await self._answer(within_s, target)

    async def _answer(self, within_s: float, target: object) -> bytes:
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, bytes):
            return answer
        if answer is None:
            await asyncio.sleep(within_s)
            raise SendTimeout(target=str(target), waited_s=within_s)
        raise answer

    def ask(
        self, peer: Any, route: int, body: bytes, *, within_s: float, target: object, answer: asyncio.Future[bytes]
    ) -> Any:
        if not self.takes:
            return None
        self.asked.append(body)
        task = self._tasks.spawn(self._answer(within_s, target), name="answer", report=False)
        task.add_done_callback(partial(_tell, answer))

        def leave() -> None:
            task.cancel()
            self.left.append(str(target))

        return SimpleNamespace(cancel=leave)

    def notify(self, peer: Any, route: int, body: bytes) -> bool:
        self.notified.append(body)
        return self.takes


def _tell(answer: asyncio.Future[bytes], task: asyncio.Task[bytes]) -> None:
    if not (answer.done() or task.cancelled()):
        pass_on(answer, task)


class FakeCalling:
    """`CallClient`, as far as stored messages need it: one shard, with an owner, here or elsewhere, or without."""

    def __init__(self, *, owner: str = "there", host: Host | None = None) -> None:
        self.storage = FakeStorage()
        self.transport = FakeWires()
        self.host = host
        self.clock = ManualClock()
        self.chance = Random(1)
        self.doubts = 0
        self.fresh_until_s = float("inf")
        self.owner = owner
        directory = SimpleNamespace(holder=lambda _: None)
        self.here = SimpleNamespace(
            commits=SimpleNamespace(is_open=lambda _: False),
            directory=directory,
            settings=Settings.load({"frame_limit": "64KiB"}, environ={}),
            incarnation="i",
        )
        self.routing = self

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def within_s(self, timeout_s: float | None) -> float:
        return 30.0 if timeout_s is None else timeout_s

    # As its own routing

    def of_seat(self, seat: str) -> Any:
        peer = "peer" if self.owner == "there" else None
        return SimpleNamespace(seat=seat, is_mine=self.owner == "here", peer=peer, epoch=7)

    def find(self, entity_type: str, entity_id: str, group: str) -> Any:
        return self.of_seat(SEAT)

    def refresh_soon(self) -> None:
        self.doubts += 1

    async def wait_for_change(self, *, within_s: float) -> None:
        await asyncio.sleep(within_s)
