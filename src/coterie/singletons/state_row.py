"""The row of a leader's state: read under the fence, written until the write is known to be durable or refused.

Only the leader of an epoch can write at that epoch, so whatever differs from what it remembers is a write of its own
whose outcome it never received. So every doubt here is resolved by reading the row again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from coterie.errors import LeadershipLost, PersistenceError, StatePersistFailed
from coterie.kernel import chaos
from coterie.storage.interface import StateSave

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.ownership.seats import Tenure
    from coterie.singletons.definition import Singleton
    from coterie.storage.interface import StateLoaded
    from coterie.work.services import Services

log = logging.getLogger("coterie.singletons")

HISTORY = 20
"""How many of the last states are kept: enough to see what led to the current one."""
_PAUSE_S, _PAUSE_MOST_S = 0.02, 0.5
"""Pauses between attempts while the database is away."""


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
