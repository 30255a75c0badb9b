"""The ticks to come, with a word where clocks change (C7)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from coterie.cron.api import preview
from coterie.cron.schedule import Schedule


def shown(expression: str, after: str, count: int, timezone: str = "Europe/Zurich") -> list[str]:
    ticks = preview(
        Schedule(expression, timezone=timezone), after=datetime.fromisoformat(after).replace(tzinfo=UTC), count=count
    )
    assert all(tick.at == tick.local.astimezone(UTC) for tick in ticks)
    return [f"{tick.local:%a %d %H:%M %Z} {tick.at:%H:%M} {tick.note}".rstrip() for tick in ticks]


def test_the_ticks_to_come_say_where_clocks_go_forward() -> None:
    assert shown("0 3 * * *", "2026-03-27T12:00", 4) == [
        "Sat 28 03:00 CET 02:00",
        "Sun 29 03:00 CEST 01:00 clocks go forward at 02:00",
        "Mon 30 03:00 CEST 01:00",
        "Tue 31 03:00 CEST 01:00",
    ]


def test_and_where_they_go_back() -> None:
    assert shown("0 * * * *", "2026-10-24T23:30", 3) == [
        "Sun 25 02:00 CEST 00:00",
        "Sun 25 02:00 CET 01:00 clocks go back at 03:00",
        "Sun 25 03:00 CET 02:00",
    ]


def test_a_change_on_another_day_is_told_with_its_day() -> None:
    assert shown("0 1 * * *", "2026-03-28T22:00", 2) == [
        "Sun 29 01:00 CET 00:00",
        "Mon 30 01:00 CEST 23:00 clocks go forward on Sun 29 Mar at 02:00",
    ]


@pytest.mark.parametrize("expression", ["@every 1h", "30 * * * *"])
def test_without_changes_there_is_nothing_to_say(expression: str) -> None:
    ticks = preview(Schedule(expression), after=datetime(2026, 3, 28, tzinfo=UTC), count=48)
    assert len(ticks) == 48
    assert not any(tick.note for tick in ticks)
