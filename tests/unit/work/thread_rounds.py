"""Random rounds on the threads of plain functions: bodies come, are cancelled and end; what they did is judged (T7).

Each body notes when it begins and ends, in its thread. A round is drawn from its seed; which thread is quicker is not.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from coterie import current, within_cluster
from coterie.settings import Settings
from coterie.work.threads import ThreadPool, ThreadUse

if TYPE_CHECKING:
    from collections.abc import Callable

FAR_S = 120.0
BODIES = 12


@dataclass(eq=False)
class Body:
    """A plain function, and the attempt that waits for it."""

    name: str
    key: str | None
    begun: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)
    has_ended: bool = False
    was_told: bool = False
    cancelled_early: bool = False
    """Cancelled while it could not have begun: another one of its key runs, or no thread is free."""
    is_cancelled: bool = False
    attempt: asyncio.Task[str] | None = None


class Round:
    """One round. An `AssertionError` says which part of the promise is broken.

    Args:
        seed: Decides what is done, and in which order.
    """

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self._most = self._chance.randint(1, 3)
        self._lock = threading.Lock()
        self._running: Counter[str | None] = Counter()
        self._problems: list[str] = []
        self._bodies: list[Body] = []

    async def play(self) -> None:
        """Play it, and judge what has happened."""
        settings = Settings.load({"url": "sqlite://", "threads": self._most}, environ={})
        async with asyncio.timeout(FAR_S), ThreadPool(settings) as threads:
            try:
                for number in range(BODIES):
                    self._begin(threads, Body(str(number), self._chance.choice((None, "a", "b"))))
                    await self._settled()
                    act = self._chance.choice((self._cancel, self._end, lambda: None))
                    act()
                    await self._settled()
            finally:
                for body in self._bodies:
                    body.may_end.set()
            attempts = [body.attempt for body in self._bodies if body.attempt is not None]
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*attempts, return_exceptions=True)
            await self._until(lambda: threads.use() == ThreadUse())
            self._judge()

    def _begin(self, threads: ThreadPool, body: Body) -> None:
        async def attempt() -> str:
            try:
                with within_cluster(name=body.name):
                    return await threads.run(lambda: self._run(body), what=body.name, alone=body.key)
            finally:
                if body.begun.is_set() and not body.has_ended:
                    self._problems.append(f"the attempt of {body.name} is over before its body is")

        self._bodies.append(body)
        body.attempt = asyncio.create_task(attempt())

    def _run(self, body: Body) -> str:
        """The body, in its thread."""
        with self._lock:
            self._running[body.key] += 1
            if body.key is not None and self._running[body.key] > 1:
                self._problems.append(f"{body.name} runs beside another attempt of {body.key}")
            if self._running.total() > self._most:
                self._problems.append(f"{self._running.total()} run at once, the setting says {self._most}")
            if body.cancelled_early:
                self._problems.append(f"{body.name} runs, though it was cancelled before")
        body.begun.set()
        body.may_end.wait(FAR_S)
        with self._lock:
            self._running[body.key] -= 1
            body.was_told = current().cancelled
            body.has_ended = True
        return body.name

    def _cancel(self) -> None:
        waiting = [body for body in self._bodies if not body.is_cancelled and not self._is_over(body)]
        if waiting:
            body = self._chance.choice(waiting)
            body.is_cancelled = True
            body.cancelled_early = not body.begun.is_set() and self._could_not_begin(body)
            assert body.attempt is not None
            body.attempt.cancel()

    def _end(self) -> None:
        """Let one that runs return: it is as good as ended, in a moment."""
        running = [body for body in self._bodies if body.begun.is_set() and not body.may_end.is_set()]
        if running:
            self._chance.choice(running).may_end.set()

    def _could_not_begin(self, body: Body) -> bool:
        with self._lock:
            return bool(body.key and self._running[body.key]) or self._running.total() >= self._most

    def _is_over(self, body: Body) -> bool:
        return body.may_end.is_set() or (body.attempt is not None and body.attempt.done())

    async def _settled(self) -> None:
        """Let the loop and the threads do what they can: what runs has begun, what was let go has ended."""
        for _ in range(3):
            await asyncio.sleep(0)
        await self._until(
            lambda: all(body.has_ended for body in self._bodies if body.begun.is_set() and body.may_end.is_set())
        )
        for _ in range(3):
            await asyncio.sleep(0.0005)

    async def _until(self, condition: Callable[[], object]) -> None:
        while not condition() and not self._problems:
            await asyncio.sleep(0.0005)

    def _judge(self) -> None:
        for body in self._bodies:
            assert body.attempt is not None
            was_cancelled = body.attempt.cancelled()
            if body.is_cancelled and not was_cancelled:
                self._problems.append(f"{body.name} was cancelled, and its attempt has a result all the same")
            if body.is_cancelled and body.has_ended and not body.was_told:
                self._problems.append(f"{body.name} was not told that it is cancelled")
            if not body.is_cancelled and (was_cancelled or body.attempt.result() != body.name):
                self._problems.append(f"{body.name} has another result than its own")
        assert not self._problems, "; ".join(self._problems)
