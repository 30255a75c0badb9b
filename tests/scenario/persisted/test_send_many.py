"""`cluster.send_many`: many messages in few commits, in order, and what is known of those that are stored."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Entity, KeyConflict, PersistenceError, rpc
from tests.scenario.persisted.entity_program import PROMPTLY_S, Account, notes, program, until

if TYPE_CHECKING:
    import asyncio

    from coterie import Cluster
    from coterie.storage.contracts.messages import Message

MANY = 1_200


async def pending(cluster: Cluster) -> int:
    return len(await cluster.messages.list(status="pending", limit=1_000))


async def test_many_messages_take_few_commits(url: str) -> None:
    client = program(url, "client")
    async with client.connect():
        account, writer = client.ref(Account, "a"), client._acting().storage.messages._writer  # type: ignore[attr-defined]
        before = writer.groups
        ids = await client.send_many(account.charge(f"{number}") for number in range(MANY))
        assert writer.groups - before <= 7, "500 with each, or 200 on SQLite"
        assert len(set(ids)) == MANY
        assert ids == sorted(ids), "they run in the order of their ids"


@pytest.mark.parametrize("connected", [True, False])
async def test_they_run_in_order(url: str, connected: bool) -> None:
    client, runner = program(url, "client"), program(url, "anna")
    async with client.connect(), AsyncExitStack() as stack:
        if connected:
            await stack.enter_async_context(runner)
            await runner.ready(timeout=PROMPTLY_S)
        ids = await client.send_many(client.ref(Account, "a").charge(f"{number}") for number in range(100))
        if not connected:
            await stack.enter_async_context(runner)
        assert [await client.result(each, timeout=PROMPTLY_S) for each in ids] == list(range(1, 101))
    assert notes.ran == [("a", f"{number}") for number in range(100)]


class Shop(Entity):
    @rpc(persisted=True)
    async def order(self, count: int, *, fails: bool) -> list[str]:
        account = self.cluster.ref(Account, "a")
        ids = await self.cluster.send_many(account.charge(f"{number}") for number in range(count))
        if fails:
            raise ValueError("none of it")
        return [str(each) for each in ids]


async def test_inside_a_handler_all_are_part_of_its_commit_or_none(url: str) -> None:
    async with program(url, "anna", Account, Shop) as cluster:
        with pytest.raises(Exception, match="none of it"):
            await cluster.ref(Shop, "b").order(3, fails=True)
        assert len(await cluster.messages.list()) == 1, "the order itself"
        assert len(await cluster.ref(Shop, "c").order(3, fails=False)) == 3
        await until(lambda: len(notes.ran) == 3)
        assert notes.ran == [("a", "0"), ("a", "1"), ("a", "2")]


async def test_a_key_that_was_used_otherwise_stops_it_and_the_error_names_what_is_stored(url: str) -> None:
    client = program(url, "client")
    async with client.connect():
        account = client.ref(Account, "a")
        taken = await client.send(account.charge("order-2", 7))
        with pytest.raises(KeyConflict) as refused:
            await client.send_many(account.charge(f"order-{number}") for number in range(700))
        assert len(refused.value.stored) == 499, "nothing of the second group"
        assert taken not in refused.value.stored
        assert await pending(client) == 500
        again = await client.send_many(account.charge(f"order-{number}") for number in range(500) if number != 2)
        assert again == list(refused.value.stored), "with keys they may be sent again"


async def test_messages_of_groups_before_a_failure_are_known(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = program(url, "client")
    async with client.connect():
        messages: Any = client._acting().storage.messages
        insert, stored = messages.insert, list[str]()

        def failing(message: Message) -> asyncio.Future[Any]:
            if len(stored) >= 500:
                raise PersistenceError(doing="store it", problem="no", outcome="refused")
            stored.append(message.id)
            done: asyncio.Future[Any] = insert(message)
            return done

        monkeypatch.setattr(messages, "insert", failing)
        with pytest.raises(PersistenceError) as failed:
            await client.send_many(client.ref(Account, "a").charge(f"{number}") for number in range(501))
        assert list(failed.value.stored) == stored
        assert await pending(client) == 500


async def test_what_is_refused_is_refused_before_anything_is_stored(url: str) -> None:
    client = program(url, "client")
    async with client.connect():
        account = client.ref(Account, "a")
        with pytest.raises(TypeError, match=r"Account/a\.cents is not persisted: use cluster\.send"):
            await client.send_many(each for each in (account.charge("1"), account.cents()))
        with pytest.raises(TypeError, match=r"cluster\.send_many takes a call"):
            await client.send_many([account.charge("1"), 7])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"has at= and delay="):
            await client.send_many([account.charge("1")], at=datetime.now(UTC), delay="1s")
        with pytest.raises(ValueError, match="no time zone"):
            await client.send_many([account.charge("1")], at=datetime(2030, 1, 1))  # noqa: DTZ001 that is the point
        assert await client.send_many([]) == []
        assert await pending(client) == 0


async def test_they_are_due_together(url: str) -> None:
    client = program(url, "client")
    async with client.connect():
        account, at = client.ref(Account, "a"), datetime(2100, 1, 1, tzinfo=UTC)
        await client.send_many((account.charge(f"{number}") for number in range(3)), at=at)
        assert {each.due_at for each in await client.messages.list()} == {at}
