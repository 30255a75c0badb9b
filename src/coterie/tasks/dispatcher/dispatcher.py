"""The holder of a queue's seat: claims jobs for runners, one statement at a time, and tells those who run and wait.

    hint, refill, slot, token ──▶ pick (lanes, slots) ──▶ claim ──▶ claimed: Assignment to each runner
          ▲                                                  │
          └────── put back, and looked at again ◀────────────┘ not ready, no room, another stamp, no answer

What accumulates while one claim is under way is in the next one: there is no timer. `upkeep.py` keeps memory right.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, NamedTuple

from coterie.errors import PersistenceError
from coterie.kernel import chaos
from coterie.storage.contracts.jobs import JobClaim
from coterie.tasks.dispatcher.claims import ClaimedJobs
from coterie.tasks.dispatcher.lanes import Lanes
from coterie.tasks.dispatcher.slots import RunnerSlots
from coterie.tasks.dispatcher.upkeep import Upkeep
from coterie.tasks.dispatcher.waiters import JobWaiters
from coterie.tasks.frames import NOT_MINE, Assignment, SlotsQuestion
from coterie.work.limits import set_within
from coterie.work.occupants import LoopOccupant
from coterie.work.while_held import AWAY_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextvars import Context

    from coterie.ownership.seats import Tenure
    from coterie.storage.contracts.jobs import (
        JobDelivery,
        JobHead,
        JobsClaimed,
        QueueBacklog,
        QueueDefinition,
        QueueRow,
    )
    from coterie.tasks.dispatcher.claims import ClaimedJob
    from coterie.tasks.dispatcher.lanes import Pick
    from coterie.tasks.dispatcher.slots import Loads
    from coterie.tasks.exchange import JobExchange
    from coterie.tasks.frames import JobOver, JobQuestion, JobsOver, JobsSent, Slots
    from coterie.work.services import Services

log = logging.getLogger("coterie.tasks")

_CLAIM_MOST = 250
"""Jobs of one statement."""
_FRAME_BYTES = 1 << 20
"""Arguments in one frame to a runner; a single job may go beyond."""
_ASK_S = 0.2
"""How long a claim waits for runners that have not reported lately."""
_REPORT_S = 5.0
"""How long a report counts: so long the runner sends what changes."""
_ASKED_S = 2.0
"""How long a runner that did not answer is not asked again."""
_REFUSED_S, _REFUSED_MOST_S = 0.01, 1.0
"""Pauses after statements that claimed nothing of what seemed possible."""


class TokenBucket:
    """The tokens of a queue with a rate, as its holder estimates them: the statement knows.

    A claim takes effect after it is sent, and its tokens are counted from when it was sent. So the next one is sent as
    early as possible, and now and then a little too early, which costs a statement and no tokens.
    """

    def __init__(self) -> None:
        self._rate: float | None = None
        self._burst = self._tokens = self._at_s = 0.0

    def limit(self, row: QueueRow, at_s: float) -> None:
        """The row of the queue was read, at a time of the loop."""
        self._rate, self._burst = row.rate, row.burst or 1.0
        passed_s = max(0.0, (row.now - row.refilled_at).total_seconds())
        tokens = self._burst if row.tokens is None else row.tokens + (row.rate or 0.0) * passed_s
        self.set(tokens, at_s)

    def set(self, tokens: float, at_s: float) -> None:
        """What it held at a time of the loop."""
        self._tokens, self._at_s = min(tokens, self._burst), at_s

    def whole(self, now_s: float) -> int | None:
        """How many jobs may start; None: any number."""
        return None if self._rate is None else int(self._level(now_s) + 1e-9)

    def wait_s(self, now_s: float) -> float:
        """How long until another job may start."""
        if self._rate is None:
            return 0.0
        return max(0.0, 1.0 - self._level(now_s)) / self._rate

    def _level(self, now_s: float) -> float:
        return min(self._burst, self._tokens + (self._rate or 0.0) * max(0.0, now_s - self._at_s))


class DispatcherFacts(NamedTuple):
    """What the holder of a queue's seat knows of it, without any I/O."""

    seat: str
    waiting: int
    """Ready jobs in memory."""
    parts: int
    """Partitions in memory."""
    is_complete: bool
    """Whether these are all partitions with ready jobs."""
    claimed: int
    oldest_s: float | None
    """How long the job waits that is first in its partition and was due earliest; None: none waits."""
    is_blocked: bool
    """Whether jobs wait of which none may start now: a limit is reached, no runner has room, or the queue is paused."""
    row: QueueRow | None
    """None: it was not read yet."""


class Dispatcher(LoopOccupant):
    """Starts the jobs of one seat.

    Args:
        tenure: The tenure of the seat.
        services: What the runner provides.
        context: The context of its loops.
        definition: The queue, as this program defines it; None: it does not.
        exchange: Brings frames to runners and from them.
        loads: What runners have of all seats of this process.
        runners: Returns the incarnations of the live runners of a group.
    """

    def __init__(
        self,
        tenure: Tenure,
        services: Services,
        context: Context,
        *,
        definition: QueueDefinition | None,
        exchange: JobExchange,
        loads: Loads,
        runners: Callable[[str], Sequence[str]],
    ) -> None:
        super().__init__(tenure, services, context)
        self.seat = tenure.seat
        self.store = services.storage.jobs
        self.row: QueueRow | None = None
        """The queue, once it was read."""
        self.slots = RunnerSlots(tenure.claim.runner, loads)
        self.lanes = Lanes(is_picky=self.slots.is_picky)
        self.claimed = ClaimedJobs()
        self.is_blocked = False
        self._lacks_token = False
        """Whether the last look for jobs ended for want of a token."""
        self._waiters = JobWaiters()
        self._bucket = TokenBucket()
        self._definition = definition
        self._exchange = exchange
        self._runners = runners
        self._asked_s: dict[str, float] = {}
        self.flying: dict[str, int] = {}
        """Jobs in the claim that is under way; the claim of one that was over before its claim was answered."""
        self._picks: Sequence[Pick] = ()
        self._is_in_doubt = False
        """Whether the outcome of the last claim is unknown."""
        self._refused_s = 0.0
        self.upkeep = Upkeep(self)
        self._loop = services.supervise(self._start_jobs, "start jobs", tenure, context=context, cause="resigned")
        self._keep = services.supervise(self.upkeep.live, "keep queues", tenure, context=context, cause="resigned")

    @property
    def is_open(self) -> bool:
        """Whether it is held, and goes on being held."""
        return not self._closing and self.tenure.held

    @property
    def is_closing(self) -> bool:
        """Whether it begins nothing more."""
        return self._closing

    @property
    def group(self) -> str:
        """The group whose runners run its jobs."""
        return "" if self.row is None else self.row.group

    @property
    def services(self) -> Services:
        """What the runner provides."""
        return self._services

    def now_s(self) -> float:
        """The database's clock, in seconds since 1970."""
        return self._services.dial.now().timestamp()

    def facts(self) -> DispatcherFacts:
        """What is known of the queue."""
        due_s = self.lanes.oldest_due_s()
        return DispatcherFacts(
            seat=self.seat,
            waiting=len(self.lanes),
            parts=self.lanes.parts,
            is_complete=self.lanes.is_complete,
            claimed=len(self.claimed),
            oldest_s=None if due_s is None else max(0.0, self.now_s() - due_s),
            is_blocked=self.is_blocked,
            row=self.row,
        )

    # What comes from others

    def wake(self, unit: str = "") -> None:
        """There may be news of any kind."""
        del unit
        self.upkeep.look()

    def sent(self, frame: JobsSent) -> None:
        """Jobs were stored, or made ready again."""
        if not (frame.heads or frame.due_in_s):  # a transaction has committed, of which only the seat is known
            self.upkeep.look()
        elif frame.due_in_s is not None:
            self.upkeep.expect(frame.due_in_s)
        self.ready(frame.heads)

    def over(self, runner: str, frame: JobsOver) -> None:
        """Jobs of a runner are over, or what it can take has changed."""
        for each in frame.jobs:
            self._over(runner, each)
        if frame.slots is not None and self.row is not None:
            self._report(runner, frame.slots)
        self.hurry()

    def changed(self) -> None:
        """The queue's row has changed."""
        self.upkeep.look_at_row()

    def poll(self, found: QueueBacklog) -> None:
        """What storage has of the seat, each second."""
        self.upkeep.poll(found)

    def gone(self, runner: str) -> None:
        """A runner is no longer a member."""
        self.slots.forget(runner)
        self.upkeep.lost(runner)

    def wait(self, question: JobQuestion, answer: Callable[[bytes], None]) -> None:
        """Answer when a job is over."""
        if self.is_open:
            self._waiters.add(question.id, answer)
        else:
            answer(NOT_MINE)

    def forget(self, question: JobQuestion, answer: Callable[[bytes], None]) -> None:
        """No caller waits for this answer any more."""
        self._waiters.remove(question.id, answer)

    # What has changed

    def ready(self, heads: Iterable[JobHead]) -> None:
        """Jobs have become ready."""
        fresh = [head for head in heads if self.may_be_ready(head.id)]
        self.upkeep.window.came(fresh)
        for head in fresh:
            self._waiters.reopen(head.id)
        self.lanes.add(fresh, self.now_s())
        self.hurry()

    def may_be_ready(self, job: str) -> bool:
        """Whether a job is neither claimed nor being claimed."""
        return job not in self.flying and job not in self.claimed

    def is_over(self, job: ClaimedJob) -> None:
        """A job that was claimed is so no more."""
        self.lanes.end(job.part, self.now_s())
        self.slots.end(job.id)

    def ended(self, job: str, reply: bytes | None) -> None:
        """A job will not run again."""
        self.slots.pinned.pop(job, None)
        self._waiters.end(job, reply)

    def unsure(self, job: str) -> None:
        """A job may have ended: who waits for it looks."""
        self._waiters.look(job)

    def adopt(self, row: QueueRow, *, at_s: float) -> None:
        """The row of the queue was read, at a time of the loop."""
        self._services.dial.observe(row.now)
        self.row = row
        self.lanes.age_s = row.age_s
        self.lanes.limit(row.partition_concurrency, self.now_s())
        self._bucket.limit(row, at_s)
        self.upkeep.adopted(row)
        self.hurry()

    def hurry(self) -> None:
        """Something may start now; or partitions are to be read."""
        self._news.set()
        if self.lanes.wants:
            self.upkeep.hurry()

    def lose(self) -> None:
        """The fence has refused a write: the seat is another's."""
        log.info("jobs of %s are started elsewhere", self.seat)
        self._close()

    def _over(self, runner: str, over: JobOver) -> None:
        if over.id in self.flying:  # its runner has found the claim in storage before we got the answer
            self.flying[over.id] = max(over.claim, self.flying[over.id])
        if over.claim == 0:
            self.lanes.remove(over.id, self.now_s())
            self.upkeep.window.went(over.id)
            self.ended(over.id, over.reply)
            return
        known = self.claimed.end(over.id, over.claim)
        if known is not None:
            self.is_over(known)
        if over.outcome == "ended":
            self.ended(over.id, over.reply)
        elif over.outcome == "later":
            self.upkeep.expect(over.again_s)
        elif known is None or known.head is None:
            self.upkeep.sweep_soon()
        else:
            self._pin(runner, known.head)
            self.ready([known.head])

    def _pin(self, runner: str, head: JobHead) -> None:
        """A runner gave a job back: if it has another version of its task, that may be why."""
        if not self.slots.is_of(runner, head) and self.slots.can_read(head):
            self.slots.pinned[head.id] = None

    # Claims

    async def _start_jobs(self) -> None:
        if self._picks:  # an error has interrupted a claim
            self._put_back(self._picks)
            self._is_in_doubt = True
        while self.row is None and not self._closing:
            await self._define()
        while not self._closing:
            self._news.clear()
            if self._is_in_doubt and not await self._found_out():
                continue
            await self._hear()
            picks = self._pick()
            if picks:
                await self._claim(picks)
            else:
                await set_within(self._news, self._wait_s())

    async def _define(self) -> None:
        at_s = _now_s()
        try:
            row = await self.store.define_queue(self.tenure.claim, self._definition)
            if row is not None:
                await self.upkeep.compare()
        except PersistenceError as error:
            log.info("the jobs of %s wait for the database: %s", self.seat, error)
            await asyncio.sleep(AWAY_S)
            return
        if row is None:
            self.lose()
        else:
            self.adopt(row, at_s=at_s)
            self.upkeep.hurry()

    async def _found_out(self) -> bool:
        """Find out what became of a claim whose outcome is unknown: until then too few would be counted."""
        try:
            await self.upkeep.compare()
        except PersistenceError as error:
            log.info("the jobs of %s wait for the database: %s", self.seat, error)
            await asyncio.sleep(AWAY_S)
            return False
        self._is_in_doubt = False
        return True

    def _pick(self) -> Sequence[Pick]:
        """What starts next."""
        row, now_s = self.row, _now_s()
        assert row is not None, "it was read"
        self.slots.now_s = now_s
        self.is_blocked = self._lacks_token = False
        if not len(self.lanes):
            return ()
        most = _CLAIM_MOST
        if row.concurrency is not None:
            most = min(most, row.concurrency - len(self.claimed))
        tokens = self._bucket.whole(now_s)
        self._lacks_token = tokens == 0
        most = most if tokens is None else min(most, tokens)
        picks: Sequence[Pick] = ()
        if not row.is_paused and most > 0 and self.tenure.may_start:
            picks = self.lanes.pick(most, self.now_s(), self._place)
        self.is_blocked = not picks
        return picks

    def _place(self, head: JobHead) -> str | None:
        """The runner that takes a job, unless its task is paused: then the job is about to be parked."""
        assert self.row is not None, "it was read"
        if head.task not in self.row.paused_tasks:
            return self.slots.place(head)
        self.upkeep.park_soon()
        return None

    def _wait_s(self) -> float | None:
        """How long until something may start without news."""
        if self.row is None or self.row.is_paused or not len(self.lanes):
            return None
        now_s = _now_s()
        # A token may have come since it was looked for: then there is nothing to wait for, and nothing else says so.
        waits = [self._bucket.wait_s(now_s)] if self._lacks_token else []
        suspect_s = self.slots.next_suspect_s()
        if suspect_s is not None:
            waits.append(suspect_s - now_s)
        return max(0.0, min(waits)) if waits else None

    async def _claim(self, picks: Sequence[Pick]) -> None:
        assert self.row is not None, "it was read"
        if chaos.on:
            await chaos.point("tasks.before_claim")
        write = JobClaim(self.tenure.claim, self.row.stamp, tuple((head.id, runner) for head, runner in picks))
        self._picks = picks
        self.flying = dict.fromkeys((head.id for head, _ in picks), -1)
        sent_s = _now_s()
        try:
            told = await self.store.claim(write)
        except PersistenceError as error:
            self._put_back(picks)
            self._is_in_doubt = error.outcome == "unknown"
            log.info("the jobs of %s wait for the database: %s", self.seat, error)
            await asyncio.sleep(AWAY_S)
            return
        if chaos.on:
            await chaos.point("tasks.after_claim")
        if told.outcome == "fenced":
            self._put_back(picks)
            self.lose()
        elif told.outcome == "changed":
            self._put_back(picks)
            await self.upkeep.read_row()
        else:
            if told.tokens is not None:
                self._bucket.set(told.tokens, sent_s)
            await self._judge(picks, told)

    async def _judge(self, picks: Sequence[Pick], told: JobsClaimed) -> None:
        deliveries = {each.id: each for each in told.jobs}
        refused = [pick for pick in picks if pick.head.id not in deliveries]
        begun = [pick for pick in picks if pick.head.id in deliveries]
        over = self.flying
        is_limited_by_rate = told.tokens is not None and told.tokens < 1
        self._put_back(refused, read=not is_limited_by_rate)
        to: dict[str, list[JobDelivery]] = {}
        for head, runner in begun:
            delivery = deliveries[head.id]
            self.claimed.add(head, runner=runner, claim=delivery.claim)
            self.upkeep.window.went(head.id)
            to.setdefault(runner, []).append(delivery)
        for runner, jobs in to.items():
            self._assign(runner, jobs)
        for head, _ in begun:
            if over[head.id] >= deliveries[head.id].claim and (known := self.claimed.end(head.id, over[head.id])):
                self.is_over(known)
        self._refused_s = min(max(_REFUSED_S, self._refused_s * 2), _REFUSED_MOST_S) if refused and not begun else 0.0
        if refused and not is_limited_by_rate:
            self.upkeep.compare_soon()
            if self._refused_s:
                await asyncio.sleep(self._refused_s)

    def _put_back(self, picks: Iterable[Pick], *, read: bool = True) -> None:
        """Jobs that were not claimed are ready, as before. Unless that is sure, their partitions are read again."""
        self.flying, self._picks = {}, ()
        now_s = self.now_s()
        for head, _ in picks:
            self.slots.end(head.id)
            self.lanes.put_back(head, now_s)
            if read:
                self.lanes.want(head.part)
        if self.lanes.wants:
            self.upkeep.hurry()

    def _assign(self, runner: str, jobs: Sequence[JobDelivery]) -> None:
        sent_s = self.now_s()
        for batch in batches(jobs):
            self._exchange.tell_runner(runner, Assignment(self.seat, self.tenure.epoch, sent_s, batch))

    # What runners can take

    async def _hear(self) -> None:
        """Ask runners that have not reported lately, if something waits for them."""
        if len(self.lanes):
            await self.ask(since_s=_now_s() - _REPORT_S)

    async def ask(self, *, since_s: float) -> None:
        """Ask the runners that have not reported since a time of the loop what they can take."""
        now_s = _now_s()
        live = self._runners(self.group)
        self.slots.keep(live)
        silent = [
            each for each in self.slots.silent(live, since_s) if self._asked_s.get(each, -math.inf) < now_s - _ASKED_S
        ]
        self._asked_s = {runner: at_s for runner, at_s in self._asked_s.items() if runner in live}
        if silent:
            self._asked_s |= dict.fromkeys(silent, now_s)
            await asyncio.gather(*map(self._ask, silent))

    async def _ask(self, runner: str) -> None:
        question = SlotsQuestion(self.seat, self.tenure.epoch)
        slots = await self._exchange.ask_slots(runner, question, within_s=_ASK_S)
        if slots is not None:
            self._report(runner, slots)
            self.hurry()

    def _report(self, runner: str, slots: Slots) -> None:
        if runner in self._runners(self.group):
            self.slots.report(runner, slots, _now_s())

    # Lifecycle (`LoopOccupant`)

    def _running(self) -> Iterable[asyncio.Task[object]]:
        return (self._keep,)

    def _close(self) -> None:
        super()._close()
        self.upkeep.hurry()
        self.slots.keep(())  # its jobs count for other seats of this process no more
        self._waiters.answer_all(NOT_MINE)


def batches(jobs: Sequence[JobDelivery]) -> Iterable[tuple[JobDelivery, ...]]:
    """Jobs in frames of a bounded size."""
    batch: list[JobDelivery] = []
    size = 0
    for job in jobs:
        if batch and size + len(job.payload) > _FRAME_BYTES:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(job)
        size += len(job.payload)
    if batch:
        yield tuple(batch)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
