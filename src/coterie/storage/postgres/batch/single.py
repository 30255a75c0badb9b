"""Statements for a write that is alone in its group: plain values instead of arrays, one row instead of many. Pure.

A lone write is pure latency for its caller. Without arrays the server needs a fifth to a half less time, and so does
this process. The forms stand beside those for many, in `messages.py`, `units.py` and `states.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from coterie.storage.contracts.messages import Commit, Insert
from coterie.storage.contracts.units import StepWrite
from coterie.storage.interface import StateSave
from coterie.storage.postgres.batch import messages, states, units

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coterie.storage.interface import Write
    from coterie.storage.postgres.batch.states import Way

Shape = messages.SingleShape | units.SingleShape | states.SingleShape
"""The statement that carries a lone write."""

WAYS: Mapping[str, Way] = {
    **states.SINGLE,
    **messages.SINGLE,
    **units.SINGLE,
}
"""The values of each statement, and the reader of its result."""


def shape_of(write: Write) -> Shape | None:
    """The statement for a lone write; None: use the one for many."""
    if isinstance(write, StepWrite):
        return units.single_shape_of(write)
    if isinstance(write, Insert | Commit):
        return messages.single_shape_of(write)
    if isinstance(write, StateSave):
        return states.single_shape_of(write)
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
