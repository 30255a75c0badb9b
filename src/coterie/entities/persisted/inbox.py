"""StoredWork: a message from the database on its way through this runner; Shelf: what it knows of a shard's.

Deliveries: the stored messages that are in a runner's memory: queued, running, or due later.

    handed over ─┐
    swept ───────┴─▶ due? ──▶ host ──▶ ended: whoever waits is told
                      │         │
                  heap, to the  ├─▶ a defect: counted, due again later, or dead
                  millisecond   └─▶ no room, shard lost: left in storage, where the next sweep finds it

Promise:
    What is in memory is not begun a second time, and what ended since a sweep asked is not taken for new [M5].
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from coterie.entities.calls.wire import LOOK, described
from coterie.entities.host.work import Work
from coterie.entities.persisted.effects import BARE
from coterie.entities.persisted.suspects import Suspects
from coterie.errors import MailboxFull, MalformedMessage, NewerVersion, PersistenceError, RunnerFull, UnknownEntity
from coterie.kernel import metrics
from coterie.storage.contracts.messages import Setback

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.entities.host.host import Host
    from coterie.entities.persisted.receiver import Handover
    from coterie.errors import CoterieError
    from coterie.kernel.random import Random
    from coterie.ownership.seats import Tenure
    from coterie.storage.contracts.messages import Delivery, Mark, MessageStore, PendingMessages, Suffered

    Waiter = Callable[[bytes], None]


_EARLY_MOST = 1_000
"""Hand-overs that wait for a shard's first read; those beyond it are found by a sweep."""


class StoredCall(Work, eq=False):
    """A stored message. It has no deadline: whoever waits for it may leave, and it runs all the same."""

    deliveries: Any = None  # the Deliveries that it belongs to
    shelf: Any = None  # the Shelf of its shard
    due_s: float = 0.0  # until when it waits in memory, by the database's clock
    is_stored: ClassVar[bool] = True

    def reply(self, body: bytes) -> None:
        self.deliveries.completed(self, body)

    def failed(self, failure: bytes) -> None:
        raise AssertionError(f"{self.target} is stored: its failures are committed, not answered: {failure!r}")

    def refuse(self, error: CoterieError) -> None:
        self.deliveries.refused(self, error)

    def not_mine(self) -> None:
        self.deliveries.dropped(self)

    def set_back(self, error: BaseException) -> None:
        """This attempt has failed."""
        self.deliveries.failed(self, error)


class ShardInbox:
    """The stored messages of one shard, as far as this runner knows them.

    Args:
        tenure: By which right it runs them.
    """

    __slots__ = ("blocked", "early", "is_read", "is_suspected", "later", "left", "mark", "rounds", "tenure", "works")

    def __init__(self, tenure: Tenure) -> None:
        self.tenure = tenure
        self.works: dict[str, StoredCall] = {}
        """Those in memory, by message id."""
        self.is_read = False
        """Whether a sweep has seen all that was pending when the seat was taken: hand-overs queue behind [M5]."""
        self.is_suspected = tenure.clean
        """Whether what the holder before may have died of was counted [C5]."""
        self.early: deque[tuple[Delivery | Handover, bool]] = deque()
        """Hand-overs that wait for the first read, with whether they were due when they were stored."""
        self.mark: Mark | None = None
        """How far the present round of sweeps has come."""
        self.rounds = 0
        """How many rounds have seen all that was pending."""
        self.left: set[tuple[str, str]] = set()
        """Entities of which a message was left in storage: later ones are left too, until a round caught up [M5]."""
        self.blocked: set[tuple[str, str]] = set()
        """The same, found in the present round, of which the sweep takes nothing more."""
        self.later: set[tuple[str, str]] = set()
        """The same, of hand-overs since the present round began, which it may have missed."""

    def wait(self, delivery: Delivery | Handover, *, is_due: bool) -> None:
        """Let a hand-over wait for the first read. There is room for some; the others are found by a sweep."""
        if len(self.early) < _EARLY_MOST:
            self.early.append((delivery, is_due))
        else:  # those behind it must not overtake it [M5]
            self.later.add((delivery.entity_type, delivery.entity_id))

    def leaves(self, address: tuple[str, str]) -> bool:
        """Whether messages of an entity stay in storage for now."""
        return address in self.left or address in self.blocked

    def begin_round(self) -> None:
        """A round is about to ask: what was left until now it will see, and can take in order."""
        self.left |= self.blocked
        self.blocked, self.later = set(), set()

    def caught_up(self) -> None:
        """A round has seen all that was pending."""
        self.mark = None
        self.rounds += 1
        self.left, self.blocked, self.later = self.blocked | self.later, set(), set()


log = logging.getLogger("coterie.entities")

AHEAD_S = 60.0
"""What is due within this time is kept in memory, so that it runs to the millisecond [m13]."""
MEMORY_MOST = 20_000
"""Stored messages in memory: beyond it they stay in storage until there is room."""
_ENDED_MOST = 50_000
_REMEMBER_S = 15.0
"""For how long at least it is remembered that a message has ended here."""
_FRESH_S = 4.0
"""How old a hand-over may be to be believed: well within what is remembered, though clocks are set back."""
_STEP_S = 0.001
"""A change of the database's clock against ours that is worth another look at what is due next."""
_HASTE_S = 0.5
"""How much earlier than we believe a message must be due to be taken anew: pauses between attempts are about ours."""


class Inbox:
    """The stored messages of one runner.

    Args:
        host: Who runs them.
        messages: Where they are stored.
        chance: For the pauses between attempts.
        wake: Has storage looked at soon.
    """

    def __init__(self, host: Host, messages: MessageStore, *, chance: Random, wake: Callable[[], None]) -> None:
        self.shelves: dict[str, ShardInbox] = {}
        self.inbox: dict[str, StoredCall] = {}
        self.returned = 0
        """Messages that were in memory and had not begun when their shard was given up."""
        self._host, self._serve = host, host.prompt.serve
        self._messages = messages
        self._chance = chance
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._waiters: dict[str, list[Waiter]] = {}
        self._ended: dict[str, None] = {}
        self._ended_before: dict[str, None] = {}
        self._doubted: set[str] = set()
        self._doubted_before: set[str] = set()
        """Messages that have begun here and were dropped: whether they have ended, only storage knows."""
        self._forgot_s = 0.0
        self._due: list[tuple[float, int, StoredCall]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        # The database's clock is at least the loop's and this; ours until the first sweep.
        self._offset_s = host.clock.wall_ns() / 1e9 - self._loop.time()
        self.suspects = Suspects(
            messages, is_here=self._is_here, is_done=self._is_done, begin=host.deliver, drop=self.dropped
        )
        self._unknown: set[str] = set()

    # Shards

    def open(self, tenure: Tenure) -> None:
        """The seat of a shard was taken."""
        self.shelves[tenure.seat] = ShardInbox(tenure)
        self._wake()

    def close(self, tenure: Tenure) -> None:
        """It is given up: what has not begun is somebody else's from now on."""
        shelf = self.shelves.get(tenure.seat)
        if shelf is None or shelf.tenure is not tenure:
            return
        del self.shelves[tenure.seat]
        left = [work for work in shelf.works.values() if not work.has_begun]
        self.returned += len(left)
        for work in left:
            self.dropped(work)

    # The database's clock

    def set_clock(self, now: float) -> None:
        """The database's clock, read a moment ago: it is at least that now."""
        before_s, self._offset_s = self._offset_s, now - self._loop.time()
        if self._due and abs(self._offset_s - before_s) > _STEP_S:
            self._arm()

    def now_s(self) -> float:
        """The database's clock, or a bit less."""
        return self._loop.time() + self._offset_s

    # What comes in

    def knows(self, message_id: str) -> bool:
        """Whether a message is in memory, or has ended here a short while ago."""
        return message_id in self.inbox or self._has_ended(message_id)

    def _has_ended(self, message_id: str) -> bool:
        return message_id in self._ended or message_id in self._ended_before

    def forget_ended(self) -> None:
        """A sweep begins: what ended before the last one began cannot be in its answer any more.

        It is remembered longer, for hand-overs that were long on their way.
        """
        now_s = self._loop.time()
        if now_s - self._forgot_s > _REMEMBER_S or len(self._ended) > _ENDED_MOST // 2:
            self._forgot_s = now_s
            self._ended_before, self._ended = self._ended, {}
            self._doubted_before, self._doubted = self._doubted, set()

    def hand_over(
        self,
        delivery: Delivery | Handover,
        *,
        epoch: int,
        again: bool,
        waiter: Waiter | None,
        is_due: bool = False,
        arrived_s: float = 0.0,
    ) -> None:
        """A sender brings a message that it has stored.

        Args:
            delivery: The message.
            epoch: At which the sender believes its shard to be held here.
            again: It was brought before: it may have run since, so only storage says whether it is still to be run.
            waiter: Told the reply; or `LOOK`, if storage knows more than we.
            is_due: It was due when it was stored, so the database's clock is past that.
            arrived_s: When it was read from a socket, in this very turn of the loop: it may begin at once.
        """
        message_id, shelf = delivery.id, self.shelves.get(delivery.seat)
        if (
            shelf is None
            or shelf.tenure.ended  # whether it is trusted is asked when it begins
            or (epoch and epoch != shelf.tenure.claim.epoch)
            or message_id in self._ended
            or message_id in self._ended_before
        ):
            _tell(waiter, LOOK)
            return
        if waiter is not None:
            self._waiters.setdefault(message_id, []).append(waiter)
        if message_id in self.inbox:
            return
        if again:
            if waiter is None:  # one before it was left in storage: those that follow wait for the sweep, too [M5]
                shelf.blocked.add((delivery.entity_type, delivery.entity_id))
            self._wake()
        elif shelf.is_read:
            self._take(delivery, shelf, swept=False, is_due=is_due, arrived_s=arrived_s)
        else:
            shelf.wait(delivery, is_due=is_due)

    def leave(self, message_id: str, waiter: Waiter) -> None:
        """Whoever waited has left. The message stays."""
        waiting = self._waiters.get(message_id, [])
        if waiter in waiting:
            waiting.remove(waiter)
            if not waiting:
                del self._waiters[message_id]

    def arrived(self, delivery: Delivery | Handover, *, swept: bool = False, is_due: bool = False) -> None:
        """A message that may be in memory already, handed over a while ago or read from storage."""
        shelf = self.shelves.get(delivery.seat)
        if shelf is not None and not self.knows(delivery.id):
            self._take(delivery, shelf, swept=swept, is_due=is_due)

    def _take(
        self, delivery: Delivery | Handover, shelf: ShardInbox, *, swept: bool, is_due: bool, arrived_s: float = 0.0
    ) -> None:
        """One that is not."""
        address, due_s, time = (delivery.entity_type, delivery.entity_id), delivery.due_s, self._time
        late_s = time() + self._offset_s - due_s
        if is_due and late_s < 0:  # our idea of that clock is behind, and it would wait for as long as a sweep takes
            self._offset_s, late_s = self._offset_s - late_s, 0.0
        if not swept and (address in shelf.left or address in shelf.blocked):
            shelf.later.add(address)  # those behind it stay, too, until a whole round has passed
        elif address in shelf.blocked:
            return
        elif not swept and (late_s > _FRESH_S or delivery.id in self._doubted or delivery.id in self._doubted_before):
            shelf.blocked.add(address)  # it may have run since, by a sweep: storage knows
            self._wake()
        elif late_s < (0.0 if delivery.suspicion else -AHEAD_S) or len(self.inbox) >= MEMORY_MOST:
            if late_s >= 0:
                shelf.blocked.add(address)
        else:
            work = self._work(delivery, shelf)
            if late_s < 0:
                self._later(work, due_s)
            elif delivery.suspicion:
                self.suspects.add(work, delivery)
            elif not (arrived_s and self._serve(work, arrived_s)):
                self._host.deliver(work)

    def read(self, shelf: ShardInbox) -> None:
        """A round of sweeps has seen all that was pending of a shard."""
        shelf.caught_up()
        shelf.is_read = True
        while shelf.early:
            delivery, is_due = shelf.early.popleft()
            self.arrived(delivery, is_due=is_due)

    def _work(self, delivery: Delivery | Handover, shelf: ShardInbox) -> StoredCall:
        work = StoredCall(
            delivery.entity_type,
            delivery.entity_id,
            delivery.method,
            delivery.payload,
            math.inf,
            math.inf,
            delivery.id,
            (),
            delivery.key,
            delivery.trace_id or delivery.id,
            delivery.attempts + 1,
        )
        return self._put(shelf, work)

    def _put(self, shelf: ShardInbox, work: StoredCall) -> StoredCall:
        """A work for an attempt, into memory."""
        work.ledger, work.deliveries, work.shelf = BARE, self, shelf
        self.inbox[work.message_id] = shelf.works[work.message_id] = work
        return work

    # What is due later

    def hasten(self, row: PendingMessages) -> None:
        """Storage says when a message is due: what waits here for much longer is forgotten, and taken anew (K6)."""
        work = self.inbox.get(row.id)
        if work is not None and work.due_s > max(self.now_s(), row.due_at.timestamp() + _HASTE_S):
            self._forget(work)

    def _later(self, work: StoredCall, due_s: float) -> None:
        work.due_s = due_s
        heapq.heappush(self._due, (due_s, next(self._numbers), work))
        if self._due[0][2] is work:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due[0][0] - self._offset_s, self._ring) if self._due else None

    def _ring(self) -> None:
        self._timer = None
        try:
            while self._due and self._due[0][0] <= self.now_s():
                _, _, work = heapq.heappop(self._due)
                if self.inbox.get(work.message_id) is work:
                    self._deliver_due(work)
        finally:
            self._arm()

    def _deliver_due(self, work: StoredCall) -> None:
        work.due_s = 0.0  # it waits no more, though the database's clock be set back
        try:
            if work.shelf.leaves((work.entity_type, work.entity_id)):
                self._leave_in_storage(work)
            else:
                self._host.deliver(work)
        except Exception:  # the others that are due are not its fault; a sweep brings it again
            log.exception("message %s could not be delivered when it was due: it is tried again", work.message_id)
            self._forget(work)

    # How it ends

    def completed(self, work: StoredCall, body: bytes) -> None:
        """Its end is committed."""
        message_id, shelf = work.message_id, work.shelf
        self._forget(work)
        self._remember_ended(message_id)
        if shelf.left or shelf.blocked:
            self._has_left(work)
        for waiter in self._waiters.pop(message_id, ()):
            waiter(body)

    def _has_left(self, work: StoredCall) -> None:
        """If it was the last one of its entity that there was room for, have those fetched that were left."""
        if work.shelf.leaves((work.entity_type, work.entity_id)) and not work.resident.mailbox:
            self._wake()

    def dropped(self, work: StoredCall) -> None:
        """It has not run to its end here, or not in our name: storage knows what comes of it."""
        work.is_open = False
        if work.has_begun and len(self._doubted) < _ENDED_MOST:
            self._doubted.add(work.message_id)
        self._forget(work)
        for waiter in self._waiters.pop(work.message_id, ()):
            waiter(LOOK)

    def refused(self, work: StoredCall, error: CoterieError) -> None:
        """The host has not run it."""
        if isinstance(error, MailboxFull | RunnerFull):
            self._leave_in_storage(work)
        elif isinstance(error, UnknownEntity):
            self.report_unknown(work.entity_type)
            self.suspects.clear(work)
            self._leave_in_storage(work)
        elif isinstance(error, MalformedMessage):
            self._set_back(work, error, again_s=None)
        else:
            self.dropped(work)

    def failed(self, work: StoredCall, error: BaseException) -> None:
        """An attempt has failed."""
        work.is_open = False
        if isinstance(error, NewerVersion):  # not the message's fault: a runner with the newer program will run it
            log.error("%s is left in storage: %s", work.target, error)
            self.suspects.clear(work)
            self._leave_in_storage(work)
            return
        retry = self._host.retry_of(work.entity_type)
        self._set_back(work, error, again_s=retry.delay_s(work.attempt, self._chance))

    def cancel(self, message_id: str) -> bool:
        """Take a message out of memory, unless it has begun. False: it has."""
        work = self.inbox.get(message_id)
        if work is not None and work.has_begun:
            return False
        if work is not None:
            self.dropped(work)
        self._remember_ended(message_id)
        return True

    def uncancel(self, message_id: str) -> None:
        """Nobody knows whether it was deleted: if it is still there, it runs."""
        for ended in (self._ended, self._ended_before):
            ended.pop(message_id, None)
        self._wake()

    def _forget(self, work: StoredCall) -> None:
        if self.inbox.get(work.message_id) is work:
            del self.inbox[work.message_id]
            work.shelf.works.pop(work.message_id, None)
        if self.suspects.current is work:
            self.suspects.ended()

    def _is_here(self, work: StoredCall) -> bool:
        return self.inbox.get(work.message_id) is work

    def _is_done(self, work: StoredCall) -> bool:
        return self._has_ended(work.message_id)

    def _remember_ended(self, message_id: str) -> None:
        if len(self._ended) < _ENDED_MOST:
            self._ended[message_id] = None

    def _leave_in_storage(self, work: StoredCall) -> None:
        """Whoever waits for it goes on waiting here."""
        work.is_open = False
        self._forget(work)
        work.shelf.blocked.add((work.entity_type, work.entity_id))

    def report_unknown(self, entity_type: str) -> None:
        """Messages of a type, or a method, that this program does not know wait for one that does. Said once."""
        if entity_type not in self._unknown:
            self._unknown.add(entity_type)
            log.warning("messages to %s wait: this runner's program does not know all of it", entity_type)

    # Setbacks

    def _set_back(self, work: StoredCall, error: BaseException, *, again_s: float | None) -> None:
        work.is_open = False
        write = Setback(work.shelf.tenure.claim, work.message_id, work.attempt, described(error), again_s)
        try:
            saving = self._messages.setback(write)
        except PersistenceError:
            self.dropped(work)  # not counted; the next sweep finds it
        else:
            saving.add_done_callback(partial(self._was_set_back, work, again_s))

    def _was_set_back(self, work: StoredCall, again_s: float | None, saving: asyncio.Future[Suffered]) -> None:
        is_written = not saving.cancelled() and saving.exception() is None and saving.result() == "written"
        if is_written:
            outcome = "dead" if again_s is None else "retried"
            metrics.MESSAGES.of(work.entity_type, work.method, outcome).value += 1
        if is_written and again_s is None:
            log.error("%s is dead: message %s", work.target, work.message_id)
        if not is_written or again_s is None:
            self.dropped(work)
            return
        if self.inbox.get(work.message_id) is not work:
            return
        self._forget(work)
        shelf = self.shelves.get(work.shelf.tenure.seat)
        if shelf is work.shelf and shelf is not None:
            # Another work for another attempt: the host is done with this one.
            following = StoredCall(
                work.entity_type,
                work.entity_id,
                work.method,
                work.payload,
                math.inf,
                math.inf,
                work.message_id,
                key=work.key,
                trace_id=work.trace_id,
                attempt=work.attempt + 1,
            )
            self._later(self._put(shelf, following), self.now_s() + again_s)


def _tell(waiter: Any, body: bytes) -> None:
    if waiter is not None:
        waiter(body)
