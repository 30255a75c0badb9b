"""`cluster.crons`: list crons, preview and explain schedules, trigger, pause and resume, read the history."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from coterie.cron.definition import Cron, CronSummary
from coterie.cron.schedule import Schedule
from coterie.errors import ScheduleError
from coterie.kernel.clock import require_instant
from coterie.kernel.durations import Duration, seconds_or_none
from coterie.kernel.ids import Seat
from coterie.kernel.text import require_text
from coterie.work.definition import not_in_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from coterie.client import Client
    from coterie.cron.calendar import Change
    from coterie.storage.contracts.ticks import CronRow, Kind, Outcome, TickRow
    from coterie.storage.interface import SeatRow


@dataclass(frozen=True, slots=True)
class Upcoming:
    """A future tick.

    Args:
        at: Its instant, in UTC.
        local: The same in the schedule's time zone.
        note: Says that clocks change between the previous tick and this one; otherwise empty.
    """

    at: datetime
    local: datetime
    note: str = ""


def preview(schedule: Schedule, *, after: datetime, count: int = 5) -> list[Upcoming]:
    """The next ticks after an instant.

    >>> from datetime import UTC, datetime
    >>> from coterie.cron.schedule import Schedule
    >>> nightly = Schedule("0 3 * * *", timezone="Europe/Zurich")
    >>> for tick in preview(nightly, after=datetime(2026, 3, 28, tzinfo=UTC), count=2):
    ...     print(f"{tick.local:%a %H:%M %Z}: {tick.note or 'as ever'}")
    Sat 03:00 CET: as ever
    Sun 03:00 CEST: clocks go forward at 02:00
    """
    ticks: list[Upcoming] = []
    for _ in range(count):
        at = schedule.next_after(after)
        local = at.astimezone(schedule.zone.info)
        change = schedule.zone.change_before(after, at)
        ticks.append(Upcoming(at, local, _note(change, local) if change else ""))
        after = at
    return ticks


def _note(change: Change, local: datetime) -> str:
    way = "forward" if change.is_gap else "back"
    when = change.old_label
    if when.date() == local.date():
        return f"clocks go {way} at {when:%H:%M}"
    return f"clocks go {way} on {when:%a} {when.day} {when:%b} at {when:%H:%M}"


_POLL_S = 0.05
"""Polling interval for the end of a run."""
_LATE = timedelta(seconds=10)
"""How late a tick may be: within this time a lost runner is replaced (S10)."""
_MOST = 1_000

_NAME = "name of a cron"


@dataclass(frozen=True, slots=True, kw_only=True)
class TickInfo:
    """A snapshot of a tick, or of neighbouring ticks that were skipped for one reason."""

    cron: str
    scheduled_at: datetime
    """The instant of the tick; of several the first."""
    until: datetime
    """Of several the last, otherwise the same."""
    count: int
    kind: Kind
    matches_schedule: bool
    """Whether the schedule is due at that instant: shows whether a triggered tick replaced a scheduled one."""
    outcome: Outcome | None
    """`ran`, `failed`, `skipped`; None: it is not over."""
    reason: str
    """Why it was skipped: `stale`, `overlapping`, `paused`, `superseded`, `breaker`."""
    attempt: int
    """0: it has not begun."""
    errors: tuple[str, ...]
    """The errors of the attempts that failed."""
    runner: str
    epoch: int
    started_at: datetime | None
    ended_at: datetime | None
    late: timedelta | None
    """How long after it was due it began."""
    took: timedelta | None
    """How long its last attempt took."""
    note: str
    """The note of its body's last heartbeat, with `done` of `total`."""
    done: int | None
    total: int | None
    number: int = 0
    """Distinguishes ticks that were triggered for the same instant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronInfo:
    """A snapshot of one cron. All instants are the database's."""

    name: str
    schedule: str
    """Empty: no runner has held it yet, and this program does not define it."""
    timezone: str
    explained: str
    """The schedule in words."""
    group: str
    runner: str | None
    """The name of the runner that holds it; None: no runner does just now."""
    epoch: int
    next_at: datetime | None
    """When its next tick is due; None: it is paused, or the schedule is not known."""
    paused_at: datetime | None
    last_run_at: datetime | None
    """When its last run began; None: it never ran."""
    run_count: int
    last_error: str | None
    last_error_at: datetime | None
    failures: int
    """How many ticks in a row have failed up to now."""
    running: int
    """How many ticks are not over."""
    last_heartbeat_at: datetime | None
    """When one of these last began or sent a heartbeat; None: all are over."""
    latest: TickInfo | None
    """The last tick that ran or failed."""
    problem: str
    """What is wrong with it; empty: nothing."""


class Crons:
    """`cluster.crons`: the crons of the cluster.

    Args:
        acting: Returns the runner or client through which it acts.
        known: The crons that this program defines.
        writing: As `acting`, for writes: raises where they are forbidden. None: nothing is forbidden.
    """

    def __init__(
        self,
        acting: Callable[[], Client],
        known: Callable[[], Mapping[str, Cron]],
        *,
        writing: Callable[[str], Client] | None = None,
    ) -> None:
        self._acting = acting
        self._writing = writing or (lambda _: acting())
        self._known = known

    async def list(self) -> Sequence[CronInfo]:
        """All crons of the cluster, by name, also those that this program does not define."""
        storage = self._acting().storage
        rows, view = await storage.ticks.list(), await storage.view()
        seats, names = {seat.name: seat for seat in view.seats}, {each.id: each.name for each in view.runners}
        return [self._info(row, seats.get(Seat.cron(row.name)), names) for row in rows]

    async def get(self, name: str) -> CronInfo:
        """One cron.

        Raises:
            ValueError: None has this name; the error lists the existing ones.
        """
        found = {each.name: each for each in await self.list()}
        if name not in found:
            raise not_in_cluster(name, found, kind="cron")
        return found[name]

    async def preview(
        self, name: str, *, timezone: str | None = None, count: int = 5, after: datetime | None = None
    ) -> Sequence[Upcoming]:
        """The next ticks of a cron, or of an expression, with a note where clocks change.

        Args:
            name: The name of a cron, or a schedule such as `0 3 * * *`.
            timezone: The zone of the schedule. Default: that of the cron, or UTC.
            count: The number of ticks.
            after: The start. Default: now.

        Raises:
            ScheduleError: It is neither a cron nor a valid schedule.
        """
        if not 0 <= count <= _MOST:
            raise ValueError(f"count is {count}, expected 0 to {_MOST}")
        schedule = await self._schedule(name, timezone)
        return preview(schedule, after=after or await self._acting().storage.now(), count=count)

    async def explain(self, name: str, *, timezone: str | None = None) -> str:
        """The schedule of a cron, or an expression, in words: `every day at 03:00, Europe/Zurich`.

        Raises:
            ScheduleError: It is neither a cron nor a valid schedule.
        """
        return (await self._schedule(name, timezone)).explain()

    async def trigger(self, name: str, *, at: datetime | None = None) -> TickInfo:
        """Run a cron once more, now, whatever its schedule says; also while it is paused. Does not wait for the run.

        Args:
            name: The name of the cron.
            at: The `scheduled_at` that its body gets: to make up for a missed tick. Default: now.

        Raises:
            ValueError: There is no such cron; or `at` has no time zone.
        """
        _require_zone(at, "at")
        if at is not None:
            require_instant(at, what=f"at of cron {name!r}")
        require_text(name, what=_NAME)
        row = await self._writing("cluster.crons.trigger").storage.ticks.trigger(name, at=at)
        if row is None:
            raise await self._missing(name)
        await self._hint(name)
        return _tick(row, await self._schedule_of(name))

    async def wait(self, tick: TickInfo, *, timeout: Duration | None = None) -> TickInfo:
        """Wait until a tick is over.

        Raises:
            TimeoutError: It took longer than `timeout`.
            ValueError: The tick is no longer stored.
        """
        storage, schedule = self._acting().storage, await self._schedule_of(tick.cron)
        async with asyncio.timeout(seconds_or_none(timeout, what="timeout")):
            while True:
                row = await storage.ticks.get(tick.cron, tick.kind, tick.scheduled_at, tick.number)
                if row is None:
                    raise ValueError(f"tick {tick.scheduled_at} of cron {tick.cron!r} is not there any more")
                if row.outcome is not None:
                    return _tick(row, schedule)
                await asyncio.sleep(_POLL_S)

    async def pause(self, name: str) -> bool:
        """Start no ticks of a cron from now on; running ones continue. It stays paused until `resume`, across restarts.

        Returns:
            False if it was paused already.

        Raises:
            ValueError: There is no such cron.
        """
        here = self._writing("cluster.crons.pause")
        require_text(name, what=_NAME)
        return await self._done(name, await here.storage.ticks.pause(name))

    async def resume(self, name: str) -> bool:
        """Let it run again from its next tick on; ticks missed by the pause are recorded as skipped.

        Returns:
            False if it was not paused.

        Raises:
            ValueError: There is no such cron.
        """
        here = self._writing("cluster.crons.resume")
        require_text(name, what=_NAME)
        return await self._done(name, await here.storage.ticks.resume(name))

    async def history(self, name: str, *, limit: int = 50, before: datetime | None = None) -> Sequence[TickInfo]:
        """The last ticks, the newest first, as far back as the setting `retention` keeps them.

        Args:
            name: The name of the cron.
            limit: The maximum number of ticks.
            before: Only ticks for instants earlier than this.

        Raises:
            ValueError: There is no such cron; `limit` is out of range; or `before` has no time zone.
        """
        if not 0 <= limit <= _MOST:
            raise ValueError(f"limit is {limit}, expected 0 to {_MOST}")
        _require_zone(before, "before")
        require_text(name, what=_NAME)
        rows = await self._acting().storage.ticks.history(name, most=limit, before=before)
        if not rows:
            await self.get(name)
            return []
        schedule = await self._schedule_of(name)
        return [_tick(row, schedule) for row in rows]

    # Helpers

    async def _done(self, name: str, changed: bool | None) -> bool:
        if changed is None:
            raise await self._missing(name)
        await self._hint(name)
        return changed

    async def _hint(self, name: str) -> None:
        """Wake the holder of its seat."""
        await self._acting().wake(Seat.cron(name), fresh=True)

    async def _missing(self, name: str) -> ValueError:
        return not_in_cluster(name, [each.name for each in await self._acting().storage.ticks.list()], kind="cron")

    async def _schedule(self, name: str, timezone: str | None) -> Schedule:
        """The schedule of a cron by its name, or of an expression."""
        rows = {row.name: row for row in await self._acting().storage.ticks.list()}
        summary = self._summary(name, rows.get(name))
        if summary is not None:
            return Schedule(summary.schedule, timezone=timezone or summary.timezone, cron=name)
        if name in rows:
            raise ValueError(
                f"the schedule of cron {name!r} is not known: no runner has held it, nor does this program define it"
            )
        try:
            return Schedule(name, timezone=timezone or "UTC")
        except ScheduleError as error:
            if " " in name.strip() or name.startswith("@") or error.timezone is not None:
                raise
            raise not_in_cluster(name, rows, kind="cron") from error

    async def _schedule_of(self, name: str) -> Schedule | None:
        """The schedule of a cron; None: not stored yet, or stored by a later version in another format."""
        rows = {row.name: row for row in await self._acting().storage.ticks.list()}
        return _schedule(name, self._summary(name, rows.get(name)))

    def _summary(self, name: str, row: CronRow | None) -> CronSummary | None:
        if row is None or not row.definition:
            known = self._known().get(name)
            return None if known is None else msgspec.json.decode(known.summary, type=CronSummary)
        try:
            return msgspec.json.decode(row.definition, type=CronSummary)
        except msgspec.DecodeError:
            return None  # stored by a later version, in another format

    def _info(self, row: CronRow, seat: SeatRow | None, names: Mapping[str, str]) -> CronInfo:
        summary = self._summary(row.name, row)
        runner = None if seat is None or seat.holder is None else names.get(seat.holder)
        schedule = _schedule(row.name, summary)
        due_at = None if summary is None or schedule is None else _due_at(row, summary, schedule)
        return CronInfo(
            name=row.name,
            schedule="" if schedule is None else schedule.expression,
            timezone="" if schedule is None else schedule.timezone,
            explained="" if schedule is None else schedule.explain(),
            group="" if seat is None else seat.group,
            runner=runner,
            epoch=0 if seat is None else seat.epoch,
            next_at=None if row.paused_at is not None else due_at,
            paused_at=row.paused_at,
            last_run_at=row.ran_at,
            run_count=row.runs,
            last_error=row.error,
            last_error_at=row.error_at,
            failures=row.failures,
            running=row.open,
            last_heartbeat_at=row.beat_at,
            latest=None if row.latest is None else _tick(row.latest, schedule),
            problem=_problem(row, due_at, runner),
        )


def _require_zone(at: datetime | None, what: str) -> None:
    if at is not None and at.tzinfo is None:
        raise ValueError(f"{what} is {at}, which has no time zone: add one, as in datetime(…, tzinfo=UTC)")


def _schedule(cron: str, summary: CronSummary | None) -> Schedule | None:
    return None if summary is None else Schedule(summary.schedule, timezone=summary.timezone, cron=cron)


def _due_at(row: CronRow, summary: CronSummary, schedule: Schedule) -> datetime:
    """When the next tick without a verdict is, or was, due."""
    known = row.effective_from - timedelta(microseconds=1)
    last = known if row.last is None else max(row.last, known)
    return schedule.next_after(last) + timedelta(seconds=summary.jitter_s)


def _problem(row: CronRow, due_at: datetime | None, runner: str | None) -> str:
    if row.paused_at is not None:
        return ""
    late = None if due_at is None else row.now - due_at
    if late is not None and late > _LATE and not row.open:  # otherwise it may wait for a run in progress
        why = "nobody holds it" if runner is None else f"{runner} holds it"
        return f"overdue by {late.total_seconds():.0f}s: {why}"
    return "nobody holds it" if runner is None else ""


def _tick(row: TickRow, schedule: Schedule | None) -> TickInfo:
    def lasting(value: float | None) -> timedelta | None:
        return None if value is None else timedelta(seconds=value)

    return TickInfo(
        cron=row.name,
        scheduled_at=row.at,
        until=row.until,
        count=row.count,
        kind=row.kind,
        matches_schedule=row.kind == "scheduled" or (schedule is not None and schedule.matches(row.at)),
        outcome=row.outcome,
        reason=row.reason,
        attempt=row.attempt,
        errors=row.errors,
        runner=row.runner,
        epoch=row.epoch,
        started_at=row.claimed_at if row.attempt else None,
        ended_at=row.ended_at,
        late=lasting(row.late_s),
        took=lasting(row.took_s),
        note=row.note,
        done=row.done,
        total=row.total,
        number=row.seq,
    )
