"""Sweeps: what is pending is found, whoever lost it on the way, in pages, without asking all the time [M5, C5]."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from coterie import Entity, rpc
from coterie.entities.persisted import poller
from tests.unit.entities.fake_storage import StoredLocalHost, now_at, stored, unreachable

pytestmark = pytest.mark.simulated(seeds=2)


class Diary(Entity):
    """Writes down what it was told; `wait` ends when its gate opens."""

    began: ClassVar[list[int]] = []
    gate: ClassVar[asyncio.Event]

    @rpc(persisted=True)
    async def note(self, number: int) -> int:
        self.began.append(number)
        return number

    @rpc(persisted=True)
    async def wait(self, number: int) -> int:
        self.began.append(number)
        await self.gate.wait()
        return number


@pytest.fixture(autouse=True)
def fresh() -> None:
    Diary.began, Diary.gate = [], asyncio.Event()


def same_shard(ground: StoredLocalHost, count: int) -> list[str]:
    """Entities that live on one shard."""
    seat = ground.message("0", "note", 0).seat
    return [who for who in map(str, range(1000)) if ground.message(who, "note", 0).seat == seat][:count]


async def test_mbox_11_one_poll_reads_all_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "_PAGE", 2)
    async with stored(Diary) as ground:
        ids = same_shard(ground, 5)
        sent = [ground.put(who, "note", number) for number, who in enumerate(ids)]
        asked = len(ground.messages.asked["due"])
        await ground.poller.poll()
        await asyncio.sleep(0)
        assert Diary.began == [0, 1, 2, 3, 4]
        assert ground.status(*sent) == ["done"] * 5
        assert len(ground.messages.asked["due"]) - asked < 8, "two sweeps, of three pages and of one"


@pytest.mark.parametrize("backlog", [0, 3, 4, 5, 7, 8, 9, 50])
async def test_k6_a_poll_returns_when_all_is_seen_however_many_sweeps_that_takes(
    monkeypatch: pytest.MonkeyPatch, backlog: int
) -> None:
    monkeypatch.setattr(poller, "_PAGE", 2)
    monkeypatch.setattr(poller, "_PAGES_MOST", 2)
    async with stored(Diary) as ground:
        sent = [ground.put("a", "note", number) for number in range(backlog)]
        await ground.poller.poll()
        await asyncio.sleep(0)
        assert ground.status(*sent) == ["done"] * backlog


async def test_k6_a_poll_returns_though_the_rounds_of_two_shards_never_end_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poller, "_PAGE", 1)
    monkeypatch.setattr(poller, "_PAGES_MOST", 1)
    async with stored(Diary, resident_entities=1) as ground:
        ground.put("resident", "wait", 0)
        seats = {ground.message(str(who), "note", 0).seat: str(who) for who in range(100)}
        one, other, *_ = seats.values()
        ground.put(one, "note", 1)  # there is no room for these: each round sees them again
        await ground.poller.poll()
        ground.put(other, "note", 2)
        async with asyncio.timeout(120):
            await ground.poller.poll()
        Diary.gate.set()


async def test_mbox_12_what_is_in_progress_does_not_hide_what_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "_PAGE", 2)
    async with stored(Diary) as ground:
        ids = same_shard(ground, 3)
        running = [ground.put(who, "wait", number) for number, who in enumerate(ids[:2])]
        await ground.poller.poll()
        third = ground.put(ids[2], "note", 2)
        await ground.poller.poll()
        await asyncio.sleep(0.01)
        assert ground.status(*running, third) == ["pending", "pending", "done"]
        Diary.gate.set()


async def test_mbox_10_what_has_no_room_does_not_hide_the_next_message_of_a_resident() -> None:
    async with stored(Diary, resident_entities=1) as ground:
        first = ground.put("resident", "wait", 0)
        await ground.poller.poll()
        strangers = [ground.put(f"stranger {number}", "note", 10 + number) for number in range(3)]
        second = ground.put("resident", "note", 1)
        await ground.poller.poll()
        await asyncio.sleep(2)
        assert Diary.began == [0]
        assert second in ground.inbox.works, "it waits in the mailbox of the resident"
        Diary.gate.set()
        await asyncio.sleep(5)
        assert ground.status(first, second, *strangers) == ["done"] * 5
        assert Diary.began[:2] == [0, 1]


async def test_mbox_08_more_entities_than_there_is_room_for_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stored((Diary, {"max_idle": "1s"}), resident_entities=2) as ground:
        most: list[int] = []
        deliver = ground.host.deliver

        def counted(work: Any) -> None:
            deliver(work)
            most.append(ground.host.counts.resident)

        monkeypatch.setattr(ground.host, "deliver", counted)
        sent = [ground.put(f"entity {number}", "note", number) for number in range(6)]
        await asyncio.sleep(10)
        assert ground.status(*sent) == ["done"] * 6
        assert max(most) <= 2


async def test_mbox_15_at_the_cap_with_a_backlog_storage_is_not_asked_all_the_time() -> None:
    async with stored(Diary, resident_entities=1) as ground:
        ground.put("resident", "wait", 0)
        await ground.poller.poll()
        for number in range(50):
            ground.put(f"stranger {number}", "note", number)
        asked = len(ground.messages.asked["due"]), len(ground.messages.asked["fetch"])
        await asyncio.sleep(10)
        assert len(ground.messages.asked["due"]) - asked[0] <= 13, "about one in a second"
        assert len(ground.messages.asked["fetch"]) == asked[1], "what there is no room for is not fetched"
        Diary.gate.set()


async def test_incident_36_a_row_that_was_committed_late_is_found_behind_later_ones() -> None:
    """The question is never "which came after the last one I saw"."""
    async with stored(Diary) as ground:
        early = ground.message("a", "note", 1, due_at=now_at() - timedelta(seconds=30))
        ground.put("a", "note", 2)
        await ground.poller.poll()
        await asyncio.sleep(0.01)
        ground.messages.add(early)
        await asyncio.sleep(1.1)
        assert Diary.began == [2, 1]


async def test_incident_18_one_bad_row_of_a_batch_strands_none_of_the_others() -> None:
    ground = StoredLocalHost(Diary)
    sent = [ground.put("a", "note", number) for number in range(10)]
    row = ground.messages.rows[sent[3]]
    ground.messages.add(ground.message("a", "note", 3, id=row.id, payload=b"\xc1"))
    await ground.read()
    await asyncio.sleep(1)
    assert Diary.began == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert ground.status(*sent) == ["done"] * 3 + ["dead"] + ["done"] * 6
    await ground.host.stop()


@pytest.mark.parametrize("verb", ["due", "fetch"])
async def test_while_storage_is_away_it_is_asked_again_and_a_poll_waits_for_it(
    verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with stored(Diary) as ground:
        ground.messages.failing[verb] = [unreachable, unreachable]
        sent = ground.put("a", "note", 1)
        await ground.poller.poll()
        await asyncio.sleep(0.01)
        assert ground.status(sent) == ["done"]
        assert "pending messages could not be read" in caplog.text


async def test_gap_14_c5_what_may_have_killed_the_holder_before_is_found_before_anything_runs() -> None:
    """Also if that cannot be written at first: some seconds later, not after a claim's timeout."""
    ground = StoredLocalHost((Diary, {"concurrency": 3}), clean=False, loss_limit=7)
    ground.messages.failing["suspect"] = [unreachable]
    sent = ground.put("a", "note", 1)
    await ground.read()
    await asyncio.sleep(0.01)
    assert ground.status(sent) == ["done"]
    claims = [claim.seat for claim, *_ in ground.messages.asked["suspect"]]
    assert sorted({*claims}) == sorted(shard.tenure.seat for shard in ground.shards)
    assert len(claims) == len(ground.shards) + 1, "each once, and the one that failed again"
    assert ground.messages.asked["suspect"][0][1:] == ({"Diary": 3}, 7)
    await ground.host.stop()


async def test_after_a_clean_hand_over_nothing_is_counted() -> None:
    async with stored(Diary) as ground:
        await ground.poller.poll()
        assert ground.messages.asked["suspect"] == []


async def test_a_backlog_of_many_pages_is_gone_on_with_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """R2: a sweep has an end; the next one begins where it stopped."""
    monkeypatch.setattr(poller, "_PAGE", 5)
    monkeypatch.setattr(poller, "_PAGES_MOST", 2)
    ground = StoredLocalHost(Diary)
    began_s = asyncio.get_running_loop().time()
    sent = [ground.put("a", "note", number) for number in range(100)]
    while ground.status(*sent) != ["done"] * 100:
        await asyncio.sleep(0.01)
    assert asyncio.get_running_loop().time() - began_s < 1, "without the pause between two rounds"
    assert Diary.began == list(range(100))
    await ground.host.stop()


async def test_a_poll_without_shards_returns_at_once_and_one_during_a_sweep_waits_for_the_next() -> None:
    async with stored(Diary) as ground:
        gate = ground.messages.hold("due")
        ground.poller.wake()
        await asyncio.sleep(0.1)
        sent = ground.put("a", "note", 1)
        polling = asyncio.create_task(ground.poller.poll())
        await asyncio.sleep(0.1)
        gate.set()
        await polling
        await asyncio.sleep(0)
        assert ground.status(sent) == ["done"], "the sweep that ran when it was asked had not seen it"
        ground.abandon()
        await ground.poller.poll()


async def test_a_shard_that_was_lost_and_taken_again_while_a_sweep_asked_is_read_anew() -> None:
    """M5: what the old answer says is nothing about the new tenure."""
    async with stored(Diary) as ground:
        gate = ground.messages.hold("due")
        ground.poller.wake()
        await asyncio.sleep(0.1)
        ground.abandon()
        ground.occupy()
        fresh: list[Any] = [shard.is_read for shard in ground.inbox.shards.values()]
        assert fresh == [False] * len(ground.shards)
        gate.set()
        await asyncio.sleep(0)
        assert not any(shard.is_read for shard in ground.inbox.shards.values())
        await ground.poller.poll()
        assert all(shard.is_read for shard in ground.inbox.shards.values())
