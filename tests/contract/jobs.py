"""What the contract suites of jobs share: runners, held seats of queues, and jobs by number."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage.contracts.jobs import (
    JobClaim,
    JobDelivery,
    JobEnd,
    JobInsert,
    JobReceipt,
    JobRow,
    JobsClaimed,
    JobSetback,
    NewJob,
    QueueDefinition,
    QueueRow,
)
from coterie.storage.interface import Claim, Registration, SeatDeclaration
from tests.contract.test_states import evict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.interface import Ownership, Storage

A, B = "a" * 32, "b" * 32
ONE, TWO = "queue:one", "queue:two"
CANCELLED = b"it was cancelled"
"""The reply of a cancelled job."""

__all__ = [
    "CANCELLED", "ONE", "TWO", "A", "B", "Desk", "desk", "end", "evict", "id_of", "insert", "job", "joined", "look",
    "numbers", "opened_desk", "setback", "states", "take",
]  # fmt: skip


def id_of(number: int) -> str:
    """Ids are 32 hexadecimal digits, and grow."""
    return f"{number:032x}"


def job(number: int, *, seat: str = ONE, part: str = "acme", task: str = "resize", **more: Any) -> NewJob:
    """A job of a task in a partition of a queue."""
    given = {"payload": b"%d" % number, "fingerprint": "f1", **more}
    return NewJob(id=id_of(number), seat=seat, part=part, task=task, **given)


@asynccontextmanager
async def joined(storage: Storage, id: str) -> AsyncIterator[Ownership]:
    """A registered runner that serves the queues."""
    async with storage.ownership(id) as session:
        me = Registration(id=id, name=id, address="", host_id="", groups=("default",), knows={ONE: "f", TWO: "f"})
        await session.register(me, [SeatDeclaration(seat, "default", "f") for seat in (ONE, TWO)], ttl_s=600)
        yield session


async def take(session: Ownership, runner: str, seat: str = ONE) -> Claim:
    """Hold the seat of a queue."""
    (grant,) = await session.acquire([seat])
    return Claim(runner, seat, grant.epoch)


async def insert(storage: Storage, *jobs: NewJob) -> tuple[JobReceipt, ...]:
    """Store jobs in one write."""
    return await storage.jobs.insert(JobInsert(jobs))


async def look(storage: Storage, number: int) -> JobRow:
    """A job by its number."""
    (row,) = await storage.jobs.look([id_of(number)])
    return row


async def states(storage: Storage, *numbers: int) -> list[str | None]:
    """The state of each of these jobs, None for those that are not there."""
    found = {row.id: row.state for row in await storage.jobs.look([id_of(number) for number in numbers])}
    return [found.get(id_of(number)) for number in numbers]


def end(delivery: JobDelivery, reply: bytes = b"done", **more: Any) -> JobEnd:
    """The end of a claimed job by its runner."""
    return JobEnd(delivery.runner, delivery.id, delivery.claim, reply, **more)


def setback(delivery: JobDelivery, again_s: float | None, error: str | None = "boom", **more: Any) -> JobSetback:
    """A failed attempt of a claimed job."""
    return JobSetback(delivery.runner, delivery.id, delivery.claim, again_s, error, **more)


class Desk:
    """The holder of a queue's seat, as far as storage sees it.

    Args:
        storage: The storage.
        claim: The claim of the seat.
    """

    def __init__(self, storage: Storage, claim: Claim) -> None:
        self.storage = storage
        self.claim = claim
        self.stamp = 0

    async def define(self, **limits: Any) -> QueueRow:
        """Define the queue with these limits."""
        given = {"group": "default", "fingerprint": "f", **limits}
        row = await self.storage.jobs.define_queue(self.claim, QueueDefinition(seat=self.claim.seat, **given))
        assert row is not None
        self.stamp = row.stamp
        return row

    async def start(self, *numbers: int, runner: str = A) -> JobsClaimed:
        """Claim jobs for a runner, in this order."""
        pairs = tuple((id_of(number), runner) for number in numbers)
        return await self.storage.jobs.claim(JobClaim(self.claim, self.stamp, pairs))

    async def started(self, *numbers: int, runner: str = A) -> list[JobDelivery]:
        """Claim jobs that can all be claimed."""
        told = await self.start(*numbers, runner=runner)
        assert (told.outcome, [int(each.id, 16) for each in told.jobs]) == ("claimed", list(numbers))
        return list(told.jobs)

    async def begin(self, number: int, **more: Any) -> JobDelivery:
        """Send a job and claim it."""
        await insert(self.storage, job(number, **more))
        (delivery,) = await self.started(number)
        return delivery


@asynccontextmanager
async def opened_desk(storage: Storage, **limits: Any) -> AsyncIterator[Desk]:
    """A runner that holds the seat of a queue with these limits."""
    async with joined(storage, A) as session:
        desk = Desk(storage, await take(session, A))
        await desk.define(**limits)
        yield desk


@pytest.fixture
async def desk(storage: Storage) -> AsyncIterator[Desk]:
    """The holder of a queue without limits."""
    async with opened_desk(storage) as desk:
        yield desk


def numbers(found: Any) -> list[int]:
    """The numbers of jobs, whatever they are."""
    return [int(each.id, 16) for each in found]
