"""The place of each encrypted value: a ciphertext that is moved to another row, field or cluster does not decrypt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from coterie.storage.encryption.cipher import Place


class Addressed(Protocol):
    """A message, in any of its forms."""

    @property
    def id(self) -> str: ...
    @property
    def entity_type(self) -> str: ...
    @property
    def entity_id(self) -> str: ...
    @property
    def method(self) -> str: ...


class AddressedJob(Protocol):
    """A job, in any of its forms."""

    @property
    def id(self) -> str: ...
    @property
    def task(self) -> str: ...


def arguments(message: Addressed) -> Place:
    """The arguments of a call: of this message, to this method of this entity."""
    return "messages", "payload", message.id, message.entity_type, message.entity_id, message.method


def reply(message: str) -> Place:
    """The reply to a message."""
    return "messages", "reply", message


def digest_of_call(message: str) -> Place:
    """The digest of a call's arguments: of small ones a plain digest gives them away."""
    return "messages", "digest", message


def error_of_call(message: str) -> Place:
    """The errors of a message's attempts."""
    return "messages", "errors", message


def arguments_of_job(job: AddressedJob) -> Place:
    """The arguments of a job: of this one, of this task."""
    return "jobs", "payload", job.id, job.task


def job(job: str, field: str) -> Place:
    """A field of a job: digest, reply, errors."""
    return "jobs", field, job


def note_of_job(job: str) -> Place:
    """The note with the progress of a job."""
    return "job_progress", "note", job


def entry(key: str, stamp: int) -> Place:
    """The value of a key, as one write of it left it."""
    return "kv", "value", key, stamp


def state(key: str, version: int) -> Place:
    """One version of a state; in the history it is the same."""
    return "states", "value", key, version


def reason(key: str) -> Place:
    """Why states of a key were set aside."""
    return "state_history", "reason", key


def execution(seat: str, field: str) -> Place:
    """The last error or note of the work on a seat."""
    return "executions", field, seat


def error_of_cron(name: str) -> Place:
    """The errors of a cron's ticks, of which the last one also stands with the cron."""
    return "ticks", "errors", name


def note_of_tick(name: str) -> Place:
    """The notes of a cron's ticks."""
    return "ticks", "note", name


def unit(unit: str, field: str) -> Place:
    """A field of a unit: payload, digest, value, error, stuck."""
    return "units", field, unit


def step(unit: str, branch: str, position: int, field: str) -> Place:
    """A field of a step: digest, value, error."""
    return "steps", field, unit, branch, position


def deferred(unit: str, name: str, life: int, field: str) -> Place:
    """A field of a deferred of one life: value, error."""
    return "deferreds", field, unit, name, life


def outcome(parent: str, waited_as: str) -> Place:
    """How a child ended, which is the value of a deferred of its parent. The child does not know its parent's life."""
    return "deferreds", "outcome", parent, waited_as


def run_message(unit: str, name: str, field: str = "value") -> Place:
    """What was sent to a run under a name, also where a step has received it; or the digest of that."""
    return "run_messages", field, unit, name


def published(unit: str, name: str) -> Place:
    """What a run has published under a name."""
    return "published", "value", unit, name


def scheduled(key: str, life: int) -> Place:
    """The arguments of what a schedule, or a timer, sends."""
    return "schedules", "payload", key, life


def result_of_act(act: str, what: str) -> Place:
    """The result in the record of an act."""
    return "activity", "result", act, what
