"""The writer session: commits a group as one transaction, and reports the outcome of each kind of failure [M3].

What is known after a failure:

    the server answered with an error       refused        it rolled back; retried where that helps
    lost before the commit was sent         unreachable    nothing was written; retried while time is left
    lost during the commit                  unknown        it may have happened
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import asyncpg

from coterie.errors import PersistenceError
from coterie.storage import statements
from coterie.storage.contracts.jobs import JobInsert
from coterie.storage.contracts.messages import Insert
from coterie.storage.group_commit import WriteBlocked
from coterie.storage.postgres.batch import jobs as job_batch
from coterie.storage.postgres.batch import messages as message_batch
from coterie.storage.postgres.batch import plan, single
from coterie.storage.postgres.errors import DatabaseRefusal, Lost, describe, judge, loss, refusal
from coterie.storage.postgres.pool import Pool
from coterie.storage.postgres.session import deadline
from coterie.storage.user_transaction import overtaken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from coterie.kernel.random import Random
    from coterie.storage.contracts.jobs import NewJob
    from coterie.storage.contracts.messages import Message, Receipt
    from coterie.storage.interface import Write
    from coterie.storage.postgres.connector import ConnectionLimits, Connector
    from coterie.storage.postgres.session import PostgresSession

    Fetch = Callable[..., Awaitable[Any]]

SQL = {
    name: sql
    for file in (
        *("kv.sql", "fenced_writes.sql", "leading.sql", "messages.sql", "jobs.sql", "queues.sql", "ticks.sql"),
        *("units.sql", "lives.sql", "later.sql", "audit.sql"),
    )
    for name, sql in statements.load("coterie.storage.postgres.sql", file).items()
}

_AT_LENGTH: dict[str, plan.Shape] = {
    "add_steps": "write_steps", "add_step": "write_steps", "end_message": "end_messages", "end_job": "end_jobs"
}  # fmt: skip
"""Statements that return only what they have written, and those that handle the rest."""

_UNTOLD = _AT_LENGTH.keys() | {"insert_messages", "insert_message", "add_message", "insert_jobs"}

_KEY_WAIT = "50ms"
"""How long a group waits for a key that another transaction has stored and not committed: that may be a user's."""

AGAIN_MOST = 4
"""Tries of a group that met a deadlock or, for a lone write, a lock, before it is refused."""


APART_MOST = 4
"""Sessions for writes that wait for a key."""


class PostgresWriter:
    """Commits groups on its own session, which it replaces when it is lost.

    Args:
        connector: Opens sessions.
        cluster: The cluster whose rows it writes.
        chance: For jitter.
        limits: The time limits.
        audit: Whether writes that the fence refuses are recorded.
    """

    def __init__(
        self, connector: Connector, *, cluster: str, chance: Random, limits: ConnectionLimits, audit: bool = False
    ) -> None:
        self._connector = connector
        self._cluster = cluster
        self._audit = audit
        self._chance = chance
        self._limits = limits
        self._session: PostgresSession | None = None
        self._apart = Pool(connector, size=APART_MOST, chance=chance, limits=limits)
        self._down = False
        self._doing = f"write to {connector.address}"

    def adopt(self, session: PostgresSession) -> None:
        """Take over a writer session that was opened elsewhere."""
        self._session = session

    def rename(self) -> None:
        """Close the sessions of writes that wait, under the connector's old name."""
        self._apart.rename()

    async def close(self) -> None:
        """Close the sessions."""
        await self._apart.close()
        if self._session is not None:
            await self._session.close()

    async def commit(self, writes: Sequence[Write]) -> Sequence[Any]:
        """Write a group in one transaction. Returns one result per member, in order.

        Raises:
            PersistenceError: With the outcome, the same for all members.
        """
        over = deadline(self._limits.call_s)
        failure: PersistenceError | None = None
        tries = 0
        while True:
            tries += 1
            session = self._session
            if session is None or not self._fit(session):
                session = await self._connected(over=over, failure=failure)
            try:
                if deadline(0) >= session.look_at:
                    await self._connector.look_again(session, over=over)
                return await self._run(session, writes, over=over)
            except Lost as lost:
                failure = loss(lost, doing=self._doing, outcome="unknown" if lost.sent else "unreachable")
                if lost.sent or deadline(0) >= over:
                    raise failure from lost
            except DatabaseRefusal as error:
                failure = refusal(error, doing=self._doing)
                if len(writes) == 1 and judge(error) == "locked" and message_batch.has_key(writes[0]):
                    raise WriteBlocked from error
                if not self._worth_another_try(error, tries=tries, alone=len(writes) == 1, over=over):
                    raise failure from error
            await asyncio.sleep(self._chance.between(0.001, 0.005 * 2 ** min(tries, 5)))

    async def write_apart(self, write: Write) -> Any:
        """Return the result of a write that waits for another transaction, perhaps for long: on a session of its own.

        Raises:
            PersistenceError: With the outcome.
        """
        over = deadline(self._limits.call_s)
        while True:
            try:
                async with self._apart.session(over=over) as session:
                    return await self.write(partial(session.fetch, over=over), write)
            except Lost as lost:
                raise loss(lost, doing=self._doing, outcome="unknown" if lost.sent else "unreachable") from lost
            except DatabaseRefusal as error:
                # An insert holds nothing while it waits; the commit of a handler holds its seat.
                is_patient = judge(error) == "again" or (
                    judge(error) == "locked" and isinstance(write, Insert | JobInsert)
                )
                if not is_patient or deadline(self._limits.call_s / 2) >= over:  # a try needs time to wait and answer
                    raise refusal(error, doing=self._doing) from error

    async def require_sent(self, fetch: Fetch, messages: Sequence[Message]) -> None:
        """Store messages inside a user's transaction, which `fetch` uses.

        Raises:
            PersistenceError: One of them has a key that is taken.
        """
        inserts = [Insert(message) for message in messages]
        rows = await fetch(SQL["insert_messages"], self._cluster, *message_batch.values("insert_messages", inserts))
        if len(rows) < len(messages):
            raise overtaken()

    async def require_stored(self, fetch: Fetch, jobs: Sequence[NewJob]) -> None:
        """Store jobs inside a user's transaction, which `fetch` uses.

        Raises:
            PersistenceError: One of them has a key that is taken.
        """
        rows = await fetch(SQL["insert_jobs"], self._cluster, *job_batch.insertion(jobs))
        if len(rows) < len(jobs):
            raise overtaken()

    async def write(self, fetch: Fetch, write: Write) -> Any:
        """Return the result of one write inside a user's transaction, which `fetch` uses."""
        (bucket,) = plan.fold([write])
        (result,) = await self._written(fetch, bucket, [write])
        return result

    def _worth_another_try(self, error: Exception, *, tries: int, alone: bool, over: float) -> bool:
        verdict = judge(error)
        if verdict == "refused" or deadline(self._limits.call_s / 4) >= over:
            return False  # a try needs time to get its answer, otherwise the outcome would become unknown
        if verdict == "elsewhere":
            self._drop()
            return True
        # A group that meets another session's lock is not retried as a whole: its members are, one by one.
        return tries < AGAIN_MOST and (verdict == "again" or alone)

    def _run(self, session: PostgresSession, writes: Sequence[Write], *, over: float) -> Awaitable[list[Any]]:
        if len(writes) == 1 and not self._audit and (shape := single.shape_of(writes[0])) is not None:
            return self._run_alone(session, shape, writes, over=over)
        buckets = plan.fold(writes)
        if len(buckets) == 1 and not (self._audit and buckets[0].shape in plan.FENCED):
            return self._written(
                partial(session.fetch, over=over), buckets[0], writes, limit=_KEY_WAIT
            )  # in their order
        return self._run_all(session, buckets, writes, over=over)

    async def _run_alone(
        self, session: PostgresSession, shape: single.Shape, writes: Sequence[Write], *, over: float
    ) -> list[Any]:
        """Like `_written`, with less overhead for a lone write."""
        take, read = single.WAYS[shape]
        rows: Sequence[Any]
        try:
            given = message_batch.limited(shape, take(writes[0]), _KEY_WAIT)
            rows = await session.fetch(SQL[shape], self._cluster, *given, over=over)
        except asyncpg.UniqueViolationError:
            if shape not in plan.ADDING:
                raise
            rows = []  # the row exists already
        if rows:
            return [read(writes[0], rows[0])]
        assert shape in _UNTOLD, f"{shape} tells of everything"
        found: list[Any] = [None]
        await self._complete(partial(session.fetch, over=over), plan.Bucket(shape, [0]), writes, found)
        return found

    async def _run_all(
        self, session: PostgresSession, buckets: Sequence[plan.Bucket], writes: Sequence[Write], *, over: float
    ) -> list[Any]:
        outcome: list[Any] = [None] * len(writes)

        async def fill(fetch: Fetch) -> None:
            for bucket in buckets:
                found = await self._written(fetch, bucket, writes, limit=_KEY_WAIT)
                for place, result in zip(bucket.places, found, strict=True):
                    outcome[place] = result

        await session.transact(fill, over=over)
        return outcome

    async def _written(
        self, fetch: Fetch, bucket: plan.Bucket, writes: Sequence[Write], *, limit: str | None = None
    ) -> list[Any]:
        """The results of one statement's writes. `limit` is that of the wait for a key; None: that of the session."""
        given = plan.values(bucket, writes)
        given = given if limit is None else message_batch.limited(bucket.shape, given, limit)
        rows = await fetch(SQL[bucket.shape], self._cluster, *given)
        found = plan.results(bucket, writes, rows)
        if bucket.shape in _UNTOLD and None in found:
            await self._complete(fetch, bucket, writes, found)
        if self._audit and (refused := plan.refused(bucket, writes, found)):
            await fetch(SQL["refused"], self._cluster, *refused)
        return found

    async def _complete(self, fetch: Fetch, bucket: plan.Bucket, writes: Sequence[Write], found: list[Any]) -> None:
        """Complete the results of a statement that returns only what it has written."""
        if bucket.shape in _AT_LENGTH:
            more = self._told_at_length(fetch, bucket, writes, found)
        elif bucket.shape == "insert_jobs":
            more = self._read_jobs_back(fetch, [cast("JobInsert", writes[place]) for place in bucket.places], found)
        else:
            more = self._read_back(fetch, [cast("Insert", writes[place]).message for place in bucket.places], found)
        try:
            await more
        except DatabaseRefusal as error:
            # The statement has committed by itself, unless there is a transaction, or nothing to commit.
            if bucket.shape in ("end_message", "end_job") or self._session is None or self._session.in_transaction:
                raise
            raise Lost(describe(error), sent=True) from error

    async def _read_back(self, fetch: Fetch, messages: Sequence[Message], found: list[Receipt | None]) -> None:
        """Find the messages that exist instead of those not stored, in a separate statement [M4]."""
        for _ in range(AGAIN_MOST):
            left = {place: messages[place] for place, receipt in enumerate(found) if receipt is None}
            if not left:
                return
            await self._look_or_store(fetch, left, found)
        raise asyncpg.SerializationError("the messages that are in the way come and go")

    async def _read_jobs_back(self, fetch: Fetch, writes: Sequence[JobInsert], found: list[Any]) -> None:
        """Find the jobs that exist instead of those not stored, as `_read_back` does."""
        for _ in range(AGAIN_MOST):
            left = {
                job.id: job for write, told in zip(writes, found, strict=True) if told is None for job in write.jobs
            }
            if not left:
                return
            sent, receipts = list(left.values()), {}
            for number, *row in await fetch(SQL["read_back_jobs"], self._cluster, *job_batch.sought(sent)):
                job = sent[number - 1]
                receipts[job.id] = job_batch.receipt(row, mine=job.id)
            again = [job for job in sent if job.id not in receipts]  # whose rival has been purged or cancelled since
            for row in await fetch(SQL["insert_jobs"], self._cluster, *job_batch.insertion(again)) if again else ():
                receipts[row[0]] = job_batch.fresh(left[row[0]], row)
            for place, write in enumerate(writes):
                if found[place] is None and all(job.id in receipts for job in write.jobs):
                    found[place] = tuple(receipts[job.id] for job in write.jobs)
        raise asyncpg.SerializationError("the jobs that are in the way come and go")

    async def _told_at_length(
        self, fetch: Fetch, bucket: plan.Bucket, writes: Sequence[Write], found: list[Any]
    ) -> None:
        """Write the remaining ones with the longer statement, or find out why they are refused."""
        left = [place for place, told in enumerate(found) if told is None]
        rest = plan.Bucket(_AT_LENGTH[bucket.shape], [bucket.places[place] for place in left])
        rows = await fetch(SQL[rest.shape], self._cluster, *plan.values(rest, writes))
        for place, told in zip(left, plan.results(rest, writes, rows), strict=True):
            found[place] = told

    async def _look_or_store(self, fetch: Fetch, left: Mapping[int, Message], found: list[Receipt | None]) -> None:
        """Read again; store messages whose rival has been purged or cancelled since."""
        places = list(left)
        for number, *row in await fetch(SQL["read_back"], self._cluster, *message_batch.sought(list(left.values()))):
            place = places[number - 1]
            found[place] = message_batch.receipt(row, mine=left[place].id)
        places = [place for place in places if found[place] is None]
        if places:
            again = [Insert(left[place]) for place in places]
            rows = await fetch(SQL["insert_messages"], self._cluster, *message_batch.values("insert_messages", again))
            for place, receipt in zip(places, message_batch.results("insert_messages", again, rows), strict=True):
                found[place] = receipt

    async def _connected(self, *, over: float, failure: PersistenceError | None) -> PostgresSession:
        self._drop()
        try:
            self._session = await self._reconnect(over=over)
        except PersistenceError as error:
            raise failure or error from error  # the earlier failure says more than the timeout
        return self._session

    def _fit(self, session: PostgresSession) -> bool:
        return not session.closed and not session.standby and session.name == self._connector.name

    async def _reconnect(self, *, over: float) -> PostgresSession:
        # In an outage the queued groups would wait for their deadlines one after another: the first one waits
        # in full, later ones get a single try after a short pause, so that a long queue fails soon.
        if self._down:
            await asyncio.sleep(self._chance.between(0.05, 0.2))
        tries = 1 if self._down else None
        self._down = True
        session = await self._connector.connect("writer", over=over, tries=tries)
        self._down = False
        return session

    def _drop(self) -> None:
        if self._session is not None:
            self._session.abort()
            self._session = None
