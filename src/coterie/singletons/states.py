"""The state of a leader: what is stored, what the body sees of it, and how a change becomes durable (S2, S4-S6).

Only the leader of an epoch can write at that epoch, so whatever differs from what it remembers is a write of its own
whose outcome it never heard. That is how every doubt here is settled: by reading the row again, under the fence. And
nobody writes on before it is settled, also if whoever saved was cancelled meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic

from coterie.errors import LeadershipLost, MalformedMessage, PersistenceError, SchemaDecodeFailed, StatePersistFailed
from coterie.kernel import chaos
from coterie.kernel.versions import MigrationFailed, NewerVersion
from coterie.singletons.definitions import S
from coterie.storage.interface import StateSave
from coterie.storage.messages import Commit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from coterie.kernel.chance import Chance
    from coterie.kernel.retry import Retry
    from coterie.kernel.tasks import Tasks
    from coterie.kernel.versions import Versioned
    from coterie.ownership.tenure import Tenure
    from coterie.singletons.definitions import Singleton
    from coterie.storage.interface import StateLoaded, Storage
    from coterie.storage.messages import Transaction

log = logging.getLogger("coterie.singletons")

HISTORY = 20
"""How many of the last states are kept: enough to see what led to the present one."""
_PAUSE_S, _PAUSE_MOST_S = 0.02, 0.5
"""Between two tries to save while the database is away."""


class LeaderState(Generic[S]):
    """The state of one leadership.

    Args:
        singleton: Whose state it is.
        tenure: By which right.
        storage: Where it is stored.
        retry: How often a save that the database refuses is tried.
        chance: For pauses.
        tasks: Where a save ends whose caller was cancelled.
        changed: Told of each save that has changed something.
        failed: Told of each error of storing or reading.
    """

    def __init__(
        self,
        singleton: Singleton[S],
        tenure: Tenure,
        storage: Storage,
        *,
        retry: Retry,
        chance: Chance,
        tasks: Tasks,
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._singleton = singleton
        self._tenure = tenure
        self._storage = storage
        self._states = storage.states
        self._retry = retry
        self._chance = chance
        self._tasks = tasks
        self._changed = changed
        self._failed = failed
        self._turn = _Turn(singleton.name)
        self._stored: bytes | None = None  # None: not what this program would write
        self._data = b""  # the encoding of what the body sees
        self._version = 0
        self._shown: Any = None
        self._staged: bytes | None = None  # what an open transaction will save

    @property
    def shown(self) -> S:
        """The state, to be read. Changing it changes nothing that is stored."""
        shown: S = self._shown
        return shown

    # Loading

    async def load(self) -> None:
        """Take over what the former leader left.

        Raises:
            LeadershipLost: It is not ours.
            SchemaDecodeFailed: A later version of the program wrote it, or a migration fails. It was not touched.
            PersistenceError: It could not be read.
        """
        if self._singleton.codec is None:
            return
        loaded = await self._read()
        if loaded.value is None or loaded.expired:
            self._take(self._encode(self._singleton.initial()))
            self._stored = self._data if loaded.value is None else None
        else:
            await self._decode(loaded.value)

    async def _decode(self, data: bytes) -> None:
        codec = self._codec
        try:
            value = codec.decode(data)
        except (NewerVersion, MigrationFailed) as error:
            raise SchemaDecodeFailed(singleton=self._singleton.name, problem=error.message, hint=error.hint) from error
        except MalformedMessage as error:
            problem = f"it cannot be read: {error.message}"
            log.error("state of %r is set aside, and begins anew: %s", self._singleton.name, problem)
            hint = "the first state is used instead; what was stored is kept aside, see its history"
            self._failed(SchemaDecodeFailed(singleton=self._singleton.name, problem=problem, hint=hint))
            await self._set_aside(problem)
            value = self._singleton.initial()
        else:
            before = codec.version_of(data)
            if before != codec.version:
                await self._set_aside(f"it was migrated from version {before} to {codec.version}")
        encoded = self._encode(value)
        self._take(encoded)
        self._stored = data if data == encoded else None

    async def _set_aside(self, reason: str) -> None:
        if not await self._states.set_aside(self._tenure.claim, self._singleton.key, reason):
            raise self._lost()

    async def _read(self) -> StateLoaded:
        loaded = await self._states.load(self._tenure.claim, self._singleton.key)
        if loaded is None:
            raise self._lost()
        self._version = loaded.version
        return loaded

    # Saving

    async def save(self, state: S) -> None:
        """Make a state durable, if it is another one."""
        data = self._encode(state)
        if self._turn.in_transaction_here:
            self._stage(data)
            return
        await self._turn.take()
        await self._then_leave(self._write(data))

    @asynccontextmanager
    async def update(self) -> AsyncIterator[S]:
        """A copy to change, saved when the block ends well."""
        if self._turn.in_transaction_here:
            draft = self._codec.decode(self._data if self._staged is None else self._staged)
            yield draft
            self._stage(self._encode(draft))
            return
        await self._turn.take()
        try:
            draft = self._codec.decode(self._data)
            yield draft
            data = self._encode(draft)
        except BaseException:
            self._turn.leave()
            raise
        await self._then_leave(self._write(data))

    @asynccontextmanager
    async def transaction(self, *, limit_s: float) -> AsyncIterator[Transaction]:
        """SQL of the user's own; what is saved in its block is saved with it, or not at all."""
        await self._turn.take()
        try:
            self._require_held()
            transaction = self._storage.transaction(limit_s=limit_s)
            self._turn.in_transaction = True
            try:
                yield transaction
            except BaseException:
                await transaction.rollback()
                raise
        except BaseException:
            self._unstage()
            self._turn.leave()
            raise
        await self._then_leave(self._commit(transaction))

    async def _then_leave(self, work: Coroutine[Any, Any, None]) -> None:
        """Bring something to its end, also if its caller is cancelled: nobody writes on while an end is not known."""
        task = self._tasks.spawn(work, name=f"save {self._singleton.name}", report=False)
        task.add_done_callback(self._turn.left)
        await asyncio.shield(task)

    def _stage(self, data: bytes) -> None:
        self._staged = data
        self._shown = self._codec.decode(data)

    def _unstage(self) -> None:
        self._turn.in_transaction = False
        if self._staged is not None:
            self._staged = None
            self._take(self._data)

    async def _commit(self, transaction: Transaction) -> None:
        data = self._staged
        try:
            if data is None or data == self._stored:
                await self._commit_alone(transaction)
            else:
                await self._commit_state(transaction, data)
        finally:
            self._unstage()

    async def _commit_state(self, transaction: Transaction, data: bytes) -> None:
        write: Any = self._state_save(data)
        try:
            told = await transaction.commit(write)
        except PersistenceError as error:
            if error.outcome != "unknown":
                raise
            log.warning("singleton %r looks whether its transaction was committed: %s", self._singleton.name, error)
            if not await self._was_written(data):
                raise
            told = "written"
        if told == "fenced":
            raise self._lost()
        if told != "written":  # it has expired, or somebody removed it by hand
            await self._insist_to_read()
            problem = "the stored state is another one than this leader knows"
            raise StatePersistFailed(singleton=self._singleton.name, problem=problem)
        self._wrote(data)

    async def _commit_alone(self, transaction: Transaction) -> None:
        told = await transaction.commit(Commit(self._tenure.claim, None, b"", None, ()))
        if told != "written":
            raise self._lost()

    async def _was_written(self, data: bytes) -> bool:
        """Whether a commit has happened whose answer was lost. The row is locked by it until that is decided."""
        before = self._version
        loaded = await self._insist_to_read()
        self._version = before
        return loaded.version == before + 1 and loaded.value == data

    async def _insist_to_read(self) -> StateLoaded:
        while True:
            try:
                return await self._read()
            except PersistenceError as error:
                log.info("singleton %r waits for the database: %s", self._singleton.name, error)
                await asyncio.sleep(_PAUSE_MOST_S)
            self._require_held()

    async def _write(self, data: bytes) -> None:
        """Until it is durable, or not ours to write any more; "refused" as often as the policy says."""
        self._warn_of_change()
        self._require_held()
        if data == self._stored:
            return
        attempt = 0
        while True:
            if chaos.on:
                await chaos.point("singletons.before_save")
            try:
                if await self._saved(data):
                    return
            except PersistenceError as error:
                attempt += 1
                failure = StatePersistFailed(singleton=self._singleton.name, problem=str(error))
                self._failed(failure)
                pause_s = self._pause_s(attempt, error)
                if pause_s is None:
                    if self._is_there(data, await self._insist_to_read()):  # by an earlier try of unknown outcome
                        return
                    raise failure from error
                await asyncio.sleep(pause_s)
            self._require_held()

    async def _saved(self, data: bytes) -> bool:
        told = await self._states.save(self._state_save(data))
        if told == "fenced":
            raise self._lost()
        if told == "written":
            self._wrote(data)
            return True
        # An earlier try of ours that was not answered, or the row has expired: what is there is followed.
        return self._is_there(data, await self._read())

    def _is_there(self, data: bytes, loaded: StateLoaded) -> bool:
        if loaded.value != data:
            return False
        self._version -= 1
        self._wrote(data)
        return True

    def _wrote(self, data: bytes) -> None:
        self._version += 1
        self._stored = data
        self._take(data)
        self._changed()

    def _pause_s(self, attempt: int, error: PersistenceError) -> float | None:
        """None: enough."""
        if error.outcome != "refused":  # the database is away: it will be back, or we lose the seat
            return min(_PAUSE_S * 2.0 ** min(attempt, 10), _PAUSE_MOST_S)
        return self._retry.delay_s(attempt, self._chance)

    def _state_save(self, data: bytes) -> StateSave:
        singleton = self._singleton
        return StateSave(self._tenure.claim, singleton.key, data, self._version, singleton.ttl_s, HISTORY)

    # Small things

    def _take(self, data: bytes) -> None:
        self._data = data
        self._shown = self._codec.decode(data)

    def _warn_of_change(self) -> None:
        try:
            is_same = self._codec.encode(self._shown) == self._data
        except MalformedMessage:
            is_same = False
        if not is_same:
            log.warning(
                "singleton %r changed leader.state outside of update(): that change is not saved, and gone now; write "
                "async with leader.update() as state",
                self._singleton.name,
            )
            self._shown = self._codec.decode(self._data)

    def _encode(self, state: Any) -> bytes:
        return self._codec.encode(state)

    @property
    def _codec(self) -> Versioned[Any]:
        codec = self._singleton.codec
        if codec is None:
            raise TypeError(f"singleton {self._singleton.name!r} has no state: add state= to its definition")
        return codec

    def _require_held(self) -> None:
        if not self._tenure.held:
            raise self._lost()

    def _lost(self) -> LeadershipLost:
        return LeadershipLost(seat=self._tenure.seat, epoch=self._tenure.epoch)


class _Turn:
    """One change at a time: two that overlap would lose one of them. A task that would wait for itself is told."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[Any] | None = None
        self.in_transaction = False

    @property
    def in_transaction_here(self) -> bool:
        """Whether the task that asks is inside of a transaction's block."""
        return self.in_transaction and self._task is asyncio.current_task()

    async def take(self) -> None:
        """Wait for one's turn."""
        if self._task is not None and self._task is asyncio.current_task():
            where = "transaction()" if self.in_transaction else "update()"
            raise RuntimeError(f"singleton {self._name!r} is inside of {where} already: end that block first")
        await self._lock.acquire()
        self._task = asyncio.current_task()

    def leave(self) -> None:
        """The next one may change something."""
        self._task = None
        self._lock.release()

    def left(self, task: asyncio.Task[Any]) -> None:
        """The same, when a task has ended. Its error is its caller's, if that still waits."""
        if not task.cancelled():
            task.exception()
        self.leave()
