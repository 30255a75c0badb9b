"""`self.transaction()` in a handler: the user's SQL commits with state, reply and sends, or not at all.

B3, D4, DUR-20, GAP-16; C1: the fence; C3, m18: the limit; M3: a connection of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster, Entity, MessageDead, PersistenceError, RemoteError, Retry, rpc
from coterie.entities.persisted import poller
from coterie.storage.user_transaction import UserTransaction
from coterie.testing import probe
from tests.contract import shop_program
from tests.contract.shop_program import Clerk, HandlerControls, Refused, Shop, audited, books, running
from tests.contract.test_states import evict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from coterie.storage.contracts.messages import Commit, Committed


@pytest.fixture(autouse=True)
def stage(monkeypatch: pytest.MonkeyPatch) -> HandlerControls:
    stage = HandlerControls()
    monkeypatch.setattr(shop_program, "stage", stage)
    return stage


@pytest.fixture
def swept_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not handed over is found soon."""
    monkeypatch.setattr(poller, "_EVERY_S", 0.1)


@pytest.fixture(params=["memory", "file", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What a pooler changes is below of all this."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "sqlite://" if request.param == "memory" else f"sqlite:///{tmp_path}/work.db"


@pytest.fixture
async def cluster(place: str) -> AsyncIterator[Cluster]:
    async with running(place) as cluster:
        yield cluster


async def test_rows_state_reply_and_sends_are_one(cluster: Cluster) -> None:
    """B3, D4, DUR-20: of persisted and of volatile calls."""
    shop = cluster.ref(Shop, "a")
    assert [await shop.order(1), await shop.order_volatile(2), await shop.order(3)] == [1, 2, 3]
    assert await books(cluster) == (3, [1, 2, 3])
    assert await audited(cluster) == [1, 2, 3]
    assert await shop.order_two(4, 5) == 5, "several blocks are one transaction"
    assert await books(cluster) == (5, [1, 2, 3, 4, 5])


@pytest.mark.parametrize("method", ["order", "order_volatile"])
async def test_a_handler_that_raises_leaves_nothing_and_the_next_one_works(cluster: Cluster, method: str) -> None:
    """D4: a declared error too; it is tried again in a transaction of its own."""
    order = getattr(cluster.ref(Shop, "a"), method)
    with pytest.raises(Refused, match="a"):
        await order(1, "refuse")
    with pytest.raises((MessageDead, RemoteError), match="KeyError"):
        await order(1, "raise")
    assert await books(cluster) == (0, [])
    assert await order(1) == 1
    assert await books(cluster) == (1, [1])
    assert await audited(cluster) == [1]


@pytest.mark.parametrize("how", ["then raise", "then refuse"])
async def test_a_handler_that_raises_behind_its_block_holds_nothing_any_more(place: str, how: str) -> None:
    """C3: it is rolled back at once, not when its time is over."""
    async with running(place, transaction_limit="1m") as cluster, asyncio.timeout(120):
        with pytest.raises((Refused, RemoteError)):
            await cluster.ref(Shop, "a").order_volatile(1, how)
        assert await cluster.ref(Shop, "b").order(1) == 1
        assert await books(cluster) == (0, [])
        assert await audited(cluster) == [1]


async def test_a_block_left_by_an_exception_never_was_and_the_rest_of_the_handler_counts(cluster: Cluster) -> None:
    assert await cluster.ref(Shop, "a").order_and_catch(1) == 101
    assert await books(cluster) == (101, [])


async def test_a_later_block_left_by_an_exception_takes_the_handler_with_it(cluster: Cluster) -> None:
    """D4: the rows of the first block went with it, and the handler believes them to be written."""
    with pytest.raises(RemoteError, match="it was rolled back"):
        await cluster.ref(Shop, "a").order_two(1, 2, "raise")
    assert await books(cluster) == (0, [])
    assert await audited(cluster) == []


async def test_a_statement_that_failed_cannot_be_looked_away_from(cluster: Cluster) -> None:
    """D4."""
    with pytest.raises(RemoteError, match="an earlier statement of it failed"):
        await cluster.ref(Shop, "a").order_volatile(1, "go on after an error")
    assert await books(cluster) == (0, [])


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("nest", "Shop/a.order is inside of a transaction already: use what that block gave"),
        ("call", r"Shop/other\.order is awaited while Shop/a\.order has a transaction open"),
        ("keep", r"a write to cluster\.kv is awaited while Shop/a\.order has a transaction open"),
    ],
    ids=["nest", "call", "keep"],
)
async def test_what_would_wait_for_its_own_locks_is_refused_at_once(cluster: Cluster, how: str, says: str) -> None:
    """C3: on SQLite it would wait for the lock that its own transaction holds."""
    with pytest.raises(MessageDead, match=says):
        await cluster.ref(Shop, "a").order(1, how)
    assert await books(cluster) == (0, [])
    assert await cluster.kv.is_empty()
    assert await audited(cluster) == []


@pytest.mark.parametrize("method", ["forget_to_leave", "leave_running"])
async def test_a_handler_that_ends_inside_of_its_block_fails(
    cluster: Cluster, stage: HandlerControls, method: str
) -> None:
    """All of it is undone, and what it left running is told."""
    with pytest.raises(RemoteError, match=f"Shop/a.{method} has ended inside of its transaction"):
        await getattr(cluster.ref(Shop, "a"), method)(1)
    stage.go.set()
    async with asyncio.timeout(120):
        await asyncio.gather(*stage.left, return_exceptions=True)
    assert await books(cluster) == (0, [])
    assert await audited(cluster) == []


async def test_outside_of_its_block_and_of_its_handler_it_cannot_be_used(
    cluster: Cluster, stage: HandlerControls
) -> None:
    said = ["a transaction of Shop/a.use_late is used outside of its block"] * 2
    assert await cluster.ref(Shop, "a").use_late(1) == said
    stage.go.set()
    async with asyncio.timeout(120):
        assert await asyncio.gather(*stage.left) == [
            said,
            "Shop/a.use_late has ended: a transaction cannot be used by what it left running",
        ]
    assert await books(cluster) == (1, [1])


async def test_what_a_volatile_handler_left_running_sends_by_itself(cluster: Cluster, stage: HandlerControls) -> None:
    """No commit comes any more with which it could be stored: it must not be lost."""
    await cluster.ref(Clerk, "a").send_later(1)
    stage.go.set()
    async with asyncio.timeout(120):
        await asyncio.gather(*stage.left)
    assert await audited(cluster) == [1]


async def test_only_an_rpc_has_one(cluster: Cluster) -> None:
    class Eager(Entity):
        @rpc
        async def hello(self) -> None: ...

        async def on_activate(self) -> None:
            async with self.transaction():
                pass

    cluster.entity(Eager)
    with pytest.raises(RemoteError, match="a transaction of Eager/a belongs to one of its rpcs"):
        await cluster.ref(Eager, "a").hello()
    async with probe(Shop, "a") as shop:
        with pytest.raises(RemoteError, match="NotStarted: the database of Shop/a"):
            await shop.open()


# What goes wrong


async def test_past_the_limit_nothing_is_written_and_a_stored_message_is_tried_again(
    place: str, stage: HandlerControls
) -> None:
    """C3, m18: the handler hangs inside of its block."""
    async with running(place, transaction_limit="2s") as cluster:
        ordering = asyncio.create_task(cluster.ref(Shop, "a").order(1, "wait"))
        async with asyncio.timeout(120):
            await stage.inside.wait()
        assert await cluster.ref(Shop, "b").order(2) == 1, "others wait for the limit at most"
        await asyncio.sleep(2)
        stage.go.set()  # the second attempt does not wait
        assert await ordering == 1
        assert await books(cluster) == (1, [1])
        (message,) = [one for one in await cluster.messages.list() if one.entity == "Shop/a"]
        assert message.attempts == 1
        assert message.errors[0].error.startswith("TransactionTimeout: ")
        assert stage.runs == 3


async def test_a_caller_that_gives_up_takes_its_volatile_handler_with_it(
    cluster: Cluster, stage: HandlerControls
) -> None:
    """What it did is undone."""
    calling = asyncio.create_task(cluster.ref(Shop, "a").order_volatile(1, "wait"))
    async with asyncio.timeout(120):
        await stage.inside.wait()
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    assert await cluster.ref(Shop, "a").order(2) == 1
    assert await books(cluster) == (1, [2])
    assert await audited(cluster) == [2]


@pytest.mark.usefixtures("swept_often")
@pytest.mark.parametrize("happened", [True, False], ids=["committed", "not committed"])
@pytest.mark.parametrize("method", ["order", "order_volatile"])
async def test_a_commit_whose_answer_is_lost_counts_once(
    cluster: Cluster, stage: HandlerControls, monkeypatch: pytest.MonkeyPatch, method: str, happened: bool
) -> None:
    """GAP-16, 0.6: nobody takes it for done or for failed: storage tells, whoever asks."""
    right = UserTransaction.commit
    lost: list[Committed | None] = []

    async def commit(self: UserTransaction, write: Commit) -> Committed:
        if lost or self._began is None:
            return await right(self, write)
        if happened:
            lost.append(await right(self, write))
        else:
            await self.rollback()
            lost.append(None)
        raise PersistenceError(doing="commit", problem="the connection broke", outcome="unknown")

    monkeypatch.setattr(UserTransaction, "commit", commit)
    order = getattr(cluster.ref(Shop, "a"), method)
    if method == "order":
        assert await order(1) == 1
        assert stage.runs == (1 if happened else 2)
    else:
        with pytest.raises(RemoteError, match="the connection broke"):
            await order(1)
    assert lost == ["written" if happened else None]
    sold = 1 if happened or method == "order" else 0
    assert await books(cluster) == (sold, [1] * sold)
    assert await audited(cluster) == [1] * sold


@pytest.mark.postgres
async def test_a_connection_that_breaks_inside_of_the_block_costs_an_attempt(
    postgres_url: str, stage: HandlerControls
) -> None:
    async with running(postgres_url) as cluster:
        ordering = asyncio.create_task(cluster.ref(Shop, "a").order(1, "wait"))
        async with asyncio.timeout(120):
            await stage.inside.wait()
        ended = cluster._acting().storage.transaction(limit_s=20)
        await ended.fetch(
            """select pg_terminate_backend(pid, 5000) from pg_stat_activity
            where datname = current_database() and state = 'idle in transaction' and query like 'insert into orders%'"""
        )
        await ended.rollback()
        stage.go.set()
        assert await ordering == 1
        assert stage.runs == 2
        assert await books(cluster) == (1, [1])
        assert await audited(cluster) == [1]


async def test_a_former_owner_commits_nothing(place: str, stage: HandlerControls) -> None:
    """C1, INV-F2: its shard went to another runner while its handler was inside of the block.

    It has only read until then: on SQLite what moves a seat waits for whoever writes.
    """
    if place == "sqlite://":
        pytest.skip("memory is one process's: see tests/simulation")
    async with running(place, runner_name="one") as one, shop_program.shops(place, runner_name="two") as two:
        await asyncio.gather(one.ready(timeout="2m"), two.ready(timeout="2m"))
        who = await held_by(one, "one")
        ordering = asyncio.create_task(two.ref(Shop, who).order(1, "wait first"))
        async with asyncio.timeout(120):
            await stage.inside.wait()
        await take_away(two, one)
        stage.go.set()
        assert await ordering == 1
        assert stage.runs == 2, "the former owner ran it to its end"
        assert await books(two, who) == (1, [1])
        assert await audited(two) == [1]


async def held_by(cluster: Cluster, runner: str) -> str:
    async with asyncio.timeout(120):
        while True:
            shards = await cluster.shards()
            names = (f"shop-{number}" for number in range(100))
            found = next((name for name in names if shards.get(cluster.shard_of(Shop, name)) == runner), None)
            if found is not None:
                return found
            await asyncio.sleep(0.01)


async def take_away(winner: Cluster, victim: Cluster) -> None:
    """Have a living runner evicted by another one, as if its lease had run out."""
    keeping: Any = winner._acting()._life.membership._lease_keeper  # type: ignore[attr-defined] # a Runner
    incarnation = victim._acting().incarnation
    await keeping.ask(lambda session: evict(session, incarnation))


# Room


async def test_more_handlers_than_connections_take_turns(place: str) -> None:
    """F9: no more connections than `pool_size`, and nobody fails for want of one."""
    if place == "sqlite://":
        pytest.skip("in memory there is nothing to be opened")
    async with running(place, pool_size=2, transaction_limit="20s", retry=Retry.never) as cluster:
        refs = [cluster.ref(Shop, f"shop-{number}") for number in range(12)]
        assert await asyncio.gather(*(ref.order(number) for number, ref in enumerate(refs))) == [1] * 12
        assert await audited(cluster) == list(range(12))
