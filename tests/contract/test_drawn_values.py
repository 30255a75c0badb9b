"""What every storage must do, at drawn values of what the other suites hold fixed.

How many rows there are in relation to a page, which of the names that make a key unique differ, in which zone an
instant is given and with which fraction of a second.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from coterie.storage.contracts.messages import Commit, MessageFilter, Setback
from coterie.storage.interface import KvPut
from tests.contract import ticks
from tests.contract.messages import S1, S2, A, joined, message, take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.contracts.messages import Mark, Message
    from coterie.storage.interface import Claim, Storage

SAMPLE = settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
INSTANT = timedelta(microseconds=1)
ZONES = [UTC, ZoneInfo("Europe/Zurich"), ZoneInfo("Asia/Kathmandu"), timezone(-timedelta(hours=9, minutes=30))]

numbers = count(1)
"""Of messages: none is used twice, so that what an example leaves behind is no concern of the next one's."""
pages = st.integers(1, 4)
fractions = st.integers(0, 999_999)
seconds = st.integers(1, 3_000_000).map(lambda micros: micros / 1e6)


@st.composite
def sized(draw: st.DrawFn) -> tuple[int, int]:
    """The size of a page, and a number of rows about some whole pages."""
    page = draw(pages)
    return page, max(draw(st.integers(0, 3)) * page + draw(st.integers(-1, 1)), 0)


@pytest.fixture
async def claim(storage: Storage) -> AsyncIterator[Claim]:
    async with joined(storage, A) as session:
        yield await take(session, A)


@pytest.fixture
async def cron(storage: Storage) -> AsyncIterator[str]:
    async with ticks.joined(storage, A):
        yield ticks.CRON_A


async def insert_all(storage: Storage, messages: list[Message]) -> None:
    await asyncio.gather(*(storage.messages.insert(each) for each in messages))


async def forget_all(storage: Storage, claim: Claim) -> None:
    """What an example before this one has left."""
    for each in await storage.messages.list(MessageFilter(status="pending"), most=10_000):
        await storage.messages.cancel(each.id, claim if each.seat == claim.seat else None, reply=b"")
    while await storage.messages.remove(MessageFilter(), most=1000):
        pass


# Keys

KEYS = st.tuples(*(st.sampled_from(names) for names in (["Account", "Order"], ["a", "b"], ["add", "take"], ["k", "l"])))


@SAMPLE
@given(given_=st.lists(KEYS, min_size=2, max_size=8), at_once=st.booleans())
@example(given_=[("Account", "a", "add", "k"), ("Account", "a", "take", "k")], at_once=True)
@example(given_=[("Account", "a", "add", "k"), ("Order", "a", "add", "k")], at_once=False)
async def test_m9_a_key_is_one_of_type_entity_and_method_each_of_which_may_differ(
    storage: Storage, claim: Claim, given_: list[tuple[str, str, str, str]], at_once: bool
) -> None:
    await forget_all(storage, claim)
    first: dict[tuple[str, str, str, str], str] = {}
    sent = []
    for entity_type, entity, method, key in given_:
        each = message(next(numbers), entity_type=entity_type, entity=entity, method=method, key=key)
        first.setdefault((entity_type, entity, method, key), each.id)
        sent.append(each)
    if at_once:
        receipts = await asyncio.gather(*(storage.messages.insert(each) for each in sent))
    else:
        receipts = [await storage.messages.insert(each) for each in sent]
    assert [receipt.id for receipt in receipts] == [first[each] for each in given_]
    assert [receipt.fresh for receipt in receipts] == [
        first[each] == one.id for each, one in zip(given_, sent, strict=True)
    ]
    for (entity_type, entity, method, key), id_ in first.items():
        found = await storage.messages.find(entity_type, entity, method, key)
        assert found is not None
        assert found.id == id_
        assert await storage.messages.find(entity_type, entity, f"{method} later", key) is None


# Pages


@SAMPLE
@given(size=sized(), other=st.integers(0, 5), spread=st.sampled_from([0, 1, 3]))
@example(size=(2, 4), other=0, spread=0)  # all due at one instant, over two full pages
async def test_m5_a_walk_over_pages_of_what_is_due_sees_each_once_in_order(
    storage: Storage, claim: Claim, size: tuple[int, int], other: int, spread: int
) -> None:
    await forget_all(storage, claim)
    (page, many), at = size, datetime(2024, 2, 29, 23, 59, 59, 999_998, tzinfo=UTC)
    sent: dict[str, list[tuple[datetime, str]]] = {S1: [], S2: []}
    made = []
    for seat, number in [(S1, each) for each in range(many)] + [(S2, each) for each in range(other)]:
        due_at = at + (number * spread // 2) * INSTANT
        made.append(message(next(numbers), seat=seat, due_at=due_at))
        sent[seat].append((due_at, made[-1].id))
    await insert_all(storage, made[::-1])
    seen: dict[str, list[tuple[datetime, str]]] = {S1: [], S2: []}
    marks: dict[str, Mark | None] = {S1: None, S2: None}
    while marks:
        rows = (await storage.messages.due(marks, most=page)).rows
        for row in rows:
            seen[row.seat].append((row.due_at, row.id))
        full = {seat for seat in marks if sum(row.seat == seat for row in rows) == page}
        marks = {seat: seen[seat][-1] for seat in full}
    assert seen == {seat: sorted(each) for seat, each in sent.items()}


@SAMPLE
@given(size=sized(), ended=st.lists(st.booleans(), min_size=13, max_size=13))
async def test_lists_and_purges_over_pages_leave_out_nothing(
    storage: Storage, claim: Claim, size: tuple[int, int], ended: list[bool]
) -> None:
    await forget_all(storage, claim)
    page, many = size
    made = [message(next(numbers), entity=f"e{number}") for number in range(many)]
    await insert_all(storage, made)
    done = [each.id for each, is_done in zip(made, ended, strict=False) if is_done]
    told = await asyncio.gather(*(storage.messages.commit(Commit(claim, each, b"r")) for each in done))
    assert told == ["written"] * len(done)
    listed: list[str] = []
    while rows := await storage.messages.list(MessageFilter(), after=listed[-1] if listed else None, most=page):
        listed += [row.id for row in rows]
    assert listed == [each.id for each in made]
    ended_by = await storage.now()
    while await storage.now() <= ended_by:
        await asyncio.sleep(0)
    removed, after = await storage.messages.purge(after="", retention_s=0, key_retention_s=0, most=page)
    while after:
        more, after = await storage.messages.purge(after=after, retention_s=0, key_retention_s=0, most=page)
        removed += more
    assert removed == len(done)
    left = [row.id for row in await storage.messages.list(MessageFilter(), most=100)]
    assert left == [each for each in listed if each not in done]


@SAMPLE
@given(size=sized(), prefix=st.sampled_from(["", "a", "a:", "b"]))
async def test_k1_a_walk_over_pages_of_keys_sees_each_once(
    storage: Storage, size: tuple[int, int], prefix: str
) -> None:
    page, many = size
    await storage.kv.clear("")
    keys = [f"{'ab'[number % 2]}:{number:02}" for number in range(2 * many)] + ["a", "c"]
    await asyncio.gather(*(storage.kv.put(KvPut(key, b"v", 1, None)) for key in keys))
    seen: list[str] = []
    while rows := await storage.kv.page(prefix, after=seen[-1] if seen else None, most=page):
        seen += [row.key for row in rows]
    assert seen == sorted(key for key in keys if key.startswith(prefix))
    assert await storage.kv.count(prefix) == await storage.kv.clear(prefix) == len(seen)


# Instants


@SAMPLE
@given(zone=st.sampled_from(ZONES), micros=fractions, fold=st.sampled_from([0, 1]))
async def test_an_instant_is_the_same_in_every_zone_and_to_the_microsecond(
    storage: Storage, zone: timezone, micros: int, fold: int
) -> None:
    chosen = datetime(2043, 10, 25, 2, 30, 15, micros, tzinfo=zone, fold=fold)  # comes twice in one of them
    exact = chosen.astimezone(UTC)
    given_ = message(next(numbers), due_at=chosen)
    receipt = await storage.messages.insert(given_)
    (row,) = await storage.messages.look([given_.id])
    (delivery,) = await storage.messages.fetch([given_.id])
    assert [receipt.due_at, row.due_at] == [exact, exact]
    assert delivery.due_s == exact.timestamp()


@SAMPLE
@given(zone=st.sampled_from(ZONES), micros=fractions)
async def test_a_tick_is_triggered_and_found_by_an_instant_of_any_zone(
    storage: Storage, cron: str, zone: timezone, micros: int
) -> None:
    chosen = datetime(2024, 3, 31, 3, 30, 15, micros, tzinfo=zone)
    triggered = await storage.ticks.trigger(cron, at=chosen)
    assert triggered is not None
    assert triggered.at == chosen.astimezone(UTC)
    assert await storage.ticks.get(cron, "manual", chosen, triggered.seq) == triggered
    assert triggered not in await ticks.history(storage, before=chosen)
    assert triggered in await ticks.history(storage, before=chosen + INSTANT)


@SAMPLE
@given(delay_s=seconds, again_s=seconds)
@example(delay_s=0.999, again_s=1.5)
async def test_a_delay_is_exact_to_the_microsecond(
    storage: Storage, claim: Claim, delay_s: float, again_s: float
) -> None:
    given_ = message(next(numbers), delay_s=delay_s)
    before = await storage.now()
    receipt = await storage.messages.insert(given_)
    between = await storage.now()
    assert before - INSTANT <= receipt.due_at - timedelta(seconds=delay_s) <= between + INSTANT
    assert await storage.messages.setback(Setback(claim, given_.id, 1, "e", again_s)) == "written"
    (row,) = await storage.messages.look([given_.id])
    after = await storage.now()
    assert between - INSTANT <= row.due_at - timedelta(seconds=again_s) <= after + INSTANT


@SAMPLE
@given(ttl_s=st.integers(1, 2_999).map(lambda millis: millis / 1000))
@example(ttl_s=0.9)
@example(ttl_s=1.9)
async def test_k1_a_key_lives_for_the_whole_of_its_time(storage: Storage, ttl_s: float) -> None:
    before = await storage.now()
    await storage.kv.put(KvPut("k", b"v", 1, ttl_s))
    found = await storage.kv.get("k")
    if await storage.now() < before + timedelta(seconds=ttl_s):  # a busy machine may be slower
        assert found is not None
