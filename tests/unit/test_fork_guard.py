"""Forked children: what they inherit refuses to work, and its descriptors lead nowhere (P13)."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from coterie.errors import Forked
from coterie.kernel import fork_guard

if TYPE_CHECKING:
    from collections.abc import Callable


def in_a_child(work: Callable[[], bool]) -> bool:
    """Whether `work` is true in a forked child. Nothing of pytest may run there."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def refused(origin: fork_guard.ProcessOrigin) -> bool:
    try:
        origin.require_same()
    except Forked as error:
        return error.parent == os.getppid() and error.child == os.getpid() and error.what == "the storage"
    return False


def test_a_child_is_refused_and_told_who_opened_it() -> None:
    origin = fork_guard.ProcessOrigin("the storage")
    origin.require_same()
    assert in_a_child(lambda: refused(origin))
    origin.require_same()


def test_a_child_may_open_what_was_only_made_in_the_parent() -> None:
    origin = fork_guard.ProcessOrigin("the storage")

    def opens() -> bool:
        origin.set()
        origin.require_same()
        return True

    assert in_a_child(opens)


class _Plugged:
    def __init__(self, number: int) -> None:
        self.number = number

    def fileno(self) -> int:
        return self.number


def test_a_childs_copy_of_a_socket_leads_nowhere_and_the_parents_goes_on() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        plugged = _Plugged(ours.fileno())
        fork_guard.watch(plugged)
        assert in_a_child(lambda: os.write(ours.fileno(), b"from the child") > 0)
        ours.send(b"from the parent")
        assert theirs.recv(100) == b"from the parent"


@pytest.mark.parametrize("how", ["closed", "forgotten"])
def test_what_is_closed_or_forgotten_is_left_alone(how: str) -> None:
    """Its number may be another file's by now."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        plugged = _Plugged(ours.fileno())
        fork_guard.watch(plugged)
        plugged.number = -1
        if how == "forgotten":
            plugged.number = ours.fileno()
            del plugged
        assert in_a_child(lambda: ours.send(b"here") == 4)
        assert theirs.recv(100) == b"here"
