"""When a run begins, how long it may take, and what it is found by: the options of `start_workflow` (W14)."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from coterie.errors import InvalidArgument
from coterie.kernel.clock import require_instant
from coterie.kernel.durations import Duration, to_seconds
from coterie.work.tags import tags_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coterie.storage.contracts.units import UnitStart

_LONGEST_S = 36_525 * 86_400.0
"""A hundred years: later instants are not ones that every database can store."""


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a start, checked. See `storage.contracts.units.UnitStart`."""

    again: bool = False
    starts_at: datetime | None = None
    delay_s: float | None = None
    timeout_s: float | None = None
    tags: str | None = None
    debounced: bool = False
    latest_at: datetime | None = None
    latest_s: float | None = None

    def of(self, unit: UnitStart) -> UnitStart:
        """A start with these options."""
        return unit if self is AT_ONCE else msgspec.structs.replace(unit, **msgspec.structs.asdict(self))


AT_ONCE = StartOptions()
"""Those of a start without any."""


def start_options(
    *,
    again: bool = False,
    at: datetime | None = None,
    delay: Duration | None = None,
    timeout: Duration | None = None,
    tags: Mapping[str, str] | None = None,
    debounce: Duration | None = None,
    at_latest: datetime | Duration | None = None,
) -> StartOptions:
    """The options of `start_workflow`.

    Raises:
        TypeError: Two of them contradict each other.
        ValueError: An instant has no time zone, or a duration is none.
        InvalidArgument: An instant is too far away, or the tags are too many or too long.
    """
    if (again, at, delay, timeout, tags, debounce, at_latest) == (False, None, None, None, None, None, None):
        return AT_ONCE
    if at is not None and delay is not None:
        raise TypeError("start_workflow has at= and delay=: give one of them")
    if debounce is not None and (again or at is not None or delay is not None):
        raise TypeError(
            "start_workflow has debounce= and at=, delay= or again=: debounce= says when it begins, also again"
        )
    if at_latest is not None and debounce is None:
        raise TypeError("start_workflow has at_latest= without debounce=: write at= for one instant")
    latest_at, latest = (at_latest, None) if isinstance(at_latest, datetime) else (None, at_latest)
    pairs = tags_of(tags, what="start_workflow")
    return StartOptions(
        again=again,
        starts_at=_instant(at, "at"),
        delay_s=_length_s(debounce, "debounce") if delay is None else _length_s(delay, "delay", allow_zero=True),
        timeout_s=_length_s(timeout, "timeout"),
        tags=msgspec.json.encode(dict(pairs)).decode() if pairs else None,
        debounced=debounce is not None,
        latest_at=_instant(latest_at, "at_latest"),
        latest_s=_length_s(latest, "at_latest"),
    )


def _instant(at: datetime | None, what: str) -> datetime | None:
    if at is None:
        return None
    if at.tzinfo is None:
        raise ValueError(f"{what} is {at}, which has no time zone: add one, as in datetime.now(UTC)")
    require_instant(at, what=f"{what} of start_workflow")
    return at


def _length_s(length: Duration | None, what: str, *, allow_zero: bool = False) -> float | None:
    if length is None:
        return None
    length_s = to_seconds(length, what=what, allow_zero=allow_zero)
    if length_s > _LONGEST_S:
        shown = f"{length_s / 86_400:,.0f} days"
        problem = f"it may be {_LONGEST_S / 86_400:,.0f} days"
        raise InvalidArgument(what=f"{what} of start_workflow", value=shown, problem=problem)
    return length_s
