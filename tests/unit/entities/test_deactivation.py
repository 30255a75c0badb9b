"""Who leaves when nobody calls, and who stays (F2, MBOX-06, MBOX-08, MBOX-16)."""

from __future__ import annotations

import asyncio
import heapq
from typing import Any

import pytest

from coterie.entities.entity import Entity
from coterie.entities.host import deactivation
from coterie.entities.rpc import rpc
from coterie.errors import RemoteError, RunnerFull
from tests.unit.entities.local_host import LocalHost, until

seen: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    seen.clear()


class Guest(Entity):
    lives = 0

    async def on_activate(self) -> None:
        seen.append(f"in {self.id}")
        self.calls = 0

    async def on_deactivate(self) -> None:
        seen.append(f"out {self.id}")

    @rpc
    async def count(self) -> int:
        self.calls += 1
        return self.calls

    @rpc
    async def stay(self, on: bool) -> None:
        self.keep_alive(on)

    @rpc
    async def take(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Faulty(Entity):
    @rpc
    async def work(self) -> None: ...

    @rpc
    async def fail(self) -> None:
        raise RuntimeError("a defect")


class Plain(Entity):
    @rpc
    async def count(self) -> int:
        return 1


@pytest.mark.simulated(seeds=3)
async def test_an_entity_that_nobody_calls_leaves_and_begins_anew_with_the_next_call() -> None:
    """MBOX-06."""
    ground = LocalHost((Guest, {"max_idle": "1s"}))
    assert [await ground.call("a", "count") for _ in range(2)] == [1, 2]
    await asyncio.sleep(0.9)
    assert await ground.call("a", "count") == 3
    await asyncio.sleep(0.9)
    assert ground.host.counts.resident == 1
    await asyncio.sleep(0.2)
    assert ground.host.counts.resident == 0
    assert seen == ["in a", "out a"]
    assert await ground.call("a", "count") == 1
    assert seen == ["in a", "out a", "in a"]
    await ground.host.stop()


@pytest.mark.simulated(seeds=3)
async def test_each_type_has_its_own_time() -> None:
    ground = LocalHost((Guest, {"max_idle": "10s"}), (Plain, {"max_idle": "1s"}), max_idle="1m")
    await ground.ask_for("Guest", "a", "count").future
    await ground.ask_for("Plain", "b", "count").future
    await asyncio.sleep(2)
    assert [*ground.host.residents("Guest"), *ground.host.residents("Plain")] == ["a"]
    await asyncio.sleep(9)
    assert ground.host.counts.resident == 0
    await ground.host.stop()


@pytest.mark.simulated(seeds=3)
async def test_an_entity_at_work_is_not_idle() -> None:
    ground = LocalHost((Guest, {"max_idle": "1s"}))
    await ground.call("a", "take", 5.0, within_s=10.0)
    assert seen == ["in a"]
    await asyncio.sleep(0.9)
    assert ground.host.counts.resident == 1
    await asyncio.sleep(0.2)
    assert ground.host.counts.resident == 0
    await ground.host.stop()


@pytest.mark.simulated(seeds=3)
async def test_what_is_kept_alive_stays_until_it_is_let_go() -> None:
    ground = LocalHost((Guest, {"max_idle": "1s"}), resident_entities=1)
    await ground.call("a", "stay", True)
    await asyncio.sleep(100)
    assert ground.host.residents("Guest") == ["a"]
    await ground.call("a", "stay", False)
    await asyncio.sleep(1.1)
    assert ground.host.residents("Guest") == []
    await ground.host.stop()


@pytest.mark.simulated(seeds=3)
async def test_whoever_lets_go_between_calls_leaves_too() -> None:
    ground = LocalHost((Guest, {"max_idle": "1s"}))
    await ground.call("a", "stay", True)
    await asyncio.sleep(2)
    entity = ground.host._hosted["Guest"].entities["a"].entity
    entity.keep_alive(False)
    await asyncio.sleep(1.1)
    assert seen == ["in a", "out a"]
    await ground.host.stop()


async def test_at_the_cap_the_longest_idle_makes_room_and_never_more_live_than_may() -> None:
    """MBOX-08: six ids, two places, all answered."""
    ground = LocalHost(Guest, resident_entities=2)
    for each in ("a", "b", "c", "d", "e", "f"):
        assert await ground.call(each, "count") == 1
        assert ground.host.counts.resident <= 2
    alive = most = 0
    for event in seen:
        alive += 1 if event.startswith("in") else -1
        most = max(most, alive)
    assert most <= 2
    assert [event for event in seen if event.startswith("out")] == ["out a", "out b", "out c", "out d"]
    await ground.host.stop()


async def test_a_call_makes_an_entity_the_last_to_leave() -> None:
    ground = LocalHost(Guest, resident_entities=2)
    for each in ("a", "b", "a", "c"):
        await ground.call(each, "count")
    assert ground.host.residents("Guest") == ["a", "c"]
    await ground.host.stop()


@pytest.mark.simulated(seeds=2)
async def test_the_longest_idle_of_all_types_makes_room() -> None:
    ground = LocalHost(Guest, Plain, resident_entities=3)
    for type_name, each in (("Plain", "a"), ("Guest", "b"), ("Plain", "c"), ("Guest", "d")):
        await asyncio.sleep(1)
        await ground.ask_for(type_name, each, "count").future
    assert (ground.host.residents("Guest"), ground.host.residents("Plain")) == (["b", "d"], ["c"])
    await ground.host.stop()


async def test_without_a_cap_in_reach_all_stay() -> None:
    """MBOX-16."""
    ground = LocalHost(Guest)
    for number in range(15):
        await ground.call(f"e{number}", "count")
    assert ground.host.counts.resident == 15
    await ground.host.stop()


async def test_an_idle_entity_has_no_task_and_no_timer_of_its_own() -> None:
    ground = LocalHost(Plain)
    loop = asyncio.get_running_loop()
    before = len(asyncio.all_tasks())
    for number in range(200):
        await ground.call(f"e{number}", "count")
    await until(lambda: len(asyncio.all_tasks()) == before)
    timers: list[Any] = getattr(loop, "_scheduled")  # noqa: B009 asyncio's own, of no public name
    assert len([timer for timer in timers if not timer.cancelled()]) < 10
    assert ground.host.counts.resident == 200
    await ground.host.stop()


@pytest.mark.simulated(seeds=3)
@pytest.mark.parametrize("at_once", [1, 10, 1_000])
async def test_many_that_leave_or_were_called_since_leave_the_loop_its_turns(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deactivation, "_AT_ONCE", at_once)
    ground = LocalHost((Plain, {"max_idle": "1s"}))
    ids = [f"{number:02}" for number in range(30)]
    for each in ids:
        await ground.call(each, "count")
    await asyncio.sleep(0.9)
    for each in ids[::2]:
        await ground.call(each, "count")
    await asyncio.sleep(0.3)
    assert sorted(ground.host.residents("Plain")) == ids[::2]
    await asyncio.sleep(1.0)
    assert ground.host.residents("Plain") == []
    assert ground.host._hosted["Plain"].idle == []
    await ground.host.stop()


async def test_those_who_have_left_are_not_remembered() -> None:
    """Nor those that defects ended, long before anybody would have been idle for too long."""
    ground = LocalHost((Faulty, {"max_idle": "1h"}))
    hosted = ground.host._hosted
    for number in range(100):
        await ground.call(str(number % 3), "work")
        with pytest.raises(RemoteError):
            await ground.call(str(number % 3), "fail")
        await ground.call("other", "work")
        assert len(hosted["Faulty"].idle) <= 2 * ground.host.counts.resident + 1
    await ground.host.stop()


async def test_when_all_are_at_work_nobody_makes_room() -> None:
    ground = LocalHost(Guest, resident_entities=2)
    for each in ("a", "b"):
        await ground.call(each, "count")
    works = [ground.ask(each, "take", 0.05) for each in ("a", "b")]
    await asyncio.sleep(0)
    with pytest.raises(RunnerFull):
        await ground.call("c", "count")
    for work in works:
        await work.future
    assert await ground.call("c", "count") == 1, "they are looked at again"
    await ground.host.stop()


async def test_where_very_many_were_called_since_somebody_who_is_idle_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To look at all of them would take the loop's turn from everybody else."""
    monkeypatch.setattr(deactivation, "_AT_ONCE", 3)
    ground = LocalHost(Plain, resident_entities=20)
    ids = [f"{number:02}" for number in range(20)]
    for each in ids * 2:
        await ground.call(each, "count")
    looked = 0
    heappop = heapq.heappop

    def counted(heap: list[Any]) -> Any:
        nonlocal looked
        looked += 1
        return heappop(heap)

    monkeypatch.setattr(heapq, "heappop", counted)
    await ground.call("new", "count")
    assert looked <= 3
    assert len(ground.host.residents("Plain")) == 20
    assert "new" in ground.host.residents("Plain")
    await ground.host.stop()
