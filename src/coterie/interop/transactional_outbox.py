"""Sends and starts within a transaction of the user: on the user's own connection, or in one that coterie opens (O1).

via=connection   one statement on it ──▶ the user commits ──▶ noticed within 20 ms: the owners poll storage
via=transaction  collected ──▶ stored with its commit ──▶ handed to the owners at once
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from coterie.entities.calls.spans import sent
from coterie.entities.host.work import handling
from coterie.entities.persisted.commit import has_ended
from coterie.entities.persisted.transaction import TransactionBlock
from coterie.errors import InvalidArgument
from coterie.interop.user_connection import UserConnection, awaited, run_on
from coterie.kernel import spans
from coterie.storage.contracts.jobs import JobReceipt
from coterie.storage.contracts.units import require_same
from coterie.storage.interface import GROUP_MOST
from coterie.storage.user_transaction import OpenedTransaction
from coterie.work.transaction import rolling_back
from coterie.workflows.api import new_unit, start_within
from coterie.workflows.start_options import AT_ONCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from datetime import datetime

    from coterie.client import Client
    from coterie.entities.reference import Call
    from coterie.entities.registry import EntityRegistry
    from coterie.kernel.ids import MessageId
    from coterie.participant import Participant
    from coterie.storage.contracts.jobs import NewJob
    from coterie.storage.contracts.messages import Message, Receipt
    from coterie.tasks.task import Job
    from coterie.work.transaction import Transaction
    from coterie.workflows.definition import WorkflowType
    from coterie.workflows.start_options import StartOptions

WHO = "this block of cluster.transaction()"


class TransactionalOutbox:
    """What one process sends within users' transactions.

    Args:
        participant: Knows the runner or client to act through.
        entities: The entity types of the program.
    """

    def __init__(self, participant: Participant, entities: EntityRegistry) -> None:
        self._participant = participant
        self._acting = participant.acting
        self._entities = entities

    async def send(
        self, calls: Sequence[Call[Any]], via: object, *, at: datetime | None, delay_s: float
    ) -> list[MessageId[Any]]:
        """Store calls of persisted rpcs within the transaction of `via`.

        Raises:
            TypeError: It is no connection that is known here, or one that blocks.
            InvalidArgument: It would commit by itself, or is to another database.
            KeyConflict: A key was used before with other arguments. The transaction may go on without this message.
        """
        transaction = self._transaction(via)
        if transaction is not None:
            return [await self._add(transaction, call, at=at, delay_s=delay_s) for call in calls]
        if isinstance(via, TransactionBlock):  # what an rpc sends is part of its commit anyway
            via.require_here()
            return [await self._entities.send(call, at=at, delay_s=delay_s) for call in calls]
        connection = awaited(via)
        if not spans.on:
            return await self._store(connection, calls, at, delay_s)
        facts = {"coterie.messages": str(len(calls))}
        ids: list[MessageId[Any]] = await sent(
            "cluster.send", "PRODUCER", facts, self._store, connection, calls, at, delay_s
        )
        return ids

    async def send_jobs(
        self, jobs: Sequence[Job[Any]], via: object, *, at: datetime | None, delay_s: float, priority: int | None
    ) -> list[MessageId[Any]]:
        """Store jobs within the transaction of `via`. Raises what `send` raises."""
        transaction, sender = self._transaction(via), self._acting().job_sender
        if isinstance(via, TransactionBlock):
            via.require_here()
            return [await sender.send(job, at=at, delay_s=delay_s, priority=priority) for job in jobs]
        new = [sender.new_job(job, at=at, delay_s=delay_s, priority=priority) for job in jobs]
        if transaction is not None:
            return [await sender.add(transaction, each) for each in new]
        connection = awaited(via)
        if not spans.on:
            return await self._store_jobs(connection, new)
        facts = {"coterie.messages": str(len(jobs))}
        ids: list[MessageId[Any]] = await sent("cluster.send", "PRODUCER", facts, self._store_jobs, connection, new)
        return ids

    async def start(
        self, kind: WorkflowType, payload: Any, id: str, via: object, *, options: StartOptions = AT_ONCE
    ) -> None:
        """Start a workflow within the transaction of `via`. Raises what `send` raises."""
        here, transaction = self._acting(), self._transaction(via)
        if transaction is not None:
            await start_within(transaction, here, kind, payload, id, options=options)
            return
        if options.debounced:
            raise RuntimeError(
                "start_workflow(…, debounce=) changes a row that other starts of this id change, so it is no part of "
                "your transaction: call it after the commit"
            )
        connection = awaited(via)
        unit = options.of(new_unit(here, kind, payload, id))
        told = await run_on(connection, await here.storage.user_writes.start(unit))
        require_same(unit, told.digest)
        if told.transaction is not None:
            here.commits.watch(told.transaction, [(unit.seat, unit.unit)])

    # On a connection of the user

    async def _store(
        self, connection: UserConnection, calls: Sequence[Call[Any]], at: datetime | None, delay_s: float
    ) -> list[MessageId[Any]]:
        here = self._acting()
        messages = [self._message(here, call, at=at, delay_s=delay_s) for call in calls]  # all are checked first
        receipts: list[Receipt] = []
        for first in range(0, len(messages), GROUP_MOST):
            receipts += await self._insert(here, connection, messages[first : first + GROUP_MOST])
        judged = here.calling.persisted.judged
        return [await judged(*each) for each in zip(calls, messages, receipts, strict=True)]

    async def _insert(self, here: Client, connection: UserConnection, messages: Sequence[Message]) -> Sequence[Receipt]:
        told = await run_on(connection, await here.storage.user_writes.insert(messages))
        if told.transaction is not None:
            new = {receipt.id for receipt in told.receipts if receipt.fresh}
            here.commits.watch(told.transaction, {(each.seat, "") for each in messages if each.id in new}, messages=new)
        return told.receipts

    async def _store_jobs(self, connection: UserConnection, new: Sequence[NewJob]) -> list[MessageId[Any]]:
        here, receipts = self._acting(), list[JobReceipt]()
        for first in range(0, len(new), GROUP_MOST):
            group = new[first : first + GROUP_MOST]
            told = await run_on(connection, await here.storage.user_writes.insert_jobs(group))
            if told.transaction is not None:
                fresh = {receipt.id for receipt in told.receipts if receipt.fresh}
                seats = {(each.seat, "") for each in group if each.id in fresh}
                here.commits.watch(told.transaction, seats, messages=fresh)
            receipts += told.receipts
        return [await here.job_sender.judged(*each) for each in zip(new, receipts, strict=True)]

    def _message(self, here: Client, call: Call[Any], *, at: datetime | None, delay_s: float) -> Message:
        return here.calling.persisted.message(call, self._entities.type_of(call), at=at, delay_s=delay_s)

    # In a transaction that coterie has opened

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction without a seat: committed at the end of the block, rolled back if it raises."""
        opened = await self.opened()
        async with rolling_back(opened, who=WHO):
            yield opened
        await self.commit(opened)

    async def opened(self) -> OpenedTransaction:
        """A transaction, which connects with its first statement.

        Raises:
            RuntimeError: The current work has a transaction of its own, with which it should be done.
        """
        here = self._participant.writing("cluster.transaction()")
        outer = None if self._participant.is_elsewhere() else handling.get()
        if outer is not None and outer.has_begun and not has_ended(outer):
            raise RuntimeError(
                f"cluster.transaction() commits whatever becomes of {outer.target}: in an rpc use self.transaction(), "
                f"which commits with its reply"
            )
        opened = here.storage.transaction(limit_s=here.settings.transaction_limit.total_seconds())
        assert isinstance(opened, OpenedTransaction), "of every engine"
        return opened

    async def commit(self, opened: OpenedTransaction) -> None:
        """Commit it with what was sent in it; completed even if this is cancelled.

        Raises:
            PersistenceError: Nothing is written; with the outcome "unknown" it may be.
            KeyConflict: There is a run with the id of a workflow that it starts, and another payload.
        """
        await asyncio.shield(opened.tasks.spawn(opened.commit(None), name="commit", report=False))

    async def _add(
        self, transaction: OpenedTransaction, call: Call[Any], *, at: datetime | None, delay_s: float
    ) -> MessageId[Any]:
        here = self._acting()
        message = self._message(here, call, at=at, delay_s=delay_s)
        return await here.calling.persisted.add(transaction, call, message)

    def _transaction(self, via: object) -> OpenedTransaction | None:
        """A transaction that coterie has opened; None: it is something else."""
        if not isinstance(via, OpenedTransaction):
            return None
        if via.tasks is not self._acting().storage.tasks:
            raise InvalidArgument(
                what="via",
                value="a transaction of another cluster",
                problem="it can commit only what that one stores",
                hint="open one with cluster.transaction() of this cluster",
            )
        return via
