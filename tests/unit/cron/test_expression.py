"""Expressions that cannot be read: what is said, and where it points (INV-C3)."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coterie.cron.schedule import Schedule
from coterie.errors import ScheduleError
from tests.unit.cron.oracle import START, Meaning, expressions


def refused(expression: str) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        Schedule(expression)
    return caught.value


@pytest.mark.parametrize(
    ("expression", "problem", "marks"),
    [
        ("0 25 * * *", "hour 25 is out of range 0-23", "  ^^"),
        ("60 * * * *", "minute 60 is out of range 0-59", "^^"),
        ("99 0 3 * * *", "second 99 is out of range 0-59", "^^"),
        ("0 0 0 * *", "day of month 0 is out of range 1-31", "    ^"),
        ("0 0 1 13 *", "month 13 is out of range 1-12", "      ^^"),
        ("0 0 * * 8", "day of week 8 is out of range 0-7", "        ^"),
        ("0  0 1 FOO *", 'month "FOO" cannot be read; it has JAN to DEC', "       ^^^"),
        ("0 0 * * MO-FR", 'day of week "MO" cannot be read; it has SUN to SAT', "        ^^"),
        ("0 0 * * MON-FR", 'day of week "FR" cannot be read; it has SUN to SAT', "            ^^"),
        ("1,2,x * * * *", 'minute "X" cannot be read', "    ^"),
        ("1,,2 * * * *", "minute has an empty entry", "  ^"),
        ("-1 * * * *", "minute lacks a value", "^^"),
        ("1- * * * *", "minute lacks a value", "^^"),
        ("*/0 * * * *", "minute step 0 is out of range 1-59", "  ^"),
        ("*/x * * * *", 'minute step "X" is not a whole number', "  ^"),
        ("*/ * * * *", 'minute step "" is not a whole number', "  ^"),
        ("*/90 * * * *", "minute step 90 is out of range 1-59", "  ^^"),
        ("0 22-2 * * *", "hour range 22-2 ends before it begins", "  ^^^^"),
        ("0 0 ? * MON", 'day of month has a "?", which cron does not know', "    ^"),
        ("0 0 15W * *", 'day of month "15W" cannot be read', "    ^^^"),
        ("0 0 L-3 * *", 'day of month "L" cannot be read', "    ^"),
        ("0 0 L/2 * *", 'day of month "L" cannot be read', "    ^"),
        ("0 0 * * L", "day of week lacks a value", "        ^"),
        ("0 0 * * MON#6", 'day of week "6" is not one of the 1st to the 5th of a month', "            ^"),
        ("0 0 * * #2", "day of week lacks a value", "        ^^"),
        ("0 0 31 2 *", "no such day ever comes", "    ^^^^^^"),
        ("0 0 30,31 feb *", "no such day ever comes", "    ^^^^^^^^^^^"),
        ("0 0 31 4,6,9,11 *", "no such day ever comes", "    ^^^^^^^^^^^^^"),
        ("0 0 */10 2 MON#5", "no such day ever comes", "    ^^^^^^^^^^^^"),
        ("* * *", "it has 3 fields, not five or six", "^^^^^"),
        ("3", "it has 1 field, not five or six", "^"),
        ("", "it has 0 fields, not five or six", "^"),
        ("0 0 0 1 1 * 2026", "it has 7 fields, not five or six", "^" * 16),
        ("@reboot", "@reboot is not known", "^^^^^^^"),
        ("@dayly", "@dayly is not known", "^^^^^^"),
        ("@daily 3", "nothing can follow @daily", "       ^"),
        ("@every", 'the interval is "": that cannot be read as a duration', "      ^"),
        ("@every 90", 'the interval is "90": a duration needs a unit', "       ^^"),
        ("@every 500ms", "an interval is whole seconds, from 1s to 366d", "       ^^^^^"),
        ("@every 0s", 'the interval is "0s": it must be longer than zero', "       ^^"),
        ("@every 367d", "an interval is whole seconds, from 1s to 366d", "       ^^^^"),
        ("٣ * * * *", "it has a character that no schedule has", "^"),
        ("0 0 * * ſUN", "it has a character that no schedule has", "        ^"),
        ("0\0 0 * * *", "it has a character that no schedule has", " ^"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_points_at_it(expression: str, problem: str, marks: str) -> None:
    error = refused(expression)
    assert error.problem == problem
    assert error.pointer.splitlines()[1] == marks
    assert error.hint


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("*/90 * * * *", 'for every 90m, whatever the clock shows, write "@every 90m"'),
        ("0 22-2 * * *", 'write "22-23,0-2"'),
        ("0 0 ? * MON", 'write "*" in its place'),
        ("@dayly", 'did you mean "@daily"?'),
        ("@reboot", "what runs when a leader begins is a singleton"),
        ("@every 90", 'write for example "@every 90s"'),
    ],
)
def test_a_refusal_says_what_to_write(expression: str, hint: str) -> None:
    assert refused(expression).hint == hint


def test_what_hints_and_problems_recommend_can_be_read() -> None:
    """Whatever stands in quotes in a hint is a schedule itself."""
    texts = ["60 * * * *", "0 25 * * *", "0 0 32 * *", "0 0 1 13 *", "0 0 * * 8", "99 0 3 * * *", "* * *", "@every 90"]
    for text in texts:
        quoted = re.findall('"([^"]+)"', refused(text).hint)
        assert quoted
        for each in quoted:
            Schedule(each)


def test_a_very_long_text_is_refused_and_not_repeated() -> None:
    error = refused("1," * 5000 + "1 * * * *")
    assert error.problem == "it has 10009 characters, the most are 1000"
    assert len(str(error)) < 300


def test_six_fields_with_all_their_values_written_out_can_be_read() -> None:
    every = [
        ",".join(map(str, range(low, high + 1))) for low, high in [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7)]
    ]
    schedule = Schedule(" ".join(every))
    assert schedule.count(START, START.replace(year=START.year + 1)) == 365 * 86_400


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text("0123456789*/,-#?@LW MONJAevry\t\n\0é", max_size=40))
@example("0 0 31 2 1#")
@example("9" * 900 + " * * * *")
@example("*" * 1000)
@example("@every " + "9" * 900 + "s")
def test_junk_is_a_schedule_or_refused_with_a_place_inside_of_it(text: str) -> None:
    try:
        schedule = Schedule(text)
    except ScheduleError as error:
        if not 0 <= error.position <= len(text) or error.length < 1:
            raise
    else:
        assert schedule.previous(START) < START < schedule.next_after(START)
        assert schedule.explain()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(expressions() | expressions(seconds=True), st.integers(0, 60), st.sampled_from("xX!%&;W?#"))
def test_a_character_that_does_not_belong_there_is_refused_where_it_is(meaning: Meaning, where: int, odd: str) -> None:
    """The marks touch the field in which it was put."""
    where = min(where, len(meaning.text) - 1)
    if meaning.text[where] == " ":
        where += 1
    text = meaning.text[:where] + odd + meaning.text[where:]
    begin = text.rfind(" ", 0, where) + 1
    end = (text + " ").find(" ", where)
    try:
        Schedule(text)
    except ScheduleError as error:
        impossible = error.problem == "no such day ever comes"
        if not impossible and not (begin <= error.position < end):
            raise
    else:
        assert odd in "#W"  # MON#2, LW
