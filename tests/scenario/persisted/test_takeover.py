"""Messages whose owner changes, is cut off or leaves: found in storage, run once (F6; REBAL, XPORT, SHUT, GAP)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from coterie import CoterieError, Entity, RunnerUnavailable, current, rpc
from coterie.entities.persisted import poller
from tests.scenario.persisted.entity_program import Account, counts, evict, found, id_on, notes, program, shared, until

if TYPE_CHECKING:
    import pytest

    from coterie import Cluster


class Parting(Entity):
    """Sends to an account, or waits for one, when it leaves."""

    @rpc
    async def wake(self) -> None:
        """Come to life."""

    async def on_deactivate(self) -> None:
        account = self.cluster.ref(Account, self.id)
        try:
            if self.id.startswith("send"):
                await self.cluster.send(account.charge("farewell"))
            else:
                await account.charge("farewell")
        except (CoterieError, asyncio.CancelledError) as error:
            notes.ran.append((self.id, type(error).__name__))
            raise
        notes.ran.append((self.id, "parted"))


class Once(Entity):
    """Writes down on which runner, and how often, it was tried."""

    @rpc(persisted=True)
    async def run(self) -> str | None:
        here = current()
        notes.ran.append((self.id, (here.runner_id, here.attempt)))
        await notes.gates[self.id].wait()
        return here.runner_id


def cut(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let nothing of a process reach any runner directly; what was tried."""
    transport, tried = cluster._acting().calling.transport, []

    async def request(peer: Any, *args: Any, **more: Any) -> bytes:
        tried.append("request")
        raise RunnerUnavailable(runner=peer.incarnation, target="x", problem="it is out of reach", sent=True)

    def notify(*args: Any, **more: Any) -> bool:
        tried.append("notify")
        return False

    monkeypatch.setattr(transport, "request", request, raising=False)
    monkeypatch.setattr(transport, "notify", notify, raising=False)
    return tried


async def test_gap_09_incident_37_xport_02_with_the_network_cut_persisted_calls_still_finish(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storage is the way that is left: the owner's sweep finds the message, its sender finds the reply."""
    monkeypatch.setattr(poller, "_EVERY_S", 0.1)
    client = program(url, "client")
    async with program(url, "anna") as anna, client.connect():
        await shared(anna)
        who = id_on(anna)
        tried = cut(client, monkeypatch)
        assert await client.ref(Account, who).charge("one") == 1
        assert "request" in tried
        sent = await client.send(client.ref(Account, who).charge("two"))
        assert await client.result(sent) == 2
        assert "notify" in tried
        assert await counts(client) == (0, 2, 0)


async def test_xport_03_an_answer_that_is_no_reply_is_not_taken_for_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect of the peer, of another version perhaps: the caller looks in storage, and the message runs once."""
    monkeypatch.setattr(poller, "_EVERY_S", 0.1)
    client = program(url, "client")
    async with program(url, "anna") as anna, client.connect():
        await shared(anna)
        who, handovers = id_on(anna), anna._acting().calling.host.inbox  # type: ignore[union-attr] # a runner's

        def broken(*_: Any, **__: Any) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(handovers, "hand_over", broken, raising=False)
            assert await client.ref(Account, who).charge("one") == 1
        assert notes.ran == [(who, "one")]


async def test_rebal_03_incident_12_what_an_evicted_runner_had_is_run_by_another_and_its_late_end_counts_for_nothing(
    url: str,
) -> None:
    """Its registration is gone before anything is rescued. C5: the loss of its runner is no attempt of the message."""
    anna, bert, client = (program(url, name, Once, Account) for name in ("anna", "bert", "client"))
    async with client.connect(), anna:
        await shared(anna)
        call = asyncio.create_task(client.ref(Once, "a").run())
        await until(lambda: notes.ran)
        behind = await client.send(client.ref(Account, "b").charge("one"))
        await client.result(behind)
        async with AsyncExitStack() as stack:
            bert_starts = asyncio.create_task(stack.enter_async_context(bert))
            await evict(url, anna)
            await bert_starts
            await until(lambda: len(notes.ran) > 2)
            notes.gates["a"].set()
            assert await call == bert._acting().incarnation
            assert [attempt for _, (_, attempt) in (each for each in notes.ran if each[0] == "a")] == [1, 1]
            assert await counts(client) == (0, 2, 0)
            assert await client.ref(Account, "b").charge("two") == 2, "its state is where it was"


async def test_rebal_04_a_second_message_is_answered_by_whoever_owns_the_entity_then(url: str) -> None:
    anna, bert, client = (program(url, name) for name in ("anna", "bert", "client"))
    async with client.connect(), bert:
        async with anna:
            await shared(anna, bert)
            who = id_on(anna)
            assert await client.ref(Account, who).charge("one") == 1
        assert await client.ref(Account, who).charge("two") == 2
        assert bert.is_local(bert.ref(Account, who))
        rows = await found(client, 2, status="done")
        assert [row.reply for row in rows] == [1, 2]


async def test_f6_incident_3_every_message_is_answered_once_while_all_runners_are_replaced(url: str) -> None:
    client = program(url, "client")
    answers: list[int] = []

    async def call_on(who: str) -> None:
        for number in range(1, 31):
            assert await client.ref(Account, who).charge(f"order {number}") == number
            answers.append(number)

    async with client.connect(), AsyncExitStack() as stack:
        runners = [program(url, name) for name in ("anna", "bert", "anna-2", "bert-2")]
        for runner in runners[:2]:
            await runner.start()
        await shared(*runners[:2])
        calls = [asyncio.create_task(call_on(str(who))) for who in range(6)]
        for old, new in zip(runners[:2], runners[2:], strict=True):
            await stack.enter_async_context(new)
            wanted = min(180, len(answers) + 6)
            await until(partial(_has, answers, wanted))
            await old.stop()
        await asyncio.gather(*calls)
        assert len(notes.ran) == 180
        assert await counts(client) == (0, 180, 0)


def _has(answers: list[int], count: int) -> bool:
    return len(answers) >= count


# Shutdown


async def test_shut_01_what_an_entity_sends_in_its_farewell_is_stored(url: str) -> None:
    client = program(url, "client", Parting, Account)
    async with client.connect():
        async with program(url, "anna", Parting, Account):
            await client.ref(Parting, "send").wake()
        assert ("send", "parted") in notes.ran
        await found(client, 1, entity="Account/send")
        async with program(url, "bert", Parting, Account):
            await found(client, 1, status="done")


async def test_shut_02_incident_6_a_farewell_that_waits_for_nobody_does_not_keep_the_runner(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets a typed error or its time; the message stays."""
    monkeypatch.setattr("coterie.entities.host.deactivation.CLOSING_S", 0.5)
    client = program(url, "client", Parting, Account)
    async with client.connect():
        async with program(url, "anna", Parting, Account, drain="500ms"):
            await client.ref(Parting, "wait").wake()
        assert [each for each in notes.ran if each[0] == "wait" and each[1] != "parted"]
        assert await counts(client) == (1, 0, 0)


async def test_shut_a_handler_that_ends_within_the_drain_ends_well(url: str) -> None:
    client = program(url, "client")
    async with client.connect():
        anna = program(url, "anna", drain="20s")
        await anna.start()
        call = asyncio.create_task(client.ref(Account, "a").wait(1))
        await until(lambda: notes.ran)
        stopping = asyncio.create_task(anna.stop())
        await asyncio.sleep(0.05)
        notes.gates["a"].set()
        assert await call == 1
        await stopping
        assert (notes.cancelled, await counts(client)) == ([], (0, 1, 0))
