"""One attempt of a job: its body with all that is around it, up to what is to be written of it.

returned ─▶ reply checked and encoded ─┐
raised a declared error ───────────────┼─▶ end: with all effects
raised Discard ─ its effects undone ───┘
raised Snooze ──────── likewise ─▶ setback: due again later, nothing is counted
raised anything else ─ likewise ─▶ setback: counted; due again later, or dead, as `Retry` says
its time is over ───── likewise ─▶ the same, by a `TimeoutError`
cancelled, or its runner stops ──▶ given back: ready again, unless it was cancelled
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from coterie.entities.calls.wire import FAILED, described, pack_discarded
from coterie.entities.host.dispatch import raise_if_meant_for_us
from coterie.entities.host.work import LATER, Work, handling
from coterie.entities.persisted.commit import BARE, ENDED, effects_of
from coterie.entities.persisted.outcome import require_small
from coterie.entities.persisted.transaction import TransactionBlock
from coterie.kernel import chaos, spans
from coterie.kernel.context import ClusterContext, enter, enter_progress
from coterie.kernel.ids import MessageId
from coterie.kernel.retry import Discard, Snooze
from coterie.storage.contracts.jobs import JobEnd, JobSetback
from coterie.work.limits import STUBBORN_S, is_cancelled
from coterie.work.middleware import WorkInfo
from coterie.work.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from coterie.kernel.random import Random
    from coterie.kernel.service import Tasks
    from coterie.storage.contracts.jobs import JobDelivery
    from coterie.storage.contracts.messages import Transaction
    from coterie.tasks.definition import TaskType
    from coterie.tasks.worker.processes import BodyProcesses
    from coterie.tasks.worker.progress import ProgressNotes
    from coterie.work.middleware import Middleware
    from coterie.work.threads import Threads

Stop = Literal["late", "cancelled", "returned", "lost"]
"""Why a body is cancelled:

late       its time is over: a failure
cancelled  somebody has cancelled the job, or its claim is gone
returned   its runner drains: it runs again elsewhere
lost       its runner is no longer trusted to be its runner; likewise
"""


log = logging.getLogger("coterie.tasks")


@dataclass(frozen=True, kw_only=True, eq=False)
class JobServices:
    """Services that all jobs of one runner share."""

    new_transaction: Callable[[], Transaction]
    progress: ProgressNotes
    middleware: Middleware
    threads: Threads
    processes: BodyProcesses
    chance: Random
    tasks: Tasks
    address: Callable[[], str | None]
    """The address at which other runners reach this one."""
    most_bytes: int
    """The largest reply."""
    on_rest: Callable[[str], object]
    """Called with the id of a job whose body begins to wait for another one."""
    on_resume: Callable[[str], object]
    """Called when it goes on."""


class JobAttempt(Work):
    """An attempt of a job, as what its body calls and sends sees it: the work that is being handled."""

    services: JobServices = LATER
    runner: str = ""
    """The incarnation for which it was claimed."""
    resting: int = 0  # how many jobs its body waits for
    is_stored: ClassVar[bool] = True

    @property
    def address(self) -> str:
        """The job: `resize/j4b1…`."""
        return f"{self.entity_type}/{self.entity_id}"

    @property
    def target(self) -> str:
        """The job as errors show it."""
        return f"{self.entity_type}/{self.entity_id}"

    def cluster_context(self) -> ClusterContext:
        """The value of `current()` in the body."""
        return ClusterContext(
            runner_id=self.runner,
            runner_address=self.services.address(),
            name=self.entity_type,
            message_id=MessageId(self.message_id),
            key=self.key,
            attempt=self.attempt,
            trace_id=spans.id_of((spans.on and spans.here()) or self.trace_id),
        )

    def rest(self) -> None:
        self.resting += 1
        if self.resting == 1:
            self.services.on_rest(self.message_id)

    def resume(self) -> None:
        self.resting -= 1
        if not self.resting:
            self.services.on_resume(self.message_id)

    def transaction(self) -> TransactionBlock:
        """A block of the user's own SQL, committed with the end of the job."""
        if self.effects is not None and not self.effects.is_open:
            raise RuntimeError(f"{self.target} has ended: a transaction cannot be used by what it left running")
        return TransactionBlock(self, self.services.new_transaction)


def attempt_here() -> JobAttempt | None:
    """The attempt whose body runs here; None: this is no work of a job."""
    work = handling.get()
    return work if isinstance(work, JobAttempt) else None


class AttemptOutcome(NamedTuple):
    """What is to be written of an attempt."""

    write: JobEnd | JobSetback | None
    """None: it is given back."""
    name: str
    """A label of `coterie_jobs_total`."""
    error: BaseException | None = None
    """What it has raised, for the log."""
    transaction: Transaction | None = None
    """The user's own SQL, to be committed with it."""


class JobRun:
    """A claimed job on this runner, from its assignment until its end is known.

    Args:
        delivery: The job with its claim.
        task: Its task.
        services: What its attempt needs.
    """

    def __init__(self, delivery: JobDelivery, task: TaskType, services: JobServices) -> None:
        self.delivery = delivery
        self.task = task
        self.services = services
        self.stopped: Stop | None = None
        """Why its body was cancelled; None: it was not."""
        self.body: asyncio.Task[None] | None = None
        """What runs it and writes its end; None: it waits for a slot."""
        self.has_body = False
        """Whether its body runs: only then there is something to cancel."""
        self.is_over = False
        """Whether its body has ended, or will never begin."""
        self.is_resting = False
        """Whether its body waits for another job, so that its slots are lent."""
        self.began_s = 0.0
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self.waits: asyncio.TimerHandle | None = None
        """Gives it back, if it has not begun by then."""
        self._timer: asyncio.TimerHandle | None = None
        self._attempt = JobAttempt(
            delivery.task,
            delivery.id,
            "",
            delivery.payload,
            deadline_s=float("inf"),
            within_s=float("inf"),
            message_id=delivery.id,
            key=delivery.key,
            trace_id=delivery.trace_id or delivery.id,
            attempt=delivery.failures + 1,
            effects=BARE,
            has_begun=True,
            services=services,
            runner=delivery.runner,
        )

    @property
    def claim(self) -> tuple[str, int]:
        """The job's id and the number of its claim."""
        return self.delivery.id, self.delivery.claim

    def stop(self, why: Stop) -> None:
        """Cancel its body, once. A thread is told, a process ended after a grace."""
        first, self.stopped = self.stopped is None, why if self.stopped in (None, "late") else self.stopped
        if first and self.has_body and self.body is not None:
            self._attempt.is_stopped = True
            self.body.cancel()
            if self.task.pool == "loop":  # the threads report their own
                asyncio.get_running_loop().call_later(STUBBORN_S, self._report_stubborn)

    # The body

    async def attempt(self) -> AttemptOutcome:
        """Run the body to its end. Cancelled by `stop` only."""
        loop, work, timeout_s = asyncio.get_running_loop(), self._attempt, self.task.timeout_s
        handling.set(work)
        enter(work)
        enter_progress(self.services.progress.reporter(self))
        self.began_s = loop.time()
        if self.stopped is not None:  # before it began
            return self._stopped(self.stopped)
        self.has_body = True
        if timeout_s is not None:
            self._timer = loop.call_later(timeout_s, self.stop, "late")
        try:
            value = await self._traced() if spans.on else await self._call()
        except BaseException as error:  # noqa: BLE001 a body's errors are its own, SystemExit too
            self._end_body(error)
            raise_if_meant_for_us(error)
            return self._raised(error)
        self._end_body()
        return self._returned(value)

    def _end_body(self, error: BaseException | None = None) -> None:
        if isinstance(error, asyncio.CancelledError) and self.stopped is None and is_cancelled():
            self.stopped = "lost"  # its runner has stopped
        self.has_body, self.is_over = False, True
        if self._timer is not None:
            self._timer.cancel()
        task = asyncio.current_task()
        while task is not None and task.cancelling():  # it was meant for the body
            task.uncancel()

    async def _traced(self) -> Any:
        facts: dict[str, str | int] = {
            "coterie.runner": self.delivery.runner,
            "coterie.task": self.delivery.task,
            "coterie.message_id": self.delivery.id,
            "coterie.attempt": self._attempt.attempt,
        }
        name, trace = f"task.{self.delivery.task}", self._attempt.trace_id
        with spans.span(name, facts, kind="CONSUMER", trace=trace, inherits=False):
            return await self._call()

    def _call(self) -> Awaitable[Any]:
        middleware = self.services.middleware
        if chaos.on:
            chaos.saw("job", str(self))
        if not middleware:
            return self._called()
        attempt = self._attempt
        info = WorkInfo(
            kind="job",
            name=attempt.entity_type,
            id=attempt.entity_id,
            attempt=attempt.attempt,
            message_id=MessageId(attempt.message_id),
            key=attempt.key,
        )
        return middleware.around(info, self._called)

    def _called(self) -> Awaitable[Any]:
        """The body in its pool."""
        args, kwargs = self.arguments
        match self.task.pool:
            case "loop":
                made: Awaitable[Any] = self.task.fn(*args, **kwargs)
                return made
            case "thread":
                body = _Bound(self.task.fn, args, kwargs)
                return in_thread(self.services.threads, body, what=str(self), alone=self.delivery.id)
            case "process":
                return self.services.processes.run(self.task, self.delivery.payload, self._attempt)

    # What became of it

    def _returned(self, value: Any) -> AttemptOutcome:
        if self.stopped == "late":
            return self._stopped(self.stopped)
        try:
            reply = self.task.encode_reply(value)
            require_small(reply, what=self.task.result_what, most_bytes=self.services.most_bytes)
        except Exception as error:  # noqa: BLE001 the result does not fit: the body is at fault
            return self._raised(error)
        return self._end(reply, "ok")

    def _raised(self, error: BaseException) -> AttemptOutcome:
        if self.stopped is not None:
            return self._stopped(self.stopped)  # whatever it is, it came after the cancellation
        if isinstance(error, Snooze):
            return self._set_back(None, error.delay_s, "snoozed")
        if isinstance(error, Discard):
            self.undo()
            return self._end(FAILED + pack_discarded(self.delivery.id, str(self), error.why), "discarded")
        declared = self.task.encode_failure(error)
        if declared is not None and len(declared) <= self.services.most_bytes:
            self.undo()
            return self._end(declared, "declared")
        if isinstance(error, asyncio.CancelledError):
            error = RuntimeError("its body was cancelled, by itself")
        return self.failed(error)

    def failed(self, error: BaseException, *, by_body: bool = True) -> AttemptOutcome:
        """A failed attempt: counted, and repeated as its policy says.

        Args:
            error: What went wrong.
            by_body: Whether the body has raised it, so that its class matters.
        """
        retry, chance = self.task.retry, self.services.chance
        is_retried = getattr(error, "is_retried", None)  # decided by the process that ran the body
        if is_retried is False:
            return self._set_back(error, None, "dead")
        again_s = retry.delay_s(self._attempt.attempt, chance, error if by_body and is_retried is None else None)
        return self._set_back(error, again_s, "dead" if again_s is None else "retried")

    def undo(self) -> None:
        """Drop its effects. Changes that it made elsewhere are not undone."""
        effects = effects_of(self._attempt)
        effects.is_open = False
        effects.sends.clear()
        effects.jobs.clear()
        transaction, effects.transaction = effects.transaction, None
        if transaction is not None:
            self.services.tasks.spawn(transaction.rollback(), name=f"roll back {self}")

    def _stopped(self, why: Stop) -> AttemptOutcome:
        if why == "late":
            return self.failed(TimeoutError(f"it did not end within {self.task.timeout_s:g}s"))
        self.is_over = True
        self.undo()
        return AttemptOutcome(None, "cancelled" if why == "cancelled" else "returned")

    def undecodable(self, error: BaseException, *, again_s: float | None) -> AttemptOutcome:
        """The outcome of a job whose arguments this program cannot decode."""
        return self._set_back(error, again_s, "dead" if again_s is None else "retried")

    def _set_back(self, error: BaseException | None, again_s: float | None, name: str) -> AttemptOutcome:
        self.undo()
        text = None if error is None else described(error)
        job, claim = self.claim
        return AttemptOutcome(JobSetback(self.delivery.runner, job, claim, again_s, text), name, error)

    def _end(self, reply: bytes, name: str) -> AttemptOutcome:
        effects, (job, claim) = self._attempt.effects, self.claim
        write = JobEnd(self.delivery.runner, job, claim, reply, discarded=name == "discarded")
        if effects is None or effects is BARE:
            self._attempt.effects = ENDED
            return AttemptOutcome(write, name)
        effects.is_open = False
        if effects.in_block:
            return self._raised(RuntimeError(f"{self} has ended inside of its transaction: leave the block before"))
        if effects.sends or effects.jobs:
            write = JobEnd(write.runner, job, claim, reply, write.discarded, tuple(effects.sends), tuple(effects.jobs))
        return AttemptOutcome(write, name, transaction=effects.transaction)

    def _report_stubborn(self) -> None:
        if self.has_body:
            log.error(
                "%s was cancelled %gs ago and still runs, so that it keeps its slot: it swallows CancelledError",
                self, STUBBORN_S,
            )  # fmt: skip

    def __str__(self) -> str:
        return f"job {self.delivery.id} of task {self.delivery.task!r}"


class _Bound:
    """A plain function with its arguments."""

    __slots__ = ("_args", "_fn", "_kwargs")

    def __init__(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._fn, self._args, self._kwargs = fn, args, kwargs

    def __call__(self) -> Any:
        return self._fn(*self._args, **self._kwargs)
