"""What a `Cluster` sends: calls of entities, jobs of tasks, starts of workflows; also with the commits of users."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from coterie.entities.persisted.outcome import transaction_here
from coterie.entities.persisted.transaction import TransactionBlock
from coterie.entities.reference import Call, require_sendable
from coterie.errors import CoterieError
from coterie.kernel.durations import Duration, seconds_or_none, to_seconds
from coterie.kernel.ids import is_job
from coterie.work.tags import tags_of
from coterie.workflows.start_options import AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from coterie.entities.reference import Sendable
    from coterie.interop.transactional_outbox import TransactionalOutbox
    from coterie.kernel.ids import MessageId
    from coterie.participant import Participant
    from coterie.program import Program
    from coterie.storage.contracts.units import UnitStartResult
    from coterie.tasks.task import Job
    from coterie.workflows.api import WorkflowHandle
    from coterie.workflows.start_options import StartOptions


class MessageBus:
    """Sends what a program gives to `cluster.send` and the like: persisted and volatile calls, jobs, starts of runs.

    Args:
        program: Its entities and tasks.
        participant: Knows the client or runner to act through.
        outbox: Returns what sends within users' transactions.
    """

    def __init__(self, program: Program, participant: Participant, outbox: Callable[[], TransactionalOutbox]) -> None:
        self._program = program
        self._participant = participant
        self._acting = participant.acting
        self._outbox = outbox

    async def call(self, call: object, *, timeout: Duration | None, key: str | None) -> Any:
        """Await a call or job with options for this one only."""
        taken = require_sendable(call, what="cluster.call")
        if key is not None and isinstance(taken, Call) and not taken.rpc.persisted:
            raise TypeError(f"{taken!r} is not persisted, and has no key: keys are kept in the database")
        if timeout is not None:
            taken.timeout_s = to_seconds(timeout, what="timeout")
        taken.key = key
        if isinstance(taken, Call):
            return await self._program.entities.call(taken)
        return await self._program.job_caller.call(self._mine(taken))

    async def send(
        self,
        call: object,
        *,
        at: datetime | None,
        delay: Duration | None,
        key: str | None,
        priority: int | None,
        tags: Mapping[str, str] | None,
        via: object,
    ) -> MessageId[Any]:
        """Send a call or job without waiting for its result."""
        taken = require_sendable(call, what="cluster.send")
        options = (("at", at), ("delay", delay), ("key", key), ("tags", tags), ("via", via))
        given = [name for name, value in options if value is not None]
        if given and isinstance(taken, Call) and not taken.rpc.persisted:
            raise TypeError(f"{taken!r} is not persisted: {given[0]}= is for persisted rpcs")
        delay_s = _delay_s(repr(taken), at, delay)
        taken.key, taken.tags = key, tags_of(tags, what=taken)
        if via is not None:
            return (await self._send_via([taken], via, at=at, delay_s=delay_s, priority=priority))[0]
        if isinstance(taken, Call):
            _refuse_priority(taken, priority)
            return await self._program.entities.send(taken, at=at, delay_s=delay_s)
        return await self._program.job_caller.send(self._mine(taken), at=at, delay_s=delay_s, priority=priority)

    async def send_many(
        self,
        calls: Iterable[object],
        *,
        at: datetime | None,
        delay: Duration | None,
        priority: int | None,
        tags: Mapping[str, str] | None,
        via: object,
    ) -> list[MessageId[Any]]:
        """Send many calls of persisted rpcs, or jobs, in few commits."""
        taken = [self._lasting(call) for call in calls]
        delay_s, pairs = _delay_s("cluster.send_many", at, delay), tags_of(tags, what="cluster.send_many")
        for each in taken:
            each.tags = pairs
        if via is not None:
            return await self._send_via(taken, via, at=at, delay_s=delay_s, priority=priority)
        ids: list[MessageId[Any]] = []
        for are_calls, some in groupby(taken, key=_is_call):
            try:
                if are_calls:
                    calls_of = [_refuse_priority(cast("Call[Any]", each), priority) for each in some]
                    ids += await self._program.entities.send_many(calls_of, at=at, delay_s=delay_s)
                else:
                    jobs = [self._mine(each) for each in some]
                    ids += await self._program.job_caller.send_many(jobs, at=at, delay_s=delay_s, priority=priority)
            except CoterieError as error:
                error.stored = (*ids, *error.stored)
                raise
        return ids

    async def result(self, message: MessageId[Any], *, timeout: Duration | None) -> Any:
        """Wait for the result of a message or job."""
        timeout_s = seconds_or_none(timeout, what="timeout")
        if not is_job(message):
            return await self._program.entities.result(message, timeout_s=timeout_s)
        here = self._acting()
        within_s = here.calling.within_s(timeout_s)
        return await here.job_sender.result(message, within_s=within_s, type_of=self._program.tasks.named)

    async def cancel(self, message: MessageId[Any]) -> bool:
        """Cancel a message or job."""
        here = self._acting()
        return await (here.job_sender if is_job(message) else here.calling.persisted).cancel(message)

    async def start(
        self, workflow: object, payload: object, id: str, *, via: object, options: StartOptions
    ) -> WorkflowHandle[Any]:
        """Start a run, in a commit of its own, with that of the current work, or with a user's."""
        is_elsewhere = self._participant.is_elsewhere()
        if options.again and (via is not None or (not is_elsewhere and transaction_here() is not None)):
            raise RuntimeError(
                "start_workflow(…, again=True) is a commit of its own: call it outside of the transaction"
            )
        kind = self._program.workflows.of(workflow)
        if isinstance(via, TransactionBlock):  # it is that of `transaction_here`
            via.require_here()
        elif via is not None:
            await self._outbox().start(kind, payload, id, via, options=options)
            return self.workflow_handle(workflow, id)
        transaction = None if is_elsewhere else transaction_here()
        if transaction is None:
            started = await self.start_run(workflow, payload, id, options=options)
            return self.workflow_handle(workflow, id, life=started.row.life)
        from coterie.workflows.api import start_within

        await start_within(transaction, self._acting(), kind, payload, id, options=options)
        return self.workflow_handle(workflow, id)

    def workflow_handle(self, workflow: object, id: str, *, life: int | None = None) -> WorkflowHandle[Any]:
        """The handle of a run, whether the run exists or not."""
        from coterie.workflows.api import handle_of

        participant = self._participant
        return handle_of(self._program.workflows.of(workflow), id, participant.acting, participant.writing, life=life)

    async def start_run(
        self,
        workflow: object,
        payload: object,
        id: str,
        *,
        parent: str | None = None,
        waited_as: str = "",
        options: StartOptions = AT_ONCE,
    ) -> UnitStartResult:
        """Store a run in a commit of its own."""
        from coterie.workflows.api import start  # only programs that have workflows load them

        here = self._participant.writing("cluster.start_workflow")
        kind = self._program.workflows.of(workflow)
        return await start(here, kind, payload, id, parent=parent, waited_as=waited_as, options=options)

    async def _send_via(
        self, taken: Sequence[Sendable[Any]], via: object, *, at: datetime | None, delay_s: float, priority: int | None
    ) -> list[MessageId[Any]]:
        ids: list[MessageId[Any]] = []
        for are_calls, some in groupby(taken, key=_is_call):
            if are_calls:
                calls = [_refuse_priority(cast("Call[Any]", each), priority) for each in some]
                ids += await self._outbox().send(calls, via, at=at, delay_s=delay_s)
            else:
                jobs = [self._mine(each) for each in some]
                ids += await self._outbox().send_jobs(jobs, via, at=at, delay_s=delay_s, priority=priority)
        return ids

    def _lasting(self, call: object) -> Sendable[Any]:
        if isinstance(call, Call) and not call.rpc.persisted:
            call.close()
            raise TypeError(
                f"cluster.send_many takes calls of persisted rpcs and jobs, and {call!r} is not persisted: "
                f"use cluster.send"
            )
        return require_sendable(call, what="cluster.send_many")

    def _mine(self, taken: Sendable[Any]) -> Job[Any]:
        """A job of a task of this cluster."""
        job = cast("Job[Any]", taken)
        if self._program.tasks.known.get(job.type.name) is not job.type:
            raise TypeError(f"{job!r} was made by another cluster: this one has no such task")
        return job


def _is_call(taken: Sendable[Any]) -> bool:
    return isinstance(taken, Call)


def _refuse_priority(call: Call[Any], priority: int | None) -> Call[Any]:
    if priority is not None:
        raise TypeError(f"{call!r} is a call of an entity, whose messages run in order: priority= is for jobs")
    return call


def _delay_s(what: str, at: datetime | None, delay: Duration | None) -> float:
    """The delay of a send, in seconds; checks that it has one time at most."""
    if at is not None and delay is not None:
        raise TypeError(f"{what} has at= and delay=: give one of them")
    if at is not None and at.tzinfo is None:
        raise ValueError(f"at is {at}, which has no time zone: add one, as in datetime.now(UTC)")
    return 0.0 if delay is None else to_seconds(delay, what="delay", allow_zero=True)
