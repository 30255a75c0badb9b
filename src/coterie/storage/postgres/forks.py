"""Forked children [P13]: what they inherit from us refuses to work, and cannot hurt the parent's sessions."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from coterie.errors import Forked


class Plugged(Protocol):
    """Something with a socket."""

    def fileno(self) -> int:
        """Its descriptor, or -1."""
        ...


_plugged: weakref.WeakSet[Plugged] = weakref.WeakSet()


class Guard:
    """Remembers the process it was made in; `check` refuses to work in any other."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    def check(self) -> None:
        """Raise `Forked` in a child process."""
        if (pid := os.getpid()) != self._pid:
            raise Forked(what=self._what, parent=self._pid, child=pid)


def watch(plugged: Plugged) -> None:
    """Take its socket away in forked children."""
    _plugged.add(plugged)


def _unplug() -> None:
    # The descriptors are pointed at nothing instead of being closed. The driver says goodbye to the server
    # when it drops a connection, and an event loop takes a descriptor out of the epoll set that it shares
    # with the parent: both would reach the parent's session. On /dev/null they reach nothing.
    nothing = os.open(os.devnull, os.O_RDWR)
    for plugged in list(_plugged):
        if (descriptor := plugged.fileno()) >= 0:
            os.dup2(nothing, descriptor)
    os.close(nothing)


os.register_at_fork(after_in_child=_unplug)
