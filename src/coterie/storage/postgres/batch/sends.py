"""The arrays of what is sent: whole messages and jobs, alone or by the number of the member that sends them. Pure."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from coterie.storage.contracts.jobs import NewJob
    from coterie.storage.contracts.messages import Message

MESSAGE = (
    "id", "seat", "entity_type", "entity_id", "method", "payload", "key", "digest", "trace_id", "due_at", "delay_s",
    "tags_text",
)  # fmt: skip
JOB = (
    *("id", "seat", "part", "task", "fingerprint", "payload", "key", "digest", "priority", "age_s", "trace_id"),
    *("due_at", "delay_s"),
)

key_of_message: Callable[[Message], tuple[str, ...]] = attrgetter("entity_type", "entity_id", "method", "key")
"""What a message's key is unique for."""


class SendingWrite(Protocol):
    """A write that sends messages and jobs."""

    @property
    def sends(self) -> tuple[Message, ...]: ...
    @property
    def jobs(self) -> tuple[NewJob, ...]: ...


def key_of_job(job: NewJob) -> Hashable:
    """What a job's key is unique for."""
    return "job key", job.task, job.key


def message_columns(messages: Sequence[Message]) -> list[list[Any]]:
    """The arrays of whole messages, in the order of `MESSAGE`."""
    return [[getattr(message, name) for message in messages] for name in MESSAGE]


def job_columns(jobs: Sequence[NewJob]) -> list[list[Any]]:
    """The arrays of whole jobs without their tags, in the order of `JOB`."""
    return [[getattr(job, name) for job in jobs] for name in JOB]


def tag_columns(jobs: Sequence[NewJob]) -> list[list[Any]]:
    """The arrays of the tags of jobs: a job's id, a name, a value."""
    tags = [(job.id, name, value) for job in jobs if job.tags for name, value in dict(job.tags).items()]
    return [[tag[place] for tag in tags] for place in range(3)]


def numbered_messages(writes: Sequence[SendingWrite]) -> list[list[Any]]:
    """The arrays of the messages that the members of a group send, after the numbers of these members."""
    sends = [(number, message) for number, write in enumerate(writes, 1) for message in write.sends]
    return [[number for number, _ in sends], *message_columns([message for _, message in sends])]


def numbered_jobs(writes: Sequence[SendingWrite]) -> list[list[Any]]:
    """The arrays of the jobs that the members of a group send, after the numbers of these members; then their tags."""
    sends = [(number, job) for number, write in enumerate(writes, 1) for job in write.jobs]
    jobs = [job for _, job in sends]
    return [[number for number, _ in sends], *job_columns(jobs), *tag_columns(jobs)]
