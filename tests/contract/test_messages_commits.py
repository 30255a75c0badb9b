"""What a handler leaves behind, on every engine: all of it or nothing, under the fence [B3, C1, M3, M4, M6]."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from coterie.storage.contracts.messages import Commit, Committed, Setback
from coterie.storage.interface import Claim, StateLoaded, StateSave
from tests.contract.messages import (
    CANCELLED,
    S1,
    S2,
    A,
    B,
    change,
    due_ids,
    evict,
    id_of,
    joined,
    look,
    message,
    statuses,
    take,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.interface import Ownership, Storage
    from tests.contract.conftest import Passing


@pytest.fixture
async def a(storage: Storage) -> AsyncIterator[Ownership]:
    async with joined(storage, A) as session:
        yield session


@pytest.fixture
async def b(storage: Storage, a: Ownership) -> AsyncIterator[Ownership]:
    async with joined(storage, B) as session:
        yield session


async def test_reply_state_and_sends_are_committed_together(storage: Storage, a: Ownership) -> None:
    claim = await take(a, A)
    await storage.messages.insert(message(1))
    sends = (message(2, key="k", digest=b"d", seat=S2), message(3, delay_s=60), message(4))
    write = Commit(claim, id_of(1), b"reply", change("e", b"state"), sends)
    assert await storage.messages.commit(write) == "written"
    row = await look(storage, 1)
    assert row is not None
    assert (row.status, row.reply) == ("done", b"reply")
    assert await storage.states.load(claim, "e") == StateLoaded(b"state", 1)
    assert await due_ids(storage, S1, S2) == [4, 2]
    sent = await look(storage, 3)
    assert sent is not None
    assert sent.due_at - sent.sent_at == timedelta(seconds=60)
    found = await storage.messages.find("Account", "alice", "add", "k")
    assert found is not None
    assert (found.id, found.digest) == (id_of(2), b"d")


@pytest.mark.parametrize("parts", ["message", "state", "sends", "nothing"])
async def test_each_part_may_be_missing(storage: Storage, a: Ownership, parts: str) -> None:
    claim = await take(a, A)
    await storage.messages.insert(message(1))
    commits = {
        "message": Commit(claim, id_of(1)),
        "state": Commit(claim, state=change("e", b"one")),
        "sends": Commit(claim, sends=(message(2),)),
        "nothing": Commit(claim),
    }
    write = commits[parts]
    assert await storage.messages.commit(write) == "written"
    assert await statuses(storage, 1, 2) == [
        "done" if parts == "message" else "pending",
        "pending" if parts == "sends" else None,
    ]
    state = StateLoaded(b"one", 1) if parts == "state" else StateLoaded(None, 0)
    assert await storage.states.load(claim, "e") == state
    lost = Commit(Claim(A, S1, claim.epoch + 1), write.message, write.reply, write.state, write.sends)
    # The end of a message tells whose it was; without it only the fence can be asked.
    assert await storage.messages.commit(lost) == "fenced"


async def test_states_follow_each_other_and_go(storage: Storage, a: Ownership) -> None:
    """A value of None deletes the row, and the next one is the first again."""
    claim = await take(a, A)

    async def commit(value: bytes | None, version: int) -> Committed:
        return await storage.messages.commit(Commit(claim, state=change("e", value, version)))

    assert await commit(None, 0) == "written", "nothing is to be deleted"
    assert await commit(b"one", 0) == "written"
    assert await commit(b"", 1) == "written"
    assert await storage.states.load(claim, "e") == StateLoaded(b"", 2)
    for version in (0, 1, 3):
        assert await commit(b"wrong", version) == "stale"
        assert await commit(None, version) == "stale"
    assert await storage.states.load(claim, "e") == StateLoaded(b"", 2)
    assert await commit(None, 2) == "written"
    assert await storage.states.load(claim, "e") == StateLoaded(None, 0)
    assert await commit(b"wrong", 2) == "stale"
    assert await commit(b"again", 0) == "written"
    assert await storage.states.load(claim, "e") == StateLoaded(b"again", 1)
    assert await storage.states.save(StateSave(claim, "e", b"saved", 1)) == "written"
    assert await commit(b"three", 2) == "written"


async def refused(storage: Storage, claim: Claim) -> dict[str, Commit]:
    """One commit for each way to be refused; each would also write state and send."""
    await storage.messages.insert(message(99, key="in use"))
    for number in (1, 2, 3, 4):
        await storage.messages.insert(message(number))
    assert await storage.messages.cancel(id_of(2), claim, reply=CANCELLED)
    assert await storage.states.save(StateSave(claim, "e3", b"old", 0)) == "written"
    lost = Claim(claim.runner, claim.seat, claim.epoch + 1)
    return {
        "fenced": Commit(lost, id_of(1), b"r", change("e1", b"new"), (message(101),)),
        "gone": Commit(claim, id_of(2), b"r", change("e2", b"new"), (message(102),)),
        "stale": Commit(claim, id_of(3), b"r", change("e3", b"new"), (message(103),)),
        "taken": Commit(claim, id_of(4), b"r", change("e4", b"new"), (message(104), message(105, key="in use"))),
    }


async def require_nothing(storage: Storage, claim: Claim) -> None:
    assert await statuses(storage, 1, 2, 3, 4) == ["pending", "done", "pending", "pending"]
    cancelled = await look(storage, 2)
    assert cancelled is not None
    assert cancelled.reply == CANCELLED, "it stays what it was"
    assert await statuses(storage, 101, 102, 103, 104, 105) == [None] * 5
    states = [await storage.states.load(claim, key) for key in ("e1", "e2", "e3", "e4")]
    assert states == [StateLoaded(None, 0), StateLoaded(None, 0), StateLoaded(b"old", 1), StateLoaded(None, 0)]


@pytest.mark.parametrize("why", ["fenced", "gone", "stale", "taken"])
async def test_a_refused_commit_writes_nothing_at_all_and_says_why(storage: Storage, a: Ownership, why: str) -> None:
    """M3, M4, B3."""
    claim = await take(a, A)
    write = (await refused(storage, claim))[why]
    assert await storage.messages.commit(write) == why
    await require_nothing(storage, claim)


async def test_members_of_a_group_are_strangers(storage: Storage, a: Ownership) -> None:
    """M3: one of each kind that is refused among fifty that are not."""
    claim = await take(a, A)
    bad = await refused(storage, claim)
    good = []
    for number in range(200, 250):
        await storage.messages.insert(message(number))
        state = change(f"s{number}", b"new") if number % 2 else None
        sends = (message(1000 + number, key=f"k{number}"),) if number % 3 == 0 else ()
        good.append(Commit(claim, id_of(number), b"%d" % number, state, sends))
    writes = [*good[:20], bad["fenced"], bad["stale"], *good[20:40], bad["taken"], bad["gone"], *good[40:]]
    told = await asyncio.gather(*map(storage.messages.commit, writes))
    assert told == [*["written"] * 20, "fenced", "stale", *["written"] * 20, "taken", "gone", *["written"] * 10]
    await require_nothing(storage, claim)
    assert await statuses(storage, *range(200, 250)) == ["done"] * 50
    row = await look(storage, 233)
    assert row is not None
    assert row.reply == b"233"
    for number in range(200, 250):
        left = StateLoaded(b"new", 1) if number % 2 else StateLoaded(None, 0)
        assert await storage.states.load(claim, f"s{number}") == left
    sent = [number for number in range(200, 250) if number % 3 == 0]
    assert await statuses(storage, *(1000 + number for number in sent)) == ["pending"] * len(sent)


async def test_a_commit_of_unknown_outcome_can_be_asked_for(storage: Storage, a: Ownership) -> None:
    """0.6: an earlier try of the same commit did it, whose answer was lost; nothing is written twice."""
    claim = await take(a, A)
    await storage.messages.insert(message(1))
    await storage.messages.insert(message(2))
    writes = [
        Commit(claim, id_of(1), b"reply"),
        Commit(claim, id_of(2), b"reply", change("e2", b"two"), (message(12, key="k2"),)),
        Commit(claim, state=change("e3", b"three")),
        Commit(claim, sends=(message(14, key="k4"), message(15))),
        Commit(claim, state=change("e5", b"five"), sends=(message(16),)),
    ]
    for _ in range(2):
        for write in writes:
            assert await storage.messages.commit(write) == "written"
    assert await asyncio.gather(*map(storage.messages.commit, writes)) == ["written"] * len(writes)
    assert await storage.states.load(claim, "e2") == StateLoaded(b"two", 1)
    assert await storage.states.load(claim, "e3") == StateLoaded(b"three", 1)
    assert await due_ids(storage) == [12, 14, 15, 16]
    gone = Commit(claim, state=change("e3", None, 1))
    assert [await storage.messages.commit(gone) for _ in range(2)] == ["written", "written"]
    other = Commit(claim, state=change("e5", b"another five"))
    assert await storage.messages.commit(other) == "stale", "another value is not ours"


async def test_a_commit_whose_earlier_try_did_it_is_written_also_when_the_seat_is_lost_by_now(
    storage: Storage, a: Ownership, b: Ownership
) -> None:
    """0.6: the end of the message carries the epoch that wrote it."""
    claim = await take(a, A)
    await storage.messages.insert(message(1))
    await storage.messages.insert(message(2))
    write = Commit(claim, id_of(1), b"reply", change("e", b"one"))
    assert await storage.messages.commit(write) == "written"
    assert await a.release(S1, claim.epoch)
    later = await take(b, B)
    assert await storage.messages.commit(write) == "written"
    assert await storage.messages.commit(Commit(claim, id_of(2), b"reply")) == "fenced"
    assert await storage.messages.commit(Commit(later, id_of(1), b"another")) == "gone"
    row = await look(storage, 1)
    assert row is not None
    assert row.reply == b"reply"


@pytest.mark.parametrize("lost", ["released", "evicted", "granted to itself again"])
async def test_however_the_seat_was_lost_the_former_holder_ends_nothing(
    storage: Storage, a: Ownership, b: Ownership, lost: str
) -> None:
    """C1, INV-F2: nor does it write state, send, or count an attempt."""
    old = await take(a, A)
    await storage.messages.insert(message(1))
    if lost == "evicted":
        await evict(b, A)
    else:
        assert await a.release(S1, old.epoch)
    again = lost == "granted to itself again"
    new = await take(a if again else b, A if again else B)
    late = [
        Commit(old, id_of(1), b"late"),
        Commit(old, id_of(1), b"late", change("e", b"late"), (message(2),)),
        Commit(old, state=change("e", b"late")),
        Commit(old, sends=(message(2),)),
    ]
    assert await asyncio.gather(*map(storage.messages.commit, late)) == ["fenced"] * 4
    assert await storage.messages.setback(Setback(old, id_of(1), 1, "late", None)) == "fenced"
    assert await storage.messages.setback(Setback(old, id_of(1), 1, None, 3600.0)) == "fenced"
    assert not await storage.messages.cancel(id_of(1), old, reply=CANCELLED)
    assert await statuses(storage, 1, 2) == ["pending", None]
    assert await due_ids(storage) == [1], "it was put off by a former holder"
    assert await storage.states.load(new, "e") == StateLoaded(None, 0)
    assert await storage.messages.commit(Commit(new, id_of(1), b"new", change("e", b"new"))) == "written"


async def test_commits_of_one_entity_in_one_group_go_one_after_another(storage: Storage, a: Ownership) -> None:
    """M3: beside saves of the same key."""
    claim = await take(a, A)
    for number in range(4):
        await storage.messages.insert(message(number))
    writes = [Commit(claim, id_of(n), b"%d" % n, change("e", b"%d" % n, n)) for n in range(3)]
    told = await asyncio.gather(
        *map(storage.messages.commit, writes),
        storage.messages.commit(Commit(claim, id_of(3), b"", change("e", b"wrong", 1))),
        storage.states.save(StateSave(claim, "e", b"saved", 3)),
    )
    assert list(told) == ["written", "written", "written", "stale", "written"]
    assert await storage.states.load(claim, "e") == StateLoaded(b"saved", 4)
    assert await statuses(storage, *range(4)) == ["done"] * 3 + ["pending"]


async def test_what_meets_in_one_group_over_one_message_goes_one_after_another(storage: Storage, a: Ownership) -> None:
    claim = await take(a, A)
    await storage.messages.insert(message(1))
    await storage.messages.insert(message(2))
    told = await asyncio.gather(
        storage.messages.setback(Setback(claim, id_of(1), 1, "boom", 0.0)),
        storage.messages.commit(Commit(claim, id_of(1), b"ok")),
        storage.messages.setback(Setback(claim, id_of(1), 2, "late", 0.0)),
        storage.messages.setback(Setback(claim, id_of(2), 1, "boom", None)),
        storage.messages.commit(Commit(claim, id_of(2), b"late")),
    )
    assert list(told) == ["written", "written", "gone", "written", "gone"]
    row = await look(storage, 1)
    assert row is not None
    assert (row.status, row.attempts, row.reply) == ("done", 1, b"ok")


async def test_of_two_sends_with_one_key_in_one_group_the_first_wins(storage: Storage, a: Ownership) -> None:
    """M6: a conflict is the second handler's defect, and its whole commit is refused; also within one commit."""
    claim = await take(a, A)
    for number in (1, 2, 3):
        await storage.messages.insert(message(number))
    writes = [
        Commit(claim, id_of(1), sends=(message(11, key="k"),)),
        Commit(claim, id_of(2), sends=(message(12, key="k"), message(13))),
        Commit(claim, id_of(3), sends=(message(14, key="twice"), message(15, key="twice"))),
    ]
    assert await asyncio.gather(*map(storage.messages.commit, writes)) == ["written", "taken", "taken"]
    assert await statuses(storage, 1, 2, 3) == ["done", "pending", "pending"]
    assert await statuses(storage, 11, 12, 13, 14, 15) == ["pending", None, None, None, None]


async def test_a_setback_counts_the_attempt_and_tries_again_later(
    storage: Storage, a: Ownership, passing: Passing
) -> None:
    claim = await take(a, A)
    await storage.messages.insert(message(1))
    before = await storage.now()
    assert await storage.messages.setback(Setback(claim, id_of(1), 1, "boom", 0.2)) == "written"
    row = await look(storage, 1)
    assert row is not None
    assert (row.status, row.attempts, row.completed_at) == ("pending", 1, None)
    assert [(each.number, each.error) for each in row.errors] == [(1, "boom")]
    assert before <= row.errors[0].at <= await storage.now()
    assert timedelta(seconds=0.19) <= row.due_at - row.errors[0].at <= timedelta(seconds=0.21)
    assert await due_ids(storage) == [] or await storage.now() >= row.due_at, "it comes too early"
    await passing(0.25)
    assert await due_ids(storage) == [1]
    (delivery,) = await storage.messages.fetch([id_of(1)])
    assert delivery.attempts == 1


async def test_a_setback_written_twice_counts_once(storage: Storage, a: Ownership) -> None:
    """0.6: also if it was the last attempt."""
    claim = await take(a, A)
    await storage.messages.insert(message(1))
    for attempt, again_s in ((1, 0.0), (2, None)):
        write = Setback(claim, id_of(1), attempt, f"boom {attempt}", again_s)
        assert [await storage.messages.setback(write) for _ in range(2)] == ["written", "written"]
        assert await asyncio.gather(*map(storage.messages.setback, [write, write])) == ["written", "written"]
    row = await look(storage, 1)
    assert row is not None
    assert (row.status, row.attempts, row.reply) == ("dead", 2, None)
    assert [(each.number, each.error) for each in row.errors] == [(1, "boom 1"), (2, "boom 2")]
    assert row.completed_at is not None


async def test_a_setback_of_what_has_ended_is_gone(storage: Storage, a: Ownership) -> None:
    claim = await take(a, A)
    for number in (1, 2):
        await storage.messages.insert(message(number))
    await storage.messages.commit(Commit(claim, id_of(1)))
    await storage.messages.setback(Setback(claim, id_of(2), 3, "boom", None))
    told = [await storage.messages.setback(Setback(claim, id_of(n), 4, "late", 0.0)) for n in (1, 2, 3)]
    assert told == ["gone"] * 3
    assert await storage.messages.commit(Commit(claim, id_of(2), b"late")) == "gone"
    assert await statuses(storage, 1, 2, 3) == ["done", "dead", None]


async def test_what_is_put_off_is_due_later_and_counts_nothing(
    storage: Storage, a: Ownership, passing: Passing
) -> None:
    """T5: nothing of the failures before it changes, and the attempt keeps its number."""
    claim = await take(a, A)
    for number in (1, 2):
        await storage.messages.insert(message(number))
    await storage.messages.setback(Setback(claim, id_of(1), 1, "boom", 0.0))
    write = Setback(claim, id_of(1), 2, None, 0.2)
    told = [await storage.messages.setback(write) for _ in range(2)]
    told += await asyncio.gather(
        storage.messages.setback(write),
        storage.messages.setback(Setback(claim, id_of(2), 1, None, 3600.0)),
        storage.messages.setback(write),
    )
    assert told == ["written"] * 5, "also if an earlier try of it has happened"
    row, now = await look(storage, 1), await storage.now()
    assert row is not None
    assert (row.status, row.attempts, row.completed_at) == ("pending", 1, None)
    assert [(each.number, each.error) for each in row.errors] == [(1, "boom")]
    assert row.due_at <= now + timedelta(seconds=0.21)
    await passing(0.25)
    assert await due_ids(storage) == [1]
    (delivery,) = await storage.messages.fetch([id_of(1)])
    assert delivery.attempts == 1
    assert await storage.messages.setback(Setback(claim, id_of(1), 2, "boom", 0.0)) == "written", "the same attempt"


async def test_what_has_ended_or_failed_since_is_not_put_off(storage: Storage, a: Ownership) -> None:
    """A try whose outcome was unknown, and that comes late, holds up nothing."""
    claim = await take(a, A)
    for number in (1, 2, 3):
        await storage.messages.insert(message(number))
    await storage.messages.commit(Commit(claim, id_of(1)))
    await storage.messages.setback(Setback(claim, id_of(2), 1, "boom", None))
    await storage.messages.setback(Setback(claim, id_of(3), 1, "boom", 0.0))
    late = [await storage.messages.setback(Setback(claim, id_of(n), 1, None, 3600.0)) for n in (1, 2, 3, 4)]
    assert late == ["gone"] * 4
    assert await statuses(storage, 1, 2, 3) == ["done", "dead", "pending"]
    assert await due_ids(storage) == [3]


async def test_the_last_errors_are_kept(storage: Storage, a: Ownership) -> None:
    claim = await take(a, A)
    await storage.messages.insert(message(1))
    for attempt in range(1, 24):
        error = f"boom {attempt}: \x00 \ud800 'quoted' \"twice\" \\ ü"
        assert await storage.messages.setback(Setback(claim, id_of(1), attempt, error, 0.0)) == "written"
    row = await look(storage, 1)
    assert row is not None
    assert row.attempts == 23
    assert [each.number for each in row.errors] == list(range(4, 24))
    assert row.errors[-1].error.startswith("boom 23: ")
    assert row.errors[-1].error.endswith("'quoted' \"twice\" \\ ü")


async def test_under_hand_overs_all_the_time_every_message_is_applied_once(
    storage: Storage, a: Ownership, b: Ownership
) -> None:
    """C1, B3, INV-F2: the seat goes back and forth while its holders work; nobody is drained before."""
    count = 100
    await asyncio.gather(*(storage.messages.insert(message(n)) for n in range(count)))
    workers: list[asyncio.Task[None]] = []

    async def work(claim: Claim, begun: asyncio.Event) -> None:
        while (loaded := await storage.states.load(claim, "e")) is not None:
            due = await storage.messages.due({S1: None}, most=1)
            if not due.rows:
                break
            done = (loaded.value or b"") + due.rows[0].id[-4:].encode()
            write = Commit(claim, due.rows[0].id, b"ok", change("e", done, loaded.version))
            # Read before the last hand-over, written after it: fenced. Anything else than that is a wrong world.
            if await storage.messages.commit(write) == "written":
                begun.set()
            else:
                assert await storage.messages.commit(write) == "fenced"
        begun.set()

    async with asyncio.timeout(120):
        while await due_ids(storage, most=1):
            session, runner = (a, A) if len(workers) % 2 else (b, B)
            claim, begun = await take(session, runner), asyncio.Event()
            workers.append(asyncio.create_task(work(claim, begun)))
            await begun.wait()
            assert await session.release(S1, claim.epoch)
        await asyncio.gather(*workers)
    last = await take(a, A)
    applied = b"".join(b"%04x" % n for n in range(count))
    assert await storage.states.load(last, "e") == StateLoaded(applied, count)


async def test_whoever_needs_no_future_is_told_the_same(storage: Storage, a: Ownership) -> None:
    claim = await take(a, A)
    for number in (1, 2):
        await storage.messages.insert(message(number))
    first, second = (asyncio.get_running_loop().create_future() for _ in range(2))  # as good as anybody who is told
    storage.messages.save(Commit(claim, id_of(1), b"reply"), first)
    storage.messages.save(Commit(Claim(A, S1, claim.epoch + 1), id_of(2), b"reply"), second)
    assert (await first, await second) == ("written", "fenced")
    assert await statuses(storage, 1, 2) == ["done", "pending"]
