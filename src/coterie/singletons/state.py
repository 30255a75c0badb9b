"""The state of a leader: what its body sees of it, and how a change becomes durable (S2, S4-S6).

One change at a time. A save is completed even if its caller was cancelled meanwhile: no write begins before the
outcome of the last one is known.

The row is read under the fence, and written until the write is known to be durable or refused. Only the leader of an
epoch can write at that epoch, so whatever differs from what it remembers is a write of its own whose outcome it never
received: every doubt is resolved by reading the row again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic

from coterie.errors import (
    LeadershipLost,
    MalformedMessage,
    NewerVersion,
    PersistenceError,
    SchemaDecodeFailed,
    StatePersistFailed,
)
from coterie.kernel import chaos
from coterie.kernel.serialization.versions import MigrationFailed
from coterie.kernel.text import storable
from coterie.singletons.definition import S
from coterie.storage.contracts.messages import Commit
from coterie.storage.interface import StateSave
from coterie.work.transaction import open_transaction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from coterie.kernel.serialization.versions import Versioned
    from coterie.ownership.seats import Tenure
    from coterie.singletons.definition import Singleton
    from coterie.storage.contracts.messages import Transaction
    from coterie.storage.interface import StateLoaded
    from coterie.work.services import Services

log = logging.getLogger("coterie.singletons")

HISTORY = 20
"""How many of the last states are kept: enough to see what led to the current one."""
_PAUSE_S, _PAUSE_MOST_S = 0.02, 0.5
"""Pauses between attempts while the database is away."""


class Turn:
    """Serializes changes, since overlapping ones would lose one. A task that would wait for itself gets an error."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[Any] | None = None
        self.in_transaction = False

    @property
    def in_transaction_here(self) -> bool:
        """Whether the current task is inside a transaction's block."""
        return self.in_transaction and self._task is asyncio.current_task()

    async def acquire(self) -> None:
        """Wait for the turn."""
        if self._task is not None and self._task is asyncio.current_task():
            where = "transaction()" if self.in_transaction else "update()"
            raise RuntimeError(f"singleton {self._name!r} is inside of {where} already: end that block first")
        await self._lock.acquire()
        self._task = asyncio.current_task()

    def hand_to(self, task: asyncio.Task[Any]) -> None:
        """Let the turn end with a task: a caller that took it, and was cancelled meanwhile, waits like all others."""
        self._task = task
        task.add_done_callback(self._task_ended)

    def release(self) -> None:
        """End the turn."""
        self._task = None
        self._lock.release()

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # belongs to its caller, if that still waits
        self.release()


class LeaderState(Generic[S]):
    """The state of one leadership.

    Args:
        changed: Called after each save that has changed something.
        failed: Called for each state that could not be read, and each failed write.
    """

    def __init__(
        self,
        singleton: Singleton[S],
        tenure: Tenure,
        services: Services,
        *,
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._singleton = singleton
        self._tenure = tenure
        self._row = StateRowWriter(singleton, tenure, services, failed=failed)
        self._services = services
        self._changed = changed
        self._failed = failed
        self._turn = Turn(singleton.name)
        self._stored: bytes | None = None  # None: not what this program would write
        self._data = b""  # the encoding of what the body sees
        self._shown: Any = None
        self._staged: bytes | None = None  # what an open transaction will save
        self._has_warned = False

    @property
    def shown(self) -> S:
        """The state, for reading. Changing it changes nothing that is stored."""
        shown: S = self._shown
        return shown

    # Loading

    async def load(self) -> None:
        """Load what the former leader left.

        Raises:
            LeadershipLost: We do not hold the seat.
            SchemaDecodeFailed: A later version of the program wrote it, or a migration fails. It was not touched.
            PersistenceError: It could not be read.
        """
        if self._singleton.codec is None:
            return
        loaded = await self._row.read()
        if loaded.value is None or loaded.expired:
            self._show(self._encode(self._singleton.initial()))
            self._stored = None  # an unsaved state is not stored: the next leader may start from another initial state
        else:
            await self._decode(loaded.value)

    async def _decode(self, data: bytes) -> None:
        codec = self._codec
        try:
            value = codec.decode(data)
        except (NewerVersion, MigrationFailed) as error:
            raise SchemaDecodeFailed(singleton=self._singleton.name, problem=error.message, hint=error.hint) from error
        except MalformedMessage as error:
            await self._begin_anew(storable(f"it cannot be read: {error.message}"))  # it may quote anything
            value = self._singleton.initial()
        else:
            before = codec.version_of(data)
            if before != codec.version:
                await self._row.set_aside(f"it was migrated from version {before} to {codec.version}")
        encoded = self._encode(value)
        self._show(encoded)
        self._stored = data if data == encoded else None

    async def _begin_anew(self, problem: str) -> None:
        name, hint = self._singleton.name, "the first state is used instead; what was stored is kept aside"
        log.error("the stored state of singleton %r is set aside and replaced by the first one: %s", name, problem)
        await self._row.set_aside(problem)
        self._failed(SchemaDecodeFailed(singleton=name, problem=problem, hint=hint))

    # Saving

    async def save(self, state: S) -> None:
        """Make a state durable, if it has changed."""
        data = self._encode(state)
        if self._turn.in_transaction_here:
            self._stage(data)
            return
        await self._turn.acquire()
        await self._write_and_release(data)

    @asynccontextmanager
    async def update(self) -> AsyncIterator[S]:
        """A copy to change, saved when the block succeeds."""
        if self._turn.in_transaction_here:
            draft = self._codec.decode(self._current)
            yield draft
            self._stage(self._encode(draft))
            return
        await self._turn.acquire()
        try:
            draft = self._codec.decode(self._data)
            yield draft
            data = self._encode(draft)
        except BaseException:
            self._turn.release()
            raise
        await self._write_and_release(data)

    async def _write_and_release(self, data: bytes) -> None:
        """Write it, even if the caller is cancelled: then again in a task, which finds the write that was in flight."""
        try:
            await self._write(data)
        except asyncio.CancelledError:
            self._spawn(self._write(data))
            raise
        except BaseException:
            self._turn.release()
            raise
        self._turn.release()

    async def _write(self, data: bytes) -> None:
        self._warn_of_change(data)
        if self._is_stored(data):
            self._row.require_held()
            return
        self._stored = None  # until the stored content is known
        await self._row.write(data)
        self._saved(data)

    def _is_stored(self, data: bytes) -> bool:
        """Whether there is nothing to write. With a TTL there always is: expiry counts from the last save."""
        return data == self._stored and self._singleton.ttl_s is None

    def _saved(self, data: bytes) -> None:
        self._stored = data
        self._show(data)
        self._changed()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that completes `work`, and ends the turn then."""
        task = self._services.tasks.spawn(work, name=f"save {self._singleton.name}", report=False)
        self._turn.hand_to(task)
        return task

    # Transactions

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """The user's own SQL; what is saved in its block is committed with it, or not at all."""
        storage, limit_s = self._services.storage, self._services.settings.transaction_limit.total_seconds()
        who = f"singleton {self._singleton.name!r}"
        await self._turn.acquire()
        try:
            async with open_transaction(storage, self._tenure, who=who, limit_s=limit_s) as transaction:
                self._turn.in_transaction = True
                yield transaction
        except BaseException:
            self._unstage()
            self._turn.release()
            raise
        await asyncio.shield(self._spawn(self._commit(transaction)))  # completed even if we are cancelled

    def _stage(self, data: bytes) -> None:
        self._warn_of_change(data)
        self._staged = data
        self._shown = self._codec.decode(data)

    def _unstage(self) -> None:
        self._turn.in_transaction = False
        if self._staged is not None:
            self._staged = None
            self._show(self._data)

    async def _commit(self, transaction: Transaction) -> None:
        data = self._staged
        try:
            if data is not None and not self._is_stored(data):
                await self._commit_with(transaction, data)
            elif await transaction.commit(Commit(self._tenure.claim)) != "written":
                raise self._row.fenced()
        finally:
            self._unstage()

    async def _commit_with(self, transaction: Transaction, data: bytes) -> None:
        write: Any = self._row.next_save(data)
        self._stored = None
        try:
            written = await transaction.commit(write)
        except PersistenceError as error:
            if error.outcome != "unknown":
                raise
            log.warning("singleton %r reads whether its transaction was committed: %s", self._singleton.name, error)
            if not await self._row.is_saved(data):
                raise
        else:
            if written == "fenced":
                raise self._row.fenced()
            if written != "written":  # it has expired, or was deleted by hand
                await self._row.read_until_answered()
                problem = "the stored state is another one than this leader knows"
                raise StatePersistFailed(singleton=self._singleton.name, problem=problem)
            self._row.count_save()
        self._saved(data)

    # Helpers

    def _show(self, data: bytes) -> None:
        self._data = data
        self._shown = self._codec.decode(data)

    @property
    def _current(self) -> bytes:
        return self._data if self._staged is None else self._staged

    def drop_changes(self) -> None:
        """The body has ended: drop changes that it made outside of `update()` and did not save, with a warning."""
        if self._singleton.codec is not None and self._data:
            self._warn_of_change(self._current)

    def _warn_of_change(self, data: bytes) -> None:
        """Warn, unless the change is what is being saved: `leader.save(leader.state)`."""
        try:
            is_known = self._codec.encode(self._shown) in (self._current, data)
        except MalformedMessage:
            is_known = False
        if not is_known:
            if not self._has_warned:  # once: such a body does it repeatedly
                log.warning(
                    "singleton %r changed leader.state outside of update(): that change is not saved and was dropped; "
                    "write async with leader.update() as state",
                    self._singleton.name,
                )
            self._has_warned = True
            self._shown = self._codec.decode(self._current)

    def _encode(self, state: Any) -> bytes:
        return self._codec.encode(state)

    @property
    def _codec(self) -> Versioned[Any]:
        codec = self._singleton.codec
        if codec is None:
            raise TypeError(f"singleton {self._singleton.name!r} has no state: add state= to its definition")
        return codec


class StateRowWriter:
    """One leadership's knowledge of its row.

    Args:
        failed: Called on each failure.
    """

    def __init__(
        self, singleton: Singleton[Any], tenure: Tenure, services: Services, *, failed: Callable[[Exception], None]
    ) -> None:
        self._name = singleton.name
        self._key = singleton.key
        self._tenure = tenure
        self._states = services.storage.states
        self._ttl_s = singleton.ttl_s
        self._retry = singleton.retry or services.settings.retry
        self._chance = services.chance
        self._failed = failed
        self._version = 0
        self._is_in_doubt = False  # whether an attempt of the current write was not answered

    # Reading

    async def read(self) -> StateLoaded:
        """Read the stored state, and mark the row with our epoch.

        Raises:
            LeadershipLost: We do not hold the seat.
            PersistenceError: It could not be read.
        """
        loaded = await self._states.load(self._tenure.claim, self._key)
        if loaded is None:
            raise self.fenced()
        self._version = loaded.version
        return loaded

    async def read_until_answered(self) -> StateLoaded:
        """As `read`, retrying while we hold the seat."""
        while True:
            try:
                return await self.read()
            except PersistenceError as error:
                log.info("singleton %r waits for the database: %s", self._name, error)
                await asyncio.sleep(_PAUSE_MOST_S)
            self.require_held()

    async def set_aside(self, reason: str) -> None:
        """Keep a copy of what is stored."""
        if not await self._states.set_aside(self._tenure.claim, self._key, reason):
            raise self.fenced()

    # Writing

    async def write(self, data: bytes) -> None:
        """Write until it is durable, or we lose the seat; refusals are retried as often as the policy says.

        Raises:
            LeadershipLost: We do not hold the seat. It was not written, unless the error says `in_doubt`.
            StatePersistFailed: It is refused. It was not written.
        """
        self.require_held()
        self._is_in_doubt = False
        try:
            await self._write_until_stored(data)
        except LeadershipLost as error:
            if self._is_in_doubt:
                raise self.lost(in_doubt=True) from error
            raise

    async def _write_until_stored(self, data: bytes) -> None:
        away = refused = 0
        while True:
            if chaos.on:
                await chaos.point("singletons.before_save")
            try:
                if await self._try_to_save(data):
                    return
            except PersistenceError as error:
                self._is_in_doubt |= error.outcome == "unknown"
                failure = StatePersistFailed(singleton=self._name, problem=str(error))
                self._failed(failure)
                if error.outcome == "refused":
                    refused += 1
                    pause_s = self._retry.delay_s(refused, self._chance)
                else:  # the database is away: it will be back, or we lose the seat
                    away += 1
                    pause_s = min(_PAUSE_S * 2.0 ** min(away, 10), _PAUSE_MOST_S)
                if pause_s is None:
                    if (await self.read_until_answered()).value == data:  # by an earlier attempt of unknown outcome
                        return
                    raise failure from error
                await asyncio.sleep(pause_s)
            self.require_held()

    async def _try_to_save(self, data: bytes) -> bool:
        written = await self._states.save(self.next_save(data))
        if written == "fenced":
            raise self.fenced()
        if written == "written":
            self._version += 1
            return True
        # An earlier attempt of ours was not answered, or the row has expired: continue from what is there.
        return (await self.read()).value == data

    def next_save(self, data: bytes) -> StateSave:
        """The write that follows what is stored."""
        return StateSave(self._tenure.claim, self._key, data, self._version, self._ttl_s, HISTORY)

    def count_save(self) -> None:
        """Such a write has happened."""
        self._version += 1

    async def is_saved(self, data: bytes) -> bool:
        """Whether such a write, whose answer was lost, has happened. It locks the row until that is decided."""
        before = self._version
        try:
            loaded = await self.read_until_answered()
        except LeadershipLost as error:
            raise self.lost(in_doubt=True) from error
        return loaded.version == before + 1 and loaded.value == data

    # The seat

    def require_held(self) -> None:
        """Raise if we do not hold the seat, as far as is known here."""
        if not self._tenure.held:
            raise self.lost()

    def fenced(self) -> LeadershipLost:
        """The database says that we do not hold the seat: nothing new begins under it."""
        self._tenure.ended = True
        return self.lost()

    def lost(self, *, in_doubt: bool = False) -> LeadershipLost:
        """We do not hold the seat."""
        return self._tenure.lost(in_doubt=in_doubt)
