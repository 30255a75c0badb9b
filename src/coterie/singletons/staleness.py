"""Is a singleton well? Pure: by what is stored, at one moment of the database's clock (H1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from coterie.storage.contracts.executions import Execution

Sign = Literal["progress", "heartbeat", "execution"]


@dataclass(frozen=True, slots=True)
class Stale:
    """No sign for too long.

    Args:
        sign: Of what: progress where an interval is expected, else the sign of life; "execution": it never ran.
        silent_s: For how long.
        expected_s: How often there should be one.
    """

    sign: Sign
    silent_s: float
    expected_s: float

    def __str__(self) -> str:
        if self.sign == "execution":
            return f"never executed in {self.silent_s:.0f}s (expected every {self.expected_s:g}s)"
        return f"no {self.sign} for {self.silent_s:.0f}s (expected every {self.expected_s:g}s)"


def judge(execution: Execution, *, heartbeat_s: float, factor: float) -> Stale | None:
    """What is wrong with it, if anything: more than `factor` intervals have passed without a sign (S10).

    A takeover proves that a leader is alive, not that there was progress: where progress is expected it gives no
    grace. What never ran is measured from the day it became known.
    """
    expected_s = execution.expected_s
    if expected_s is None:
        return _stale("heartbeat", (execution.now - execution.alive_at).total_seconds(), heartbeat_s, factor)
    if execution.progress_at is None:
        sign: Sign = "execution" if execution.ran_at is None else "progress"
        return _stale(sign, (execution.now - execution.known_at).total_seconds(), expected_s, factor)
    return _stale("progress", (execution.now - execution.progress_at).total_seconds(), expected_s, factor)


def _stale(sign: Sign, silent_s: float, expected_s: float, factor: float) -> Stale | None:
    return Stale(sign, silent_s, expected_s) if silent_s > factor * expected_s else None
