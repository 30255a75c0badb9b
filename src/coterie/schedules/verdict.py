"""What becomes of a row that is due: which messages it sends, what is skipped and why, when it is due again. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta  # noqa: TC003 msgspec reads annotations at run time
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from coterie.cron.decide import CronProgress, RunTick, decide
from coterie.kernel.clock import to_ns
from coterie.kernel.ids import job_id_of
from coterie.schedules.timetable import NEVER, timetable_of
from coterie.storage.contracts.jobs import NewJob
from coterie.storage.contracts.messages import Message
from coterie.storage.contracts.schedules import TIMER, Fire
from coterie.tasks.definition import seat_of_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.cron.decide import Decision
    from coterie.storage.contracts.schedules import NewSchedule, ScheduledJob, ScheduleRow
    from coterie.storage.interface import Claim

SentKind = Literal["scheduled", "backfill"]

_OUTCOMES_MOST = 20
_ID_BYTES = 10


class ScheduleOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The verdict about an instant of a schedule, or about neighbouring ones that were skipped for one reason."""

    at: datetime
    """The instant; of several the first."""
    until: datetime
    """Of several the last, else the same."""
    count: int = 1
    message: str = ""
    """The id of the message that was sent; empty: it was skipped."""
    reason: str = ""
    """Why it was skipped: `stale`, `overlapping`, `paused`, `superseded`."""


_outcomes = msgspec.json.Decoder(tuple[ScheduleOutcome, ...]).decode


def outcomes_of(row: ScheduleRow) -> tuple[ScheduleOutcome, ...]:
    """The last verdicts, the oldest first.

    Raises:
        ValueError: What is stored cannot be read.
    """
    return _outcomes(row.outcomes)


def with_outcomes(row: ScheduleRow, new: Sequence[ScheduleOutcome]) -> str:
    """The last verdicts and new ones, as they are stored."""
    return msgspec.json.encode((*outcomes_of(row), *new)[-_OUTCOMES_MOST:]).decode()


def _id_of(row: NewSchedule, at: datetime, kind: SentKind) -> str:
    """The id of what an instant sends: the same whoever makes it; it sorts by the instant."""
    at_ns = to_ns(at)
    marks = "\0".join((kind, str(row.life), str(at_ns), row.key))
    digest = blake2b(marks.encode(), digest_size=_ID_BYTES, person=b"schedules").hexdigest()
    return f"{at_ns // 1_000_000:012x}{digest}"


def message_of(row: NewSchedule, at: datetime, *, kind: SentKind = "scheduled") -> Message:
    """The message of an instant."""
    return Message(
        id=_id_of(row, at, kind),
        seat=row.target,
        entity_type=row.entity_type,
        entity_id=row.entity_id,
        method=row.method,
        payload=row.payload,
    )


def job_of(row: NewSchedule, terms: ScheduledJob, at: datetime, *, kind: SentKind = "scheduled") -> NewJob:
    """The job of an instant."""
    job_id = job_id_of(_id_of(row, at, kind))
    return NewJob(
        id=job_id,
        seat=seat_of_job(job_id, queue=terms.queue, group=terms.group),
        part=terms.part,
        task=row.method,
        payload=row.payload,
        fingerprint=terms.fingerprint,
        priority=terms.priority,
        age_s=terms.age_s,
    )


def fire_of(row: ScheduleRow, claim: Claim, *, held_since: datetime, now: datetime) -> Fire | None:
    """What becomes of a row.

    Args:
        row: The row, as it was read.
        claim: The claim to its seat.
        held_since: Since when the seat has been held.
        now: The database's clock.

    Returns:
        None: it waits for the end of its last message.

    Raises:
        ValueError: What is stored cannot be read.
        ScheduleError: Its schedule cannot.
    """
    timetable = timetable_of(row.definition, row.since_at)
    policy = timetable.policy
    known = CronProgress(effective_from=timetable.first, held_since=held_since, last=row.last_at, busy=row.is_busy)
    decision = decide(timetable, policy, known, now)
    next_at = _next_at(decision, timetable.delay)
    if not decision.verdicts and next_at == row.next_at:
        return None
    instants = [each.at for each in decision.verdicts if isinstance(each, RunTick)]
    terms = timetable.terms.job
    sends = tuple(message_of(row, at) for at in instants) if terms is None else ()
    jobs = () if terms is None else tuple(job_of(row, terms, at) for at in instants)
    sent = [*(each.id for each in sends), *(each.id for each in jobs)]
    last_at = _until(decision.verdicts[-1]) if decision.verdicts else None
    return Fire(
        claim=claim,
        key=row.key,
        mark=row.mark,
        due_at=None if last_at is None else last_at + timetable.delay,
        next_at=next_at,
        last_at=last_at or row.last_at,
        last_id=sent[-1] if sent else row.last_id,
        outcomes=with_outcomes(row, [_outcome(row, terms, each) for each in decision.verdicts]),
        is_over=next_at is None and row.key.startswith(TIMER),
        asks=row.last_id if instants and policy.overlap != "allow" else None,
        sends=sends,
        jobs=jobs,
    )


def _next_at(decision: Decision, delay: timedelta) -> datetime | None:
    """When it is to be looked at next: at once if an instant waits for the end of the last message."""
    if decision.waiting is not None:
        return decision.waiting + delay
    return decision.decide_at if decision.decide_at < NEVER else None


def _until(verdict: Any) -> datetime:
    at: datetime = verdict.at if isinstance(verdict, RunTick) else verdict.last
    return at


def _outcome(row: ScheduleRow, terms: ScheduledJob | None, verdict: Any) -> ScheduleOutcome:
    if isinstance(verdict, RunTick):
        drawn = _id_of(row, verdict.at, "scheduled")
        sent = drawn if terms is None else job_id_of(drawn)
        return ScheduleOutcome(at=verdict.at, until=verdict.at, message=sent)
    return ScheduleOutcome(at=verdict.first, until=verdict.last, count=verdict.count, reason=verdict.reason)
