"""A process that dies by SIGKILL at a moment of a message's or a tick's path: "before commit 3", "after claim".

Or of a workflow's, whose statements have names that others have, too: "before units.step 3".

Before: nothing of the statement has left. During: it was sent, and whatever came of it, no answer was read. After: the
answer was read, and nobody has heard of it. Or it freezes, "halt commit": just before, with the statement in its hand;
what comes of that when it is thawed, it notes.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import coterie.program
from coterie.client import system_parts
from coterie.storage.contracts.messages import Commit, Insert
from tests.cluster.bank_program import note
from tests.support.waiters import pass_on

if TYPE_CHECKING:
    from coterie.client import ClientParts
    from coterie.settings import Settings
    from coterie.storage.interface import Storage

DURING_S = 0.0005


def install(moment: str, *, about: str = "") -> None:
    """Let this process die at a moment; only statements that mention this are counted."""
    when, method, count = [*moment.split(), "1"][:3]
    dying = Dying(when, method, int(count), about)

    def parts(settings: Settings) -> ClientParts:
        real = system_parts(settings)
        return replace(real, open_storage=lambda incarnation: dying.storage(real.open_storage(incarnation)))

    coterie.program.system_parts = parts  # type: ignore[attr-defined]  # in this process alone


class Dying:
    """Counts the calls of one method and dies at one of them."""

    def __init__(self, when: str, method: str, count: int, about: str) -> None:
        self._when = when
        self._part, _, self._method = method.rpartition(".")
        self._left = count
        self._about = about

    def storage(self, storage: Storage) -> Storage:
        """A storage on which this process dies."""
        parts = [getattr(storage, self._part)] if self._part else [storage.messages, storage.states, storage.ticks]
        for part in parts:
            method = getattr(part, self._method, None)
            if method is not None:
                setattr(part, self._method, self._mortal(method))
        kind = {"insert": Insert, "commit": Commit}.get(self._method)
        if kind is not None and storage.messages in parts:  # calls and the ends of handlers do so without a future
            storage.messages.save = self._mortal_save(storage.messages.save, kind)  # type: ignore[method-assign]
        return storage

    def _mortal(self, method: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if not self._has_come(args):
                return method(*args, **options)
            doing = asyncio.ensure_future(method(*args, **options))
            doing.add_done_callback(self._told)  # the first to be told
            return doing

        return call

    def _mortal_save(self, save: Any, kind: type) -> Any:
        def call(write: Any, waiter: Any) -> None:
            if not isinstance(write, kind) or not self._has_come((write,)):
                save(write, waiter)
                return
            doing = asyncio.get_running_loop().create_future()
            doing.add_done_callback(self._told)
            doing.add_done_callback(partial(pass_on, waiter))
            save(write, doing)

        return call

    def _has_come(self, args: tuple[Any, ...]) -> bool:
        """Whether this is the moment; if it is one before a statement, this is the end."""
        counts = self._about in repr(args)
        self._left -= counts
        if self._left or not counts:
            return False
        if self._when == "before":
            die()
        elif self._when == "during":
            asyncio.get_running_loop().call_later(DURING_S, die)
        elif self._when == "halt":
            os.kill(os.getpid(), signal.SIGSTOP)
        return True

    def _told(self, doing: asyncio.Future[Any]) -> None:
        if self._when == "halt":
            note("halted", outcome=str(doing.exception() or doing.result()))
        else:
            die()


def die() -> None:
    """Like a power cut."""
    os.kill(os.getpid(), signal.SIGKILL)
