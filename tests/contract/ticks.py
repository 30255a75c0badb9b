"""Runners that hold crons, and what they ask of storage: for the contract about ticks."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie.kernel.ids import Seat
from coterie.storage.contracts.ticks import CronTakeover, TickClaim, TickNote, Verdict
from coterie.storage.interface import Claim, Registration, SeatDeclaration
from tests.contract.test_states import A, B, evict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.contracts.ticks import CronBook, CronRow, Kind, TickRow
    from coterie.storage.interface import ClusterSnapshot, Ownership, Storage

CRON_A, CRON_B = "nightly", "hourly"
SCHEDULE = "s1"
FINGERPRINT = f"{SCHEDULE}:o1"
INSTANT = timedelta(microseconds=1)
LOSSES = ["released", "evicted", "left", "granted to itself again"]


def at(minute: float) -> datetime:
    """An instant long ago, to the microsecond."""
    return datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC) + timedelta(minutes=minute)


def runner_name(runner: str) -> str:
    return f"runner {runner[0]}"


@asynccontextmanager
async def joined(
    storage: Storage, id: str, *crons: str, fingerprint: str = FINGERPRINT, **more: str
) -> AsyncIterator[Ownership]:
    """A registered runner that knows crons, and other seats."""
    knows = {Seat.cron(name): fingerprint for name in crons or (CRON_A, CRON_B)} | more
    me = Registration(id=id, name=runner_name(id), address="", host_id="", groups=("default",), knows=knows)
    seats = [SeatDeclaration(name, "default", definition) for name, definition in knows.items()]
    async with storage.ownership(id) as session:
        await session.register(me, seats, ttl_s=60)
        yield session


@pytest.fixture
async def runner_a(storage: Storage) -> AsyncIterator[Ownership]:
    async with joined(storage, A) as session:
        yield session


@pytest.fixture
async def runner_b(storage: Storage, runner_a: Ownership) -> AsyncIterator[Ownership]:
    async with joined(storage, B) as session:
        yield session


async def grant(session: Ownership, runner: str, name: str = CRON_A) -> Claim:
    (granted,) = await session.acquire([Seat.cron(name)])
    return Claim(runner, granted.name, granted.epoch)


async def take_cron(storage: Storage, claim: Claim, name: str = CRON_A, **options: Any) -> CronBook:
    return (await storage.ticks.take([CronTakeover(claim, name, **options)]))[name]


def run_verdict(minute: float) -> Verdict:
    return Verdict(at(minute), at(minute))


def skip_verdict(first: float, last: float, count: int = 2, reason: str = "stale") -> Verdict:
    return Verdict(at(first), at(last), count, reason)


def new_claim(claim: Claim, last: datetime | None, *verdicts: Verdict, **options: Any) -> TickClaim:
    return TickClaim(
        **{"claim": claim, "name": CRON_A, "schedule": SCHEDULE, "last": last, "verdicts": verdicts, **options}
    )


async def claim_result(
    storage: Storage, claim: Claim, last: datetime | None, *verdicts: Verdict, **options: Any
) -> str:
    return (await storage.ticks.claim(new_claim(claim, last, *verdicts, **options))).told


async def start_tick(storage: Storage, claim: Claim, minute: float = 0, last: datetime | None = None) -> TickRow:
    """A tick that runs."""
    assert await claim_result(storage, claim, last, run_verdict(minute)) == "written"
    row: TickRow = await stored_tick(storage, at(minute))
    return row


async def stored_tick(
    storage: Storage, instant: datetime, *, name: str = CRON_A, kind: Kind = "scheduled", seq: int = 0
) -> Any:
    """A tick as it is stored now."""
    return await storage.ticks.get(name, kind, instant, seq)


async def reread(storage: Storage, row: TickRow) -> TickRow:
    """The same tick as it is stored now."""
    stored = await storage.ticks.get(row.name, row.kind, row.at, row.seq)
    assert stored is not None
    return stored


def new_note(claim: Claim, row: TickRow, **options: Any) -> TickNote:
    """A note about a tick as its holder knows it."""
    said: dict[str, Any] = {"name": row.name, "kind": row.kind, "at": row.at, "seq": row.seq, "attempt": row.attempt}
    return TickNote(claim, **{**said, **options})


async def write_note(storage: Storage, claim: Claim, row: TickRow, **options: Any) -> str:
    return await storage.ticks.note(new_note(claim, row, **options))


async def stored_cron(storage: Storage, name: str = CRON_A) -> CronRow:
    return next(row for row in await storage.ticks.list() if row.name == name)


async def history(storage: Storage, name: str = CRON_A, **options: Any) -> list[TickRow]:
    return list(await storage.ticks.history(name, **{"most": 1000, **options}))


async def snapshot(storage: Storage) -> list[Any]:
    """All that is there, but for the clock."""
    rows = await storage.ticks.list()
    ticks = [await history(storage, row.name) for row in rows]
    return [
        [(row.definition, row.last, row.runs, row.ran_at, row.error, row.failures, row.paused_at) for row in rows],
        ticks,
    ]


def foreign_claims(claim: Claim) -> list[Claim]:
    """Never, of another epoch, of another runner, of no such seat."""
    return [
        Claim(claim.runner, Seat.cron(CRON_B), 1),
        Claim(claim.runner, claim.seat, claim.epoch + 1),
        Claim(claim.runner, claim.seat, claim.epoch - 1),
        Claim("c" * 32, claim.seat, claim.epoch),
        Claim(claim.runner, Seat.cron("none"), claim.epoch),
    ]


async def lose(how: str, claim: Claim, runner_a: Ownership, runner_b: Ownership) -> None:
    if how == "evicted":
        await evict(runner_b, A)
    elif how == "left":
        await runner_a.leave()
    else:
        assert await runner_a.release(claim.seat, claim.epoch)


async def next_claim(how: str, runner_a: Ownership, runner_b: Ownership) -> Claim:
    """The claim of whoever comes next."""
    return await (grant(runner_a, A) if how == "granted to itself again" else grant(runner_b, B))


def fingerprint(view: ClusterSnapshot, name: str = CRON_A) -> tuple[str, datetime]:
    (seat,) = [seat for seat in view.seats if seat.name == Seat.cron(name)]
    return seat.fingerprint, seat.effective_from
