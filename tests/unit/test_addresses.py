"""Addresses: shards print and parse, message ids sort, the hash that places entities never changes."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kernel.clock import to_datetime
from coterie.kernel.ids import EntityAddress, MessageId, MessageIds, ShardId, new_incarnation, shard_number
from coterie.kernel.random import Random
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Sequence

START_AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
groups = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=100)


def test_a_shard_prints_as_group_and_number_k3() -> None:
    assert str(ShardId("default", 42)) == "default:42"
    assert ShardId.parse("default:42") == ShardId("default", 42)


@settings(deadline=None)
@given(groups, st.integers(0, 2**31 - 1))
def test_a_printed_shard_parses_back_k3(group: str, number: int) -> None:
    shard = ShardId(group, number)
    assert ShardId.parse(str(shard)) == shard
    assert hash(ShardId.parse(str(shard))) == hash(shard)


def test_shards_sort_by_group_and_then_by_number() -> None:
    shards = [ShardId("b", 0), ShardId("a", 10), ShardId("a", 9)]
    assert sorted(shards) == [ShardId("a", 9), ShardId("a", 10), ShardId("b", 0)]


NO_SHARDS = [
    "",
    "default",
    "default:",
    ":1",
    "default:-1",
    "default:042",
    "default:1 ",
    "default:1\n",
    "a:b:1",
]
NO_SHARDS += ["ü:1", "g\n:1", "default:٣", f"{'g' * 65}:1", "default:2147483648", "default:99999999999"]


@pytest.mark.parametrize("text", NO_SHARDS)
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="shard"):
        ShardId.parse(text)


def test_the_refusal_shows_how_a_shard_is_written() -> None:
    with pytest.raises(ValueError, match=r"'default' is not a shard: write group and number, as in \"default:42\""):
        ShardId.parse("default")


def test_an_entity_prints_as_type_and_id() -> None:
    assert str(EntityAddress("Account", "alice")) == "Account/alice"
    assert EntityAddress.parse("Account/eu/alice") == EntityAddress("Account", "eu/alice")


@settings(deadline=None)
@given(names.filter(lambda name: "/" not in name), names)
def test_a_printed_entity_parses_back(type: str, id: str) -> None:
    address = EntityAddress(type, id)
    assert EntityAddress.parse(str(address)) == address


@pytest.mark.parametrize("text", ["", "Account", "Account/", "/alice", "Account/a\0b", "Account/\ud800"])
def test_what_is_no_entity_or_cannot_be_stored_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        EntityAddress.parse(text)


def test_a_type_cannot_have_the_slash_that_divides_it_from_the_id() -> None:
    with pytest.raises(ValueError, match="which divides type and id"):
        EntityAddress("a/b", "c")


def test_an_id_too_long_for_an_index_is_refused_by_its_size_in_bytes() -> None:
    EntityAddress("Account", "x" * 1000)
    with pytest.raises(ValueError, match="has 1002 bytes, more than 1000"):
        EntityAddress("Account", "ü" * 501)


def test_an_incarnation_has_128_random_bits() -> None:
    seen = {new_incarnation(Random()) for _ in range(100)}
    assert len(seen) == 100
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in seen)


def test_a_message_id_is_a_text_that_survives_copying_and_pickling() -> None:
    message_id: MessageId[int] = MessageId("00" * 16)
    for twin in (copy.copy(message_id), pickle.loads(pickle.dumps(message_id))):
        assert twin == message_id == "00" * 16
        assert type(twin) is MessageId
    assert MessageId[int]("ab") == "ab"


def drawn_at(message_id: str) -> datetime:
    return to_datetime(int(message_id[:12], 16) * 1_000_000)


def test_a_message_id_tells_when_it_was_drawn() -> None:
    drawn = MessageIds(ManualClock(START_AT), Random(1)).draw()
    assert len(drawn) == 32
    assert drawn == drawn.lower()
    assert drawn_at(drawn) == START_AT


def test_ids_of_one_sender_sort_when_more_than_65536_are_drawn_in_a_millisecond_m15() -> None:
    ids = MessageIds(ManualClock(START_AT), Random(1))
    drawn = [ids.draw() for _ in range(2 * 65_536 + 3)]
    assert all(one < two for one, two in pairwise(drawn))
    assert drawn_at(drawn[65_535]) == START_AT
    assert drawn_at(drawn[-1]) == START_AT + timedelta(milliseconds=2)


@settings(deadline=None)
@given(st.lists(st.timedeltas(timedelta(days=-400), timedelta(days=400)), max_size=50))
def test_ids_of_one_sender_sort_whatever_the_clock_does_m15(steps: Sequence[timedelta]) -> None:
    clock = ManualClock(START_AT)
    ids = MessageIds(clock, Random(1))
    drawn = [ids.draw()]
    for step in steps:
        clock.step_wall(step)
        drawn.append(ids.draw())
    assert all(one < two for one, two in pairwise(drawn))


def test_ids_of_two_senders_at_the_same_instant_differ_m15() -> None:
    clock = ManualClock(START_AT)
    assert MessageIds(clock, Random(1)).draw() != MessageIds(clock, Random(2)).draw()


@pytest.mark.parametrize(
    ("entity_type", "entity_id", "shards", "number"),
    [  # printf '\0\0\0\7Accountalice' | b2sum -l 64 gives 300e7f0d1bff1604, which is 60 modulo 100
        ("Account", "alice", 100, 60),
        ("Account", "bob", 100, 56),
        ("Order", "ü/7", 100, 81),
        ("Account", "alice", 2**20, 988_676),
        ("Account", "alice", 1, 0),
    ],
)
def test_an_entity_has_the_same_shard_in_every_version(
    entity_type: str, entity_id: str, shards: int, number: int
) -> None:
    assert shard_number(entity_type, entity_id, shards) == number


def test_type_and_id_are_told_apart_by_the_hash() -> None:
    many = 2**62
    assert shard_number("ab", "c", many) != shard_number("a", "bc", many) != shard_number("abc", "", many)


def test_entities_are_spread_evenly_over_the_shards() -> None:
    counts = Counter(shard_number("Account", f"customer-{number}", 100) for number in range(100_000))
    assert len(counts) == 100
    assert min(counts.values()) > 850  # 1,000 on average, with a deviation of 32
    assert max(counts.values()) < 1_150


def test_a_group_without_shards_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one shard"):
        shard_number("Account", "alice", 0)
