"""Purging: units that are over for long, and those that nobody has gone on with, are cleared away now and then."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from coterie.errors import PersistenceError

if TYPE_CHECKING:
    from coterie.kernel.chance import Chance
    from coterie.settings import Settings
    from coterie.storage.interface import Storage

log = logging.getLogger("coterie.workflows")

_PURGE_S = 60.0
_PURGE_MOST = 200


async def purge_units(storage: Storage, settings: Settings, chance: Chance) -> None:
    """For as long as a runner lives that has leaders, crons or workflows."""
    older_s = settings.retention.total_seconds()
    while True:
        await asyncio.sleep(chance.between(_PURGE_S / 2, _PURGE_S))
        try:
            abandoned = await storage.units.purge(older_s=older_s, most=_PURGE_MOST)
        except PersistenceError as error:
            log.info("old workflows are not cleared away yet: %s", error)
            continue
        for unit in abandoned:
            log.warning("%s was abandoned: nobody has gone on with it for %gs, its steps are gone", unit, older_s)
