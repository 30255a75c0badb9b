"""Pruner: deletes expired rows from all tables.

each minute ──▶ one bounded statement per table ──▶ tables that may have more: again, after a pause ──▶ all are done

Every runner prunes all tables; rows that another session has locked are left to that session. A client prunes only the
key-value store, since a cluster may consist of clients. `Storage.overdue` shows what is not pruned in time.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Literal, get_args

from coterie.errors import PersistenceError
from coterie.kernel import metrics
from coterie.kernel.service import Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from coterie.kernel.random import Random
    from coterie.kernel.supervisor import Supervisor
    from coterie.settings import Settings
    from coterie.storage.interface import Storage

log = logging.getLogger("coterie.storage")

Table = Literal[
    "kv", "states", "ticks", "units", "activity", "incoming", "schedules", "run_messages", "messages", "jobs"
]
TABLES: Sequence[Table] = get_args(Table)

_EVERY_S = 60.0
_BATCH = 500
"""Rows that one statement visits: it holds its locks for a few milliseconds only."""
_PAUSE_S = 0.02
"""Between two statements, so that other writes can run."""


class Pruner:
    """Prunes for one process, from `start` to `stop`.

    Args:
        storage: The storage of the cluster.
        settings: `retention`, and `key_retention` for messages and jobs with a key and for acts.
        chance: The jitter that keeps processes from pruning in step.
        supervisor: The supervisor of this process.
        tables: The tables to prune.
    """

    def __init__(
        self,
        storage: Storage,
        settings: Settings,
        *,
        chance: Random,
        supervisor: Supervisor,
        tables: Sequence[Table] = TABLES,
    ) -> None:
        self._storage = storage
        self._retention_s = settings.retention.total_seconds()
        self._key_retention_s = settings.key_retention.total_seconds()
        self._chance = chance
        self._supervisor = supervisor
        self._tables = tables
        self._tasks = Tasks("pruner")

    def start(self) -> None:
        """Start pruning at regular intervals."""
        self._tasks.supervise(self._prune_on, name="prune", supervisor=self._supervisor)

    async def stop(self) -> None:
        """Stop pruning."""
        await self._tasks.stop()

    async def _prune_on(self) -> None:
        while True:
            await asyncio.sleep(self._chance.between(_EVERY_S / 2, _EVERY_S))
            await self.prune()

    async def prune(self) -> dict[Table, int]:
        """Delete all expired rows, one batch of each table in turn. Returns the number of rows per table."""
        counts: dict[Table, int] = dict.fromkeys(self._tables, 0)
        left = {table: self._batches(table) for table in self._tables}
        while left:
            for table, batches in list(left.items()):
                try:
                    deleted = await anext(batches, None)
                except PersistenceError as error:
                    log.warning("%s were not pruned, the next attempt is in a minute: %s", table, error)
                    deleted = None
                if deleted is None:
                    del left[table]
                else:
                    counts[table] += deleted
                    metrics.PRUNED_ROWS.of(table).value += deleted
            await asyncio.sleep(_PAUSE_S)
        return counts

    async def _batches(self, table: Table) -> AsyncIterator[int]:
        """Delete batch after batch from one table. Yields the number of rows of each."""
        if table in ("messages", "jobs"):
            store = self._storage.messages if table == "messages" else self._storage.jobs
            after = ""
            while True:
                deleted, after = await store.purge(
                    after=after, retention_s=self._retention_s, key_retention_s=self._key_retention_s, most=_BATCH
                )
                yield deleted
                if not after:
                    return
        deleted = _BATCH
        while deleted == _BATCH:
            deleted = await self._delete(table)
            yield deleted

    async def _delete(self, table: Table) -> int:
        if table == "kv":
            return await self._storage.kv.purge(most=_BATCH)
        if table == "states":
            return await self._storage.states.purge(most=_BATCH)
        if table == "ticks":
            return await self._storage.ticks.purge(older_s=self._retention_s, most=_BATCH)
        if table == "schedules":
            return await self._storage.schedules.purge(older_s=self._retention_s, most=_BATCH)
        if table == "run_messages":
            return await self._storage.run_messages.purge(older_s=self._retention_s, most=_BATCH)
        if table == "incoming":
            return await self._storage.incoming.purge(older_s=self._key_retention_s, most=_BATCH)
        if table == "activity":
            return await self._storage.activity.purge(older_s=self._key_retention_s, most=_BATCH)
        purged = await self._storage.units.purge(older_s=self._retention_s, most=_BATCH)
        for unit in purged.abandoned:
            log.warning("%s was deleted with its steps: no runner has continued it for %gs", unit, self._retention_s)
        return purged.most
