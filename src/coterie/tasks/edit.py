"""A dead job that is sent again with other arguments, as a new job, by a program that has its task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.entities.calls.router import may_run_elsewhere
from coterie.errors import CoterieError, InvalidArgument, RunnerUnavailable
from coterie.kernel.ids import MessageId
from coterie.ownership.directory import peer_of
from coterie.tasks.frames import EditJob, encode
from coterie.tasks.sender import JobCaller
from coterie.tasks.task import Job
from coterie.transport.interface import Route

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coterie.client import Client
    from coterie.storage.contracts.jobs import JobRow
    from coterie.tasks.definition import TaskType


def require_dead(row: JobRow) -> None:
    """Refuse a job that is not dead.

    Raises:
        InvalidArgument: Only dead jobs are sent with other arguments.
    """
    if row.state != "dead":
        problem = "only dead jobs are sent again with other arguments"
        raise InvalidArgument(what=f"job {row.id}", value=row.state, problem=problem)


async def send_edited_job(
    here: Client, row: JobRow, arguments: bytes, *, within_s: float, known: Mapping[str, TaskType] | None = None
) -> MessageId[Any]:
    """Send a dead job again with other arguments, a JSON map, with its tags and priority. The dead one stays.

    Without the task it is a runner that has it which checks the arguments and sends. Repeated with the same arguments,
    it is the same job.

    Args:
        here: The process that asks.
        row: The dead job.
        arguments: All arguments by name.
        within_s: How long to wait for a runner.
        known: The tasks of this program, if they are at hand.

    Raises:
        InvalidArgument: The job is not dead.
        MalformedMessage: The arguments do not fit.
        KeyConflict: It was edited before, with other arguments.
        RunnerUnavailable: No runner's program has its task.
    """
    require_dead(row)
    task = None if known is None else known.get(row.task)
    if task is not None:
        return await resend(here, task, row, arguments)
    frame, target = EditJob(row.id, row.task, arguments), f"job {row.id} of {row.task}"
    here_sent = None if here.jobs.editor is None else await here.jobs.editor.edit(frame)
    if here_sent is not None:
        return MessageId(here_sent)
    body, trouble = encode(frame), None
    for runner in [each for each in await here.runners() if each.id != here.incarnation]:
        try:
            sent = await here.transport.request(peer_of(runner), Route.JOB, body, within_s=within_s, target=target)
        except CoterieError as error:
            if not may_run_elsewhere(error):
                raise
            trouble = error
        else:
            if sent:
                return MessageId(bytes(sent).decode())
    if trouble is not None:
        raise trouble
    problem, hint = f"no runner's program has task {row.task}", "start one that has it"
    raise RunnerUnavailable(runner="", target=target, problem=problem, sent=False, hint=hint)


async def resend(here: Client, task: TaskType, row: JobRow, arguments: bytes) -> MessageId[Any]:
    """Send the new job from a program that has the task."""
    caller = JobCaller(lambda: here)
    job: Job[Any] = Job(task, task.arguments.from_json(arguments), caller)
    job.mark_sent()
    job.key, job.tags = f"edit of {row.id}", tuple(sorted(row.tags.items()))  # the dead one keeps its own key
    return await caller.send(job, at=None, delay_s=0.0, priority=row.priority)


class JobEditor:
    """Sends edited jobs for processes that do not have their tasks (`exchange.EditorPort`).

    Args:
        here: The runner.
        known: The tasks of its program.
    """

    def __init__(self, here: Client, known: Mapping[str, TaskType]) -> None:
        self._here = here
        self._known = known

    async def edit(self, frame: EditJob, /) -> str | None:
        """The id of the new job; None: its task is unknown here, or the job is gone."""
        task = self._known.get(frame.task)
        rows = [] if task is None else await self._here.storage.jobs.look([frame.id])
        if task is None or not rows:
            return None
        require_dead(rows[0])
        return str(await resend(self._here, task, rows[0], frame.arguments))
