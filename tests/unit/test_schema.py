"""Types as plain data: what a type takes its description takes, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest

from coterie.errors import MalformedMessage
from coterie.kernel.serialization import schema
from coterie.kernel.serialization.codec import PLAIN, codec_for


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Name(str):
    __slots__ = ()


@dataclass
class Approval:
    who: str
    cents: int = 0
    notes: list[str] = field(default_factory=list)


class Renamed(msgspec.Struct, rename="kebab"):
    first_name: str
    in_full: bool = False


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []


class Map(TypedDict, total=False):
    one: int


class Pair(NamedTuple):
    left: int
    right: str


@dataclass
class Large:
    """Of which the description is too large for a token."""

    first: Literal[tuple(f"choice {n}" for n in range(200))]  # type: ignore[valid-type]
    second: int


VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**40, 0.5, "", "yes please", "red", b"raw", [], [1], ["a"], [1, "a"], ["a", 1], {},
    {"one": 1},
    {"one": "x"}, {"who": "bob"}, {"who": "bob", "cents": 5}, {"who": "bob", "cents": "5"}, {"who": 5}, {"cents": 1},
    {"who": "bob", "notes": [1]}, {"first-name": "x"}, {"first_name": "x"}, {"type": "Cat", "lives": 9},
    {"type": "Dog", "name": "x"}, {"type": "Dog", "lives": 9}, {"value": 1}, {"value": 1, "children": [{"value": 2}]},
    {"value": 1, "children": 5}, datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01", "2026-01-01T00:00:00Z", "P1D", "1.5",
    "8c9d3bf0-5d4c-4c35-b2a3-2d3a6b0f0e11", 11, "abcdef", [1, 2, 3],
]  # fmt: skip
TYPES: list[Any] = [
    bool, int, float, str, bytes, None, Any, list[int], set[str], tuple[int, str], tuple[int, ...], dict[str, int],
    int | None, str | list[int], Literal["red", 1], Colour, Name, Approval, Renamed, Cat | Dog, Map, datetime, date,
    timedelta, Decimal, UUID, Annotated[int, msgspec.Meta(ge=10)],
    Annotated[str, msgspec.Meta(max_length=3, pattern="^a")], list[Approval],
    dict[str, Approval | None],
]  # fmt: skip


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_it_takes_what_the_type_takes_and_nothing_else(kind: Any) -> None:
    described = schema.codec_of(msgspec.msgpack.decode(msgspec.msgpack.encode(schema.describe(kind))))
    for value in VALUES:
        data = PLAIN.encode(value)
        assert _takes(described, data) == _takes(codec_for(kind), data), f"{kind} and {value!r}"


@pytest.mark.parametrize("kind", [Tree, Pair, Large])
def test_what_it_cannot_tell_it_takes_and_what_the_type_takes_too(kind: Any) -> None:
    """A type inside itself is anything there; of one that is too large the outermost part is known."""
    described = schema.codec_of(schema.describe(kind))
    for value in [*VALUES, {"first": "choice 7", "second": 1}]:
        data = PLAIN.encode(value)
        assert _takes(described, data) or not _takes(codec_for(kind), data), f"{kind} and {value!r}"
    if kind is not Pair:
        assert not _takes(described, PLAIN.encode("yes please"))


def test_it_is_small() -> None:
    assert schema.describe(bool) == "bool"
    assert schema.describe(Any) is None
    for kind in TYPES:
        assert len(msgspec.msgpack.encode(schema.describe(kind))) < 150
    assert len(msgspec.msgpack.encode(schema.describe(Large))) <= 1024


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (bool, "bool"),
        (Approval, "Approval"),
        (list[Approval], "list[Approval]"),
        (int | None, "int | None"),
        (Any, "any value"),
    ],
)
def test_it_has_a_name_for_people(kind: Any, name: str) -> None:
    assert schema.name_of(schema.describe(kind)).replace("Optional[int]", "int | None") == name


def _takes(codec: Any, data: bytes) -> bool:
    try:
        codec.decode(data)
    except MalformedMessage:
        return False
    return True
