"""Planted bugs of the threads of plain functions, which the rounds of `thread_rounds` must find: kept for ever (T7)."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING
from unittest.mock import patch

from coterie.work.threads import ThreadBody, ThreadPool
from tests.unit.work.thread_rounds import Round

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEEDS_MOST = 100


def found_after(planted: Callable[[], AbstractContextManager[object]]) -> int | None:
    """How many rounds it took; None: it was not found."""
    with planted():
        for seed in range(SEEDS_MOST):
            try:
                asyncio.run(Round(seed).play())
            except AssertionError:
                return seed + 1
    return None


@contextmanager
def _second_attempt_beside_the_first() -> Iterator[None]:
    with patch.object(ThreadPool, "_turn", lambda self, alone: nullcontext()):
        yield


@contextmanager
def _slot_freed_at_the_time_out() -> Iterator[None]:
    cancel, ended = ThreadPool.cancel, ThreadPool._ended

    def wrong(self: ThreadPool, body: ThreadBody) -> None:
        cancel(self, body)
        if body.has_begun:
            self._running.pop(body, None)
            self._threads -= 1  # its thread counts as free too
            self._fill()

    def again(self: ThreadPool, body: ThreadBody) -> None:
        self._running.setdefault(body)
        ended(self, body)

    with patch.object(ThreadPool, "cancel", wrong), patch.object(ThreadPool, "_ended", again):
        yield


@contextmanager
def _reply_kept_although_cancelled() -> Iterator[None]:
    ended = ThreadBody.ended

    async def wrong(self: ThreadBody) -> None:
        try:
            await ended(self)
        except asyncio.CancelledError:
            if not self.has_begun:
                raise

    with patch.object(ThreadBody, "ended", wrong):
        yield


@contextmanager
def _attempt_over_at_its_cancellation() -> Iterator[None]:
    async def wrong(self: ThreadBody) -> None:
        self.waiter = asyncio.get_running_loop().create_future()
        try:
            await self.waiter
        except asyncio.CancelledError:
            self.pool.cancel(self)
            raise

    with patch.object(ThreadBody, "ended", wrong):
        yield


@contextmanager
def _cancelled_before_it_began_and_run_all_the_same() -> Iterator[None]:
    cancel = ThreadPool.cancel

    def wrong(self: ThreadPool, body: ThreadBody) -> None:
        if body.has_begun:
            cancel(self, body)
        else:
            body.end()

    with patch.object(ThreadPool, "cancel", wrong):
        yield


@contextmanager
def _cancelled_and_not_told() -> Iterator[None]:
    cancel = ThreadPool.cancel

    def wrong(self: ThreadPool, body: ThreadBody) -> None:
        if not body.has_begun:
            cancel(self, body)

    with patch.object(ThreadPool, "cancel", wrong):
        yield


PLANTS = {
    "second attempt beside the first": _second_attempt_beside_the_first,
    "slot freed at the time-out": _slot_freed_at_the_time_out,
    "reply kept although cancelled": _reply_kept_although_cancelled,
    "attempt over at its cancellation": _attempt_over_at_its_cancellation,
    "cancelled before it began, and run": _cancelled_before_it_began_and_run_all_the_same,
    "cancelled and not told": _cancelled_and_not_told,
}


def main() -> int:
    """Plant each bug and print after how many rounds it was found; 0 if all were."""
    logging.getLogger("coterie").addHandler(logging.NullHandler())
    missed = 0
    for name, planted in PLANTS.items():
        rounds = found_after(planted)
        missed += rounds is None
        found = f"✗ not within {SEEDS_MOST} rounds" if rounds is None else f"✓ {rounds} rounds"
        print(f"{name:<46}{'threads':<14}{'thread_rounds':<16}{found}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
