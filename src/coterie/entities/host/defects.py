"""Defects: consecutive calls of one entity type that failed by undeclared errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from coterie.entities.definition import EntityType


class DefectStreak(NamedTuple):
    """Failed calls of a type since the last success."""

    calls: int
    error: str
    """The type of the last error."""
    for_s: float
    """Seconds since the first of them."""
    ago_s: float
    """Seconds since the last of them."""
    is_first: bool
    """Whether no call has succeeded here before."""


class Defects:
    """Counts the failed calls of one type since the last success. A declared error counts as a success.

    Successes are counted for the metrics anyway, so this adds no cost to a successful call.
    """

    def __init__(self, entity_type: EntityType[Any]) -> None:
        self._type = entity_type
        self._began = self._succeeded = self._successes()
        self._calls = 0
        self._error = ""
        self._first_s = self._last_s = 0.0

    def record(self, error: BaseException, *, now_s: float) -> None:
        """Record a failed call."""
        self._update()
        if not self._calls:
            self._first_s = now_s
        self._calls += 1
        self._last_s = now_s
        self._error = type(error).__name__

    def streak(self, *, now_s: float) -> DefectStreak | None:
        """The failures since the last success. Returns None if there are none."""
        self._update()
        if not self._calls:
            return None
        is_first = self._succeeded == self._began
        return DefectStreak(self._calls, self._error, now_s - self._first_s, now_s - self._last_s, is_first)

    def _update(self) -> None:
        successes = self._successes()
        if successes != self._succeeded:
            self._succeeded, self._calls = successes, 0

    def _successes(self) -> float:
        return sum(rpc.counted.successes for rpc in self._type.rpcs.values())
