"""What waits too long and what was given up, as those see it who judge a cluster, on every engine (H2, L4)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from coterie.storage.contracts.messages import Backlog, Commit, Setback
from tests.contract.messages import S1, S2, A, id_of, joined, message, take

if TYPE_CHECKING:
    from coterie.storage.interface import Storage


async def backlog(storage: Storage, *, most: int = 100, dead_most: int = 100) -> Backlog:
    return await storage.messages.backlog(most=most, dead_most=dead_most)


async def filled(storage: Storage, late_s: dict[int, float], **more: str) -> None:
    """Messages by number, each due since so long."""
    now = await storage.now()
    for number, each_s in late_s.items():
        await storage.messages.insert(message(number, due_at=now - timedelta(seconds=each_s), **more))


def numbers(found: Backlog) -> list[int]:
    return [int(each.id, 16) for each in found.late]


async def test_of_each_seat_the_message_that_has_been_due_longest_is_told(storage: Storage) -> None:
    """The longest of all first; what is due later, or stands behind another one, is not among them."""
    assert numbers(await backlog(storage)) == []
    await filled(storage, {1: 10, 2: 40, 3: -60})
    await filled(storage, {11: 90, 12: 20}, seat=S2, entity="bob", method="pay")
    await filled(storage, {21: -60}, seat="shard:gpu:1")
    await filled(storage, {31: 70}, seat="shard:zoo:7")  # nobody has ever declared it
    found = await backlog(storage)
    assert numbers(found) == [11, 31, 2]
    first = found.late[0]
    assert (first.seat, first.entity_type, first.entity_id, first.method) == (S2, "Account", "bob", "pay")
    assert 90 <= (found.now - first.due_at).total_seconds() < 150
    assert numbers(await backlog(storage, most=2)) == [11, 31]


async def test_what_has_ended_does_not_wait_and_the_dead_are_counted_up_to_a_bound(storage: Storage) -> None:
    await filled(storage, {1: 50, 2: 40, 3: 30, 4: 20, 5: 10, 6: 5})
    async with joined(storage, A) as session:
        claim = await take(session, A)
        assert await storage.messages.commit(Commit(claim, id_of(1))) == "written"
        for number in (2, 3, 4):
            assert await storage.messages.setback(Setback(claim, id_of(number), 1, "boom", None)) == "written"
        assert await storage.messages.setback(Setback(claim, id_of(5), 1, "boom", 60.0)) == "written"
    found = await backlog(storage)
    assert (numbers(found), found.dead) == ([6], 3)
    assert (await backlog(storage, dead_most=2)).dead <= 2


async def test_clusters_in_one_database_have_backlogs_of_their_own(storage: Storage, neighbour: Storage) -> None:
    await filled(storage, {1: 50}, seat=S1)
    await filled(neighbour, {2: 60}, seat=S2)
    assert numbers(await backlog(storage)) == [1]
    assert numbers(await backlog(neighbour)) == [2]
