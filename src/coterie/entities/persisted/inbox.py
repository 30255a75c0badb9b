"""The persisted messages that a runner has in memory: queued, running, or due later.

    handed over ─┐
    polled ──────┴─▶ due? ──▶ host ──▶ ended: its waiters receive the reply
                      │         │
                  heap, to the  ├─▶ attempt failed: counted, due again later, or dead
                  millisecond   └─▶ mailbox full, shard lost: left in storage, where the next sweep finds it

Promise:
    A message in memory is not started a second time, and a message that ended after a sweep read it is not taken as
    new [M5].
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from coterie.entities.calls.wire import LOOK, described
from coterie.entities.host.work import LATER, Work
from coterie.entities.persisted.commit import BARE
from coterie.entities.persisted.pauses import KnownPauses
from coterie.entities.persisted.receiver import Handover, HandoverKind
from coterie.entities.persisted.suspects import Suspects
from coterie.errors import MailboxFull, MalformedMessage, NewerVersion, PersistenceError, RunnerFull, UnknownEntity
from coterie.kernel import metrics
from coterie.storage.contracts.messages import Delivery, Mark, MessageStore, PendingMessages, Setback, Suffered

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.entities.host.host import Host
    from coterie.errors import CoterieError
    from coterie.kernel.random import Random
    from coterie.ownership.seats import Tenure

    Waiter = Callable[[bytes], None]


_EARLY_MOST = 1_000
"""Limit of the hand-overs that wait for a shard's first read; a sweep finds the others."""


class StoredCall(Work, eq=False):
    """A persisted message. It has no deadline: it runs even if its caller stops waiting."""

    inbox: Inbox = LATER
    shard_inbox: ShardInbox = LATER
    due_s: float = 0.0  # when it becomes due, by the database's clock
    is_stored: ClassVar[bool] = True

    def rest(self) -> None:
        self.inbox.suspects.acquit(self)  # it is idle while it waits, maybe for a suspect behind it [C5]

    def may_begin(self, now_ns: int) -> bool:
        return now_ns < self.inbox.pauses.until_ns

    def is_held(self) -> bool:
        return self.inbox.holds(self)

    def reply(self, body: bytes) -> None:
        self.inbox.completed(self, body)

    def failed(self, failure: bytes) -> None:
        raise AssertionError(f"{self.target} is stored: its failures are committed, not answered: {failure!r}")

    def refuse(self, error: CoterieError) -> None:
        self.inbox.refused(self, error)

    def not_mine(self) -> None:
        self.inbox.dropped(self)

    def set_back(self, error: BaseException, *, raised: bool) -> None:
        """Record that this attempt failed; `raised`: its handler has raised that, it was not refused by storage."""
        self.inbox.failed(self, error, raised=raised)

    def put_off(self, delay_s: float) -> None:
        """Record that this attempt is made later."""
        self.inbox.put_off(self, delay_s)


class ShardInbox:
    """The persisted messages of one shard that this runner knows.

    Args:
        tenure: The tenure of the shard's seat.
    """

    __slots__ = ("blocked", "early", "is_read", "is_suspected", "later", "left", "mark", "rounds", "tenure", "works")

    def __init__(self, tenure: Tenure) -> None:
        self.tenure = tenure
        self.works: dict[str, StoredCall] = {}
        """The messages in memory, by message id."""
        self.is_read = False
        """Whether a sweep has read all that was pending when the seat was taken: hand-overs queue behind it [M5]."""
        self.is_suspected = tenure.clean
        """Whether the messages that may have killed the previous holder have been marked as suspects [C5]."""
        self.early: deque[Handover] = deque()
        """Hand-overs that wait for the first read, each with whether it was due when it was stored."""
        self.mark: Mark | None = None
        """The position of the current round of sweeps."""
        self.rounds = 0
        """The number of rounds that have read all that was pending."""
        self.left: set[tuple[str, str]] = set()
        """Entities with a message left in storage: later messages are left too, until a round has caught up [M5]."""
        self.blocked: set[tuple[str, str]] = set()
        """Like `left`, found in the current round; the sweep takes no further messages of them."""
        self.later: set[tuple[str, str]] = set()
        """Like `left`, from hand-overs since the current round began, which the round may have missed."""

    def wait(self, handover: Handover) -> None:
        """Queue a hand-over until the first read. The queue is bounded; a sweep finds the others."""
        if len(self.early) < _EARLY_MOST:
            self.early.append(handover)
        else:  # later messages of the entity must not overtake it [M5]
            self.later.add((handover.entity_type, handover.entity_id))

    def holds_back(self, address: tuple[str, str]) -> bool:
        """Whether messages of an entity stay in storage for now."""
        return address in self.left or address in self.blocked

    def begin_round(self) -> None:
        """Start a round: it will read what has been left in storage so far, and can take it in order."""
        self.left |= self.blocked
        self.blocked, self.later = set(), set()

    def caught_up(self) -> None:
        """End a round that has read all that was pending."""
        self.mark = None
        self.rounds += 1
        self.left, self.blocked, self.later = self.blocked | self.later, set(), set()


log = logging.getLogger("coterie.entities")

AHEAD_S = 60.0
"""Messages that are due within this time are kept in memory, so that they run to the millisecond [m13]."""
MEMORY_MOST = 20_000
"""Limit of the persisted messages in memory: further ones stay in storage until there is room."""
_ENDED_MOST = 50_000
_REMEMBER_S = 15.0
"""The minimum time for which the ids of messages that ended here are remembered."""
_FRESH_S = 4.0
"""The maximum age of a hand-over that is trusted: well below `_REMEMBER_S`, in case clocks are set back."""
_STEP_S = 0.001
"""A change of the offset between the database's clock and ours that makes the timer be set again."""
_HASTE_S = 0.5
"""How much earlier than in memory a message must be due in storage to be read again: retry delays are approximate."""


class Inbox:
    """The persisted messages of one runner.

    Args:
        host: Runs them.
        messages: The message store.
        chance: The randomness of retry delays.
        wake: Starts a sweep soon.
    """

    def __init__(self, host: Host, messages: MessageStore, *, chance: Random, wake: Callable[[], None]) -> None:
        self.shards: dict[str, ShardInbox] = {}
        self.works: dict[str, StoredCall] = {}
        self.pauses = KnownPauses()
        self.returned = 0
        """The number of messages in memory that had not started when their shard was released."""
        self._host, self._serve = host, host.dispatch.serve
        self._messages = messages
        self._chance = chance
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[str, list[Waiter]] = {}
        self._ended: dict[str, None] = {}
        self._ended_before: dict[str, None] = {}
        self._doubted: set[str] = set()
        self._doubted_before: set[str] = set()
        """Messages that started here and were dropped: only storage knows whether they ended."""
        self._forgot_s = 0.0
        self._due: list[tuple[float, int, StoredCall]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        # Lower bound of the database's clock minus the loop's; from this process's clock until the first sweep.
        self._offset_s = host.clock.wall_ns() / 1e9 - self._loop.time()
        self.suspects = Suspects(self, messages, host.deliver)
        self._unknown: set[str] = set()

    # Shards

    def open(self, tenure: Tenure) -> None:
        """Open the inbox of a shard whose seat was taken."""
        self.shards[tenure.seat] = ShardInbox(tenure)
        self._wake()

    def close(self, tenure: Tenure) -> None:
        """Close the inbox of a shard that is released: its next owner runs what has not started."""
        shard = self.shards.get(tenure.seat)
        if shard is None or shard.tenure is not tenure:
            return
        del self.shards[tenure.seat]
        left = [work for work in shard.works.values() if not work.has_begun]
        self.returned += len(left)
        for work in left:
            self.dropped(work)

    # The database's clock

    def set_clock(self, now: float) -> None:
        """Set the database's clock, read a moment ago: a lower bound of its time now."""
        before_s, self._offset_s = self._offset_s, now - self._loop.time()
        if self._due and abs(self._offset_s - before_s) > _STEP_S:
            self._arm()

    def now_s(self) -> float:
        """The database's time, or slightly less."""
        return self._loop.time() + self._offset_s

    # Incoming messages

    def knows(self, message_id: str) -> bool:
        """Whether a message is in memory or ended here recently."""
        return message_id in self.works or self.has_ended(message_id)

    def has(self, work: StoredCall) -> bool:
        """Whether a work is still in memory."""
        return self.works.get(work.message_id) is work

    def has_ended(self, message_id: str) -> bool:
        """Whether a message ended here a short while ago."""
        return message_id in self._ended or message_id in self._ended_before

    def forget_ended(self) -> None:
        """Forget old ids when a sweep begins: it cannot return what ended before the previous sweep began.

        Ids are kept longer than that, for hand-overs that were delayed on their way.
        """
        now_s = self._loop.time()
        if now_s - self._forgot_s > _REMEMBER_S or len(self._ended) > _ENDED_MOST // 2:
            self._forgot_s = now_s
            self._ended_before, self._ended = self._ended, {}
            self._doubted_before, self._doubted = self._doubted, set()

    def hand_over(self, handover: Handover, *, waiter: Waiter | None = None, arrived_s: float = 0.0) -> None:
        """Accept a message that its sender has stored. One that is not new may have run since: storage decides.

        Args:
            handover: The message.
            waiter: Receives the reply; or `LOOK` if the caller has to read storage.
            arrived_s: When it was read from a socket, if in this loop iteration: then it may start at once.
        """
        message_id, epoch, shard = handover.id, handover.epoch, self.shards.get(handover.seat)
        if (
            shard is None
            or shard.tenure.ended  # whether the tenure is trusted is checked when it starts
            or (epoch and epoch != shard.tenure.claim.epoch)
            or message_id in self._ended
            or message_id in self._ended_before
        ):
            if waiter is not None:
                waiter(LOOK)
            return
        if waiter is not None:
            self._waiters.setdefault(message_id, []).append(waiter)
        if message_id in self.works:
            return
        if handover.kind != HandoverKind.NEW:
            if waiter is None:  # one before it was left in storage: the next ones wait for the sweep too [M5]
                shard.blocked.add((handover.entity_type, handover.entity_id))
            self._wake()
        elif shard.is_read:
            self._accept(handover, shard, arrived_s)
        else:
            shard.wait(handover)

    def remove_waiter(self, message_id: str, waiter: Waiter) -> None:
        """Remove a waiter that no longer waits. The message stays."""
        waiting = self._waiters.get(message_id, [])
        if waiter in waiting:
            waiting.remove(waiter)
            if not waiting:
                del self._waiters[message_id]

    def accept(self, delivery: Delivery | Handover) -> None:
        """Take a message, handed over a while ago or read from storage, unless it is in memory already."""
        shard = self.shards.get(delivery.seat)
        if shard is not None and not self.knows(delivery.id):
            self._accept(delivery, shard)

    def _accept(self, delivery: Delivery | Handover, shard: ShardInbox, arrived_s: float = 0.0) -> None:
        """Take a message that is not in memory."""
        address, due_s = (delivery.entity_type, delivery.entity_id), delivery.due_s
        late_s, swept = self.now_s() - due_s, isinstance(delivery, Delivery)
        if isinstance(delivery, Handover) and delivery.is_immediate and late_s < 0:
            # Our estimate of the database's clock is behind: the message would wait for a sweep.
            self._offset_s, late_s = self._offset_s - late_s, 0.0
        if not swept and (address in shard.left or address in shard.blocked):
            shard.later.add(address)  # the messages behind it stay in storage too, until a whole round has passed
        elif address in shard.blocked:
            return
        elif not swept and (late_s > _FRESH_S or delivery.id in self._doubted or delivery.id in self._doubted_before):
            shard.blocked.add(address)  # a sweep may have run it since: storage decides
            self._wake()
        elif (delivery.entity_type, delivery.seat) in self.pauses:
            shard.blocked.add(address)
        elif late_s < (0.0 if delivery.suspicion else -AHEAD_S) or len(self.works) >= MEMORY_MOST:
            if late_s >= 0:
                shard.blocked.add(address)
        else:
            work = self._put(shard, delivery, message_id=delivery.id, attempt=delivery.attempts + 1)
            if late_s < 0:
                self._schedule(work, due_s)
            elif delivery.suspicion:
                self.suspects.add(work, delivery)
            elif not (arrived_s and self._serve(work, arrived_s)):
                self._host.deliver(work)

    def read(self, shard: ShardInbox) -> None:
        """End a round of sweeps that has read all that was pending for a shard."""
        shard.caught_up()
        shard.is_read = True
        while shard.early:
            self.accept(shard.early.popleft())

    def _put(
        self, shard: ShardInbox, message: Delivery | Handover | StoredCall, *, message_id: str, attempt: int
    ) -> StoredCall:
        """Put the work of an attempt into memory. Each attempt has its own: the host is done with the last one."""
        work = StoredCall(
            entity_type=message.entity_type,
            entity_id=message.entity_id,
            method=message.method,
            payload=message.payload,
            deadline_s=math.inf,
            within_s=math.inf,
            message_id=message_id,
            key=message.key,
            trace_id=message.trace_id or message_id,
            attempt=attempt,
            effects=BARE,
            inbox=self,
            shard_inbox=shard,
        )
        self.works[message_id] = shard.works[message_id] = work
        return work

    # Messages that are due later

    def hasten(self, row: PendingMessages) -> None:
        """Drop a waiting message that storage says is due much earlier, so that it is read again (K6)."""
        work = self.works.get(row.id)
        if work is not None and work.due_s > max(self.now_s(), row.due_at.timestamp() + _HASTE_S):
            self._forget(work)

    def _schedule(self, work: StoredCall, due_s: float) -> None:
        work.due_s = due_s
        heapq.heappush(self._due, (due_s, next(self._numbers), work))
        if self._due[0][2] is work:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due[0][0] - self._offset_s, self._on_timer) if self._due else None

    def _on_timer(self) -> None:
        self._timer = None
        try:
            while self._due and self._due[0][0] <= self.now_s():
                _, _, work = heapq.heappop(self._due)
                if self.works.get(work.message_id) is work:
                    self._deliver_due(work)
        finally:
            self._arm()

    def _deliver_due(self, work: StoredCall) -> None:
        work.due_s = 0.0  # it no longer waits, even if the database's clock is set back
        try:
            if work.shard_inbox.holds_back((work.entity_type, work.entity_id)):
                self._leave_in_storage(work)
            else:
                self._host.deliver(work)
        except Exception:  # the other due messages must still run; a sweep finds this one again
            log.exception(
                "message %s could not be delivered when it was due; it is read again from storage", work.message_id
            )
            self._forget(work)

    # How a message ends

    def completed(self, work: StoredCall, body: bytes) -> None:
        """Record that its end is committed, and pass the reply to its waiters."""
        message_id, shard = work.message_id, work.shard_inbox
        self._forget(work)
        self._remember_ended(message_id)
        if shard.left or shard.blocked:
            self._wake_if_drained(work)
        for waiter in self._waiters.pop(message_id, ()):
            waiter(body)

    def _wake_if_drained(self, work: StoredCall) -> None:
        """Wake the poller if this was the last message in memory of an entity whose others were left in storage."""
        if work.shard_inbox.holds_back((work.entity_type, work.entity_id)) and not work.resident.mailbox:
            self._wake()

    def dropped(self, work: StoredCall) -> None:
        """Drop a work that did not commit its end here: storage decides whether the message runs again."""
        work.is_open = False
        if work.has_begun and len(self._doubted) < _ENDED_MOST:
            self._doubted.add(work.message_id)
        self._forget(work)
        for waiter in self._waiters.pop(work.message_id, ()):
            waiter(LOOK)

    def refused(self, work: StoredCall, error: CoterieError) -> None:
        """Handle a work that the host refused to run."""
        if isinstance(error, MailboxFull | RunnerFull):
            self._leave_in_storage(work)
        elif isinstance(error, UnknownEntity):
            self.report_unknown(work.entity_type)
            self.suspects.clear(work)
            self._leave_in_storage(work)
        elif isinstance(error, MalformedMessage):
            self._set_back(work, described(error), again_s=None)
        else:
            self.dropped(work)

    def holds(self, work: StoredCall) -> bool:
        """Whether a work that is about to begin stays in storage, since its entity type or group is paused."""
        if (work.entity_type, work.shard_inbox.tenure.seat) not in self.pauses:
            return False
        self._leave_in_storage(work)
        return True

    def failed(self, work: StoredCall, error: BaseException, *, raised: bool) -> None:
        """Handle a failed attempt. Its exception matters for the policy only if the handler has raised it."""
        work.is_open = False
        if isinstance(error, NewerVersion):  # a runner with the newer program version will run it
            log.error(
                "%s stays in storage until a runner with the newer program takes its shard: %s", work.target, error
            )
            self.suspects.clear(work)
            self._leave_in_storage(work)
            return
        retry = self._host.retry_of(work.entity_type, work.method)
        again_s = retry.delay_s(work.attempt, self._chance, error if raised else None)
        self._set_back(work, described(error), again_s=again_s)

    def put_off(self, work: StoredCall, delay_s: float) -> None:
        """Handle an attempt that is made later, and counts nothing."""
        self._set_back(work, None, again_s=delay_s)

    def cancel(self, message_id: str) -> bool:
        """Take a message out of memory, unless it has started. Returns False if it has."""
        work = self.works.get(message_id)
        if work is not None and work.has_begun:
            return False
        if work is not None:
            self.dropped(work)
        self._remember_ended(message_id)
        return True

    def uncancel(self, message_id: str) -> None:
        """Undo `cancel` when it is unknown whether the row was deleted: if it still exists, it runs."""
        for ended in (self._ended, self._ended_before):
            ended.pop(message_id, None)
        self._wake()

    def _forget(self, work: StoredCall) -> None:
        if self.works.get(work.message_id) is work:
            del self.works[work.message_id]
            work.shard_inbox.works.pop(work.message_id, None)
        if self.suspects.current is work:
            self.suspects.ended()

    def _remember_ended(self, message_id: str) -> None:
        if len(self._ended) < _ENDED_MOST:
            self._ended[message_id] = None

    def _leave_in_storage(self, work: StoredCall) -> None:
        """Remove a work from memory and leave its message in storage. Its waiters keep waiting here."""
        work.is_open = False
        self._forget(work)
        work.shard_inbox.blocked.add((work.entity_type, work.entity_id))

    def report_unknown(self, entity_type: str) -> None:
        """Log once that messages of an entity type stay in storage: this program lacks the type or a method of it."""
        if entity_type not in self._unknown:
            self._unknown.add(entity_type)
            log.warning(
                "messages for entity type %s stay pending: this runner has no such type or method (is a newer version"
                " deployed elsewhere?)",
                entity_type,
            )

    # Failed attempts

    def _set_back(self, work: StoredCall, error: str | None, *, again_s: float | None) -> None:
        work.is_open = False
        write = Setback(work.shard_inbox.tenure.claim, work.message_id, work.attempt, error, again_s)
        try:
            saving = self._messages.setback(write)
        except PersistenceError:
            self.dropped(work)  # not counted; the next sweep finds it
        else:
            saving.add_done_callback(partial(self._was_set_back, work, write))

    def _was_set_back(self, work: StoredCall, write: Setback, saving: asyncio.Future[Suffered]) -> None:
        is_written = not saving.cancelled() and saving.exception() is None and saving.result() == "written"
        is_counted, again_s = write.error is not None, write.again_s
        if is_written:
            outcome = "dead" if again_s is None else "retried" if is_counted else "snoozed"
            metrics.MESSAGES.of(work.entity_type, work.method, outcome).value += 1
        if is_written and again_s is None:
            log.error("%s is dead: message %s", work.target, work.message_id)
        if not is_written or again_s is None or again_s > AHEAD_S:
            self.dropped(work)
            return
        if self.works.get(work.message_id) is not work:
            return
        self._forget(work)
        shard = self.shards.get(work.shard_inbox.tenure.seat)
        if shard is work.shard_inbox and shard is not None:
            following = self._put(shard, work, message_id=work.message_id, attempt=work.attempt + is_counted)
            self._schedule(following, self.now_s() + again_s)
