"""Runs one tick, from its claim to its outcome.

cut off before, without stored steps, and too old by now ──▶ skipped
attempt ──ended well──▶ ran
   │ ▲
   │ └── again, after the pause that `retry` says
   └──raised, or took longer than `timeout`──▶ failed, when no attempt is left

Anything else that ends it (the seat is lost, the process dies) leaves the row as it is: the next holder finds it open,
and makes another attempt.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from functools import partial
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from coterie.cron.decide import CUT_OFF, goes_on, is_too_old
from coterie.cron.tick import Tick
from coterie.durable.unit import finish, work_of
from coterie.errors import LeadershipLost, PersistenceError
from coterie.kernel import chaos, metrics
from coterie.kernel.context import enter
from coterie.kernel.text import said, storable
from coterie.storage.contracts.ticks import Kind, Outcome, TickNote, TickRow
from coterie.storage.contracts.units import life_of_tick, unit_of_tick
from coterie.work.context import context_of, in_span
from coterie.work.limits import is_cancelled, settled
from coterie.work.middleware import WorkInfo
from coterie.work.occupants import GRACE_S
from coterie.work.threads import in_thread
from coterie.work.while_held import while_held

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from datetime import datetime

    from coterie.cron.definition import Cron
    from coterie.cron.tick import Beat
    from coterie.durable.steps import DurableWork
    from coterie.ownership.seats import Tenure
    from coterie.storage.interface import Written
    from coterie.work.services import Services

    Key = tuple[Kind, datetime, int]

log = logging.getLogger("coterie.cron")

_CUT_SHORT_MOST = 4
"""How many more attempts than its policy says a tick gets because its runner was lost: one that kills its process each
time must not do so for ever."""
_BEAT_S = 1.0
"""Minimum interval between writes of heartbeats."""
_TEXT_MOST = 2_000
"""Characters of an error or a note that are stored."""
_HERE = str(Path(__file__).parent)
_ERRORS_MOST = 20
"""How many errors of a tick are kept: the first and the last ones."""


class TickRun:
    """A tick that runs here.

    Args:
        row: Its stored row, claimed by us.
        cut_off: Whether it had been claimed before, by us or another holder, and was not completed.

    Promise:
        Its outcome is written once, under the fence, or not at all.
    """

    def __init__(self, cron: Cron, row: TickRow, tenure: Tenure, services: Services, *, cut_off: bool = False) -> None:
        self._cron = cron
        self._row = row
        self._cut_off = cut_off
        self._tenure = tenure
        self._services = services
        self._attempt = row.attempt
        self._errors = row.errors
        self._late_s = row.late_s
        self._note: tuple[str, int | None, int | None] = (row.note, row.done, row.total)
        self._beating: asyncio.Task[Any] | None = None
        self._in_doubt = False
        self._work: DurableWork | None = None
        self._unit = unit_of_tick(tenure.seat, row.kind, row.at, row.seq)

    def hint(self) -> None:
        """A value for one of its deferreds may have arrived."""
        if self._work is not None:
            self._work.hint()

    async def run(self) -> Outcome | None:
        """Run it to its outcome. None: the seat was lost, and the next holder continues."""
        try:
            return await self._run()
        except LeadershipLost as error:
            log.info("%s continues on another runner: %s", self, error)
            return None
        finally:
            if self._beating is not None:
                self._beating.cancel()

    async def _run(self) -> Outcome:
        if self._cut_off and not await self._goes_on():
            return await self._end("skipped", reason=CUT_OFF)
        policy_most = 1 if self._cron.retry is None else self._cron.retry.attempts
        if self._attempt > policy_most + _CUT_SHORT_MOST:
            self._fail(f"its runner was lost in each of {self._attempt - 1} attempts")
            return await self._end("failed")
        if self._attempt == 1:
            due_at = self._row.at + self._cron.policy.delay if self._row.kind == "scheduled" else self._row.claimed_at
            self._late_s = max(0.0, -self._services.dial.until_s(due_at))
            metrics.CRON_LATENESS.spread(self._cron.name).see(self._late_s)
        now_s = asyncio.get_running_loop().time
        while True:
            began_s = now_s()
            metrics.EXECUTIONS.of(self._cron.name, "cron").value += 1
            self._meter()
            try:
                problem = await self._run_attempt()
            finally:
                took_s = now_s() - began_s
                metrics.EXECUTION_DURATION.spread(self._cron.name, "cron").see(took_s)
            if problem is None:
                return await self._end("ran", took_s)
            self._fail(problem)
            pause_s = (
                None if self._cron.retry is None else self._cron.retry.delay_s(self._attempt, self._services.chance)
            )
            if pause_s is None:
                return await self._end("failed", took_s)
            await self._write(self._new_note(took_s=took_s))
            await asyncio.sleep(pause_s)
            await self._write(self._new_note(again=True, took_s=took_s))
            self._attempt += 1

    async def _goes_on(self) -> bool:
        """Whether it gets another attempt. Its steps are read from storage only if that matters."""
        now = self._services.dial.now()
        has_steps = is_too_old(self._cron.policy, self._row.at, now) and await self._has_steps()
        manual = self._row.kind == "manual"
        return goes_on(self._cron.policy, self._row.at, manual=manual, has_steps=has_steps, now=now)

    async def _has_steps(self) -> bool:
        steps = partial(self._services.units.steps, self._unit)
        return bool(await while_held(self._tenure.require_held, steps, what=self, log=log))

    def _meter(self) -> None:
        metrics.LAST_EXECUTION.of(self._cron.name, "cron").value = self._services.dial.now().timestamp()

    async def _run_attempt(self) -> str | None:
        """One attempt. Returns: the error text, if it failed."""
        enter(context_of(self._tenure, self._cron.name, attempt=self._attempt))
        try:
            if chaos.on:
                chaos.saw("tick", f"{self._cron.name} of {self._row.at:%Y-%m-%dT%H:%M:%S}, attempt {self._attempt}")
                await chaos.point("cron.before_body")
            work = self._within_timeout(self._call_body())
            facts: dict[str, str | int] = {"tick": self._row.at.isoformat(), "attempt": self._attempt}
            await in_span(work, f"cron.{self._cron.name}", self._tenure, **facts)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return "its body was cancelled, by itself"
        except Exception as error:
            if isinstance(error, LeadershipLost) and (error.seat == self._tenure.seat or not self._tenure.held):
                raise  # for another seat it is an error like any other
            log.exception("%s raised in attempt %d", self, self._attempt)
            return _described(error)
        finally:
            if self._work is not None:
                await self._work.end_branches()
        return None

    async def _call_body(self) -> None:
        work = self._work = self._new_work()
        work.places.begin()
        tick = self._tick(work)
        if self._services.middleware:
            await self._services.middleware.around(self._described(), lambda: self._body_of(tick))
        else:
            await self._body_of(tick)

    def _body_of(self, tick: Tick) -> Coroutine[Any, Any, Any]:
        if self._cron.is_threaded:
            threads, body = self._services.threads, partial(self._cron.body, tick)
            return in_thread(threads, body, what=str(self), alone=self._unit)
        return cast("Coroutine[Any, Any, Any]", self._cron.body(tick))

    def _described(self) -> WorkInfo:
        at = f"{self._row.at:%Y-%m-%dT%H:%M:%SZ}"
        return WorkInfo(kind="tick", name=self._cron.name, id=at, attempt=self._attempt)

    async def _within_timeout(self, body: Any) -> None:
        if self._cron.timeout_s is None:
            await body
            return
        task = self._services.tasks.spawn(body, name=f"body of {self._cron.name}", report=False)
        try:
            await settled([task], limit_s=self._cron.timeout_s)
        except asyncio.CancelledError:
            task.cancel()
            await settled([task], limit_s=GRACE_S)
            raise
        if task.done():
            task.result()
            return
        task.cancel()
        await settled([task], limit_s=None if self._cron.is_threaded else GRACE_S)
        if not task.done():
            log.error("%s ignored its cancellation for %gs and is abandoned; what it writes is refused", self, GRACE_S)
        raise TimeoutError(f"it did not end within {self._cron.timeout_s:g}s")

    def _tick(self, work: DurableWork) -> Tick:
        return Tick(
            self._cron.name,
            scheduled_at=self._row.at,
            attempt=self._attempt,
            manual=self._row.kind == "manual",
            work=work,
            services=self._services,
            tenure=self._tenure,
            beat=self._beat_of_thread() if self._cron.is_threaded else self._beat,
        )

    def _new_work(self) -> DurableWork:
        """Its steps; loaded when the first one is called."""
        return work_of(
            self._services,
            self._tenure,
            unit=self._unit,
            kind="tick",
            name=self._cron.name,
            id=self._unit.removeprefix(f"{self._tenure.seat}/"),
            life=life_of_tick(self._row.claimed_at),
        )

    # Writing its row

    def _fail(self, problem: str) -> None:
        errors = (*self._errors, f"attempt {self._attempt}: {problem}")
        self._errors = errors if len(errors) <= _ERRORS_MOST else (errors[0], *errors[2:])

    async def _end(self, outcome: Outcome, took_s: float | None = None, *, reason: str = "") -> Outcome:
        if self._beating is not None:
            self._beating.cancel()
        if chaos.on:
            await chaos.point("cron.before_outcome")
        await self._write(self._new_note(outcome=outcome, took_s=took_s, reason=reason))
        self._meter()
        metrics.CRON_TICKS.of(self._cron.name, outcome).value += 1
        if self._cut_off or (self._work is not None and self._work.is_open):  # a former attempt may have begun its unit
            await finish(self._work or self._new_work(), self._services, self._tenure)
        return outcome

    def _new_note(
        self,
        *,
        outcome: Outcome | None = None,
        again: bool = False,
        took_s: float | None = None,
        reason: str = "",
    ) -> TickNote:
        note, done, total = self._note
        return TickNote(
            claim=self._tenure.claim,
            name=self._cron.name,
            kind=self._row.kind,
            at=self._row.at,
            seq=self._row.seq,
            attempt=self._attempt,
            outcome=outcome,
            again=again,
            errors=self._errors,
            late_s=self._late_s,
            took_s=took_s,
            note=note,
            done=done,
            total=total,
            reason=reason,
        )

    async def _write(self, note: TickNote) -> None:
        """Write its row, retrying while we hold the seat.

        Raises:
            LeadershipLost: We do not hold it any more.
        """
        written = await while_held(self._tenure.require_held, partial(self._try_to_write, note), what=self, log=log)
        if written == "fenced":
            raise self._tenure.lost()
        if written == "conflict" and not self._in_doubt:
            log.warning(
                "%s has an outcome already, which this runner did not write: was its row changed by hand?", self
            )
        self._in_doubt = False

    async def _try_to_write(self, note: TickNote) -> Written:
        try:
            return await self._services.storage.ticks.note(note)
        except PersistenceError as error:
            metrics.STATE_ERRORS.of(self._cron.name, "cron").value += 1
            self._in_doubt = self._in_doubt or error.outcome == "unknown"
            raise

    def _beat(self, note: str, done: int | None, total: int | None) -> None:
        self._note = storable(note[:_TEXT_MOST]), done, total
        if self._beating is None or self._beating.done():
            self._beating = self._services.tasks.spawn(self._write_beat(), name=f"beat {self._cron.name}", report=False)

    def _beat_of_thread(self) -> Beat:
        loop = asyncio.get_running_loop()

        def beat(note: str, done: int | None, total: int | None) -> None:
            loop.call_soon_threadsafe(self._beat, note, done, total)

        return beat

    async def _write_beat(self) -> None:
        while True:
            written = self._note
            try:
                await self._services.storage.ticks.note(self._new_note())
            except PersistenceError as error:
                log.info("the heartbeat of %s could not be written, and is written again soon: %s", self, error)
            await asyncio.sleep(_BEAT_S)
            if self._note == written:
                return

    def __str__(self) -> str:
        return f"tick {self._row.at:%Y-%m-%dT%H:%M:%SZ} of cron {self._cron.name!r}"


def _described(error: Exception) -> str:
    """The error's text, and where in the user's code it was raised."""
    frames = dropwhile(lambda frame: frame.filename.startswith(_HERE), traceback.extract_tb(error.__traceback__))
    where = "".join(traceback.format_list(list(frames)))
    return storable(f"{said(error)[:_TEXT_MOST]}\n{where[-_TEXT_MOST:]}".rstrip())
