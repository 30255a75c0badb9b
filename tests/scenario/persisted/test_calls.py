"""Persisted calls from their callers' side, with real runners on both engines (F4, F9; DUR, MBOX, REG, GAP)."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

from coterie import (
    Entity,
    KeyConflict,
    MalformedMessage,
    MessageCancelled,
    MessageDead,
    MessageExpired,
    MessageId,
    SendTimeout,
    rpc,
)
from tests.scenario.persisted.entity_program import PROMPTLY_S, Account, Overdrawn, counts, found, notes, program, until

if TYPE_CHECKING:
    from coterie import Cluster

told: ContextVar[str] = ContextVar("told", default="none")


class Listener(Entity):
    @rpc(persisted=True)
    async def hears(self) -> str:
        return told.get()


async def test_dur_01_a_persisted_call_leaves_one_row_with_its_reply(url: str) -> None:
    async with program(url, "anna") as cluster:
        assert await cluster.ref(Account, "a").charge("order-1", 5) == 5
        (row,) = await cluster.messages.list()
        assert (row.status, row.reply, row.attempts) == ("done", 5, 0)
        assert row.payload == {"order": "order-1", "cents": 5}


async def test_dur_02_a_call_waits_for_the_first_runner_and_runs_once(url: str) -> None:
    client = program(url, "client")
    async with client.connect():
        call = asyncio.create_task(client.ref(Account, "a").charge("order-1", 5))
        await found(client, 1, status="pending")
        assert not call.done()
        async with program(url, "anna"):
            assert await call == 5
            assert notes.ran == [("a", "order-1")]
            assert await counts(client) == (0, 1, 0)


async def test_dur_04_incident_13_29_a_call_in_progress_survives_its_runner_and_a_repetition_touches_nobody(
    url: str,
) -> None:
    """SIGTERM in the middle of a handler that does not end: cancelled, left in storage, run by the next process."""
    client = program(url, "client")
    async with client.connect():
        call = asyncio.create_task(client.call(client.ref(Account, "a").wait(1), key="k"))
        async with program(url, "anna", drain="0s"):
            await until(lambda: notes.ran)
        assert notes.cancelled == [("a", 1)]
        assert await counts(client) == (1, 0, 0)
        notes.gates["a"].set()
        async with program(url, "bert"):
            assert await call == 1
        assert notes.ran == [("a", 1)] * 2, "begun twice, ended once"
        (row,) = await client.messages.list()
        assert (row.status, row.attempts) == ("done", 0), "a clean hand-over is no failed attempt"
        assert await client.call(client.ref(Account, "a").wait(1), key="k") == 1, "there is no runner to ask"
        assert await counts(client) == (0, 1, 0)


async def test_dur_08_a_send_returns_when_the_row_is_there_and_it_runs_afterwards(url: str) -> None:
    async with program(url, "anna") as cluster:
        sent = await cluster.send(cluster.ref(Account, "a").wait(7))
        assert isinstance(sent, MessageId)
        await until(lambda: notes.ran)
        assert (await cluster.messages.show(sent)).status == "pending", "as long as its handler runs"
        notes.gates["a"].set()
        assert await cluster.result(sent) == 7
        assert (await cluster.messages.show(sent)).status == "done"
        assert await cluster.result(sent) == 7, "as often as one likes"


async def test_dur_14_a_declared_error_is_a_result_that_a_duplicate_gets_too(url: str) -> None:
    async with program(url, "anna") as cluster:
        account = cluster.ref(Account, "a")
        for _ in range(2):
            with pytest.raises(Overdrawn) as caught:
                await account.charge("order-1", -5)
            assert caught.value.args == ("a", -5)
        assert notes.ran == [("a", "order-1")]
        assert await account.charge("order-2", 3) == 3, "the entity is as it was before"
        assert await counts(cluster) == (0, 2, 0)
        failed = (await cluster.messages.list())[0]
        assert failed.failure == "Overdrawn: ('a', -5)"


@pytest.mark.parametrize("method", ["fail", "lie"])
async def test_dur_17_19_gap_13_a_defect_is_tried_a_bounded_number_of_times_and_a_duplicate_learns_that_it_is_dead(
    url: str, method: str
) -> None:
    """Also a reply that does not fit its type: nobody hangs, and neighbours go on."""
    async with program(url, "anna") as cluster:
        account = cluster.ref(Account, "a")
        for _ in range(2):
            with pytest.raises(MessageDead, match=rf"Account/a\.{method} is dead after 3 attempts: (Value|Malfo)"):
                await getattr(account, method)("x")
        assert notes.ran == [("a", "x")] * 3
        assert await cluster.ref(Account, "b").charge("order-1") == 1
        assert await account.charge("order-2") == 1, "what the attempts did to the state is undone"
        (dead,) = await cluster.messages.list(status="dead")
        assert [each.number for each in dead.errors] == [1, 2, 3]
        with pytest.raises(MessageDead):
            await cluster.send(getattr(account, method)("x"))
        with pytest.raises(MessageDead):
            await cluster.result(dead.id)


async def test_dur_18_a_reply_that_cannot_be_encoded_harms_no_other_call(url: str) -> None:
    client = program(url, "client")
    async with program(url, "anna"), client.connect():
        healthy = asyncio.create_task(client.ref(Account, "a").wait(1))
        await until(lambda: notes.ran)
        with pytest.raises(MessageDead, match="Malformed"):
            await client.ref(Account, "b").lie("x")
        notes.gates["a"].set()
        assert await healthy == 1


def handed_over(cluster: Cluster) -> int:
    """How many stored messages its runner has in memory: those that were just stored may be on their way."""
    host = cluster._acting().calling.host
    return 0 if host is None or host.inbox is None else len(host.inbox.works)


async def test_dur_11_mbox_04_whoever_stops_waiting_leaves_the_message_alone(url: str) -> None:
    """A cancelled caller, and one whose time has run out: all of them run, in order, beyond the mailbox too."""
    async with program(url, "anna") as cluster:
        account = cluster.ref(Account, "a")
        calls = [asyncio.create_task(account.wait(number)) for number in range(6)]
        await found(cluster, 6)
        await until(lambda: handed_over(cluster) == 6)
        calls[0].cancel()
        calls[4].cancel()
        with pytest.raises(SendTimeout, match=r"the message is stored and will run; cluster\.result\('[0-9a-f]{32}'\)"):
            await cluster.call(account.wait(6), timeout="50ms")
        await until(lambda: notes.ran)
        assert notes.cancelled == []
        notes.gates["a"].set()
        await found(cluster, 7, status="done")
        assert [number for _, number in notes.ran] == list(range(7))
        assert [await call for call in calls[1:4]] == [1, 2, 3]


async def test_mbox_01_messages_of_one_sender_run_in_the_order_of_their_sends(url: str) -> None:
    client = program(url, "client")
    async with program(url, "anna"), client.connect():
        for number in range(30):
            await client.send(client.ref(Account, "a").wait(number))
        notes.gates["a"].set()
        await found(client, 30, status="done")
        assert [number for _, number in notes.ran] == list(range(30))


async def test_route_05_the_context_of_a_caller_does_not_reach_a_persisted_call(url: str) -> None:
    async with program(url, "anna", Listener) as cluster:
        token = told.set("A")
        assert await cluster.ref(Listener, "a").hears() == "none"
        told.reset(token)


async def test_gap_20_without_a_runner_a_call_ends_at_its_deadline_and_its_message_stays(url: str) -> None:
    client = program(url, "client")
    async with client.connect():
        with pytest.raises(SendTimeout, match=r"Account/a\.charge within 0.2s"):
            await client.call(client.ref(Account, "a").charge("order-1"), timeout="200ms")
        assert await counts(client) == (1, 0, 0)
        async with program(url, "anna"):
            await found(client, 1, status="done")
            assert await client.ref(Account, "a").charge("order-1") == 1, "the repetition finds it"


# Keys


async def test_a_key_makes_a_repeated_call_the_same_call(url: str) -> None:
    async with program(url, "anna") as cluster:
        account = cluster.ref(Account, "a")
        both = await asyncio.gather(account.charge("order-1", 5), account.charge("order-1", 5))
        assert list(both) == [5, 5]
        sent = await cluster.send(account.charge("order-1", 5))
        assert await cluster.result(sent) == 5
        assert notes.ran == [("a", "order-1")]
        with pytest.raises(KeyConflict, match=rf'key "order-1" of Account/a\.charge .* \(message {sent}\)'):
            await account.charge("order-1", 6)
        with pytest.raises(KeyConflict):
            await cluster.send(account.charge("order-1", 6))
        assert await cluster.ref(Account, "b").charge("order-1", 6) == 6, "another entity, another key"
        assert await cluster.call(account.charge("order-1", 5), key="again") == 10, "the explicit key counts"


async def test_incident_18_a_key_whose_message_was_purged_is_new_again(url: str) -> None:
    """What is gone is gone whole: no old reply is found under a key that is used again."""
    async with program(url, "anna") as cluster:
        account = cluster.ref(Account, "a")
        assert await account.charge("order-1", 5) == 5
        sent = (await cluster.messages.list())[0].id
        assert await cluster.messages.purge(status="done") == 1
        with pytest.raises(MessageExpired):
            await cluster.result(sent)
        assert await account.charge("order-1", 7) == 12


@pytest.mark.parametrize("key", ["", None, " "])
async def test_incident_17_what_could_be_anybodys_key_or_id_is_refused(url: str, key: Any) -> None:
    async with program(url, "anna") as cluster:
        account = cluster.ref(Account, "a")
        if key != " ":  # a blank is a text like any other
            with pytest.raises((MalformedMessage, TypeError)):
                await account.charge(key)
        if key is not None:
            with pytest.raises(MessageExpired):
                await cluster.result(MessageId(key))
            assert await cluster.cancel(MessageId(key)) is False
        if not key:
            with pytest.raises((ValueError, TypeError)):
                cluster.ref(Account, key)
        if key == "":
            with pytest.raises((MalformedMessage, ValueError)):
                await cluster.send(account.wait(1), key=key)
        assert await counts(cluster) == (0, 0, 0)


# Programs that do not know a type


class Late(Entity):
    @rpc(persisted=True)
    async def use(self) -> str:
        return "used"


async def test_reg_01_02_a_type_that_no_runner_knows_waits_is_reported_and_runs_when_one_does(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = program(url, "client", Late, Account)
    async with client.connect():
        with caplog.at_level(logging.WARNING, "coterie"):
            async with program(url, "old") as old:
                sent = await client.send(client.ref(Late, "a").use())
                for _ in range(3):
                    await old.poll_storage()
                assert (await client.messages.show(sent)).status == "pending", "it waits, and is never failed"
                assert await client.ref(Account, "a").charge("order-1") == 1, "what it knows goes on"
        reports = [each for each in caplog.messages if "messages for entity type Late stay pending" in each]
        assert len(reports) == 1
        async with program(url, "new", Late, Account):
            assert await client.result(sent) == "used"
            shown = await client.messages.show(sent)
            assert (shown.attempts, shown.errors) == (0, ())


# Taking back


async def test_a_message_is_taken_back_before_it_began_and_not_after(url: str) -> None:
    client = program(url, "client")
    async with client.connect():
        account = client.ref(Account, "a")
        nobody = await client.send(account.wait(0))
        assert await client.cancel(nobody) is True, "there is no owner to ask"
        async with program(url, "anna"):
            running = await client.send(account.wait(1))
            behind = await client.send(account.wait(2))
            later = await client.send(account.wait(3), delay="1h")
            await until(lambda: notes.ran)
            assert await client.cancel(running) is False
            assert await client.cancel(behind) is True
            assert await client.cancel(later) is True
            assert await client.cancel(later) is False, "it is gone"
            with pytest.raises(MessageCancelled):
                await client.result(behind)
            notes.gates["a"].set()
            assert await client.result(running) == 1
            assert await client.cancel(running) is False
    assert notes.ran == [("a", 1)]


async def test_k6_a_dead_message_runs_again_by_retry_and_all_of_an_entity_by_reset(url: str) -> None:
    async with program(url, "anna") as cluster:
        dead = [await cluster.send(cluster.ref(Account, "a").fail(order)) for order in ("x", "y")]
        await found(cluster, 2, status="dead")
        assert len(notes.ran) == 6
        assert await cluster.messages.retry(dead[0]) is True
        await until(lambda: len(notes.ran) == 9)
        await found(cluster, 2, status="dead")
        assert await cluster.reset(Account, "a") == 2
        await until(lambda: len(notes.ran) == 15)
        await found(cluster, 2, status="dead")


# Bounds


async def test_what_is_too_large_is_refused_and_what_cannot_be_counted_too(url: str) -> None:
    async with program(url, "anna", Large, frame_limit="64KiB") as cluster:
        large = cluster.ref(Large, "a")
        assert await large.echo(b"x" * 60_000, 1) == b"x" * 60_000
        with pytest.raises(MalformedMessage, match=r"Large/a\.echo: 70,\d+ bytes, more than the 65,536 that"):
            await large.echo(b"x" * 70_000, 1)
        with pytest.raises(MessageDead, match="120,005 bytes, more than the 65,536"):
            await large.echo(b"x" * 60_000, 2)
        assert await counts(cluster) == (0, 1, 1)
        with pytest.raises(ValueError, match="a message can wait for 36,525 days"):
            await cluster.send(large.echo(b"", 1), delay="36526d")
        assert await counts(cluster) == (0, 1, 1)


class Large(Entity):
    @rpc(persisted=True)
    async def echo(self, data: bytes, times: int) -> bytes:
        return data * times


async def test_more_messages_than_a_mailbox_holds_wait_in_storage_and_run_in_order(url: str) -> None:
    """MBOX-02: nobody is refused who has stored a message."""
    cluster = program(url, "anna", Listener)
    cluster.entity(mailbox=2, name="Narrow")(Account)
    async with cluster:
        account = cluster.ref(Account, "a")
        sent = [await cluster.send(account.wait(number)) for number in range(12)]
        await until(lambda: notes.ran)
        await cluster.poll_storage()
        notes.gates["a"].set()
        async with asyncio.timeout(PROMPTLY_S):
            assert [await cluster.result(each) for each in sent] == list(range(12))
        assert [number for _, number in notes.ran] == list(range(12))
