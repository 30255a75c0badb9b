"""Results of steps, and what they are given: by annotation, else plain."""

from __future__ import annotations

import socket  # noqa: TC003 results look it up
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import MalformedMessage
from coterie.durable import steps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass
class Item:
    name: str


async def item(x: Mapping[str, int]) -> Item:
    raise NotImplementedError


async def items() -> list[Item]:
    raise NotImplementedError


async def nothing() -> None: ...
async def anything() -> Any:
    raise NotImplementedError


async def elsewhere() -> Mapping[str, int]:
    raise NotImplementedError


async def untold():  # type: ignore[no-untyped-def]
    ...


class Shop:
    async def method(self) -> Item:
        raise NotImplementedError

    async def __call__(self) -> Item:
        raise NotImplementedError


def wrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(fn)
    async def call(*args: Any) -> Any:
        raise NotImplementedError

    return call


def there_and_back(fn: Callable[..., Any], value: Any) -> Any:
    data, told = steps.encoded(fn, value, what="x")
    read = steps.decoded(fn, data, what="x")
    assert read == told, "the first run gets what later ones get"
    return read


@pytest.mark.parametrize("fn", [item, Shop().method, Shop(), partial(partial(item, {}), 5), wrapped(item)])
def test_a_result_is_what_the_annotation_says(fn: Any) -> None:
    assert there_and_back(fn, Item("a")) == Item("a")
    with pytest.raises(MalformedMessage):
        steps.encoded(fn, 5, what="x")


def test_containers_and_none() -> None:
    assert there_and_back(items, [Item("a"), Item("b")]) == [Item("a"), Item("b")]
    assert there_and_back(nothing, None) is None
    with pytest.raises(MalformedMessage):
        steps.encoded(nothing, 5, what="x")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(PLAIN)
def test_without_an_annotation_a_plain_value_comes_back(value: Any) -> None:
    for fn in (untold, anything, elsewhere, lambda: None):
        assert there_and_back(fn, value) == value


@pytest.mark.parametrize("value", [Item("a"), [Item("a")], {"a": Item("b")}, {1: 2}, (1, 2), {1}, object()])
def test_without_an_annotation_all_else_is_refused(value: Any) -> None:
    with pytest.raises(MalformedMessage, match="no return annotation by which to read it again") as caught:
        steps.encoded(untold, value, what="step 'x'")
    assert "annotate it: async def untold" in str(caught.value)
    with pytest.raises(MalformedMessage, match=": def work"):
        steps.encoded(lambda: None, value, what="step 'x'")


def test_instants_are_plain() -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    assert there_and_back(untold, now) is not None


def test_a_digest_is_of_what_is_given_and_empty_if_that_is_no_data() -> None:
    assert steps.digest((), {}) == b""
    assert steps.digest((object(),), {}) == b""
    assert steps.digest((1, "a"), {"b": [2]}) == steps.digest((1, "a"), {"b": [2]})
    assert steps.digest((Item("a"),), {}) == steps.digest((Item("a"),), {}) != b""
    different = [((1,), {}), ((2,), {}), (("1",), {}), ((1, 1), {}), ((), {"a": 1}), ((), {"b": 1}), (([1],), {})]
    assert len({steps.digest(args, kwargs) for args, kwargs in different}) == len(different)
    assert steps.digest((), {"a": 1, "b": 2}) == steps.digest((), {"b": 2, "a": 1})


def test_a_type_that_cannot_be_stored_counts_as_none_told() -> None:
    """The result itself then says whether it can be read again."""

    async def odd() -> socket.socket:
        raise AssertionError

    data, value = steps.encoded(odd, 7, what="x")
    assert (value, steps.decoded(odd, data, what="x")) == (7, 7)
    with pytest.raises(MalformedMessage, match="returned object"):
        steps.encoded(odd, object(), what="x")
