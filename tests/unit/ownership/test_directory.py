"""The picture of who holds what: read from the tables, and heard from others."""

from __future__ import annotations

import asyncio
import gc
from datetime import UTC, datetime, timedelta

import pytest

from coterie.ownership import directory as directories
from coterie.ownership import peer_notices
from coterie.ownership.directory import Directory
from coterie.storage.interface import ClusterSnapshot, RunnerRow, SeatRow
from tests.support.manual_clock import ManualClock

AT = datetime(2026, 1, 1, tzinfo=UTC)


def runner(id: str) -> RunnerRow:
    return RunnerRow(id=id, name=id, address=f"{id}:1", host_id="h", groups=("default",), started_at=AT)


def seat(name: str, holder: str | None, epoch: int) -> SeatRow:
    return SeatRow(name, "default", holder, epoch, "", AT, clean=True)


def view(*seats: SeatRow, runners: str = "ab") -> ClusterSnapshot:
    return ClusterSnapshot(tuple(map(runner, runners)), seats, "stamp")


async def never() -> ClusterSnapshot:
    raise AssertionError("nobody asked for a reading")


def holder(directory: Directory, name: str) -> str | None:
    found = directory.holder(name)
    return None if found is None else found.id


def test_a_seat_is_found_where_the_table_has_it() -> None:
    directory = Directory(never)
    directory.learn(view(seat("s", "a", 3), seat("t", None, 2)))
    assert (holder(directory, "s"), holder(directory, "t"), holder(directory, "unknown")) == ("a", None, None)
    assert directory.epoch("s") == 3


def test_what_was_heard_counts_until_a_greater_epoch_is_read_or_heard() -> None:
    directory = Directory(never)
    directory.learn(view(seat("s", "a", 3)))
    directory.learn_grants("b", [("s", 4)])
    assert holder(directory, "s") == "b"
    directory.learn(view(seat("s", "a", 3)))  # read before the grant, arrived after it was heard of
    assert holder(directory, "s") == "b"
    directory.learn_grants("a", [("s", 3)])  # an old notice
    assert holder(directory, "s") == "b"
    directory.learn(view(seat("s", "a", 5)))
    assert holder(directory, "s") == "a"


def test_a_holder_that_is_no_runner_any_more_is_nobody() -> None:
    directory = Directory(never)
    directory.learn(view(seat("s", "a", 3)))
    directory.learn_grants("b", [("s", 4)])
    directory.learn(view(seat("s", None, 4), runners="a"))
    assert holder(directory, "s") is None


async def test_all_who_ask_at_once_share_one_reading() -> None:
    readings = 0

    async def read() -> ClusterSnapshot:
        nonlocal readings
        readings += 1
        await asyncio.sleep(0)
        return view(seat("s", "a", readings))

    directory = Directory(read)
    await asyncio.gather(*(directory.refresh() for _ in range(50)))
    assert readings == 1
    await directory.refresh()
    assert (readings, directory.epoch("s")) == (2, 2)


async def test_whoever_is_cancelled_does_not_cut_off_the_reading_of_others() -> None:
    go = asyncio.Event()

    async def read() -> ClusterSnapshot:
        await go.wait()
        return view(seat("s", "a", 7))

    directory = Directory(read)
    async with asyncio.TaskGroup() as group:
        first, second = group.create_task(directory.refresh()), group.create_task(directory.refresh())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        go.set()
        await second
    assert directory.epoch("s") == 7


async def test_a_reading_that_fails_when_all_who_asked_have_left_is_nobody_s_trouble() -> None:
    go, said = asyncio.Event(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, facts: said.append(facts["message"]))

    async def read() -> ClusterSnapshot:
        await go.wait()
        raise OSError("gone")

    directory = Directory(read)
    asking = asyncio.create_task(directory.refresh())
    await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.wait([asking])
    go.set()
    await asyncio.sleep(0.01)
    gc.collect()
    assert said == []


def test_notices_come_back_as_they_were_sent_and_noise_is_nothing() -> None:
    notice = peer_notices.decode(peer_notices.encode("granted", [("shard:default:4", 9)]))
    assert notice is not None
    assert (notice.kind, notice.seats) == ("granted", [("shard:default:4", 9)])
    assert peer_notices.decode(b"\xc1noise") is None
    assert peer_notices.decode(b"") is None


def test_a_runner_that_a_reading_does_not_show_any_more_is_gone_and_is_told_once() -> None:
    gone: list[str] = []
    directory = Directory(never)
    directory.on_gone(gone.append)
    directory.learn(view(runners="ab"))
    directory.learn(view(runners="a"))
    directory.learn(view(runners="a"))
    assert (gone, directory.name_of("b"), directory.runner("b")) == (["b"], "b", None)


def test_a_runner_that_came_after_a_reading_had_begun_is_not_gone_by_it() -> None:
    """A slow reading may be overtaken by one that has seen more."""
    gone: list[str] = []
    directory = Directory(never)
    directory.on_gone(gone.append)
    directory.learn(view(runners="a"))
    reading = directory.begin_reading()
    directory.learn(view(runners="ab"))
    directory.learn(view(runners="a"), reading=reading)
    assert gone == []


def test_who_listens_is_told_of_each_change() -> None:
    told: list[int] = []
    directory = Directory(never)
    directory.on_change(lambda: told.append(directory.epoch("s")))
    directory.learn(view(seat("s", "a", 3)))
    directory.learn_grants("b", [("s", 4)])
    assert told == [3, 4]


def test_names_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.ownership.directory._NAMES_MOST", 1)
    directory = Directory(never)
    directory.learn(view(runners="ab"))
    directory.learn(view(runners="a"))
    assert set(directory._names) == {"a"}
    assert directory.name_of("b") == "b"


@pytest.mark.parametrize("epoch", [2, 3])
def test_what_was_heard_of_an_epoch_that_is_not_newer_says_nothing(epoch: int) -> None:
    directory = Directory(never)
    directory.learn(view(seat("s", "a", 3)))
    directory.learn_grants("b", [("s", epoch)])
    assert directory.holder("s") == runner("a")


async def test_one_that_has_stopped_reads_no_more() -> None:
    reading = asyncio.Event()

    async def read() -> ClusterSnapshot:
        reading.set()
        await asyncio.Event().wait()
        raise AssertionError

    directory = Directory(read)
    asking = asyncio.create_task(directory.refresh())
    await reading.wait()
    await directory.stop()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert directory._refreshing is None


def moved(directory: Directory) -> list[tuple[str, int, str | None, str | None]]:
    return [(each.shard, each.epoch, each.former, each.owner) for each in directory.moves.recent()[1]]


def test_moves_of_shards_are_remembered_as_they_are_read_and_heard() -> None:
    directory = Directory(never)
    assert directory.moves.recent() == (None, ())
    one, two = "shard:default:1", "shard:default:2"
    directory.learn(view(seat(one, "a", 3), seat(two, None, 0), seat("singleton:s", "a", 1)))
    assert moved(directory) == [], "what is seen first has not moved"
    directory.learn_grants("b", [(one, 4), ("singleton:s", 2), ("shard:default:3", 1)])
    directory.learn(view(seat(one, "a", 3), seat(two, "b", 1)))  # read before the grant that was heard
    directory.learn(view(seat(one, None, 4), seat(two, "b", 1)))
    directory.learn(view(seat(one, None, 4), seat(two, "b", 1)))
    directory.learn(view(seat(one, "b", 4), seat(two, "b", 1)))  # an older reading that arrives late
    directory.learn(view(seat(one, "a", 6), seat(two, "b", 1), runners="a"))
    assert moved(directory) == [
        ("default:1", 4, "a", "b"),
        ("default:2", 1, None, "b"),
        ("default:1", 4, "b", None),
        ("default:1", 6, "b", "a"),
    ]


def test_moves_are_remembered_for_an_hour_and_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(AT)
    directory = Directory(never, clock)
    directory.learn(view(seat("shard:default:1", "a", 1)))
    for epoch in range(2, 5):
        clock.advance(timedelta(minutes=20))
        directory.learn_grants("b", [("shard:default:1", epoch)])
    assert directory.moves.recent()[0] == AT
    clock.advance(timedelta(minutes=30))
    since, kept = directory.moves.recent()
    assert (since, [each.epoch for each in kept]) == (AT + timedelta(minutes=30), [3, 4])
    monkeypatch.setattr(directories, "_MOVES_MOST", 1)
    directory.learn_grants("a", [("shard:default:1", 5)])
    since, kept = directory.moves.recent()
    assert (since, [each.epoch for each in kept]) == (AT + timedelta(minutes=60), [5]), "since the last one forgotten"
