"""The state of a leader: what is stored, what the body sees of it, and how a change becomes durable (S2, S4-S6).

Only the leader of an epoch can write at that epoch, so whatever differs from what it remembers is a write of its own
whose outcome it never heard. That is how every doubt here is settled: by reading the row again, under the fence.
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
    from collections.abc import AsyncIterator, Callable

    from coterie.kernel.chance import Chance
    from coterie.kernel.retry import Retry
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
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._singleton = singleton
        self._tenure = tenure
        self._storage = storage
        self._states = storage.states
        self._retry = retry
        self._chance = chance
        self._changed = changed
        self._failed = failed
        self._turn = _Turn(singleton.name)
        self._stored: bytes | None = None  # None: not what this program would write
        self._data = b""  # the encoding of what the body sees
        self._version = 0
        self._is_doubtful = False  # whether a write is under way, or nobody knows how it ended
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
        if self._turn.is_mine and self._turn.in_transaction:
            self._stage(data)
            return
        async with self._turn:
            await self._settle()
            await self._write(data)

    @asynccontextmanager
    async def update(self) -> AsyncIterator[S]:
        """A copy to change, saved when the block ends well."""
        if self._turn.is_mine and self._turn.in_transaction:
            draft = self._codec.decode(self._data if self._staged is None else self._staged)
            yield draft
            self._stage(self._encode(draft))
            return
        async with self._turn:
            await self._settle()
            draft = self._codec.decode(self._data)
            yield draft
            await self._write(self._encode(draft))

    @asynccontextmanager
    async def transaction(self, *, limit_s: float) -> AsyncIterator[Transaction]:
        """SQL of the user's own; what is saved in its block is saved with it, or not at all."""
        async with self._turn:
            await self._settle()
            self._require_held()
            transaction = self._storage.transaction(limit_s=limit_s)
            self._turn.in_transaction = True
            try:
                yield transaction
            except BaseException:
                await transaction.rollback()
                raise
            else:
                await self._commit(transaction)
            finally:
                self._turn.in_transaction = False
                self._staged = None
                if self._singleton.codec is not None:
                    self._take(self._data)

    def _stage(self, data: bytes) -> None:
        self._staged = data
        self._shown = self._codec.decode(data)

    async def _commit(self, transaction: Transaction) -> None:
        data = self._staged
        if data is None or data == self._stored:
            await self._commit_alone(transaction)
            return
        write: Any = self._state_save(data)
        self._is_doubtful = True
        try:
            told = await transaction.commit(write)
        except PersistenceError as error:
            if error.outcome != "unknown":
                self._is_doubtful = False
                raise
            log.warning("singleton %r looks whether its transaction was committed: %s", self._singleton.name, error)
            if not await self._was_written(data):
                raise
            told = "written"
        if told == "fenced":
            raise self._lost()
        if told != "written":  # the row is of another version: then somebody removed it by hand, or it expired
            await self._settle()
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
        self._is_doubtful = False
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
        self._is_doubtful = True
        while True:
            if chaos.on:
                await chaos.point("singletons.before_save")
            try:
                if await self._saved(data):
                    return
            except PersistenceError as error:
                attempt += 1
                await asyncio.sleep(self._pause_s(attempt, error))
            self._require_held()

    async def _saved(self, data: bytes) -> bool:
        told = await self._states.save(self._state_save(data))
        if told == "fenced":
            raise self._lost()
        if told == "written":
            self._wrote(data)
            return True
        # An earlier try of ours that was not answered, or the row has expired: what is there is followed.
        loaded = await self._read()
        if loaded.value == data:
            self._version -= 1
            self._wrote(data)
            return True
        return False

    def _wrote(self, data: bytes) -> None:
        self._version += 1
        self._is_doubtful = False
        self._stored = data
        self._take(data)
        self._changed()

    def _pause_s(self, attempt: int, error: PersistenceError) -> float:
        failure = StatePersistFailed(singleton=self._singleton.name, problem=str(error))
        self._failed(failure)
        if error.outcome != "refused":  # the database is away: it will be back, or we lose the seat
            return min(_PAUSE_S * 2.0 ** min(attempt, 10), _PAUSE_MOST_S)
        pause_s = self._retry.delay_s(attempt, self._chance)
        if pause_s is None:
            self._is_doubtful = False
            raise failure from error
        return pause_s

    async def _settle(self) -> None:
        """If nobody knows how the last write ended (its caller was cancelled), look."""
        if not self._is_doubtful:
            return
        loaded = await self._insist_to_read()
        self._is_doubtful = False
        if loaded.value is not None and loaded.value != self._stored:
            await self._decode(loaded.value)

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
    def is_mine(self) -> bool:
        return self._task is not None and self._task is asyncio.current_task()

    async def __aenter__(self) -> None:
        if self.is_mine:
            where = "transaction()" if self.in_transaction else "update()"
            raise RuntimeError(f"singleton {self._name!r} is inside of {where} already: end that block first")
        await self._lock.acquire()
        self._task = asyncio.current_task()

    async def __aexit__(self, *exc: object) -> None:
        self._task = None
        self._lock.release()
