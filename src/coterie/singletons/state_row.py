"""The row of a leader's state: read under the fence, written until it is known to be written, or not to be ours.

Only the leader of an epoch can write at that epoch, so whatever differs from what it remembers is a write of its own
whose outcome it never heard. That is how every doubt here is settled: by reading the row again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from coterie.errors import LeadershipLost, PersistenceError, StatePersistFailed
from coterie.kernel import chaos
from coterie.storage.interface import StateSave

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.kernel.random import Random
    from coterie.kernel.retry import Retry
    from coterie.ownership.seats import Tenure
    from coterie.storage.interface import StateLoaded, StateStore

log = logging.getLogger("coterie.singletons")

HISTORY = 20
"""How many of the last states are kept: enough to see what led to the present one."""
_PAUSE_S, _PAUSE_MOST_S = 0.02, 0.5
"""Between two tries while the database is away."""


class StateRowWriter:
    """What one leadership knows of its row.

    Args:
        name: Of the singleton.
        key: Of the row.
        tenure: By which right.
        states: Where it is.
        ttl_s: After how long without a save it expires.
        retry: How often a save that the database refuses is tried.
        chance: For pauses.
        failed: Told of each failure.
    """

    def __init__(
        self,
        name: str,
        key: str,
        tenure: Tenure,
        states: StateStore,
        *,
        ttl_s: float | None,
        retry: Retry,
        chance: Random,
        failed: Callable[[Exception], None],
    ) -> None:
        self._name = name
        self._key = key
        self._tenure = tenure
        self._states = states
        self._ttl_s = ttl_s
        self._retry = retry
        self._chance = chance
        self._failed = failed
        self._version = 0
        self._is_in_doubt = False  # whether a try of the present write was not answered

    # Reading

    async def read(self) -> StateLoaded:
        """What is stored, from now on in our name.

        Raises:
            LeadershipLost: The seat is not ours.
            PersistenceError: It could not be read.
        """
        loaded = await self._states.load(self._tenure.claim, self._key)
        if loaded is None:
            raise self.fenced()
        self._version = loaded.version
        return loaded

    async def insist_to_read(self) -> StateLoaded:
        """The same, for as long as the seat is ours."""
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
        """Until it is durable, or not ours to write any more; what the database refuses, as often as the policy says.

        Raises:
            LeadershipLost: It is not ours. It was not written, unless it is said to be in doubt.
            StatePersistFailed: It is refused. It was not written.
        """
        self.require_held()
        self._is_in_doubt = False
        try:
            await self._insist_to_write(data)
        except LeadershipLost as error:
            if self._is_in_doubt:
                raise self.lost(in_doubt=True) from error
            raise

    async def _insist_to_write(self, data: bytes) -> None:
        away = refused = 0
        while True:
            if chaos.on:
                await chaos.point("singletons.before_save")
            try:
                if await self._wrote(data):
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
                    if (await self.insist_to_read()).value == data:  # by an earlier try of unknown outcome
                        return
                    raise failure from error
                await asyncio.sleep(pause_s)
            self.require_held()

    async def _wrote(self, data: bytes) -> bool:
        told = await self._states.save(self.following(data))
        if told == "fenced":
            raise self.fenced()
        if told == "written":
            self._version += 1
            return True
        # An earlier try of ours that was not answered, or the row has expired: what is there is followed.
        return (await self.read()).value == data

    def following(self, data: bytes) -> StateSave:
        """The write that follows what is stored."""
        return StateSave(self._tenure.claim, self._key, data, self._version, self._ttl_s, HISTORY)

    def followed(self) -> None:
        """Such a write has happened."""
        self._version += 1

    async def has_followed(self, data: bytes) -> bool:
        """Whether such a write, whose answer was lost, has happened. It locks the row until that is decided."""
        before = self._version
        try:
            loaded = await self.insist_to_read()
        except LeadershipLost as error:
            raise self.lost(in_doubt=True) from error
        return loaded.version == before + 1 and loaded.value == data

    # The seat

    def require_held(self) -> None:
        """Raise if the seat is not ours, as far as is known here."""
        if not self._tenure.held:
            raise self.lost()

    def fenced(self) -> LeadershipLost:
        """The database says that the seat is not ours: nothing begins in its name any more."""
        self._tenure.ended = True
        return self.lost()

    def lost(self, *, in_doubt: bool = False) -> LeadershipLost:
        """The seat is not ours."""
        return LeadershipLost(seat=self._tenure.seat, epoch=self._tenure.epoch, in_doubt=in_doubt)
