"""Instants as the server sends them: those beyond Python's calendar are its ends, and all others are exact."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from coterie.storage.postgres.instants import _FIRST, _FIRST_US, _INFINITY_US, _LAST, _LAST_US, _decoded, _encoded

ENDLESS, BEGINNINGLESS = (_INFINITY_US,), (-_INFINITY_US - 1,)


@pytest.mark.parametrize(
    "at",
    [
        datetime(2000, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2025, 6, 1, 12, 30, 0, 1, tzinfo=timezone(timedelta(hours=5, minutes=45))),
        _FIRST + timedelta(microseconds=1),
        _LAST - timedelta(microseconds=1),
    ],
)
def test_an_instant_comes_back_to_the_microsecond(at: datetime) -> None:
    assert _decoded(_encoded(at)) == at


def test_the_origin_is_that_of_the_server() -> None:
    assert _encoded(datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC)) == (1_000_000,)


@pytest.mark.parametrize(
    ("us", "at"), [(_FIRST_US, _FIRST), (BEGINNINGLESS[0], _FIRST), (_LAST_US, _LAST), (ENDLESS[0], _LAST)]
)
def test_what_is_beyond_the_calendar_is_its_end(us: int, at: datetime) -> None:
    assert _decoded((us,)) == at


@pytest.mark.parametrize(
    ("at", "sent"),
    [
        (_FIRST, BEGINNINGLESS),
        (_LAST, ENDLESS),
        (datetime.min, BEGINNINGLESS),  # noqa: DTZ901 the driver's infinities
        (datetime.max, ENDLESS),  # noqa: DTZ901
    ],
)
def test_the_ends_are_infinite(at: datetime, sent: tuple[int]) -> None:
    assert _encoded(at) == sent


def test_a_date_is_its_midnight_and_an_instant_without_a_zone_is_local() -> None:
    local = datetime(2025, 6, 1)  # noqa: DTZ001 that is what is meant
    assert _encoded(date(2025, 6, 1)) == _encoded(local) == _encoded(local.astimezone(UTC))


@pytest.mark.parametrize("value", ["2025-06-01", 7, None])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="expected a datetime"):
        _encoded(value)
