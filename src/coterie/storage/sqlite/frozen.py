"""Processes that stand still inside a write transaction and so keep everybody else from writing [C3].

Nothing but their end frees the lock. The kernel names the process that holds it; that one is ended if it is a runner
whose lease has not moved for its whole time, and if the setting allows it. Anybody else is named in the log.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from coterie.storage.sqlite import leases, locks, seats

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.storage.sqlite.database import Database
    from coterie.storage.sqlite.desk import Desk
    from coterie.storage.sqlite.leases import Boot

    Mark = tuple[str, tuple[int, ...]]

log = logging.getLogger("coterie")

_LOOKS = 5
_LOOK_S = 0.02
"""A busy process is met with the lock now and then, a frozen one at every look."""


class Frozen:
    """Finds who is in the way of one runner's ownership, and ends it where that is right.

    Args:
        database: Knows who holds the locks of its two files.
        kill: The setting `sqlite_kill_frozen`.
    """

    def __init__(self, database: Database, *, kill: bool) -> None:
        self._database = database
        self._kill = kill
        self._named: set[str] = set()
        self._mark: Mark | None = None
        self._since_ns = 0

    def end_victim(self, desk: Desk, boot: Boot, victim: str) -> bool:
        """End the process that holds the main file's lock if it is the victim's; whether it was.

        All runners of that process must have run out: one that was evicted lives on as another incarnation.
        """
        process = standing(self._database.write_lock_holder)
        if not process:
            return False
        runners = seats.runners_of(desk.main, process)
        if not any(runner == victim for _, runner in runners):
            self._name(process)
            return False
        return all(_lease(desk, boot, *each).expired for each in runners) and self._end(process)

    def blocks_leases(self, desk: Desk, boot: Boot, *, ttl_s: float) -> None:
        """A renewal was refused the leases' lock: end who holds it if that runner has not moved for a whole TTL."""
        process = standing(self._database.leases_lock_holder)
        if not process:
            self._mark = None
            return
        runners = seats.runners_of(desk.main, process)
        if not runners:
            self._name(process)
            return
        mark = process, tuple(_lease(desk, boot, *each).counter for each in runners)
        if mark != self._mark:
            self._mark, self._since_ns = mark, boot.now_ns
        elif boot.now_ns - self._since_ns >= ttl_s * 1e9:
            self._end(process)

    def _end(self, process: str) -> bool:
        said = locks.described(_pid(process))
        if not self._kill or not locks.end(process):
            self._name(process)
            return False
        log.warning("%s stood still inside a commit and held up all others: it was ended", said)
        return True

    def _name(self, process: str) -> None:
        """Say once who is in the way, and what helps."""
        if process in self._named:
            return
        self._named.add(process)
        pid = _pid(process)
        log.warning(
            "%s holds the write lock of %s and holds up others: let it go on (kill -CONT %d) or end it (kill -KILL %d)",
            locks.described(pid), self._database.address, pid, pid,
        )  # fmt: skip


def standing(holder: Callable[[], int | None]) -> str:
    """The one process that holds the lock at every look; empty if there is none."""
    seen = set()
    for look in range(_LOOKS):
        if look:
            time.sleep(_LOOK_S)
        pid = holder()
        seen.add("" if pid is None else locks.process_of(pid))
        if "" in seen or len(seen) > 1:
            return ""
    return seen.pop()


def _pid(process: str) -> int:
    return int(process.partition(":")[0])


def _lease(desk: Desk, boot: Boot, cluster: str, runner: str) -> leases.Lease:
    there = leases.Boot(cluster, boot.id, boot.now_ns)
    return leases.read(desk.leases, there).get(runner, leases.NONE)
