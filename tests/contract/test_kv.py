"""What every storage must do with keys and values (K1); run unchanged on PostgreSQL, a SQLite file and memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.storage.interface import KvPut, KvRemove, KvSwap

if TYPE_CHECKING:
    from coterie.storage.interface import Storage
    from tests.contract.conftest import Passing

HOSTILE = [
    "%",
    "_",
    "a%",
    "'",
    '"',
    "\n",
    "a\u202eb",
    "../x",
    "%00",
    "'; drop table kv; --",
    "<b>",
    "é",
    "😀",
    "\U0010ffff",
    "x" * 1000,
]


async def put(storage: Storage, key: str, value: bytes = b"v", stamp: int = 1, ttl_s: float | None = None) -> None:
    await storage.kv.put(KvPut(key, value, stamp, ttl_s))


async def keys(storage: Storage, prefix: str = "") -> list[str]:
    return [entry.key for entry in await storage.kv.page(prefix, after=None, most=10_000)]


async def test_what_is_put_is_got_until_it_is_removed(storage: Storage) -> None:
    assert await storage.kv.get("a") is None
    await put(storage, "a", b"\x00\xff", stamp=7)
    entry = await storage.kv.get("a")
    assert entry is not None
    assert (entry.key, entry.value, entry.stamp) == ("a", b"\x00\xff", 7)
    assert await storage.kv.remove(KvRemove("a")) is True
    assert await storage.kv.remove(KvRemove("a")) is False
    assert await storage.kv.get("a") is None


async def test_a_put_replaces_value_stamp_and_expiry(storage: Storage) -> None:
    await put(storage, "a", b"1", stamp=1, ttl_s=3600)
    await put(storage, "a", b"2", stamp=2)
    entry = await storage.kv.get("a")
    assert entry is not None
    assert (entry.value, entry.stamp) == (b"2", 2)


async def test_the_largest_stamp_fits(storage: Storage) -> None:
    await put(storage, "a", stamp=2**63 - 1)
    entry = await storage.kv.get("a")
    assert entry is not None
    assert entry.stamp == 2**63 - 1


@pytest.mark.parametrize("key", HOSTILE)
async def test_hostile_keys_are_only_keys(storage: Storage, key: str) -> None:
    await put(storage, "other")
    await put(storage, key, b"mine")
    assert sorted(await keys(storage), key=str.encode) == sorted({"other", key}, key=str.encode)
    assert await keys(storage, key) == [key]
    assert await storage.kv.count(key) == 1
    assert await storage.kv.clear(key) == 1
    assert await keys(storage) == ["other"]


async def test_pages_are_in_byte_order_and_start_past_a_key(storage: Storage) -> None:
    names = ["a", "B", "é", "z", "😀", "\uffff", "a:", "a:1", "a:2", "b"]
    for name in names:
        await put(storage, name)
    expected = sorted(names, key=lambda name: name.encode())
    assert await keys(storage) == expected
    first = await storage.kv.page("", after=None, most=3)
    rest = await storage.kv.page("", after=first[-1].key, most=100)
    assert [entry.key for entry in [*first, *rest]] == expected
    assert [entry.key for entry in await storage.kv.page("a:", after="a:1", most=10)] == ["a:2"]


async def test_a_prefix_means_its_characters(storage: Storage) -> None:
    for key in ["a", "ab", "a%b", "a_b", "A", "\U0010ffff", "\U0010ffff\U0010ffff", "b"]:
        await put(storage, key)
    assert await keys(storage, "a") == ["a", "a%b", "a_b", "ab"]
    assert await keys(storage, "a%") == ["a%b"]
    assert await keys(storage, "\U0010ffff") == ["\U0010ffff", "\U0010ffff\U0010ffff"]
    assert await storage.kv.count("") == 8
    assert await storage.kv.clear("a") == 4
    assert await storage.kv.count("") == 4


async def test_a_swap_needs_the_stamp_that_was_read(storage: Storage) -> None:
    await put(storage, "a", b"1", stamp=1)
    assert await storage.kv.swap(KvSwap("a", 1, b"2", 2)) is True
    assert await storage.kv.swap(KvSwap("a", 1, b"3", 3)) is False
    assert await storage.kv.swap(KvSwap("a", None, b"3", 3)) is False
    entry = await storage.kv.get("a")
    assert entry is not None
    assert (entry.value, entry.stamp) == (b"2", 2)


async def test_a_swap_of_an_absent_key_needs_it_absent(storage: Storage) -> None:
    assert await storage.kv.swap(KvSwap("a", 5, b"1", 1)) is False
    assert await storage.kv.swap(KvSwap("a", None, b"1", 1)) is True
    assert await storage.kv.swap(KvSwap("a", None, b"2", 2)) is False
    assert await storage.kv.swap(KvSwap("b", None, None, 3)) is True, "removing what is absent changes nothing"
    assert await storage.kv.get("b") is None


async def test_a_swap_to_nothing_removes(storage: Storage) -> None:
    await put(storage, "a", b"1", stamp=1)
    assert await storage.kv.swap(KvSwap("a", 9, None, 2)) is False
    assert await storage.kv.swap(KvSwap("a", 1, None, 2)) is True
    assert await storage.kv.get("a") is None


async def test_of_many_swaps_at_once_one_wins(storage: Storage) -> None:
    await put(storage, "a", b"0", stamp=1)
    won = await asyncio.gather(*(storage.kv.swap(KvSwap("a", 1, b"%d" % n, 100 + n)) for n in range(50)))
    assert won.count(True) == 1
    entry = await storage.kv.get("a")
    assert entry is not None
    assert entry.stamp == 100 + won.index(True)
    assert entry.value == b"%d" % won.index(True)


async def test_of_many_first_swaps_at_once_one_wins(storage: Storage) -> None:
    won = await asyncio.gather(*(storage.kv.swap(KvSwap("a", None, b"%d" % n, 100 + n)) for n in range(50)))
    assert won.count(True) == 1
    entry = await storage.kv.get("a")
    assert entry is not None
    assert entry.stamp == 100 + won.index(True)


async def test_concurrent_puts_of_one_key_leave_one_of_them(storage: Storage) -> None:
    await asyncio.gather(*(put(storage, "a", b"%d" % n, stamp=n) for n in range(100)))
    entry = await storage.kv.get("a")
    assert entry is not None
    assert entry.value == b"%d" % entry.stamp


async def test_concurrent_writes_of_all_kinds_each_get_their_own_result(storage: Storage) -> None:
    for n in range(30):
        await put(storage, f"gone{n}", stamp=1)
    puts = [put(storage, f"put{n}", b"%d" % n) for n in range(30)]
    swaps = [storage.kv.swap(KvSwap(f"swap{n}", None if n % 2 else 4, b"x", n + 1)) for n in range(30)]
    removes = [storage.kv.remove(KvRemove(f"gone{n * 2}")) for n in range(30)]
    results = await asyncio.gather(*puts, *swaps, *removes)
    assert results[:30] == [None] * 30
    assert results[30:60] == [n % 2 == 1 for n in range(30)]
    assert results[60:] == [n < 15 for n in range(30)]
    assert await storage.kv.count("put") == 30
    assert await storage.kv.count("swap") == 15
    assert await storage.kv.count("gone") == 15


async def test_what_has_expired_is_as_good_as_absent(storage: Storage, passing: Passing) -> None:
    await put(storage, "short", b"1", stamp=1, ttl_s=0.05)
    await put(storage, "long", b"2", stamp=2, ttl_s=3600)
    await put(storage, "ever", b"3", stamp=3)
    await passing(0.06)
    assert await storage.kv.get("short") is None
    assert await keys(storage) == ["ever", "long"]
    assert await storage.kv.count("") == 2
    assert await storage.kv.remove(KvRemove("short")) is False


async def test_an_expired_key_can_be_swapped_in_as_absent_only(storage: Storage, passing: Passing) -> None:
    for name in ("a", "b", "c"):
        await put(storage, name, b"1", stamp=1, ttl_s=0.05)
    await passing(0.06)
    assert await storage.kv.swap(KvSwap("a", 1, b"2", 2)) is False, "its stamp died with it"
    assert await storage.kv.swap(KvSwap("b", None, b"2", 2)) is True
    assert await storage.kv.swap(KvSwap("c", None, None, 2)) is True
    entry = await storage.kv.get("b")
    assert entry is not None
    assert entry.value == b"2"


async def test_purge_deletes_only_what_has_expired_and_no_more_than_asked(storage: Storage, passing: Passing) -> None:
    for n in range(5):
        await put(storage, f"short{n}", ttl_s=0.05)
    await put(storage, "long", ttl_s=3600)
    await put(storage, "ever")
    await passing(0.06)
    assert await storage.kv.purge(most=3) == 3
    assert await storage.kv.purge(most=100) == 2
    assert await storage.kv.purge(most=100) == 0
    assert await keys(storage) == ["ever", "long"]


async def test_clear_counts_what_was_alive(storage: Storage, passing: Passing) -> None:
    await put(storage, "short", ttl_s=0.05)
    await put(storage, "ever")
    await passing(0.06)
    assert await storage.kv.clear("") == 1
    assert await storage.kv.purge(most=10) == 0, "expired ones go too"


async def test_clusters_in_one_database_do_not_see_each_other(storage: Storage, neighbour: Storage) -> None:
    await put(storage, "a", b"mine")
    await put(neighbour, "a", b"theirs", ttl_s=3600)
    await put(neighbour, "b", b"theirs")
    entry = await storage.kv.get("a")
    assert entry is not None
    assert entry.value == b"mine"
    assert await keys(storage) == ["a"]
    assert await storage.kv.clear("") == 1
    assert await neighbour.kv.count("") == 2


async def test_a_value_of_a_megabyte_comes_back(storage: Storage) -> None:
    value = bytes(range(256)) * 4096
    await put(storage, "big", value)
    entry = await storage.kv.get("big")
    assert entry is not None
    assert entry.value == value


async def test_the_databases_clock_is_an_aware_instant_that_moves(storage: Storage) -> None:
    first, second = await storage.now(), await storage.now()
    assert first.tzinfo is not None
    assert second >= first


operations = st.lists(
    st.tuples(
        st.sampled_from(["put", "swap", "swap_new", "drop", "remove", "clear"]),
        st.sampled_from(["a", "ab", "b", "😀"]),
        st.binary(max_size=4),
    ),
    max_size=25,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=operations)
async def test_any_sequence_of_writes_agrees_with_a_plain_dict(
    storage: Storage, script: list[tuple[str, str, bytes]]
) -> None:
    await storage.kv.clear("")
    model: dict[str, tuple[bytes, int]] = {}
    for stamp, (what, key, value) in enumerate(script, start=1):
        held = model.get(key)
        if what == "put":
            await put(storage, key, value, stamp)
            model[key] = (value, stamp)
        elif what == "swap":
            done = await storage.kv.swap(KvSwap(key, held[1] if held else 0, value, stamp))
            assert done is (held is not None)
            if held:
                model[key] = (value, stamp)
        elif what == "swap_new":
            done = await storage.kv.swap(KvSwap(key, None, value, stamp))
            assert done is (held is None)
            if not held:
                model[key] = (value, stamp)
        elif what == "drop":
            assert await storage.kv.swap(KvSwap(key, held[1] if held else None, None, stamp)) is True
            model.pop(key, None)
        elif what == "remove":
            assert await storage.kv.remove(KvRemove(key)) is (held is not None)
            model.pop(key, None)
        else:
            doomed = [name for name in model if name.startswith(key)]
            assert await storage.kv.clear(key) == len(doomed)
            for name in doomed:
                del model[name]
    found = {entry.key: (entry.value, entry.stamp) for entry in await storage.kv.page("", after=None, most=100)}
    assert found == model
