"""The key-value store as users see it (K1), on every storage."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import pytest

from coterie import Cluster, MalformedMessage, NotStarted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.contract.conftest import Passing


@dataclass
class Theme:
    name: str
    dark: bool = False


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Doc(TypedDict):
    title: str


@pytest.fixture
async def cluster(url: str) -> AsyncIterator[Cluster]:
    cluster = Cluster(url)
    async with cluster.connect():
        yield cluster


async def test_get_set_has_remove(cluster: Cluster) -> None:
    kv = cluster.kv
    assert await kv.get("a") is None
    assert not await kv.has("a")
    await kv.set("a", {"list": [1, 2.5, None, "é", b"\x00"]})
    assert await kv.get("a") == {"list": [1, 2.5, None, "é", b"\x00"]}
    assert await kv.has("a")
    assert await kv.remove("a") is True
    assert await kv.remove("a") is False


async def test_size_is_empty_clear_and_items(cluster: Cluster) -> None:
    kv = cluster.kv
    assert await kv.is_empty()
    for name in "cab":
        await kv.set(name, name.upper())
    assert not await kv.is_empty()
    assert await kv.size() == 3
    assert [pair async for pair in kv.items()] == [("a", "A"), ("b", "B"), ("c", "C")]
    assert await kv.clear() == 3
    assert await kv.size() == 0


async def test_items_reads_more_than_one_page(cluster: Cluster) -> None:
    await asyncio.gather(*(cluster.kv.set(f"{n:04}", n) for n in range(1203)))
    assert [value async for _, value in cluster.kv.items()] == list(range(1203))


async def test_prefix_views_see_their_keys_without_the_prefix(cluster: Cluster) -> None:
    users = cluster.kv.prefix("user:")
    await users.set("alice", 1)
    await cluster.kv.set("other", 2)
    assert await cluster.kv.get("user:alice") == 1
    assert [pair async for pair in users.items()] == [("alice", 1)]
    assert await users.size() == 1
    nested = users.prefix("eu:")
    await nested.set("bob", 3)
    assert await cluster.kv.get("user:eu:bob") == 3
    assert await users.clear() == 2
    assert await cluster.kv.size() == 1


@pytest.mark.parametrize("value", [Theme("night", dark=True), Point(1, 2), {"title": "x"}])
async def test_typed_views_give_back_what_was_put_in(cluster: Cluster, value: Any) -> None:
    kind: Any = Doc if isinstance(value, dict) else type(value)
    view = cluster.kv.typed(kind)
    await view.set("a", value)
    assert await view.get("a") == value
    assert [pair async for pair in view.items()] == [("a", value)]


async def test_a_typed_view_fills_new_fields_drops_unknown_ones_and_refuses_what_does_not_fit(cluster: Cluster) -> None:
    view = cluster.kv.typed(Theme)
    await cluster.kv.set("old", {"name": "day", "removed": 1})
    assert await view.get("old") == Theme("day", dark=False)
    await cluster.kv.set("wrong", {"name": 5})
    with pytest.raises(MalformedMessage, match=r"wrong.*name is 5"):
        await view.get("wrong")


async def test_none_is_no_value(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="remove the key"):
        await cluster.kv.set("a", None)


@pytest.mark.parametrize("key", ["", "a\0b", "\ud800", "x" * 1025, "é" * 513])
async def test_keys_that_a_database_would_not_give_back_are_refused(cluster: Cluster, key: str) -> None:
    for attempt in (
        cluster.kv.get(key),
        cluster.kv.set(key, 1),
        cluster.kv.remove(key),
        cluster.kv.modify(key, lambda _: 1),
    ):
        with pytest.raises(ValueError):
            await attempt
    assert await cluster.kv.is_empty()


async def test_state_of_singletons_cannot_be_written_through_kv(cluster: Cluster) -> None:
    for view, key in ((cluster.kv, "singleton-state:importer"), (cluster.kv.prefix("singleton-"), "state:x")):
        with pytest.raises(ValueError, match="singleton's state"):
            await view.set(key, 1)
        with pytest.raises(ValueError, match="singleton's state"):
            await view.remove(key)


async def test_ttl_expires_and_a_later_set_without_one_does_not(
    cluster: Cluster, storage: Any, passing: Passing
) -> None:
    await cluster.kv.set("a", 1, ttl="50ms")
    await cluster.kv.set("b", 1, ttl="50ms")
    await cluster.kv.set("b", 2)
    await cluster.kv.modify("c", lambda _: 3, ttl="50ms")
    await passing(0.06)
    assert await cluster.kv.get("a") is None
    assert await cluster.kv.get("b") == 2
    assert await cluster.kv.get("c") is None
    assert await cluster.kv.size() == 1


async def test_modify_sees_none_for_an_absent_key_and_removes_with_none(cluster: Cluster) -> None:
    assert await cluster.kv.modify("n", lambda n: (n or 0) + 1) == 1
    assert await cluster.kv.modify("n", lambda n: (n or 0) + 1) == 2
    assert await cluster.kv.modify("n", lambda _: None) is None
    assert not await cluster.kv.has("n")


async def test_modify_from_many_tasks_loses_no_update_and_each_sees_its_own(cluster: Cluster) -> None:
    seen = await asyncio.gather(*(cluster.kv.modify("n", lambda n: (n or 0) + 1) for _ in range(200)))
    assert sorted(int(n or 0) for n in seen) == list(range(1, 201))
    assert await cluster.kv.get("n") == 200


async def test_a_function_that_raises_changes_nothing_and_hurts_no_neighbour(cluster: Cluster) -> None:
    def refuse(_: Any) -> Any:
        raise ZeroDivisionError

    def count(n: Any) -> Any:
        return (n or 0) + 1

    results = await asyncio.gather(
        *(cluster.kv.modify("n", refuse if n % 3 == 0 else count) for n in range(30)), return_exceptions=True
    )
    assert [isinstance(result, ZeroDivisionError) for result in results] == [n % 3 == 0 for n in range(30)]
    assert await cluster.kv.get("n") == 20


async def test_modify_refuses_a_coroutine_function(cluster: Cluster) -> None:
    async def change(_: Any) -> int:
        return 1

    with pytest.raises(TypeError, match="plain function"):
        await cluster.kv.modify("n", change)


async def test_a_cancelled_caller_does_not_disturb_the_others(cluster: Cluster) -> None:
    tasks = [asyncio.create_task(cluster.kv.modify("n", lambda n: (n or 0) + 1)) for _ in range(50)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    done = [result for result in results if isinstance(result, int)]
    assert len(set(done)) == len(done) >= 25
    assert (await cluster.kv.get("n") or 0) >= len(done)


async def test_a_value_beyond_the_limit_is_refused(cluster: Cluster) -> None:
    with pytest.raises(MalformedMessage, match="more than the 8,388,608"):
        await cluster.kv.set("big", b"x" * (8 * 1024 * 1024 + 1))


async def test_outside_of_connect_the_store_says_what_to_do(url: str) -> None:
    cluster = Cluster(url)
    with pytest.raises(NotStarted, match=r"async with cluster.connect\(\)"):
        await cluster.kv.get("a")
    async with cluster.connect():
        await cluster.kv.set("a", 1)
        with pytest.raises(RuntimeError, match="connected already"):
            async with cluster.connect():
                pass
    with pytest.raises(NotStarted):
        await cluster.kv.get("a")


async def test_what_was_set_is_there_after_reconnecting(url: str) -> None:
    if url == "sqlite://":
        pytest.skip("memory forgets")
    cluster = Cluster(url)
    async with cluster.connect():
        await cluster.kv.set("a", 1)
    async with cluster.connect():
        assert await cluster.kv.get("a") == 1
