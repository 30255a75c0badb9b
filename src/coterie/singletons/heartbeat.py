"""Stamps: what a leader reports about its work (S3), and whether that means it is healthy (H1, pure).

Stamps are written under the fence, soon after a change and periodically [m14]. There are two signs: *alive*, because
this task runs on the loop that the body runs on; *progress*, because the body reported it, saved something, slept on
purpose or ended an execution.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from coterie.errors import HeartbeatFailed, PersistenceError
from coterie.kernel import metrics
from coterie.kernel.clock import to_datetime
from coterie.kernel.text import said, storable
from coterie.storage.contracts.executions import Stamp
from coterie.work.while_held import AWAY_S

if TYPE_CHECKING:
    from datetime import datetime

    from coterie.ownership.seats import Tenure
    from coterie.storage.contracts.executions import ExecutionRecord
    from coterie.work.services import Services


Sign = Literal["progress", "heartbeat", "execution"]


@dataclass(frozen=True, slots=True)
class Stale:
    """No sign for too long.

    Args:
        sign: The kind: progress where an interval is expected, else the sign of life; "execution": it never ran.
        silent_s: For how long.
        expected_s: How often one is expected.
    """

    sign: Sign
    silent_s: float
    expected_s: float

    def __str__(self) -> str:
        if self.sign == "execution":
            return f"never executed in {self.silent_s:.0f}s (expected every {self.expected_s:g}s)"
        return f"no {self.sign} for {self.silent_s:.0f}s (expected every {self.expected_s:g}s)"


def judge(execution: ExecutionRecord, *, heartbeat_s: float, factor: float) -> Stale | None:
    """What is wrong with it, if anything: more than `factor` intervals have passed without a sign (S10).

    A takeover proves that a leader is alive, not that there was progress: where progress is expected it gives no
    grace. A singleton that never ran is measured from when it became known.
    """
    expected_s = execution.expected_s
    if expected_s is None:
        return _stale("heartbeat", (execution.now - execution.alive_at).total_seconds(), heartbeat_s, factor)
    if execution.progress_at is None:
        sign: Sign = "execution" if execution.ran_at is None else "progress"
        return _stale(sign, (execution.now - execution.known_at).total_seconds(), expected_s, factor)
    return _stale("progress", (execution.now - execution.progress_at).total_seconds(), expected_s, factor)


def _stale(sign: Sign, silent_s: float, expected_s: float, factor: float) -> Stale | None:
    return Stale(sign, silent_s, expected_s) if silent_s > factor * expected_s else None


log = logging.getLogger("coterie.singletons")

_SOON_S = 1.0
"""Minimum interval between writes of changes: a body may beat as often as it likes."""
_FIRST_S = 0.1
"""How long the first stamp is delayed: the first save, once the state is loaded, must not wait for it."""
_TEXT_MOST = 2_000
"""Characters of an error or a note that are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionMeta:
    """What the cluster records about the work of a singleton or cron (S3)."""

    last_run_at: datetime | None
    """When the last run began; None: it never ran."""
    run_count: int
    last_error: str | None
    last_heartbeat_at: datetime | None
    """The last sign of progress; None: there was none."""
    leader: str
    """The name of the runner."""
    epoch: int


class Heartbeats:
    """The stamps of one leadership.

    Args:
        expected_s: How often progress is expected.
    """

    def __init__(self, tenure: Tenure, services: Services, *, expected_s: float | None) -> None:
        self._tenure = tenure
        self._executions = services.storage.executions
        self._clock = services.clock  # its steady time measures the ages
        self._leader = services.runner
        self._heartbeat_s = services.settings.heartbeat.total_seconds()
        self._expected_s = expected_s
        self._news = asyncio.Event()
        self._soon_s = min(_SOON_S, self._heartbeat_s, _SOON_S if expected_s is None else expected_s / 4)
        self._is_away = False  # whether the last one could not be written
        self.has_begun = False
        """Whether the stored record was taken over."""
        self.runs = 0
        self.ran_ns: int | None = None
        """When the last run began, in steady time, including runs of former leaders."""
        self._progress_ns: int | None = None
        self._error: str | None = None
        self._error_ns: int | None = None
        self._note = ""
        self._done: int | None = None
        self._total: int | None = None

    @property
    def meta(self) -> ExecutionMeta:
        """The record, for the body to read."""
        return ExecutionMeta(
            last_run_at=self._moment(self.ran_ns),
            run_count=self.runs,
            last_error=self._error,
            last_heartbeat_at=self._moment(self._progress_ns),
            leader=self._leader,
            epoch=self._tenure.epoch,
        )

    async def begin(self) -> None:
        """Take over the stored record.

        Raises:
            LeadershipLost: We do not hold the seat.
            PersistenceError: It could not be read.
        """
        found = await self._executions.begin(self._tenure.claim, leader=self._leader, expected_s=self._expected_s)
        if found is None:
            raise self._tenure.lost()
        self.has_begun = True
        now_ns = self._clock.steady_ns()
        self.runs = found.runs
        self.ran_ns = _since(found.ran_at, found, now_ns)
        self._progress_ns = _since(found.progress_at, found, now_ns)
        if self._error is None:  # otherwise something failed here meanwhile, which is newer
            self._error = found.error
            self._error_ns = _since(found.error_at, found, now_ns)

    def ran(self) -> None:
        """A run begins."""
        self.runs += 1
        self.ran_ns = self._clock.steady_ns()
        self._meter()
        self._news.set()

    def progress(self) -> None:
        """There was progress, or a run has ended."""
        self._meter()
        self._progress_ns = self._clock.steady_ns()
        self._news.set()

    def beat(self, note: str, done: int | None, total: int | None) -> None:
        """The body reports its progress."""
        self._done, self._total = _counted(done, "done"), _counted(total, "total")
        self._note = storable(note[:_TEXT_MOST])
        self.progress()

    def _meter(self) -> None:
        _, _, name = self._tenure.seat.partition(":")
        metrics.LAST_EXECUTION.of(name, "singleton").value = self._clock.wall_ns() / 1e9

    def error(self, error: BaseException) -> None:
        """Something failed."""
        self._meter()
        self._error = storable(said(error)[:_TEXT_MOST])
        self._error_ns = self._clock.steady_ns()
        self._news.set()

    async def live(self) -> None:
        """Write changes soon, and a sign of life when there are none, while we hold the seat."""
        await asyncio.sleep(min(_FIRST_S, self._soon_s))
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat_s):
                    await self._news.wait()
            if not await self.write():
                return
            await asyncio.sleep(self._soon_s)

    async def write(self) -> bool:
        """Write the stamp now, if possible; False: we no longer hold the seat."""
        self._news.clear()
        try:
            written = await self._executions.stamp(self._stamp())
        except PersistenceError as error:
            _, _, name = self._tenure.seat.partition(":")
            level = logging.INFO if self._is_away else logging.WARNING  # one warning per outage
            log.log(level, "%s", HeartbeatFailed(singleton=name, problem=str(error)))
            self._is_away = True
            self._news.set()
            return True
        self._is_away = False
        return written != "fenced"

    async def write_until_stored(self) -> None:
        """Write the stamp, retrying while we hold the seat.

        Raises:
            LeadershipLost: We do not hold it any more.
        """
        while True:
            if not self._tenure.held or not await self.write():
                raise self._tenure.lost()
            if not self._is_away:
                return
            await asyncio.sleep(AWAY_S)

    def _stamp(self) -> Stamp:
        return Stamp(
            self._tenure.claim,
            self.runs,
            self._age_s(self.ran_ns),
            self._age_s(self._progress_ns),
            self._error,
            self._age_s(self._error_ns),
            self._note,
            self._done,
            self._total,
        )

    def _age_s(self, at_ns: int | None) -> float | None:
        return None if at_ns is None else (self._clock.steady_ns() - at_ns) / 1e9

    def _moment(self, at_ns: int | None) -> datetime | None:
        if at_ns is None:
            return None
        return to_datetime(self._clock.wall_ns() - (self._clock.steady_ns() - at_ns))


def _since(at: datetime | None, found: ExecutionRecord, now_ns: int) -> int | None:
    return None if at is None else now_ns - round((found.now - at).total_seconds() * 1e9)


def _counted(value: Any, what: str) -> int | None:
    """A number that the database can store: one that it refuses would block the whole stamp."""
    if value is None or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    raise ValueError(f"{what} of a heartbeat is {value!r}, expected a whole number of 64 bits")
