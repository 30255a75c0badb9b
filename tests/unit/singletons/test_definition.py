"""From functions to singletons: what is read from them, and what is refused when the program is loaded (S1, S10)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster
from coterie.errors import ConfigurationError
from coterie.kernel.retry import Retry
from coterie.singletons.definition import SingletonOptions, define
from tests.unit.singletons.fake_storage import Progress, body, singleton

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Bare:
    last_id: int


def plain(leader: Any) -> None: ...


INSTEAD = "a leader ends when its seat moves, and a thread need not: await blocking functions as steps of a unit"


def watching(leader: Any) -> Any:
    """A hook may be a plain function: what it returns is awaited if it can be."""


async def without() -> None: ...


async def of_two(leader: Any, more: Any) -> None: ...


async def stream(leader: Any) -> Any:
    yield 1


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return function(*args)

    return run


def problem(name: Any = "x", function: Any = body, **options: Any) -> str:
    """What is said about a definition that is refused."""
    with pytest.raises(ConfigurationError) as caught:
        define(name, function, options)  # type: ignore[arg-type] # what checkers refuse is refused here, too
    return str(caught.value)


def test_what_is_left_out_has_the_defaults() -> None:
    """S10: key prefix and schema version."""
    found = singleton()
    assert (found.name, found.seat, found.key) == ("importer", "singleton:importer", "singleton-state:importer")
    assert (found.group, found.every_s, found.ttl_s, found.expected_s) == ("default", None, None, None)
    assert (found.retry, found.takeover_delay_s) == (None, 0.0)
    assert (found.on_become_leader, found.on_lose_leadership) == (None, None)
    assert found.codec is not None
    assert found.codec.version == 1
    assert found.initial() == Progress()
    assert found.initial() is not found.initial()


def test_all_options_are_read() -> None:
    async def hook(leader: Any) -> None: ...

    retry = Retry(attempts=3)
    found = singleton(
        group="special",
        every="10m",
        ttl=timedelta(days=7),
        version=2,
        migrations={1: dict},
        retry=retry,
        takeover_delay=1.5,
        on_become_leader=hook,
        on_lose_leadership=watching,
    )
    assert (found.group, found.every_s, found.ttl_s, found.takeover_delay_s) == ("special", 600, 7 * 86400, 1.5)
    assert found.expected_s == 600, "an execution is progress"
    assert found.retry is retry
    assert found.on_become_leader is hook
    assert found.on_lose_leadership is watching
    assert singleton(every="10m", expected_interval="1h").expected_s == 3600


@pytest.mark.parametrize("none", [None, type(None)])
def test_without_state_there_is_none(none: Any) -> None:
    found = singleton(state=none)
    assert found.codec is None
    assert found.initial() is None


@pytest.mark.parametrize("state", [int, dict, list[int], lambda: Progress(7), lambda: {"a": 1}], ids=range(5))
def test_a_state_is_any_data_that_can_be_made(state: Any) -> None:
    found = singleton(state=state)
    assert found.codec is not None
    assert found.codec.decode(found.codec.encode(found.initial())) == state()


@pytest.mark.parametrize(
    "function", [body, functools.partial(of_two, None), wrapped(body)], ids=["plain", "partial", "wrapped"]
)
def test_a_body_is_whatever_is_async_and_takes_a_leader(function: Any) -> None:
    assert define("x", function, SingletonOptions(state=int)).body is function


@pytest.mark.parametrize("name", ["a/b:c", " ", "größe", "\u202e%_'\"", "x" * 1000, "line\nbreak"], ids=range(6))
def test_hostile_names_are_names(name: str) -> None:
    """Both databases give them back exactly."""
    assert singleton(name).seat == f"singleton:{name}"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "a singleton's name cannot be empty"),
        ("a\0b", r"singleton's name 'a\x00b' has a zero character, which databases cannot store"),
        ("x" * 1001, f"singleton's name '{'x' * 20}'… has 1001 bytes, more than 1000"),
        ("\ud800", r"name '\ud800' of a singleton has half a surrogate pair, which is no text"),
        (5, 'name of a singleton is 5, expected text: write @cluster.singleton("importer")'),
        (None, 'name of a singleton is None, expected text: write @cluster.singleton("importer")'),
    ],
    ids=["empty", "zero", "long", "surrogate", "number", "none"],
)
def test_names_that_cannot_be_stored_are_refused(name: Any, says: str) -> None:
    assert problem(name) == says


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (
            plain,
            f"singleton 'x': plain is no async function: write async def plain(leader); {INSTEAD}",
        ),
        (stream, "singleton 'x': stream is no async function: write async def stream(leader)"),
        (5, "singleton 'x': 5 is no async function: write async def work(leader)"),
        (without, "singleton 'x': without does not take one argument, its leader: write async def without(leader)"),
        (of_two, "singleton 'x': of_two does not take one argument, its leader: write async def of_two(leader)"),
    ],
    ids=["plain", "stream", "number", "none", "two"],
)
def test_functions_that_cannot_lead_are_refused(function: Any, says: str) -> None:
    assert problem(function=function) == says


_NO_STATE = "singleton 'x' has a version, migrations or a ttl, and no state: add state=, its class"
_KINDS = (
    "expected its class or a function that makes the first one: write state=Progress, "
    "or state=lambda: Progress(last_id=7)"
)
_MISSING = (
    "the first state of singleton 'x' cannot be made: TypeError: Bare.__init__() missing 1 required positional "
    "argument: 'last_id': give its fields defaults, or state=lambda: Progress(last_id=7)"
)
_NO_DATA = "the first state of singleton 'x' cannot be stored: state of 'x': it is of type object, which is not data"
_NO_MIGRATION = (
    "state of 'x' is version 2, but has no migration from 1: "
    "add migrations={1: …}: a function from that version's map to the next's"
)
_NO_MAP = (
    "state of 'x': migrations is [<class 'dict'>], expected a map from versions to functions: "
    "write migrations={1: to_version_2}"
)
_BEYOND = (
    "state of 'x' is version 1, but has a migration from 1: is the version 1 right? a migration from n leads to n + 1"
)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ttl": "1d"}, _NO_STATE),
        ({"version": 2}, _NO_STATE),
        ({"migrations": {1: dict}}, _NO_STATE),
        ({"state": "Progress"}, f"state of singleton 'x' is 'Progress', {_KINDS}"),
        ({"state": Progress()}, f"state of singleton 'x' is Progress(last_id=0, names=[]), {_KINDS}"),
        ({"state": Bare}, _MISSING),
        ({"state": lambda: object()}, _NO_DATA),
        ({"state": Progress, "version": 0}, "state of 'x': version is 0, expected a whole number from 1 on"),
        ({"state": Progress, "version": "2"}, "state of 'x': version is '2', expected a whole number from 1 on"),
        ({"state": Progress, "version": True}, "state of 'x': version is True, expected a whole number from 1 on"),
        ({"state": Progress, "version": 2}, _NO_MIGRATION),
        ({"state": Progress, "migrations": {1: dict}}, _BEYOND),
        (
            {"state": Progress, "version": 2, "migrations": {1: "x"}},
            "state of 'x': the migration from 1 is 'x', expected a function",
        ),
        ({"state": Progress, "version": 2, "migrations": [dict]}, _NO_MAP),
    ],
    ids=range(14),
)
def test_states_that_cannot_be_kept_are_refused(options: dict[str, Any], says: str) -> None:
    assert problem(**options) == says


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"evry": "1s"}, 'singleton \'x\' has no option "evry": did you mean "every"? there are state, group, every'),
        ({"group": "a b"}, "group of singleton 'x' is \"a b\": expected 1-64 of letters, digits"),
        ({"every": "0s"}, "every of singleton 'x' is \"0s\": it must be longer than zero"),
        ({"every": "10"}, 'every of singleton \'x\' is "10": a duration needs a unit: write "10s"'),
        ({"state": Progress, "ttl": -1}, "ttl of singleton 'x' is -1: a duration cannot be negative"),
        ({"expected_interval": "x"}, "expected_interval of singleton 'x' is \"x\": that cannot be read"),
        ({"takeover_delay": "x"}, "takeover_delay of singleton 'x' is \"x\": that cannot be read"),
        ({"retry": 3}, "retry of singleton 'x' is 3, expected a Retry: write Retry(attempts=5), or Retry.never"),
        (
            {"retry": Retry(on=[ValueError])},
            "retry of singleton 'x' has on or unless: any error is retried: leave them out, or retry in a step",
        ),
        (
            {"on_become_leader": 5},
            "on_become_leader of singleton 'x' is 5, expected a function: write async def on_become_leader(leader)",
        ),
        (
            {"on_lose_leadership": without},
            "on_lose_leadership of singleton 'x' does not take one argument, its leader: write async def on_lose",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any], says: str) -> None:
    assert problem(**options).startswith(says)


def test_programs_that_differ_in_what_counts_are_different_definitions() -> None:
    """M8: a runner of an older deploy hands over to a newer one."""
    same = singleton().definition
    assert (same.seat, same.group, same.takeover_delay_s) == ("singleton:importer", "default", 0)
    assert singleton(retry=Retry.never, on_become_leader=body).definition == same, "no reason to move"
    others = [
        singleton(state=None),
        singleton(version=2, migrations={1: dict}),
        singleton(every="1s"),
        singleton(ttl="1s"),
        singleton(expected_interval="1s"),
    ]
    prints = {other.definition.fingerprint for other in others}
    assert len(prints) == len(others)
    assert same.fingerprint not in prints


def test_a_definition_has_the_same_fingerprint_in_every_process() -> None:
    """It is stored: another hash after an upgrade of coterie would look like another program."""
    assert singleton(every="90s").definition.fingerprint == "1c365520b66962af"


class TestRoom:
    def test_the_function_stays_what_it_is(self) -> None:
        cluster = Cluster("sqlite://")
        assert cluster.singleton("x", state=Progress)(body) is body

    def test_there_are_no_two_of_one_name(self) -> None:
        cluster = Cluster("sqlite://")
        cluster.singleton("x")(body)
        with pytest.raises(
            ConfigurationError, match="there are two singletons of the name 'x': give one of them another"
        ):
            cluster.singleton("x")(body)
        cluster.singleton("X")(body)
        Cluster("sqlite://").singleton("x")(body)

    def test_one_that_is_refused_leaves_its_name_free(self) -> None:
        cluster = Cluster("sqlite://")
        with pytest.raises(ConfigurationError):
            cluster.singleton("x")(plain)  # type: ignore[arg-type] # what a checker refuses, too
        cluster.singleton("x")(body)

    def test_forgotten_parentheses_are_told_at_once(self) -> None:
        """Nobody would ever call what is returned."""
        wrong: Any = body
        with pytest.raises(ConfigurationError, match=r'expected text: write @cluster.singleton\("importer"\)'):
            Cluster("sqlite://").singleton(wrong)
