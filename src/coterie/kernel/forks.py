"""Forked children [P13]: what they inherit from us refuses to work, and cannot hurt the parent's connections."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from coterie.errors import Forked

_here = os.getpid()
"""This process: kept, since asking costs a system call and each call of an entity would ask."""


class Origin:
    """The process in which `what` was made or opened.

    A child has the memory of its parent, but not its threads, nor its file locks, and its sockets are the same
    two ends that the parent talks through. So a child must neither use nor close what its parent opened.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = _here

    def set(self) -> None:
        """It is opened now, here: what was merely made in the parent may be opened by a child."""
        self._pid = _here

    def require_same(self) -> None:
        """Raise `Forked` in a child of the process that opened it."""
        if self._pid != _here:
            raise Forked(what=self._what, parent=self._pid, child=_here)


class Plugged(Protocol):
    """Something with a descriptor."""

    def fileno(self) -> int:
        """Its descriptor, or -1 once that is closed."""
        ...


_plugged: weakref.WeakSet[Plugged] = weakref.WeakSet()


def watch(plugged: Plugged) -> None:
    """Take its descriptor away in forked children, for as long as the object lives."""
    _plugged.add(plugged)


def _forked() -> None:
    global _here
    _here = os.getpid()
    _unplug()


def _unplug() -> None:
    # The descriptors are pointed at nothing instead of being closed. A database driver says goodbye to the server
    # when it drops a connection, and an event loop takes a descriptor out of the epoll set that it shares
    # with the parent: both would reach the parent's connection. On /dev/null they reach nothing.
    nothing = os.open(os.devnull, os.O_RDWR)
    for plugged in list(_plugged):
        if (descriptor := plugged.fileno()) >= 0:
            os.dup2(nothing, descriptor)
    os.close(nothing)


os.register_at_fork(after_in_child=_forked)
