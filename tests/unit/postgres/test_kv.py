"""Keys on PostgreSQL: prefixes as ranges, hostile texts, and real groups against a model (K1)."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import PersistenceError
from coterie.storage.interface import KvPut, KvRemove, KvSwap, Write
from coterie.storage.postgres import PostgresStorage, kv
from coterie.storage.postgres.kv import span
from tests.unit.postgres.test_batch_plan import State, one_by_one

LAST = chr(sys.maxunicode)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)


@given(prefix=texts, key=texts)
def test_a_range_holds_exactly_the_keys_with_the_prefix(prefix: str, key: str) -> None:
    low, high = span(prefix, after=None)
    assert (low <= key and (high is None or key < high)) == key.startswith(prefix)


@given(prefix=texts, after=texts, key=texts)
def test_a_page_begins_right_past_the_key_before_it(prefix: str, after: str, key: str) -> None:
    low, high = span(prefix, after=after)
    within = low <= key and (high is None or key < high)
    assert within == (key.startswith(prefix) and key > after)


def test_the_last_characters_have_no_upper_bound_and_surrogates_are_jumped() -> None:
    assert span("", after=None) == ("", None)
    assert span(LAST * 3, after=None) == (LAST * 3, None)
    assert span("a" + LAST, after=None) == ("a" + LAST, "b")
    assert span("\ud7ff", after=None) == ("\ud7ff", "\ue000")


@pytest.mark.postgres
@pytest.mark.parametrize("prefix", ["", "%", "_", "a", "a%", "\\", "é", "\ud7ff", "\U0001f600", LAST, "a" + LAST])
async def test_hostile_prefixes_are_taken_by_the_letter(storage: PostgresStorage, prefix: str) -> None:
    """K1: in pages, counts and clearing."""
    keys = ["", "%", "%x", "_", "a", "a%", "a_", "a%b", "ab", "A", "\\", "é", "éa", "\ud7ff", "\ue000"]
    keys += ["\U0001f600", "\U0001f600x", LAST, LAST + LAST, "a" + LAST, "a" + LAST + "z", "a\x01"]
    for stamp, key in enumerate(keys):
        await storage.kv.put(KvPut(key, key.encode(), stamp))
    wanted = sorted(key for key in keys if key.startswith(prefix))
    found: list[str] = []
    while page := await storage.kv.page(prefix, after=found[-1] if found else None, most=2):
        found += [entry.key for entry in page]
    assert found == wanted
    assert await storage.kv.count(prefix) == len(wanted)
    assert await storage.kv.clear(prefix) == len(wanted)
    assert await storage.kv.count("") == len(keys) - len(wanted)


@pytest.mark.postgres
async def test_clearing_goes_in_steps_until_all_is_gone(
    storage: PostgresStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv, "CLEAR_STEP", 3)
    for stamp in range(10):
        await storage.kv.put(KvPut(f"k{stamp}", b"", stamp, ttl_s=-1.0 if stamp == 4 else None))
    await storage.kv.put(KvPut("other", b"", 11))
    assert await storage.kv.clear("k") == 9
    assert [entry.key for entry in await storage.kv.page("", after=None, most=9)] == ["other"]


@pytest.mark.postgres
@pytest.mark.parametrize("key", ["a\0b", "\ud800"])
async def test_a_key_that_no_text_can_hold_is_refused(storage: PostgresStorage, key: str) -> None:
    for call in (storage.kv.get(key), storage.kv.put(KvPut(key, b"", 1)), storage.kv.count(key)):
        with pytest.raises(PersistenceError) as caught:
            await call
        assert caught.value.outcome == "refused"


@pytest.mark.postgres
async def test_expired_keys_are_replaced_like_absent_ones_and_purged(storage: PostgresStorage) -> None:
    for stamp, key in enumerate("abcdef"):
        await storage.kv.put(KvPut(key, b"old", stamp, ttl_s=-1.0))
    assert not await storage.kv.swap(KvSwap("a", 0, b"new", 10))
    assert await storage.kv.swap(KvSwap("a", None, b"new", 11))
    assert not await storage.kv.remove(KvRemove("b"))
    assert await storage.kv.swap(KvSwap("c", None, None, 12))
    assert await storage.kv.purge(most=2) == 2
    assert await storage.kv.purge(most=9) == 2
    assert [entry.stamp for entry in await storage.kv.page("", after=None, most=9)] == [11]


@pytest.mark.postgres
async def test_groups_do_on_the_server_what_their_members_would_do_one_by_one(storage: PostgresStorage) -> None:
    """M3: random groups over few keys, results and final state against a model."""
    chance = random.Random(7)
    state: State = {}
    number = 0
    for _ in range(150):
        writes: list[Write] = []
        known = [stamp for _, stamp in state.values()]
        for _ in range(chance.randint(1, 12)):
            number += 1
            key, expected = chance.choice("abcd"), chance.choice([None, 1, *known])
            value = chance.choice([None, b"x%d" % number])
            kinds: list[Write] = [KvPut(key, b"p%d" % number, number), KvRemove(key)]
            writes.append(chance.choice([*kinds, *[KvSwap(key, expected, value, number)] * 3]))
        wanted = one_by_one(state, writes)
        assert list(await storage._committer.commit(writes)) == wanted
        entries = await storage.kv.page("", after=None, most=99)
        assert {entry.key: (entry.value, entry.stamp) for entry in entries} == state
