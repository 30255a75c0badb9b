"""Batching of tick writes: the statements' arrays, and their results. Pure. A statement has one write per cron."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeGuard, cast, get_args

import msgspec

from coterie.kernel.text import storable
from coterie.storage.contracts.ticks import ClaimResult, TickClaim, TickNote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Ticking = TickClaim | TickNote
Shape = Literal["claim_ticks", "note_ticks"]
"""The statement that carries a write; its name in ticks.sql."""

_SHAPES = frozenset(get_args(Shape))


def is_shape(shape: str) -> TypeGuard[Shape]:
    """Whether it is a statement of this module."""
    return shape in _SHAPES


def shape_of(write: Ticking) -> Shape:
    """The statement that a write needs."""
    return "claim_ticks" if isinstance(write, TickClaim) else "note_ticks"


def values(shape: Shape, writes: Sequence[Ticking]) -> list[Any]:
    """The arrays that the statement takes after the claims."""
    if shape == "claim_ticks":
        return _claimed(cast("Sequence[TickClaim]", writes))
    return _noted(cast("Sequence[TickNote]", writes))


def results(shape: Shape, writes: Sequence[Ticking], rows: Iterable[Iterable[Any]]) -> list[Any]:
    """One result per write, from the statement's rows."""
    told: dict[str, Any] = {}
    for seat, *row in rows:
        told[seat] = ClaimResult(*row) if shape == "claim_ticks" else row[0]
    return [told[write.key] for write in writes]


def _claimed(writes: Sequence[TickClaim]) -> list[list[Any]]:
    verdicts = [(write.key, verdict) for write in writes for verdict in write.verdicts]
    return [
        *([getattr(write, name) for write in writes] for name in ("name", "schedule", "last", "delay_s")),
        [seat for seat, _ in verdicts],
        *([getattr(verdict, name) for _, verdict in verdicts] for name in ("at", "until", "count", "reason")),
    ]


def _noted(writes: Sequence[TickNote]) -> list[list[Any]]:
    return [
        *([getattr(write, name) for write in writes] for name in ("name", "kind", "at", "seq", "attempt")),
        *([getattr(write, name) for write in writes] for name in ("outcome", "again")),
        [_errors(write) for write in writes],
        [_news(write) for write in writes],
        *([getattr(write, name) for write in writes] for name in ("late_s", "took_s")),
        [storable(write.note) for write in writes],
        *([getattr(write, name) for write in writes] for name in ("done", "total", "reason")),
    ]


def _errors(write: TickNote) -> str | None:
    if write.errors is None:
        return None
    return msgspec.json.encode([storable(error) for error in write.errors]).decode()


def _news(write: TickNote) -> str | None:
    """The cron's new last error; None: there is no new one."""
    failed = write.again or write.outcome == "failed"
    return storable(write.errors[-1]) if failed and write.errors else None
