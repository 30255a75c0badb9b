"""What handlers send and when it runs: outbox, instants, transactions, volatile sends (B3, M6, m13)."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Entity, KeyConflict, MailboxFull, MessageDead, RunnerUnavailable, current, rpc
from tests.scenario.persisted.entity_program import (
    Account,
    Overdrawn,
    counts,
    found,
    id_on,
    notes,
    program,
    shared,
    until,
)

if TYPE_CHECKING:
    from coterie import Cluster


@dataclass
class Sent:
    ids: list[str] = field(default_factory=list)
    attempts: int = 0


class Shop(Entity[Sent]):
    """Sends to accounts."""

    @rpc(persisted=True, errors=[Overdrawn])
    async def order(self, number: str, *, outcome: str = "well") -> list[str]:
        """One send without a key, one with; then it ends in one way or the other."""
        notes.ran.append((self.id, number))
        account = self.cluster.ref(Account, self.id)
        sent = [await self.cluster.send(account.wait(1)), await self.cluster.send(account.charge(number, 5))]
        self.state.ids += sent
        if outcome == "declared":
            raise Overdrawn(number)
        if outcome == "crash":
            raise ZeroDivisionError(number)
        if outcome == "crash once" and current().attempt == 1:
            raise ZeroDivisionError(number)
        return [str(each) for each in sent]

    @rpc
    async def order_quickly(self, number: str) -> str:
        return str(await self.cluster.send(self.cluster.ref(Account, self.id).charge(number, 5)))

    @rpc(persisted=True)
    async def relay(self, *, crash: bool = False) -> list[int]:
        """Two awaited calls without keys of their own, under keys that a retry finds again [M6]."""
        notes.ran.append((self.id, current().attempt))
        account = self.cluster.ref(Account, self.id)
        notes.gates[self.id].set()
        got = [await account.wait(1), await account.wait(2)]
        if crash and current().attempt == 1:
            raise ZeroDivisionError
        return got

    @rpc(persisted=True)
    async def order_and_take_back(self, number: str) -> bool:
        sent = await self.cluster.send(self.cluster.ref(Account, self.id).charge(number))
        return await self.cluster.cancel(sent)

    @rpc(persisted=True)
    async def order_and_wait(self, number: str) -> int:
        sent = await self.cluster.send(self.cluster.ref(Account, self.id).charge(number))
        return await self.cluster.result(sent)

    @rpc
    async def leave_running(self, number: str) -> None:
        """What it leaves running sends on its own."""
        notes.left = asyncio.create_task(self._later(number))

    @rpc
    async def leave_sending(self, number: str) -> None:
        """It ends while what it left running looks whether its key is used already."""
        notes.gates[self.id].set()
        notes.left = asyncio.create_task(self._later(number))
        await asyncio.sleep(0)

    async def _later(self, number: str) -> None:
        await notes.gates[self.id].wait()
        await self.cluster.send(self.cluster.ref(Account, self.id).charge(number))

    @rpc(persisted=True)
    async def book(self, number: int, *, fails: str = "") -> int:
        """Rows of its own, state and a send in one commit."""
        async with self.transaction() as sql:
            await sql.execute("insert into bookings (id, shop) values ($1, $2)", number, self.id)
            if fails == "commit":
                await sql.execute("insert into notes (booking) values ($1)", -1)
        self.state.attempts += 1
        await self.cluster.send(self.cluster.ref(Account, self.id).charge(f"booking {number}"))
        if fails == "handler":
            raise ZeroDivisionError
        return self.state.attempts

    @rpc(persisted=True)
    async def prepare(self) -> None:
        async with self.transaction() as sql:
            await sql.execute("create table bookings (id integer primary key, shop text)")
            await sql.execute(
                "create table notes (booking integer references bookings (id) deferrable initially deferred)"
            )

    @rpc
    async def bookings(self) -> list[int]:
        async with self.transaction() as sql:
            return [row["id"] for row in await sql.fetch("select id from bookings order by id")]


def shop(url: str, name: str = "anna", **settings: Any) -> Cluster:
    return program(url, name, Shop, Account, **settings)


# Inside of handlers


async def test_b3_what_a_handler_sends_is_stored_with_its_end_and_runs_after_it(url: str) -> None:
    notes.gates["a"].set()
    async with shop(url) as cluster:
        first, second = await cluster.ref(Shop, "a").order("one")
        assert (await cluster.result(first), await cluster.result(second)) == (1, 5)  # type: ignore[arg-type] # ids as text
        assert notes.ran == [("a", "one"), ("a", 1), ("a", "one")]
        quick = await cluster.ref(Shop, "a").order_quickly("two")
        assert await cluster.result(quick) == 10, "of a volatile call, too"  # type: ignore[arg-type] # as above


@pytest.mark.parametrize(("outcome", "error"), [("declared", Overdrawn), ("crash", MessageDead)])
async def test_b3_a_handler_that_raises_has_sent_nothing(url: str, outcome: str, error: type[Exception]) -> None:
    async with shop(url) as cluster:
        with pytest.raises(error):
            await cluster.ref(Shop, "a").order("one", outcome=outcome)
        assert [each.entity for each in await cluster.messages.list()] == ["Shop/a"]


async def test_b3_a_retry_sends_once(url: str) -> None:
    notes.gates["a"].set()
    async with shop(url) as cluster:
        await cluster.ref(Shop, "a").order("one", outcome="crash once")
        await found(cluster, 3, status="done")
        assert notes.ran == [("a", "one")] * 2 + [("a", 1), ("a", "one")]


async def test_m6_a_key_that_is_used_already_is_the_same_message_or_a_conflict(url: str) -> None:
    async with shop(url) as cluster:
        account = cluster.ref(Account, "a")
        assert await account.charge("one", 5) == 5
        sent = await cluster.ref(Shop, "a").order_quickly("one")
        assert await cluster.result(sent) == 5  # type: ignore[arg-type] # an id as text
        assert await account.charge("two", 6) == 11
        with pytest.raises(KeyConflict):
            await cluster.send(account.charge("two", 5))
        with pytest.raises(MessageDead, match="KeyConflict"):
            await cluster.ref(Shop, "a").order("two")
        assert await account.cents() == 11


async def test_m6_a_retry_finds_the_calls_that_it_awaited_before(url: str) -> None:
    async with shop(url) as cluster:
        assert await cluster.ref(Shop, "a").relay(crash=True) == [1, 2]
        assert notes.ran == [("a", 1), ("a", 1), ("a", 2), ("a", 2)], "the shop twice, each of its calls once"
        assert await counts(cluster) == (0, 3, 0)


async def test_what_a_handler_sent_can_be_taken_back_and_not_waited_for_inside_of_it(url: str) -> None:
    async with shop(url) as cluster:
        assert await cluster.ref(Shop, "a").order_and_take_back("one") is True
        with pytest.raises(MessageDead, match=r"is stored when Shop/a\.order_and_wait has ended"):
            await cluster.ref(Shop, "a").order_and_wait("two")
        assert {each.entity for each in await cluster.messages.list()} == {"Shop/a"}


@pytest.mark.parametrize("method", ["leave_running", "leave_sending"])
async def test_what_a_handler_left_running_sends_by_itself(url: str, method: str) -> None:
    """D1: there is no end any more that it could be stored with, and it must not vanish."""
    async with shop(url) as cluster:
        await getattr(cluster.ref(Shop, "a"), method)("one")
        notes.gates["a"].set()
        await found(cluster, 1, status="done", entity="Account/a")


# Rows of the user's own


async def test_dur_20_rows_state_sends_and_reply_are_one_commit(url: str) -> None:
    async with shop(url) as cluster:
        store = cluster.ref(Shop, "a")
        await store.prepare()
        assert await store.book(1) == 1
        with pytest.raises(MessageDead, match="ZeroDivisionError"):
            await store.book(2, fails="handler")
        assert await store.bookings() == [1]
        assert await store.book(3) == 2, "the state of the failed ones went with their rows"
        await found(cluster, 2, entity="Account/a", status="done")


async def test_gap_16_when_the_commit_fails_nobody_sees_success(url: str) -> None:
    async with shop(url) as cluster:
        store = cluster.ref(Shop, "a")
        await store.prepare()
        with pytest.raises(MessageDead, match=r"(?i)foreign key"):
            await store.book(1, fails="commit")
        assert await store.bookings() == []
        assert await store.book(2) == 1
        assert [each.key for each in await cluster.messages.list(entity="Account/a")] == ["booking 2"]


# Instants


async def test_d5_a_message_runs_when_it_is_due_and_never_before(url: str) -> None:
    notes.gates["a"].set()
    async with shop(url) as cluster:
        await cluster.ready(timeout="2m")  # what is sent before its seat is held is left to a sweep, which may be late
        account = cluster.ref(Account, "a")
        sent = {
            await cluster.send(account.wait(3), delay="600ms"): 3,
            await cluster.send(account.wait(2), at=datetime.now(UTC) + timedelta(milliseconds=300)): 2,
            await cluster.send(account.wait(1), at=datetime(2001, 1, 1, tzinfo=UTC)): 1,
        }
        rows = {sent[row.id]: row for row in await found(cluster, 3, status="done")}
        places = {number: place for place, (_, number) in enumerate(notes.ran)}
        assert rows.keys() == places.keys() == {1, 2, 3}
        for before, after in itertools.permutations(rows.values(), 2):
            is_known = max(before.sent_at, after.sent_at) < before.due_at  # on a busy machine it may come too late
            if is_known and before.due_at < after.due_at:
                assert places[sent[before.id]] < places[sent[after.id]]
        for row in rows.values():
            assert row.completed_at is not None
            assert row.completed_at >= row.due_at


async def test_incident_23_28_a_timer_that_is_due_while_its_shard_moves_fires_once_and_not_early(url: str) -> None:
    notes.gates["a"].set()
    client, bert = shop(url, "client"), shop(url, "bert")
    async with client.connect(), AsyncExitStack() as stack:
        async with shop(url, "anna"):
            sent = [await client.send(client.ref(Account, "a").wait(number), delay=0.2 * number) for number in range(6)]
            await until(lambda: len(notes.ran) >= 2)
            await stack.enter_async_context(bert)
        assert [await client.result(each) for each in sent] == list(range(6))
        assert [number for _, number in notes.ran] == list(range(6))
        for each in sent:
            row = await client.messages.show(each)
            assert row.completed_at is not None
            assert row.completed_at >= row.due_at


# Volatile sends


async def test_dur_06_07_a_volatile_send_returns_when_it_was_taken_and_leaves_no_row(url: str) -> None:
    client = shop(url, "client")
    async with client.connect():
        async with shop(url, drain="0s"):
            sent = await client.send(client.ref(Account, "a").linger())
            await until(lambda: notes.ran)
            assert notes.ran == [("a", "linger")]
            with pytest.raises(TypeError, match="is not persisted: delay= is for persisted rpcs"):
                await client.send(client.ref(Account, "a").linger(), delay="1s")
        notes.gates["a"].set()
        async with shop(url, "bert") as bert:
            await bert.ref(Account, "a").cents()
            assert notes.ran == [("a", "linger")], "it went with its runner"
            assert await counts(client) == (0, 0, 0)
            assert await client.cancel(sent) is False


async def test_dur_09_a_volatile_send_that_did_not_arrive_is_tried_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = shop(url, "client")
    async with shop(url) as anna, client.connect():
        await shared(anna)
        who = id_on(anna)
        transport = client._acting().calling.transport
        assert transport is not None
        request, tries = transport.request, []

        async def flaky(*args: Any, **more: Any) -> Any:
            tries.append(more)
            if len(tries) == 1:
                raise RunnerUnavailable(runner="anna", target="x", problem="it broke", sent=False)
            return await request(*args, **more)

        monkeypatch.setattr(transport, "request", flaky, raising=False)
        await client.send(client.ref(Account, who).linger())
        assert len(tries) == 2
        await until(lambda: notes.ran == [(who, "linger")])
        notes.gates[who].set()  # so that nobody waits for it


async def test_a_volatile_send_to_a_full_mailbox_is_refused(url: str) -> None:
    cluster = program(url, "anna", Shop)
    cluster.entity(mailbox=1, name="Account")(Account)
    async with cluster:
        account = cluster.ref(Account, "a")
        await cluster.send(account.linger())
        await until(lambda: notes.ran)
        await cluster.send(account.linger())
        with pytest.raises(MailboxFull, match=r"mailbox of Account/a is full \(1 waiting\)"):
            await cluster.send(account.linger())
        notes.gates["a"].set()  # so that nobody waits for them
