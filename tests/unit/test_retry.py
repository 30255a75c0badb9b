"""Retry: attempts counted with the first, pauses that grow, a cap that holds, jitter that spreads."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import ConfigurationError
from coterie.kernel.random import Random
from coterie.kernel.retry import Discard, Retry, Snooze


def delays(retry: Retry, *, seed: int = 1) -> list[float]:
    chance = Random(seed)
    pauses = (retry.delay_s(attempt, chance) for attempt in range(1, 100))
    return [pause for pause in pauses if pause is not None]


def test_attempts_count_all_tries_the_first_included() -> None:
    assert len(delays(Retry(attempts=3))) == 2
    assert Retry(attempts=3).delay_s(3, Random(1)) is None
    assert Retry(attempts=3).delay_s(4, Random(1)) is None


def test_never_is_one_attempt() -> None:
    assert Retry.never.attempts == 1
    assert delays(Retry.never) == []


def test_pauses_grow_by_the_factor_up_to_the_cap() -> None:
    retry = Retry(attempts=7, base="1s", factor=3, max="20s", jitter=0)
    assert delays(retry) == [1, 3, 9, 20, 20, 20]


def test_the_defaults_are_those_that_the_text_explains() -> None:
    assert Retry() == Retry(5, "100ms", 2, "30s", 0.2)
    assert sum(delays(Retry(jitter=0))) == pytest.approx(1.5)


def test_durations_are_kept_as_timedeltas_however_they_were_written() -> None:
    assert Retry(base=0.5, max=timedelta(seconds=30)) == Retry(base="500ms", max="30s")
    assert Retry(base="500ms").base == timedelta(milliseconds=500)


@settings(deadline=None)
@given(
    attempt=st.integers(1, 10_000),
    base_s=st.floats(0, 3600),
    factor=st.floats(1, 100),
    jitter=st.floats(0, 1),
    seed=st.integers(0, 9),
)
def test_a_pause_lies_within_its_jitter_and_never_above_the_cap(
    attempt: int, base_s: float, factor: float, jitter: float, seed: int
) -> None:
    retry = Retry(10_001, base_s, factor, 3600, jitter)
    plain_s = Retry(10_001, base_s, factor, 3600, 0).delay_s(attempt, Random(seed))
    delay_s = retry.delay_s(attempt, Random(seed))
    assert plain_s is not None
    assert delay_s is not None
    tolerance_s = 1e-9  # of floating point
    assert plain_s * (1 - jitter) - tolerance_s <= delay_s <= plain_s + tolerance_s
    assert 0 <= delay_s <= 3600


def test_what_failed_together_is_spread_even_at_the_cap() -> None:
    retry = Retry(attempts=50, base="30s", max="30s", jitter=0.2)
    assert len(set(delays(retry))) == 49
    assert min(delays(retry)) >= 24
    assert delays(retry, seed=1) == delays(retry, seed=1) != delays(retry, seed=2)


def test_without_a_base_there_is_no_pause_however_many_attempts() -> None:
    retry = Retry(attempts=100_000, base=0, factor=100)
    assert retry.delay_s(99_999, Random(1)) == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"attempts": 0}, "attempts of Retry is 0: it must be a whole number from 1 on"),
        ({"attempts": True}, "attempts of Retry is True: it must be a whole number from 1 on"),
        ({"attempts": 2.0}, "attempts of Retry is 2.0: it must be a whole number from 1 on"),
        ({"base": "5"}, 'base of Retry is "5": a duration needs a unit'),
        ({"max": -1}, "max of Retry is -1: a duration cannot be negative"),
        ({"factor": 0.5}, "factor of Retry is 0.5: it must be a number from 1 to 100"),
        ({"factor": float("nan")}, "factor of Retry is nan: it must be a number from 1 to 100"),
        ({"jitter": 1.1}, "jitter of Retry is 1.1: it must be a number from 0 to 1"),
        ({"jitter": "20%"}, "jitter of Retry is '20%': it must be a number from 0 to 1"),
        ({"base": "1m"}, 'base of Retry is "1m", longer than its max, "30s"'),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Retry(**options)
    assert caught.value.message == problem


def test_attempts_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        Retry().delay_s(0, Random(1))


def test_a_policy_is_a_value() -> None:
    retry = Retry(attempts=3, base="1s")
    assert hash(retry) == hash(Retry(attempts=3, base=1))
    assert dataclasses.replace(retry, attempts=4) == Retry(attempts=4, base="1s")
    assert pickle.loads(pickle.dumps(retry)) == copy.deepcopy(retry) == retry
    with pytest.raises(dataclasses.FrozenInstanceError):
        retry.attempts = 9  # type: ignore[misc]  # the point of the test


class Refused(ConnectionError):
    pass


def retried(retry: Retry, error: BaseException | None) -> bool:
    return retry.delay_s(1, Random(1), error) is not None


def test_t5_the_class_of_the_exception_decides_and_unless_comes_first() -> None:
    retry = Retry(on=[ConnectionError, TimeoutError], unless=[Refused])
    assert retried(retry, ConnectionResetError())
    assert retried(retry, TimeoutError())
    assert not retried(retry, ValueError())
    assert not retried(retry, Refused())
    assert not retried(Retry(unless=[ConnectionError]), Refused())
    assert retried(Retry(unless=[Refused]), ConnectionError())
    assert retried(retry, asyncio.CancelledError()), "the user's classes are of exceptions"
    assert retried(retry, None), "what failed is no exception of a handler"
    assert retry.delay_s(5, Random(1), TimeoutError()) is None, "attempts are counted as before"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"on": ConnectionError}, r"write on=\[ConnectionError\]"),
        ({"unless": "ConnectionError"}, r"write unless=\[TimeoutError\]"),
        ({"on": [ConnectionError()]}, "which is no exception class"),
        ({"unless": [KeyboardInterrupt]}, "which is no exception class"),
        ({"on": []}, r"write Retry\.never"),
        ({"on": [Snooze]}, "Snooze, which decides by itself"),
        ({"unless": [Discard]}, "Discard, which decides by itself"),
    ],
)
def test_t5_what_is_no_list_of_exceptions_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Retry(**given)


def test_a_policy_without_classes_shows_none_so_that_fingerprints_stay() -> None:
    assert repr(Retry.never).endswith("jitter=0.2)")
    assert repr(Retry(on=[Refused])).endswith(f"on=({Refused!r},))")


@pytest.mark.parametrize("delay", [0, -1, "soon", "40000d"])
def test_a_snooze_is_of_a_positive_duration_that_databases_can_store(delay: Any) -> None:
    with pytest.raises(ConfigurationError, match="delay of Snooze"):
        Snooze(delay)


def test_snooze_and_discard_cross_a_process_pool() -> None:
    assert pickle.loads(pickle.dumps(Snooze("10m"))).delay_s == 600
    assert pickle.loads(pickle.dumps(Discard("why"))).why == "why"
