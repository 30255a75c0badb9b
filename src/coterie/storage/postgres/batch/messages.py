"""Batching of message writes: the rows they touch, the statements' arrays, and their results. Pure."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, cast, get_args

from coterie.kernel.text import storable
from coterie.storage.contracts.jobs import JobEnd, JobInsert
from coterie.storage.contracts.messages import STATUSES, Commit, Insert, Receipt, Setback
from coterie.storage.postgres.batch.sends import (
    MESSAGE,
    key_of_job,
    key_of_message,
    message_columns,
    numbered_jobs,
    numbered_messages,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from coterie.storage.contracts.messages import Message
    from coterie.storage.postgres.batch.single import Way

FencedPost = Commit | Setback
Post = Insert | FencedPost
Shape = Literal["insert_messages", "end_messages", "commit_handlers", "commit_handlers_and_jobs", "set_back"]
"""The statement that carries a write; its name in messages.sql."""

SingleShape = Literal["insert_message", "add_message", "end_message"]
"""The statement that carries a write that is alone in its group."""

TIMER = ("life", "definition", "target", "entity_type", "entity_id", "method", "payload", "since_at", "next_at")
KEYED = frozenset(
    {"insert_messages", "insert_message", "commit_handlers", "commit_handlers_and_jobs", "insert_jobs", "commit_jobs"}
)
"""Statements that store keys. Their last value limits the wait for one, as text; None: the limit of the session."""

_SHAPES = frozenset(get_args(Shape))
_message: Callable[[Message], tuple[Any, ...]] = attrgetter(*MESSAGE)
_plain: Callable[[Message], tuple[Any, ...]] = attrgetter(
    "id", "seat", "entity_type", "entity_id", "method", "payload", "digest", "trace_id"
)


def is_shape(shape: str) -> TypeGuard[Shape]:
    """Whether it is a statement of this module."""
    return shape in _SHAPES


def shape_of(write: Post) -> Shape:
    """The statement that a write needs. Most handlers only end their message."""
    if isinstance(write, Insert):
        return "insert_messages"
    if isinstance(write, Setback):
        return "set_back"
    if write.jobs:
        return "commit_handlers_and_jobs"
    return "commit_handlers" if not write.message or write.state or write.sends or write.timers else "end_messages"


def single_shape_of(write: Insert | Commit) -> SingleShape | None:
    """The statement for a lone write; None: use the one for many."""
    if isinstance(write, Insert):
        is_plain = write.message.key is None and write.message.is_immediate and not write.message.tags
        return "add_message" if is_plain else "insert_message"
    return "end_message" if shape_of(write) == "end_messages" else None


def rows_of(write: Post) -> list[Hashable]:
    """The rows that a write touches, to detect conflicts: messages and states, and keys that must be free."""
    if isinstance(write, Insert):
        return [key_of_message(write.message)] if write.message.key is not None else []
    rows: list[Hashable] = [write.message] if write.message is not None else []
    if isinstance(write, Commit):
        rows += [(True, write.state.key)] if write.state is not None else []
        rows += [key_of_message(message) for message in write.sends if message.key is not None]
        rows += [key_of_job(job) for job in write.jobs if job.key is not None]
        rows += [("timer", change.key) for change in write.timers]
    return rows


def values(shape: Shape, writes: Sequence[Post]) -> list[Any]:
    """The arrays that the statement takes, after the cluster's name and, if fenced, the claims."""
    if shape == "insert_messages":
        return [*columns([write.message for write in cast("Sequence[Insert]", writes)]), None]
    if shape == "set_back":
        failed = cast("Sequence[Setback]", writes)
        ids, attempts, again_s = (
            [getattr(write, name) for write in failed] for name in ("message", "attempt", "again_s")
        )
        return [ids, attempts, [write.error and storable(write.error) for write in failed], again_s]
    ended = cast("Sequence[Commit]", writes)
    ends = [[write.message for write in ended], [write.reply for write in ended]]
    if shape == "end_messages":
        return ends
    jobs = numbered_jobs(ended) if shape == "commit_handlers_and_jobs" else []
    return [*ends, *_changes(ended), *numbered_messages(ended), *jobs, *_timers(ended), None]


def columns(messages: Sequence[Message]) -> list[list[Any]]:
    """The arrays that store messages, in the order in which their keys are locked."""
    return message_columns(sorted(messages, key=_order))


def limited(shape: str, given: Sequence[Any], limit: str) -> Sequence[Any]:
    """The values of a statement, which stores keys if it is one of `KEYED`, with a limit of its wait for each."""
    return [*given[:-1], limit] if shape in KEYED else given


def has_key(write: object) -> bool:
    """Whether a write stores a key, which an open transaction of another session may hold."""
    if isinstance(write, Insert):
        return write.message.key is not None
    if isinstance(write, JobInsert):
        return any(job.key is not None for job in write.jobs)
    if not isinstance(write, Commit | JobEnd):
        return False
    return any(message.key is not None for message in write.sends) or any(job.key is not None for job in write.jobs)


def results(shape: Shape, writes: Sequence[Post], rows: Iterable[Iterable[Any]]) -> list[Any]:
    """One result per write, from the statement's rows; None for a message not stored because of another one."""
    if shape == "insert_messages":
        stored = {row[0]: row for row in cast("Iterable[Sequence[Any]]", rows)}
        messages = [write.message for write in cast("Sequence[Insert]", writes)]
        return [_fresh(m, row[1], row[2]) if (row := stored.get(m.id)) is not None else None for m in messages]
    told: dict[int, str] = dict(cast("Iterable[tuple[int, str]]", rows))
    return [told[number] for number in range(1, len(writes) + 1)]


def sought(messages: Sequence[Message]) -> list[list[Any]]:
    """The arrays that read back the messages which exist instead of these."""
    return _columns(messages, "id", "entity_type", "entity_id", "method", "key")


def receipt(row: Iterable[Any], *, mine: str | None = None) -> Receipt:
    """The receipt of a stored message; fresh if it is the sender's own, from an earlier try."""
    id_, due_at, now, status, digest, reply = row
    return Receipt(id_, id_ == mine, due_at, now, STATUSES[status], bytes(digest), reply)


def _fresh(message: Message, due_at: Any, now: Any) -> Receipt:
    return Receipt(message.id, True, due_at, now, "pending", message.digest)


def note(write: FencedPost) -> str:
    """The audit's note about a refused write."""
    return write.message or (write.state.key if isinstance(write, Commit) and write.state is not None else "")


def _changes(writes: Sequence[Commit]) -> list[list[Any]]:
    states = [write.state for write in writes]
    return [[state and getattr(state, name) for state in states] for name in ("key", "value", "version")]


def _timers(writes: Sequence[Commit]) -> list[list[Any]]:
    changes = [(number, change) for number, write in enumerate(writes, 1) for change in write.timers]
    timers = [change.timer for _, change in changes]
    columns = [[timer and getattr(timer, name) for timer in timers] for name in TIMER]
    return [[number for number, _ in changes], [change.key for _, change in changes], *columns]


def _columns(messages: Sequence[Message], *names: str) -> list[list[Any]]:
    return [[getattr(message, name) for message in messages] for name in names]


def _order(message: Message) -> tuple[str, ...]:
    """Groups with common keys lock them in one order [M3]; of one key the first that queued comes first."""
    return () if message.key is None else key_of_message(message)


# The single forms


def _end(write: Commit) -> tuple[Any, ...]:
    claim = write.claim
    return claim.runner, claim.seat, claim.epoch, write.message, write.reply


SINGLE: dict[str, Way] = {
    "insert_message": (lambda write: (*_message(write.message), None), lambda write, row: _fresh(write.message, *row)),
    "add_message": (lambda write: _plain(write.message), lambda write, row: _fresh(write.message, row[0], row[0])),
    "end_message": (_end, lambda _, row: row[0]),
}
"""The values of each single form, and the reader of its result."""
