"""One runner on the seat of one cron, from grant to loss (`ownership.Occupant`).

take over ──▶ decide: what is due, and what to do about it? ────────▶ claim ──▶ run … (each in its own task)
  ▲             ▲ │ nothing: wait for the next tick, a hint, the end of a run       │
  │             └─┴─────────────────────────────────────────────────────────────────┘
  └── whenever the tables may have changed: in doubt, and after a hint; a poll reads them too
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.cron.decide import CronProgress, Decision, PauseSpan, RunTick, decide
from coterie.cron.run import TickRun
from coterie.errors import LeadershipLost, PersistenceError
from coterie.kernel import chaos, metrics
from coterie.storage.contracts.ticks import CronBook, CronTakeover, Outcome, TickClaim, TickRow, Verdict
from coterie.work.limits import set_within
from coterie.work.occupants import GRACE_S, LoopOccupant
from coterie.work.while_held import AWAY_S, while_held

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextvars import Context
    from datetime import datetime

    from coterie.cron.definition import Cron
    from coterie.cron.run import Key
    from coterie.ownership.seats import Tenure
    from coterie.work.services import Services

log = logging.getLogger("coterie.cron")

_SESSION_S = 0.05
"""Polling interval for the session without which a runner starts nothing [M2]."""
_AGAIN_S = 1.0
"""Pause after a tick was left to the next holder, which may be us: it may fail each time."""
_LONGEST_S = 3600.0
"""The longest wait without a decision: timers and clocks drift apart."""


class CronSeat(LoopOccupant):
    """A cron at work. Its ticks inherit `context`."""

    def __init__(self, cron: Cron, tenure: Tenure, services: Services, context: Context) -> None:
        super().__init__(tenure, services, context)
        self.cron = cron
        self._runs: dict[Key, asyncio.Task[Any]] = {}
        self._begun: dict[Key, TickRun] = {}
        self._waiting: dict[Key, TickRow] = {}  # claimed or triggered, and not begun
        self._fresh: set[Key] = set()  # those of them that were claimed just now
        self._over: dict[Key, int] = {}  # ended, and the number of the last read that may have seen them open
        self._reads = 0
        self._applied = 0  # results of reads up to this one are outdated
        self._book: CronBook | None = None
        self._held_since: datetime | None = None
        self._stale = True
        self._loop = services.supervise(self._live, "hold cron", tenure, context=context)

    # The seat

    def _running(self) -> list[asyncio.Task[Any]]:
        return list(self._runs.values())

    async def end(self) -> None:
        """Cancel what is left, and wait until it has ended or was abandoned."""
        await super().end()
        for (_, at, _), task in list(self._runs.items()):
            if not task.done():
                log.error(
                    "tick %s of cron %r ignored its cancellation for %gs and is abandoned; what it writes is refused",
                    f"{at:%Y-%m-%dT%H:%M:%SZ}", self.cron.name, GRACE_S,
                )  # fmt: skip

    # Notifications

    def wake(self, unit: str = "") -> None:
        """The tables may have changed: it was triggered, paused, resumed; or there is a value for a unit."""
        for running in self._begun.values() if unit else ():
            running.hint()
        self._stale = True
        self._news.set()

    def begin_poll(self) -> tuple[int, CronTakeover] | None:
        """The query of a poll, with its number; None: it has ended, or is reading by itself."""
        if self._closing or self._stale or self._book is None or not self.tenure.held:
            return None
        self._reads += 1
        return self._reads, CronTakeover(self.tenure.claim, self.cron.name)

    def end_poll(self, number: int, book: CronBook | None) -> None:
        """The result of a poll. None: we do not hold the seat."""
        if book is None:
            self.wake()
        elif self._apply(number, book):
            self._news.set()

    # Lifecycle

    async def _live(self) -> None:
        self._stale = True  # an error may have ended the previous life in the middle of a pass
        try:
            while not self._closing:
                self._news.clear()
                if self._stale:
                    await self._take_over()
                await self._pass()
        except LeadershipLost as error:
            log.info("cron %r stopped on this runner: %s", self.cron.name, error)

    async def _take_over(self) -> None:
        """Read the stored record, and take over open ticks; retried for as long as it takes."""
        what = f"cron {self.cron.name!r}"
        number, books = await while_held(self.tenure.require_held, self._try_to_take_over, what=what, log=log)
        if self.cron.name not in books:
            raise self.tenure.lost()
        self._apply(number, books[self.cron.name])

    async def _try_to_take_over(self) -> tuple[int, Mapping[str, CronBook]]:
        self._stale = False
        self._reads += 1
        number = self._reads
        takeover = CronTakeover(self.tenure.claim, self.cron.name, self.cron.summary)
        return number, await self._services.storage.ticks.take([takeover])

    def _apply(self, number: int, book: CronBook) -> bool:
        """Apply the result of a read, unless something newer is known."""
        self._services.dial.observe(book.now)
        if number <= self._applied:
            return False
        if self._held_since is None:
            self._held_since = book.now
        self._applied = number
        self._book = book
        self._over = {key: last for key, last in self._over.items() if last >= number}
        rows = {_key(row): row for row in book.open}
        self._waiting = {key: row for key, row in rows.items() if key not in self._runs and key not in self._over}
        self._fresh &= self._waiting.keys()
        return True

    async def _pass(self) -> None:
        assert self._book is not None, "it was read"
        self._begin()
        decision = self._decide(self._book)
        if not decision.verdicts:
            await self._wait(None if self._is_redefined(self._book) else decision.decide_at)
        elif not self.tenure.may_start:  # rare, and short
            self.tenure.require_held()
            await asyncio.sleep(_SESSION_S)
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
            running = self._begun[key] = TickRun(self.cron, row, self.tenure, self._services, cut_off=cut_off)
            name = f"tick {row.at.isoformat()} {self.cron.name}"
            task = self._runs[key] = self._services.tasks.spawn(
                self._run(running), name=name, context=self._context.copy()
            )
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
        self._news.set()
        outcome = None if task.cancelled() or task.exception() is not None else task.result()
        if outcome is None:
            self._stale = True
        else:
            self._over[key] = self._reads
            # Failures in a row are counted in the tables, and matter only to a breaker.
            self._stale = self._stale or self.cron.policy.breaker is not None

    def _decide(self, book: CronBook) -> Decision:
        assert self._held_since is not None, "it was read"
        now, effective_from = self._services.dial.now(), book.effective_from
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
            claimed = await self._services.storage.ticks.claim(write)
        except PersistenceError as error:
            log.info(
                "cron %r: the outcome of its claim is not known, it is read from the database: %s",
                self.cron.name,
                error,
            )
            self._stale = True
            await asyncio.sleep(AWAY_S)
            return
        if claimed.told == "fenced":
            raise self.tenure.lost()
        if claimed.told == "early":
            self._services.dial.correct(claimed.now)
            return
        self._services.dial.observe(claimed.now)
        if claimed.told != "written":
            self._stale = True
            return
        for each in verdicts:
            if each.reason:
                metrics.CRON_TICKS.of(self.cron.name, "skipped").value += each.count
        self._applied = self._reads  # whatever began before does not know of this
        self._book = msgspec.structs.replace(book, last=verdicts[-1].until)
        rows = {_key(row): row for row in self._claimed_rows(verdicts, claimed.now)}
        self._waiting |= rows
        self._fresh |= rows.keys()

    def _claimed_rows(self, verdicts: Sequence[Verdict], now: datetime) -> list[TickRow]:
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
                claimed_at=now,
            )
            for each in verdicts
            if not each.reason
        ]

    async def _wait(self, until: datetime | None) -> None:
        """Wait until an instant of the database's clock, or for a wake-up."""
        wait_s = _LONGEST_S if until is None else min(_LONGEST_S, self._services.dial.until_s(until))
        if wait_s > 0:
            await set_within(self._news, wait_s)


def _key(row: TickRow) -> Key:
    return row.kind, row.at, row.seq


def _verdict(each: Any) -> Verdict:
    if isinstance(each, RunTick):
        return Verdict(each.at, each.at)
    return Verdict(each.first, each.last, each.count, each.reason)
