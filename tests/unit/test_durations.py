"""Durations: what is accepted, what is refused and how, and that formatting reads back exactly."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import ConfigurationError
from coterie.kernel.durations import format_duration, to_seconds, to_timedelta

LONGEST = timedelta.max


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (timedelta(minutes=3), timedelta(minutes=3)),
        (30, timedelta(seconds=30)),
        (0.25, timedelta(milliseconds=250)),
        ("250ms", timedelta(milliseconds=250)),
        ("30s", timedelta(seconds=30)),
        ("10m", timedelta(minutes=10)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("7d", timedelta(days=7)),
        ("1d2h3m4s5ms", timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5)),
        ("1m5ms", timedelta(minutes=1, milliseconds=5)),
        ("1.5s", timedelta(seconds=1.5)),
        ("0.1s", timedelta(milliseconds=100)),
        ("90m", timedelta(hours=1.5)),
        ("0.001ms", timedelta(microseconds=1)),
    ],
)
def test_a_duration_is_a_timedelta_seconds_or_text_with_units(value: Any, expected: timedelta) -> None:
    assert to_timedelta(value, what="timeout") == expected


def test_the_error_of_a_missing_unit_says_what_to_write() -> None:
    with pytest.raises(ConfigurationError) as caught:
        to_timedelta("30", what="COTERIE_HEARTBEAT")
    assert caught.value.message == 'COTERIE_HEARTBEAT is "30": a duration needs a unit'
    assert caught.value.hint == 'write "30s" (also: 250ms, 10m, 1h30m)'


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("1.5", 'x is "1.5": a duration needs a unit'),
        ("", 'x is "": that cannot be read as a duration'),
        ("s", 'x is "s": that cannot be read as a duration'),
        ("1h30", 'x is "1h30": that cannot be read as a duration'),
        ("30 s", 'x is "30 s": that cannot be read as a duration'),
        (" 30s", 'x is " 30s": that cannot be read as a duration'),
        ("30s\n", 'x is "30s\n": that cannot be read as a duration'),
        ("30S", 'x is "30S": that cannot be read as a duration'),
        ("2w", 'x is "2w": that cannot be read as a duration'),
        ("30m1h", 'x is "30m1h": that cannot be read as a duration'),
        ("1s1s", 'x is "1s1s": that cannot be read as a duration'),
        ("٣s", 'x is "٣s": that cannot be read as a duration'),
        ("1e3s", 'x is "1e3s": that cannot be read as a duration'),
        ("nan", 'x is "nan": that cannot be read as a duration'),
        ("-5s", 'x is "-5s": a duration cannot be negative'),
        (-5, "x is -5: a duration cannot be negative"),
        (timedelta(seconds=-1), "x is -1 day, 23:59:59: a duration cannot be negative"),
        (True, "x is True: a duration is text, seconds or a timedelta, not bool"),
        (None, "x is None: a duration is text, seconds or a timedelta, not NoneType"),
        (float("nan"), "x is nan: a duration must be finite"),
        (float("inf"), "x is inf: a duration must be finite"),
        (1e300, "x is 1e+300: a duration that long cannot be kept"),
        ("1000000000d", 'x is "1000000000d": a duration that long cannot be kept'),
        (0, "x is 0: it must be longer than zero"),
        ("0s", 'x is "0s": it must be longer than zero'),
        (1e-9, "x is 1e-09: it must be longer than zero"),
    ],
)
def test_what_is_no_duration_is_refused_with_its_value(value: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        to_timedelta(value, what="x")
    assert caught.value.message == problem
    assert caught.value.hint


@pytest.mark.parametrize("value", ["9" * 100_000 + "s", "9" * 100_000, "-" + "9" * 100_000 + "s", 10**400])
def test_endless_digits_are_refused_in_a_short_text(value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        to_timedelta(value, what="x")
    assert len(caught.value.message) < 150


@pytest.mark.parametrize("value", [0, 0.0, "0s", "0ms", timedelta()])
def test_zero_is_accepted_where_it_makes_sense(value: Any) -> None:
    assert to_timedelta(value, what="delay", allow_zero=True) == timedelta()
    assert to_seconds(value, what="delay", allow_zero=True) == 0.0


def test_seconds_are_given_as_a_float() -> None:
    assert to_seconds("1m0.5s", what="timeout") == 60.5


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (timedelta(hours=1, minutes=30), "1h30m"),
        (timedelta(milliseconds=250), "250ms"),
        (timedelta(seconds=6), "6s"),
        (timedelta(seconds=1.5), "1.5s"),
        (timedelta(days=7), "7d"),
        (timedelta(hours=1, milliseconds=20), "1h20ms"),
        (timedelta(microseconds=1), "0.001ms"),
        (timedelta(seconds=10, microseconds=10), "10.00001s"),
        (timedelta(), "0s"),
    ],
)
def test_a_length_is_formatted_as_one_would_write_it(length: timedelta, text: str) -> None:
    assert format_duration(length) == text


@settings(deadline=None)
@given(st.timedeltas(min_value=timedelta(), max_value=LONGEST))
def test_what_is_formatted_reads_back_to_the_microsecond(length: timedelta) -> None:
    assert to_timedelta(format_duration(length), what="x", allow_zero=True) == length


@settings(deadline=None)
@given(st.text(alphabet="0123456789.dhms -", max_size=12) | st.text(max_size=80))
def test_any_text_is_read_or_refused_by_our_own_error(text: str) -> None:
    try:
        read = to_timedelta(text, what="x", allow_zero=True)
    except ConfigurationError:
        return
    assert read >= timedelta()


def test_a_negative_length_is_not_formatted() -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        format_duration(timedelta(seconds=-1))
