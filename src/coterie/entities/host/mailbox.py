"""Mailbox: the calls that wait for one entity. It exists only while calls wait: most entities never need one."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coterie.entities.host.work import Work


class Mailbox:
    """A bounded first-in, first-out queue.

    Args:
        most: The maximum number of waiting calls.

    Promise:
        It never holds more than `most` calls, and never returns a call that it refused [INV-E4].
    """

    __slots__ = ("_most", "_waiting")

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[Work] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Work]:
        return iter(self._waiting)

    def put(self, work: Work) -> bool:
        """Queue a call. Returns False if the mailbox is full, even without the calls whose callers no longer wait."""
        if len(self._waiting) >= self._most:
            self._waiting = deque(each for each in self._waiting if each.is_open)
        if len(self._waiting) >= self._most:
            return False
        self._waiting.append(work)
        return True

    def pop(self) -> Work | None:
        """The next call whose caller still waits. Returns None if there is none."""
        while self._waiting:
            work = self._waiting.popleft()
            if work.is_open:
                return work
        return None

    def pop_all(self) -> list[Work]:
        """All calls whose callers still wait, in order."""
        taken = [work for work in self._waiting if work.is_open]
        self._waiting.clear()
        return taken

    def pop_expired(self, now_s: float) -> tuple[list[Work], float]:
        """The calls whose deadline has passed, and the earliest deadline of the others."""
        expired = [work for work in self._waiting if work.is_open and work.deadline_s <= now_s]
        if expired:
            self._waiting = deque(work for work in self._waiting if work.is_open and work.deadline_s > now_s)
        return expired, min((work.deadline_s for work in self._waiting), default=math.inf)
