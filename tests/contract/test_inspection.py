"""What those read who look whether promises were kept: the same from both engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.kernel.clock import SystemClock
from coterie.kernel.random import Random
from coterie.settings import Settings
from coterie.storage.contracts.messages import Commit, Message
from coterie.storage.engines import open_storage
from coterie.storage.interface import Claim, Registration, SeatDeclaration, StateSave

if TYPE_CHECKING:
    from coterie.storage.interface import Storage

A = "a" * 32
SEAT = "singleton:importer"


def audited(url: str) -> Storage:
    settings = Settings.load({"url": url, "audit": True}, environ={})
    return open_storage(settings, incarnation=A, clock=SystemClock(), chance=Random())


async def test_what_was_written_in_the_name_of_a_seat_can_be_read_page_by_page(url: str) -> None:
    me = Registration(id=A, name="a", address="127.0.0.1:1", host_id="one", groups=("default",))
    async with audited(url) as storage, storage.ownership(A) as session:
        await session.register(me, [SeatDeclaration(SEAT, "default")], ttl_s=60)
        (grant,) = await session.acquire([SEAT])
        held, lost = Claim(A, SEAT, grant.epoch), Claim(A, SEAT, grant.epoch + 1)
        for version in range(3):
            save = StateSave(held, "importer", b"x", version, keep=2)
            assert await storage.states.save(save) == "written"
        assert await storage.states.save(StateSave(lost, "importer", b"x", 3)) == "fenced"
        await session.release(SEAT, grant.epoch)

        inspection = storage.inspection
        assert (await inspection.server()).product.split()[0] in ("SQLite", "PostgreSQL")
        rows = await inspection.audit(after=0, most=100)
        assert [(row.kind, row.runner, row.seat, row.epoch) for row in rows] == [
            ("granted", A, SEAT, held.epoch),
            ("refused", A, SEAT, lost.epoch),
            ("released", A, SEAT, held.epoch),
        ]
        assert await inspection.audit(after=rows[0].id, most=1) == rows[1:2]
        marks = await inspection.states(after="", most=10)
        epochs = {(mark.key, mark.seat, mark.epoch) for mark in marks}
        assert epochs == {("importer", SEAT, held.epoch)}
        assert [(mark.version, mark.at is None) for mark in marks] == [(2, False), (3, False), (3, True)]
        assert await inspection.states(after="importer", most=10) == []


async def test_messages_that_have_ended_can_be_read_page_by_page(url: str) -> None:
    me = Registration(id=A, name="a", address="127.0.0.1:1", host_id="one", groups=("default",))
    async with audited(url) as storage, storage.ownership(A) as session:
        await session.register(me, [SeatDeclaration("shard:default:1", "default")], ttl_s=60)
        (grant,) = await session.acquire(["shard:default:1"])
        claim = Claim(A, "shard:default:1", grant.epoch)
        for number in range(3):
            await storage.messages.insert(
                Message(
                    id=f"m{number}",
                    seat=claim.seat,
                    entity_type="Account",
                    entity_id="alice",
                    method="charge",
                    payload=b"",
                )
            )
        for number in range(2):
            await storage.messages.commit(Commit(claim, message=f"m{number}", reply=b"done"))
        assert await storage.messages.cancel("m2", claim, reply=b"cancelled")
        found = await storage.inspection.endings(after="", most=10)
        assert [(each.id, each.seat, each.epoch) for each in found] == [
            ("m0", claim.seat, claim.epoch),
            ("m1", claim.seat, claim.epoch),
            ("m2", claim.seat, 0),
        ]
        assert [(each.is_dead, each.has_reply, each.attempts) for each in found] == [(False, True, 0)] * 3
        assert await storage.inspection.endings(after="m0", most=1) == found[1:2]
