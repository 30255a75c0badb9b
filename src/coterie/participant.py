"""Which runner or client a `Cluster` acts through: the one of this process, or the one whose work is running."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from coterie.entities.persisted.outcome import refuse_commit_of_its_own
from coterie.errors import NotStarted
from coterie.kernel.service import State
from coterie.kv.store import claim_here
from coterie.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coterie.client import Client
    from coterie.storage.interface import Claim

C = TypeVar("C", bound="Client")

_current: ContextVar[tuple[Participant, Client] | None] = ContextVar("coterie_acting", default=None)
"""Set inside work: its cluster's participant, and the runner that does it. So runners can share one `Cluster`."""

_STOPPED = State.STOPPED  # read by each call: looking up an enum member takes longer


class Participant:
    """The runner or client through which the methods of one `Cluster` act.

    Args:
        name: The name of the cluster.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: Client | None = None

    # Who it is

    def acting(self) -> Client:
        """The runner or client to act through. On the path of each call, so `present` is written out here.

        Raises:
            NotStarted: There is none, or it has stopped.
            StorageReplaced: It was a runner, and stopped because its database file was replaced.
        """
        current = _current.get()
        running = current[1] if current is not None and current[0] is self else self._running
        if running is None or running.state is _STOPPED:
            if isinstance(running, Runner) and running.lost is not None:
                raise running.lost
            raise NotStarted(what=f"cluster {self._name!r}")
        running.origin.require_same_loop()
        return running

    def writing(self, what: str) -> Client:
        """The same, for a write that commits by itself.

        Raises:
            RuntimeError: The current work has a transaction open.
        """
        if not self.is_elsewhere():
            refuse_commit_of_its_own(what)
        return self.acting()

    def claim(self) -> Claim | None:
        """The claim that the current work must prove when it writes a key; None outside of this cluster's work.

        Raises:
            RuntimeError: The work has a transaction open.
        """
        if self.is_elsewhere():
            return None
        refuse_commit_of_its_own("a write to cluster.kv", instead="or write a table of your own in it")
        return claim_here()

    def present(self) -> Client | None:
        """The runner or client to act through, whatever its state; None: there is none."""
        current = _current.get()
        return (current[1] if current is not None and current[0] is self else None) or self._running

    def is_elsewhere(self) -> bool:
        """Whether the current work is another cluster's, whose transactions hold nothing of this one."""
        current = _current.get()
        return current is not None and current[0] is not self

    # How it becomes that

    def bind(self, make: Callable[[], C]) -> C:
        """Make the runner or client to act through from now on.

        Raises:
            RuntimeError: There is one already that has not stopped.
        """
        running = self.present()
        if running is not None and running.state is not _STOPPED and running.origin.is_this_process:
            how = "started already, as a runner" if isinstance(running, Runner) else "connected already, as a client"
            raise RuntimeError(
                f"{running.what} is {how}: stop that first, or make another Cluster; its methods work as it is"
            )
        made = make()
        self._running = made
        return made

    @contextmanager
    def bound(self, make: Callable[[], C]) -> Iterator[C]:
        """The same until the block ends."""
        made = self.bind(make)
        try:
            yield made
        finally:
            if self._running is made:
                self._running = None

    def enter(self, running: Client) -> None:
        """Act through it in the current context, and so in all tasks that are started here."""
        _current.set((self, running))

    @contextmanager
    def entering(self) -> Iterator[None]:
        """Undo `enter` when the block ends."""
        before = _current.get()
        try:
            yield
        finally:
            _current.set(before)
