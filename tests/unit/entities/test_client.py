"""Calls as programs make them: two runners and a client on one SQLite file, and two versions of a program at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator  # annotations of rpcs are read at run time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from coterie import (
    Cluster,
    ConfigurationError,
    Entity,
    MalformedMessage,
    NotStarted,
    SendTimeout,
    ShardId,
    UnknownEntity,
    current,
    rpc,
    within_cluster,
)

if TYPE_CHECKING:
    from pathlib import Path

SHARDS = 6


class Account(Entity):
    count = 0

    @rpc
    async def add(self, by: int = 1) -> int:
        self.count += by
        return self.count

    @rpc(timeout="30s")
    async def sleep(self) -> None:
        await asyncio.sleep(60)

    @rpc
    async def trace(self) -> str | None:
        return current().trace_id

    @rpc(persisted=True)
    async def charge(self, cents: int) -> int:
        return cents

    @rpc
    async def numbers(self, to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/calls.db"


def program(url: str, name: str, *entities: type[Entity[Any]], timeout: str = "20s") -> Cluster:
    cluster = Cluster(url, runner_name=name, shards=SHARDS, call_timeout=timeout)
    for entity in entities or (Account,):
        cluster.entity(name=getattr(entity, "called", None))(entity)
    return cluster


async def shared(*clusters: Cluster) -> None:
    """Wait until all runners hold some seats."""
    async with asyncio.timeout(120):
        for cluster in clusters:
            await cluster.ready()
        while not all(cluster._acting().seats for cluster in clusters):  # type: ignore[attr-defined] # of runners
            await asyncio.sleep(0.01)


def ids_on(cluster: Cluster, entity: type[Entity[Any]] = Account) -> list[str]:
    """Some entities that live on a runner."""
    return [who for who in map(str, range(100)) if cluster.is_local(cluster.ref(entity, who))]


# The typed face


async def test_a_client_and_runners_share_entities_over_real_sockets(url: str) -> None:
    anna, bert, client = (program(url, name) for name in ("anna", "bert", "client"))
    async with anna, bert, client.connect():
        await shared(anna, bert)
        for who in (ids_on(anna)[0], ids_on(bert)[0]):
            calls = [cluster.ref(Account, who).add() for cluster in (anna, bert, client)]
            assert sorted(await asyncio.gather(*calls)) == [1, 2, 3]
            for cluster in (anna, bert, client):
                assert [number async for number in cluster.ref(Account, who).numbers(3)] == [0, 1, 2]


async def test_call_takes_options_for_one_time(url: str) -> None:
    cluster = program(url, "anna")
    async with cluster:
        account = cluster.ref(Account, "a")
        assert await cluster.call(account.add(2), timeout="5s") == 2
        with pytest.raises(SendTimeout, match=r"no reply from Account/a.sleep on runner anna within 0.05s"):
            await cluster.call(account.sleep(), timeout="50ms")
        with pytest.raises(SendTimeout, match=r"within 0.06s"):
            await cluster.ref(Account, "a", timeout="60ms").sleep()
        with pytest.raises(TypeError, match="not persisted, and has no key"):
            await cluster.call(account.add(), key="k")
        sleeping = asyncio.sleep(1)
        with pytest.raises(TypeError, match="takes a call"):
            await cluster.call(sleeping)
        sleeping.close()
        with pytest.raises(TypeError, match="made by another cluster"):
            await Cluster(url).call(account.add())


async def test_what_cannot_work_is_said_before_anything_is_sent(url: str) -> None:
    cluster = program(url, "anna")
    account = cluster.ref(Account, "a")  # needs nobody
    with pytest.raises(NotStarted):
        await account.add()
    with pytest.raises(MalformedMessage):
        await account.add("much")  # type: ignore[arg-type] # that is the point
    with pytest.raises(TypeError, match="str is no entity of this cluster"):
        cluster.ref(str, "a")  # type: ignore[type-var] # that is the point
    with pytest.raises(ConfigurationError, match="two entities of the name Account"):
        cluster.entity(Account)
    with pytest.raises(ValueError, match="knows no entity 'Acount': there are Account"):
        cluster.shard_of("Acount", "a")


async def test_shard_of_and_is_local(url: str) -> None:
    cluster, client = program(url, "anna"), program(url, "client")
    assert cluster.shard_of(Account, "a") == cluster.shard_of("Account", "a") == client.shard_of(Account, "a")
    assert isinstance(cluster.shard_of(Account, "a"), ShardId)
    async with cluster, client.connect():
        await cluster.ready(timeout="2m")
        assert cluster.is_local(cluster.ref(Account, "a"))
        assert not client.is_local(client.ref(Account, "a"))
        with pytest.raises(TypeError, match="expected a reference"):
            cluster.is_local(Account())


async def test_a_trace_given_by_hand_goes_with_the_call(url: str) -> None:
    """K4: for callers that are no handlers."""
    cluster = program(url, "anna")
    async with cluster:
        with within_cluster(trace_id="of-the-web-request"):
            assert await cluster.ref(Account, "a").trace() == "of-the-web-request"
        assert await cluster.ref(Account, "a").trace() != "of-the-web-request"


async def test_a_runner_that_stops_ends_its_calls_and_the_cluster_starts_anew(url: str) -> None:
    cluster = program(url, "anna")
    for _ in range(2):
        async with cluster:
            assert await cluster.ref(Account, "a").add() == 1


# Two versions of a program, side by side (L3)


class Newer(Account):
    """The next version: one method more, one parameter more."""

    called = "Account"

    @rpc
    async def add(self, by: int = 1, *, twice: bool = False) -> int:
        self.count += by * (2 if twice else 1)
        return self.count

    @rpc
    async def clear(self) -> int:
        self.count = 0
        return self.count


class Novelty(Entity):
    @rpc
    async def use(self) -> str:
        return "used"


async def test_l3_parameters_that_one_side_does_not_know_are_dropped_or_take_their_default(url: str) -> None:
    old, new = program(url, "old"), program(url, "new", Newer)
    async with old, new:
        await shared(old, new)
        on_old, on_new = ids_on(old)[0], ids_on(new, Newer)[0]
        assert await old.ref(Account, on_new).add(2) == 2
        assert await new.ref(Newer, on_new).add(2, twice=True) == 6
        assert await new.ref(Newer, on_old).add(2, twice=True) == 2, "the old program does not know it"


async def test_l3_reg_02_a_new_method_and_a_new_type_wait_for_the_deploy(url: str) -> None:
    """What the owner's program does not know is tried again, until the shard is with one that does."""
    old, new = program(url, "old"), program(url, "new", Newer, Novelty)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(new)
        async with old:
            await shared(old, new)
            on_old = ids_on(old)[0]
            unknown = next(who for who in map(str, range(100)) if not new.is_local(new.ref(Novelty, who)))
            known = "runner old knows Account with add, charge, numbers, sleep, trace"
            with pytest.raises(UnknownEntity, match=rf"no runner knows Account/{on_old}\.clear: .*{known}"):
                await new.ref(Newer, on_old, timeout="300ms").clear()
            calls = [
                asyncio.create_task(new.ref(Newer, on_old).clear()),
                asyncio.create_task(new.ref(Novelty, unknown).use()),
            ]
            await asyncio.sleep(0)
            assert await old.ref(Account, on_old).add() == 1, "what it knows goes on"
        assert await asyncio.gather(*calls) == [0, "used"]


async def test_the_last_answers_of_a_runner_that_left_in_order_still_count(url: str) -> None:
    """The others may read that it is no member any more before its last answers have arrived."""
    anna, bert = program(url, "anna"), program(url, "bert")
    async with anna, bert:
        await shared(anna, bert)
        calling = anna._acting().calling
        assert calling.transport is not None
        adding = asyncio.create_task(anna.ref(Account, ids_on(bert)[0]).add())
        async with asyncio.timeout(120):
            while not calling.transport.is_waited_for:
                await asyncio.sleep(0)
        calling._drop(bert._acting().incarnation)
        assert await adding == 1


async def test_a_program_without_entities_refuses_as_one_that_does_not_know_them(url: str) -> None:
    bare, client = Cluster(url, runner_name="bare", shards=SHARDS), program(url, "client")
    async with bare, client.connect():
        await bare.ready(timeout="2m")
        with pytest.raises(UnknownEntity, match=r"no runner knows Account/a\.add: .*runner bare knows no entities"):
            await client.ref(Account, "a").add()
