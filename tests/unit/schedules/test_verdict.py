"""What becomes of a row that is due, and which instants are a schedule's: pure (C9)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from coterie.schedules.timetable import NEVER, Timetable
from coterie.schedules.verdict import fire_of, message_of, outcomes_of
from coterie.storage.contracts.schedules import ScheduleRow, ScheduleTerms, timer_key
from coterie.storage.interface import Claim
from tests.contract.schedules import row as stored

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
CLAIM = Claim("r", "shard:default:0", 1)


def noon(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def row(
    schedule: str = "* * * * * *", *, since: datetime = NOON, last_s: float | None = None, **terms: Any
) -> ScheduleRow:
    made = ScheduleTerms(schedule=schedule, **terms)
    last_at = None if last_s is None else noon(last_s)
    next_at = Timetable(made, since).due_after(last_at or since)
    return stored(definition=made.encode(), since_at=since, next_at=next_at, last_at=last_at)


def fired(given: ScheduleRow, now: datetime, *, held_since: datetime = NOON - timedelta(days=9)) -> Any:
    return fire_of(given, CLAIM, held_since=held_since, now=now)


def told(fire: Any, given: ScheduleRow) -> list[tuple[float, int, str]]:
    """The new verdicts: the second after noon, how many, why not."""
    outcomes = outcomes_of(replace(given, outcomes=fire.outcomes))
    return [((each.at - NOON).total_seconds(), each.count, each.reason) for each in outcomes]


def test_an_instant_that_is_due_is_sent_and_the_next_one_is_known() -> None:
    given = row("*/10 * * * * *")
    fire = fired(given, noon(10))
    assert told(fire, given) == [(10, 1, "")]
    assert (fire.last_at, fire.next_at, fire.due_at) == (noon(10), noon(20), noon(10))
    assert [message.id for message in fire.sends] == [fire.last_id]
    assert fire.mark == given.mark


def test_instants_up_to_the_put_are_not_its_own() -> None:
    timetable = Timetable(ScheduleTerms(schedule="* * * * * *"), NOON)
    assert timetable.next_after(noon(-60)) == noon(1)
    assert timetable.previous(noon(1)) < noon(-60)
    assert timetable.count(noon(-60), noon(3)) == 2


def test_an_interval_is_counted_from_the_put() -> None:
    timetable = Timetable(ScheduleTerms(schedule="@every 7s"), noon(0.4))
    assert [timetable.next_after(noon(each)) for each in (0, 7, 8)] == [noon(7), noon(14), noon(14)]


def test_start_and_end_bound_a_schedule() -> None:
    timetable = Timetable(ScheduleTerms(schedule="* * * * * *", start=noon(5), end=noon(8)), NOON)
    assert list(timetable.between(noon(-9), noon(99))) == [noon(5), noon(6), noon(7)]
    assert (timetable.count(noon(-9), noon(99)), timetable.previous(noon(99))) == (3, noon(7))
    assert timetable.next_after(noon(7)) == NEVER
    given = row(last_s=6, end=noon(8))
    assert fired(given, noon(7)).next_at is None


def test_what_is_due_once_is_over_when_it_was_sent() -> None:
    given = row("", at=noon(5.25))
    fire = fired(given, noon(6))
    assert told(fire, given) == [(5.25, 1, "")]
    assert (fire.next_at, fire.is_over) == (None, False)
    timer = replace(given, key=timer_key("Account", "alice", "expire"))
    assert fired(timer, noon(6)).is_over
    assert Timetable(ScheduleTerms(at=noon(-5)), NOON).due_after(NOON) is None


@pytest.mark.parametrize(
    ("catch_up", "verdicts"),
    [
        ("latest", [(1, 4, "superseded"), (5, 1, "")]),
        ("all", [(1, 1, ""), (2, 1, ""), (3, 1, ""), (4, 1, ""), (5, 1, "")]),
        ("none", [(1, 5, "stale")]),
    ],
)
def test_what_was_missed_is_caught_up_with_as_it_says(catch_up: str, verdicts: list[Any]) -> None:
    given = row(catch_up=catch_up)
    assert told(fired(given, noon(5), held_since=noon(5.5)), given) == verdicts


def test_what_is_too_old_is_skipped() -> None:
    given = row("*/10 * * * * *", skip_if_older_than_s=15.0, catch_up="all")
    assert told(fired(given, noon(30)), given) == [(10, 1, "stale"), (20, 1, ""), (30, 1, "")]


def test_an_overlapping_instant_is_dropped_or_waits() -> None:
    skips = replace(row(overlap="skip", last_s=1), is_busy=True, last_id="m")
    fire = fired(skips, noon(2))
    assert (told(fire, skips), fire.sends, fire.asks) == ([(2, 1, "overlapping")], (), None)
    waits = replace(row(overlap="queue", last_s=1), is_busy=True, last_id="m")
    assert fired(waits, noon(2)) is None
    assert fired(replace(waits, is_busy=False), noon(2)).asks == "m"


def test_what_is_not_due_after_all_is_looked_at_later() -> None:
    """Its zone has changed, or a clock was set back."""
    given = replace(row("*/10 * * * * *"), next_at=noon(1))
    fire = fired(given, noon(2))
    assert (fire.due_at, fire.sends, fire.next_at, fire.outcomes) == (None, (), noon(10), "[]")


def test_the_last_twenty_verdicts_are_kept() -> None:
    given = row(catch_up="all")
    fire = fired(given, noon(50))
    assert len(fire.sends) == 50
    assert [each[0] for each in told(fire, given)] == list(range(31, 51))


def test_the_id_of_a_message_is_made_of_life_kind_and_instant() -> None:
    given = row()
    ids = {
        message_of(each, at, kind=kind).id
        for each in (given, replace(given, life=8), replace(given, key="schedule/other"))
        for at in (noon(1), noon(2))
        for kind in ("scheduled", "backfill")
    }
    assert len(ids) == 12
    assert message_of(given, noon(1)).id == message_of(replace(given, stamp=9), noon(1)).id
    assert message_of(given, noon(1)).id < message_of(replace(given, life=1), noon(2)).id, "ids sort by the instant"
    assert all(len(id_) == 32 and int(id_, 16) for id_ in ids)
