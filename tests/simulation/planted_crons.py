"""Planted bugs of crons, each with the workload that finds it."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from coterie.cron import decide, seat
from coterie.cron.registry import HeldCrons
from coterie.cron.run import TickRun
from coterie.cron.seat import CronSeat
from coterie.errors import PersistenceError
from coterie.kernel.clock import Dial
from coterie.storage.contracts.ticks import ClaimResult, TickClaim, TickNote
from coterie.storage.sqlite import tick_writes
from coterie.storage.sqlite import ticks as sqlite_ticks
from tests.simulation import test_crons
from tests.simulation.workloads import cron_deploys as deploys
from tests.simulation.workloads import crons as workload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from contextlib import AbstractContextManager

    from coterie.cron.decide import CronProgress, Decision, RunTick, SkipTicks, TickPolicy
    from coterie.cron.schedule import Schedule

    Planted = tuple[str, Callable[[], Any], Callable[[], Coroutine[Any, Any, object]], tuple[str, ...]]


# ── storage ─────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _not_fenced(kind: type) -> Iterator[None]:
    right = tick_writes._proven

    def trusting(connection: Any, scope: Any, writes: Sequence[Any]) -> list[Any]:
        if writes and isinstance(writes[0], kind):
            return list(writes)
        return right(connection, scope, writes)

    with patch.object(tick_writes, "_proven", trusting):
        yield


@contextmanager
def _outcome_without_epoch() -> Iterator[None]:
    old = "t.epoch = asked.value ->> 'epoch' and t.attempt = asked.value ->> 'attempt' and t.outcome is null"
    running = _swap("running", old, "t.outcome is null")
    with _not_fenced(TickNote), patch.dict(tick_writes.SQL, running=running):
        yield


@contextmanager
def _outcome_twice() -> Iterator[None]:
    """An outcome is taken for news though there is one: a late answer writes over what is known."""
    old = "t.epoch = asked.value ->> 'epoch' and t.attempt = asked.value ->> 'attempt' and t.outcome is null"
    with patch.dict(tick_writes.SQL, running=_swap("running", old, "t.epoch = asked.value ->> 'epoch'")):
        yield


@contextmanager
def _taken_whoever_has_it() -> Iterator[None]:
    adopt = _swap("adopt", "epoch < :epoch", "epoch <= :epoch")
    with (
        patch.dict(tick_writes.SQL, adopt=adopt),
        patch.object(
            sqlite_ticks, "_is_foreign", lambda take, look: any(t.epoch <= take.claim.epoch for t in look.open)
        ),
    ):
        yield


@contextmanager
def _taken_as_two_attempts() -> Iterator[None]:
    with patch.dict(tick_writes.SQL, adopt=_swap("adopt", "attempt = attempt + 1", "attempt = attempt + 2")):
        yield


@contextmanager
def _not_taken() -> Iterator[None]:
    with patch.object(sqlite_ticks, "_is_foreign", lambda take, look: any(t.epoch == 0 for t in look.open)):
        yield


@contextmanager
def _last_not_moved_by_what_is_skipped() -> Iterator[None]:
    def stuck(write: TickClaim) -> dict[str, Any]:
        runs = [verdict for verdict in write.verdicts if not verdict.reason]
        until = runs[-1].until if runs else write.last or write.verdicts[0].at
        return {"name": write.name, "last_at_ns": tick_writes.instant_ns(until), "runs": len(runs)}

    with patch.object(tick_writes, "_advanced", stuck):
        yield


@contextmanager
def _judged_without(*words: str) -> Iterator[None]:
    """A claim that is not refused for these reasons."""
    right = tick_writes._judged

    def lenient(write: TickClaim, schedule: Any, now: Any) -> Any:
        told = right(write, schedule, now)
        return "written" if told in words else told

    with patch.object(tick_writes, "_judged", lenient):
        yield


@contextmanager
def _last_not_compared() -> Iterator[None]:
    claim = tick_writes.SQL["claim"].replace("insert into ticks", "insert or ignore into ticks")
    with _judged_without("moved"), patch.dict(tick_writes.SQL, claim=claim):
        yield


@contextmanager
def _claimed_by_whoever_asks() -> Iterator[None]:
    with _not_fenced(TickClaim), _last_not_compared():
        yield


def _swap(name: str, old: str, new: str) -> str:
    assert old in tick_writes.SQL[name], f"{old!r} is no longer in {name}: bring the plant up to date"
    return tick_writes.SQL[name].replace(old, new)


# ── what is decided ─────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _decided(change: Callable[[Schedule, TickPolicy, CronProgress, Any], Decision]) -> Iterator[None]:
    with patch.object(seat, "decide", change):
        yield


def _next_from_now() -> AbstractContextManager[None]:
    def hasty(schedule: Schedule, policy: TickPolicy, known: CronProgress, now: Any) -> Decision:
        newest = schedule.previous(schedule.previous(now - policy.delay + timedelta(microseconds=1)))
        last = newest if known.last is None else max(known.last, newest)
        return decide.decide(schedule, policy, replace(known, last=last), now)

    return _decided(hasty)


def _caught_up_without_bound() -> AbstractContextManager[None]:
    return _decided(lambda schedule, policy, *more: decide.decide(schedule, replace(policy, most=10_000), *more))


def _busy_forgotten() -> AbstractContextManager[None]:
    return _decided(lambda one, two, known, now: decide.decide(one, two, replace(known, busy=False), now))


def _always_overlapping() -> AbstractContextManager[None]:
    return _decided(lambda one, two, known, now: decide.decide(one, two, replace(known, busy=True), now))


@contextmanager
def _skipped_span_off_by_one() -> Iterator[None]:
    right = decide._judged

    def short(schedule: Schedule, *args: Any) -> Iterator[RunTick | SkipTicks]:
        for verdict in right(schedule, *args):
            if isinstance(verdict, decide.SkipTicks) and verdict.count > 1:
                yield replace(verdict, first=schedule.next_after(verdict.first), count=verdict.count - 1)
            else:
                yield verdict

    with patch.object(decide, "_judged", short):
        yield


@contextmanager
def _own_clock() -> Iterator[None]:
    with (
        patch.object(Dial, "observe", lambda *_: None),
        patch.object(Dial, "correct", lambda *_: None),
        _judged_without("early"),
    ):
        yield


@contextmanager
def _begun_too_early() -> Iterator[None]:
    right = Dial.now
    with patch.object(Dial, "now", lambda self: right(self) + timedelta(seconds=0.1)), _judged_without("early"):
        yield


@contextmanager
def _redefined_ignored() -> Iterator[None]:
    with patch.object(CronSeat, "_is_redefined", lambda *_: False), _judged_without("redefined"):
        yield


# ── what holders do ─────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _no_sweep() -> Iterator[None]:
    async def never(self: HeldCrons) -> None:
        del self
        await asyncio.Event().wait()

    with patch.object(HeldCrons, "_sweep", never):
        yield


class _Nothing(dict[Any, Any]):
    """Remembers nothing."""

    def __setitem__(self, key: Any, value: Any) -> None:
        del key, value


@contextmanager
def _what_is_over_forgotten() -> Iterator[None]:
    right = CronSeat._apply

    def forgetful(self: CronSeat, number: int, book: Any) -> bool:
        self._over = _Nothing()
        return right(self, number, book)

    with patch.object(CronSeat, "_apply", forgetful):
        yield


@contextmanager
def _old_looks_believed() -> Iterator[None]:
    right = CronSeat._apply

    def gullible(self: CronSeat, number: int, book: Any) -> bool:
        self._applied = 0
        return right(self, number, book)

    with patch.object(CronSeat, "_apply", gullible):
        yield


@contextmanager
def _unanswered_claim_taken_as_written() -> Iterator[None]:
    right = CronSeat._claim

    async def sure(self: CronSeat, book: Any, decision: Any) -> None:
        storage = self._services.storage.ticks
        claim = storage.claim

        async def believing(write: TickClaim) -> ClaimResult:
            try:
                return await claim(write)
            except PersistenceError as error:
                if error.outcome != "unknown":
                    raise
                return ClaimResult("written", self._services.dial.now())

        with patch.object(storage, "claim", believing):
            await right(self, book, decision)

    with patch.object(CronSeat, "_claim", sure):
        yield


@contextmanager
def _unanswered_outcome_taken_as_written() -> Iterator[None]:
    right = TickRun._write

    async def sure(self: TickRun, write: TickNote) -> None:
        note = self._services.storage.ticks.note

        async def believing(write: TickNote) -> Any:
            try:
                return await note(write)
            except PersistenceError:
                return "written"

        with patch.object(self._services.storage.ticks, "note", believing):
            await right(self, write)

    with patch.object(TickRun, "_write", sure):
        yield


@contextmanager
def _attempt_not_noted() -> Iterator[None]:
    right = TickRun._write

    async def silent(self: TickRun, write: TickNote) -> None:
        if not write.again:
            await right(self, write)

    with patch.object(TickRun, "_write", silent):
        yield


@contextmanager
def _cut_short_taken_as_failed() -> Iterator[None]:
    right = TickRun._run

    async def rash(self: TickRun) -> Any:
        try:
            return await right(self)
        except asyncio.CancelledError:
            self._services.tasks.spawn(self._end("failed"), name="rash", report=False)
            raise

    with patch.object(TickRun, "_run", rash):
        yield


@contextmanager
def _errors_swallowed() -> Iterator[None]:
    right = TickRun._run_attempt

    async def calm(self: TickRun) -> str | None:
        problem = await right(self)
        return None if problem is not None and self._attempt > 1 else problem

    with patch.object(TickRun, "_run_attempt", calm):
        yield


@contextmanager
def _turns_not_taken() -> Iterator[None]:
    right = CronSeat._begin

    def all_at_once(self: CronSeat) -> None:
        runs, self._runs = self._runs, {}
        right(self)
        self._runs |= runs

    with _busy_forgotten(), patch.object(CronSeat, "_begin", all_at_once):
        yield


C1, C2, F2 = "INV-C1", "INV-C2", "INV-F2"

PLANTED: tuple[Planted, ...] = (
    ("ticks claimed by whoever asks", _claimed_by_whoever_asks, workload.main, (F2, C1)),
    ("outcomes without epoch and attempt", _outcome_without_epoch, workload.main, (F2, C1, C2)),
    ("outcome written over another", _outcome_twice, workload.main, (C1, C2)),
    ("ticks taken whoever has them", _taken_whoever_has_it, workload.main, (C1,)),
    ("a take that counts two attempts", _taken_as_two_attempts, workload.main, (C1,)),
    ("what was cut short not taken", _not_taken, workload.main, (C1, C2)),
    ("last tick not moved by what is skipped", _last_not_moved_by_what_is_skipped, workload.main, (C1, C2)),
    ("pause ignored by the claim", lambda: _judged_without("paused"), workload.main, ("C2",)),
    ("tick begun too early", _begun_too_early, workload.main, ("C2",)),
    ("ticks by the runner's own clock", _own_clock, workload.main, ("C2",)),
    ("another schedule ignored", _redefined_ignored, deploys.main, (C1, C2)),
    ("next tick from now", _next_from_now, workload.main, (C2,)),
    ("caught up with without bound", _caught_up_without_bound, workload.main, ("INV-C4",)),
    ("a run that goes on forgotten", _turns_not_taken, workload.main, ("C3", "INV-C4")),
    ("overlapping with nothing", _always_overlapping, workload.main, (C2,)),
    ("skipped span off by one", _skipped_span_off_by_one, workload.main, (C2,)),
    ("crons not swept", _no_sweep, workload.main, (C2,)),
    ("what is over forgotten", _what_is_over_forgotten, test_crons.late_looks, (C1,)),
    ("old looks believed", _old_looks_believed, test_crons.late_looks, (C1, C2)),
    ("unanswered claim taken as written", _unanswered_claim_taken_as_written, workload.main, (C1, C2)),
    ("unanswered outcome taken as written", _unanswered_outcome_taken_as_written, workload.main, (C1, C2)),
    ("attempt begun without a note", _attempt_not_noted, workload.main, (C1, C2)),
    ("cut short taken as failed", _cut_short_taken_as_failed, workload.main, (C2,)),
    ("errors swallowed by the second attempt", _errors_swallowed, workload.main, (C2,)),
)
"""Name, how it is planted, what finds it, and the promises that are then broken, if it says so."""
SAMPLE = {
    "a take that counts two attempts",
    "tick begun too early",
    "next tick from now",
    "skipped span off by one",
}
"""Those that every change is held against; the others take longer."""
