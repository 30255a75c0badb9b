"""`cluster.messages`, `reset`, `poll_storage` and `cancel` with runners that run what they are about (K6) [m15].

Sweeps are an hour apart here: what happens at once, happens because whoever holds the shard was told.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from coterie import Cluster, Entity, MessageCancelled, MessageDead, Retry, rpc
from coterie.entities.persisted import pauses, poller
from coterie.kernel.serialization.codec import PLAIN
from coterie.storage.contracts.messages import Message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Start = Callable[..., Awaitable[tuple[Cluster, Cluster]]]

SOON = Retry(3, base="1ms")
MUCH_LATER = Retry(2, base="1h", max="1h")


class HandlerControls:
    """What handlers do at the moment."""

    def __init__(self) -> None:
        self.is_broken = False
        self.began = asyncio.Event()
        self.go = asyncio.Event()
        self.tried = 0


world = HandlerControls()


@dataclass
class Visits:
    numbers: list[int] = field(default_factory=list)


class Patient(Entity[Visits]):
    @rpc(persisted=True, key="number")
    async def visit(self, number: int) -> int:
        world.tried += 1
        if world.is_broken:
            raise ValueError(f"try {world.tried}")
        self.state.numbers.append(number)
        return number

    @rpc(persisted=True)
    async def wait(self) -> None:
        world.began.set()
        await world.go.wait()

    @rpc
    async def visits(self) -> list[int]:
        return self.state.numbers


@pytest.fixture(autouse=True)
def rare_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "_EVERY_S", 3600.0)
    monkeypatch.setattr(pauses, "_GOOD_FOR_NS", 3600 * 10**9)
    monkeypatch.setattr(f"{__name__}.world", HandlerControls())


@pytest.fixture(params=["memory", "file", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "sqlite://" if request.param == "memory" else f"sqlite:///{tmp_path}/mail.db"


@pytest.fixture
async def start(place: str) -> AsyncIterator[Start]:
    """Start a runner; it, and a client elsewhere if the storage has room for one."""
    async with AsyncExitStack() as stack:

        async def begin(retry: Retry = SOON) -> tuple[Cluster, Cluster]:
            here, there = (Cluster(place, shards=2, retry=retry, call_timeout="30s") for _ in range(2))
            for cluster in (here, there):
                cluster.entity(Patient)
            await stack.enter_async_context(here)
            await here.ready(timeout="2m")
            if place == "sqlite://":
                return here, here
            await stack.enter_async_context(there.connect())
            return here, there

        yield begin


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(120):
        while not await condition():
            await asyncio.sleep(0.005)


async def test_a_dead_letter_tells_each_attempt_and_runs_again_at_once(start: Start) -> None:
    """GAP-13, M4, m15: also when it is told from another process; the key finds it, dead or done."""
    here, client = await start()
    alice, world.is_broken = client.ref(Patient, "alice"), True
    with pytest.raises(MessageDead, match=r"Patient/alice\.visit is dead after 3 attempts: ValueError: try 3") as dead:
        await alice.visit(1)
    with pytest.raises(MessageDead) as again:
        await alice.visit(1)
    assert again.value.message_id == dead.value.message_id, "nobody waits for what does not come"
    (listed,) = await client.messages.list(status="dead", entity="Patient/alice")
    assert listed == await here.messages.show(listed.id)
    assert (listed.id, listed.attempts, listed.payload, listed.key) == (dead.value.message_id, 3, {"number": 1}, "1")
    assert [one.number for one in listed.errors] == [1, 2, 3]
    assert [one.error.partition("\n")[0] for one in listed.errors] == [f"ValueError: try {n}" for n in (1, 2, 3)]
    assert all("in visit" in one.error for one in listed.errors), "with where it happened"
    with pytest.raises(MessageDead):
        await client.result(listed.id)
    assert await client.ref(Patient, "bob").visits() == [], "its neighbours are not affected"

    world.is_broken = False
    assert await client.messages.retry(listed.id) is True

    async def done() -> bool:  # only looks: whoever asks for the result has the owner look, too
        return (await client.messages.show(listed.id)).status == "done"

    await until(done)
    assert await client.result(listed.id) == 1
    assert await client.messages.retry(listed.id) is False, "it is done"
    shown = await client.messages.show(listed.id)
    assert (shown.status, shown.reply, world.tried) == ("done", 1, 4)
    assert await alice.visit(1) == 1
    assert await alice.visits() == [1]


async def test_a_reset_runs_what_is_dead_and_what_waits_for_another_attempt(start: Start) -> None:
    """K6: the state is not touched."""
    here, client = await start(MUCH_LATER)
    alice = client.ref(Patient, "alice")
    assert await alice.visit(1) == 1
    world.is_broken = True
    waiting = [await client.send(alice.visit(number)) for number in (2, 3)]
    other = await client.send(client.ref(Patient, "bob").visit(1))

    async def tried(attempts: int, *ids: str) -> bool:
        return all([(await client.messages.show(one)).attempts == attempts for one in ids])

    await until(lambda: tried(1, *waiting, other))
    assert await client.reset(Patient, "alice") == 0, "none is dead yet"
    await until(lambda: tried(2, *waiting))
    world.is_broken = False
    assert await client.reset(Patient, "alice") == 2
    assert [await client.result(one) for one in waiting] == [2, 3]
    assert await alice.visits() == [1, 2, 3]
    left = await here.messages.show(other)
    assert (left.status, left.attempts) == ("pending", 1), "of that entity only"


async def test_storage_is_looked_at_when_it_is_told_to(start: Start) -> None:
    """K6: what nobody handed over is found; all of it has been seen when the call returns."""
    here, client = await start()
    seat = f"shard:{here.shard_of(Patient, 'alice')}"
    for number in range(5):
        payload = PLAIN.encode({"number": number})
        row = Message(
            id=f"{number + 1:032x}",
            seat=seat,
            entity_type="Patient",
            entity_id="alice",
            method="visit",
            payload=payload,
        )
        await here._acting().storage.messages.insert(row)
    assert world.tried == 0
    await client.poll_storage()  # a client has no shards to look after
    await here.poll_storage()

    async def all_there() -> bool:
        return await client.ref(Patient, "alice").visits() == [0, 1, 2, 3, 4]

    await until(all_there)


async def test_a_message_can_be_taken_back_until_it_begins(start: Start) -> None:
    """DUR: in the owner's memory, in storage only, running, ended, gone."""
    here, client = await start()
    alice = client.ref(Patient, "alice")
    for delay in ("20s", "1h"):
        later = await client.send(alice.visit(1), delay=delay)
        assert await client.cancel(later) is True
        assert await client.cancel(later) is False
        with pytest.raises(MessageCancelled, match=f"message {later} was cancelled"):
            await client.result(later)
        shown = await here.messages.show(later)
        assert (shown.status, shown.key) == ("done", None)
        assert shown.failure == f"message {later} was cancelled"
    running = await client.send(alice.wait())
    async with asyncio.timeout(120):
        await world.began.wait()
    behind = await client.send(alice.visit(2))
    assert await client.cancel(running) is False, "it has begun"
    assert await client.cancel(behind) is True
    world.go.set()
    await client.result(running)
    assert await client.cancel(running) is False
    assert await alice.visit(2) == 2, "the key of a message that was taken back is free"
    assert await alice.visits() == [2]


async def test_a_message_that_is_cancelled_by_its_own_handler_is_never_sent(start: Start) -> None:
    here, client = await start()

    @here.entity
    class Nurse(Entity):
        @rpc(persisted=True)
        async def change_her_mind(self) -> bool:
            visit = await self.cluster.send(self.cluster.ref(Patient, "alice").visit(1))
            return await self.cluster.cancel(visit)

    client.entity(Nurse) if client is not here else None
    assert await client.ref(Nurse, "anna").change_her_mind() is True
    assert [one.method for one in await client.messages.list()] == ["change_her_mind"]


async def test_what_has_ended_is_purged_and_what_waits_stays(start: Start) -> None:
    """A key that was purged is a new one."""
    here, client = await start()
    alice = client.ref(Patient, "alice")
    assert [await alice.visit(number) for number in (1, 2)] == [1, 2]
    later = await client.send(alice.visit(3), delay="1h")
    world.is_broken = True
    with pytest.raises(MessageDead):
        await alice.visit(4)
    world.is_broken = False
    assert await client.messages.purge(status="done", entity="Patient/alice", older_than="1h") == 0
    assert await client.messages.purge(status="done", entity="Patient") == 2
    assert await client.messages.purge(status="dead") == 1
    assert [one.id for one in await here.messages.list()] == [later]
    assert await alice.visit(1) == 1
    assert await alice.visit(4) == 4
    assert sorted(await alice.visits()) == [1, 1, 2, 4]
