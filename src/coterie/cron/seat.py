"""One runner on the seat of one cron, from grant to loss (`ownership.Occupant`).

take ──▶ look: what is due, and what to do about it? ──────────▶ claim ──▶ run … (each in its own task)
  ▲        ▲ │ nothing: wait for the next tick, a hint, the end of a run       │
  │        └─┴─────────────────────────────────────────────────────────────────┘
  └── whenever the tables may have changed: in doubt, after a hint, and with each sweep
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.cron.decide import CronProgress, PauseSpan, RunTick, decide
from coterie.cron.run import GRACE_S, TickRun
from coterie.errors import LeadershipLost, PersistenceError
from coterie.kernel import chaos, metrics
from coterie.kernel.supervisor import Seated
from coterie.storage.contracts.ticks import CronTakeover, TickClaim, TickRow, Verdict
from coterie.work.limits import settled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextvars import Context
    from datetime import datetime

    from coterie.cron.decide import Decision
    from coterie.cron.definition import Cron
    from coterie.cron.registry import CronServices
    from coterie.cron.run import Key
    from coterie.ownership.seats import Tenure
    from coterie.storage.contracts.ticks import CronBook, Outcome

log = logging.getLogger("coterie.cron")

_AWAY_S = 0.2
"""Pause between two attempts while the database is away."""
_LOOK_S = 0.05
_AGAIN_S = 1.0
"""Pause after a tick was left to the next holder, which may be us: it may fail each time."""
_LONGEST_S = 3600.0
"""The longest wait without a look: timers and clocks drift apart."""


class CronSeat:
    """A cron at work.

    Args:
        cron: The definition.
        tenure: The tenure under which it writes.
        desk: The cron services of the runner.
        context: The context that bodies inherit.

    Promise:
        Once `drain` has returned, or `abandon` was called, nothing more is written under its tenure. Running ticks get
        the time of the setting `drain`, then they are cancelled, and the next holder makes another attempt.
    """

    def __init__(self, cron: Cron, tenure: Tenure, desk: CronServices, context: Context) -> None:
        self.cron = cron
        self.tenure = tenure
        self._desk = desk
        self._context = context
        self._runs: dict[Key, asyncio.Task[Any]] = {}
        self._begun: dict[Key, TickRun] = {}
        self._waiting: dict[Key, TickRow] = {}  # claimed or triggered, and not begun
        self._fresh: set[Key] = set()  # those of them that were claimed just now
        self._over: dict[Key, int] = {}  # ended, and the number of the last take that may have seen them open
        self._takes = 0
        self._learned = 0  # the result of a take up to this one is outdated
        self._book: CronBook | None = None
        self._held_since: datetime | None = None
        self._wake = asyncio.Event()
        self._stale = True
        self._closing = False
        seated = Seated(tenure.seat, lambda: desk.resign(tenure.seat))
        self._work = desk.tasks.supervise(
            self._live, name="hold cron", supervisor=desk.supervisor, seated=seated, context=context
        )

    # The seat

    async def drain(self) -> None:
        """Start no new ticks, let running ones end, and cut off those that do not."""
        self._closing = True
        self._wake.set()
        await settled([self._work], limit_s=GRACE_S)  # not cancelled: a claim in flight must be followed up
        await settled(self._runs.values(), limit_s=self._desk.settings.drain.total_seconds())
        await self._cut_off()

    def abandon(self) -> None:
        """The seat is lost: stop everything. Further writes would be refused."""
        self._closing = True
        for task in (self._work, *self._runs.values()):
            task.cancel()

    async def end(self) -> None:
        """Wait until everything has ended or was abandoned."""
        self._closing = True
        await self._cut_off()

    async def _cut_off(self) -> None:
        tasks = [self._work, *self._runs.values()]
        for task in tasks:
            task.cancel()
        await settled(tasks, limit_s=GRACE_S)
        for (_, at, _), task in list(self._runs.items()):
            if not task.done():
                log.error(
                    "tick %s of cron %r ignored its cancellation for %gs and is left behind; what it writes is refused",
                    f"{at:%Y-%m-%dT%H:%M:%SZ}", self.cron.name, GRACE_S,
                )  # fmt: skip

    # Notifications

    def wake(self, unit: str = "") -> None:
        """The tables may have changed: it was triggered, paused, resumed; or there is a value for a unit."""
        for running in self._begun.values() if unit else ():
            running.hint()
        self._stale = True
        self._wake.set()

    def wish(self) -> tuple[int, CronTakeover] | None:
        """What a sweep should query, with its number; None: nothing, it has ended, or is reading by itself."""
        if self._closing or self._stale or self._book is None or not self.tenure.held:
            return None
        self._takes += 1
        return self._takes, CronTakeover(self.tenure.claim, self.cron.name)

    def hear(self, number: int, book: CronBook | None) -> None:
        """The result of a sweep. None: we do not hold the seat."""
        if book is None:
            self.wake()
        elif self._learn(number, book):
            self._wake.set()

    # Lifecycle

    async def _live(self) -> None:
        self._stale = True  # an error may have ended the previous life in the middle of a look
        try:
            while not self._closing:
                self._wake.clear()
                if self._stale:
                    await self._take()
                await self._look()
        except LeadershipLost as error:
            log.info("cron %r stops here: %s", self.cron.name, error)

    async def _take(self) -> None:
        """Read the stored record, and take over open ticks; retried for as long as it takes."""
        level = logging.INFO
        while True:
            self._require_held()
            self._stale = False
            self._takes += 1
            number = self._takes
            try:
                books = await self._desk.storage.ticks.take(
                    [CronTakeover(self.tenure.claim, self.cron.name, self.cron.told)]
                )
            except PersistenceError as error:
                log.log(level, "cron %r waits for the database: %s", self.cron.name, error)
                level = logging.DEBUG  # once per wait
                await asyncio.sleep(_AWAY_S)
                continue
            if self.cron.name not in books:
                raise self._lost()
            self._learn(number, books[self.cron.name])
            return

    def _learn(self, number: int, book: CronBook) -> bool:
        """Apply the result of a take, unless something newer is known."""
        self._desk.dial.hear(book.now)
        if number <= self._learned:
            return False
        if self._held_since is None:
            self._held_since = book.now
        self._learned = number
        self._book = book
        self._over = {key: last for key, last in self._over.items() if last >= number}
        rows = {_key(row): row for row in book.open}
        self._waiting = {key: row for key, row in rows.items() if key not in self._runs and key not in self._over}
        self._fresh &= self._waiting.keys()
        return True

    async def _look(self) -> None:
        assert self._book is not None, "it was taken"
        self._begin()
        decision = self._decided(self._book)
        if not decision.verdicts:
            await self._wait(None if self._is_redefined(self._book) else decision.look_at)
        elif not self.tenure.may_start:  # without its session a runner starts nothing [M2]: rare, and short
            self._require_held()
            await asyncio.sleep(_LOOK_S)
        else:
            await self._claim(self._book, decision)

    def _begin(self) -> None:
        """Start the ticks that are ours and do not run yet, in order; one at a time where required."""
        for key, row in list(self._waiting.items()):
            if not self.tenure.may_start or (self.cron.one_at_a_time and self._runs):
                return
            del self._waiting[key]
            cut_off = key not in self._fresh and row.kind == "scheduled"
            self._fresh.discard(key)
            running = self._begun[key] = TickRun(self.cron, row, self.tenure, self._desk, cut_off=cut_off)
            task = self._runs[key] = self._spawn(self._run(running), f"tick {row.at.isoformat()}", own_context=True)
            task.add_done_callback(partial(self._ended, key))

    async def _run(self, running: TickRun) -> Outcome | None:
        outcome = None
        try:
            outcome = await running.run()
        finally:
            if outcome is None and not self._closing:
                await asyncio.sleep(_AGAIN_S)
        return outcome

    def _ended(self, key: Key, task: asyncio.Task[Outcome | None]) -> None:
        del self._runs[key], self._begun[key]
        self._wake.set()
        outcome = None if task.cancelled() or task.exception() is not None else task.result()
        if outcome is None:
            self._stale = True
        else:
            self._over[key] = self._takes
            # Failures in a row are counted in the tables, and matter only to a breaker.
            self._stale = self._stale or self.cron.policy.breaker is not None

    def _decided(self, book: CronBook) -> Decision:
        assert self._held_since is not None, "it was taken"
        now, effective_from = self._desk.dial.now(), book.effective_from
        if self._is_redefined(book):  # what was due before is ours, the rest is the new definition's [M8]
            now, effective_from = min(now, effective_from), min(self._held_since, effective_from)
        known = CronProgress(
            effective_from=effective_from,
            held_since=self._held_since,
            last=book.last,
            pauses=[PauseSpan(each.since, each.until) for each in book.pauses],
            busy=bool(self._runs or self._waiting),
            failures=book.failures,
            failed_at=book.failed_at,
        )
        return decide(self.cron.schedule, self.cron.policy, known, now)

    def _is_redefined(self, book: CronBook) -> bool:
        return book.fingerprint.partition(":")[0] != self.cron.schedule_mark

    async def _claim(self, book: CronBook, decision: Decision) -> None:
        verdicts = tuple(_verdict(each) for each in decision.verdicts)
        write = TickClaim(
            claim=self.tenure.claim,
            name=self.cron.name,
            schedule=self.cron.schedule_mark,
            last=book.last,
            verdicts=verdicts,
            delay_s=self.cron.policy.delay.total_seconds(),
        )
        if chaos.on:
            await chaos.point("cron.before_claim")
        try:
            claimed = await self._desk.storage.ticks.claim(write)
        except PersistenceError as error:
            log.info("cron %r looks again what it has claimed: %s", self.cron.name, error)
            self._stale = True
            await asyncio.sleep(_AWAY_S)
            return
        if claimed.told == "fenced":
            raise self._lost()
        if claimed.told == "early":
            self._desk.dial.correct(claimed.now)
            return
        self._desk.dial.hear(claimed.now)
        if claimed.told != "written":
            self._stale = True
            return
        for each in verdicts:
            if each.reason:
                metrics.CRON_TICKS.of(self.cron.name, "skipped").value += each.count
        self._learned = self._takes  # whatever began before does not know of this
        self._book = msgspec.structs.replace(book, last=verdicts[-1].until)
        rows = {_key(row): row for row in self._claimed(verdicts, claimed.now)}
        self._waiting |= rows
        self._fresh |= rows.keys()

    def _claimed(self, verdicts: Sequence[Verdict], now: datetime) -> list[TickRow]:
        return [
            TickRow(
                name=self.cron.name,
                kind="scheduled",
                at=each.at,
                until=each.until,
                count=1,
                seq=0,
                epoch=self.tenure.epoch,
                attempt=1,
                outcome=None,
                reason="",
                errors=(),
                runner="",
                claimed_at=now,
                ended_at=None,
                late_s=None,
                took_s=None,
                note="",
                done=None,
                total=None,
            )
            for each in verdicts
            if not each.reason
        ]

    async def _wait(self, until: datetime | None) -> None:
        """Wait until an instant of the database's clock, or for a wake-up."""
        wait_s = _LONGEST_S if until is None else min(_LONGEST_S, self._desk.dial.until_s(until))
        if wait_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    # Helpers

    def _require_held(self) -> None:
        if not self.tenure.held:
            raise self._lost()

    def _lost(self) -> LeadershipLost:
        return LeadershipLost(seat=self.tenure.seat, epoch=self.tenure.epoch)

    def _spawn(self, work: Any, name: str, *, own_context: bool = False) -> asyncio.Task[Any]:
        context = self._context.copy() if own_context else self._context
        return self._desk.tasks.spawn(work, name=f"{name} {self.cron.name}", context=context)


def _key(row: TickRow) -> Key:
    return row.kind, row.at, row.seq


def _verdict(each: Any) -> Verdict:
    if isinstance(each, RunTick):
        return Verdict(each.at, each.at)
    return Verdict(each.first, each.last, each.count, each.reason)
