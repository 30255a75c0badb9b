"""Which jobs a queue's holder finds, in which order (T3, T4); what is due later, and what is set aside."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from coterie.storage.contracts.jobs import Matured
from coterie.storage.interface import Claim
from tests.contract.jobs import (
    ONE,
    TWO,
    A,
    Desk,
    desk,
    end,
    id_of,
    insert,
    job,
    joined,
    numbers,
    setback,
    states,
    take,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.contracts.jobs import Partition
    from coterie.storage.interface import Storage
    from tests.contract.conftest import Passing

__all__ = ["desk"]  # fixtures


def shown(found: Sequence[Partition]) -> list[tuple[str, list[int], bool]]:
    return [(each.part, numbers(each.heads), each.more) for each in found]


async def test_jobs_of_a_partition_come_by_rank_and_then_by_id(storage: Storage) -> None:
    """T4: a level of priority is worth one `age` of waiting, so nothing waits for ever."""
    now = await storage.now()

    def sent(number: int, hours: float, *, priority: int = 0, age_s: float = 3600.0) -> object:
        return job(number, due_at=now - timedelta(hours=hours), priority=priority, age_s=age_s)

    given = [
        sent(1, 0.0),
        sent(2, 2.5),
        sent(3, 0.0, priority=2),
        sent(4, 0.0, priority=3),
        sent(5, 0.0, priority=-1),
        sent(6, 0.0, priority=1, age_s=60.0),
        sent(8, 1.0),
        sent(7, 0.0, priority=1),
    ]
    await insert(storage, *given)  # type: ignore[arg-type]
    (found,) = await storage.jobs.sweep(ONE, after=None, parts=1, each=10)
    assert numbers(found.heads) == [4, 2, 3, 7, 8, 6, 1, 5]
    ranks = [each.rank_s for each in found.heads]
    assert ranks == sorted(ranks)
    assert [each.priority for each in found.heads] == [3, 0, 2, 1, 0, 1, 0, -1]
    head = found.heads[0]
    assert (head.part, head.task, head.fingerprint, head.lost) == ("acme", "resize", "f1", 0)


async def test_a_sweep_goes_from_partition_to_partition(storage: Storage, desk: Desk) -> None:
    parts = {1: "", 2: "a", 3: "a", 4: "b", 5: "B", 6: "o'brien", 7: "ä"}
    await insert(storage, *(job(number, part=part) for number, part in parts.items()))
    await insert(storage, job(8, seat=TWO, part="c"), job(9, part="c", delay_s=60.0), job(10, part="d"))
    await desk.started(10)

    found = shown(await storage.jobs.sweep(ONE, after=None, parts=100, each=1))
    expected = [("", [1], False), ("B", [5], False), ("a", [2], True), ("b", [4], False)]
    assert found == [*expected, ("o'brien", [6], False), ("ä", [7], False)], "in order of their bytes"
    assert shown(await storage.jobs.sweep(ONE, after=None, parts=2, each=1)) == expected[:2]
    assert shown(await storage.jobs.sweep(ONE, after="B", parts=2, each=2)) == [
        ("a", [2, 3], False),
        ("b", [4], False),
    ]
    assert shown(await storage.jobs.sweep(ONE, after="", parts=1, each=1)) == expected[1:2]
    assert shown(await storage.jobs.sweep(ONE, after="ä", parts=10, each=1)) == []
    assert shown(await storage.jobs.sweep("queue:none", after=None, parts=10, each=1)) == []


async def test_chosen_partitions_are_refilled(storage: Storage) -> None:
    await insert(storage, *(job(number, part="ab"[number % 2]) for number in range(1, 8)), job(8, seat=TWO, part="c"))
    found = shown(await storage.jobs.refill(ONE, ["b", "none", "a", "c"], each=3))
    assert sorted(found) == [("a", [2, 4, 6], False), ("b", [1, 3, 5], True)]
    assert await storage.jobs.refill(ONE, [], each=3) == []


async def test_what_is_due_becomes_ready(storage: Storage, desk: Desk, passing: Passing) -> None:
    await insert(storage, job(1, delay_s=0.2, part="b"), job(2, delay_s=0.1, priority=5), job(3, delay_s=60.0))
    await insert(storage, job(4, seat=TWO, delay_s=0.1), job(5, delay_s=0.1, key="k"))
    await passing(0.25)
    first = await storage.jobs.mature(desk.claim, most=2)
    assert (first.fenced, numbers(first.heads), first.next_in_s) == (False, [2, 5], 0.0)
    assert [(each.part, each.priority) for each in first.heads] == [("acme", 5), ("acme", 0)]
    second = await storage.jobs.mature(desk.claim, most=2)
    assert (second.fenced, numbers(second.heads)) == (False, [1])
    assert second.next_in_s is not None
    assert 50 < second.next_in_s <= 60
    assert await states(storage, 1, 2, 3, 4, 5) == ["ready", "ready", "later", "later", "ready"]
    (found,) = await storage.jobs.refill(ONE, ["acme"], each=10)
    assert found.heads == first.heads
    await storage.jobs.cancel(id_of(3), reply=b"")
    assert await storage.jobs.mature(desk.claim, most=2) == Matured(False)
    former = Claim(A, ONE, desk.claim.epoch - 1)
    assert await storage.jobs.mature(former, most=2) == Matured(True)


async def test_a_retry_comes_by_its_new_due_time_and_keeps_its_priority(
    storage: Storage, desk: Desk, passing: Passing
) -> None:
    delivery = await desk.begin(1, priority=1)
    await insert(storage, job(2), job(3, priority=2))
    assert await storage.jobs.setback(setback(delivery, 0.1)) == "written"
    await passing(0.15)
    await insert(storage, job(4, priority=1))
    (head,) = (await storage.jobs.mature(desk.claim, most=10)).heads
    (found,) = await storage.jobs.sweep(ONE, after=None, parts=1, each=10)
    assert numbers(found.heads) == [3, 1, 4, 2]
    assert found.heads[1] == head


async def test_tasks_that_nobody_knows_are_parked_until_somebody_does(storage: Storage, desk: Desk) -> None:
    await insert(storage, *(job(number, task="odd", part="ab"[number % 2]) for number in range(1, 6)))
    await insert(storage, job(6), job(7, task="even"), job(8, task="odd", seat=TWO), job(9, task="odd", delay_s=60.0))
    assert await storage.jobs.park(desk.claim, ["odd", "even", "none"], most=3) == 3
    assert await storage.jobs.park(desk.claim, ["odd", "even"], most=10) == 3
    assert await states(storage, 5, 6, 7, 8, 9) == ["parked", "ready", "parked", "ready", "later"]
    assert sorted(await storage.jobs.parked(ONE)) == ["even", "odd"]
    assert await storage.jobs.parked(TWO) == []
    assert shown(await storage.jobs.sweep(ONE, after=None, parts=10, each=10)) == [("acme", [6], False)]
    assert (await desk.start(1)).jobs == ()
    assert await storage.jobs.unpark(desk.claim, ["odd"], most=4) == 4
    assert await storage.jobs.unpark(desk.claim, ["odd"], most=4) == 1
    assert await storage.jobs.parked(ONE) == ["even"]
    found = shown(await storage.jobs.sweep(ONE, after=None, parts=10, each=10))
    assert found == [("a", [2, 4], False), ("acme", [6], False), ("b", [1, 3, 5], False)]
    former = Claim(A, ONE, desk.claim.epoch - 1)
    assert await storage.jobs.park(former, ["resize"], most=10) == 0
    assert await storage.jobs.unpark(former, ["even"], most=10) == 0
    assert await states(storage, 6, 7) == ["ready", "parked"]


async def test_the_backlog_counts_up_to_a_bound(storage: Storage, desk: Desk) -> None:
    now = await storage.now()
    ago = {1: 10.0, 2: 30.0, 3: 20.0}
    await insert(storage, *(job(n, due_at=now - timedelta(seconds=s), part=f"p{n}") for n, s in ago.items()))
    await insert(storage, *(job(number, delay_s=60.0) for number in (4, 5)), job(6, task="odd"))
    await storage.jobs.park(desk.claim, ["odd"], most=10)
    running, dead, done = [await desk.begin(number) for number in (7, 8, 9)]
    assert running.claim == 1
    await storage.jobs.setback(setback(dead, None))
    await storage.jobs.end(end(done))
    one, two = await storage.jobs.backlog([ONE, TWO], most=100)
    assert (one.seat, one.ready, one.later, one.parked, one.claimed, one.dead) == (ONE, 3, 2, 1, 1, 1)
    assert one.oldest_s is not None
    assert 30 <= one.oldest_s < 600
    assert (two.seat, two.ready, two.later, two.parked, two.claimed, two.dead) == (TWO, 0, 0, 0, 0, 0)
    assert two.oldest_s is None
    (bounded,) = await storage.jobs.backlog([ONE], most=2)
    assert (bounded.ready, bounded.later, bounded.parked) == (2, 2, 1)


async def test_each_seat_has_jobs_of_its_own(storage: Storage) -> None:
    async with joined(storage, A) as session:
        one, two = Desk(storage, await take(session, A, ONE)), Desk(storage, await take(session, A, TWO))
        await one.define()
        await two.define()
        await insert(storage, job(1), job(2, seat=TWO))
        assert (await one.start(2)).jobs == ()
        assert numbers((await two.start(1, 2)).jobs) == [2]
        assert numbers(await storage.jobs.running(TWO)) == [2]
        assert await storage.jobs.running(ONE) == []
