"""Snowflakes: never twice, always growing, whatever the clock does whoever holds the machine id [K2, S1]."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coterie.kernel.ids import EPOCH_MS, MACHINES, Snowflake, SnowflakeGenerator

NOW_MS = EPOCH_MS + 40_000_000_000
LAST_MS = EPOCH_MS + 2**41 - 1


def taken(generator: SnowflakeGenerator, count: int, *, now_ms: int) -> list[int]:
    ids = (generator.take(now_ms) for _ in range(count))
    return [drawn for drawn in ids if drawn is not None]


def test_a_snowflake_is_time_machine_and_sequence_k2() -> None:
    instant = datetime(2026, 7, 1, 12, 30, 0, 123_000, tzinfo=UTC)
    timestamp = int(instant.timestamp() * 1000)
    drawn = Snowflake.compose(timestamp=timestamp, machine_id=513, sequence=77)
    assert Snowflake.parts(drawn) == (timestamp, 513, 77)
    assert Snowflake.datetime(drawn) == instant
    assert Snowflake.datetime(drawn).tzinfo is UTC


def test_the_layout_never_changes() -> None:
    assert Snowflake.compose(timestamp=1_735_689_600_000, machine_id=0, sequence=0) == 0
    assert Snowflake.compose(timestamp=1_735_689_600_001, machine_id=1, sequence=1) == (1 << 22) + (1 << 12) + 1


@settings(deadline=None)
@given(st.integers(EPOCH_MS, LAST_MS), st.integers(0, 1023), st.integers(0, 4095))
def test_parts_are_what_it_was_composed_of_and_it_fits_a_signed_64_bit_column(
    timestamp: int, machine_id: int, sequence: int
) -> None:
    drawn = Snowflake.compose(timestamp=timestamp, machine_id=machine_id, sequence=sequence)
    assert 0 <= drawn < 2**63
    assert Snowflake.parts(drawn) == (timestamp, machine_id, sequence)


@pytest.mark.parametrize("id", [-1, 2**63])
def test_what_is_no_snowflake_is_refused(id: int) -> None:
    with pytest.raises(ValueError, match="not a snowflake"):
        Snowflake.parts(id)


@pytest.mark.parametrize(
    ("timestamp", "machine_id", "sequence"),
    [
        (EPOCH_MS - 1, 0, 0),
        (LAST_MS + 1, 0, 0),
        (NOW_MS, -1, 0),
        (NOW_MS, 1024, 0),
        (NOW_MS, 0, -1),
        (NOW_MS, 0, 4096),
    ],
)
def test_parts_that_do_not_fit_are_refused(timestamp: int, machine_id: int, sequence: int) -> None:
    with pytest.raises(ValueError, match="out"):
        Snowflake.compose(timestamp=timestamp, machine_id=machine_id, sequence=sequence)


def test_incident_07_a_clock_that_steps_back_a_second_repeats_nothing_s1() -> None:
    generator = SnowflakeGenerator(7, after_ms=0, until_ms=NOW_MS + 10_000)
    ids = taken(generator, 5_000, now_ms=NOW_MS) + taken(generator, 4_001, now_ms=NOW_MS - 1_000)
    assert len(ids) == len(set(ids)) == 9_001
    assert ids == sorted(ids)


def test_incident_07_twenty_thousand_ids_in_one_tick_are_all_different_s1() -> None:
    generator = SnowflakeGenerator(7, after_ms=0, until_ms=NOW_MS + 10_000)
    ids = taken(generator, 20_000, now_ms=NOW_MS)
    assert len(ids) == len(set(ids)) == 20_000
    assert ids == sorted(ids)
    assert Snowflake.parts(ids[-1]).timestamp == NOW_MS + 20_000 // 4096


def test_incident_07_the_1025th_machine_id_is_refused_not_reduced_s1() -> None:
    generators = [SnowflakeGenerator(number, after_ms=0, until_ms=NOW_MS) for number in range(MACHINES)]
    assert len({generator.take(NOW_MS) for generator in generators}) == 1024
    with pytest.raises(ValueError, match="machine id 1024 is out of range 0-1023"):
        SnowflakeGenerator(1024, after_ms=0, until_ms=NOW_MS)


def test_a_burst_stops_at_the_mark_until_a_higher_one_is_stored_m15() -> None:
    generator = SnowflakeGenerator(7, after_ms=0, until_ms=NOW_MS + 1)
    assert len(taken(generator, 10_000, now_ms=NOW_MS)) == 2 * 4096
    assert generator.take(NOW_MS) is None
    generator.extend(NOW_MS + 2)
    assert len(taken(generator, 10_000, now_ms=NOW_MS)) == 4096


def test_a_clock_beyond_the_mark_draws_nothing_and_spoils_nothing_m15() -> None:
    generator = SnowflakeGenerator(7, after_ms=0, until_ms=NOW_MS)
    assert generator.take(NOW_MS + 1) is None
    assert generator.last_ms < NOW_MS
    assert Snowflake.parts(taken(generator, 1, now_ms=NOW_MS)[0]) == (NOW_MS, 7, 0)


def test_the_next_holder_starts_after_the_mark_even_if_its_clock_is_behind_m15() -> None:
    heir = SnowflakeGenerator(7, after_ms=NOW_MS, until_ms=NOW_MS + 5_000)
    drawn = heir.take(NOW_MS - 60_000)
    assert drawn is not None
    assert Snowflake.parts(drawn) == (NOW_MS + 1, 7, 0)


def test_a_clock_before_2025_draws_from_the_beginning_once_the_mark_allows() -> None:
    generator = SnowflakeGenerator(7, after_ms=0, until_ms=5_000)
    assert generator.take(0) is None
    generator.extend(generator.last_ms + 10)
    assert generator.take(0) == Snowflake.compose(timestamp=EPOCH_MS, machine_id=7, sequence=0)


def test_a_mark_cannot_go_back_nor_beyond_what_the_bits_hold() -> None:
    generator = SnowflakeGenerator(7, after_ms=NOW_MS, until_ms=NOW_MS + 5)
    with pytest.raises(ValueError, match="cannot go back 1 ms"):
        generator.extend(NOW_MS + 4)
    with pytest.raises(ValueError, match="cannot go back"):
        SnowflakeGenerator(7, after_ms=NOW_MS, until_ms=NOW_MS - 1)
    with pytest.raises(ValueError, match="2025 to 2094"):
        generator.extend(LAST_MS + 1)
    assert generator.until_ms == NOW_MS + 5


class Holders(RuleBasedStateMachine):
    """Holders of one machine id follow each other, each with a clock of its own, crashing at any point."""

    def __init__(self) -> None:
        super().__init__()
        self.stored_ms = 0
        self.drawn: list[int] = []
        self.generator: SnowflakeGenerator | None = None

    @rule(now_ms=st.integers(NOW_MS - 20, NOW_MS + 20), ahead_ms=st.integers(0, 10))
    def a_holder_takes_over(self, now_ms: int, ahead_ms: int) -> None:
        after_ms = self.stored_ms
        self.stored_ms = max(after_ms, now_ms) + ahead_ms
        self.generator = SnowflakeGenerator(3, after_ms=after_ms, until_ms=self.stored_ms)

    @precondition(lambda self: self.generator is not None)
    @rule(now_ms=st.integers(NOW_MS - 20, NOW_MS + 20), count=st.sampled_from([1, 2, 4096, 9000]))
    def it_draws(self, now_ms: int, count: int) -> None:
        assert self.generator is not None
        self.drawn += taken(self.generator, count, now_ms=now_ms)

    @precondition(lambda self: self.generator is not None)
    @rule(ahead_ms=st.integers(0, 10), crashes=st.booleans())
    def it_stores_a_mark(self, ahead_ms: int, crashes: bool) -> None:
        assert self.generator is not None
        self.stored_ms += ahead_ms
        if crashes:
            self.generator = None
        else:
            self.generator.extend(self.stored_ms)

    @invariant()
    def ids_only_grow_and_keep_below_what_is_stored(self) -> None:
        assert all(one < two for one, two in pairwise(self.drawn))
        assert not self.drawn or Snowflake.parts(self.drawn[-1]).timestamp <= self.stored_ms


Holders.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestHoldersOfOneMachineIdNeverRepeatS1 = Holders.TestCase
