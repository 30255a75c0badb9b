"""Idempotency keys: which calls are the same call, and whether they say the same [m9] [M4] [M6] (F9, STORE-08)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from coterie.entities.idempotency_key import can_be_key, derived_key, key_of, shown_key
from coterie.entities.rpc import Rpc, make_rpc, options_of, rpc
from coterie.errors import MalformedMessage

GOLDEN = Path(__file__).parent.parent / "golden" / "keys.txt"
KEYLESS = "00" * 16
MOMENT = datetime(2026, 3, 29, 0, 30, 0, 5, UTC)


class Color(Enum):
    RED = "red"
    NONE = ""


class Size(IntEnum):
    BIG = 7


class Name(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


def made(fn: Any, *, key: str | tuple[str, ...] | None = None) -> Rpc:
    marked = rpc(persisted=True, key=key)(fn)
    options = options_of(marked)
    assert options is not None
    return make_rpc(marked, options, object, name=fn.__name__, what=f"Shop.{fn.__name__}")


async def buy(self: Any, x: Any) -> None: ...
async def pair(self: Any, x: Any, *, y: Any) -> None: ...
async def triple(self: Any, x: Any, y: Any, z: Any) -> None: ...


BUY = made(buy, key="x")
BARE = made(buy)
PAIR = made(pair, key=("x", "y"))
TRIPLE = made(triple, key=("x", "y", "z"))


def typed(kind: Any) -> Rpc:
    async def typed(self: Any, x: Any) -> None: ...

    typed.__annotations__["x"] = kind
    return made(typed, key="x")


def sent(rpc: Rpc, *args: Any, explicit: str | None = None, **kwargs: Any) -> tuple[str | None, bytes]:
    return key_of(rpc, rpc.arguments.encode(args, kwargs), explicit)


def key(rpc: Rpc, *args: Any, **kwargs: Any) -> str:
    found = sent(rpc, *args, **kwargs)[0]
    assert found is not None
    return found


TEXTS = st.text(min_size=1) | st.text(alphabet="\\|0us:i\0", min_size=1)
PLAIN = TEXTS | st.integers(-(2**63), 2**64 - 1)
TYPED: dict[type, Rpc] = {kind: typed(kind) for kind in (str, int, UUID, datetime, date)}
VALUES = PLAIN | st.uuids() | st.dates() | st.datetimes() | st.datetimes(timezones=st.just(UTC))


def key_of_value(value: Any) -> str:
    return key(TYPED[type(value)], value)


@given(VALUES, VALUES)
def test_equal_keys_come_from_equal_values_of_equal_type(one: Any, other: Any) -> None:
    same = type(one) is type(other) and one == other
    assert (key_of_value(one) == key_of_value(other)) is same


@given(st.lists(PLAIN, min_size=1, max_size=3), st.lists(PLAIN, min_size=1, max_size=3))
def test_several_parameters_are_joined_without_ambiguity(one: list[Any], other: list[Any]) -> None:
    def joined(values: list[Any]) -> str:
        names = dict(zip("xyz", values, strict=False))
        return key({1: BUY, 2: PAIR, 3: TRIPLE}[len(values)], **names)

    assert (joined(one) == joined(other)) is (one == other)


def test_a_text_that_looks_like_two_parts_is_another_key() -> None:
    assert key(PAIR, "a", y=1) != key(BUY, "a|i:1")
    assert key(PAIR, "a", y="b|s:c") != key(TRIPLE, "a", "b", "c")


@given(st.text(alphabet=st.characters(codec=None), min_size=1, max_size=80))
def test_every_text_can_be_stored_whatever_is_in_it(text: str) -> None:
    stored = key(BARE, 1, explicit=text)
    stored.encode()  # half a surrogate pair would raise
    assert "\0" not in stored


@given(
    st.text(alphabet=st.characters(codec=None) | st.sampled_from("\\|\0\ud800"), min_size=1),
    st.text(alphabet=st.characters(codec=None) | st.sampled_from("\\|\0\ud800"), min_size=1),
)
def test_making_a_text_safe_makes_no_two_alike(one: str, other: str) -> None:
    assert (key(BARE, 1, explicit=one) == key(BARE, 1, explicit=other)) is (one == other)


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (str, "7", "s:7"),
        (int, 7, "i:7"),
        (Literal["a", "b"], "a", "s:a"),
        (Color, Color.RED, "s:red"),
        (Size, Size.BIG, "i:7"),
        (Name, Name("x"), "s:x"),
        (UUID, UUID(int=5), "u:00000000-0000-0000-0000-000000000005"),
        (date, date(2026, 3, 29), "d:2026-03-29"),
        (datetime, MOMENT, "t:2026-03-29T00:30:00.000005+00:00"),
        (datetime, MOMENT.replace(tzinfo=None), "t:2026-03-29T00:30:00.000005"),
        (str | None, "a", "s:a"),
        (Any, 7, "i:7"),
    ],
)
def test_a_short_key_is_stored_as_readable_text(kind: Any, value: Any, stored: str) -> None:
    """STORE-08."""
    assert key(typed(kind), value) == stored


def test_an_instant_counts_by_the_moment_not_by_its_zone() -> None:
    elsewhere = MOMENT.astimezone(timezone(timedelta(hours=2)))
    assert key(typed(datetime), MOMENT) == key(typed(datetime), elsewhere)


def test_a_long_key_is_stored_as_its_hash() -> None:
    """STORE-08: also by bytes, so that the index entry of the longest entity holds it."""
    assert key(BARE, 1, explicit="a" * 255) == "s:" + "a" * 255
    assert re.fullmatch(r"[0-9a-f]{64}", key(BARE, 1, explicit="a" * 256))
    assert re.fullmatch(r"[0-9a-f]{64}", key(BARE, 1, explicit="ü" * 255))
    assert key(BARE, 1, explicit="a" * 256) != key(BARE, 1, explicit="a" * 257)
    assert key(PAIR, "a" * 200, y="b" * 200) == key(PAIR, "a" * 200, y="b" * 200)


def test_an_explicit_key_beats_the_parameter_and_counts_as_text() -> None:
    assert key(BUY, "a", explicit="7") == key(BUY, "7") == key(BARE, "b", explicit="7")
    assert sent(BUY, "7", explicit="7") == sent(BUY, "7"), "so that one can repeat the other"


def test_a_call_without_a_key_costs_no_digest() -> None:
    assert sent(BARE, 1) == (None, b"")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "Shop.buy: x is nothing, which makes no key"),
        ("", "Shop.buy: x is empty text, which makes no key"),
        (True, "Shop.buy: x is of type bool, which makes no key"),
        (1.0, "Shop.buy: x is of type float, which makes no key"),
        ([1], "Shop.buy: x is of type list, which makes no key"),
        ({"a": 1}, "Shop.buy: x is of type dict, which makes no key"),
        (b"a", "Shop.buy: x is of type bytes, which makes no key"),
    ],
)
def test_a_value_that_makes_no_key_is_refused(value: Any, problem: str) -> None:
    with pytest.raises(MalformedMessage) as refused:
        sent(BUY, value)
    assert refused.value.message == problem
    assert refused.value.hint


def test_an_enum_whose_value_is_empty_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="x is empty text"):
        sent(typed(Color), Color.NONE)


def test_an_explicit_key_that_is_empty_or_no_text_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="the explicit key is empty text"):
        sent(BUY, "a", explicit="")
    with pytest.raises(TypeError, match=r"Shop\.buy: key is 7, and an explicit key is text"):
        sent(BUY, "a", explicit=7)  # type: ignore[arg-type] # that is the point


def test_the_key_of_a_call_inside_a_handler_cannot_be_made_by_a_user() -> None:
    """[M6]"""
    derived, digest = derived_key(BARE, BARE.arguments.encode((1,), {}), message_id=KEYLESS, number=2)
    assert derived == f"m:{KEYLESS}/2"
    assert key(BARE, 1, explicit=derived) != derived
    assert digest == sent(BARE, 1, explicit="a")[1], "another method or payload under this number is a conflict"


# Digests


@dataclass
class ItemV1:
    name: str


@dataclass
class ItemV2:
    name: str
    tags: list[str] = field(default_factory=list)


class ModelV1(BaseModel):
    item: ItemV1


class ModelV2(BaseModel):
    item: ItemV2
    note: str = ""


async def order_v1(self: Any, order_id: str, cents: int, model: ModelV1) -> None: ...
async def order_v2(
    self: Any,
    order: str,
    cents: int,
    model: ModelV2,
    gift: bool = False,
    *,
    tags: list[str] = ["new"],  # noqa: B006
) -> None: ...


def test_a_newer_caller_with_more_defaulted_parameters_and_fields_can_repeat_a_call() -> None:
    """[M4], and [m9]: the key's parameter was renamed, too."""
    first = sent(made(order_v1, key="order_id"), "7", 5, ModelV1(item=ItemV1("a")))
    newer = made(order_v2, key="order")
    assert sent(newer, "7", 5, ModelV2(item=ItemV2("a"))) == first
    assert sent(newer, "7", 5, ModelV2(item=ItemV2("a")), gift=False, tags=["new"]) == first
    assert sent(newer, "7", 5, ModelV2(item=ItemV2("a")), gift=True)[1] != first[1]
    assert sent(newer, "7", 5, ModelV2(item=ItemV2("a", tags=["x"])))[1] != first[1]
    assert sent(newer, "7", 6, ModelV2(item=ItemV2("a")))[1] != first[1]


def test_under_an_explicit_key_the_keys_parameters_count_too() -> None:
    assert sent(BUY, "a", explicit="7")[1] != sent(BUY, "b", explicit="7")[1]
    assert sent(PAIR, "a", y="b", explicit="7")[1] != sent(PAIR, "b", y="a", explicit="7")[1]


async def sets(self: Any, x: str, found: set[str], by: dict[str, int]) -> None: ...


@given(st.sets(st.text(max_size=3)), st.dictionaries(st.text(max_size=3), st.integers(0, 9)), st.randoms())
def test_the_order_of_sets_and_maps_is_no_part_of_the_digest(found: set[str], by: dict[str, int], chance: Any) -> None:
    method = made(sets, key="x")
    shuffled = list(by.items())
    chance.shuffle(shuffled)
    assert sent(method, "a", found, by) == sent(method, "a", {*reversed(list(found))}, dict(shuffled))


@given(st.integers(), st.integers())
def test_digests_differ_when_arguments_do(one: int, other: int) -> None:
    one, other = one % 2**63, other % 2**63
    assert (sent(BARE, one, explicit="k")[1] == sent(BARE, other, explicit="k")[1]) is (one == other)


def samples() -> str:
    calls = [
        sent(BUY, "order-7"),
        sent(BUY, 7),
        sent(BUY, -1),
        sent(BUY, "a|b\\c\0d"),
        sent(BARE, 1, explicit="\ud800"),
        sent(BARE, 1, explicit="ü" * 200),
        sent(typed(UUID), UUID(int=5)),
        sent(typed(datetime), MOMENT),
        sent(typed(date), date(2026, 3, 29)),
        sent(PAIR, "acme", y=7),
        sent(made(order_v1, key="order_id"), "7", 5, ModelV1(item=ItemV1("a"))),
        derived_key(BARE, BARE.arguments.encode((1,), {}), message_id=KEYLESS, number=2),
    ]
    return "".join(f"{stored} {digest.hex()}\n" for stored, digest in calls)


def test_keys_and_digests_are_the_same_in_every_version() -> None:
    """They are stored, and compared with those that other versions made: a change here forgets what was sent."""
    if "COTERIE_UPDATE_GOLDEN" in os.environ:
        GOLDEN.write_text(samples(), "utf-8")
    assert GOLDEN.read_text("utf-8") == samples()


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("s:order-7", "order-7"),
        ("i:7", "7"),
        (r"s:a\|b\\c\0d\ud800", r"a|b\c\0d\ud800"),
        (r"s:a\|i:1|i:7|d:2026-03-29", "a|i:1, 7, 2026-03-29"),
        (f"m:{KEYLESS}/2", f"call 2 of message {KEYLESS}"),
        ("ab" * 32, "sha256 " + "ab" * 32),
    ],
)
def test_a_stored_key_can_be_read_by_people(stored: str, shown: str) -> None:
    assert shown_key(stored) == shown


@pytest.mark.parametrize("kind", [float, bool, list[int], dict[str, int], bytes, ItemV1, ModelV1, None, float | None])
def test_a_parameter_that_never_makes_a_key_is_known_at_definition(kind: Any) -> None:
    assert not can_be_key(kind)
