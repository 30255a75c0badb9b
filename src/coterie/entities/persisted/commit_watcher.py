"""Learns the end of users' own transactions, in which messages were stored, and wakes the owners after a commit (O1).

    stored ──▶ watched ──asked after 2 to 20 ms, all in one statement──▶ committed: the owners poll storage
                  │                                                └──▶ rolled back: nothing
                  └── this process dies, or too many are open ──▶ the owners' own polls find the messages, within 1 s

A notification in the user's transaction would be simpler. It costs up to half of the user's commits, since the server
commits those that notify one after another, and forbids prepared transactions.

Owners are asked to poll, never given the message: with a savepoint rolled back it may not be stored though the
transaction has committed.
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from coterie.errors import PersistenceError
from coterie.kernel.service import Tasks
from coterie.work.limits import set_within

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable

    from coterie.kernel.supervisor import Supervisor
    from coterie.storage.contracts.user_writes import UserWrites

log = logging.getLogger("coterie.entities")

_PAUSE_S, _PAUSE_MOST_S = 0.002, 0.02
"""Between two questions while a transaction is young; each pause is twice as long as the one before."""
_YOUNG_S = 10.0
"""Older ones are asked for less and less often: after a five-hundredth of their age, to one second."""
_FORGOTTEN_S = 3600.0
_OPEN_MOST = 10_000
_AWAY_S = 0.5

News = tuple[str, str]
"""A seat that has something new, and the workflow that it is; empty: messages."""


class WatchedTransaction(Struct, eq=False):
    """A user's transaction in which something was stored."""

    began_s: float
    messages: set[str]
    news: set[News]


class CommitWatcher:
    """Watches the users' transactions of one process.

    Args:
        writes: Tells which transactions have ended.
        wake: Wakes the holders of seats.
        supervisor: The supervisor of this process.

    Not promised:
        That the holders are woken: it is a hint. What is stored is found without it.
    """

    def __init__(
        self,
        writes: UserWrites,
        *,
        wake: Callable[[Collection[News]], Coroutine[Any, Any, object]],
        supervisor: Supervisor,
    ) -> None:
        self._writes = writes
        self._wake = wake
        self._supervisor = supervisor
        self._tasks = Tasks("commits of users")
        self._watched: dict[str, WatchedTransaction] = {}
        self._changed = asyncio.Event()
        self._pause_s = _PAUSE_S
        self._is_started = False

    def watch(self, transaction: str, news: Iterable[News], *, messages: Iterable[str] = ()) -> None:
        """Wake the holders of these seats when a transaction has committed.

        Args:
            transaction: The transaction, as the database names it.
            news: The seats, and what is new.
            messages: The ids of the messages that it stores, for `is_open`.
        """
        found = self._watched.get(transaction)
        if found is None:
            if len(self._watched) >= _OPEN_MOST:
                return
            found = self._watched[transaction] = WatchedTransaction(asyncio.get_running_loop().time(), set(), set())
        found.messages.update(messages)
        found.news.update(news)
        self._pause_s = _PAUSE_S
        self._changed.set()
        if not self._is_started:
            self._is_started = True
            # In a context of its own: what the first sender's context has is not for what is done here.
            context = Context()
            self._tasks.supervise(
                self._ask_on, name="watch users' commits", supervisor=self._supervisor, context=context
            )

    def is_open(self, message_id: str) -> bool:
        """Whether a message was stored in a transaction of which no end is known."""
        return any(message_id in each.messages for each in self._watched.values())

    async def stop(self) -> None:
        """Stop watching."""
        await self._tasks.stop()

    async def _ask_on(self) -> None:
        while True:
            while not self._watched:
                self._changed.clear()
                await self._changed.wait()
            await self._pause()
            try:
                ended = await self._writes.ended(list(self._watched))
            except PersistenceError as error:
                log.info("whether users' transactions have committed is not known, and asked again soon: %s", error)
                await asyncio.sleep(_AWAY_S)
                continue
            over = {each: self._watched.pop(each) for each in ended}
            news = {told for each, found in over.items() if ended[each] for told in found.news}
            if news:
                self._tasks.spawn(self._wake(news), name="wake holders", report=False)

    async def _pause(self) -> None:
        """Wait until it is worth asking again; a new transaction shortens that."""
        now_s = asyncio.get_running_loop().time()
        for each in [each for each, found in self._watched.items() if now_s - found.began_s > _FORGOTTEN_S]:
            del self._watched[each]
        age_s = min((now_s - found.began_s for found in self._watched.values()), default=0.0)
        pause_s = self._pause_s if age_s < _YOUNG_S else min(age_s / 500, 1.0)
        self._pause_s = min(self._pause_s * 2, _PAUSE_MOST_S)
        self._changed.clear()
        if await set_within(self._changed, pause_s):
            await asyncio.sleep(_PAUSE_S)
