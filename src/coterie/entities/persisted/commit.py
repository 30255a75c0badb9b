"""Collects the effects of a handler, its entity's state among them, and commits them before its reply is sent (B3).

handler ended ──▶ reply, changed state, messages sent, the user's SQL ──▶ one commit ──▶ "written": reply, hand over
                                                                             │
          "fenced", "gone": nothing was written, the instance is dropped ◀───┤
          no connection, or outcome unknown: retried while the seat is held ◀┘

Until the outcome of the commit is known the call counts as running: the next call of its entity starts after it [M7].
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from coterie.entities.calls.wire import FAILED, MARK, is_discarded, pack_failure
from coterie.entities.idempotency_key import shown_key
from coterie.entities.persisted.outcome import discarded, require_small
from coterie.errors import KeyConflict, MalformedMessage, PersistenceError
from coterie.kernel import chaos, metrics
from coterie.kernel.service import Tasks
from coterie.storage.contracts.messages import Commit, Committed, Message, StateChange, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.entities.host.executor import HandlerExecutor
    from coterie.entities.host.host import Host
    from coterie.entities.host.work import Work
    from coterie.kernel.serialization.versions import Versioned
    from coterie.storage.contracts.jobs import NewJob
    from coterie.storage.contracts.schedules import TimerChange

log = logging.getLogger("coterie.entities")

PREFIX = "entity-state:"
"""The prefix of the keys of entity states."""


class CommittedState:
    """The encoded bytes of the committed state, and the version of its row.

    Args:
        codec: Encodes states of this type.
        key: The key of the row.
        data: The bytes of the loaded state, or of the initial one.
        version: The version of the row, 0 if there is none.

    Promise:
        Changed means: encodes differently. The committed state can always be restored, whatever a handler did to the
        object.
    """

    __slots__ = ("_codec", "_data", "_key", "_version")

    def __init__(self, codec: Versioned[Any], key: str, data: bytes, version: int) -> None:
        self._codec = codec
        self._key = key
        self._data = data
        self._version = version

    def change(self, state: Any) -> StateChange | None:
        """The write that makes the state durable. Returns None if the state has not changed.

        Raises:
            MalformedMessage: The state does not fit its type.
        """
        data = self._codec.encode(state)
        return None if data == self._data else StateChange(self._key, data, self._version)

    def removal(self) -> StateChange:
        """The write that deletes the state."""
        return StateChange(self._key, None, self._version)

    def committed(self, change: StateChange) -> None:
        """Record that a change is durable."""
        if change.value is not None:
            self._data = change.value
            self._version = change.version + 1

    def restored(self) -> Any:
        """The committed state, as a new object."""
        return self._codec.decode(self._data)


def key_of(entity_type: str, entity_id: str) -> str:
    """The key of an entity's state: `entity-state:Account/alice`."""
    return f"{PREFIX}{entity_type}/{entity_id}"


class HandlerEffects:
    """The effects of one call of one handler.

    Created at first use (`effects_of`): most volatile calls have none, most persisted messages only `BARE`.
    """

    __slots__ = ("calls", "forgets", "in_block", "is_open", "jobs", "sends", "timers", "transaction")

    def __init__(self) -> None:
        self.sends: list[Message] = []
        """Messages that the handler sent: stored when it succeeds, then handed over."""
        self.jobs: list[NewJob] = []
        """Jobs that it sent, likewise."""
        self.timers: dict[str, TimerChange] = {}
        """Timers that the handler set or cancelled, by name."""
        self.transaction: Transaction | None = None
        """The handler's own SQL, begun and not rolled back."""
        self.in_block = False
        """Whether the handler is inside `async with self.transaction()`."""
        self.forgets = False
        """Whether the entity's state is to be deleted."""
        self.calls = 0
        """The number of persisted calls that the handler awaited: a retry finds them again by their numbers [M6]."""
        self.is_open = True
        """Whether the handler is still running: tasks that it left behind can no longer add effects."""

    def number_call(self) -> int:
        """The number of the next persisted call that the handler awaits, from 1."""
        self.calls += 1
        return self.calls


BARE = HandlerEffects()
"""Stands for a persisted message without effects yet: its end is committed in any case."""


def has_ended(work: Work) -> bool:
    """Whether the handler of a started work has ended, so that the caller of this is a task that it left behind."""
    if work.effects is None:  # volatile: closed when it has ended, or when its caller is gone and it is stopped
        return not work.is_open and not work.is_stopped
    return not work.effects.is_open


ENDED = HandlerEffects()
"""Stands for an ended call whose only effects are its reply and its state: closed while these are committed."""
ENDED.is_open = False


def effects_of(work: Work) -> HandlerEffects:
    """The effects of a running work, created at first use."""
    if work.effects is None or work.effects is BARE:
        work.effects = HandlerEffects()
    return work.effects


_PAUSE_S, _PAUSE_MOST_S = 0.02, 0.5
"""Pauses between two tries to commit while the database is unreachable: a short outage only delays a reply."""


class Commits:
    """Commits the effects of handlers.

    Args:
        host: The runner's entities; a probe's has no storage, and commits nothing.
        handlers: Receives the outcomes.
        hand_over: Hands a stored message to its owner.
    """

    def __init__(self, host: Host, handlers: HandlerExecutor, hand_over: Callable[[Message], None]) -> None:
        self._messages = None if host.storage is None else host.storage.messages
        self._responder = host.responder
        self._handlers = handlers
        self._hand_over = hand_over
        self._most_bytes = host.settings.frame_limit
        self._host = host
        self._tasks = Tasks("entities/commits")

    def returned(self, work: Work, value: Any) -> None:
        """The handler has returned: commit its effects."""
        rpc, resident = work.rpc, work.resident
        try:
            body = b"" if rpc.is_stream else rpc.result.checked(value, rpc.result_what)
            change = _change(work)
            value = b"" if change is None else change.value or b""
            if len(body) > self._most_bytes or len(value) > self._most_bytes:
                self._require_small(work, body, value)
        except MalformedMessage as error:  # result or state does not fit its type or the limit: the handler is at fault
            self._handlers.raised(work, error)
            return
        if work.effects is BARE:  # the usual case of a persisted message
            work.effects = ENDED
            self._submit(work, Commit(resident.shard.tenure.claim, work.message_id, body, change))
        else:
            self._save(work, body, change)

    def declared(self, work: Work, error: BaseException) -> None:
        """The handler raised a declared error: its effects are undone, and the error is stored as its result [M7]."""
        self.undo(work)
        if work.is_stored:
            self._save(work, FAILED + pack_failure(error, work.rpc.errors), None)
            return
        self._responder.fail(work, error)
        self._handlers.ended(work.resident, work)

    def discarded(self, work: Work, why: str) -> None:
        """The handler has given its message up: its effects are undone, and that is stored as the result."""
        self.undo(work)
        log.info("%s is discarded, message %s: %s", work.target, work.message_id, why)
        self._save(work, discarded(work, why), None)

    def undo(self, work: Work) -> None:
        """Roll back the effects of a handler: state, messages, SQL. Changes it made elsewhere are not undone."""
        resident, effects = work.resident, effects_of(work)  # made now if it had none; it accepts nothing more
        if resident.kept is not None and resident.entity is not None:
            resident.entity.state = resident.kept.restored()
        effects.is_open = False
        effects.sends.clear()
        effects.jobs.clear()
        effects.timers.clear()
        effects.forgets = False
        transaction, effects.transaction = effects.transaction, None
        if transaction is not None:
            self._tasks.spawn(transaction.rollback(), name=f"roll back {work.target}")

    async def stop(self) -> None:
        """Stop committing."""
        await self._tasks.stop()

    # The commit

    def _require_small(self, work: Work, body: bytes, state: bytes) -> None:
        if work.is_stored:
            require_small(body, what=work.rpc.result_what, most_bytes=self._most_bytes)
        require_small(state, what=f"the state of {work.address}", most_bytes=self._most_bytes)

    def _save(self, work: Work, body: bytes, change: StateChange | None) -> None:
        effects = None if work.effects is BARE else work.effects
        if effects is None:
            work.effects = ENDED
        else:
            effects.is_open = False
        transaction = None if effects is None else effects.transaction
        if effects is not None and transaction is not None and effects.in_block:
            problem = f"{work.target} has ended inside of its transaction: leave the block before"
            self._handlers.raised(work, RuntimeError(problem))
            return
        sends = () if effects is None else tuple(effects.sends)
        jobs = () if effects is None else tuple(effects.jobs)
        timers = () if effects is None else tuple(effects.timers.values())
        message = work.message_id if work.is_stored else None
        write = Commit(work.resident.shard.tenure.claim, message, body, change, sends, jobs, timers)
        if transaction is not None:
            self._tasks.spawn(self._with_transaction(work, write, transaction), name=f"commit {work.target}")
        elif self._messages is None or not (work.is_stored or change or sends or jobs or timers):
            self.written(work, write)
        else:
            self._submit(work, write)

    def _submit(self, work: Work, write: Commit) -> None:
        assert self._messages is not None, "a probe writes nothing"
        try:
            self._messages.save(write, PendingCommit(self, work, write))
        except PersistenceError as error:
            self.failed(work, write, error)

    def failed(self, work: Work, write: Commit, error: BaseException) -> None:
        """The commit was refused, or its outcome is unknown."""
        if isinstance(error, PersistenceError) and error.outcome == "refused":
            self._handlers.raised(work, error)
        elif isinstance(error, PersistenceError):
            self._tasks.spawn(self._retry(work, write), name=f"commit {work.target} again")
        else:
            self._lost(work, f"it could not be saved: {error!r}")

    async def _retry(self, work: Work, write: Commit) -> None:
        """Retry until the outcome is known or the seat is lost. The epoch identifies a try that had committed."""
        assert self._messages is not None, "it failed to save"
        pause_s = _PAUSE_S
        while work.resident.shard.tenure.held:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MOST_S)
            try:
                self.judge(work, write, await self._messages.commit(write), is_new=False)
            except PersistenceError as error:
                if error.outcome != "refused":
                    continue
                self._handlers.raised(work, error)
            return
        self._lost(work, "it lost the shard before the reply was saved")

    async def _with_transaction(self, work: Work, write: Commit, transaction: Transaction) -> None:
        """Commit with the user's SQL. An unknown outcome is not retried: that would need the handler to run again.

        The doubt does not last: the stored message or state shows the outcome when it is next run or loaded.
        """
        if chaos.on:
            await chaos.point("committing.before_transaction")
        try:
            outcome = await transaction.commit(write)
        except Exception as error:  # noqa: BLE001 our own errors, or a user's statement that failed
            self._handlers.raised(work, error)
        else:
            self.judge(work, write, outcome)

    def judge(self, work: Work, write: Commit, outcome: Committed, *, is_new: bool = True) -> None:
        """Act on the outcome of a commit."""
        if outcome == "written":
            self.written(work, write, is_new=is_new)
        elif outcome == "stale":
            problem = "its state is of another version than the one that was loaded"
            self._handlers.raised(work, PersistenceError(doing=f"save the state of {work.address}", problem=problem))
        elif outcome == "taken":
            self._handlers.raised(work, _conflict(work, write))
        else:
            self._lost(work, "it lost the shard before the reply was saved")

    def written(self, work: Work, write: Commit, *, is_new: bool = True) -> None:
        """The commit is durable: reply, and hand over the messages sent."""
        resident, change = work.resident, write.state
        if change is not None and resident.kept is not None:
            resident.kept.committed(change)
        if work.is_stored:
            work.is_open = False
            if write.reply and write.reply[0] == MARK:
                _count_failure(work, write.reply)
            else:
                work.rpc.counted.done.value += 1
            work.reply(write.reply)
        else:
            self._responder.send_result(work, write.reply)
        for message in write.sends if is_new else ():  # what was stored a while ago may have run: its owner polls it
            metrics.MESSAGES_SENT.of(message.entity_type, message.method).value += 1
            self._hand_over(message)
        for job in write.jobs:
            self._host.on_job(job)
        for timer in write.timers:
            if timer.timer is not None and timer.timer.next_at is not None:
                self._host.on_timer(timer.timer.seat, timer.timer.next_at)
        if work.effects is not None and work.effects.forgets:
            self._handlers.dropped(resident)
        self._handlers.ended(resident, work)

    def _lost(self, work: Work, problem: str) -> None:
        """Nothing was committed under our epoch, and the instance's memory differs from what is stored: discard it."""
        self.undo(work)
        self._responder.cut_short(work, problem)
        self._handlers.dropped(work.resident)
        self._handlers.ended(work.resident, work)


class PendingCommit(Struct, eq=False, gc=False):
    """Receives the result of a handler's commit (a `Waiter` of the group commit), without a future or a task."""

    commits: Commits
    work: Work
    write: Commit

    def set_result(self, outcome: Committed) -> None:
        """The outcome of the commit is known."""
        if outcome == "written":
            self.commits.written(self.work, self.write)
        else:
            self.commits.judge(self.work, self.write, outcome)

    def set_exception(self, error: BaseException) -> None:
        """The commit failed, or its outcome is unknown."""
        self.commits.failed(self.work, self.write, error)


def _count_failure(work: Work, reply: bytes) -> None:
    if is_discarded(reply):
        metrics.MESSAGES.of(work.entity_type, work.method, "discarded").value += 1
    else:
        work.rpc.counted.done_declared.value += 1


def _change(work: Work) -> StateChange | None:
    kept, entity = work.resident.kept, work.resident.entity
    if kept is None or entity is None:
        return None
    if work.effects is not None and work.effects.forgets:
        return kept.removal()
    return kept.change(entity.state)


def _conflict(work: Work, write: Commit) -> KeyConflict:
    """The database does not say which key conflicts; the next attempt finds out when it sends."""
    keyed = [(each.id, each.key) for each in write.sends] + [(each.id, each.key) for each in write.jobs]
    used = [(found, key) for found, key in keyed if key is not None]
    keys = ", ".join(shown_key(key) for _, key in used)
    return KeyConflict(target=f"one of the messages that {work.target} sent", key=keys, message_id=used[0][0])
