"""A write that is alone in its group: its own values instead of arrays, its row instead of many. Pure.

What runs alone waits for nothing but this. Without arrays the server needs a fifth to a half less of the time, and so
do we.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeGuard, get_args

from coterie.storage.interface import StateSave
from coterie.storage.messages import Commit, Insert, Receipt
from coterie.storage.units import Stepped, StepRow, StepWrite

if TYPE_CHECKING:
    from collections.abc import Sequence

Shape = Literal["save_state", "insert_message", "end_message", "add_step"]
"""The statement that carries a write which is alone."""

INSTEAD: dict[str, Shape] = {
    "save_states": "save_state",
    "insert_messages": "insert_message",
    "end_messages": "end_message",
    "add_steps": "add_step",
}
"""The statements for several, and those for one."""

LONGEST_S = 9e9
"""What lives longer would end after the last day that the database knows."""

_SHAPES = frozenset(get_args(Shape))


def is_shape(shape: str) -> TypeGuard[Shape]:
    """Whether it is a statement for one."""
    return shape in _SHAPES


def values(write: Any) -> tuple[Any, ...]:
    """What the statement takes after the cluster's name."""
    if isinstance(write, Insert):
        return _message(write)
    claim = write.claim
    return (claim.runner, claim.seat, claim.epoch, *_fenced(write))


def result(write: Any, rows: Sequence[Sequence[Any]]) -> Any:
    """What became of it, from the statement's row; None: it does not tell."""
    if isinstance(write, StateSave):
        _, held, written = rows[0]
        return "fenced" if not held else "written" if written else "conflict"
    if isinstance(write, Commit):
        return rows[0][0]
    if not rows:
        return None
    if isinstance(write, Insert):
        due_at, now = rows[0]
        return Receipt(write.message.id, True, due_at, now, "pending", write.message.digest)
    at, due_at = rows[0]
    return Stepped("written", _step(write, due_at), at)


def _message(write: Insert) -> tuple[Any, ...]:
    message = write.message
    return (
        message.id,
        message.seat,
        message.entity_type,
        message.entity_id,
        message.method,
        message.payload,
        message.key,
        message.digest,
        message.trace_id,
        message.due_at,
        message.delay_s,
    )


def _fenced(write: StateSave | Commit | StepWrite) -> tuple[Any, ...]:
    if isinstance(write, Commit):
        return write.message, write.reply
    if isinstance(write, StateSave):
        ttl_s = None if write.ttl_s is None else min(write.ttl_s, LONGEST_S)
        return write.key, write.value, write.version, ttl_s, write.keep
    return (
        write.unit,
        write.branch,
        write.position,
        write.kind,
        write.name,
        write.digest,
        write.done,
        write.value,
        write.error,
        write.due_s,
    )


def _step(write: StepWrite, due_at: Any) -> StepRow:
    return StepRow(
        branch=write.branch,
        position=write.position,
        kind=write.kind,
        name=write.name,
        digest=write.digest,
        done=write.done,
        value=write.value,
        error=write.error,
        due_at=due_at,
    )
