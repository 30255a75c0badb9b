"""Statements for a write that is alone in its group: plain values instead of arrays, one row instead of many. Pure.

A lone write is pure latency for its caller. Without arrays the server needs a fifth to a half less time, and so does
this process. Those of messages, jobs and steps stand beside the ones for many, in their modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from coterie.storage.contracts.jobs import JobEnd
from coterie.storage.contracts.messages import Commit, Insert
from coterie.storage.contracts.units import StepWrite
from coterie.storage.interface import StateSave
from coterie.storage.postgres.batch import jobs, messages, units

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coterie.storage.interface import Write, Written

    Way = tuple[Callable[[Any], tuple[Any, ...]], Callable[[Any, Any], Any]]

Shape = messages.SingleShape | jobs.SingleShape | units.SingleShape | Literal["save_state"]
"""The statement that carries a lone write."""

LONGEST_S = 9e9
"""A longer lifetime would end after the last day that the database knows."""


def shape_of(write: Write) -> Shape | None:
    """The statement for a lone write; None: use the one for many."""
    if isinstance(write, StepWrite):
        return units.single_shape_of(write)
    if isinstance(write, Insert | Commit):
        return messages.single_shape_of(write)
    if isinstance(write, JobEnd):
        return jobs.single_shape_of(write)
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


def capped(ttl_s: float | None) -> float | None:
    """A lifetime that the database can add to its clock."""
    return None if ttl_s is None else min(ttl_s, LONGEST_S)


def written(*, held: bool, was_written: bool) -> Written:
    """The result of a save: whether its seat was held, and whether it was written."""
    return "fenced" if not held else "written" if was_written else "conflict"


def _save(write: StateSave) -> tuple[Any, ...]:
    claim, ttl_s = write.claim, capped(write.ttl_s)
    return claim.runner, claim.seat, claim.epoch, write.key, write.value, write.version, ttl_s, write.keep


def _saved(_: StateSave, row: Sequence[Any]) -> Written:
    _, held, was_written = row
    return written(held=held, was_written=was_written)


WAYS: Mapping[str, Way] = {"save_state": (_save, _saved), **messages.SINGLE, **jobs.SINGLE, **units.SINGLE}
"""The values of each statement, and the reader of its result."""
