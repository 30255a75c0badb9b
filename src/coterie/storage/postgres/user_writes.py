"""Writes on a user's connection to PostgreSQL, as statements without a driver. See `storage.contracts.user_writes`."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from coterie.errors import PersistenceError
from coterie.kernel.clock import to_datetime
from coterie.storage.contracts.messages import Receipt
from coterie.storage.contracts.user_writes import (
    JobsInserted,
    MessagesInserted,
    Statement,
    UnitStarted,
    UserWrite,
    other_database,
)
from coterie.storage.postgres.batch import jobs as job_batch
from coterie.storage.postgres.batch import messages as message_batch
from coterie.storage.postgres.server import server_check
from coterie.storage.postgres.writer import SQL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from coterie.storage.contracts.jobs import JobReceipt, NewJob
    from coterie.storage.contracts.messages import Message
    from coterie.storage.contracts.units import UnitStart
    from coterie.storage.postgres.pool import Pool

_AGAIN_MOST = 4
"""Rivals come and go: each round one has committed while the statement ran, and was gone by the next."""
_KNOWN_S = 10.0
"""How long the database's identity is kept: the server behind the url may be replaced by another one."""


class PostgresUserWrites:
    """The writes of one cluster. See `storage.contracts.user_writes.UserWrites`."""

    def __init__(self, *, cluster: str, pool: Pool) -> None:
        self._cluster = cluster
        self._pool = pool
        self._database = ""
        self._known_until_s = -math.inf

    async def insert(self, messages: Sequence[Message]) -> UserWrite[MessagesInserted]:
        """Store messages, except those whose key exists already."""
        return insertion(self._cluster, await self._here(), messages)

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> UserWrite[JobsInserted]:
        """Store jobs, except those whose key exists already."""
        return insertion_of_jobs(self._cluster, await self._here(), jobs)

    async def start(self, unit: UnitStart) -> UserWrite[UnitStarted]:
        """Start a workflow, unless there is a run of its id."""
        return start(self._cluster, await self._here(), unit)

    async def ended(self, transactions: Sequence[str]) -> Mapping[str, bool]:
        """Those of these transactions that have ended, and whether they committed."""
        rows = await self._pool.read(server_check.SQL["ended"], list(transactions))
        return {id_: status == "committed" for id_, status in rows}

    async def _here(self) -> str:
        """The cluster's database."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._known_until_s:
            self._database = (await self._pool.read(server_check.SQL["database"]))[0][0]
            self._known_until_s = now_s + _KNOWN_S
        return self._database


def insertion(cluster: str, database: str, messages: Sequence[Message]) -> UserWrite[MessagesInserted]:
    """Store messages, except those whose key exists already.

    Args:
        cluster: The cluster's name.
        database: The cluster's database, as `here` names it.
        messages: The messages.
    """
    left = {message.id: message for message in messages}
    receipts: dict[str, Receipt] = {}
    transaction: str | None = None
    for _ in range(_AGAIN_MOST):
        rows = yield Statement(SQL["insert_via"], (cluster, *message_batch.columns(list(left.values())), database))
        for found, begun, id_, due_s, now_s in rows:
            if found != database:
                raise other_database()
            if id_ is not None:
                transaction, digest = begun, left.pop(id_).digest
                receipts[id_] = Receipt(id_, True, _instant(due_s), _instant(now_s), "pending", digest)
        if left:  # their keys are taken
            waiting = list(left)
            rows = yield Statement(SQL["read_back"], (cluster, *message_batch.sought(list(left.values()))))
            for number, *row in rows:
                sent = waiting[number - 1]
                receipts[sent] = message_batch.receipt(row, mine=sent)
                del left[sent]
        if not left:
            return MessagesInserted(transaction, [receipts[message.id] for message in messages])
    raise _overtaken()


def insertion_of_jobs(cluster: str, database: str, jobs: Sequence[NewJob]) -> UserWrite[JobsInserted]:
    """Store jobs, except those whose key exists already. As `insertion`."""
    left = {job.id: job for job in jobs}
    receipts: dict[str, JobReceipt] = {}
    transaction: str | None = None
    for _ in range(_AGAIN_MOST):
        # The last value limits the wait for a key, which on a connection of a user is the user's.
        given = job_batch.insertion(list(left.values()))[:-1]
        rows = yield Statement(SQL["insert_jobs_via"], (cluster, *given, database))
        for found, begun, id_, state, due_s, rank_s, now_s in rows:
            if found != database:
                raise other_database()
            if id_ is not None:
                transaction, job = begun, left.pop(id_)
                receipts[id_] = job_batch.fresh(job, (id_, state, _instant(due_s), rank_s, _instant(now_s)))
        if left:  # their keys are taken
            waiting = list(left)
            rows = yield Statement(SQL["read_back_jobs"], (cluster, *job_batch.sought(list(left.values()))))
            for number, *row in rows:
                sent = waiting[number - 1]
                receipts[sent] = job_batch.receipt(row, mine=sent)
                del left[sent]
        if not left:
            return JobsInserted(transaction, [receipts[job.id] for job in jobs])
    raise _overtaken()


def start(cluster: str, database: str, unit: UnitStart) -> UserWrite[UnitStarted]:
    """Start a workflow, unless there is a run of its id."""
    given = (unit.unit, unit.name, unit.id, unit.seat, unit.payload, unit.digest, unit.version, unit.life)
    begin = unit.starts_at, unit.delay_s, unit.latest_at, unit.latest_s, unit.timeout_s, unit.tags
    statement = Statement(SQL["start_via"], (cluster, *begin, *given, database))
    for _ in range(_AGAIN_MOST):
        ((found, transaction),) = yield statement
        if found != database:
            raise other_database()
        if transaction is not None:
            return UnitStarted(transaction, unit.digest)
        rows = yield Statement(SQL["digest_of_unit"], (cluster, unit.unit))
        for (digest,) in rows:
            return UnitStarted(None, bytes(digest))
    raise _overtaken()


def _instant(at_s: float) -> datetime:
    return to_datetime(int(at_s * 1e9))


def _overtaken() -> PersistenceError:
    return PersistenceError(
        doing="store a message in your transaction",
        problem="the messages that have its key come and go",
        hint="roll back and try again",
    )
