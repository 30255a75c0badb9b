"""`cluster.jobs`: list, show, cancel, retry, edit and purge jobs."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from coterie.entities.idempotency_key import shown_key
from coterie.entities.persisted.api import FailedAttempt, plain_value, told_reply
from coterie.errors import MessageExpired
from coterie.kernel import spans
from coterie.kernel.durations import Duration, to_seconds
from coterie.kernel.ids import MessageId, Seat
from coterie.kernel.text import require_text
from coterie.storage.contracts.jobs import JOB_STATES, JobFilter, JobState
from coterie.tasks.edit import send_edited_job
from coterie.work.tags import tag_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from coterie.client import Client
    from coterie.storage.contracts.jobs import JobProgress, JobRow
    from coterie.tasks.registry import TaskRegistry

log = logging.getLogger("coterie.tasks")

EndState = Literal["done", "dead", "cancelled", "discarded"]
_PAGE = 200
"""Rows that are read at a time: each includes its payload."""
_BATCH = 1_000
"""Rows that one statement deletes: it holds its locks for a few milliseconds only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """A job at the time it was read. All instants are the database's."""

    id: MessageId[Any]
    task: str
    state: JobState
    """`later` (not due yet), `ready`, `claimed` (it runs), `parked` (no runner can run it now); or how it has ended:
    `done`, `dead` (its attempts or losses are used up), `cancelled`, `discarded`."""
    queue: str | None
    """The name of its queue; None: its task has none."""
    partition: str | None
    """Its partition of the queue."""
    key: str | None
    """In readable form; None if it has none."""
    priority: int
    sent_at: datetime
    due_at: datetime
    """When it may run, or run again."""
    started_at: datetime | None
    """When its last attempt was given to a runner."""
    ended_at: datetime | None
    failures: int
    """The number of failed attempts."""
    lost: int
    """The number of runners that were lost while they ran it."""
    runner: str | None
    """The runner that runs it, or ran it last."""
    cancelling: bool
    """Whether it was cancelled and its body has not ended yet."""
    progress: JobProgress | None
    """What its body has said last, with `current().progress`."""
    errors: tuple[FailedAttempt, ...]
    """The latest ones, oldest first."""
    payload: Any
    """The arguments by name, as plain values; bytes if they cannot be decoded."""
    reply: Any
    """The result, as plain values; None while there is none."""
    failure: str | None
    """The declared error, if the result is one."""
    tags: Mapping[str, str]
    trace_id: str | None


class Jobs:
    """The API of `cluster.jobs`.

    Example:
        ```python
        for job in await cluster.jobs.list(state="dead", task="send_email"):
            print(job.id, job.payload, job.errors[-1].error)
            await cluster.jobs.retry(job.id)
        ```

    Args:
        acting: Returns the runner or client to act through.
        writing: Likewise, for a write; called with its name.
        tasks: The tasks of this program.
    """

    def __init__(
        self,
        acting: Callable[[], Client],
        writing: Callable[[str], Client],
        tasks: Callable[[], TaskRegistry],
    ) -> None:
        self._acting = acting
        self._writing = writing
        self._tasks = tasks

    async def list(
        self,
        *,
        state: JobState | None = None,
        task: str | None = None,
        queue: str | None = None,
        tag: tuple[str, str] | None = None,
        older_than: Duration | None = None,
        limit: int = 100,
        after: str | None = None,
        newest: bool = False,
    ) -> Sequence[JobInfo]:
        """List jobs, approximately in the order in which they were sent.

        Args:
            state: Only jobs in this state.
            task: Only jobs of this task.
            queue: Only jobs of the queue of this name.
            tag: Only jobs that were sent with this tag: its name and its value.
            older_than: Only jobs that were sent, or have ended, longer ago.
            limit: The maximum number of jobs.
            after: Only jobs after this id: the last one of the previous list.
            newest: List them in the reverse order, the newest first.
        """
        chosen = _filter(state=state, task=task, queue=queue, older_than=older_than, tag=tag)
        found: list[JobInfo] = []
        after = after if after is None else require_text(str(after), what="job id")
        while len(found) < limit:
            most = min(_PAGE, limit - len(found))
            rows = await self._acting().storage.jobs.list(chosen, after=after, most=most, newest=newest)
            found += map(info_of, rows)
            if len(rows) < most:
                break
            after = rows[-1].id
        return found

    async def show(self, id: str) -> JobInfo:
        """Read a job.

        Raises:
            MessageExpired: It does not exist: its retention has passed, or it never existed.
        """
        return info_of(await self._row(id))

    async def cancel(self, id: str) -> bool:
        """Cancel a job, also while it runs: as `cluster.cancel`."""
        return await self._writing("cluster.jobs.cancel").job_sender.cancel(id)

    async def retry(self, id: str) -> bool:
        """Let a dead job run again, now and with all its attempts. Returns False if it is not dead.

        Raises:
            MessageExpired: It does not exist.
        """
        here, row = self._writing("cluster.jobs.retry"), await self._row(id)
        revived = await here.storage.jobs.revive(JobFilter(), id=row.id, most=1)
        if revived:
            here.job_sender.hint_seat(row.seat)
        return revived > 0

    async def edit(self, id: str, arguments: Mapping[str, Any]) -> MessageId[Any]:
        """Send a dead job again with other arguments, as a new job with its tags and priority.

        The dead one stays until it is purged. Edited again with the same arguments, it is the same job.

        Args:
            id: The id of the dead job.
            arguments: All arguments by name, as plain values; a program that has the task checks them.

        Raises:
            MessageExpired: It does not exist.
            InvalidArgument: It is not dead.
            MalformedMessage: The arguments do not fit.
            KeyConflict: It was edited before, with other arguments.
            RunnerUnavailable: No program at hand has its task: neither this one, nor that of a runner.
        """
        here, row = self._writing("cluster.jobs.edit"), await self._row(id)
        encoded, within_s = msgspec.json.encode(dict(arguments)), here.calling.within_s(None)
        return await send_edited_job(here, row, encoded, known=self._tasks().known, within_s=within_s)

    async def purge(
        self,
        *,
        state: EndState,
        task: str | None = None,
        queue: str | None = None,
        older_than: Duration | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Delete jobs that have ended, a batch at a time.

        Args:
            state: The state of the jobs to delete.
            task: As for `list`.
            queue: As for `list`.
            older_than: Only jobs that have ended longer ago.
            progress: Called after each batch with the total so far.

        Returns:
            The number of jobs deleted.

        Not promised:
            That their keys are still known: a job sent again with such a key runs again.
        """
        if state not in get_args(EndState):
            raise ValueError(f"state is {state!r}, and only jobs that have ended can be purged: {_shown(EndState)}")
        chosen = _filter(state=state, task=task, queue=queue, older_than=older_than)
        here = self._writing("cluster.jobs.purge")
        total, removed = 0, _BATCH
        while removed == _BATCH:
            removed = await here.storage.jobs.remove(chosen, most=_BATCH)
            total += removed
            if progress is not None:
                progress(total)
        log.info("%d %s jobs were deleted", total, state)
        return total

    async def _row(self, id: str) -> JobRow:
        rows = await self._acting().storage.jobs.look([require_text(str(id), what="job id")])
        if not rows:
            raise MessageExpired(message_id=id)
        return rows[0]


def info_of(row: JobRow) -> JobInfo:
    """A job as users see it."""
    reply, failure = told_reply(row.reply)
    name = Seat.split(row.seat)[1]
    queue = None if ":" in name else name
    return JobInfo(
        id=MessageId(row.id),
        task=row.task,
        state=row.state,
        queue=queue,
        partition=None if queue is None or not row.part else row.part,
        key=None if row.key is None else shown_key(row.key),
        priority=row.priority,
        sent_at=row.sent_at,
        due_at=row.due_at,
        started_at=row.claimed_at,
        ended_at=row.ended_at,
        failures=row.failures,
        lost=row.lost,
        runner=row.runner or row.ran_by,
        cancelling=row.cancelling and row.ended_at is None,
        progress=row.progress,
        errors=tuple(FailedAttempt(one.number, one.at, one.error) for one in row.errors),
        payload=plain_value(row.payload),
        reply=reply,
        failure=failure,
        tags=row.tags,
        trace_id=spans.id_of(row.trace_id),
    )


def _filter(
    *,
    state: JobState | None,
    task: str | None,
    queue: str | None,
    older_than: Duration | None,
    tag: tuple[str, str] | None = None,
) -> JobFilter:
    if state is not None and state not in JOB_STATES:
        raise ValueError(f"state is {state!r}, and there are {', '.join(JOB_STATES)}")
    for value, what in ((task, "task"), (queue, "queue")):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{what} is {value!r}: write its name")
        if value is not None:
            require_text(value, what=what)
    return JobFilter(
        state=state,
        seat=None if queue is None else Seat.queue(queue),
        task=task,
        tag=None if tag is None else tag_of(tag),
        older_than_s=None if older_than is None else to_seconds(older_than, what="older_than", allow_zero=True),
    )


def _shown(choices: Any) -> str:
    return ", ".join(get_args(choices))
