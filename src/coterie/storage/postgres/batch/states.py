"""The single form of a state's save, and what it shares with the batch form in `plan.py`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coterie.storage.interface import StateSave, Written

    Way = tuple[Callable[[Any], tuple[Any, ...]], Callable[[Any, Any], Any]]

SingleShape = Literal["save_state"]

LONGEST_S = 9e9
"""A longer lifetime would end after the last day that the database knows."""


def single_shape_of(write: StateSave) -> SingleShape | None:
    """The statement for a lone save that follows another, and has a history or an expiry; None: the one for many."""
    return "save_state" if write.version and (write.keep or write.ttl_s is not None) else None


def capped(ttl_s: float | None) -> float | None:
    """A lifetime that the database can add to its clock."""
    return None if ttl_s is None else min(ttl_s, LONGEST_S)


def written(*, held: bool, was_written: bool) -> Written:
    """The result of a save: whether its seat was held, and whether it was written."""
    return "fenced" if not held else "written" if was_written else "conflict"


def _save(write: StateSave) -> tuple[Any, ...]:
    claim = write.claim
    return (
        claim.runner,
        claim.seat,
        claim.epoch,
        write.key,
        write.value,
        write.version,
        capped(write.ttl_s),
        write.keep,
    )


def _saved(_: StateSave, row: Sequence[Any]) -> Written:
    _, held, was_written = row
    return written(held=held, was_written=was_written)


SINGLE: dict[str, Way] = {"save_state": (_save, _saved)}
"""The values of the single form, and the reader of its result."""
