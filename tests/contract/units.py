"""Runners that hold shards, a singleton and a cron, and what they ask of storage: for the contract of durable work."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from coterie.kernel.ids import Seat, ShardId
from coterie.storage.contracts.ticks import CronTakeover
from coterie.storage.contracts.units import StepWrite, UnitEnd, UnitStart, life_of_tick, unit_of_tick
from coterie.storage.interface import Claim, Registration, SeatDeclaration
from tests.contract.test_states import A, B, evict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.contracts.units import StepResult, TakenUnits, UnitEndResult, UnitKind, UnitRow, UnitSnapshot
    from coterie.storage.interface import Ownership, Storage

S1, S2 = Seat.shard(ShardId("default", 1)), Seat.shard(ShardId("default", 2))
LEADER, CRON = Seat.singleton("importer"), Seat.cron("nightly")
SEATS: dict[str, str] = {S1: "", S2: "", LEADER: "f", CRON: "f"}
LOSSES = ["released", "evicted", "left", "granted to itself again"]
HOSTILE = [
    "'; drop table units; --",
    '"quoted" \\ back\\"slash',
    "%_[a-z]*?",
    '{"unit": ["x"]}',
    "null",
    "0",
    " ",
    "two\nlines\tand \x01\x7f",
    "Ünïcödé 🙂 ﷽ \u200b\u202e",
    "long " * 180,
]


@asynccontextmanager
async def joined(storage: Storage, id: str) -> AsyncIterator[Ownership]:
    """A registered runner that knows the seats."""
    knows = {name: fingerprint for name, fingerprint in SEATS.items() if fingerprint}
    me = Registration(id=id, name=id, address="", host_id="", groups=("default",), knows=knows)
    async with storage.ownership(id) as session:
        await session.register(me, [SeatDeclaration(name, "default", each) for name, each in SEATS.items()], ttl_s=60)
        yield session


@pytest.fixture
async def runner_a(storage: Storage) -> AsyncIterator[Ownership]:
    async with joined(storage, A) as session:
        yield session


@pytest.fixture
async def runner_b(storage: Storage, runner_a: Ownership) -> AsyncIterator[Ownership]:
    async with joined(storage, B) as session:
        yield session


async def grant(session: Ownership, runner: str = A, seat: str = S1) -> Claim:
    (granted,) = await session.acquire([seat])
    return Claim(runner, granted.name, granted.epoch)


def unit_key(id: str = "one") -> str:
    return f"workflow:Order/{id}"


def new_start(id: str = "one", **options: Any) -> UnitStart:
    """A workflow to be started."""
    plain = {"unit": unit_key(id), "name": "Order", "id": id, "seat": S1, "payload": b"\x00\xffpay", "digest": b"\x00d"}
    return UnitStart(**{**plain, **options})


async def start_unit(storage: Storage, id: str = "one", **options: Any) -> UnitRow:
    found = await storage.units.start(new_start(id, **options))
    assert found.told == "started"
    return found.row


async def open_unit(
    storage: Storage, claim: Claim, id: str = "one", *, kind: UnitKind = "leader", name: str = "importer"
) -> UnitSnapshot:
    """A unit of a leader or a tick."""
    loaded = await storage.units.open(claim, unit=f"{kind}:{name}/{id}", kind=kind, name=name, id=id)
    assert loaded is not None
    return loaded


def step_write(claim: Claim, unit: str, position: int = 0, **options: Any) -> StepWrite:
    """A step that is done."""
    plain = {"branch": "", "kind": "step", "name": f"step {position}", "digest": b"d", "value": b"v"}
    return StepWrite(**{**plain, "claim": claim, "unit": unit, "position": position, **options})


def pending_step(claim: Claim, unit: str, position: int = 0, **options: Any) -> StepWrite:
    """A step that is waited for."""
    return step_write(
        claim, unit, position, **{"kind": "sleep", "done": False, "value": None, "digest": b"", **options}
    )


async def write_step(storage: Storage, claim: Claim, unit: str, position: int = 0, **options: Any) -> StepResult:
    return await storage.units.step(step_write(claim, unit, position, **options))


async def end_unit(storage: Storage, claim: Claim, unit: str, **options: Any) -> UnitEndResult:
    row = None if "parent" in options else await storage.units.get(unit)
    above = {} if row is None else {"parent": row.parent, "waited_as": row.waited_as}
    return await storage.units.end(UnitEnd(claim, unit, **{"status": "done", **above, **options}))


async def resolve(storage: Storage, unit: str, name: str = "paid", **options: Any) -> str:
    return (await storage.units.resolve(unit, name, **{"value": b"yes", "error": None, **options})).told


async def trigger_tick(storage: Storage, claim: Claim) -> tuple[str, int]:
    """A tick that is not over: the key of its unit, which has not begun, and its life."""
    await storage.ticks.trigger("nightly")
    book = (await storage.ticks.take([CronTakeover(claim, "nightly")]))["nightly"]
    row = book.open[-1]
    return unit_of_tick(claim.seat, row.kind, row.at, row.seq), life_of_tick(row.claimed_at)


async def suspend_unit(
    storage: Storage, claim: Claim, unit: str, *waits: str, wake_s: float | None = None, told: str = "suspended"
) -> None:
    assert await storage.units.suspend(claim, unit, waits=waits or ("paid",), wake_s=wake_s) == told


async def stored_unit(storage: Storage, unit: str) -> UnitRow:
    row = await storage.units.get(unit)
    assert row is not None
    return row


async def load_unit(storage: Storage, claim: Claim, unit: str) -> UnitSnapshot:
    found = await storage.units.load(claim, unit)
    assert found is not None
    return found


async def take_units(storage: Storage, claim: Claim, *, most: int = 100) -> TakenUnits:
    return (await storage.units.take([claim], most=most))[claim.seat]


async def list_units(storage: Storage, **options: Any) -> list[UnitRow]:
    return list(await storage.units.list(**{"status": None, "name": None, "older_s": None, "most": 1000, **options}))


def positions(found: UnitSnapshot) -> list[tuple[str, int]]:
    return [(row.branch, row.position) for row in found.steps]


def foreign_claims(claim: Claim) -> list[Claim]:
    """Never, of another epoch, of another runner, of no such seat."""
    return [
        Claim(claim.runner, S2 if claim.seat == S1 else S1, 1),
        Claim(claim.runner, claim.seat, claim.epoch + 1),
        Claim(claim.runner, claim.seat, claim.epoch - 1),
        Claim("c" * 32, claim.seat, claim.epoch),
        Claim(claim.runner, Seat.shard(ShardId("default", 77)), claim.epoch),
    ]


async def lose(how: str, claim: Claim, runner_a: Ownership, runner_b: Ownership) -> None:
    if how == "evicted":
        await evict(runner_b, A)
    elif how == "left":
        await runner_a.leave()
    else:
        assert await runner_a.release(claim.seat, claim.epoch)


async def next_claim(how: str, runner_a: Ownership, runner_b: Ownership, seat: str = S1) -> Claim:
    """The claim of whoever comes next."""
    return await (grant(runner_a, A, seat) if how == "granted to itself again" else grant(runner_b, B, seat))
