"""Who waits for the ends of jobs, and the ends that came before the question. Bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from coterie.tasks.frames import LOOK

if TYPE_CHECKING:
    from collections.abc import Callable

    Answer: TypeAlias = Callable[[bytes], None]

_WAITERS_MOST = 100_000
_ENDS_MOST = 4_096
_REPLY_MOST = 1_024
"""Bytes of a reply that is kept for a question to come."""


class JobWaiters:
    """Those who wait for the ends of jobs of one seat."""

    def __init__(self) -> None:
        self._waiters: dict[str, list[Answer]] = {}
        self._ends: dict[str, bytes] = {}
        """The last ends, the oldest first."""

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, job: str, answer: Answer) -> None:
        """Answer when a job is over: at once if it is."""
        if (reply := self._ends.get(job)) is not None:
            answer(reply)
        elif len(self._waiters) >= _WAITERS_MOST:
            answer(LOOK)
        else:
            self._waiters.setdefault(job, []).append(answer)

    def remove(self, job: str, answer: Answer) -> None:
        """No caller waits for this answer any more."""
        waiting = self._waiters.get(job, [])
        if answer in waiting:
            waiting.remove(answer)
            if not waiting:
                del self._waiters[job]

    def end(self, job: str, reply: bytes | None) -> None:
        """A job is over. None: its reply is in storage only."""
        for answer in self._waiters.pop(job, ()):
            answer(LOOK if reply is None else reply)
        self._ends.pop(job, None)
        self._ends[job] = LOOK if reply is None or len(reply) > _REPLY_MOST else reply
        if len(self._ends) > _ENDS_MOST:
            del self._ends[next(iter(self._ends))]

    def look(self, job: str) -> None:
        """A job may be over: who waits for it reads storage."""
        for answer in self._waiters.pop(job, ()):
            answer(LOOK)

    def reopen(self, job: str) -> None:
        """A job is ready, perhaps again."""
        self._ends.pop(job, None)

    def answer_all(self, body: bytes) -> None:
        """Answer all: the seat is held elsewhere from now on."""
        waiters, self._waiters = self._waiters, {}
        for waiting in waiters.values():
            for answer in waiting:
                answer(body)
