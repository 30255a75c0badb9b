"""A cron at work over rows in a dictionary, whose answers a test can hold up, lose or replace; in virtual time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.cron.definition import define
from coterie.cron.run import TickRun
from coterie.cron.seat import CronSeat
from coterie.errors import PersistenceError
from coterie.kernel import chaos
from coterie.kernel.clock import Dial
from coterie.ownership.seats import Tenure, Trust
from coterie.storage.contracts.ticks import ClaimResult, CronBook, PauseRow, TickRow
from coterie.storage.interface import Claim
from tests.support.manual_clock import ManualClock
from tests.support.services import services

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coterie.cron.definition import Cron
    from coterie.storage.contracts.ticks import CronTakeover, TickClaim, TickNote
    from coterie.storage.interface import Written

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

unreachable = PersistenceError(doing="note", problem="the database is away", outcome="unreachable")
unknown = PersistenceError(doing="note", problem="the connection broke", outcome="unknown")


def noon(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


async def nothing(tick: Any) -> None:
    """Nothing to do."""


def cron(name: str = "x", schedule: str = "@every 1s", body: Any = nothing, **options: Any) -> Cron:
    return define(name, schedule, body, options)  # type: ignore[arg-type] # as a program gives them


def row(at: datetime = NOON, **changes: Any) -> TickRow:
    """A tick that was just claimed."""
    made = TickRow(
        name="x",
        kind="scheduled",
        at=at,
        until=at,
        count=1,
        seq=0,
        epoch=7,
        attempt=1,
        outcome=None,
        reason="",
        errors=(),
        runner="",
        claimed_at=at,
        ended_at=None,
        late_s=None,
        took_s=None,
        note="",
        done=None,
        total=None,
    )
    return msgspec.structs.replace(made, **changes)


class FakeTicks:
    """`storage.Ticks` of one cron, as its only holder sees it. Its clock shows noon when the loop begins."""

    def __init__(self, cron: Cron) -> None:
        self.cron = cron
        self.ahead_s = 0.0
        self.held = True
        self.last: datetime | None = None
        self.fingerprint = cron.definition.fingerprint
        self.effective_from = NOON
        self.failures = 0
        self.failed_at: datetime | None = None
        self.pauses: list[PauseRow] = []
        self.rows: dict[tuple[str, datetime, int], TickRow] = {}
        self.skipped: list[tuple[datetime, datetime, int, str]] = []
        self.notes: list[TickNote] = []
        self.claims: list[TickClaim] = []
        self.asked: defaultdict[str, int] = defaultdict(int)
        self.failing: defaultdict[str, list[Exception]] = defaultdict(list)
        """By verb: what the next calls raise instead of doing anything."""
        self.losing: defaultdict[str, list[Exception]] = defaultdict(list)
        """The same, raised after it was done: the answer was lost."""
        self.gates: dict[str, asyncio.Event] = {}
        """By verb: its answer waits for this, after it was done."""

    @property
    def now(self) -> datetime:
        return noon(asyncio.get_running_loop().time() + self.ahead_s)

    def hold(self, verb: str) -> asyncio.Event:
        gate = self.gates[verb] = asyncio.Event()
        return gate

    def trigger(self, at: datetime | None = None) -> None:
        at = at or self.now
        seq = 1 + sum(1 for _, when, _ in self.rows if when == at)
        self.rows["manual", at, seq] = row(at, kind="manual", seq=seq, epoch=0, attempt=0)

    async def take(self, takes: Sequence[CronTakeover]) -> Mapping[str, CronBook]:
        await self._passing("take")
        (take,) = takes
        if not self.held:
            return {}
        for key, each in self.rows.items():
            if each.outcome is None and each.epoch < take.claim.epoch:
                self.rows[key] = msgspec.structs.replace(each, epoch=take.claim.epoch, attempt=each.attempt + 1)
        book = CronBook(
            fingerprint=self.fingerprint,
            effective_from=self.effective_from,
            last=self.last,
            failures=self.failures,
            failed_at=self.failed_at,
            pauses=tuple(self.pauses),
            open=tuple(each for each in self.rows.values() if each.outcome is None),
            now=self.now,
        )
        await self._answering("take")
        return {take.name: book}

    async def claim(self, write: TickClaim) -> ClaimResult:
        await self._passing("claim")
        told: Any = self._judge(write)
        if told == "written":
            self.claims.append(write)
            self.last = write.verdicts[-1].until
            for each in write.verdicts:
                if each.reason:
                    self.skipped.append((each.at, each.until, each.count, each.reason))
                else:
                    self.rows["scheduled", each.at, 0] = row(each.at, claimed_at=self.now, epoch=write.claim.epoch)
        answer = ClaimResult(told, self.now)
        await self._answering("claim")
        return answer

    def _judge(self, write: TickClaim) -> str:
        if not self.held:
            return "fenced"
        if write.last != self.last:
            return "moved"
        if write.schedule != self.fingerprint.partition(":")[0] and write.verdicts[-1].until >= self.effective_from:
            return "redefined"
        if any(each.until is None for each in self.pauses) and any(not each.reason for each in write.verdicts):
            return "paused"
        return "early" if write.verdicts[-1].until + timedelta(seconds=write.delay_s) > self.now else "written"

    async def note(self, write: TickNote) -> Written:
        await self._passing("note")
        told = self._noted(write)
        await self._answering("note")
        return told

    def _noted(self, write: TickNote) -> Written:
        if not self.held:
            return "fenced"
        key = write.kind, write.at, write.seq
        before = self.rows.setdefault(key, row(write.at, kind=write.kind, seq=write.seq))
        if before.outcome is not None or before.attempt != write.attempt:
            return "conflict"
        self.notes.append(write)
        if write.outcome == "failed":
            self.failures, self.failed_at = self.failures + 1, self.now
        elif write.outcome == "ran":
            self.failures = 0
        self.rows[key] = msgspec.structs.replace(
            before,
            outcome=write.outcome,
            attempt=write.attempt + write.again,
            errors=before.errors if write.errors is None else write.errors,
            late_s=write.late_s,
            note=write.note,
            done=write.done,
            total=write.total,
        )
        return "written"

    async def _passing(self, verb: str) -> None:
        self.asked[verb] += 1
        await asyncio.sleep(0)
        if self.failing[verb]:
            raise self.failing[verb].pop(0)

    async def _answering(self, verb: str) -> None:
        if verb in self.gates:
            await self.gates[verb].wait()
        if self.losing[verb]:
            raise self.losing[verb].pop(0)

    def outcomes(self) -> list[tuple[float, str | None, int]]:
        """Second, outcome and attempt of each tick that was to run, in order."""
        rows = sorted(self.rows.values(), key=lambda each: each.at)
        return [((each.at - NOON).total_seconds(), each.outcome, each.attempt) for each in rows]


class FakeUnits:
    """The steps of all ticks, of which there are none unless a test says so."""

    def __init__(self) -> None:
        self.stored: Sequence[Any] = ()
        self.asked: list[str] = []
        self.failing: list[Exception] = []
        self.ended: list[str] = []

    async def end(self, write: Any) -> None:
        self.ended.append(write.unit)

    async def steps(self, unit: str) -> Sequence[Any]:
        self.asked.append(unit)
        if self.failing:
            raise self.failing.pop(0)
        return self.stored


@dataclass
class FakeStorage:
    """`storage.Storage`, as far as crons need it here: no body here has steps."""

    ticks: FakeTicks
    units: FakeUnits


class HeldCron:
    """A cron on a seat that is held until the test says otherwise. Nothing of it waits by chance."""

    def __init__(self, cron: Cron, *, drain: str = "3s", believes: datetime = NOON) -> None:
        chaos.install(None)
        self.cron = cron
        self.ticks = FakeTicks(cron)
        self.clock = ManualClock()
        self.trust = Trust(self.clock)
        self.trust.extend(self.clock.steady_ns() + 10**15)
        self.trust.connected = True
        self.tenure = Tenure(Claim("a" * 32, cron.seat, 7), clean=True, trust=self.trust)
        self.units = FakeUnits()
        fake: Any = FakeStorage(self.ticks, self.units)
        loop = asyncio.get_running_loop()
        self.resigned: list[tuple[str, str]] = []
        self.services = services(
            settings={"drain": drain},
            storage=fake,
            dial=Dial(loop.time, believes.timestamp()),
            resign=lambda seat, *, cause, error: self.resigned.append((seat, cause)),
        )

    def running(self, row: TickRow, *, cut_off: bool = False) -> TickRun:
        return TickRun(self.cron, row, self.tenure, self.services, cut_off=cut_off)

    def holding(self) -> CronSeat:
        return CronSeat(self.cron, self.tenure, self.services, copy_context())
