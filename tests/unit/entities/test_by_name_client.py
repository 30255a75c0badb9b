"""Arguments as people write them: JSON by name, checked by the method's own types (F1)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from coterie import Entity, MalformedMessage, rpc
from coterie.entities.calls.by_name_client import Invoke, decode_question, encode
from coterie.entities.definition import define


class Colour(Enum):
    RED = "red"


@dataclass
class Item:
    name: str
    cents: int = 5


class Shop(Entity):
    @rpc
    async def take(
        self, at: datetime, id: UUID, data: bytes, price: Decimal, items: list[Item], by: dict[int, Colour]
    ) -> None: ...

    @rpc
    async def some(self, name: str = "x", *, cents: int = 1, more: Any = None) -> None: ...


RPCS = define(Shop).rpcs


def test_json_has_texts_for_what_it_has_no_values_for() -> None:
    payload = RPCS["take"].arguments.from_json(
        b'{"at": "2026-03-29T02:30:00+02:00", "id": "11111111-2222-3333-4444-555555555555", "data": "AP8=",'
        b' "price": "1.50", "items": [{"name": "pen"}, {"name": "ink", "cents": 7}], "by": {"1": "red"}}'
    )
    args, _ = RPCS["take"].arguments.decode(payload)
    at, id_, *rest = args
    assert at == datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
    assert (id_, rest) == (
        UUID("11111111-2222-3333-4444-555555555555"),
        [b"\x00\xff", Decimal("1.50"), [Item("pen"), Item("ink", 7)], {1: Colour.RED}],
    )


@pytest.mark.parametrize(
    ("given", "args", "kwargs"),
    [
        ("{}", ("x",), {"cents": 1, "more": None}),
        ('{"cents": 3, "name": "y"}', ("y",), {"cents": 3, "more": None}),
        ('{"more": {"a": [1, null, 1.5]}}', ("x",), {"cents": 1, "more": {"a": [1, None, 1.5]}}),
    ],
)
def test_what_is_left_out_has_its_default(given: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    arguments = RPCS["some"].arguments
    assert arguments.decode(arguments.from_json(given.encode())) == (args, kwargs)


def test_the_payload_is_that_of_a_typed_call() -> None:
    """M4: so keys and digests are the same, whoever calls."""
    arguments = RPCS["some"].arguments
    assert arguments.from_json(b'{"name": "y", "cents": 3}') == arguments.encode(("y",), {"cents": 3})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ('{"cents": "3"}', 'cents is "3" (text), expected a whole number'),
        ('{"cents": 1.5}', "cents is 1.5 (number), expected a whole number"),
        ('{"cent": 3}', 'it has no parameter "cent"'),
        ("[1]", "its arguments are no JSON map"),
        ("{", "its arguments are no JSON map"),
        ("", "its arguments are no JSON map"),
        ('{"more": ' + "[" * 200 + "]" * 200 + "}", "it is nested deeper than 64 levels, or contains itself"),
        ('{"more": ' + "[" * 100_000 + "]" * 100_000 + "}", "its arguments are no JSON map"),
    ],
    ids=["text", "fraction", "unknown", "list", "broken", "empty", "deep", "deeper"],
)
def test_what_does_not_fit_is_refused(given: str, problem: str) -> None:
    with pytest.raises(MalformedMessage) as refused:
        RPCS["some"].arguments.from_json(given.encode())
    assert (refused.value.what, refused.value.problem) == ("Shop.some", problem)


def test_an_instant_that_is_none_is_refused() -> None:
    with pytest.raises(MalformedMessage, match=r"at is .*, expected an instant"):
        RPCS["take"].arguments.from_json(b'{"at": "tomorrow"}')


def test_a_question_of_a_later_version_is_understood() -> None:
    """Fields that are not known here are dropped."""
    asked = Invoke(entity_type="Shop", entity_id="a", method="some", arguments=b"{}")
    assert decode_question(encode(asked)) == asked
    newer = {"type": "invoke", "entity_type": "Shop", "entity_id": "a", "method": "some", "arguments": b"{}", "new": 1}
    assert decode_question(encode(newer)) == asked
