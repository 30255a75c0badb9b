"""`cluster.schedules`: put, list, pause, resume, preview and remove schedules, send instants once more."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, get_args

from msgspec.structs import replace

from coterie.cron.api import Upcoming
from coterie.cron.api import preview as upcoming
from coterie.cron.decide import CatchUp, Overlap, jitter_of
from coterie.entities.reference import require_call
from coterie.errors import CoterieError, MalformedMessage
from coterie.kernel.clock import require_instant
from coterie.kernel.durations import Duration, seconds_or_none, to_timedelta
from coterie.kernel.ids import MessageId, Seat, ShardId, is_job, shard_number
from coterie.schedules.timetable import NEVER, Timetable, timetable_of
from coterie.schedules.verdict import ScheduleOutcome, job_of, message_of, outcomes_of, with_outcomes
from coterie.storage.contracts.jobs import JobInsert
from coterie.storage.contracts.schedules import SCHEDULE, ScheduledJob, ScheduleRow, ScheduleTerms, schedule_key
from coterie.tasks.task import Job
from coterie.work.definition import not_in_cluster, refusal, require_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from coterie.client import Client
    from coterie.entities.reference import Call
    from coterie.entities.registry import EntityRegistry
    from coterie.tasks.definition import TaskType

_PAGE = 500
_TRIES = 20
_BACKFILL_MOST = 1_000
_COUNT_MOST = 1_000
_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A snapshot of a schedule. All instants are the database's."""

    name: str
    schedule: str
    """As it was put; the instant of one that is due once."""
    timezone: str
    explained: str
    """The schedule in words."""
    calls: str
    """What it calls: `Account/alice.add`, or the name of a task."""
    next_at: datetime | None
    """When it is due next; None: it is paused, or over."""
    last_at: datetime | None
    """The last instant that was sent or skipped."""
    last_message: MessageId | None
    """The last message that it has sent."""
    paused_at: datetime | None
    since: datetime
    """When it was put, in its present form: instants before are not its own."""
    start: datetime | None
    end: datetime | None
    catch_up: str
    overlap: str
    skip_if_older_than: timedelta | None
    shard: ShardId
    """Where it lives: the runner of this shard sends what is due."""

    @property
    def is_over(self) -> bool:
        """Whether it will never be due any more."""
        return self.next_at is None and self.paused_at is None


class Schedules:
    """`cluster.schedules`: the schedules of the cluster, made at run time.

    Args:
        acting: Returns the runner or client through which it acts.
        entities: The entities of this program; None: it puts nothing.
        writing: As `acting`, for writes: raises where they are forbidden.
        has_task: Whether a task is one of this program.
    """

    def __init__(
        self,
        acting: Callable[[], Client],
        entities: EntityRegistry | None,
        *,
        writing: Callable[[str], Client],
        has_task: Callable[[TaskType], bool] = lambda _: True,
    ) -> None:
        self._has_task = has_task
        self._acting = acting
        self._entities = entities
        self._writing = writing

    async def put(
        self,
        name: str,
        schedule: str | datetime,
        call: Awaitable[Any],
        *,
        timezone: str = "UTC",
        start: datetime | None = None,
        end: datetime | None = None,
        catch_up: CatchUp = "latest",
        overlap: Overlap = "allow",
        skip_if_older_than: Duration | None = "1d",
        jitter: Duration | None = None,
    ) -> ScheduleInfo:
        """Make a schedule that sends a call whenever it is due, or change it: once for each name in the cluster.

        The same content changes nothing, so it may be put at each start. Other content counts from now on.

        Example:
            ```python
            await cluster.schedules.put("report/acme", "0 7 * * MON", cluster.ref(Reports, "acme").send_weekly())
            ```

        Args:
            name: Its name in the cluster.
            schedule: As of a cron; or an instant, at which it is due once.
            call: What a method of a reference returned, of a persisted rpc without a key; or a job of a task without
                one.
            timezone: The time zone of the schedule.
            start: Instants before are not due.
            end: Instants from then on are not due.
            catch_up: Which instants are sent of those that were missed while no runner held its shard: `latest`, `all`
                (at most 100) or `none`.
            overlap: What happens to an instant while the last message is not over: `allow` sends it all the same,
                `skip` drops it, `queue` makes it wait (at most one).
            skip_if_older_than: An instant that could not be sent for longer than this is skipped. None: none is.
            jitter: Delays instants by up to this long, always by the same time for one name.

        Raises:
            ScheduleError: The schedule or its time zone cannot be parsed.
            ConfigurationError: An option is invalid.
            TypeError: It is neither a job nor a call of a persisted rpc, or it has a key.
        """
        here, taken = self._writing("cluster.schedules.put"), _require_lasting(call)
        refuse_key(taken, what="schedule")
        key = schedule_key(require_name(name, kind="schedule"))
        terms = _terms(
            name,
            schedule,
            timezone=timezone,
            start=start,
            end=end,
            catch_up=catch_up,
            overlap=overlap,
            skip_if_older_than=skip_if_older_than,
            jitter=jitter,
        )
        if isinstance(taken, Job):
            terms = replace(terms, job=self._terms_of(taken))
        Timetable(terms, terms.start or NEVER)  # refuses what cannot be parsed
        for _ in range(_TRIES):
            found, now = await here.storage.schedules.get(key), await here.storage.now()
            row = self._row(here, key, terms, taken, now)
            if found is not None and self._is_same(found, row, taken):
                return _info(found)
            if found is not None:
                row = _paused(row, found)
            if await here.storage.schedules.swap(row, None if found is None else found.mark):
                await self._hint(row)
                return _info(row)
        raise _contended(name)

    async def get(self, name: str) -> ScheduleInfo:
        """One schedule.

        Raises:
            ValueError: None has this name.
        """
        return _info(await self._found(name))

    async def list(self, prefix: str = "") -> Sequence[ScheduleInfo]:
        """The schedules whose names begin so, by name."""
        found: list[ScheduleInfo] = []
        after = ""
        while True:
            rows = await self._acting().storage.schedules.list(SCHEDULE + prefix, after=after, most=_PAGE)
            found += [_info(row) for row in rows]
            if len(rows) < _PAGE:
                return found
            after = rows[-1].key

    async def remove(self, name: str, *, cancel: bool = False) -> bool:
        """Remove a schedule: nothing is sent once this has returned. What was sent runs.

        Args:
            name: Its name.
            cancel: Cancel what it has sent lately and has not begun.

        Returns:
            False if there was none.
        """
        here = self._writing("cluster.schedules.remove")
        removed = await here.storage.schedules.remove(schedule_key(name))
        if removed is not None and cancel:
            for each in outcomes_of(removed):
                if each.message:
                    sender = here.job_sender if is_job(each.message) else here.calling.persisted
                    await sender.cancel(each.message)
        return removed is not None

    async def pause(self, name: str) -> bool:
        """Send nothing of a schedule until `resume`, across restarts, and also if it is put anew.

        Returns:
            False if it was paused already.

        Raises:
            ValueError: There is no such schedule.
        """
        paused = await self._writing("cluster.schedules.pause").storage.schedules.pause(schedule_key(name))
        if paused is None:
            raise await self._missing(name)
        return paused

    async def resume(self, name: str) -> bool:
        """Let it go on from its next instant. Those that were missed by the pause are recorded as skipped.

        Returns:
            False if it was not paused.

        Raises:
            ValueError: There is no such schedule.
        """
        here = self._writing("cluster.schedules.resume")
        for _ in range(_TRIES):
            found, now = await self._found(name), await here.storage.now()
            if found.paused_at is None:
                return False
            row = _resumed(found, now)
            if await here.storage.schedules.swap(row, found.mark):
                await self._hint(row)
                return True
        raise _contended(name)

    async def preview(self, name: str, *, count: int = 5, after: datetime | None = None) -> Sequence[Upcoming]:
        """The next instants of a schedule, with a note where clocks change.

        Args:
            name: Its name.
            count: The number of instants.
            after: The start. Default: now.

        Raises:
            ValueError: There is no such schedule.
        """
        if not 0 <= count <= _COUNT_MOST:
            raise ValueError(f"count is {count}, expected 0 to {_COUNT_MOST}")
        row = await self._found(name)
        timetable = timetable_of(row.definition, row.since_at)
        after = max(after or await self._acting().storage.now(), timetable.first - _INSTANT)
        if timetable.schedule is None:
            at = timetable.next_after(after)
            return [Upcoming(at, at)] if at < NEVER and count else []
        found = upcoming(timetable.schedule, after=after, count=count)
        return [each for each in found if each.at < timetable.end]

    async def history(self, name: str, *, limit: int = 20) -> Sequence[ScheduleOutcome]:
        """What became of its last instants, the newest first; at most 20 are kept.

        Raises:
            ValueError: There is no such schedule.
        """
        return outcomes_of(await self._found(name))[::-1][:limit]

    async def backfill(self, name: str, since: datetime, until: datetime) -> Sequence[MessageId]:
        """Send the instants from `since` to before `until` once more, whatever became of them; each at most once so.

        Args:
            name: The name of the schedule. Instants before it was put count, too.
            since: The first instant.
            until: The end.

        Returns:
            The ids of the messages, in the order of the instants.

        Raises:
            ValueError: There is no such schedule; there are more than 1,000 instants; or a time has no zone.
        """
        here = self._writing("cluster.schedules.backfill")
        for what, at in (("since", since), ("until", until)):
            _require_instant(at, what=f"{what} of schedule {name!r}")
        row = await self._found(name)
        terms = ScheduleTerms.decode(row.definition)
        whole = Timetable(terms, min(row.since_at, since - _INSTANT), anchor=row.since_at)
        count = whole.count(since, until)
        if count > _BACKFILL_MOST:
            problem = f"schedule {name!r} has {count} instants in that time"
            raise ValueError(f"{problem}: send {_BACKFILL_MOST} at most at once")
        return [MessageId(await _send_again(here, row, terms, at)) for at in whole.between(since, until)]

    # Helpers

    def _terms_of(self, job: Job[Any]) -> ScheduledJob:
        task = job.type
        if not self._has_task(task):
            raise TypeError(f"{job!r} was made by another cluster: this one has no such task")
        return ScheduledJob(
            group=task.group,
            queue=task.queue,
            part=task.part_of(job.payload),
            fingerprint=task.fingerprint,
            priority=task.priority,
            age_s=task.age_s,
        )

    def _row(
        self, here: Client, key: str, terms: ScheduleTerms, call: Call[Any] | Job[Any], now: datetime
    ) -> ScheduleRow:
        target = entity_type = entity_id = ""
        if isinstance(call, Job):
            group, method = call.type.group, call.type.name
        else:
            assert self._entities is not None, "only a program puts schedules"
            kind = self._entities.type_of(call)
            message = here.calling.persisted.message(call, kind)
            group, method, target = kind.group, message.method, message.seat
            entity_type, entity_id = message.entity_type, message.entity_id
        return ScheduleRow(
            key=key,
            seat=Seat.shard(ShardId(group, shard_number(SCHEDULE, key, here.settings.shards))),
            life=1 + here.calling.chance.bits(62),
            definition=terms.encode(),
            target=target,
            entity_type=entity_type,
            entity_id=entity_id,
            method=method,
            payload=call.payload,
            since_at=now,
            next_at=Timetable(terms, now).due_after(now),
            stamp=1,
        )

    def _is_same(self, found: ScheduleRow, row: ScheduleRow, call: Call[Any] | Job[Any]) -> bool:
        same = ("seat", "definition", "target", "entity_type", "entity_id", "method")
        if any(getattr(found, name) != getattr(row, name) for name in same):
            return False
        try:
            arguments = call.type.arguments if isinstance(call, Job) else call.rpc.arguments
            return arguments.keyed(found.payload, ()) == arguments.keyed(row.payload, ())
        except MalformedMessage:  # its parameters have changed
            return False

    async def _found(self, name: str) -> ScheduleRow:
        found = await self._acting().storage.schedules.get(schedule_key(name))
        if found is None:
            raise await self._missing(name)
        return found

    async def _missing(self, name: str) -> ValueError:
        rows = await self._acting().storage.schedules.list(SCHEDULE, most=20)
        return not_in_cluster(name, [_name(row) for row in rows], kind="schedule")

    async def _hint(self, row: ScheduleRow) -> None:
        """Wake the holder of its shard."""
        await self._acting().wake(row.seat, about=row.key, fresh=True)


async def _send_again(here: Client, row: ScheduleRow, terms: ScheduleTerms, at: datetime) -> str:
    """Send what a schedule sends at an instant, unless it was sent so before. Returns its id."""
    if terms.job is not None:
        job = job_of(row, terms.job, at, kind="backfill")
        (stored,) = await here.storage.jobs.insert(JobInsert((job,)))
        if stored.state == "ready":
            here.job_sender.hint(job)
        return stored.id
    message = message_of(row, at, kind="backfill")
    receipt = await here.storage.messages.insert(message)
    if receipt.status == "pending":
        here.calling.persisted.hand_over(message)
    return receipt.id


def _require_lasting(call: object) -> Call[Any] | Job[Any]:
    """A job, or a call of a persisted rpc."""
    if not isinstance(call, Job):
        return require_call(call, what="schedules.put", persisted=True)
    call.mark_sent()
    return call


def refuse_key(call: Call[Any] | Job[Any], *, what: str) -> None:
    """Refuse a call with an idempotency key: all that is sent of it would be one message.

    Raises:
        TypeError: It has one.
    """
    if (call.type if isinstance(call, Job) else call.rpc).key:
        kind = "a task" if isinstance(call, Job) else "an rpc"
        raise TypeError(f"{call!r} has a key, so that each {what} would run it once only: use {kind} without key=")


def _terms(name: str, schedule: str | datetime, **given: Any) -> ScheduleTerms:
    what = f"schedule {name!r}"
    oldest, jitter = given["skip_if_older_than"], given["jitter"]
    for option, choices in (("catch_up", CatchUp), ("overlap", Overlap)):
        if given[option] not in get_args(choices):
            known = ", ".join(map(repr, get_args(choices)))
            raise refusal(f"{option} of {what} is {given[option]!r}", hint=f"write one of {known}")
    for option in ("start", "end"):
        if given[option] is not None:
            _require_instant(given[option], what=f"{option} of {what}")
    if isinstance(schedule, datetime):
        _require_instant(schedule, what=what)
    elif not isinstance(schedule, str):
        raise refusal(f"{what} is due at {schedule!r}, expected a schedule as text, or a datetime")
    delay = timedelta() if jitter is None else jitter_of(name, to_timedelta(jitter, what=f"jitter of {what}"))
    return ScheduleTerms(
        schedule="" if isinstance(schedule, datetime) else " ".join(schedule.split()),
        timezone=given["timezone"],
        at=schedule if isinstance(schedule, datetime) else None,
        start=given["start"],
        end=given["end"],
        catch_up=given["catch_up"],
        overlap=given["overlap"],
        skip_if_older_than_s=seconds_or_none(oldest, what=f"skip_if_older_than of {what}"),
        delay_s=delay.total_seconds(),
    )


def _require_instant(at: datetime, *, what: str) -> None:
    if at.tzinfo is None:
        raise ValueError(f"{what} is {at}, which has no time zone: add one, as in datetime(…, tzinfo=UTC)")
    require_instant(at, what=what)


def _paused(row: ScheduleRow, found: ScheduleRow) -> ScheduleRow:
    """A row that is put in place of another one stays paused, and knows what that has sent."""
    return replace(row, paused_at=found.paused_at, outcomes=found.outcomes, last_id=found.last_id)


def _resumed(found: ScheduleRow, now: datetime) -> ScheduleRow:
    """A row that goes on after now; what was due before is skipped as one span."""
    timetable = timetable_of(found.definition, found.since_at)
    end = now - timetable.delay + _INSTANT
    start = timetable.first if found.last_at is None else found.last_at + _INSTANT
    count = timetable.count(start, end)
    next_at = timetable.due_after(end - _INSTANT)
    if not count:
        return replace(found, paused_at=None, next_at=next_at)
    first, last = timetable.next_after(start - _INSTANT), timetable.previous(end)
    skipped = ScheduleOutcome(at=first, until=last, count=count, reason="paused")
    return replace(found, paused_at=None, next_at=next_at, last_at=last, outcomes=with_outcomes(found, [skipped]))


def _name(row: ScheduleRow) -> str:
    return row.key.removeprefix(SCHEDULE)


def _info(row: ScheduleRow) -> ScheduleInfo:
    terms = ScheduleTerms.decode(row.definition)
    timetable = timetable_of(row.definition, row.since_at)
    at = "" if terms.at is None else terms.at.isoformat()
    oldest_s = terms.skip_if_older_than_s
    return ScheduleInfo(
        name=_name(row),
        schedule=terms.schedule or at,
        timezone=terms.timezone,
        explained=f"once, at {at}" if timetable.schedule is None else timetable.schedule.explain(),
        calls=row.calls,
        next_at=None if row.paused_at is not None else row.next_at,
        last_at=row.last_at,
        last_message=None if row.last_id is None else MessageId(row.last_id),
        paused_at=row.paused_at,
        since=row.since_at,
        start=terms.start,
        end=terms.end,
        catch_up=terms.catch_up,
        overlap=terms.overlap,
        skip_if_older_than=None if oldest_s is None else timedelta(seconds=oldest_s),
        shard=ShardId.parse(Seat.split(row.seat)[1]),
    )


def _contended(name: str) -> CoterieError:
    return refusal(
        f"schedule {name!r} was changed by others {_TRIES} times while it was put", hint="put it in one place only"
    )
