"""Tags from their senders' side: on each way of sending, found again, and with a dead message that is edited (T10)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from coterie import Entity, InvalidArgument, KeyConflict, MalformedMessage, MessageDead, Retry, rpc
from tests.scenario.persisted.entity_program import PROMPTLY_S, Account, program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie import Cluster

SEVEN = {"order": "7"}


class Shop(Entity):
    @rpc(persisted=True)
    async def order(self, then: str) -> None:
        account = self.cluster.ref(Account, self.id)
        await self.cluster.send(account.charge(f"{then} 1"), tags=SEVEN)
        async with self.transaction() as sql:
            await sql.execute("create table if not exists shop_orders (id text)")
        await self.cluster.send_many([account.charge(f"{then} 2")], tags={**SEVEN, "part": "2"})
        if then == "fail":
            raise ValueError(then)

    @rpc(persisted=True, retry=Retry.never)
    async def pay(self, cents: int) -> int:
        if cents < 0:
            raise ValueError(f"{cents} cents")
        return cents

    @rpc
    async def look(self) -> None:
        pass


async def orders(cluster: Cluster, name: str = "order", value: str = "7") -> Sequence[object]:
    return [row.payload["order"] for row in await cluster.messages.list(tag=(name, value))]


async def test_what_is_sent_with_tags_is_found_by_them_and_shows_them(url: str) -> None:
    async with program(url, "anna") as cluster:
        account = cluster.ref(Account, "a")
        first = await cluster.send(account.charge("o-1"), tags=SEVEN)
        await cluster.send(account.charge("o-2"), tags=SEVEN, delay="1h")
        await cluster.send_many([account.charge("o-3"), account.charge("o-4")], tags={"order": "8"})
        await cluster.send(account.charge("o-1"), tags={"order": "9"})  # the same key: the first message
        async with cluster.transaction() as tx:
            fifth = await cluster.send(account.charge("o-5"), tags=SEVEN, via=tx)
        with suppress(ZeroDivisionError):
            async with cluster.transaction() as tx:
                await cluster.send(account.charge("o-6"), tags=SEVEN, via=tx)
                raise ZeroDivisionError
        assert await cluster.result(first, timeout=PROMPTLY_S) == 1
        await cluster.result(fifth, timeout=PROMPTLY_S)
        assert await orders(cluster) == ["o-1", "o-2", "o-5"]
        assert await orders(cluster, "order", "8") == ["o-3", "o-4"]
        assert await orders(cluster, "order", "9") == []
        assert (await cluster.messages.show(first)).tags == SEVEN
        (pending,) = await cluster.messages.list(tag=("order", "7"), status="pending", entity="Account/a")
        assert pending.payload["order"] == "o-2"
        await cluster.messages.purge(status="done")
        assert await orders(cluster) == ["o-2"], "with its message each tag is gone"


async def test_a_handler_s_sends_have_their_tags_if_it_succeeds(url: str) -> None:
    async with program(url, "anna", Shop, Account) as cluster:
        await cluster.ref(Shop, "a").order("sent")
        with pytest.raises(MessageDead):
            await cluster.ref(Shop, "a").order("fail")
        assert await orders(cluster) == ["sent 1", "sent 2"]
        assert await orders(cluster, "part", "2") == ["sent 2"]


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ({f"t{n}": "" for n in range(11)}, "11 tags: there may be 10"),
        ({"ä" * 51: "x"}, "it may have 100 bytes, and has 102"),
        ({"x": "y" * 501}, "it may have 500 bytes, and has 501"),
        ({"": "y"}, "name of a tag of .* it is empty"),
        ({"x": "a\0b"}, "zero character"),
        ({"x": 7}, 'tags are texts, so write "7"'),
        ([("x", "7")], 'write a mapping of texts, as in tags={"order": "7"}'),
    ],
)
async def test_tags_that_cannot_be_stored_are_refused_before_anything_is(tags: object, said: str) -> None:
    async with program("sqlite://", "anna") as cluster:
        account = cluster.ref(Account, "a")
        with pytest.raises((InvalidArgument, TypeError), match=said):
            await cluster.send(account.charge("o-1"), tags=tags)  # type: ignore[arg-type] # that is the point
        with pytest.raises((InvalidArgument, TypeError), match=said):
            await cluster.send_many([account.charge("o-1")], tags=tags)  # type: ignore[arg-type]
        assert await cluster.messages.list() == []


async def test_a_volatile_call_has_no_tags_and_a_filter_is_a_pair() -> None:
    async with program("sqlite://", "anna", Shop) as cluster:
        with pytest.raises(TypeError, match="tags= is for persisted rpcs"):
            await cluster.send(cluster.ref(Shop, "a").look(), tags=SEVEN)
        with pytest.raises(TypeError, match='as in tag=\\("order", "7"\\)'):
            await cluster.messages.list(tag="order=7")  # type: ignore[arg-type] # that is the point


async def test_a_dead_message_is_sent_again_with_other_arguments_and_its_tags(url: str) -> None:
    async with program(url, "anna", Shop) as cluster:
        dead = await cluster.send(cluster.ref(Shop, "a").pay(-5), tags=SEVEN)
        with pytest.raises(MessageDead):
            await cluster.result(dead, timeout=PROMPTLY_S)
        sent = await cluster.messages.edit(dead, {"cents": 5})
        assert await cluster.result(sent, timeout=PROMPTLY_S) == 5
        assert await cluster.messages.edit(dead, {"cents": 5}) == sent, "it is sent once"
        with pytest.raises(KeyConflict):
            await cluster.messages.edit(dead, {"cents": 6})
        with pytest.raises(MalformedMessage, match="cents"):
            await cluster.messages.edit(dead, {"cents": "many"})
        with pytest.raises(InvalidArgument, match="only dead messages"):
            await cluster.messages.edit(sent, {"cents": 7})
        found = await cluster.messages.list(tag=("order", "7"))
        assert [(row.id, row.status) for row in found] == [(dead, "dead"), (sent, "done")]
