"""The codec: what goes in comes out, by declared type; the rest is refused with a sentence (F1, S4, P24)."""

from __future__ import annotations

import contextlib
import io
import math
import resource
import subprocess
import sys
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from itertools import count
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import ConfigurationError, MalformedMessage
from coterie.kernel.ids import MessageId
from coterie.kernel.serialization.codec import NESTED_MOST, PLAIN, codec_for

AT = datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=2)))


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


@dataclass
class Item:
    name: str
    count: int = 1


@dataclass
class Order:
    cents: int
    items: list[Item] = field(default_factory=list)
    notes: dict[str, list[int]] = field(default_factory=dict)
    at: datetime | None = None
    color: Color = Color.RED
    by: UUID | None = None
    price: float = 0
    tags: set[str] = field(default_factory=set)


class OrderStruct(msgspec.Struct):
    cents: int
    items: list[Item] = []
    parent: OrderStruct | None = None


class Cat(msgspec.Struct, tag="cat"):
    lives: int = 9


class Dog(msgspec.Struct, tag="dog", rename="camel"):
    good_boy: bool = True


class Envelope(msgspec.Struct, array_like=True):
    id: int
    body: str = ""
    hops: int = 0


@attrs.define
class OrderAttrs:
    cents: int
    items: list[Item] = attrs.Factory(list)


class OrderMap(TypedDict):
    cents: int
    note: NotRequired[str]


class OrderModel(pydantic.BaseModel):
    cents: int
    tags: list[str] = pydantic.Field(default_factory=list, alias="labels")
    parent: OrderModel | None = None


class Pair(NamedTuple):
    left: int
    right: str = "r"


SAMPLES: list[tuple[Any, Any]] = [
    (Order, Order(5, [Item("a", 2)], {"x": [1]}, AT, Color.BLUE, UUID(int=7), 1.5, {"t", "u"})),
    (OrderStruct, OrderStruct(5, [Item("a")], OrderStruct(3))),
    (OrderAttrs, OrderAttrs(5, [Item("a")])),
    (OrderMap, {"cents": 5, "note": "x"}),
    (OrderModel, OrderModel(cents=5, labels=["x"], parent=OrderModel(cents=1))),
    (list[OrderModel], [OrderModel(cents=5)]),
    (dict[str, OrderModel | None], {"a": OrderModel(cents=5), "b": None}),
    (Cat | Dog, Dog(good_boy=False)),
    (Envelope, Envelope(1, "x")),
    (Pair, Pair(1, "x")),
    (tuple[int, str], (1, "x")),
    (frozenset[tuple[int, str]], frozenset({(1, "a"), (2, "b")})),
    (dict[int, str], {3: "c", 1: "a"}),
    (dict[Item | None, int], {None: 3}),
    (Literal["a", "b"], "a"),
    (Level, Level.LOW),
    (Decimal, Decimal("1.50")),
    (date, date(2026, 3, 29)),
    (timedelta, timedelta(seconds=1.5)),
    (datetime, AT),
    (bytes, b"\x00\xff"),
    (MessageId, MessageId("00ff")),
    (list[MessageId[int]], [MessageId("00ff")]),
    (int, 2**64 - 1),
    (int, -(2**63)),
    (None, None),
    (object, [1, "x"]),
    (Any, {"a": [1, 1.5, None, True, b"x", AT], 3: "x", (1, 2): "y"}),
    (Annotated[int, msgspec.Meta(ge=0)], 3),
]


@pytest.mark.parametrize(("kind", "value"), SAMPLES, ids=[f"{at}-{kind}"[:40] for at, (kind, _) in enumerate(SAMPLES)])
def test_what_goes_in_comes_out(kind: Any, value: Any) -> None:
    codec = codec_for(kind)
    copied = codec.copy(value)
    assert copied == value
    assert type(copied) is type(value)
    assert codec.checked(value) == codec.encode(value)


def test_a_copy_shares_nothing_with_the_original() -> None:
    order = Order(1, [Item("a")])
    copied = codec_for(Order).copy(order)
    copied.items[0].name = "b"
    assert order.items[0].name == "a"


def test_the_codec_of_a_type_is_made_once() -> None:
    assert codec_for(Order) is codec_for(Order)
    assert codec_for(Annotated[int, ["not hashable"]]).copy(3) == 3


@pytest.mark.parametrize("kind", [Order, OrderStruct, OrderAttrs, OrderModel])
def test_unknown_fields_are_dropped_and_missing_ones_take_their_defaults_s4(kind: Any) -> None:
    decoded = codec_for(kind).decode(PLAIN.encode({"cents": 5, "later": 1}))
    assert decoded == kind(cents=5)


def test_unknown_keys_of_a_typed_dict_are_dropped_s4() -> None:
    assert codec_for(OrderMap).decode(PLAIN.encode({"cents": 5, "later": 1})) == {"cents": 5}


def test_pydantic_models_are_read_by_field_name_not_alias() -> None:
    data = codec_for(OrderModel).encode(OrderModel(cents=1, labels=["x"]))
    assert PLAIN.decode(data) == {"cents": 1, "tags": ["x"], "parent": None}


def test_pydantic_is_never_imported_by_us() -> None:
    code = (
        "import sys, dataclasses; from coterie.kernel.serialization.codec import codec_for\n"
        "@dataclasses.dataclass\nclass A:\n  x: int = 1\n"
        "codec_for(A).canonical(A()); print('pydantic' in sys.modules, 'attr' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


def problem(kind: Any, value: Any) -> str:
    with pytest.raises(MalformedMessage) as caught:
        codec_for(kind).decode(PLAIN.encode(value), what="Account.charge")
    assert caught.value.what == "Account.charge"
    return caught.value.problem


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (Order, {"cents": "500"}, 'cents is "500" (text), expected a whole number'),
        (Order, {"cents": 1.5}, "cents is 1.5 (number), expected a whole number"),
        (Order, {"cents": True}, "cents is true (true or false), expected a whole number"),
        (Order, {"cents": None}, "cents is nothing, expected a whole number"),
        (Order, {"cents": [1, 2]}, "cents is a list of length 2, expected a whole number"),
        (Order, {"cents": AT}, "cents is an instant, expected a whole number"),
        (Order, {"cents": b"ab"}, "cents is bytes of length 2, expected a whole number"),
        (Order, {}, "cents is missing"),
        (Order, [1], "it is a list of length 1, expected a map"),
        (Order, {"cents": 1, "items": [{}]}, "items[0].name is missing"),
        (Order, {"cents": 1, "items": [{"name": 3}]}, "items[0].name is 3 (whole number), expected text"),
        (Order, {"cents": 1, "notes": {"k": [1, "2"]}}, "notes[…][1] is text, expected a whole number"),
        (Order, {"cents": 1, "notes": {5: []}}, "a key of notes is a whole number, expected text"),
        (
            Order,
            {"cents": 1, "color": "green"},
            'color is "green" (text), expected one of the values of its type',
        ),
        (Order, {"cents": 1, "by": "x"}, 'by is "x" (text), expected a UUID'),
        (Order, {"cents": 1, "at": 5}, "at is 5 (whole number), expected an instant or nothing"),
        (
            Order,
            {"cents": 1, "at": "y" * 50},
            f'at is "{"y" * 40}…" (text), expected an instant such as "2026-03-29T02:30:00+02:00"',
        ),
        (Annotated[int, msgspec.Meta(ge=3)], 1, "it is 1 (whole number), expected a whole number >= 3"),
        (tuple[int, int], [1], "it is a list of length 1, expected a list of length 2"),
        (list[MessageId[int]], [3], "[0] is 3 (whole number), expected text"),
        (Cat | Dog, {"type": "cow"}, 'type is "cow" (text), expected one of the values of its type'),
        (Decimal, "x", 'it is "x" (text), expected a decimal number'),
        (
            OrderModel,
            {"cents": "x"},
            "cents: input should be a valid integer, unable to parse string as an integer",
        ),
        (list[OrderModel], [{}], "[0]: cents: field required"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_a_sentence_f1(kind: Any, value: Any, said: str) -> None:
    assert problem(kind, value) == said


def test_checked_refuses_what_would_not_decode_before_it_is_stored() -> None:
    with pytest.raises(MalformedMessage, match="cents is"):
        codec_for(Order).checked(Order(cents="500"))  # type: ignore[arg-type] # that is the point


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": [1, {"b": print}]}, "a[1].b is a function, which is not data"),
        (Order(1, at=io.BytesIO()), "at is an open file, which is not data"),  # type: ignore[arg-type] # the point
        ([object()], "[0] is of type object, which is not data"),
        ({1: 1j}, "[1] is of type complex, which is not data"),
        (object(), "it is of type object, which is not data"),
        ({"n": 2**64}, "n is a whole number beyond 64 bits"),
        (OrderStruct(-(2**63) - 1), "cents is a whole number beyond 64 bits"),
        (["\ud800"], "[0] is text with half a surrogate pair, which is no Unicode"),
        ({"\ud800": 1}, "it (a key) is text with half a surrogate pair, which is no Unicode"),
    ],
)
def test_what_cannot_be_encoded_is_refused_with_its_place(value: Any, said: str) -> None:
    with pytest.raises(MalformedMessage) as caught:
        PLAIN.encode(value, what="kv")
    assert (caught.value.what, caught.value.problem) == ("kv", said)


def test_a_secret_of_pydantic_is_refused_rather_than_stored_as_stars() -> None:
    class Login(pydantic.BaseModel):
        password: pydantic.SecretStr

    with pytest.raises(MalformedMessage, match="password is of type SecretStr"):
        codec_for(Login).encode(Login(password=pydantic.SecretStr("x")))


@attrs.define
class _Private:
    _hidden: int = 0


@dataclass
class _WithInit:
    seed: InitVar[int]


@dataclass
class _Holder:
    inner: list[_Private] = field(default_factory=list)


@pytest.mark.parametrize(
    "kind",
    [
        _Private,
        _Holder,
        _WithInit,
        complex,
        list[complex],
        msgspec.Raw,
        msgspec.msgpack.Ext,
        Order | Item,
        io.BytesIO,
    ],
)
def test_a_type_that_would_lose_data_is_refused_at_definition(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot be stored or sent"):
        codec_for(kind)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


class Tree(msgspec.Struct):
    kids: list[Tree] = []


def test_nesting_has_a_bound_that_holds_for_both_directions_p24() -> None:
    assert PLAIN.copy(nested(NESTED_MOST)) == nested(NESTED_MOST)
    with pytest.raises(MalformedMessage, match="nested deeper than 64 levels"):
        PLAIN.encode(nested(NESTED_MOST + 1))
    with pytest.raises(MalformedMessage, match="nested deeper than 64 levels"):
        PLAIN.decode(b"\x91" * NESTED_MOST + b"\x90")
    with pytest.raises(MalformedMessage, match="nested deeper than 64 levels"):
        PLAIN.decode(b"\x81\xa1k" * NESTED_MOST + b"\x80")


@pytest.mark.parametrize("bomb", [b"\x91" * 1_000_000, b"\x81\xa1k" * 300_000, b"\x81\xa4kids\x91" * 300_000])
@pytest.mark.parametrize("kind", [Any, Tree, list[Any], Order])
def test_a_depth_bomb_is_malformed_and_never_a_recursion_error_p24(kind: Any, bomb: bytes) -> None:
    with pytest.raises(MalformedMessage):
        codec_for(kind).decode(bomb)


def test_a_value_that_contains_itself_is_refused_p24() -> None:
    loop: list[Any] = []
    loop.append(loop)
    tree = Tree()
    tree.kids.append(tree)
    for value in (loop, tree, {"a": loop}):
        with pytest.raises(MalformedMessage, match="contains itself"):
            PLAIN.encode(value)
        with pytest.raises(MalformedMessage, match="contains itself"):
            PLAIN.canonical(value)


def test_a_declared_length_costs_no_memory_p24() -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for head in (b"\xdd", b"\xdf", b"\xc6", b"\xdb"):
        for kind in (Any, list[int], dict[str, int], set[int], bytes, str):
            with pytest.raises(MalformedMessage):
                codec_for(kind).decode(head + b"\x7f\xff\xff\xff")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 50_000


def test_texts_full_of_head_bytes_are_not_taken_for_nesting() -> None:
    value = {"a": "\x90" * 500, "b": b"\x91" * 500, "c": [[0x9090909090]] * 100}
    assert PLAIN.copy(value) == value


def test_msgpack_extensions_are_refused_but_for_the_timestamp() -> None:
    data = msgspec.msgpack.encode({"cents": msgspec.msgpack.Ext(5, b"x")})
    with pytest.raises(MalformedMessage, match="msgpack extension 5 is not accepted"):
        PLAIN.decode(data)
    with pytest.raises(MalformedMessage, match="cents is a msgpack extension, expected a whole number"):
        codec_for(Order).decode(data)
    assert PLAIN.copy(AT) == AT


@settings(max_examples=300)
@given(st.binary(max_size=200))
@pytest.mark.parametrize("kind", [Any, Order, OrderModel, Cat | Dog, Tree])
def test_any_bytes_are_a_value_or_malformed_p24(kind: Any, data: bytes) -> None:
    with contextlib.suppress(MalformedMessage):
        codec_for(kind).decode(data)


def test_an_error_of_the_users_own_class_is_malformed_too() -> None:
    @dataclass
    class Odd:
        x: int

        def __post_init__(self) -> None:
            raise KeyError("odd")

    with pytest.raises(MalformedMessage, match="odd"):
        codec_for(Odd).decode(PLAIN.encode({"x": 1}))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_plain_values_survive(value: Any) -> None:
    assert repr(PLAIN.copy(value)) == repr(value)


@given(VALUES, st.randoms(use_true_random=False))
def test_the_canonical_encoding_does_not_know_the_order_of_maps_m4(value: Any, chance: Any) -> None:
    assert PLAIN.canonical(value) == PLAIN.canonical(shuffled(value, chance))


def shuffled(value: Any, chance: Any) -> Any:
    if isinstance(value, dict):
        items = [(key, shuffled(part, chance)) for key, part in value.items()]
        chance.shuffle(items)
        return dict(items)
    return [shuffled(part, chance) for part in value] if isinstance(value, list) else value


@given(VALUES, VALUES)
def test_different_values_have_different_canonical_encodings_m4(one: Any, other: Any) -> None:
    same = PLAIN.canonical(one) == PLAIN.canonical(other)
    assert same == (distinct(one) == distinct(other))


def distinct(value: Any) -> Any:
    """The value so that == means what the canonical encoding means: True is not 1, and NaN is NaN."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, float) and math.isnan(value):
        return "NaN", ...
    if isinstance(value, dict):
        return "map", {distinct(key): distinct(part) for key, part in value.items()}
    return ("list", [distinct(part) for part in value]) if isinstance(value, list) else value


ORDERS = st.builds(
    Order,
    cents=st.integers(-100, 100),
    items=st.lists(st.builds(Item, name=st.text(max_size=3), count=st.integers(0, 2)), max_size=2),
    color=st.sampled_from(Color),
    price=st.integers(0, 2) | st.floats(0, 2),
    tags=st.sets(st.text(max_size=2)),
)


@given(ORDERS, ORDERS)
def test_canonical_encodings_are_equal_exactly_for_equal_values_m4(one: Order, other: Order) -> None:
    codec = codec_for(Order)
    assert (codec.canonical(one) == codec.canonical(other)) == (one == other)
    assert codec.decode(codec.canonical(one)) == one


def older_and_newer() -> list[Any]:
    @dataclass
    class DataOld:
        b: int
        a: float = 0

    @dataclass
    class DataNew:
        a: float = 0
        extra: list[int] = field(default_factory=lambda: [1])
        b: int = field(kw_only=True)

    @attrs.define
    class AttrsNew:
        b: int
        a: float = 0
        extra: dict[str, int] = attrs.Factory(dict)

    class StructNew(msgspec.Struct, kw_only=True):
        extra: Item = msgspec.field(default_factory=lambda: Item("x"))
        a: float = 0
        b: int

    class ModelNew(pydantic.BaseModel):
        b: int
        a: float = 0
        extra: Item | None = None
        more: list[int] = pydantic.Field(default_factory=list)

    return [DataOld, DataNew, AttrsNew, StructNew, ModelNew]


@pytest.mark.parametrize("fields", [{"b": 1}, {"b": 1, "a": 0.0}, {"b": 1, "a": 2.5}, {"b": 0, "a": 3}])
def test_one_more_field_with_a_default_compares_equal_m4(fields: dict[str, Any]) -> None:
    encodings = {codec_for(kind).canonical(kind(**fields)) for kind in older_and_newer()}
    assert len(encodings) == 1


def test_the_last_fields_of_an_array_like_struct_are_left_out_at_their_default_m4() -> None:
    codec = codec_for(Envelope)
    assert codec.canonical(Envelope(1)) == b"\x91\x01"
    assert codec.canonical(Envelope(1, hops=2)) == b"\x93\x01\xa0\x02"


def test_a_tag_is_part_of_the_canonical_encoding() -> None:
    codec = codec_for(Cat | Dog)
    assert codec.canonical(Cat()) != codec.canonical(Dog())


def test_a_default_that_is_another_each_time_is_never_left_out() -> None:
    numbers = count()

    @dataclass
    class Numbered:
        number: int = field(default_factory=lambda: next(numbers))

    codec = codec_for(Numbered)
    for number in range(5):
        assert codec.canonical(Numbered(number)) == b"\x81\xa6number" + bytes([number])


def test_equal_instants_of_other_zones_compare_equal() -> None:
    assert codec_for(datetime).canonical(AT) == codec_for(datetime).canonical(AT.astimezone(UTC))


SEEDED = """
from dataclasses import dataclass, field
from typing import Any
from coterie.kernel.serialization.codec import codec_for
@dataclass
class A:
    names: set[str]
    groups: frozenset[frozenset[str]]
    any: Any = None
names = {"a", "b", "c", "dd", "ee", "f"}
pairs = frozenset(frozenset({x, y}) for x in names for y in names)
value = A(names, pairs, {1: names, "x": {("t", n) for n in names}})
print(codec_for(A).canonical(value).hex(), codec_for(Any).canonical([value, names]).hex())
"""


def test_the_canonical_encoding_does_not_know_the_hash_seed_m4() -> None:
    seen = set()
    for seed in ("0", "1", "2", "3"):
        environ = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run([sys.executable, "-c", SEEDED], capture_output=True, text=True, check=True, env=environ)
        seen.add(done.stdout)
    assert len(seen) == 1


@given(st.binary() | st.text() | st.booleans() | st.floats(allow_nan=False))
def test_what_is_not_checked_decodes_all_the_same(value: bytes | str | bool | float) -> None:
    codec: Any = codec_for(type(value))
    assert codec.decode(codec.checked(value)) == value


@pytest.mark.parametrize(("kind", "value"), [(str, "\ud800"), (str, b"a"), (bytes, "a"), (bool, 1), (float, "1.0")])
def test_what_is_of_another_type_is_still_refused(kind: type, value: Any) -> None:
    with pytest.raises(MalformedMessage):
        codec_for(kind).checked(value)
