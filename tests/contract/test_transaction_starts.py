"""`start_workflow` in a transaction of an entity, a leader or a tick is part of its commit, on each engine [B3]."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster, Entity, KeyConflict, PersistenceError, RemoteError, Retry, WorkflowNotFound, rpc
from coterie.client import Client
from coterie.storage.user_transaction import Collected, UserTransaction
from coterie.work import occupants

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from coterie import Leader, Tick, Transaction, Workflow
    from coterie.storage.contracts.messages import Commit, Committed

    Body = Callable[[Transaction], Awaitable[Any]]

WORKS = ("rpc", "stored rpc", "leader", "tick")


class Program:
    """Work of each kind that runs what a test gives it in a transaction."""

    def __init__(self, url: str) -> None:
        self.cluster = cluster = Cluster(url, shards=2, call_timeout="30s", transaction_limit="20s")
        self.attempts = 0
        self.ran: list[str] = []
        self._body: Body | None = None
        self._leader: asyncio.Queue[tuple[Body, asyncio.Future[Any]]] = asyncio.Queue()
        self._tick: asyncio.Queue[tuple[Body, asyncio.Future[Any]]] = asyncio.Queue()
        program = self

        @cluster.workflow
        async def fulfil(workflow: Workflow, number: int) -> int:
            program.ran.append(workflow.id)
            return number

        @cluster.entity(retry=Retry(attempts=2, base="10ms"))
        class Shop(Entity):
            @rpc
            async def sell(self) -> Any:
                async with self.transaction() as sql:
                    return await program.run(sql)

            @rpc(persisted=True)
            async def sell_stored(self) -> Any:
                async with self.transaction() as sql:
                    return await program.run(sql)

            @rpc
            async def sell_in_two_parts(self, number: int) -> None:
                async with self.transaction() as sql:
                    await sql.execute("insert into orders (id) values ($1)", number)
                await self.cluster.start_workflow(fulfil, number, id=f"{number}")
                with pytest.raises(WorkflowNotFound):
                    await self.cluster.workflow_handle(fulfil, f"{number}").status()

            @rpc
            async def create(self) -> None:
                async with self.transaction() as sql:
                    await sql.execute("create table if not exists orders (id integer)")

            @rpc
            async def orders(self) -> list[int]:
                async with self.transaction() as sql:
                    return [row["id"] for row in await sql.fetch("select id from orders order by id")]

        @cluster.singleton("desk")
        async def desk(leader: Leader[None]) -> None:
            while True:
                await program.tell(leader, *await program._leader.get())

        @cluster.cron("nightly", "@yearly")
        async def nightly(tick: Tick) -> None:
            await program.tell(tick, *await program._tick.get())

        self.fulfil, self.shop = fulfil, cluster.ref(Shop, "a")

    async def run(self, sql: Transaction) -> Any:
        self.attempts += 1
        assert self._body is not None
        return await self._body(sql)

    async def tell(self, work: Any, body: Body, told: asyncio.Future[Any]) -> None:
        """For those whose transactions end with their block."""
        try:
            async with work.transaction() as sql:
                value = await body(sql)
        except Exception as error:
            told.set_exception(error)
        else:
            told.set_result(value)

    async def do(self, work: str, body: Body) -> Any:
        """What the transaction of a work returns, or raises."""
        self._body = body
        if work == "rpc":
            return await self.shop.sell()
        if work == "stored rpc":
            return await self.shop.sell_stored()
        told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        (self._leader if work == "leader" else self._tick).put_nowait((body, told))
        if work == "tick":
            await self.cluster.crons.trigger("nightly")
        return await told

    def order(self, number: int) -> Body:
        """A row, and a run that belongs to it and is not there before the commit."""

        async def order(sql: Transaction) -> str:
            await sql.execute("insert into orders (id) values ($1)", number)
            handle = await self.cluster.start_workflow(self.fulfil, number, id=f"{number}")
            with pytest.raises(WorkflowNotFound):
                await handle.status()
            return handle.id

        return order

    async def result(self, number: int) -> int | None:
        """What a run has returned; None: there is none."""
        try:
            return await self.cluster.workflow_handle(self.fulfil, f"{number}").result(timeout="2m")
        except WorkflowNotFound:
            return None


@pytest.fixture(params=["memory", "file", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "sqlite://" if request.param == "memory" else f"sqlite:///{tmp_path}/work.db"


@asynccontextmanager
async def running(place: str) -> AsyncIterator[Program]:
    program = Program(place)
    async with asyncio.timeout(120), program.cluster:
        await program.shop.create()
        yield program


async def test_a_run_is_there_with_the_rows_of_its_transaction(place: str) -> None:
    async with running(place) as program:
        for number, work in enumerate(WORKS):
            assert await program.do(work, program.order(number)) == f"{number}"
        await program.shop.sell_in_two_parts(4)
        assert [await program.result(number) for number in range(5)] == [0, 1, 2, 3, 4]
        assert await program.shop.orders() == [0, 1, 2, 3, 4]


async def test_a_block_that_raises_leaves_neither(place: str) -> None:
    async with running(place) as program:
        for number, work in enumerate(WORKS):

            async def fail(sql: Transaction, number: int = number) -> None:
                await program.order(number)(sql)
                raise ZeroDivisionError("by intent")

            with pytest.raises(Exception, match="by intent"):
                await program.do(work, fail)
        assert [await program.result(number) for number in range(4)] == [None] * 4
        assert await program.shop.orders() == []


async def test_a_run_that_begins_later_is_stored_with_the_rows(place: str) -> None:
    async with running(place) as program:
        cluster, fulfil = program.cluster, program.fulfil

        async def start(sql: Transaction) -> None:
            await cluster.start_workflow(fulfil, 1, id="later", delay="1h", tags={"order": "7"})
            for number in (2, 3):
                await cluster.start_workflow(fulfil, number, id="debounced", debounce="50ms")

        await program.do("rpc", start)
        (later,) = await cluster.workflows.list(tag=("order", "7"))
        assert (later.status, later.starts_at is not None) == ("suspended", True)
        assert await cluster.workflow_handle(fulfil, "debounced").result(timeout="1m") == 3, "the last one counts"
        assert "later" not in program.ran


async def test_an_id_that_is_used_is_the_same_run_or_a_conflict(place: str) -> None:
    """As outside, by the payload: at once, or at the commit if it came meanwhile."""
    async with running(place) as program:
        cluster, fulfil = program.cluster, program.fulfil
        await cluster.start_workflow(fulfil, 1, id="1")

        async def repeat(sql: Transaction) -> None:
            for id_ in ("1", "2"):
                await cluster.start_workflow(fulfil, 1, id=id_)
                assert (await cluster.start_workflow(fulfil, 1, id=id_)).id == id_
                with pytest.raises(KeyConflict, match=id_):
                    await cluster.start_workflow(fulfil, 7, id=id_)

        await program.do("rpc", repeat)
        assert [await program.result(number) for number in (1, 2)] == [1, 1]
        for number, work in enumerate(("rpc", "leader", "tick"), 3):
            wanted = asyncio.Event()
            rival = asyncio.create_task(start(program, wanted, number))

            async def meet(sql: Transaction, number: int = number, wanted: Any = wanted, rival: Any = rival) -> None:
                await cluster.start_workflow(fulfil, number, id=f"{number}")
                wanted.set()
                await rival
                await sql.execute("insert into orders (id) values ($1)", number)

            with pytest.raises(RemoteError if work == "rpc" else KeyConflict, match="workflow 'fulfil'"):
                await program.do(work, meet)
            assert await program.result(number) == 100
        assert await program.shop.orders() == []


async def start(program: Program, wanted: asyncio.Event, number: int) -> None:
    """With another payload, from outside, while the transaction is open."""
    await wanted.wait()
    await program.cluster.start_workflow(program.fulfil, 100, id=f"{number}")


@pytest.mark.parametrize("payloads", [(7, 7), (7, 8)], ids=["same", "other"])
async def test_of_two_transactions_that_start_one_id_at_once_one_starts_it(
    place: str, monkeypatch: pytest.MonkeyPatch, payloads: tuple[int, int]
) -> None:
    """Both have asked for it before one of them commits: the other one goes on with that run, or loses its rows too."""
    async with running(place) as program:
        both = asyncio.Barrier(2)
        orders: list[list[str]] = []
        right = UserTransaction._commit

        async def commit(self: UserTransaction, write: Commit, collected: Collected) -> Committed:
            orders.append([start.id for start in collected.starts])
            return await right(self, write, collected)

        monkeypatch.setattr(UserTransaction, "_commit", commit)

        def order(row: int, *ids: str) -> Body:
            async def body(sql: Transaction) -> None:
                for id_ in ids:
                    await program.cluster.start_workflow(program.fulfil, payloads[row], id=id_)
                await both.wait()
                await sql.execute("insert into orders (id) values ($1)", row)

            return body

        ends = await asyncio.gather(
            program.do("leader", order(0, "1", "2")), program.do("tick", order(1, "2", "1")), return_exceptions=True
        )
        done = [row for row, end in enumerate(ends) if end is None]
        refused = [end for end in ends if isinstance(end, KeyConflict)]
        assert (len(done), len(refused)) == ((2, 0) if payloads[0] == payloads[1] else (1, 1)), ends
        assert orders == [["1", "2"]] * 2, "in one order, or they could wait for each other [M3]"
        assert [await program.result(number) for number in (1, 2)] == [payloads[done[0]]] * 2
        assert sorted(program.ran) == ["1", "2"]
        assert await program.shop.orders() == done


@pytest.mark.parametrize("happened", [True, False], ids=["committed", "not committed"])
async def test_a_commit_whose_answer_is_lost_leaves_both_or_neither(
    place: str, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    """As if its process were killed: the hint is lost too, and the run is found; a second attempt starts no other."""
    right = UserTransaction._commit
    lost: list[Committed | None] = []

    async def commit(self: UserTransaction, write: Commit, collected: Collected) -> Committed:
        if lost or not collected.starts:
            return await right(self, write, collected)
        await (right(self, write, collected) if happened else self.rollback())
        lost.append("written" if happened else None)
        raise PersistenceError(doing="commit", problem="the connection broke", outcome="unknown")

    async def wake(self: Client, seat: str, *, about: str = "", fresh: bool = False) -> None:
        """A hint that gets lost."""

    monkeypatch.setattr(UserTransaction, "_commit", commit)
    monkeypatch.setattr(Client, "wake", wake)
    monkeypatch.setattr(occupants, "_POLL_S", 0.1)
    async with running(place) as program:
        assert await program.do("stored rpc", program.order(1)) == "1"
        assert (lost, program.attempts) == ((["written"], 1) if happened else ([None], 2))
        assert (await program.result(1), await program.shop.orders()) == (1, [1])
