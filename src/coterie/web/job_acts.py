"""The acts on queues, jobs and schedules."""

from __future__ import annotations

from collections import Counter
from datetime import datetime  # noqa: TC003 msgspec reads annotations at run time
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from coterie.kernel.ids import Seat, is_job
from coterie.kernel.text import require_text
from coterie.observe.jobs.acts import pause_queue, revive_jobs, set_queue_limits
from coterie.observe.jobs.filter import ENDED, choose_jobs, word_of
from coterie.observe.jobs.queues import rate_text
from coterie.schedules.api import Schedules
from coterie.tasks.definition import count_of, rate_of
from coterie.tasks.edit import send_edited_job
from coterie.web.act_plan import ActBody, Done, Plan, counted
from coterie.web.details import job_filter_of
from coterie.web.responses import HttpRefusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from coterie.client import Client
    from coterie.storage.contracts.jobs import JobRow, QueueRow
    from coterie.web.cluster_view import WebView

JOBS_MOST = 1_000
"""Jobs that one act retries or deletes; another one does the rest."""
_COUNTED_MOST = 10_000
_EDIT_S = 10.0
"""How long to wait for a runner that sends an edited job."""


class QueueBody(ActBody):
    """A queue by its name."""

    queue: str


class LimitsBody(ActBody):
    """A queue by its name, and limits: a number, a rate as in "50/s", or null for none; or reset."""

    queue: str
    concurrency: int | UnsetType | None = UNSET
    partition_concurrency: int | UnsetType | None = UNSET
    rate: str | UnsetType | None = UNSET
    reset: bool = False


class JobsBody(ActBody):
    """Jobs by their ids, or by a filter as `coterie jobs` takes it."""

    ids: list[str] | UnsetType = UNSET
    filter: dict[str, Any] | UnsetType = UNSET


class JobFilterBody(ActBody):
    """Jobs by a filter as `coterie jobs` takes it, without error and key."""

    filter: dict[str, Any]


class JobBody(ActBody):
    """A job by its id."""

    id: str


class EditJobBody(ActBody):
    """A dead job, and the arguments that it should have had."""

    id: str
    arguments: dict[str, Any]


class ScheduleBody(ActBody):
    """A schedule by its name."""

    schedule: str


class RemoveBody(ActBody):
    """A schedule by its name, and whether to cancel what it has sent lately and has not begun."""

    schedule: str
    cancel: bool = False


class BackfillBody(ActBody):
    """A schedule by its name, and the time whose instants are sent once more."""

    schedule: str
    since: datetime
    until: datetime


def plans(web_view: WebView) -> Mapping[str, tuple[type[ActBody], Callable[[Client, Any], Awaitable[Plan]]]]:
    """The acts by name."""
    jobs = _JobActs(web_view)
    return {
        "pause-queue": (QueueBody, _pause_queue),
        "resume-queue": (QueueBody, _resume_queue),
        "limits": (LimitsBody, _limits),
        "retry-jobs": (JobsBody, jobs.retry),
        "purge-jobs": (JobFilterBody, jobs.purge),
        "edit-job": (EditJobBody, jobs.edit),
        "cancel-job": (JobBody, _cancel_job),
        "pause-schedule": (ScheduleBody, _pause_schedule),
        "resume-schedule": (ScheduleBody, _resume_schedule),
        "remove-schedule": (RemoveBody, _remove_schedule),
        "backfill": (BackfillBody, _backfill),
    }


# Queues


async def _pause_queue(here: Client, body: QueueBody) -> Plan:
    """Start no more jobs of a queue."""
    name, rows = body.queue, await _rows(here, body.queue)

    async def do() -> Done:
        changed = await pause_queue(here, name, paused=True)
        return Done(f"{name} is paused" if changed else f"{name} was paused already", int(changed))

    is_new = any(row.paused_at is None for row in rows)
    will = f"starts no jobs of {name} until it is resumed; what runs ends" if is_new else f"nothing: {name} is paused"
    return Plan(f"queue {name}", will, int(is_new), do)


async def _resume_queue(here: Client, body: QueueBody) -> Plan:
    """Let a queue start jobs again."""
    name, rows = body.queue, await _rows(here, body.queue)

    async def do() -> Done:
        changed = await pause_queue(here, name, paused=False)
        return Done(f"{name} starts jobs again" if changed else f"{name} was not paused", int(changed))

    is_new = any(row.paused_at is not None for row in rows)
    will = f"lets {name} start jobs again" if is_new else f"nothing: {name} is not paused"
    return Plan(f"queue {name}", will, int(is_new), do)


async def _limits(here: Client, body: LimitsBody) -> Plan:
    """Set limits of a queue that beat those of the program, or return to those."""
    name, what = body.queue, f"queue {body.queue!r}"
    await _rows(here, name)
    wanted: dict[str, Any] = {}
    for option in ("concurrency", "partition_concurrency"):
        given = getattr(body, option)
        if not isinstance(given, UnsetType):
            wanted[option] = count_of(given, called=option, what=what)
    if not isinstance(body.rate, UnsetType):
        wanted["rate"] = None if body.rate is None else rate_of(body.rate, what=what)
    if body.reset is bool(wanted):
        raise HttpRefusal(400, "which limits?", "give concurrency, partition_concurrency or rate; or reset")
    words = ", ".join(_limit_text(option, value) for option, value in wanted.items()) or "the program's limits"

    async def do() -> Done:
        await set_queue_limits(here, name, wanted, reset=body.reset)
        return Done(f"{name} has {words}")

    until = "" if body.reset else ", until they are reset"
    return Plan(what, f"gives {name} {words}, in the whole cluster{until}", 1, do)


def _limit_text(option: str, value: Any) -> str:
    named = option.replace("_", " ")
    if value is None:
        return f"no limit of {named}"
    return f"{named} {rate_text(value) if option == 'rate' else f'{value:,}'}"


async def _rows(here: Client, name: str) -> list[QueueRow]:
    found = [row for row in await here.storage.jobs.queues() if Seat.queue_name(row.seat) == name]
    if not found:
        raise HttpRefusal(404, f"there is no queue {name[:60]!r}")
    return found


# Jobs


class _JobActs:
    """The acts on jobs that a filter chooses.

    Args:
        web_view: What they act on: it may hide texts, which then choose nothing.
    """

    def __init__(self, web_view: WebView) -> None:
        self._web_view = web_view

    async def retry(self, here: Client, body: JobsBody) -> Plan:
        """Let dead jobs run again, with all their attempts."""
        found = await self._chosen(here, body)
        told = counted(len(found), "dead job")

        async def do() -> Done:
            revived = await revive_jobs(here, found)
            return Done(f"{counted(revived, 'dead job')} of {_summed(found)} run again", revived)

        more = "; there may be more: repeat it for them" if len(found) == JOBS_MOST else ""
        will = f"runs {told} of {_summed(found)} again{more}" if found else "runs nothing again: no dead job matches"
        what = f"job {found[0].id}" if len(found) == 1 else f"{counted(len(found), 'job')} of {_summed(found)}"
        return Plan(what, will, len(found), do)

    async def _chosen(self, here: Client, body: JobsBody) -> Sequence[JobRow]:
        if isinstance(body.ids, UnsetType) is isinstance(body.filter, UnsetType):
            raise HttpRefusal(400, "which jobs?", 'give "ids" or a "filter", not both')
        if not isinstance(body.ids, UnsetType):
            ids = [require_text(each, what="id") for each in dict.fromkeys(body.ids)]
            if len(ids) > JOBS_MOST:
                raise HttpRefusal(400, f"{len(ids)} ids are too many", f"give {JOBS_MOST} at most")
            return [row for row in await here.storage.jobs.look(ids) if row.state == "dead"]
        assert not isinstance(body.filter, UnsetType), "one of the two is given"
        given = {"state": "dead", **body.filter}
        if given["state"] != "dead":
            raise HttpRefusal(400, f"state is {given['state']!r}", "only dead jobs are run again")
        chosen = job_filter_of(given, texts=not self._web_view.redacted)
        return (await choose_jobs(here.storage.jobs, chosen, limit=JOBS_MOST)).rows

    async def purge(self, here: Client, body: JobFilterBody) -> Plan:
        """Delete jobs that are over."""
        chosen = job_filter_of({"state": "dead", **body.filter}, texts=not self._web_view.redacted)
        if chosen.state not in ENDED or not chosen.is_coarse:
            hint = f"choose those that are {', '.join(ENDED)}, by task, queue, tag and older"
            raise HttpRefusal(400, "these jobs cannot be deleted by a filter", hint)
        stored = chosen.stored()
        count = min(await here.storage.jobs.count(stored, most=_COUNTED_MOST), JOBS_MOST)

        async def do() -> Done:
            gone = await here.storage.jobs.remove(stored, most=JOBS_MOST)
            return Done(f"{counted(gone, f'{chosen.state} job')} deleted", gone)

        more = "; there may be more: repeat it for them" if count == JOBS_MOST else ""
        told = counted(count, f"{chosen.state} job")
        will = f"deletes {told} for good: {chosen}{more}" if count else "deletes nothing: no job matches"
        return Plan(f"jobs: {chosen}", will, count, do)

    async def edit(self, here: Client, body: EditJobBody) -> Plan:
        """Send a dead job again with other arguments, as a new one. The dead one stays."""
        if self._web_view.redacted:
            raise HttpRefusal(403, "arguments are hidden by the setting redact", "retry sends them as they are")
        dead = await _job(here, body.id)
        if dead.state != "dead":
            raise HttpRefusal(409, f"job {dead.id} is {word_of(dead)}", "only dead jobs are sent anew")

        async def do() -> Done:
            arguments = msgspec.json.encode(body.arguments)
            sent = await send_edited_job(here, dead, arguments, within_s=_EDIT_S)
            return Done(f"{dead.task} is sent as job {sent}; job {dead.id} stays dead until it is purged")

        will = f"sends {dead.task} with these arguments as a new job; the dead one stays until it is purged"
        return Plan(f"job {dead.id}", will, 1, do)


def _summed(found: Sequence[JobRow]) -> str:
    """`send_email`, or `send_email and 2 other tasks`."""
    names = [name for name, _ in Counter(each.task for each in found).most_common()]
    return names[0] + (f" and {counted(len(names) - 1, 'other task')}" if names[1:] else "") if names else "nothing"


async def _cancel_job(here: Client, body: JobBody) -> Plan:
    """Cancel a job: nothing of it will commit."""
    row = await _job(here, body.id)
    if row.ended_at is not None:
        raise HttpRefusal(409, f"job {row.id} is over: {word_of(row)}")

    async def do() -> Done:
        cancelled = await here.job_sender.cancel(row.id)
        return Done(f"job {row.id} is cancelled" if cancelled else f"job {row.id} was over before", int(cancelled))

    runs = "; its body, which runs, is cancelled" if row.state == "claimed" else ""
    return Plan(f"job {row.id}", f"cancels the job of {row.task}: nothing of it will commit{runs}", 1, do)


async def _job(here: Client, id: str) -> JobRow:
    rows = await here.storage.jobs.look([require_text(id, what="id")])
    if not rows:
        raise HttpRefusal(404, f"there is no job {id[:40]!r}, or none any more")
    return rows[0]


# Schedules


def _schedules(here: Client) -> Schedules:
    return Schedules(lambda: here, None, writing=lambda _: here)


async def _pause_schedule(here: Client, body: ScheduleBody) -> Plan:
    """Send nothing more of a schedule."""
    name, info = body.schedule, await _schedules(here).get(body.schedule)

    async def do() -> Done:
        changed = await _schedules(here).pause(name)
        return Done(f"{name} is paused" if changed else f"{name} was paused already", int(changed))

    is_new = info.paused_at is None
    will = f"sends nothing of {name} until it is resumed" if is_new else f"nothing: {name} is paused"
    return Plan(f"schedule {name}", will, int(is_new), do)


async def _resume_schedule(here: Client, body: ScheduleBody) -> Plan:
    """Let a schedule send again."""
    name, info = body.schedule, await _schedules(here).get(body.schedule)

    async def do() -> Done:
        changed = await _schedules(here).resume(name)
        return Done(f"{name} sends again" if changed else f"{name} was not paused", int(changed))

    is_new = info.paused_at is not None
    will = f"lets {name} send again from its next instant on" if is_new else f"nothing: {name} is not paused"
    return Plan(f"schedule {name}", will, int(is_new), do)


async def _remove_schedule(here: Client, body: RemoveBody) -> Plan:
    """Remove a schedule."""
    name, info = body.schedule, await _schedules(here).get(body.schedule)

    async def do() -> Done:
        removed = await _schedules(here).remove(name, cancel=body.cancel)
        return Done(f"{name} is removed" if removed else f"{name} was removed already", int(removed))

    rest = "what it has sent lately and has not begun is cancelled" if body.cancel else "what it has sent runs"
    return Plan(f"schedule {name}", f"removes {name}, which calls {info.calls}; {rest}", 1, do)


async def _backfill(here: Client, body: BackfillBody) -> Plan:
    """Send instants of the past once more."""
    name = body.schedule
    await _schedules(here).get(name)
    if body.since.tzinfo is None or body.until.tzinfo is None:
        raise HttpRefusal(400, "since and until have no time zone", "write them as in 2026-03-01T00:00:00Z")

    async def do() -> Done:
        try:
            ids = await _schedules(here).backfill(name, body.since, body.until)
        except ValueError as error:
            raise HttpRefusal(400, str(error), "choose a shorter time") from None
        noun = "job" if ids and is_job(ids[0]) else "message"
        return Done(f"{counted(len(ids), noun)} of {name} sent", len(ids))

    when = f"from {body.since:%Y-%m-%d %H:%M %Z} to before {body.until:%Y-%m-%d %H:%M %Z}"
    return Plan(f"schedule {name}", f"sends each instant of {name} {when} once more, unless it was so already", 1, do)
