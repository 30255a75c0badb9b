"""The first witness [M2]: whether a runner's process is alive, by a lock that ends with the process.

It is a `flock` on one file per incarnation beside the database, since a POSIX lock would be dropped by the first check
from the same process [m5]. A check takes the lock shared and for an instant, so that concurrent checks do not see each
other. The process that deletes a runner's row removes the file. A runner keeps its lock from its first session to its
end (`SqliteOwners.presence`), so a file without a lock proves that its process is gone.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import threading
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from coterie.errors import PersistenceError
from coterie.kernel import fork_guard
from coterie.storage.sqlite.file.location import beside

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from contextlib import AbstractAsyncContextManager

_TRIES = 1000
_PAUSE_S = 0.001
"""A check holds the lock for some microseconds: a runner that wants to keep it retries for a second."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Witness(Protocol):
    """Knows which runners' processes are alive."""

    @property
    def server(self) -> str:
        """Identifies this boot of the machine, with which all locks end."""
        ...

    @property
    def is_proof(self) -> bool:
        """Whether a missing lock proves a death, without a second witness."""
        ...

    @property
    def up_s(self) -> float:
        """How long all runners have been able to hold locks."""
        ...

    def taken(self, incarnation: str) -> AbstractAsyncContextManager[bool]:
        """Hold the sign of life during the block (reentrant). Yields whether it is the incarnation's first."""
        ...

    def held(self, incarnations: Iterable[str]) -> frozenset[str]:
        """Return the incarnations whose sign of life is present."""
        ...

    def gone(self, incarnations: Iterable[str]) -> frozenset[str]:
        """Return the incarnations whose process is proved to be gone."""
        ...

    def remove(self, incarnation: str) -> None:
        """Forget an incarnation whose row was deleted."""
        ...


class MemoryWitness:
    """For a database in memory, which no other process shares."""

    server = "memory"
    is_proof = False
    up_s = math.inf

    def __init__(self) -> None:
        self._taken: list[str] = []

    @asynccontextmanager
    async def taken(self, incarnation: str) -> AsyncIterator[bool]:
        """Be present during the block."""
        self._taken.append(incarnation)
        try:
            yield False
        finally:
            self._taken.remove(incarnation)

    def held(self, incarnations: Iterable[str]) -> frozenset[str]:
        """Return the incarnations whose sign of life is present."""
        return frozenset(incarnations) & frozenset(self._taken)

    def gone(self, incarnations: Iterable[str]) -> frozenset[str]:
        """Return none: all live in this process."""
        del incarnations
        return frozenset()

    def remove(self, incarnation: str) -> None:
        """Do nothing: there is no file."""


class FlockWitness:
    """Signs of life as locks on files beside the database.

    Args:
        database: The main file.
        cluster: Part of the names: clusters in one file are independent [m7].
    """

    is_proof = True
    up_s = math.inf

    def __init__(self, database: Path, *, cluster: str) -> None:
        self.server = boot_id()
        self._stem = f"-runner-{cluster}-"
        self._database = database
        self._signs: dict[str, _Sign] = {}
        self._changing = threading.Lock()  # sessions are on several loops

    @asynccontextmanager
    async def taken(self, incarnation: str) -> AsyncIterator[bool]:
        """Hold the lock during the block. Raises `PersistenceError` if another process holds it."""
        fresh = not self._path(incarnation).exists()
        for _ in range(_TRIES):
            if self._take(incarnation):
                break
            await asyncio.sleep(_PAUSE_S)
        else:
            path = self._path(incarnation)
            raise PersistenceError(doing=f"lock {path}", problem="another process holds it", outcome="unreachable")
        try:
            yield fresh
        finally:
            self._let_go(incarnation)

    def held(self, incarnations: Iterable[str]) -> frozenset[str]:
        """Return the incarnations whose file is locked."""
        return frozenset(each for each in incarnations if _lock_of(self._path(each)) == "held")

    def gone(self, incarnations: Iterable[str]) -> frozenset[str]:
        """Return the incarnations whose file is unlocked. A missing file proves nothing: it may have been deleted."""
        return frozenset(each for each in incarnations if _lock_of(self._path(each)) == "free")

    def remove(self, incarnation: str) -> None:
        """Remove the file of an incarnation whose row is gone. A lock on it persists, but has no effect."""
        with suppress(OSError):  # it may be gone, or another user's: it has no meaning any more
            self._path(incarnation).unlink()

    def _take(self, incarnation: str) -> bool:
        with self._changing:
            sign = self._signs.get(incarnation)
            if sign is None:
                sign = _Sign.locked(self._path(incarnation))
            if sign is None:
                return False
            sign.holders += 1
            self._signs[incarnation] = sign
            return True

    def _let_go(self, incarnation: str) -> None:
        with self._changing:
            sign = self._signs[incarnation]
            sign.holders -= 1
            if sign.holders == 0:
                del self._signs[incarnation]
                sign.close()

    def _path(self, incarnation: str) -> Path:
        assert incarnation.isalnum(), f"{incarnation!r} is no incarnation"
        return beside(self._database, [self._stem + incarnation])[0]


class _Sign:
    """A locked file. Closed in a forked child, which would otherwise keep the lock."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.holders = 0
        fork_guard.watch(self)

    @classmethod
    def locked(cls, path: Path) -> _Sign | None:
        """Open and lock the file; None: it is locked at the moment."""
        try:
            sign = cls(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise PersistenceError(doing=f"open {path}", problem=str(error), outcome="unreachable") from error
        try:
            fcntl.flock(sign, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sign.close()
            return None
        return sign

    def fileno(self) -> int:
        """The descriptor, or -1 once it is closed."""
        return self._descriptor

    def close(self) -> None:
        """Release the lock."""
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


@cache
def boot_id() -> str:
    """Identifies this boot of the machine; empty where the system does not tell."""
    try:
        return _BOOT_ID.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _lock_of(path: Path) -> Literal["held", "free", "missing"]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return "missing"
    except OSError:
        return "held"  # unknown is not a sign of death
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # Closing alone is not enough: a process forked in between has the descriptor too, and would keep the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return "held"
    finally:
        os.close(descriptor)
    return "free"
