"""Seats that this runner does not take for a while, because it resigned them, failed on them or cannot start them.

resigned   asked to release the seat: left to others, if there are any and none of them offers it back
failed     its work failed here until its `retry` was used up: not taken, even if no other runner exists
refused    its work cannot start with this program: not taken for as long as this incarnation lives

Each exclusion of a seat lasts twice as long as the one before, from `FIRST_NS` to `LONGEST_NS`. After `GOOD_NS` without
another one the next lasts `FIRST_NS` again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Cause = Literal["resigned", "failed", "refused"]

FIRST_NS = 10_000_000_000
"""Longer than the 5 s for which the next in order leaves a free seat to its target [m1]: another runner gets its turn
even if the offer was lost."""
LONGEST_NS = 300_000_000_000
"""When the cause has gone everywhere, work resumes at most this much later."""
GOOD_NS = 60_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Why and until when this runner does not take a seat.

    Args:
        times: How many exclusions in a row.
        until_ns: None: as long as this incarnation lives.
        error: What failed; empty: nothing, the runner was asked to resign.
    """

    cause: Cause
    times: int
    until_ns: int | None
    error: str = ""

    def applies(self, now_ns: int, *, has_others: bool, is_offered: bool) -> bool:
        """Whether the seat must not be taken now.

        Args:
            now_ns: The steady clock.
            has_others: Whether another runner may hold the seat.
            is_offered: Whether another runner has just released it for this one to take.
        """
        if self.until_ns is None:
            return True
        if now_ns >= self.until_ns:
            return False
        return self.cause == "failed" or (has_others and not is_offered)


class Exclusions:
    """The exclusions of one runner, by seat."""

    def __init__(self) -> None:
        self._of: dict[str, Exclusion] = {}

    def add(self, seat: str, now_ns: int, *, cause: Cause, error: str = "") -> Exclusion:
        """Exclude a seat from now on. A refused seat stays refused."""
        before = self._of.get(seat)
        if before is not None and before.until_ns is None:
            return before
        is_repeated = before is not None and before.until_ns is not None and now_ns - before.until_ns < GOOD_NS
        times = before.times + 1 if before is not None and is_repeated else 1
        until_ns = None if cause == "refused" else now_ns + min(FIRST_NS << min(times - 1, 32), LONGEST_NS)
        self._of[seat] = found = Exclusion(cause=cause, times=times, until_ns=until_ns, error=error)
        return found

    def lift(self, seat: str, now_ns: int) -> None:
        """End the exclusion of a resigned seat: another runner has held it since, and released it too."""
        found = self._of.get(seat)
        if found is not None and found.cause == "resigned" and found.until_ns is not None:
            self._of[seat] = replace(found, until_ns=min(found.until_ns, now_ns))

    def applies(self, seat: str, now_ns: int, *, has_others: bool, is_offered: bool = False) -> bool:
        """Whether a seat must not be taken now."""
        found = self._of.get(seat)
        return found is not None and found.applies(now_ns, has_others=has_others, is_offered=is_offered)

    def lasting(self, now_ns: int) -> dict[str, Exclusion]:
        """The exclusions that are not over, by seat."""
        return {seat: each for seat, each in self._of.items() if each.until_ns is None or now_ns < each.until_ns}
