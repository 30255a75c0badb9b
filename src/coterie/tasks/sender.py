"""Sends jobs: stores them, hints to the holder of their queue's seat, waits for results, cancels.

    stored ──▶ hint ──▶ claimed by the holder of the seat, run by a runner ──▶ the holder answers the caller
                 │
                 └── lost, no holder, "look" ──▶ storage: ended, or the holder is asked again

Promise:
    Once stored, a job runs, whatever becomes of its sender. A caller that stops waiting does not affect it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.entities.calls.spans import sent, trace_of
from coterie.entities.calls.wire import NOT_MINE
from coterie.entities.host.work import handling
from coterie.entities.idempotency_key import derived_key, key_of, shown_key
from coterie.entities.persisted.commit import effects_of, has_ended
from coterie.entities.persisted.outcome import (
    cancelled,
    read_reply,
    refuse_commit_of_its_own,
    refuse_far_away,
    refuse_inside_transaction,
    require_small,
)
from coterie.entities.persisted.reply import SLICE_S, RowLookup
from coterie.entities.persisted.sender import retried
from coterie.errors import (
    CoterieError,
    InvalidArgument,
    KeyConflict,
    MessageDead,
    MessageExpired,
    NotCommitted,
    PersistenceError,
    SendTimeout,
)
from coterie.kernel import metrics, spans
from coterie.kernel.clock import to_datetime
from coterie.kernel.context import context_here, refuse_in_transaction
from coterie.kernel.ids import MessageId, MessageIds, job_id_of
from coterie.kernel.text import require_text
from coterie.storage.contracts.jobs import JobHead, JobInsert, NewJob
from coterie.tasks.definition import PRIORITY_MOST
from coterie.tasks.frames import LOOK, UNRANKED_S, JobCancel, JobOver, JobQuestion, JobsOver, JobsSent
from coterie.tasks.task import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from datetime import datetime

    from coterie.client import Client
    from coterie.entities.calls.client import CallClient
    from coterie.entities.host.work import Work
    from coterie.entities.persisted.outcome import ReplyType
    from coterie.storage.contracts.jobs import JobReceipt, JobRow
    from coterie.storage.contracts.messages import Transaction
    from coterie.storage.interface import Storage
    from coterie.tasks.definition import TaskType
    from coterie.tasks.exchange import JobExchange

_PAUSE_S, _PAUSE_MOST_S = 0.02, 0.5
_SLICE_MOST_S = 2.0
"""How long a holder is waited for before storage is read: it may be frozen, or have lost the seat meanwhile."""
COMMIT_MOST = 1_000
"""How many jobs `send_many` stores with one commit."""
_COMMIT_MOST_BYTES = 8 * 1024 * 1024
"""With larger payloads there are fewer: others wait for the commit."""
_AHEAD_S = 0.001
"""What is due within this time is ready."""


class JobSender:
    """Sends the jobs of one process.

    Args:
        calling: The calls of this process: its clock, time and settings.
        storage: Stores the jobs.
        exchange: Brings frames to holders and runners.
    """

    def __init__(self, calling: CallClient, storage: Storage, exchange: JobExchange) -> None:
        self._calling = calling
        self._storage = storage
        self._exchange = exchange
        self._most_bytes = calling.here.settings.frame_limit
        self._ids = MessageIds(calling.clock, calling.chance)
        self._rows: RowLookup[JobRow] = RowLookup(lambda ids: storage.jobs.look(ids))

    # Sending

    async def call(self, job: Job[Any]) -> Any:
        """Store a job and wait for its result."""
        outer = handling.get()
        if outer is not None:
            refuse_inside_transaction(repr(job), outer)
        within_s = self._calling.within_s(job.timeout_s)
        until_s = self._calling.time() + within_s
        new = self._new(job, outer, derives=True)
        refuse_in_transaction(job)
        (receipt,) = await self._stored([new], until_s=until_s)
        if not receipt.fresh:
            await self._require_usable(new, receipt, until_s=until_s)
            new = msgspec.structs.replace(new, id=receipt.id)
        return await self._reply(new, job.type, until_s=until_s, within_s=within_s)

    async def send(
        self, job: Job[Any], *, at: datetime | None = None, delay_s: float = 0.0, priority: int | None = None
    ) -> MessageId[Any]:
        """Store a job. Inside a handler or job it is stored with the other effects of that, when that succeeds."""
        new = self.new_job(job, at=at, delay_s=delay_s, priority=priority)
        collected = await self._collected(new)
        if collected is not None:
            return collected
        refuse_in_transaction(job, instead="or send it with via= and what the block gave")
        until_s = self._calling.time() + self._calling.within_s(None)
        (receipt,) = await self._stored([new], until_s=until_s)
        if not receipt.fresh:
            await self._require_usable(new, receipt, until_s=until_s)
        return MessageId(receipt.id)

    async def send_many(
        self, jobs: Sequence[Job[Any]], *, at: datetime | None = None, delay_s: float = 0.0, priority: int | None = None
    ) -> list[MessageId[Any]]:
        """Store jobs, a thousand with each commit, in order. Inside a handler or job as `send` does.

        Raises:
            CoterieError: The first error; its `stored` has the ids that are stored.
        """
        if handling.get() is not None:  # one by one: they are collected in this order
            return [await self.send(job, at=at, delay_s=delay_s, priority=priority) for job in jobs]
        new = [self.new_job(job, at=at, delay_s=delay_s, priority=priority) for job in jobs]  # all are checked first
        refuse_in_transaction("cluster.send_many", instead="or send them with via= and what the block gave")
        ids: list[MessageId[Any]] = []
        for group in _grouped(new):
            until_s = self._calling.time() + self._calling.within_s(None)
            try:
                receipts = await self._stored(group, until_s=until_s)
                await self._require_all_usable(group, receipts, ids, until_s=until_s)
            except CoterieError as error:
                error.stored = tuple(ids)
                raise
        return ids

    async def store_keyed(self, jobs: Sequence[tuple[TaskType, bytes, str]]) -> list[str]:
        """Store jobs under keys of their own, those whose keys exist excepted, a thousand with each commit.

        Args:
            jobs: Task, encoded arguments and key of each.

        Returns:
            The id of each, also of those that were stored before.
        """
        new = []
        for task, payload, key in jobs:
            job: Job[Any] = Job(task, payload, self)
            job.close()  # it is stored here
            _, digest = key_of(task, payload, "map")
            new.append(msgspec.structs.replace(self._new(job, None), key=key, digest=digest))
        ids: list[str] = []
        for group in _grouped(new):
            receipts = await self._storage.jobs.insert(JobInsert(tuple(group)))
            self._hint(group, receipts)
            ids += [each.id for each in receipts]
        return ids

    def new_job(
        self, job: Job[Any], *, at: datetime | None = None, delay_s: float = 0.0, priority: int | None = None
    ) -> NewJob:
        """A job as it is stored, checked."""
        refuse_far_away(job, at=at, delay_s=delay_s)
        return self._new(job, handling.get(), at=at, delay_s=delay_s, priority=_priority(priority, job))

    # In a transaction of the user

    async def add(self, transaction: Transaction, new: NewJob) -> MessageId[Any]:
        """Send a job with the commit of a transaction; the holder of its seat learns of it then.

        Raises:
            KeyConflict: The key was used before with other arguments.
        """
        there = await self._used_before(new, transaction.jobs)
        if there is None:
            transaction.add_job(new, then=lambda: self.hint(new))
        return MessageId(there or new.id)

    async def judged(self, new: NewJob, receipt: JobReceipt) -> MessageId[Any]:
        """The id of a job that was stored on a connection of the user, and is not committed yet.

        Raises:
            KeyConflict: The key was used before with other arguments.
            MessageDead: The job that has the key is dead.
        """
        if receipt.fresh:
            _count([new])
        else:
            until_s = self._calling.time() + self._calling.within_s(None)
            await self._require_usable(new, receipt, until_s=until_s)
        return MessageId(receipt.id)

    def hint(self, new: NewJob) -> None:
        """Tell the holder of its seat of a job that was stored with something else, and whose receipt is not known."""
        _count([new])
        now_s = self._now_s()
        due_s = now_s + new.delay_s if new.due_at is None else new.due_at.timestamp()
        if due_s - now_s <= _AHEAD_S:
            self._exchange.tell(new.seat, JobsSent(new.seat, (_head(new, UNRANKED_S),)))
        else:
            self._exchange.tell(new.seat, JobsSent(new.seat, due_in_s=due_s - now_s))

    def hint_seat(self, seat: str) -> None:
        """Tell the holder of a seat that something may be new there."""
        self._exchange.tell(seat, JobsSent(seat, due_in_s=0.0))

    # Results

    async def result(self, job_id: str, *, within_s: float, type_of: Callable[[str], ReplyType]) -> Any:
        """Wait for the result of a job.

        Args:
            job_id: The id of the job.
            within_s: How long to wait.
            type_of: Finds the reader of the result by the name of the task.
        """
        job_id, outer = require_text(str(job_id), what="job id"), handling.get()
        if outer is not None and outer.effects is not None and any(each.id == job_id for each in outer.effects.jobs):
            raise RuntimeError(
                f"job {job_id} is stored when {outer.target} has ended: its result cannot be awaited in there"
            )
        until_s = self._calling.time() + within_s
        row = await self._rows.find_within(job_id, until_s=until_s)
        if row is None:
            if self._calling.here.commits.is_open(job_id):
                raise NotCommitted(message_id=job_id)
            raise MessageExpired(message_id=job_id)
        task = type_of(row.task)
        if row.ended_at is not None:
            return result_of(row, task)
        return await self._reply(row, task, until_s=until_s, within_s=within_s)

    async def cancel(self, job_id: str) -> bool:
        """End a job that waits, or see to it that nothing of a running one commits and its body is cancelled.

        Returns:
            False if it has ended, or does not exist.
        """
        job_id = require_text(str(job_id), what="job id")
        if _unsend(job_id):
            return True
        refuse_commit_of_its_own("cluster.cancel")
        until_s = self._calling.time() + self._calling.within_s(None)
        row = await self._rows.find_within(job_id, until_s=until_s)
        if row is None or row.ended_at is not None:
            return False
        reply = cancelled(job_id)
        outcome, running = await self._storage.jobs.cancel(job_id, reply=reply)
        if outcome == "cancelled":
            self._exchange.tell(row.seat, JobsOver(row.seat, (JobOver(job_id, 0, reply=reply),)))
        elif running is not None and running.runner is not None:
            self._exchange.tell_runner(running.runner, JobCancel(job_id, running.claim))
        return outcome in ("cancelled", "cancelling")

    async def stop(self) -> None:
        """Stop all waits."""
        await self._rows.stop()

    # Storing

    def _new(
        self,
        job: Job[Any],
        outer: Work | None,
        *,
        derives: bool = False,
        at: datetime | None = None,
        delay_s: float = 0.0,
        priority: int | None = None,
    ) -> NewJob:
        task, payload = job.type, job.payload
        require_small(payload, what=job, most_bytes=self._most_bytes)
        key, digest = (None, b"") if job.key is None and not task.key else key_of(task, payload, job.key)
        if derives and key is None and outer is not None and outer.is_stored and not has_ended(outer):
            number = effects_of(outer).number_call()
            key, digest = derived_key(task, payload, message_id=outer.message_id, number=number)
        job_id = job_id_of(self._ids.draw())
        return NewJob(
            id=job_id,
            seat=task.seat_of(job_id),
            part=task.part_of(payload),
            task=task.name,
            payload=payload,
            fingerprint=task.fingerprint,
            key=key,
            digest=digest,
            priority=task.priority if priority is None else priority,
            age_s=task.age_s,
            due_at=at,
            delay_s=delay_s,
            tags=job.tags,
            trace_id=None if outer is None and context_here(None) is None and not spans.on else trace_of(outer),
        )

    async def _stored(self, new: Sequence[NewJob], *, until_s: float) -> Sequence[JobReceipt]:
        """Store jobs with one commit, and hint; retry under the same ids while the database is unreachable."""
        write = JobInsert(tuple(new))
        try:
            receipts = await self._storage.jobs.insert(write)
        except PersistenceError as error:
            time = self._calling.time
            receipts = await retried(lambda: self._storage.jobs.insert(write), error, until_s=until_s, time=time)
        self._hint(new, receipts)
        return receipts

    def _hint(self, new: Sequence[NewJob], receipts: Sequence[JobReceipt]) -> None:
        fresh = [each for each in zip(new, receipts, strict=True) if each[1].fresh]
        _count([job for job, _ in fresh])
        for seat in dict.fromkeys(job.seat for job, _ in fresh):
            here = [each for each in fresh if each[0].seat == seat]
            heads = tuple(_head(job, receipt.rank_s) for job, receipt in here if receipt.state == "ready")
            waits = [(each.due_at - each.now).total_seconds() for _, each in here if each.state == "later"]
            self._exchange.tell(seat, JobsSent(seat, heads, min(waits, default=None)))

    async def _collected(self, new: NewJob) -> MessageId[Any] | None:
        """Add a job to the effects of the running handler or job. None: there is none, or it has ended."""
        outer = handling.get()
        if outer is None or not outer.has_begun or has_ended(outer):
            return None
        effects = effects_of(outer)
        there = await self._used_before(new, effects.jobs)
        if there is not None:
            return MessageId(there)
        if not effects.is_open:
            return None
        if new.delay_s:
            due_at = to_datetime(int((self._now_s() + new.delay_s) * 1e9))
            new = msgspec.structs.replace(new, due_at=due_at, delay_s=0.0)
        effects.jobs.append(new)
        return MessageId(new.id)

    # Keys that were used before

    async def _used_before(self, new: NewJob, others: Sequence[NewJob]) -> str | None:
        """The id of the job that has the same key: one of those of the same commit, or a stored one."""
        if new.key is None:
            return None
        same = next((each for each in others if (each.task, each.key) == (new.task, new.key)), None)
        if same is not None:
            _require_same(new, same.id, same.digest)
            return same.id
        found = await self._storage.jobs.find(new.task, new.key)
        if found is None:
            return None
        _require_same(new, found.id, found.digest)
        return found.id

    async def _require_usable(self, new: NewJob, found: JobReceipt, *, until_s: float) -> None:
        """Refuse a key whose job has other arguments, or is dead."""
        _require_same(new, found.id, found.digest)
        if found.state == "dead":
            row = await self._rows.find_within(found.id, until_s=until_s)
            raise MessageExpired(message_id=found.id) if row is None else _dead(row)

    async def _require_all_usable(
        self, new: Sequence[NewJob], receipts: Sequence[JobReceipt], ids: list[MessageId[Any]], *, until_s: float
    ) -> None:
        """Add the ids of what is stored to `ids`, then raise the first error."""
        problem: CoterieError | None = None
        for job, receipt in zip(new, receipts, strict=True):
            try:
                if not receipt.fresh:
                    await self._require_usable(job, receipt, until_s=until_s)
            except CoterieError as error:
                problem = problem or error
            else:
                ids.append(MessageId(receipt.id))
        if problem is not None:
            raise problem

    # Waiting

    async def _reply(self, job: NewJob | JobRow, task: ReplyType, *, until_s: float, within_s: float) -> Any:
        """Wait for the end of a stored job, and return its result as the caller gets it.

        Raises:
            SendTimeout: The deadline passed. The job stays.
            MessageDead: The job is dead.
            MessageExpired: It no longer exists: it was purged.
        """
        outer = handling.get()
        if outer is None:
            return await self._awaited(job, task, until_s=until_s, within_s=within_s)
        outer.rest()
        try:
            return await self._awaited(job, task, until_s=until_s, within_s=within_s)
        finally:
            outer.resume()

    async def _awaited(self, job: NewJob | JobRow, task: ReplyType, *, until_s: float, within_s: float) -> Any:
        time, question = self._calling.time, JobQuestion(job.id, job.seat)
        pause_s, slice_s = _PAUSE_S, SLICE_S
        while True:
            left_s = min(slice_s, until_s - time())
            answer = await self._exchange.ask_holder(job.seat, question, within_s=left_s) if left_s > 0 else LOOK
            is_unknown = not answer or answer.startswith((LOOK, NOT_MINE))
            if not is_unknown:
                return read_reply(answer, task)
            slice_s = min(slice_s * 2, _SLICE_MOST_S)
            try:
                row = await self._rows.find_within(job.id, until_s=until_s)
            except PersistenceError as error:  # the read failed; the job itself is stored
                raise _too_late(job, within_s) from error
            if row is None:
                raise MessageExpired(message_id=job.id)
            if row.ended_at is not None:
                return result_of(row, task)
            if time() >= until_s:
                raise _too_late(job, within_s)
            if answer.startswith(NOT_MINE):
                await asyncio.sleep(min(pause_s, until_s - time()))
                pause_s = min(pause_s * 2, _PAUSE_MOST_S)

    def _now_s(self) -> float:
        """The best estimate here of the database's clock."""
        host = self._calling.host
        if host is not None and host.inbox is not None:
            return host.inbox.now_s()
        return self._calling.clock.wall_ns() / 1e9


class JobCaller:
    """Awaits the jobs of a program, through the client or runner that currently acts (`entities.reference.Caller`).

    Args:
        acting: Returns that client or runner.
    """

    def __init__(self, acting: Callable[[], Client]) -> None:
        self._acting = acting

    def call(self, job: Job[Any], /) -> Coroutine[Any, Any, Any]:
        """Store a job and wait for its result."""
        send = self._acting().job_sender.call
        return sent("cluster.call", "CLIENT", _facts(job), send, job) if spans.on else send(job)

    def send(
        self, job: Job[Any], *, at: datetime | None, delay_s: float, priority: int | None
    ) -> Coroutine[Any, Any, MessageId[Any]]:
        """Store a job without waiting for its result."""
        send = partial(self._acting().job_sender.send, at=at, delay_s=delay_s, priority=priority)
        return sent("cluster.send", "PRODUCER", _facts(job), send, job) if spans.on else send(job)

    def send_many(
        self, jobs: Sequence[Job[Any]], *, at: datetime | None, delay_s: float, priority: int | None
    ) -> Coroutine[Any, Any, list[MessageId[Any]]]:
        """Store jobs without waiting for their results."""
        send = partial(self._acting().job_sender.send_many, at=at, delay_s=delay_s, priority=priority)
        facts = {"coterie.messages": str(len(jobs))}
        return sent("cluster.send_many", "PRODUCER", facts, send, jobs) if spans.on else send(jobs)


def _facts(job: Job[Any]) -> dict[str, str]:
    return {"coterie.task": job.type.name}


def _priority(given: Any, job: Job[Any]) -> int | None:
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or abs(given) > PRIORITY_MOST):
        problem = f"it must be a whole number from -{PRIORITY_MOST} to {PRIORITY_MOST}"
        raise InvalidArgument(what=f"priority of {job!r}", value=repr(given), problem=problem)
    return given


def _grouped(new: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    """Groups for one commit each, in order."""
    group: list[NewJob] = []
    size = 0
    for each in new:
        if group and (len(group) == COMMIT_MOST or size + len(each.payload) > _COMMIT_MOST_BYTES):
            yield group
            group, size = [], 0
        group.append(each)
        size += len(each.payload)
    if group:
        yield group


def _head(new: NewJob, rank_s: float) -> JobHead:
    return JobHead(new.id, new.part, new.task, new.fingerprint, rank_s, priority=new.priority)


def _count(new: Sequence[NewJob]) -> None:
    for each in new:
        metrics.JOBS_SENT.of(each.task).value += 1


def _require_same(new: NewJob, found: str, digest: bytes) -> None:
    if digest != new.digest:
        raise KeyConflict(target=f"task {new.task!r}", key=shown_key(new.key or ""), message_id=found)


def result_of(row: JobRow, task: ReplyType) -> Any:
    """The result of a job that has ended, or its error."""
    if row.state == "dead":
        raise _dead(row)
    return read_reply(row.reply or b"", task)


def _dead(row: JobRow) -> MessageDead:
    last = row.errors[-1].error.partition("\n")[0] if row.errors else "nobody knows why"
    hint = f"coterie jobs show {row.id} tells each attempt, coterie jobs retry {row.id} runs it again"
    return MessageDead(message_id=row.id, target=row.task, attempts=row.failures + row.lost, problem=last, hint=hint)


def _too_late(job: NewJob | JobRow, waited_s: float) -> SendTimeout:
    hint = f"the job is stored and will run; cluster.result({job.id!r}) waits for it"
    return SendTimeout(target=f"task {job.task!r}", waited_s=waited_s, hint=hint, message_id=job.id)


def _unsend(job_id: str) -> bool:
    """Remove a job that the running handler or job sent and that is not stored yet. Returns whether there was one."""
    outer = handling.get()
    if outer is None or outer.effects is None or not outer.effects.is_open:
        return False
    mine = next((each for each in outer.effects.jobs if each.id == job_id), None)
    if mine is not None:
        outer.effects.jobs.remove(mine)
    return mine is not None
