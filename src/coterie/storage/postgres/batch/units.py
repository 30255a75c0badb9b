"""Batching of durable work: the statements' arrays, and their results. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeGuard, cast, get_args

from coterie.storage.contracts.units import StepResult, StepRow, StepWrite, UnitEnd, UnitEndResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from coterie.storage.postgres.batch.single import Way

Working = StepWrite | UnitEnd
Shape = Literal["add_steps", "write_steps", "end_units"]
"""The statement that carries a write; its name in units.sql."""

SingleShape = Literal["add_step"]
"""The statement that carries a write that is alone in its group."""

_SHAPES = frozenset(get_args(Shape))
_STEP = (
    *("key", "unit", "branch", "position", "kind", "name", "digest", "done", "value", "error", "due_s"),
    *("began_at", "attempts", "runner", "life"),
)
_END = ("unit", "status", "value", "error", "outcome", "life", "retries", "held", "failed_steps")


def is_shape(shape: str) -> TypeGuard[Shape]:
    """Whether it is a statement of this module."""
    return shape in _SHAPES


def shape_of(write: Working) -> Shape:
    """The statement that a write needs."""
    return "add_steps" if isinstance(write, StepWrite) else "end_units"


def single_shape_of(write: StepWrite) -> SingleShape | None:
    """The statement for a lone step that has succeeded, as nearly all do; None: use the one for many."""
    is_plain = write.kind == "step" and write.done and write.error is None and write.due_s is None
    return "add_step" if is_plain else None


def values(shape: Shape, writes: Sequence[Working]) -> list[list[Any]]:
    """The arrays that the statement takes after the claims."""
    return [[getattr(write, name) for write in writes] for name in (_END if shape == "end_units" else _STEP)]


def results(shape: Shape, writes: Sequence[Working], rows: Iterable[Iterable[Any]]) -> list[Any]:
    """One result per write, from the statement's rows; None: the row does not tell."""
    if shape == "add_steps":
        return _added(cast("Sequence[StepWrite]", writes), rows)
    tell = _ended if shape == "end_units" else _stepped
    told = {key: tell(*row) for key, *row in rows}
    return [told[write.key] for write in writes]


def is_fenced(result: Any) -> bool:
    """Whether the fence has refused the write."""
    return isinstance(result, StepResult | UnitEndResult) and result.told == "fenced"


def _added(writes: Sequence[StepWrite], rows: Iterable[Iterable[Any]]) -> list[StepResult | None]:
    told = {(unit, branch, position): (at, due_at) for unit, branch, position, at, due_at in rows}
    found: list[StepResult | None] = []
    for write in writes:
        at, due_at = told.get((write.unit, write.branch, write.position), (None, None))
        found.append(None if at is None else StepResult("written", write.row(due_at), at))
    return found


def _stepped(held: Any, goes_on: Any, written: Any, now: Any, *row: Any) -> StepResult:
    if not held or not goes_on:
        return StepResult("over" if held else "fenced", None, now)
    stored = StepRow(**dict(zip(StepRow.__struct_fields__, row, strict=True)))
    return StepResult("written" if written else "there", stored, now)


def _ended(held: Any, written: Any, wake: Any) -> UnitEndResult:
    if not held:
        return UnitEndResult("fenced")
    return UnitEndResult("written" if written else "over", cast("str | None", wake))


# The single form


def _add(write: StepWrite) -> tuple[Any, ...]:
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
        write.began_at,
        write.attempts,
        write.runner,
        write.life,
    )


def _added_alone(write: StepWrite, row: Sequence[Any]) -> StepResult:
    return StepResult("written", write.row(None), row[0])


SINGLE: dict[str, Way] = {"add_step": (_add, _added_alone)}
"""The values of the single form, and the reader of its result."""
