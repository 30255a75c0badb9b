"""Calls that wait: in order, bounded, and never run once they were refused or their callers are gone (F2, INV-E4)."""

from __future__ import annotations

import asyncio

import pytest

from coterie.entities.entity import Entity
from coterie.entities.host.mailbox import Mailbox
from coterie.entities.rpc import rpc
from coterie.errors import MailboxFull, SendTimeout
from tests.unit.entities.local_host import Asked, LocalHost, until


def waiting(deadline_s: float = 10.0) -> Asked:
    return Asked("Gate", "g", "enter", b"", deadline_s, 10.0, "m")


class Gate(Entity):
    """Lets calls in one by one, when the test says so."""

    async def on_activate(self) -> None:
        self.entered: list[int] = []
        self.most = self.inside = 0
        gates[self.id] = self
        self.free = asyncio.Semaphore(0)

    @rpc
    async def enter(self, number: int) -> int:
        self.entered.append(number)
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.free.acquire()
        self.inside -= 1
        return number


gates: dict[str, Gate] = {}


async def gate(ground: LocalHost, *asked: Asked) -> Gate:
    await until(lambda: "g" in gates and gates["g"].entered, what="the first call has begun")
    return gates["g"]


@pytest.fixture(autouse=True)
def no_gates() -> None:
    gates.clear()


def test_a_mailbox_gives_out_in_order_and_refuses_what_is_too_much() -> None:
    mailbox = Mailbox(2)
    first, second, third = waiting(), waiting(), waiting()
    assert [mailbox.put(each) for each in (first, second, third)] == [True, True, False]
    assert [mailbox.pop(), mailbox.pop(), mailbox.pop()] == [first, second, None]


def test_callers_that_left_make_room_and_are_not_given_out() -> None:
    mailbox = Mailbox(2)
    first, second, third = waiting(), waiting(), waiting()
    assert mailbox.put(first)
    assert mailbox.put(second)
    first.is_open = False
    assert mailbox.put(third)
    assert len(mailbox) == 2
    assert [mailbox.pop(), mailbox.pop()] == [second, third]


def test_expired_calls_are_taken_out_and_the_next_deadline_is_told() -> None:
    mailbox = Mailbox(3)
    early, late = waiting(1.0), waiting(5.0)
    assert mailbox.put(late)
    assert mailbox.put(early)
    assert mailbox.pop_expired(2.0) == ([early], 5.0)
    assert mailbox.pop_all() == [late]


async def test_calls_of_one_entity_run_one_after_the_other_in_their_order() -> None:
    ground = LocalHost(Gate)
    asked = [ground.ask("g", "enter", number) for number in range(20)]
    entity = await gate(ground)
    for _ in asked:
        entity.free.release()
    assert await asyncio.gather(*(each.future for each in asked)) == list(range(20))
    assert entity.entered == list(range(20))
    assert entity.most == 1
    await ground.host.stop()


async def test_a_full_mailbox_refuses_at_once_and_what_it_refused_never_runs() -> None:
    """MBOX-02, INV-E4: the one that was held completes when it is released."""
    ground = LocalHost((Gate, {"mailbox": 2}))
    running, *held = [ground.ask("g", "enter", number) for number in range(3)]
    refused = ground.ask("g", "enter", 3)
    with pytest.raises(MailboxFull, match=r"mailbox of Gate/g is full \(2 waiting\)"):
        await refused.future
    entity = await gate(ground)
    for _ in range(4):
        entity.free.release()
    assert [await each.future for each in (running, *held)] == [0, 1, 2]
    await until(lambda: entity.inside == 0)
    assert entity.entered == [0, 1, 2]
    await ground.host.stop()


async def test_as_many_run_at_once_as_the_concurrency_says() -> None:
    ground = LocalHost((Gate, {"concurrency": 3}))
    asked = [ground.ask("g", "enter", number) for number in range(10)]
    entity = await gate(ground)
    await until(lambda: entity.inside == 3)
    for _ in asked:
        entity.free.release()
    assert sorted(await asyncio.gather(*(each.future for each in asked))) == list(range(10))
    assert entity.entered == list(range(10))
    assert entity.most == 3
    await ground.host.stop()


@pytest.mark.simulated(seeds=3)
async def test_a_call_that_waits_past_its_deadline_is_told_in_time_and_never_runs() -> None:
    ground = LocalHost(Gate)
    loop = asyncio.get_running_loop()
    running = ground.ask("g", "enter", 1, within_s=60.0)
    behind = ground.ask("g", "enter", 2, within_s=5.0)
    patient = ground.ask("g", "enter", 3, within_s=50.0)
    began_s = loop.time()
    with pytest.raises(SendTimeout, match=r"no reply from Gate/g\.enter within 5s") as caught:
        await behind.future
    assert "has not run" in caught.value.hint
    assert 5.0 <= loop.time() - began_s < 5.1
    gates["g"].free.release()
    gates["g"].free.release()
    assert [await running.future, await patient.future] == [1, 3]
    assert gates["g"].entered == [1, 3]
    await ground.host.stop()


async def test_a_caller_that_leaves_the_queue_is_never_run_nor_answered() -> None:
    ground = LocalHost(Gate)
    running, left, last = [ground.ask("g", "enter", number) for number in range(3)]
    entity = await gate(ground)
    ground.host.cancel(left)
    entity.free.release()
    entity.free.release()
    assert [await running.future, await last.future] == [0, 2]
    assert entity.entered == [0, 2]
    assert left.answers == 0
    await ground.host.stop()


async def test_one_entity_that_waits_holds_up_no_other() -> None:
    ground = LocalHost(Gate)
    ground.ask("g", "enter", 1)
    await gate(ground)
    other = ground.ask("other", "enter", 7)
    await until(lambda: "other" in gates)
    gates["other"].free.release()
    assert await other.future == 7
    await ground.host.stop()
