"""Which jobs are meant, and what is told of one: for the command line and the page."""

from __future__ import annotations

import heapq
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from coterie.entities.idempotency_key import shown_key
from coterie.entities.persisted.api import plain_value, told_reply
from coterie.errors import InvalidArgument, quoted
from coterie.kernel import spans
from coterie.kernel.durations import to_seconds
from coterie.kernel.ids import Seat
from coterie.kernel.plain import plain
from coterie.observe.failures import worded
from coterie.storage.contracts.jobs import JobFilter
from coterie.work.tags import tag_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from datetime import datetime

    from coterie.storage.contracts.jobs import JobRow, JobState, JobStore
    from coterie.work.tags import Tag

JobWord = Literal["waiting", "running", "scheduled", "parked", "dead", "done", "discarded", "cancelled"]
"""How a job stands, in the words of messages."""

JOB_WORDS: tuple[JobWord, ...] = get_args(JobWord)
JOB_QUALIFIERS = ("task", "queue", "state", "error", "key", "tag", "older")
ENDED: tuple[JobWord, ...] = ("dead", "done", "discarded", "cancelled")
"""Those that can be deleted."""
_STORED: Mapping[JobWord, JobState] = {"waiting": "ready", "running": "claimed", "scheduled": "later"}
_WORDS: Mapping[JobState, JobWord] = {stored: word for word, stored in _STORED.items()}
_OPEN: tuple[JobWord, ...] = ("running", "waiting", "scheduled", "parked", "dead")
_PAGE = 200
_TEXT_MOST = 2_000
"""Characters of a name in a filter: none is longer."""


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Which jobs; fields that are None match all."""

    task: str | None = None
    queue: str | None = None
    state: JobWord | None = None
    error: str | None = None
    """Part of the error of its last attempt."""
    key: str | None = None
    tag: str | None = None
    """The name and the value of a tag: `order=7`."""
    older: str | None = None
    """Sent, or ended, longer ago than that."""

    @property
    def tag_pair(self) -> Tag | None:
        """The tag as storage takes it.

        Raises:
            InvalidArgument: It has no "=", or is none.
        """
        if self.tag is None:
            return None
        name, equals, value = self.tag.partition("=")
        if not equals:
            raise InvalidArgument(what="tag", value=quoted(self.tag), problem="write a name and a value, as in order=7")
        return tag_of((name, value))

    @property
    def is_coarse(self) -> bool:
        """Whether storage itself can apply the whole filter."""
        return self.error is self.key is None

    def stored(self, state: JobWord | None = None) -> JobFilter:
        """The part of the filter that storage itself can apply."""
        word = state or self.state
        return JobFilter(
            state=None if word is None else stored_state(word),
            seat=None if self.queue is None else Seat.queue(self.queue),
            task=self.task,
            tag=self.tag_pair,
            older_than_s=None if self.older is None else to_seconds(self.older, what="older", allow_zero=True),
        )

    def takes(self, row: JobRow) -> bool:
        """Whether a job that storage has chosen matches the rest."""
        last = row.errors[-1].error if row.errors else ""
        return (self.key is None or (row.key is not None and self.key in (row.key, shown_key(row.key)))) and (
            self.error is None or self.error.lower() in last.lower()
        )

    def __str__(self) -> str:
        """As it was written: it can be pasted after `--filter`."""
        given = ((name, getattr(self, name)) for name in JOB_QUALIFIERS)
        return " ".join(f"{name}:{shlex.quote(value)}" for name, value in given if value is not None)


def job_options(given: Mapping[str, str]) -> JobOptions:
    """The filter that qualifiers name.

    Raises:
        InvalidArgument: One is unknown, or has a value that does not fit.
        ConfigurationError: `older` is no duration.
    """
    for name, value in given.items():
        if name not in JOB_QUALIFIERS:
            known = ", ".join(JOB_QUALIFIERS)
            raise InvalidArgument(what="the filter", value=quoted(name[:60]), problem=f"there are {known}")
        if not value or len(value) > _TEXT_MOST:
            problem = f"it has {len(value):,} characters, expected 1 to {_TEXT_MOST:,}"
            raise InvalidArgument(what=name, value=quoted(value[:60]), problem=problem)
    state = given.get("state")
    if state is not None and state not in JOB_WORDS:
        raise InvalidArgument(what="state", value=quoted(state[:60]), problem=f"there are {', '.join(JOB_WORDS)}")
    chosen = JobOptions(**dict(given))  # type: ignore[arg-type] # each is one of its fields, a text
    chosen.stored()  # refuses a tag or a duration that is none
    return chosen


def stored_state(word: JobWord) -> JobState:
    """The state of storage that a word means."""
    return _STORED.get(word, word)  # type: ignore[arg-type] # the others are called alike


def word_of(row: JobRow) -> JobWord:
    """How a job stands."""
    return _WORDS.get(row.state, row.state)  # type: ignore[arg-type] # likewise


class ChosenJobs(NamedTuple):
    """Jobs that match, at one moment."""

    rows: Sequence[JobRow]
    more: bool
    """Whether there may be others after them."""


async def choose_jobs(
    jobs: JobStore, chosen: JobOptions, *, limit: int, after: str | None = None, newest: bool = False
) -> ChosenJobs:
    """The first jobs that match, in the order of their ids, with `newest` in the reverse order.

    Without a state all that are not over, dead ones included; with a tag or a key all.
    """
    unnamed: Sequence[JobWord | None] = _OPEN if chosen.tag is None and chosen.key is None else (None,)
    words = unnamed if chosen.state is None else (chosen.state,)
    lists = [await _some(jobs, chosen, word, limit=limit + 1, after=after, newest=newest) for word in words]
    found = list(heapq.merge(*lists, key=lambda row: row.id, reverse=newest))
    return ChosenJobs(found[:limit], len(found) > limit)


async def _some(
    jobs: JobStore, chosen: JobOptions, word: JobWord | None, *, limit: int, after: str | None, newest: bool
) -> list[JobRow]:
    found: list[JobRow] = []
    async for row in walk_jobs(jobs, chosen, word, after=after, newest=newest, most=limit):
        found.append(row)
        if len(found) == limit:
            break
    return found


async def walk_jobs(
    jobs: JobStore,
    chosen: JobOptions,
    word: JobWord | None,
    *,
    after: str | None = None,
    newest: bool = False,
    most: int = _PAGE,
) -> AsyncIterator[JobRow]:
    """All jobs of a state, or of all, that match, a page at a time."""
    stored, size = chosen.stored(word), min(most, _PAGE) if chosen.is_coarse else _PAGE
    while True:
        page = await jobs.list(stored, after=after, most=size, newest=newest)
        for row in page:
            if chosen.takes(row):
                yield row
        if len(page) < size:
            return
        after = page[-1].id


def told_job(row: JobRow, names: Mapping[str, str], *, texts: bool) -> dict[str, Any]:
    """A job in a list, as plain values.

    Args:
        row: The job.
        names: Names of runners by incarnation.
        texts: Whether to include what the program wrote: key, tags, partition, notes, messages of errors.
    """
    last = row.errors[-1].error if row.errors else None
    progress = row.progress
    ran_by = row.runner or row.ran_by
    return {
        "id": row.id,
        "task": row.task,
        "queue": Seat.queue_name(row.seat),
        "partition": row.part if texts and row.part != row.task else None,
        "state": word_of(row),
        "key": None if row.key is None or not texts else shown_key(row.key),
        "priority": row.priority,
        "sent_at": row.sent_at,
        "due_at": row.due_at,
        "claimed_at": row.claimed_at,
        "ended_at": row.ended_at,
        "runner": None if ran_by is None else names.get(ran_by, ran_by),
        "failures": row.failures,
        "lost": row.lost,
        "cancelling": row.cancelling,
        "tags": row.tags if texts else {},
        "progress": None
        if progress is None
        else {
            "done": progress.done,
            "total": progress.total,
            "note": progress.note if texts else None,
            "at": progress.at,
        },
        "error": None if last is None else worded(last, texts=texts),
        "trace_id": spans.id_of(row.trace_id),
    }


def told_job_whole(row: JobRow, names: Mapping[str, str], *, texts: bool) -> dict[str, Any]:
    """A job with its failed attempts, arguments and result, as plain values."""
    reply, failure = told_reply(row.reply)
    told = {
        **told_job(row, names, texts=texts),
        "errors": [{"number": each.number, "at": each.at, **_error(each.error, texts=texts)} for each in row.errors],
        "failure": failure if texts else None,
    }
    return {**told, "arguments": plain(plain_value(row.payload)), "reply": plain(reply)} if texts else told


def _error(error: str, *, texts: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"error": worded(error, texts=texts)}
    return {**told, "traceback": error} if texts and "\n" in error else told


def lasted_s(row: JobRow, now: datetime) -> float | None:
    """How long the last attempt took, or has taken up to now; None: it was never begun."""
    if row.claimed_at is None:
        return None
    return max(((row.ended_at or now) - row.claimed_at).total_seconds(), 0.0)
