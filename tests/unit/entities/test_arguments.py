"""Arguments over the wire: bound as Python binds, checked at both ends, understood by the next version (F1)."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from coterie.entities.arguments import Arguments, hints_of
from coterie.errors import MalformedMessage
from coterie.kernel.serialization.codec import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable


def arguments(fn: Any, what: str = "Shop.buy") -> Arguments:
    return Arguments(fn, hints_of(fn, object, what=what), what=what)


@dataclass
class Item:
    name: str
    tags: list[str] = field(default_factory=list)


class Model(BaseModel):
    cents: int


class Struct(msgspec.Struct):
    at: datetime


async def plain(self: Any, name: str, count: int) -> None: ...
async def defaults(self: Any, name: str, count: int = 3, tags: list[str] = ["a"], note: str | None = None) -> None: ...  # noqa: B006
async def keywords(self: Any, a: int, b: int = 2, *, c: int, d: int = 4) -> None: ...
async def only(self: Any, a: int, /, b: int) -> None: ...
async def nothing(self: Any) -> None: ...
async def rich(self: Any, item: Item, model: Model, struct: Struct, kind: Literal["x", "y"]) -> None: ...
async def bounded(self: Any, cents: Annotated[int, msgspec.Meta(ge=0)]) -> None: ...
async def anything(self: Any, value: Any) -> None: ...


KEYWORDS = st.dictionaries(st.sampled_from("abcdxy"), st.integers(0, 9), max_size=4)


@given(st.lists(st.integers(0, 9), max_size=4), KEYWORDS)
def test_arguments_are_bound_exactly_as_python_binds_them(args: list[int], kwargs: dict[str, int]) -> None:
    def outcome(bind: Callable[[], Any]) -> Any:
        try:
            return bind()
        except TypeError as error:
            return str(error).removeprefix("Shop.buy(): ")

    def by_python() -> Any:
        found = inspect.signature(keywords).bind(None, *args, **kwargs)
        found.apply_defaults()
        return found.args[1:], found.kwargs

    there = arguments(keywords)
    assert outcome(lambda: there.decode(there.encode(tuple(args), kwargs))) == outcome(by_python)


@given(st.text(), st.integers(-(2**63), 2**63 - 1))
def test_what_was_encoded_is_decoded(name: str, count: int) -> None:
    there = arguments(plain)
    assert there.decode(there.encode((name, count), {})) == ((name, count), {})


def test_classes_of_all_sorts_cross() -> None:
    there = arguments(rich)
    given = (Item("pen", ["blue"]), Model(cents=5), Struct(datetime(2026, 3, 29, tzinfo=UTC)), "y")
    assert there.decode(there.encode(given, {})) == (given, {})


def test_no_and_positional_only_parameters() -> None:
    assert arguments(nothing).decode(arguments(nothing).encode((), {})) == ((), {})
    assert arguments(only).decode(arguments(only).encode((1,), {"b": 2})) == ((1, 2), {})


@pytest.mark.parametrize(
    ("fn", "args", "problem"),
    [
        (plain, (7, 1), "name is 7 (whole number), expected text"),
        (plain, ("a", "1"), 'count is "1" (text), expected a whole number'),
        (plain, ("a", None), "count is nothing, expected a whole number"),
        (plain, ("a", 2**70), "count is a whole number beyond 64 bits"),
        (plain, ("\ud800", 1), "name is text with half a surrogate pair, which is no Unicode"),
        (plain, (print, 1), "name is a function, which is not data"),
        (rich, ({"name": 5}, 1, 1, 1), "item.name is 5 (whole number), expected text"),
        (rich, ({}, 1, 1, 1), "item.name is missing"),
        (bounded, (-1,), "cents is -1 (whole number), expected a whole number >= 0"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_caller_by_rpc_and_field(fn: Any, args: Any, problem: str) -> None:
    with pytest.raises(MalformedMessage) as caught:
        arguments(fn).encode(args, {})
    assert caught.value.message == f"Shop.buy: {problem}"


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({"name": "a"}, "count is missing"),
        ({"name": "a", "count": "1"}, 'count is "1" (text), expected a whole number'),
        (["a", 1], "it is a list of length 2, expected a map"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_receiver_again(payload: Any, problem: str) -> None:
    with pytest.raises(MalformedMessage) as caught:
        arguments(plain).decode(PLAIN.encode(payload))
    assert caught.value.message == f"Shop.buy: {problem}"


@given(st.binary(max_size=40))
def test_whatever_arrives_is_arguments_or_a_malformed_message(data: bytes) -> None:
    try:
        args, kwargs = arguments(plain).decode(data)
    except MalformedMessage:
        return
    assert (type(args[0]), type(args[1]), kwargs) == (str, int, {})


def test_deep_nesting_is_refused_at_the_caller() -> None:
    nested: list[Any] = []
    for _ in range(100):
        nested = [nested]
    with pytest.raises(MalformedMessage, match="nested deeper than 64 levels"):
        arguments(anything).encode((nested,), {})


# Two versions of a method in a rolling deploy.


async def newer(self: Any, name: str, count: int, colour: str = "red") -> None: ...
async def moved(self: Any, count: int, name: str) -> None: ...


def test_a_newer_caller_talks_to_an_older_entity() -> None:
    assert arguments(plain).decode(arguments(newer).encode(("a", 1, "blue"), {})) == (("a", 1), {})


def test_an_older_caller_talks_to_a_newer_entity() -> None:
    assert arguments(newer).decode(arguments(plain).encode(("a", 1), {})) == (("a", 1, "red"), {})


def test_parameters_may_change_places() -> None:
    assert arguments(moved).decode(arguments(plain).encode(("a", 1), {})) == ((1, "a"), {})


def test_a_new_parameter_without_default_is_missed_by_name() -> None:
    with pytest.raises(MalformedMessage, match=r"^Shop\.buy: name is missing$"):
        arguments(plain).decode(arguments(nothing).encode((), {}))


def test_defaults_are_those_of_the_method_and_never_shared() -> None:
    there = arguments(defaults)
    empty = PLAIN.encode({"name": "a"})
    first, _ = there.decode(empty)
    assert first == ("a", 3, ["a"], None)
    first[2].append("changed by a handler")
    assert there.decode(empty)[0] == ("a", 3, ["a"], None)
    assert there.decode(there.encode(("a",), {}))[0] == ("a", 3, ["a"], None)
