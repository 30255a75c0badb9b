"""From functions to crons: what is read from them, and what is refused when the program is loaded (C1-C6, M8)."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coterie import Breaker, Cluster, ConfigurationError, Retry, ScheduleError
from coterie.cron.decide import TickPolicy, jitter_of
from coterie.cron.definition import CronSummary, define
from tests.unit.cron.fake_storage import cron, nothing

if TYPE_CHECKING:
    from collections.abc import Callable


def plain(tick: Any) -> None: ...


async def without() -> None: ...


async def of_two(tick: Any, more: Any) -> None: ...


async def stream(tick: Any) -> Any:
    yield 1


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return function(*args)

    return run


def problem(name: Any = "x", schedule: Any = "@daily", function: Any = nothing, **options: Any) -> str:
    """What is said about a definition that is refused."""
    with pytest.raises(ConfigurationError) as caught:
        define(name, schedule, function, options)  # type: ignore[arg-type] # what checkers refuse is refused here, too
    return str(caught.value)


def test_what_is_left_out_has_the_defaults() -> None:
    """C5, C6: jobs may overlap, take as long as they like and are tried once; C3: a day counts as too old."""
    found = cron(schedule="0 3 * * *")
    assert (found.name, found.seat, found.group) == ("x", "cron:x", "default")
    assert (found.schedule.expression, found.schedule.timezone) == ("0 3 * * *", "UTC")
    assert found.policy == TickPolicy(skip_if_older_than=timedelta(days=1), catch_up="latest", overlap="allow")
    assert (found.timeout_s, found.retry, found.takeover_delay_s) == (None, None, 0.0)
    assert not found.one_at_a_time


def test_all_options_are_read() -> None:
    retry, breaker = Retry(attempts=3), Breaker(failures=2)
    found = cron(
        schedule="0 3 * * *",
        timezone="Europe/Zurich",
        group="special",
        skip_if_older_than=None,
        catch_up="all",
        overlap="queue",
        from_previous=True,
        jitter="1m",
        timeout=timedelta(seconds=90),
        retry=retry,
        breaker=breaker,
        takeover_delay=1.5,
    )
    assert (found.group, found.schedule.timezone) == ("special", "Europe/Zurich")
    assert found.policy == TickPolicy(
        skip_if_older_than=None,
        catch_up="all",
        overlap="queue",
        from_previous=True,
        delay=jitter_of("x", timedelta(minutes=1)),
        breaker=breaker,
    )
    assert (found.timeout_s, found.retry, found.takeover_delay_s) == (90.0, retry, 1.5)
    assert found.one_at_a_time
    assert cron(overlap="skip").one_at_a_time
    assert found.definition.takeover_delay_s == 1.5
    assert found.definition.group == "special"


def test_others_are_told_what_they_need_to_show_it() -> None:
    found = cron(schedule="0  3 * * *", timezone="Asia/Kolkata", timeout="5s", jitter="1m", skip_if_older_than="1h")
    assert msgspec.json.decode(found.summary, type=CronSummary) == CronSummary(
        schedule="0 3 * * *",
        timezone="Asia/Kolkata",
        timeout_s=5.0,
        skip_if_older_than_s=3600.0,
        jitter_s=jitter_of("x", timedelta(minutes=1)).total_seconds(),
    )
    assert (
        msgspec.json.decode(b'{"schedule": "@daily", "of a later version": 1}', type=CronSummary).schedule == "@daily"
    )


@pytest.mark.parametrize(
    "function", [nothing, functools.partial(of_two, None), wrapped(nothing)], ids=["plain", "partial", "wrapped"]
)
def test_a_body_is_whatever_is_async_and_takes_a_tick(function: Any) -> None:
    assert cron(body=function).body is function
    assert not cron(body=function).is_threaded


@pytest.mark.parametrize("function", [plain, lambda tick: None, functools.partial(plain), wrapped(plain)])
def test_a_plain_function_is_a_body_that_runs_in_a_thread(function: Any) -> None:
    assert cron(body=function).is_threaded


@pytest.mark.parametrize("name", ["a/b:c", " ", "größe", "\u202e%_'\"", "x" * 1000, "line\nbreak"], ids=range(6))
def test_hostile_names_are_names(name: str) -> None:
    assert cron(name).seat == f"cron:{name}"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "a cron's name cannot be empty"),
        ("a\0b", r"cron's name 'a\x00b' has a zero character, which databases cannot store"),
        ("x" * 1001, f"cron's name '{'x' * 20}'… has 1001 bytes, more than 1000"),
        ("\ud800", r"name '\ud800' of a cron has half a surrogate pair, which is no text"),
        (5, 'name of a cron is 5, expected text: write @cluster.cron("nightly", "0 3 * * *")'),
        (None, 'name of a cron is None, expected text: write @cluster.cron("nightly", "0 3 * * *")'),
    ],
    ids=["empty", "zero", "long", "surrogate", "number", "none"],
)
def test_names_that_cannot_be_stored_are_refused(name: Any, says: str) -> None:
    assert problem(name) == says


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (stream, "cron 'x': stream is no function: write def stream(tick)"),
        (5, "cron 'x': 5 is no function: write def work(tick)"),
        (int, "cron 'x': int is no function: write def int(tick)"),
        (without, "cron 'x': without does not take one argument, its tick: write async def without(tick)"),
        (of_two, "cron 'x': of_two does not take one argument, its tick: write async def of_two(tick)"),
    ],
    ids=["stream", "number", "class", "none", "two"],
)
def test_functions_that_cannot_run_are_refused(function: Any, says: str) -> None:
    assert problem(function=function) == says


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cach_up": "all"}, 'cron \'x\' has no option "cach_up": did you mean "catch_up"? there are timezone, group'),
        ({"group": "a b"}, "group of cron 'x' is \"a b\": expected 1-64 of letters, digits"),
        ({"timezone": 1}, "timezone of cron 'x' is 1, expected text"),
        ({"skip_if_older_than": "1"}, 'skip_if_older_than of cron \'x\' is "1": a duration needs a unit: write "1s"'),
        ({"skip_if_older_than": "0s"}, "skip_if_older_than of cron 'x' is \"0s\": it must be longer than zero"),
        ({"catch_up": "most"}, "catch_up of cron 'x' is 'most': write one of 'latest', 'all', 'none'"),
        ({"catch_up": None}, "catch_up of cron 'x' is None: write one of 'latest', 'all', 'none'"),
        ({"overlap": True}, "overlap of cron 'x' is True: write one of 'allow', 'skip', 'queue'"),
        ({"overlap": []}, "overlap of cron 'x' is []: write one of 'allow', 'skip', 'queue'"),
        ({"from_previous": 1}, "from_previous of cron 'x' is 1, expected True or False"),
        ({"jitter": "x"}, "jitter of cron 'x' is \"x\": that cannot be read"),
        ({"timeout": -1}, "timeout of cron 'x' is -1: a duration cannot be negative"),
        ({"retry": 3}, "retry of cron 'x' is 3, expected a Retry: write Retry(attempts=5), or Retry.never"),
        (
            {"retry": Retry(on=[ValueError])},
            "retry of cron 'x' has on or unless: any error is retried: leave them out, or retry in a step",
        ),
        ({"breaker": 3}, "breaker of cron 'x' is 3, expected a Breaker: write Breaker(failures=5, reset=\"10m\")"),
        ({"takeover_delay": "x"}, "takeover_delay of cron 'x' is \"x\": that cannot be read"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any], says: str) -> None:
    assert problem(**options).startswith(says)


@pytest.mark.parametrize("schedule", [None, 5, timedelta(minutes=5), ["0 3 * * *"]], ids=type)
def test_a_schedule_is_text(schedule: Any) -> None:
    assert problem(schedule=schedule) == f"schedule of cron 'x' is {schedule!r}, expected text"


@pytest.mark.parametrize(
    ("schedule", "timezone", "says"),
    [
        ("0 25 * * *", "UTC", "hour 25 is out of range 0-23"),
        ("0 0 30 2 *", "UTC", "no such day ever comes"),
        ("0 3 * * *", "Europe/Zuerich", "Europe/Zuerich"),
    ],
)
def test_inv_c3_a_schedule_that_cannot_be_read_is_refused_with_the_name_of_the_cron(
    schedule: str, timezone: str, says: str
) -> None:
    with pytest.raises(ScheduleError) as caught:
        cron("nightly", schedule, timezone=timezone)
    assert "nightly" in str(caught.value)
    assert says in str(caught.value)


# Two versions of a program [M8]


def parts(**options: Any) -> tuple[str, str]:
    schedule, _, rest = cron(**options).definition.fingerprint.partition(":")
    return schedule, rest


def test_m8_another_schedule_or_zone_makes_other_ticks() -> None:
    same = parts(schedule="0 3 * * *")
    assert parts(schedule=" 0  3 * * * ") == same, "how it is written does not matter"
    assert parts(name="y", schedule="0 3 * * *") == same
    for other in ({"schedule": "0 2 * * *"}, {"schedule": "0 3 * * *", "timezone": "Europe/Zurich"}):
        assert parts(**other)[0] != same[0]


def test_m8_other_options_are_another_definition_with_the_same_ticks() -> None:
    same = parts()
    options: list[dict[str, Any]] = [
        {"group": "special"},
        {"skip_if_older_than": "1h"},
        {"skip_if_older_than": None},
        {"catch_up": "all"},
        {"overlap": "skip"},
        {"from_previous": True},
        {"jitter": "1m"},
        {"timeout": "1m"},
        {"retry": Retry.never},
        {"breaker": Breaker()},
        {"breaker": Breaker(failures=2)},
    ]
    found = [parts(**each) for each in options]
    assert {schedule for schedule, _ in found} == {same[0]}
    assert len({rest for _, rest in found} | {same[1]}) == len(options) + 1
    assert parts(body=wrapped(nothing)) == same, "no reason to move"
    assert parts(takeover_delay="1m") == same


def test_a_definition_has_the_same_fingerprint_in_every_process() -> None:
    """It is stored: another hash after an upgrade of coterie would look like another program."""
    found = cron(schedule="0 3 * * *", timezone="Europe/Zurich", retry=Retry(attempts=3), breaker=Breaker())
    assert found.definition.fingerprint == "666107c3dc654f23:3b9f194e499ad403"


class TestRoom:
    def test_the_function_stays_what_it_is(self) -> None:
        assert Cluster("sqlite://").cron("x", "@daily")(nothing) is nothing

    def test_there_are_no_two_of_one_name(self) -> None:
        cluster = Cluster("sqlite://")
        cluster.cron("x", "@daily")(nothing)
        with pytest.raises(
            ConfigurationError, match="there are two crons of the name 'x': give one of them another name"
        ):
            cluster.cron("x", "@hourly")(nothing)
        cluster.cron("X", "@daily")(nothing)
        cluster.singleton("x")(nothing)
        Cluster("sqlite://").cron("x", "@daily")(nothing)

    def test_one_that_is_refused_leaves_its_name_free(self) -> None:
        cluster = Cluster("sqlite://")
        with pytest.raises(ConfigurationError):
            cluster.cron("x", "@daily")(without)  # type: ignore[type-var] # what a checker refuses, too
        cluster.cron("x", "@daily")(nothing)

    def test_forgotten_parentheses_are_told_at_once(self) -> None:
        """Nobody would ever call what is returned."""
        wrong: Any = nothing
        with pytest.raises(
            ConfigurationError, match=r'expected text: write @cluster.cron\("nightly", "0 3 \* \* \*"\)'
        ):
            Cluster("sqlite://").cron(wrong, "@daily")

    def test_an_option_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match='has no option "cach_up": did you mean "catch_up"'):
            Cluster("sqlite://").cron("x", "@daily", cach_up="all")(nothing)  # type: ignore[call-arg] # what a checker refuses, too
