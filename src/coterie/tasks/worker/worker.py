"""The worker of a runner: begins the jobs that are claimed for it, gives back those that it cannot begin."""

from __future__ import annotations

import asyncio
import logging
import os
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING

from coterie.errors import MalformedMessage, PersistenceError
from coterie.kernel import metrics, spans
from coterie.kernel.clock import Dial
from coterie.kernel.ids import Seat
from coterie.kernel.service import Service, State, Tasks
from coterie.storage.contracts.jobs import GiveBack, JobSetback
from coterie.tasks.frames import JobOver, KnownTask
from coterie.tasks.worker.attempt import JobRun, JobServices
from coterie.tasks.worker.ends import JobEnds
from coterie.tasks.worker.progress import ProgressNotes
from coterie.tasks.worker.reports import HolderReports
from coterie.tasks.worker.slots import SlotTable
from coterie.work.limits import set_within, settled
from coterie.work.occupants import GRACE_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextvars import Context

    from coterie.runner import Runner
    from coterie.storage.contracts.jobs import JobDelivery, JobEnd, RunningJob
    from coterie.tasks.definition import TaskType
    from coterie.tasks.exchange import JobExchange
    from coterie.tasks.frames import Assignment, JobCancel, Slots, SlotsQuestion
    from coterie.tasks.worker.attempt import AttemptOutcome

    Claim = tuple[str, int]
    """The id of a job and the number of its claim."""

log = logging.getLogger("coterie.tasks")

_SWEEP_S = 1.0
"""The time between two readings of what is claimed for this runner."""
_OLD_S = 4.0
"""An older frame is looked up first: its runner may have been evicted, or the job have ended, since it was sent."""
_WAIT_S = 1.0
"""How long a job may wait for a slot before it is given back."""
_SUSPECT_S = 5.0
"""How long a job that was running when runners were lost runs before the next one of that kind begins [C5]."""
_REMEMBER_S = 10.0
"""How long it is remembered at least what has ended here: longer than any reading takes, and than `_OLD_S`."""
_CLOCK_S = 30.0
"""The time between two readings of the database's clock."""
_MANY_RETURNS = 5
"""A job that was claimed so often more than it has failed is reported when a drain gives it back once more."""
_UNDECODABLE_MOST, _UNDECODABLE_S = 5, 1.0
"""Attempts of a job that was sent by another version of the program and cannot be decoded, and the pause between."""


class JobWorker(Service):
    """Runs the jobs of one runner (`exchange.WorkerPort`, `runner.Companion`).

    Args:
        runner: The runner.
        known: The tasks of the program, by name; there may be more of them later.
        exchange: Brings frames to the holders of queues.
    """

    def __init__(self, runner: Runner, known: Mapping[str, TaskType], exchange: JobExchange) -> None:
        super().__init__(what=f"the jobs of runner {runner.name}")
        settings, clock = runner.settings, runner.calling.clock
        self._runner = runner
        self._known = known
        self._store = runner.storage.jobs
        self._exchange = exchange
        self._groups = frozenset(settings.groups)
        self._drain_s = settings.drain.total_seconds()
        self._incarnation = ""
        """The incarnation whose claims are run; empty: it has not joined yet."""
        self._is_draining = False
        self._dial = Dial(lambda: clock.steady_ns() / 1e9, clock.wall_ns() / 1e9)
        self._clock_read_s = float("-inf")
        self._loop = asyncio.get_running_loop()
        self._context: Context
        self._bodies = Tasks("jobs")
        self._runs: dict[Claim, JobRun] = {}
        """All jobs here whose end is not known yet."""
        self._waiting: dict[Claim, JobRun] = {}
        """Those of them that wait for a slot, in order."""
        self._begun: dict[str, JobRun] = {}
        """Those of them that have slots, by the job's id."""
        self._suspect: JobRun | None = None
        """The lost job that was begun within the last seconds."""
        self._ended: dict[Claim, None] = {}
        self._ended_before: dict[Claim, None] = {}
        self._forgot_s = self._loop.time()
        self._returns: dict[Claim, tuple[str, bool, bool]] = {}
        """What is to be given back: seat, whether to park it, whether it was cancelled."""
        self._returning: asyncio.Task[None] | None = None
        self._wanted: dict[str, int] = {}
        """Claims to be looked up."""
        self._fetching: asyncio.Task[None] | None = None
        self._unreadable: set[Claim] = set()
        """Claims that were looked up and not found, though storage had them."""
        self._declined: dict[str, None] = {}
        """Ids of jobs that were given back once because they cannot be decoded here."""
        self._unknown: set[str] = set()
        """Tasks that this program does not know, and of which jobs came."""
        self._look = asyncio.Event()
        threads = runner.threads
        self._slots = SlotTable(
            jobs=settings.jobs,
            threads=settings.threads,
            processes=settings.processes or os.cpu_count() or 1,
            busy_threads=lambda: (use := threads.use()).busy + use.waiting,
        )
        self._reports = HolderReports(exchange, lambda seat: self._slots.report(seat, is_draining=self._is_closed))
        self._services = JobServices(
            new_transaction=partial(runner.storage.transaction, limit_s=settings.transaction_limit.total_seconds()),
            progress=ProgressNotes(self._store, self.tasks),
            middleware=runner.middleware,
            threads=threads,
            processes=runner.processes,
            chance=runner.calling.chance,
            tasks=self.tasks,
            address=lambda: runner.transport.address,
            most_bytes=settings.frame_limit,
            on_rest=self._rests,
            on_resume=self._resumes,
        )
        self._ends = JobEnds(
            self._store, is_mine=lambda incarnation: incarnation == self._incarnation, hand_over=self._hand_over
        )

    # A runner's companion

    def begin(self, incarnation: str) -> None:
        """The runner begins a life: run what is claimed for this incarnation."""
        self._incarnation, self._is_draining = incarnation, False
        self._look.set()

    def abandon(self) -> None:
        """The runner may be no member any more: stop everything. If it still is one, it reads its claims anew."""
        self._drop_waiting()
        for run in self._begun.values():
            run.stop("lost")

    async def settle(self) -> None:
        """Wait for the bodies that were stopped. Those that ignore their cancellation are abandoned."""
        await self._bodies_ended(GRACE_S)
        if self._begun:
            log.error("cancelled jobs still run after %gs: %s", GRACE_S, ", ".join(map(str, self._begun.values())))

    async def drain(self) -> None:
        """Begin nothing more, let bodies end, cancel those that do not, and give them back."""
        self._is_draining = True
        self._reports.tell_slots()
        for run in list(self._waiting.values()):
            self._withdraw(run)
            self._give_back(run.delivery)
        await self._bodies_ended(self._drain_s)
        for run in list(self._begun.values()):
            self._report_long(run)
            run.stop("returned")
        await self.settle()
        while self._returning is not None:
            await settled([self._returning])

    # What peers send (`exchange.WorkerPort`)

    def assign(self, holder: str, frame: Assignment, /) -> None:
        """Jobs were claimed for this runner."""
        del holder
        age_s = self._dial.now().timestamp() - frame.sent_s
        if abs(age_s) > _OLD_S:
            self._look_up({each.id: each.claim for each in frame.deliveries})
            return
        for delivery in frame.deliveries:
            self._accept(delivery)

    def look(self, frame: JobCancel, /) -> None:
        """Look at the claim of a job now."""
        if (frame.id, frame.claim) in self._runs or frame.id in self._begun:
            self._look.set()

    def slots(self, holder: str, question: SlotsQuestion, /) -> Slots:
        """What this runner can take. For 5 s the seat is also told of changes."""
        del holder
        slots = self._slots.report(question.seat, is_draining=self._is_closed)
        self._reports.asked(question.seat, slots)
        tasks = {
            name: KnownTask(task.fingerprint, task.pool)
            for name, task in self._known.items()
            if task.group in self._groups
        }
        return self._slots.report(question.seat, is_draining=self._is_closed, tasks=tasks)

    # Lifecycle

    async def _start(self) -> None:
        self._context = copy_context()
        if spans.on:
            self._context.run(spans.clear)
        self._exchange.worker = self
        self.tasks.supervise(self._sweep_on, name="sweep jobs", supervisor=self._runner.supervisor)

    async def _stop(self) -> None:
        self._exchange.worker = None
        self.abandon()
        self._reports.stop()
        await self.settle()
        self._incarnation = ""
        for task in (self._returning, self._fetching):
            if task is not None:
                task.cancel()
        await self._services.processes.stop()

    @property
    def _is_closed(self) -> bool:
        return self._is_draining or not self._incarnation or self.state in (State.STOPPING, State.STOPPED)

    # From the assignment to the body

    def _accept(self, delivery: JobDelivery) -> None:
        """Take a job that is claimed for this runner, unless it is here or has been."""
        claim = delivery.id, delivery.claim
        if (
            delivery.runner != self._incarnation
            or claim in self._runs
            or claim in self._returns
            or self._has_ended(claim)
        ):
            return
        task = self._known.get(delivery.task)
        if task is None and delivery.task not in self._unknown:
            self._unknown.add(delivery.task)
            log.warning(
                "jobs of task %r are set aside: this runner does not know the task (is a newer version deployed "
                "elsewhere?)", delivery.task,
            )  # fmt: skip
        if task is None or self._is_closed:
            self._give_back(delivery, park=task is None)
            return
        run = JobRun(delivery, task, self._services)
        try:
            run.arguments = task.decode(delivery.payload)
        except MalformedMessage as error:
            self._cannot_decode(run, error)
            return
        self._runs[claim] = run
        if self._may_begin(run):
            self._begin_run(run)
        else:
            self._waiting[claim] = run
            run.waits = self._loop.call_later(_WAIT_S, self._has_waited, run)

    def _may_begin(self, run: JobRun) -> bool:
        delivery = run.delivery
        return (
            self._slots.has_room(run.task.pool)
            and delivery.id not in self._begun  # by an earlier claim: its body has ignored a cancellation
            and not (delivery.lost and self._suspect is not None)
            and self._runner.is_trusted
        )

    def _begin_run(self, run: JobRun) -> None:
        delivery = run.delivery
        self._slots.take(delivery.seat, run.task.pool)
        self._begun[delivery.id] = run
        if delivery.lost:
            self._suspect = run
            self._loop.call_later(_SUSPECT_S, self._acquit, run)
        metrics.JOBS_STARTED.of(Seat.queue_name(delivery.seat), delivery.task).value += 1
        metrics.JOB_WAIT.spread(delivery.task).see(max(0.0, self._dial.now().timestamp() - delivery.due_s))
        run.body = self._bodies.spawn(self._run(run), name=delivery.id, context=self._context.copy())

    def _rests(self, job: str) -> None:
        """A body waits for another job: that may need its slots."""
        run = self._begun.get(job)
        if run is not None and run.has_body:
            self._set_resting(run, is_resting=True)
            self._acquit(run)
            self._begin_waiting()
            self._reports.changed()

    def _resumes(self, job: str) -> None:
        run = self._begun.get(job)
        if run is not None:
            self._set_resting(run, is_resting=False)

    def _set_resting(self, run: JobRun, *, is_resting: bool) -> None:
        if run.is_resting is not is_resting:
            run.is_resting = is_resting
            self._slots.lend(run.task.pool, 1 if is_resting else -1)

    def _begin_waiting(self) -> None:
        for run in list(self._waiting.values()):
            if not self._slots.has_room("loop"):  # all need a slot of this kind: with many waiting this is a hot path
                return
            if self._may_begin(run):
                self._withdraw(run)
                self._runs[run.claim] = run
                self._begin_run(run)

    def _has_waited(self, run: JobRun) -> None:
        """It could not begin in time: another runner may have room."""
        self._withdraw(run)
        self._give_back(run.delivery)

    def _withdraw(self, run: JobRun) -> None:
        """Take a job out of those that wait."""
        if run.waits is not None:
            run.waits.cancel()
        self._waiting.pop(run.claim, None)
        self._runs.pop(run.claim, None)

    def _drop_waiting(self) -> None:
        for run in list(self._waiting.values()):
            self._withdraw(run)

    def _acquit(self, run: JobRun) -> None:
        if self._suspect is run:
            self._suspect = None
            self._begin_waiting()

    def _cannot_decode(self, run: JobRun, error: MalformedMessage) -> None:
        """Its program is another one: another runner may decode it. Where none does, it is dead after some attempts."""
        delivery = run.delivery
        is_other = delivery.fingerprint != run.task.fingerprint
        if is_other and delivery.id not in self._declined:
            self._declined[delivery.id] = None
            if len(self._declined) > 1_000:
                del self._declined[next(iter(self._declined))]
            self._give_back(delivery)
            return
        is_last = not is_other or delivery.failures + 1 >= _UNDECODABLE_MOST
        self._runs[run.claim] = run
        self._begun.setdefault(delivery.id, run)
        outcome = run.undecodable(error, again_s=None if is_last else _UNDECODABLE_S)
        run.body = self._bodies.spawn(self._end_unbegun(run, outcome), name=delivery.id, context=self._context.copy())

    # A job

    async def _run(self, run: JobRun) -> None:
        over = None
        try:
            outcome = await run.attempt()
            if outcome.error is not None:
                log.warning("%s raised in attempt %d", run, run.delivery.failures + 1, exc_info=outcome.error)
            over = await self._written(run, outcome)
        finally:
            self._set_resting(run, is_resting=False)
            self._slots.release(run.delivery.seat, run.task.pool)
            self._forget(run, over)
            metrics.JOB_DURATION.spread(run.delivery.task).see(self._loop.time() - run.began_s)

    async def _end_unbegun(self, run: JobRun, outcome: AttemptOutcome) -> None:
        """Write the outcome of a job that never began."""
        over = None
        try:
            over = await self._written(run, outcome)
        finally:
            self._forget(run, over)

    async def _written(self, run: JobRun, outcome: AttemptOutcome) -> JobOver | None:
        over = await self._ends.write(run, outcome)
        if over is None and run.delivery.runner == self._incarnation:
            metrics.JOBS.of(Seat.queue_name(run.delivery.seat), run.delivery.task, outcome.name).value += 1
            self._give_back(run.delivery, cancelled=outcome.name != "returned")
        return over

    def _forget(self, run: JobRun, over: JobOver | None) -> None:
        """It is over here."""
        del self._runs[run.claim]
        if self._begun.get(run.delivery.id) is run:
            del self._begun[run.delivery.id]
        if over is not None:
            self._remember(run.claim)
            self._reports.over(run.delivery.seat, over)
        else:
            self._reports.changed()
        if self._suspect is run:
            self._suspect = None
        if self._waiting:
            self._begin_waiting()

    def _hand_over(self, write: JobEnd) -> None:
        """What a job has sent is stored now."""
        for message in write.sends:
            metrics.MESSAGES_SENT.of(message.entity_type, message.method).value += 1
            self._runner.calling.persisted.hand_over(message)
        for job in write.jobs:
            self._runner.job_sender.hint(job)

    # Giving back

    def _give_back(self, delivery: JobDelivery, *, park: bool = False, cancelled: bool = False) -> None:
        self._return((delivery.id, delivery.claim), delivery.seat, park=park, cancelled=cancelled)

    def _return(self, claim: Claim, seat: str, *, park: bool = False, cancelled: bool = False) -> None:
        self._returns[claim] = seat, park, cancelled
        if self._returning is None and self.state is not State.STOPPED:
            self._returning = self._bodies.spawn(self._return_all(), name="give back")

    async def _return_all(self) -> None:
        try:
            while self._returns:
                for park in (False, True):
                    chosen = {claim: each for claim, each in self._returns.items() if each[1] is park}
                    if chosen:
                        await self._returned(chosen, park=park)
        finally:
            self._returning = None
            self._returns.clear()

    async def _returned(self, chosen: dict[Claim, tuple[str, bool, bool]], *, park: bool) -> None:
        try:
            await self._store.give_back(GiveBack(self._incarnation, tuple(chosen), park))
        except PersistenceError as error:
            log.info("%d jobs are given back later: %s", len(chosen), error)  # the sweep finds them again
            is_known = False
        else:
            is_known = True
        for claim, (seat, _, is_cancelled) in chosen.items():
            self._returns.pop(claim, None)
            if is_known:
                self._remember(claim)
                self._reports.over(seat, JobOver(*claim, "ended" if is_cancelled else "returned"))

    def _report_long(self, run: JobRun) -> None:
        delivery = run.delivery
        returns = delivery.claim - delivery.failures - delivery.lost
        if returns >= _MANY_RETURNS:
            log.error(
                "%s did not end within drain (%gs) and begins anew elsewhere; it was claimed %d times: it is too long "
                "for this drain; raise that, or divide the job", run, self._drain_s, delivery.claim,
            )  # fmt: skip

    # What has ended here

    def _remember(self, claim: Claim) -> None:
        self._ended[claim] = None

    def _has_ended(self, claim: Claim) -> bool:
        return claim in self._ended or claim in self._ended_before

    def _forget_ended(self) -> None:
        now_s = self._loop.time()
        if now_s - self._forgot_s > _REMEMBER_S:
            self._forgot_s = now_s
            self._ended_before, self._ended = self._ended, {}

    # The sweep

    async def _sweep_on(self) -> None:
        while True:
            await set_within(self._look, _SWEEP_S)
            self._look.clear()
            if not self._incarnation:
                continue
            try:
                await self._sweep()
            except PersistenceError as error:
                log.info("the claims of this runner were not read, they are in %gs: %s", _SWEEP_S, error)

    async def _sweep(self) -> None:
        """Read the claims in our name: begin those that are not here, stop what is not claimed any more."""
        self._forget_ended()
        incarnation, before = self._incarnation, list(self._runs.values())
        if self._runner.is_leaving and not self._is_draining:
            self._is_draining = True
            self._bodies.spawn(self.drain(), name="drain")
        await self._read_clock()
        rows = await self._store.claimed(incarnation)
        if incarnation != self._incarnation:
            return
        found = {(row.id, row.claim): row for row in rows}
        for run in before:
            row = found.get(run.claim)
            if row is None or row.cancelling:
                self._cancel(run, is_claimed=row is not None)
        self._find(found)
        self._begin_waiting()
        self._reports.changed()  # others use threads, too

    def _cancel(self, run: JobRun, *, is_claimed: bool) -> None:
        if run.claim in self._waiting:
            self._withdraw(run)
            if is_claimed:
                self._give_back(run.delivery, cancelled=True)
        else:
            run.stop("cancelled")

    def _find(self, found: Mapping[Claim, RunningJob]) -> None:
        """Look up claims whose frame was lost."""
        unreadable, self._unreadable = self._unreadable & found.keys(), set()
        for claim, row in found.items():
            if claim in self._runs or claim in self._returns or self._has_ended(claim):
                continue
            if row.cancelling:
                self._return(claim, row.seat, cancelled=True)
            elif claim in unreadable:
                self._put_off(row)
            else:
                self._look_up({row.id: row.claim})

    def _put_off(self, row: RunningJob) -> None:
        """It is claimed for us, and cannot be read here: its key is unknown."""
        log.error("job %s of task %r cannot be read here, and is put off", row.id, row.task)
        write = JobSetback(row.runner or "", row.id, row.claim, _REMEMBER_S, None)
        self._bodies.spawn(self._set_back(write), name=f"put off {row.id}")

    async def _set_back(self, write: JobSetback) -> None:
        try:
            await self._store.setback(write)
        except PersistenceError as error:
            log.info("job %s is put off later: %s", write.job, error)

    def _look_up(self, claims: Mapping[str, int]) -> None:
        self._wanted.update(claims)
        if self._fetching is None:
            self._fetching = self._bodies.spawn(self._fetch(), name="look up claims")

    async def _fetch(self) -> None:
        try:
            while self._wanted:
                wanted, self._wanted = self._wanted, {}
                deliveries = await self._store.fetch(wanted)
                for delivery in deliveries:
                    self._accept(delivery)
                self._unreadable |= wanted.items() - {(each.id, each.claim) for each in deliveries}
        except PersistenceError as error:
            log.info("claims could not be looked up, the next sweep does: %s", error)
        finally:
            self._fetching = None

    async def _read_clock(self) -> None:
        now_s = self._loop.time()
        if now_s - self._clock_read_s > _CLOCK_S:
            asked = None if self._clock_read_s < 0 else self._dial.now()
            self._dial.observe(await self._runner.storage.now(), asked=asked)
            self._clock_read_s = now_s

    async def _bodies_ended(self, limit_s: float) -> None:
        await settled([run.body for run in self._begun.values() if run.body is not None], limit_s=limit_s)
