"""Statements for a write that is alone in its group: plain values instead of arrays, one row instead of many. Pure.

A lone write is pure latency for its caller. Without arrays the server needs a fifth to a half less time, and so does
this process.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from coterie.storage.contracts.messages import Commit, Insert, Receipt
from coterie.storage.contracts.units import StepResult, StepRow, StepWrite
from coterie.storage.interface import StateSave
from coterie.storage.postgres.batch import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coterie.storage.contracts.messages import Message
    from coterie.storage.interface import Write, Written

Shape = Literal["save_state", "insert_message", "add_message", "end_message", "add_step"]
"""The statement that carries a lone write."""

LONGEST_S = 9e9
"""A longer lifetime would end after the last day that the database knows."""

_message: Callable[[Message], tuple[Any, ...]] = attrgetter(*messages.MESSAGE)
_plain: Callable[[Message], tuple[Any, ...]] = attrgetter(
    "id", "seat", "entity_type", "entity_id", "method", "payload", "digest", "trace_id"
)


def shape_of(write: Write) -> Shape | None:
    """The statement for a lone write; None: use the one for many."""
    if isinstance(write, StepWrite):  # one that has succeeded, as nearly all do
        is_plain = write.kind == "step" and write.done and write.error is None and write.due_s is None
        return "add_step" if is_plain else None
    if isinstance(write, Insert):
        return "add_message" if write.message.key is None and write.message.is_immediate else "insert_message"
    if isinstance(write, Commit):
        return "end_message" if write.message and write.state is None and not write.sends else None
    if isinstance(write, StateSave):  # one that follows another, and has a history or an expiry
        return "save_state" if write.version and (write.keep or write.ttl_s is not None) else None
    return None


def is_shape(shape: str) -> TypeGuard[Shape]:
    """Whether it is a statement for a lone write."""
    return shape in WAYS


def values(shape: Shape, write: Any) -> tuple[Any, ...]:
    """The statement's values after the cluster's name."""
    return WAYS[shape][0](write)


def result(shape: Shape, write: Any, rows: Sequence[Sequence[Any]]) -> Any:
    """The write's result, from the statement's row; None: the row does not tell."""
    return WAYS[shape][1](write, rows[0]) if rows else None


def written(*, held: bool, was_written: bool) -> Written:
    """The result of a save: whether its seat was held, and whether it was written."""
    return "fenced" if not held else "written" if was_written else "conflict"


def _save(write: StateSave) -> tuple[Any, ...]:
    claim, ttl_s = write.claim, None if write.ttl_s is None else min(write.ttl_s, LONGEST_S)
    return claim.runner, claim.seat, claim.epoch, write.key, write.value, write.version, ttl_s, write.keep


def _saved(_: StateSave, row: Sequence[Any]) -> Written:
    _, held, was_written = row
    return written(held=held, was_written=was_written)


def _insert(write: Insert) -> tuple[Any, ...]:
    return _message(write.message)


def _inserted(write: Insert, row: Sequence[Any]) -> Receipt:
    due_at, now = row
    return Receipt(write.message.id, True, due_at, now, "pending", write.message.digest)


def _add(write: Insert) -> tuple[Any, ...]:
    return _plain(write.message)


def _added(write: Insert, row: Sequence[Any]) -> Receipt:
    (now,) = row
    return Receipt(write.message.id, True, now, now, "pending", write.message.digest)


def _end(write: Commit) -> tuple[Any, ...]:
    claim = write.claim
    return claim.runner, claim.seat, claim.epoch, write.message, write.reply


def _ended(_: Commit, row: Sequence[Any]) -> Any:
    return row[0]


def _step(write: StepWrite) -> tuple[Any, ...]:
    claim = write.claim
    return (
        claim.runner,
        claim.seat,
        claim.epoch,
        write.unit,
        write.branch,
        write.position,
        write.name,
        write.digest,
        write.value,
    )


def _stepped(write: StepWrite, row: Sequence[Any]) -> StepResult:
    stored = StepRow(
        branch=write.branch,
        position=write.position,
        kind="step",
        name=write.name,
        digest=write.digest,
        done=True,
        value=write.value,
    )
    return StepResult("written", stored, row[0])


WAYS: dict[Shape, tuple[Callable[[Any], tuple[Any, ...]], Callable[[Any, Any], Any]]] = {
    "save_state": (_save, _saved),
    "insert_message": (_insert, _inserted),
    "add_message": (_add, _added),
    "end_message": (_end, _ended),
    "add_step": (_step, _stepped),
}
"""The values of each statement, and the reader of its result."""
