"""Crons on PostgreSQL, where others write at the same time: what waits for whom, and what is seen after the wait."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie.kernel.ids import Seat
from coterie.storage.contracts.ticks import CronTakeover, TickClaim, TickNote, Verdict
from coterie.storage.interface import Claim, Registration, SeatDeclaration
from coterie.storage.postgres import ConnectionLimits, PostgresStorage
from coterie.storage.postgres.batch import plan
from coterie.storage.postgres.writer import SQL
from tests.unit.postgres.conftest import new_storage, stranger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import asyncpg

    from coterie.storage.contracts.ticks import Outcome, TickRow
    from coterie.storage.postgres.ownership import PostgresOwnership

pytestmark = pytest.mark.postgres

ME = "a" * 32
NAME = "nightly"
SEAT = Seat.cron(NAME)
START = datetime(2026, 3, 1, tzinfo=UTC)
PATIENT = ConnectionLimits(lock_s=20.0, call_s=20.0, transaction_s=20.0)
WAITING = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


def at(minute: int) -> datetime:
    return START + timedelta(minutes=minute)


def claim_of(claim: Claim, last: datetime | None, minute: int, *, name: str = NAME) -> TickClaim:
    return TickClaim(claim, name, "s", last, (Verdict(at(minute), at(minute)),))


def end_of(claim: Claim, row: TickRow, **values: Any) -> TickNote:
    return TickNote(claim, row.name, row.kind, row.at, row.seq, row.attempt, "ran", **values)


@asynccontextmanager
async def holding(storage: PostgresStorage, *names: str) -> AsyncIterator[tuple[PostgresOwnership, dict[str, Claim]]]:
    """A runner that holds the seats of crons."""
    seats = {Seat.cron(name): name for name in names}
    me = Registration(
        id=ME, name="ann", address="h:1", host_id="h", groups=("default",), knows=dict.fromkeys(seats, "s:o")
    )
    async with storage.ownership(ME) as session:
        await session.register(me, [SeatDeclaration(seat, "default", "s:o") for seat in seats], ttl_s=60)
        grants = await session.acquire(list(seats))
        yield session, {seats[grant.name]: Claim(ME, grant.name, grant.epoch) for grant in grants}


async def until_waits(connection: asyncpg.Connection[Any], task: asyncio.Task[Any]) -> None:
    """Wait until a session of this database waits for a lock."""
    async with asyncio.timeout(120):
        while not await connection.fetchval(WAITING):
            assert not task.done(), "it does not wait"
            await asyncio.sleep(0.01)


async def test_a_claim_that_waits_for_a_pause_is_told_of_it(postgres_url: str) -> None:
    """No tick begins once a pause is there: not even one that was being claimed before."""
    async with new_storage(postgres_url, limits=PATIENT) as storage, holding(storage, NAME) as (_, claims):
        await storage.ticks.take([CronTakeover(claims[NAME], NAME, "{}")])
        async with stranger(postgres_url) as other, stranger(postgres_url) as watcher:
            await other.execute("begin")
            assert await other.fetchval(SQL["pause_cron"], "default", SEAT, NAME)
            claiming = asyncio.create_task(storage.ticks.claim(claim_of(claims[NAME], None, 0)))
            await until_waits(watcher, claiming)
            await other.execute("commit")
            assert (await claiming).told == "paused"
        assert await storage.ticks.history(NAME, most=9) == []
        (row,) = await storage.ticks.list()
        assert (row.last, row.runs, row.paused_at is not None) == (None, 0, True)


async def test_a_pause_waits_for_a_claim_and_begins_after_it(postgres_url: str) -> None:
    async with new_storage(postgres_url, limits=PATIENT) as storage, holding(storage, NAME) as (_, claims):
        await storage.ticks.take([CronTakeover(claims[NAME], NAME, "{}")])
        async with stranger(postgres_url) as other, stranger(postgres_url) as watcher:
            await other.execute("begin")
            await other.fetch(SQL["claim_ticks"], "default", *values_of(claim_of(claims[NAME], None, 0)))
            pausing = asyncio.create_task(storage.ticks.pause(NAME))
            await until_waits(watcher, pausing)
            claimed_until = await watcher.fetchval("select clock_timestamp()")
            await other.execute("commit")
            assert await pausing
        (row,) = await storage.ticks.list()
        assert row.paused_at is not None
        assert row.paused_at > claimed_until
        assert row.runs == 1


async def test_of_two_claims_at_once_under_one_epoch_one_is_written(postgres_url: str) -> None:
    """An answer was lost, and the server still works on the first while the second one comes."""
    async with new_storage(postgres_url, limits=PATIENT) as storage, holding(storage, NAME) as (_, claims):
        for last, first, second in ((None, 0, 0), (at(0), 1, 1), (at(1), 2, 9)):
            async with stranger(postgres_url) as other, stranger(postgres_url) as watcher:
                await other.execute("begin")
                await other.fetch(SQL["claim_ticks"], "default", *values_of(claim_of(claims[NAME], last, first)))
                claiming = asyncio.create_task(storage.ticks.claim(claim_of(claims[NAME], last, second)))
                await until_waits(watcher, claiming)
                await other.execute("commit")
                assert (await claiming).told == "moved", second
        assert [row.at for row in await storage.ticks.history(NAME, most=9)] == [at(2), at(1), at(0)]
        assert (await storage.ticks.list())[0].runs == 3


async def test_of_two_notes_at_once_about_one_attempt_one_is_written_and_counts(postgres_url: str) -> None:
    async with new_storage(postgres_url, limits=PATIENT) as storage, holding(storage, NAME) as (_, claims):
        rounds: list[tuple[datetime | None, int, Outcome, int]] = [(None, 0, "ran", 0), (at(0), 1, "failed", 1)]
        for last, minute, outcome, failures in rounds:
            await storage.ticks.claim(claim_of(claims[NAME], last, minute))
            first = TickNote(claims[NAME], NAME, "scheduled", at(minute), 0, 1, outcome)
            second = TickNote(claims[NAME], NAME, "scheduled", at(minute), 0, 1, "failed", errors=("boom",))
            async with stranger(postgres_url) as other, stranger(postgres_url) as watcher:
                await other.execute("begin")
                await other.fetch(SQL["note_ticks"], "default", *values_of(first))
                noting = asyncio.create_task(storage.ticks.note(second))
                await until_waits(watcher, noting)
                await other.execute("commit")
                assert await noting == "conflict", outcome
            (row,) = await storage.ticks.list()
            assert (row.failures, row.error) == (failures, None)


async def test_a_failure_counts_also_beside_a_take_that_writes(postgres_url: str) -> None:
    """Both change the row of the cron, and neither takes back what the other wrote."""
    async with new_storage(postgres_url, limits=PATIENT) as storage, holding(storage, NAME) as (_, claims):
        await storage.ticks.claim(claim_of(claims[NAME], None, 0))
        write = TickNote(claims[NAME], NAME, "scheduled", at(0), 0, 1, "failed", errors=("boom",))
        async with stranger(postgres_url) as other, stranger(postgres_url) as watcher:
            await other.execute("begin")
            given = (ME, [SEAT], [claims[NAME].epoch], [NAME], ["new"])
            assert await other.fetch(SQL["take_crons"], "default", *given)
            noting = asyncio.create_task(storage.ticks.note(write))
            await until_waits(watcher, noting)
            await other.execute("commit")
            assert await noting == "written"
        (row,) = await storage.ticks.list()
        assert (row.definition, row.failures, row.error, row.open) == ("new", 1, "boom", 0)
        assert row.latest is not None
        assert row.latest.ended_at == row.failed_at == row.error_at


async def test_a_seat_is_released_after_the_claim_that_is_under_way(postgres_url: str) -> None:
    """C1: so that whoever comes next finds it."""
    async with new_storage(postgres_url, limits=PATIENT) as storage, holding(storage, NAME) as (session, claims):
        async with stranger(postgres_url) as other, stranger(postgres_url) as watcher:
            await other.execute("begin")
            await other.fetch(SQL["claim_ticks"], "default", *values_of(claim_of(claims[NAME], None, 0)))
            releasing = asyncio.create_task(session.release(SEAT, claims[NAME].epoch))
            await until_waits(watcher, releasing)
            await other.execute("commit")
            assert await releasing
        (grant,) = await session.acquire([SEAT])
        books = await storage.ticks.take([CronTakeover(Claim(ME, SEAT, grant.epoch), NAME)])
        assert [(row.at, row.attempt, row.epoch) for row in books[NAME].open] == [(at(0), 2, grant.epoch)]


async def test_a_seat_that_is_lost_after_the_look_is_not_taken(postgres_url: str) -> None:
    """C1: the statement that writes has a fence of its own, for each cron."""
    async with new_storage(postgres_url) as storage, holding(storage, NAME, "other") as (session, claims):
        assert await session.release(SEAT, claims[NAME].epoch)
        for name in claims:
            assert await storage.ticks.trigger(name) is not None
        seats, epochs = [claim.seat for claim in claims.values()], [claim.epoch for claim in claims.values()]
        async with stranger(postgres_url) as writer:
            given = (ME, seats, epochs, list(claims), ["new"] * 2)
            rows = await writer.fetch(SQL["take_crons"], "default", *given)
        assert [row["name"] for row in rows] == ["other"]
        told = {row.name: (row.definition, row.runs) for row in await storage.ticks.list()}
        assert told == {NAME: ("", 0), "other": ("new", 1)}
        assert [row.epoch for row in await storage.ticks.history(NAME, most=9)] == [0]


async def test_a_pause_is_kept_until_all_ticks_in_it_have_their_verdicts(postgres_url: str) -> None:
    async with new_storage(postgres_url) as storage, holding(storage, NAME) as (_, claims):
        await storage.ticks.claim(claim_of(claims[NAME], None, 0))
        await storage.ticks.pause(NAME)
        await storage.ticks.resume(NAME)
        await storage.ticks.purge(older_s=0, most=9)
        (pause,) = (await storage.ticks.take([CronTakeover(claims[NAME], NAME)]))[NAME].pauses
        assert pause.until is not None
        skipped = Verdict(at(1), pause.until, 9, "paused")
        write = TickClaim(claims[NAME], NAME, "s", at(0), (skipped,))
        assert (await storage.ticks.claim(write)).told == "written"
        async with stranger(postgres_url) as other:
            assert await other.fetchval("select count(*) from coterie.cron_pauses") == 1
            await storage.ticks.purge(older_s=0, most=9)
            assert await other.fetchval("select count(*) from coterie.cron_pauses") == 0


async def test_triggers_for_one_instant_at_once_all_get_their_numbers(postgres_url: str) -> None:
    async with new_storage(postgres_url, limits=PATIENT) as storage, holding(storage, NAME) as (_, claims):
        rows = await asyncio.gather(*(storage.ticks.trigger(NAME, at=at(0)) for _ in range(20)))
        assert sorted(row.seq for row in rows if row) == list(range(1, 21))
        books = await storage.ticks.take([CronTakeover(claims[NAME], NAME)])
        assert [row.seq for row in books[NAME].open] == list(range(1, 21))


async def test_takes_claims_notes_triggers_and_purges_of_few_crons_do_not_hurt_each_other(postgres_url: str) -> None:
    """M3: no deadlock that lasts, and every tick begins once and ends once."""
    names = [f"c{number}" for number in range(4)]
    async with new_storage(postgres_url, limits=PATIENT) as storage, holding(storage, *names) as (_, claims):
        ticks, over = storage.ticks, asyncio.Event()
        await ticks.take([CronTakeover(claims[name], name, "{}") for name in names])
        ended: list[tuple[str, str, datetime, int]] = []

        async def end(row: TickRow) -> None:
            if await ticks.note(end_of(claims[row.name], row, note="x")) == "written":
                ended.append((row.name, row.kind, row.at, row.seq))

        async def claim(name: str) -> None:
            for minute in range(30):
                write = claim_of(claims[name], at(minute - 1) if minute else None, minute, name=name)
                assert (await ticks.claim(write)).told == "written"
                row = await ticks.get(name, "scheduled", at(minute), 0)
                assert row is not None
                await end(row)

        async def trigger(name: str) -> None:
            for number in range(30):
                assert await ticks.trigger(name, at=at(number % 3)) is not None

        async def sweep() -> None:
            while not over.is_set():
                books = await ticks.take([CronTakeover(claims[name], name) for name in reversed(names)])
                await asyncio.gather(*(end(row) for book in books.values() for row in book.open))

        async def work() -> None:
            await asyncio.gather(*(each(name) for name in names for each in (claim, trigger)))
            over.set()

        async with asyncio.timeout(120):
            await asyncio.gather(work(), sweep(), sweep())
            await sweep_once(storage, claims, end)
        assert len(ended) == len(set(ended)) == 4 * 60
        assert {(row.runs, row.open, row.failures) for row in await ticks.list()} == {(60, 0, 0)}


async def sweep_once(storage: PostgresStorage, claims: dict[str, Claim], end: Any) -> None:
    books = await storage.ticks.take([CronTakeover(claim, name) for name, claim in claims.items()])
    for book in books.values():
        for row in book.open:
            assert row.attempt == 1
            await end(row)


async def test_what_the_fence_refuses_is_written_down(postgres_url: str) -> None:
    """INV-F1."""
    async with new_storage(postgres_url, audit=True) as storage, holding(storage, NAME) as (_, claims):
        await storage.ticks.claim(claim_of(claims[NAME], None, 0))
        stale = Claim(ME, SEAT, claims[NAME].epoch + 1)
        assert (await storage.ticks.claim(claim_of(stale, None, 1))).told == "fenced"
        assert await storage.ticks.note(TickNote(stale, NAME, "scheduled", at(0), 0, 1, "ran")) == "fenced"
        async with stranger(postgres_url) as other:
            rows = await other.fetch("select runner, seat, epoch, note from coterie.audit where kind = 'refused'")
    assert [tuple(row) for row in rows] == [(ME, SEAT, stale.epoch, SEAT)] * 2


async def test_options_that_two_crons_exchange_are_seen(storage: PostgresStorage) -> None:
    """M8: nothing takes effect anew then, and the sum over all fingerprints is what it was."""
    async with holding(storage, "a", "b") as (session, _):
        await session.declare(
            [SeatDeclaration("cron:a", "default", "s:1"), SeatDeclaration("cron:b", "default", "s:2")]
        )
        before = await storage.view()
        await session.declare(
            [SeatDeclaration("cron:a", "default", "s:2"), SeatDeclaration("cron:b", "default", "s:1")]
        )
        after, renewed = await storage.view(), await session.renew(ttl_s=60)
        assert [seat.effective_from for seat in after.seats] == [seat.effective_from for seat in before.seats]
        assert [seat.fingerprint for seat in after.seats] == ["s:2", "s:1"]
        assert after.stamp != before.stamp
        assert renewed is not None
        assert renewed.stamp == after.stamp


def values_of(write: TickClaim | TickNote) -> Sequence[Any]:
    """What the statement takes after the cluster's name."""
    (bucket,) = plan.fold([write])
    return plan.values(bucket, [write])
