"""What leaders leave in storage, on every engine: states with history and expiry, and what they say of their work.

S2, S3, S4, S6, H1, B1; REVIEW C1, M3, m14.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from coterie.errors import LeadershipLost
from coterie.storage.contracts.executions import Stamp
from coterie.storage.interface import ASIDE_MOST, Claim, KvPut, Registration, SeatDeclaration, StateLoaded, StateSave
from tests.contract.test_states import S1, S2, A, B, a, b, evict, joined, take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.interface import Ownership, StateRow, Storage
    from tests.contract.conftest import Passing

__all__ = ["a", "b"]  # fixtures

LONG_S = 3600.0


async def save(storage: Storage, claim: Claim, value: bytes, version: int, **options: Any) -> str:
    return await storage.states.save(StateSave(claim, "k", value, version, **{"keep": 3, **options}))


async def saved(storage: Storage, claim: Claim, *, first: int = 0, count: int, **options: Any) -> None:
    """States whose values are the versions that they get."""
    for version in range(first, first + count):
        assert await save(storage, claim, b"%d" % (version + 1), version, **options) == "written"


def kept(rows: Sequence[StateRow]) -> list[tuple[bytes, int, str]]:
    return [(row.value, row.version, row.reason) for row in rows]


def lost(claim: Claim) -> list[Claim]:
    """What is not held: never, of another epoch, of another runner, of no such seat."""
    return [
        Claim(A, S2, 1),
        Claim(A, S1, claim.epoch + 1),
        Claim(B, S1, claim.epoch),
        Claim(A, "singleton:none", claim.epoch),
    ]


class TestStates:
    async def test_a_state_says_who_saved_it_when_and_at_which_epoch(self, storage: Storage, a: Ownership) -> None:
        """S2: for people, who hold nothing."""
        claim = await take(a, A)
        assert await storage.states.peek("k") is None
        before = await storage.now()
        await save(storage, claim, b"one", 0)
        row = await storage.states.peek("k")
        assert row is not None
        assert (row.value, row.version, row.epoch, row.runner, row.reason) == (b"one", 1, claim.epoch, A, "")
        assert before - timedelta(seconds=1) <= row.saved_at <= await storage.now() + timedelta(seconds=1)
        assert await storage.states.history("k") == [row]

    async def test_the_last_states_are_kept_the_newest_first(self, storage: Storage, a: Ownership) -> None:
        claim = await take(a, A)
        assert await storage.states.history("k") == []
        await saved(storage, claim, count=7)
        assert kept(await storage.states.history("k")) == [(b"7", 7, ""), (b"6", 6, ""), (b"5", 5, "")]
        assert await storage.states.history("other") == []

    async def test_the_history_goes_on_across_holders(self, storage: Storage, a: Ownership, b: Ownership) -> None:
        old = await take(a, A)
        await saved(storage, old, count=2)
        await evict(b, A)
        new = await take(b, B)
        assert await storage.states.load(new, "k") == StateLoaded(b"2", 2)
        await saved(storage, new, first=2, count=1)
        rows = await storage.states.history("k")
        assert [(row.version, row.epoch, row.runner) for row in rows] == [
            (3, new.epoch, B),
            (2, old.epoch, A),
            (1, old.epoch, A),
        ], "also after the runner that saved is gone"

    async def test_what_is_refused_leaves_no_trace(self, storage: Storage, a: Ownership) -> None:
        """C1: neither a conflict nor a write without the seat is in the history."""
        claim = await take(a, A)
        await saved(storage, claim, count=1)
        for other in lost(claim):
            assert await save(storage, other, b"stale", 1) == "fenced"
            assert not await storage.states.set_aside(other, "k", "stale")
            assert await storage.states.save(StateSave(other, "first", b"stale", 0, LONG_S, 3)) == "fenced"
        for version in (0, 2, 9):
            assert await save(storage, claim, b"wrong", version) == "conflict"
        assert kept(await storage.states.history("k")) == [(b"1", 1, "")]
        assert await storage.states.history("first") == []
        assert await storage.states.peek("first") is None

    async def test_what_is_set_aside_outlives_the_history(self, storage: Storage, a: Ownership) -> None:
        """S4: a state that another replaces is kept aside, with the reason."""
        claim = await take(a, A)
        assert await storage.states.set_aside(claim, "k", "there is none"), "and nothing is kept"
        assert await storage.states.history("k") == []
        await saved(storage, claim, count=1)
        for _ in range(2):  # repeated after a lost answer it is the same
            assert await storage.states.set_aside(claim, "k", "unreadable")
        await saved(storage, claim, first=1, count=4)
        rows = await storage.states.history("k")
        assert kept(rows) == [(b"5", 5, ""), (b"4", 4, ""), (b"3", 3, ""), (b"1", 1, "unreadable")]
        assert (rows[-1].runner, rows[-1].epoch) == (A, claim.epoch), "of the one that was set aside"
        assert await storage.states.load(claim, "k") == StateLoaded(b"5", 5)

    async def test_the_last_ones_that_were_set_aside_are_kept_whatever_lies_between(
        self, storage: Storage, a: Ownership
    ) -> None:
        """S4: never silently destroyed, not by another one some versions later."""
        claim = await take(a, A)
        version = 0
        for number in range(ASIDE_MOST + 2):
            await saved(storage, claim, first=version, count=ASIDE_MOST, keep=1)
            version += ASIDE_MOST
            assert await storage.states.set_aside(claim, "k", f"reason {number}")
        rows = await storage.states.history("k")
        aside = [row.reason for row in rows if row.reason]
        assert aside == [f"reason {number}" for number in reversed(range(2, ASIDE_MOST + 2))]

    async def test_a_state_without_saves_expires(self, storage: Storage, a: Ownership, passing: Passing) -> None:
        """S6: as good as none for those who look, and the next one follows its version."""
        claim = await take(a, A)
        await saved(storage, claim, count=2, ttl_s=0.05)
        await passing(0.06)
        assert await storage.states.peek("k") is None
        assert await storage.states.load(claim, "k") == StateLoaded(b"2", 2, expired=True)
        assert await save(storage, claim, b"again", 2, ttl_s=LONG_S) == "written"
        assert await storage.states.load(claim, "k") == StateLoaded(b"again", 3)

    async def test_each_save_begins_the_time_anew_and_one_without_ends_it(
        self, storage: Storage, a: Ownership, passing: Passing
    ) -> None:
        claim = await take(a, A)
        await saved(storage, claim, count=1, ttl_s=0.05)
        await saved(storage, claim, first=1, count=1)
        await storage.states.save(StateSave(claim, "other", b"1", 0, 0.05))
        await storage.states.save(StateSave(claim, "other", b"2", 1, LONG_S))
        await passing(0.06)
        assert await storage.states.load(claim, "k") == StateLoaded(b"2", 2)
        assert await storage.states.load(claim, "other") == StateLoaded(b"2", 2)
        assert await storage.states.purge(most=10) == 0

    async def test_expired_states_are_cleared_away_with_their_histories(
        self, storage: Storage, a: Ownership, passing: Passing
    ) -> None:
        """S6: some at a time, and nothing else."""
        claim = await take(a, A)
        for key in ("k1", "k2", "k3"):
            await storage.states.save(StateSave(claim, key, b"1", 0, 0.05, 3))
            await storage.states.set_aside(claim, key, "reason")
        await storage.states.save(StateSave(claim, "long", b"1", 0, LONG_S, 3))
        await saved(storage, claim, count=1)
        await passing(0.06)
        assert await storage.states.purge(most=2) == 2
        assert await storage.states.purge(most=2) == 1
        assert await storage.states.purge(most=2) == 0
        for key in ("k1", "k2", "k3"):
            assert await storage.states.history(key) == []
            assert await storage.states.load(claim, key) == StateLoaded(None, 0)
        assert len(await storage.states.history("long")) == len(await storage.states.history("k")) == 1
        assert await storage.states.save(StateSave(claim, "k1", b"late", 1, 1.0, 3)) == "conflict", "it is gone"
        assert await storage.states.save(StateSave(claim, "k1", b"new", 0, LONG_S, 3)) == "written"

    async def test_the_longest_ttl_is_as_good_as_none(self, storage: Storage, a: Ownership) -> None:
        claim = await take(a, A)
        longest_s = timedelta(days=999_999_999).total_seconds()
        await saved(storage, claim, count=2, ttl_s=longest_s)
        assert await storage.states.load(claim, "k") == StateLoaded(b"2", 2)
        await storage.kv.put(KvPut("k", b"kv", 1, longest_s))
        assert await storage.kv.get("k") is not None

    async def test_a_state_of_a_transaction_is_dated_and_kept_like_any(
        self, storage: Storage, a: Ownership, passing: Passing
    ) -> None:
        """`leader.transaction()`: the rows and the state, or neither."""
        claim = await take(a, A)
        first = storage.transaction(limit_s=LONG_S)
        await first.execute("create table rows_of_mine (id integer primary key)")
        write: Any = StateSave(claim, "k", b"1", 0, 0.05, 3)
        assert await first.commit(write) == "written"
        row = await storage.states.peek("k")
        assert row is None or (row.runner, row.version) == (A, 1)
        assert kept(await storage.states.history("k")) == [(b"1", 1, "")]
        for claim_, version, told in ((claim, 7, "conflict"), (lost(claim)[1], 1, "fenced")):
            other = storage.transaction(limit_s=LONG_S)
            await other.execute("insert into rows_of_mine values (1)")
            write = StateSave(claim_, "k", b"2", version, None, 3)
            assert await other.commit(write) == told
        last = storage.transaction(limit_s=LONG_S)
        assert list(await last.fetch("select id from rows_of_mine")) == []
        await last.rollback()
        await passing(0.06)
        assert await storage.states.load(claim, "k") == StateLoaded(b"1", 1, expired=True)

    async def test_clusters_in_one_database_have_histories_of_their_own(
        self, storage: Storage, neighbour: Storage, a: Ownership, passing: Passing
    ) -> None:
        mine = await take(a, A)
        async with joined(neighbour, B) as session:
            theirs = await take(session, B)
            await save(neighbour, theirs, b"theirs", 0, ttl_s=0.05)
            await saved(storage, mine, count=1)
            await storage.states.set_aside(mine, "k", "mine")
            await passing(0.06)
            assert await storage.states.purge(most=10) == 0
            assert kept(await neighbour.states.history("k")) == [(b"theirs", 1, "")]
            assert await neighbour.states.purge(most=10) == 1
            assert len(await storage.states.history("k")) == 2


class TestExecutions:
    async def test_a_new_holder_finds_what_the_former_one_said(
        self, storage: Storage, a: Ownership, b: Ownership
    ) -> None:
        """S3: kept by the cluster, across leaders."""
        old = await take(a, A)
        first = await storage.executions.begin(old, leader="first", expected_s=5.0)
        assert first is not None
        assert (first.seat, first.epoch, first.leader, first.runs) == (S1, old.epoch, "first", 0)
        assert (first.ran_at, first.progress_at, first.error, first.error_at) == (None, None, None, None)
        assert (first.note, first.done, first.total, first.expected_s) == ("", None, None, 5.0)
        assert first.known_at <= first.since_at <= first.alive_at
        said = Stamp(old, 3, 10.0, 20.0, "ValueError: no", 30.0, "pages", 3, 10)
        assert await storage.executions.stamp(said) == "written"
        await evict(b, A)
        new = await take(b, B)
        second = await storage.executions.begin(new, leader="second", expected_s=None)
        assert second is not None
        assert (second.epoch, second.leader, second.runs, second.expected_s) == (new.epoch, "second", 3, None)
        assert (second.error, second.note, second.done, second.total) == ("ValueError: no", "pages", 3, 10)
        assert second.known_at == first.known_at
        assert second.since_at > first.since_at
        ages = [second.now - at for at in (second.ran_at, second.progress_at, second.error_at) if at is not None]
        for age, least_s in zip(ages, (10, 20, 30), strict=True):
            assert timedelta(seconds=least_s - 0.001) <= age <= timedelta(seconds=least_s + 30)

    async def test_to_begin_twice_is_to_begin_once(self, storage: Storage, a: Ownership, passing: Passing) -> None:
        """0.6: repeated after a lost answer. It is a sign of life."""
        claim = await take(a, A)
        first = await storage.executions.begin(claim, leader="x", expected_s=None)
        await storage.executions.stamp(Stamp(claim, 2))
        await passing(0.01)
        again = await storage.executions.begin(claim, leader="x", expected_s=None)
        assert first is not None
        assert again is not None
        assert (again.known_at, again.since_at, again.runs) == (first.known_at, first.since_at, 2)
        assert again.alive_at > first.alive_at

    async def test_a_stamp_leaves_what_it_does_not_say(self, storage: Storage, a: Ownership) -> None:
        claim = await take(a, A)
        await storage.executions.begin(claim, leader="x", expected_s=None)
        await storage.executions.stamp(Stamp(claim, 1, 1.0, 2.0, "no", 3.0, "note", 1, 2))
        (before,) = await storage.executions.list(S1)
        await storage.executions.stamp(Stamp(claim, 2))
        (after,) = await storage.executions.list(S1)
        assert (after.ran_at, after.progress_at) == (before.ran_at, before.progress_at)
        assert (after.error, after.error_at) == ("no", before.error_at)
        assert (after.runs, after.note, after.done, after.total) == (2, "", None, None)
        assert after.alive_at >= before.alive_at

    async def test_without_the_seat_nobody_begins_or_stamps(self, storage: Storage, a: Ownership, b: Ownership) -> None:
        """m14: a zombie leader does not keep the dead man's switch green."""
        old = await take(a, A)
        await storage.executions.begin(old, leader="old", expected_s=1.0)
        for other in lost(old):
            assert await storage.executions.begin(other, leader="other", expected_s=None) is None
            assert await storage.executions.stamp(Stamp(other, 99, 0.0, 0.0, "x", 0.0, "x", 1, 1)) == "fenced"
        assert await a.release(S1, old.epoch)
        (before,) = await storage.executions.list("singleton:")
        assert (before.leader, before.runs, before.note, before.error) == ("old", 0, "", None)
        assert await storage.executions.stamp(Stamp(old, 99)) == "fenced", "not even before the next grant"
        new = await take(b, B)
        assert await storage.executions.stamp(Stamp(old, 99)) == "fenced"
        assert await storage.executions.begin(old, leader="old", expected_s=None) is None
        await storage.executions.begin(new, leader="new", expected_s=1.0)
        assert await storage.executions.stamp(Stamp(old, 99)) == "fenced"
        (after,) = await storage.executions.list("singleton:")
        assert (after.leader, after.epoch, after.runs) == ("new", new.epoch, 0)

    async def test_they_are_listed_by_the_beginning_of_their_names(self, storage: Storage) -> None:
        """Characters that mean something in patterns mean nothing here."""
        seats = ["cron:x", "singleton:%", "singleton:_", "singleton:a", "singleton:ab", "singleton:B", "singletons:z"]
        async with storage.ownership(A) as session:
            await register(session, seats)
            for grant in await session.acquire(seats):
                claim = Claim(A, grant.name, grant.epoch)
                assert await storage.executions.begin(claim, leader="x", expected_s=None)
            for prefix in ("", "singleton:", "singleton:a", "singleton:%", "singleton:_", "nothing"):
                found = [each.seat for each in await storage.executions.list(prefix)]
                assert found == sorted(name for name in seats if name.startswith(prefix))


async def test_members_of_a_group_are_strangers(storage: Storage, a: Ownership, b: Ownership) -> None:
    """M3: saves with and without history, stamps and keys in one commit; the fenced and the late ones write nothing."""
    one, two = await take(a, A), await take(b, B, S2)
    gone = Claim(A, S1, one.epoch + 1)
    await storage.executions.begin(one, leader="one", expected_s=None)
    await storage.executions.begin(two, leader="two", expected_s=None)
    results = await asyncio.gather(
        *(storage.states.save(StateSave(one, f"k{n}", b"%d" % n, 0, LONG_S, 3)) for n in range(20)),
        storage.states.save(StateSave(gone, "lost", b"lost", 0, None, 3)),
        storage.executions.stamp(Stamp(one, 1, note="first")),
        storage.executions.stamp(Stamp(gone, 99, note="lost")),
        storage.states.save(StateSave(one, "k0", b"next", 1, None, 3)),
        storage.states.save(StateSave(one, "k0", b"wrong", 5, None, 3)),
        storage.states.save(StateSave(one, "k0", b"plain", 2)),
        storage.executions.stamp(Stamp(one, 2, note="second")),
        storage.executions.stamp(Stamp(two, 7, note="other")),
        storage.states.save(StateSave(two, "theirs", b"new", 0, None, 3)),
        storage.kv.put(KvPut("k0", b"kv", 1)),
        storage.kv.put(KvPut("fenced", b"kv", 2, claim=gone)),
        return_exceptions=True,
    )
    assert results[:20] == ["written"] * 20
    assert results[20:-1] == [
        *("fenced", "written", "fenced", "written", "conflict", "written", "written", "written", "written"),
        None,
    ]
    assert isinstance(results[-1], LeadershipLost)
    assert kept(await storage.states.history("k7")) == [(b"7", 1, "")]
    assert kept(await storage.states.history("k0")) == [(b"next", 2, ""), (b"0", 1, "")]
    assert await storage.states.load(one, "k0") == StateLoaded(b"plain", 3)
    assert await storage.states.history("lost") == []
    said = {each.seat: (each.runs, each.note) for each in await storage.executions.list("")}
    assert said == {S1: (2, "second"), S2: (7, "other")}


async def test_what_two_lives_of_a_process_say_meets_in_one_group(storage: Storage, a: Ownership, b: Ownership) -> None:
    """An evicted process goes on as another incarnation, while stamps of the first still wait in its queue."""
    old = await take(a, A)
    await storage.executions.begin(old, leader="x", expected_s=None)
    await evict(b, A)
    new = await take(b, B)
    await storage.executions.begin(new, leader="x", expected_s=None)
    stamps = [Stamp(old, 99, note="stale"), Stamp(new, 1, note="new"), Stamp(old, 98, note="stale")]
    assert await asyncio.gather(*map(storage.executions.stamp, stamps)) == ["fenced", "written", "fenced"]
    (said,) = await storage.executions.list(S1)
    assert (said.runs, said.note) == (1, "new")


async def test_progress_may_be_any_whole_number(storage: Storage, a: Ownership) -> None:
    claim = await take(a, A)
    await storage.executions.begin(claim, leader="x", expected_s=None)
    for number in (0, -1, 2**63 - 1):
        assert await storage.executions.stamp(Stamp(claim, 1, done=number, total=number)) == "written"
        (said,) = await storage.executions.list(S1)
        assert (said.done, said.total) == (number, number)


async def register(session: Ownership, seats: Sequence[str]) -> None:
    me = Registration(id=A, name=A, address="", host_id="", groups=("default",), knows=dict.fromkeys(seats, "f"))
    await session.register(me, [SeatDeclaration(name, "default", "f") for name in seats], ttl_s=60)
