"""The judge of ticks accepts what is right and rejects what is wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from coterie.storage.contracts.ticks import TickRow
from tests.cluster.cron_history import BodyStart, due, judge, late_s

BEGAN = 1_800_000_000


def at(second: float) -> datetime:
    return datetime.fromtimestamp(BEGAN + second, UTC)


def row(second: int, **more: Any) -> TickRow:
    told: dict[str, Any] = {
        "until": at(second), "count": 1, "seq": 0, "epoch": 1, "attempt": 1, "outcome": "ran", "reason": "",
        "errors": (), "runner": "r", "claimed_at": at(second), "ended_at": None, "late_s": None, "took_s": None,
        "note": "", "done": None, "total": None,
    }  # fmt: skip
    return TickRow(name="bell", kind="scheduled", at=at(second), **(told | more))


def skipped(first: int, last: int, **more: Any) -> TickRow:
    told: dict[str, Any] = {"until": at(last), "count": last - first + 1, "attempt": 0, "reason": "stale"}
    return row(first, outcome="skipped", **(told | more))


def ring(second: int, *, attempt: int = 1, epoch: int = 1) -> BodyStart:
    return BodyStart(BEGAN + second, attempt, epoch, BEGAN + second + attempt / 100)


ROWS = [row(1), row(2, attempt=2, epoch=2), skipped(3, 5, epoch=2), row(6, epoch=2)]
RINGS = [ring(1), ring(2), ring(2, attempt=2, epoch=2), ring(6, epoch=2)]


def judged(rows: list[TickRow], rings: list[BodyStart]) -> dict[str, int]:
    return judge(rows, rings, since=at(0.5), until=at(6.2))


def test_ticks_are_counted_from_the_first_to_the_last() -> None:
    assert due(at(0.5), at(2.9)) == [BEGAN + 1, BEGAN + 2]
    assert due(at(0), at(20), every_s=10) == [BEGAN, BEGAN + 10, BEGAN + 20]


def test_a_tick_that_was_begun_again_and_ticks_that_share_a_row_are_right() -> None:
    assert judged(ROWS, RINGS) == {"ran": 3, "stale": 3, "again": 1}
    assert judged([*ROWS, row(7, outcome=None)], RINGS)["ran"] == 3, "what comes later is not judged"
    assert judged(ROWS, [each for each in RINGS if each != ring(2)])["again"] == 1, "it died before its body"
    assert late_s(RINGS, since_s=BEGAN + 2) == pytest.approx([0.02, 0.01])


@pytest.mark.parametrize(
    ("rows", "rings", "why"),
    [
        ([*ROWS[:2], *ROWS[3:]], RINGS, "is lost"),
        ([*ROWS, row(0)], RINGS, "was invented"),
        ([*ROWS, row(4)], RINGS, "has two outcomes"),
        ([row(1, outcome=None), *ROWS[1:]], RINGS, "has no outcome"),
        ([*ROWS[:2], skipped(3, 5, count=2), ROWS[3]], RINGS, "covers 3"),
        (ROWS, [*RINGS, ring(0)], "for nobody"),
        (ROWS, [*RINGS, ring(4)], "skipped and rang"),
        (ROWS, [*RINGS, ring(1, epoch=2)], "ran twice"),
        (ROWS, [*RINGS, ring(6, attempt=2, epoch=2)], "two attempts by one holder"),
        (ROWS, [*RINGS, ring(6, attempt=2, epoch=3)], "another attempt"),
        (ROWS, RINGS[1:], "another attempt"),
        ([row(1, epoch=2), *ROWS[1:]], RINGS, "another holder"),
    ],
)
def test_inv_c1_what_is_lost_doubled_or_without_right_is_found(
    rows: list[TickRow], rings: list[BodyStart], why: str
) -> None:
    with pytest.raises(AssertionError, match=why):
        judged(rows, rings)
