"""Guards against forked children and other event loops [P13]: objects opened elsewhere refuse to work."""

from __future__ import annotations

import asyncio
import os
import threading  # noqa: TID251 the names of threads only, for an error
import weakref
from typing import Protocol

from coterie.errors import Forked, WrongLoop

_running_loop = asyncio._get_running_loop  # noqa: SLF001 documented; unlike its sister it does not raise without a loop
_here = os.getpid()
"""The id of this process: cached, since a system call for each call of an entity would be too slow."""


class ProcessOrigin:
    """The process, and if it was opened there the event loop, in which `what` was made or opened.

    A child has the memory of its parent, but neither its threads nor its file locks, and its sockets are the same
    two ends that the parent talks through. So a child must neither use nor close what its parent opened. On another
    loop of the same process, usually in another thread, nothing would wake the waiters.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = _here
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = ""

    def set(self) -> None:
        """Record that it is opened now, here: what was merely made in the parent may be opened by a child."""
        self._pid = _here
        self._loop = _running_loop()
        self._thread = threading.current_thread().name

    @property
    def is_this_process(self) -> bool:
        """Whether it was made or opened in this process."""
        return self._pid == _here

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop on which it was opened; None: it was not opened on one."""
        return self._loop

    def require_same(self) -> None:
        """Raise `Forked` in a child of the process that opened it."""
        if self._pid != _here:
            raise Forked(what=self._what, parent=self._pid, child=_here)

    def require_same_loop(self) -> None:
        """Raise `Forked` as above, and `WrongLoop` on another loop than the one on which it was opened.

        Without a running loop nothing can be awaited: what needs none may be called anywhere.
        """
        self.require_same()
        if self._loop is not (running := _running_loop()) and running is not None and self._loop is not None:
            raise WrongLoop(what=self._what, owner=self._thread, here=threading.current_thread().name)


class ForkClosed(Protocol):
    """Something with a descriptor."""

    def fileno(self) -> int:
        """Its descriptor, or -1 once that is closed."""
        ...


_plugged: weakref.WeakSet[ForkClosed] = weakref.WeakSet()


def watch(plugged: ForkClosed) -> None:
    """Take its descriptor away in forked children, for as long as the object lives."""
    _plugged.add(plugged)


def _forked() -> None:
    global _here
    _here = os.getpid()
    _unplug()


def _unplug() -> None:
    # The descriptors are redirected instead of being closed. A database driver says goodbye to the server when it drops
    # a connection, and an event loop removes a descriptor from the epoll set that it shares with the parent: both would
    # reach the parent's connection. On /dev/null they reach nothing.
    nothing = os.open(os.devnull, os.O_RDWR)
    for plugged in list(_plugged):
        if (descriptor := plugged.fileno()) >= 0:
            os.dup2(nothing, descriptor)
    os.close(nothing)


os.register_at_fork(after_in_child=_forked)
