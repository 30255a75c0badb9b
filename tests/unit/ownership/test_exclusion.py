"""Exclusion: each branch of the decision whether a seat that was given up is taken again."""

from __future__ import annotations

from itertools import product

import pytest

from coterie.ownership.exclusion import FIRST_NS, GOOD_NS, LONGEST_NS, Cause, Exclusion, Exclusions

SEAT = "singleton:x"


@pytest.mark.parametrize(("has_others", "is_offered"), list(product([True, False], repeat=2)))
def test_until_when_and_for_whom_an_exclusion_applies(has_others: bool, is_offered: bool) -> None:
    for cause, expected in (("failed", True), ("resigned", has_others and not is_offered)):
        found = Exclusion(cause=cause, times=1, until_ns=10)  # type: ignore[arg-type]
        assert found.applies(9, has_others=has_others, is_offered=is_offered) == expected
        assert not found.applies(10, has_others=has_others, is_offered=is_offered)
    refused = Exclusion(cause="refused", times=1, until_ns=None)
    assert refused.applies(10**30, has_others=has_others, is_offered=is_offered)


def lasted(exclusions: Exclusions, now_ns: int, cause: Cause = "failed") -> int:
    until_ns = exclusions.add(SEAT, now_ns, cause=cause).until_ns
    assert until_ns is not None
    return until_ns - now_ns


def test_each_exclusion_in_a_row_lasts_twice_as_long_up_to_a_bound() -> None:
    exclusions, now_ns, pauses = Exclusions(), 0, []
    for number in range(80):
        pauses.append(lasted(exclusions, now_ns, "failed" if number % 2 else "resigned"))
        now_ns += pauses[-1] + GOOD_NS - 1
    assert pauses[:6] == [FIRST_NS << number for number in range(5)] + [LONGEST_NS]
    assert set(pauses[5:]) == {LONGEST_NS}


def test_one_that_comes_before_the_last_is_over_counts_too() -> None:
    exclusions = Exclusions()
    assert [lasted(exclusions, 0), lasted(exclusions, 1)] == [FIRST_NS, 2 * FIRST_NS]


def test_after_a_good_stretch_the_next_one_is_the_first_again() -> None:
    exclusions = Exclusions()
    lasted(exclusions, 0)
    lasted(exclusions, 0)
    assert lasted(exclusions, 2 * FIRST_NS + GOOD_NS) == FIRST_NS


def test_what_is_refused_stays_refused_and_seats_do_not_matter_to_each_other() -> None:
    exclusions = Exclusions()
    exclusions.add(SEAT, 0, cause="refused", error="NewerVersion")
    exclusions.add(SEAT, 1, cause="resigned")
    assert exclusions.lasting(10**30)[SEAT].error == "NewerVersion"
    assert exclusions.applies(SEAT, 10**30, has_others=False)
    assert not exclusions.applies("singleton:y", 0, has_others=True)
    exclusions.add("singleton:y", 0, cause="failed")
    assert set(exclusions.lasting(FIRST_NS)) == {SEAT}


@pytest.mark.parametrize(("cause", "is_lifted"), [("resigned", True), ("failed", False), ("refused", False)])
def test_only_what_was_resigned_is_lifted(cause: Cause, is_lifted: bool) -> None:
    exclusions = Exclusions()
    exclusions.add(SEAT, 0, cause=cause)
    exclusions.lift(SEAT, 1)
    assert exclusions.applies(SEAT, 1, has_others=True) is not is_lifted
    exclusions.lift("singleton:never-excluded", 1)
    assert "singleton:never-excluded" not in exclusions.lasting(0)


def test_one_that_is_over_is_not_prolonged_by_lifting_it() -> None:
    exclusions = Exclusions()
    exclusions.add(SEAT, 0, cause="resigned")
    exclusions.lift(SEAT, FIRST_NS + 10)
    assert lasted(exclusions, FIRST_NS + GOOD_NS) == FIRST_NS, "the stretch is counted from its end, not from the lift"
