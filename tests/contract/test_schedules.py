"""Rows of schedules on every engine: what is due, what a fire does, and who wins when two change a row."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from coterie.storage.contracts.jobs import NewJob
from coterie.storage.contracts.messages import Commit
from coterie.storage.contracts.schedules import SCHEDULE, TimerChange, schedule_key, timer_key
from coterie.storage.interface import Claim
from tests.contract.messages import S1, S2, A, B, evict, id_of, joined, look, message, take
from tests.contract.schedules import at, fire, names_due, row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.contracts.schedules import Fired
    from coterie.storage.interface import Ownership, Storage

KEY = schedule_key("nightly")


@pytest.fixture
async def a(storage: Storage) -> AsyncIterator[Ownership]:
    async with joined(storage, A) as session:
        yield session


@pytest.fixture
async def b(storage: Storage, a: Ownership) -> AsyncIterator[Ownership]:
    async with joined(storage, B) as session:
        yield session


async def put(storage: Storage, *names: str, **more: Any) -> None:
    for name in names or ("nightly",):
        assert await storage.schedules.swap(row(name, **more), None)


async def fired(storage: Storage, *fires: object) -> list[Fired]:
    return list(await storage.schedules.fire(fires))  # type: ignore[arg-type]


async def test_a_row_comes_back_as_it_was_put(storage: Storage) -> None:
    await put(storage, last_at=at(0.5), last_id="m", paused_at=at(3), outcomes='[{"n": 1}]')
    assert await storage.schedules.get(KEY) == row(last_at=at(0.5), last_id="m", paused_at=at(3), outcomes='[{"n": 1}]')
    assert await storage.schedules.get(schedule_key("other")) is None


async def test_rows_are_listed_by_prefix_and_in_pages(storage: Storage) -> None:
    await put(storage, "a1", "a2", "a3", "b1", "\U0010ffff")
    found = await storage.schedules.list(SCHEDULE + "a", most=2)
    assert [each.key for each in found] == [schedule_key("a1"), schedule_key("a2")]
    found = await storage.schedules.list(SCHEDULE + "a", after=found[-1].key, most=2)
    assert [each.key for each in found] == [schedule_key("a3")]
    assert len(await storage.schedules.list(SCHEDULE, most=10)) == 5


async def test_a_row_is_due_on_its_seat_from_its_instant_on(storage: Storage) -> None:
    later = await storage.now() + timedelta(hours=1)
    await put(storage, "second", next_at=at(2))
    await put(storage, "first", next_at=at(1))
    await put(storage, "later", next_at=later)
    await put(storage, "paused", paused_at=at(0))
    await put(storage, "over", next_at=None)
    await put(storage, "elsewhere", seat=S2)
    assert await names_due(storage) == ["first", "second"]
    assert await names_due(storage, S1, S2, most=1) == ["elsewhere", "first"] or await names_due(
        storage, S1, S2, most=1
    ) == ["first", "elsewhere"]
    assert await names_due(storage, without=("first",)) == ["second"]
    found = await storage.schedules.due([S1, S2], most=10)
    assert found.later == {S1: later}
    assert found.rows[0].payload == b"\x00\xffpayload"


async def test_a_fire_stores_its_messages_and_moves_the_row(storage: Storage, a: Ownership) -> None:
    await put(storage)
    claim = await take(a, A)
    assert await fired(storage, fire(claim, sends=(message(1), message(2)))) == ["written"]
    assert await names_due(storage) == []
    found = await storage.schedules.get(KEY)
    assert found is not None
    assert (found.stamp, found.last_at, found.last_id, found.outcomes) == (2, at(1), id_of(1), "[1]")
    assert found.is_busy
    for number in (1, 2):
        sent = await look(storage, number)
        assert sent is not None
        assert (sent.status, sent.payload) == ("pending", b"%d" % number)


async def test_a_fire_that_is_repeated_sends_nothing_twice(storage: Storage, a: Ownership) -> None:
    await put(storage)
    claim = await take(a, A)
    assert await fired(storage, fire(claim)) == ["written"]
    assert await fired(storage, fire(claim)) == ["changed"]
    await storage.schedules.remove(KEY)
    await put(storage)  # whoever puts it back as it was: the id is there
    assert await fired(storage, fire(claim)) == ["written"]
    assert len(await storage.messages.look([id_of(1)])) == 1


async def test_what_was_changed_paused_or_removed_since_it_was_read_is_not_fired(
    storage: Storage, a: Ownership
) -> None:
    claim = await take(a, A)
    await put(storage, "changed", "anew", "paused", "removed", "moved", "stays")
    assert await storage.schedules.swap(row("changed", next_at=at(2)), (7, 1))
    assert await storage.schedules.swap(row("anew", life=8), (7, 1))
    assert await storage.schedules.pause(schedule_key("paused"))
    await storage.schedules.remove(schedule_key("removed"))
    assert await storage.schedules.swap(row("moved", seat=S2), (7, 1))
    names = ("changed", "anew", "paused", "removed", "moved", "stays")
    told = await fired(storage, *(fire(claim, name, send=number) for number, name in enumerate(names, 1)))
    assert told == ["changed"] * 5 + ["written"]
    assert [each.id for each in await storage.messages.look([id_of(number) for number in range(1, 7)])] == [id_of(6)]


async def test_a_row_that_moved_to_another_seat_is_not_fired_by_the_holder_of_the_old_one(
    storage: Storage, a: Ownership
) -> None:
    claim = await take(a, A)
    await put(storage, seat=S2)
    assert await fired(storage, fire(claim)) == ["changed"]


async def test_who_has_lost_the_seat_fires_nothing_and_its_neighbours_are_written(
    storage: Storage, a: Ownership, b: Ownership
) -> None:
    await put(storage, "one")
    await put(storage, "two", seat=S2)
    claim = await take(a, A)
    other = Claim(A, S2, (await take(a, A, S2)).epoch + 1)
    assert await fired(storage, fire(claim, "one"), fire(other, "two", send=2)) == ["written", "fenced"]
    assert await look(storage, 2) is None
    await evict(b, A)
    assert await fired(storage, fire(claim, "one", mark=(7, 2), send=3)) == ["fenced"]
    assert await look(storage, 3) is None


async def test_nothing_is_fired_before_the_databases_clock_says_so(storage: Storage, a: Ownership) -> None:
    await put(storage)
    claim = await take(a, A)
    early = await storage.now() + timedelta(hours=1)
    assert await fired(storage, fire(claim, due_at=early)) == ["early"]
    assert await look(storage, 1) is None


async def test_what_asks_for_the_end_of_a_message_waits_for_it(storage: Storage, a: Ownership) -> None:
    await put(storage)
    claim = await take(a, A)
    assert await fired(storage, fire(claim)) == ["written"]
    again = fire(claim, mark=(7, 2), send=2, asks=id_of(1))
    assert await fired(storage, again) == ["busy"]
    assert await look(storage, 2) is None
    assert await storage.messages.commit(Commit(claim, id_of(1), b"reply")) == "written"
    assert await fired(storage, again) == ["written"]
    assert await fired(storage, fire(claim, mark=(7, 3), send=3, asks="a message that is not there any more")) == [
        "written"
    ]


async def test_a_fire_stores_its_jobs_once_and_waits_for_the_end_of_one(storage: Storage, a: Ownership) -> None:
    await put(storage)
    claim = await take(a, A)
    sent = NewJob("j1", "queue:mail", "acme", "send_email", b"\x00\xff", "f1", priority=2, age_s=60.0)
    first = fire(claim, send=None, jobs=(sent,), last_id="j1")
    assert await fired(storage, first) == ["written"]
    assert await fired(storage, first) == ["changed"]
    (row,) = await storage.jobs.look(["j1"])
    assert (row.seat, row.part, row.task, row.payload) == ("queue:mail", "acme", "send_email", b"\x00\xff")
    assert (row.state, row.fingerprint, row.priority, row.key) == ("ready", "f1", 2, None)
    (partition,) = await storage.jobs.refill("queue:mail", ["acme"], each=10)
    assert partition.heads[0].rank_s == pytest.approx(row.due_at.timestamp() - 120.0, abs=0.001)
    found = await storage.schedules.get(schedule_key("nightly"))
    assert found is not None
    assert (found.last_id, found.is_busy) == ("j1", True)

    other = fire(claim, mark=(7, 2), send=None, asks="j1", jobs=(replace(sent, id="j2"), sent))
    assert await fired(storage, other) == ["busy"]
    assert len(await storage.jobs.look(["j1", "j2"])) == 1
    await storage.jobs.cancel("j1", reply=b"cancelled")
    found = await storage.schedules.get(schedule_key("nightly"))
    assert found is not None
    assert not found.is_busy
    assert await fired(storage, other) == ["written"]
    assert {each.id: each.state for each in await storage.jobs.look(["j1", "j2"])} == {"j1": "cancelled", "j2": "ready"}


async def test_a_row_moves_on_without_a_message(storage: Storage, a: Ownership) -> None:
    await put(storage)
    claim = await take(a, A)
    assert await fired(storage, fire(claim, send=None, due_at=None)) == ["written"]
    assert await names_due(storage) == []


async def test_a_row_that_has_fired_for_the_last_time_is_deleted(storage: Storage, a: Ownership) -> None:
    await put(storage)
    assert await fired(storage, fire(await take(a, A), is_over=True)) == ["written"]
    assert await storage.schedules.get(KEY) is None
    assert await look(storage, 1) is not None


async def test_of_two_that_fire_or_change_a_row_one_wins(storage: Storage, a: Ownership) -> None:
    await put(storage)
    claim = await take(a, A)
    told = await asyncio.gather(
        fired(storage, fire(claim)), fired(storage, fire(claim, send=2)), storage.schedules.swap(row(life=9), (7, 1))
    )
    assert sum(each in (["written"], True) for each in told) == 1
    sent = await storage.messages.look([id_of(1), id_of(2)])
    assert len(sent) == (told[2] is False)


async def test_a_row_is_put_once_and_swapped_by_who_has_read_it(storage: Storage) -> None:
    await put(storage)
    assert not await storage.schedules.swap(row(life=8), None)
    assert not await storage.schedules.swap(row(life=8), (7, 2))
    assert not await storage.schedules.swap(row(life=8), (8, 1))
    assert await storage.schedules.swap(row(life=8, next_at=at(9)), (7, 1))
    assert await storage.schedules.get(KEY) == row(life=8, next_at=at(9), stamp=2)
    assert not await storage.schedules.swap(row("other"), (7, 1))


async def test_a_pause_holds_until_the_row_is_put_anew(storage: Storage) -> None:
    assert await storage.schedules.pause(KEY) is None
    await put(storage)
    assert await storage.schedules.pause(KEY) is True
    assert await storage.schedules.pause(KEY) is False
    assert await names_due(storage) == []
    found = await storage.schedules.get(KEY)
    assert found is not None
    assert found.paused_at is not None
    assert await storage.schedules.swap(replace(found, paused_at=None), found.mark)
    assert await names_due(storage) == ["nightly"]


async def test_what_is_removed_is_returned(storage: Storage) -> None:
    assert await storage.schedules.remove(KEY) is None
    await put(storage, last_id="m")
    found = await storage.schedules.remove(KEY)
    assert found is not None
    assert (found.key, found.last_id) == (KEY, "m")
    assert await storage.schedules.get(KEY) is None


async def test_rows_that_have_been_over_for_long_are_purged(storage: Storage) -> None:
    await put(storage, "over", "also over", next_at=None)
    await put(storage, "waits")
    assert await storage.schedules.purge(older_s=3600, most=10) == 0
    assert await storage.schedules.purge(older_s=0, most=1) == 1
    assert await storage.schedules.purge(older_s=0, most=10) == 1
    assert [each.key for each in await storage.schedules.list(SCHEDULE, most=10)] == [schedule_key("waits")]


async def test_clusters_in_one_database_do_not_see_each_others_schedules(storage: Storage, neighbour: Storage) -> None:
    await put(storage)
    assert await names_due(neighbour) == []
    assert await neighbour.schedules.get(KEY) is None
    assert await neighbour.schedules.remove(KEY) is None
    await put(neighbour)


# Timers


TIMER = timer_key("Account", "alice", "expire")


def timer(**more: Any) -> TimerChange:
    plain = row(key=TIMER, **more)
    names = plain.__struct_fields__[: plain.__struct_fields__.index("stamp")]
    from coterie.storage.contracts.schedules import NewSchedule

    return TimerChange(TIMER, NewSchedule(**{name: getattr(plain, name) for name in names}))


async def test_a_timer_is_set_replaced_and_cancelled_by_commits(storage: Storage, a: Ownership) -> None:
    claim = await take(a, A)
    for number in (1, 2, 3):
        await storage.messages.insert(message(number))
    assert await storage.messages.commit(Commit(claim, id_of(1), timers=(timer(),))) == "written"
    assert await storage.schedules.get(TIMER) == row(key=TIMER)
    anew = Commit(claim, id_of(2), timers=(timer(life=8, next_at=at(5)),))
    assert await storage.messages.commit(anew) == "written"
    assert await storage.schedules.get(TIMER) == row(key=TIMER, life=8, next_at=at(5))
    cancel = Commit(claim, id_of(3), timers=(TimerChange(TIMER, None), TimerChange("timer/Account/alice/none", None)))
    assert await storage.messages.commit(cancel) == "written"
    assert await storage.schedules.get(TIMER) is None


async def test_a_timer_is_set_with_the_rest_of_the_commit_or_not_at_all(
    storage: Storage, a: Ownership, b: Ownership
) -> None:
    claim = await take(a, A)
    assert await storage.messages.commit(Commit(claim, id_of(9), timers=(timer(),))) == "gone"
    assert await storage.schedules.get(TIMER) is None
    assert await storage.messages.commit(Commit(claim, timers=(timer(),))) == "written"
    cancel = Commit(claim, id_of(9), timers=(TimerChange(TIMER, None),))
    assert await storage.messages.commit(cancel) == "gone"
    assert await storage.schedules.get(TIMER) == row(key=TIMER)
    await evict(b, A)
    assert await storage.messages.commit(Commit(claim, timers=(TimerChange(TIMER, None),))) == "fenced"
    assert await storage.schedules.get(TIMER) == row(key=TIMER)


async def test_commits_of_one_group_set_one_timer_one_after_the_other(storage: Storage, a: Ownership) -> None:
    claim = await take(a, A)
    writes = [Commit(claim, timers=(timer(life=life),)) for life in range(1, 6)]
    told = await asyncio.gather(*(storage.messages.commit(write) for write in writes))
    assert told == ["written"] * 5
    found = await storage.schedules.get(TIMER)
    assert found is not None
    assert found.life == 5
