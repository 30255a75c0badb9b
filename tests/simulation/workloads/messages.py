"""Workload: clients send and await stored messages to accounts with state, while everything breaks.

Keys are repeated on purpose, also with other amounts. Handlers send (a transfer), await other stored calls (a relay),
write SQL of their own (a record), raise declared errors after they changed their state, and have defects now and then;
some always. Volatile calls change state too. Some messages are for later, some are taken back. What comes of it is
judged in `mail`: by the order of commits.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

from coterie import Cluster, CoterieError, Entity, KeyConflict, PersistenceError, Retry, current, rpc
from coterie.testing.loop.seeds import stream
from coterie.testing.run import current_loop
from coterie.testing.simulation import Simulation, simulate
from tests.simulation.workloads.calls import EVERYTHING
from tests.simulation.workloads.message_history import ATTEMPTS, Asked, Book, MessageHistory, Strange, book_of, judge
from tests.support.history.message_events import Over, Sent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coterie.testing.loop.seeds import Stream
    from tests.simulation.workloads.message_history import Outcome

RUNNERS = 5
CLIENTS = 8
LASTING_S = 120
ENTITIES = 10
SHARDS = 6
TIMEOUTS_S = (0.5, 3.0, 10.0)
QUIET_S = 180
"""By when after the last fault every message has ended: leases, five attempts, and what is for later."""


class Overdrawn(Exception):
    """Declared."""


class Defect(Exception):
    """Not declared."""


@dataclass
class SimulatedBank:
    """A cluster with its accounts, and what was noted."""

    cluster: Cluster
    account: type[Any] = Entity
    mail: MessageHistory = field(default_factory=MessageHistory)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    sim: Simulation | None = None
    has_defects: bool = True
    meets: Callable[[str], object] = lambda number: None
    """What a handler meets with, given the number of its message."""

    def watch(self, sim: Simulation) -> None:
        """Before the first runner starts."""
        self.sim = sim
        self.mail.watch(sim)

    @contextmanager
    def running(self, entity: Entity[Book], number: str) -> Iterator[None]:
        """A handler of an account runs."""
        here = current()
        assert here.runner_id is not None
        assert here.epoch is not None
        assert here.attempt is not None
        id_ = str(here.message_id)
        self.mail.began(id_, entity.id, epoch=here.epoch, attempt=here.attempt)
        self._compare(entity, number, (here.runner_id, here.epoch), here.seat)
        self.meets(number)
        try:
            yield
            if self.has_defects:
                self._have_defects(number, here.attempt)
        finally:
            self.mail.note(Over(id_, entity.id, here.epoch))

    def _compare(self, entity: Entity[Book], number: str, owner: tuple[str, int], seat: str | None) -> None:
        """While the seat is held, what is in memory when a handler begins is what is committed [M7]."""
        assert self.sim is not None
        main = self.sim.database.main
        if main.execute("select holder, epoch from seats where name = ?", (seat,)).fetchone() != owner:
            return
        stored = main.execute("select value from states where key = ?", (f"entity-state:Account/{entity.id}",)).get
        committed = Book() if stored is None else book_of(stored)
        if entity.state != committed:
            self.mail.note(Strange(entity.id, number, entity.state, committed))

    def refuse(self, number: str) -> None:
        """By a declared error, after the state has changed."""
        if self.has_defects and crc32(f"refuse {number}".encode()) % 11 == 0:
            raise Overdrawn(number)

    def _have_defects(self, number: str, attempt: int) -> None:
        """After all that a handler does, so that there is something to undo."""
        if current().key is not None and crc32(f"{number}".encode()) % 97 == 0:
            raise Defect(f"{number} always fails")
        if crc32(f"{current_loop().seed} {number} {attempt}".encode()) % 13 == 0:
            raise Defect(f"{number} fails this time")


def new_stage(**settings: Any) -> SimulatedBank:
    """A fresh program."""
    stage = SimulatedBank(Cluster("sqlite://", **{"shards": SHARDS, "drain": "3s", **settings}))
    cluster = stage.cluster

    @cluster.entity(mailbox=4, max_idle="20s", retry=Retry(attempts=ATTEMPTS, base="200ms"))
    class Account(Entity[Book]):
        @rpc(persisted=True, key="number", errors=[Overdrawn])
        async def deposit(self, number: str, cents: int, think_s: float = 0.0) -> list[Any]:
            with stage.running(self, number):
                applied = await self.apply(number, cents, think_s)
                stage.refuse(number)
                return applied

        @rpc(persisted=True)
        async def grant(self, number: str, cents: int) -> list[Any]:
            """The same without a key."""
            with stage.running(self, number):
                return await self.apply(number, cents, 0.0)

        @rpc(persisted=True, key="number")
        async def record(self, number: str, cents: int) -> list[Any]:
            """The same with SQL."""
            with stage.running(self, number):
                async with self.transaction() as transaction:
                    await transaction.execute("insert into effects (number) values ($1)", number)
                return await self.apply(number, cents, 0.0)

        @rpc(persisted=True, key="number", errors=[Overdrawn])
        async def transfer(self, number: str, cents: int, to: str) -> list[Any]:
            """Withdraw here, deposit there."""
            with stage.running(self, number):
                applied = await self.apply(number, -cents, 0.0)
                await cluster.send(cluster.ref(Account, to).deposit(f"{number}+", cents))
                stage.refuse(number)
                return applied

        @rpc(persisted=True, key="number")
        async def relay(self, number: str, cents: int, to: str) -> list[Any]:
            """Await another account's call, under a key that follows from this message."""
            with stage.running(self, number):
                await cluster.ref(Account, to, timeout="5s").grant(f"{number}+", cents)
                return await self.apply(number, -cents, 0.0)

        @rpc
        async def bump(self, number: str) -> int:
            """A volatile call that changes state."""
            with stage.running(self, number):
                self.state.extra += 1
                return self.state.extra

        async def apply(self, number: str, cents: int, think_s: float) -> list[Any]:
            book = self.state
            book.balance += cents
            await asyncio.sleep(think_s)
            return [number, cents, book.balance]

    stage.account = Account
    return stage


async def main(*, lasting_s: float = LASTING_S, runners: int = RUNNERS, least: int = 50) -> int:
    """One seed: faults throughout, then calm, in which every message ends, then judgement."""
    stage = new_stage()
    async with simulate(stage.cluster, runners=0, faults=EVERYTHING) as sim:
        stage.watch(sim)
        await sim.start(runners)
        async with asyncio.TaskGroup() as group:
            for client in range(CLIENTS):
                group.create_task(Client(stage, client).act(until_s=sim.loop.time() + lasting_s))
        await sim.calm()
        for runner in sim.runners:
            sim.network.heal(sim.loop.test.name, runner.name)
        await all_quiet(stage)
        history = stage.mail.history()
    done = judge(history)
    assert done > least, f"only {done} messages are done: the run shows nothing"
    return done


async def all_quiet(stage: SimulatedBank) -> None:
    """Wait until nothing is pending; what never ends is found by the judge."""
    assert stage.sim is not None
    main = stage.sim.database.main
    for _ in range(QUIET_S):
        if not main.execute("select count(*) from messages where status = 0").get:
            return
        await asyncio.sleep(1)


class Client:
    """One of those who send, one call after the other."""

    def __init__(self, stage: SimulatedBank, number: int) -> None:
        self._stage = stage
        self._cluster = stage.cluster
        self._name = f"client {number}"
        self._random: Stream = stream(current_loop().seed, self._name)
        self._deposits: list[tuple[str, str, int]] = []
        self._sending = ""
        """The number of what is being stored."""

    async def act(self, *, until_s: float) -> None:
        """Until that time."""
        often = (self.deposit, self.repeat, self.send)
        acts = (*often, *often, self.move, self.relay, self.record, self.bump, self.send_later, self.conflict)
        while current_loop().time() < until_s:
            await asyncio.sleep(self._random.expovariate(1.0))
            self._sending = ""
            try:
                await self._random.choice(acts)()
            except PersistenceError as error:
                self._note("unknown" if error.outcome == "unknown" else "failed")
            except (CoterieError, Overdrawn):
                self._note("unknown")  # what came of it is in the database

    async def deposit(self) -> None:
        """Await one."""
        number, who, cents = self._new_deposit()
        await self._await(number, self._ref(who).deposit(number, cents))

    async def repeat(self) -> None:
        """Await one that was sent before."""
        if self._deposits:
            number, who, cents = self._random.choice(self._deposits[-4:])
            await self._await(number, self._ref(who).deposit(number, cents))

    async def send(self) -> None:
        """Send some, and wait for one of them."""
        for _ in range(self._random.randint(1, 3)):
            id_ = await self._send(*self._new_deposit())
        self._stage.mail.told(str(id_), await self._cluster.result(id_, timeout=self._timeout_s()))

    async def move(self) -> None:
        """Have money moved from one account to another."""
        number, who, cents = self._new()
        await self._await(number, self._ref(who).transfer(number, cents, self._other()))

    async def relay(self) -> None:
        """Have one account await another: always a later one, or they would wait for each other."""
        number, _, cents = self._new()
        first, second = sorted(self._random.sample(range(ENTITIES), 2))
        await self._await(number, self._ref(f"account-{first}").relay(number, cents, f"account-{second}"))

    async def record(self) -> None:
        """Have SQL committed together with a reply."""
        number, who, cents = self._new()
        await self._await(number, self._ref(who).record(number, cents))

    async def bump(self) -> None:
        """A volatile call."""
        await self._ref(self._other()).bump(f"bump-{next(self._stage.numbers)}")

    async def send_later(self) -> None:
        """Send one for later, and perhaps take it back."""
        id_ = await self._send(*self._new(), delay=self._random.uniform(0.0, 20.0))
        if self._random.random() < 0.4:
            await asyncio.sleep(self._random.uniform(0.0, 10.0))
            self._stage.mail.note(Asked(str(id_)))  # before it is known: its answer may be lost
            await self._cluster.cancel(id_)

    async def conflict(self) -> None:
        """The same key with another amount must not do anything, unless it was never stored before."""
        if not self._deposits:
            return
        number, who, cents = self._random.choice(self._deposits)
        self._stage.mail.sent(number, "unknown")
        try:
            await self._ref(who).deposit(number, cents + 1)
        except KeyConflict:
            return

    async def _await(self, number: str, call: Any) -> None:
        self._sending = number
        self._stage.mail.told(number, await self._cluster.call(call, timeout=self._timeout_s()))
        self._note("ok")

    async def _send(self, number: str, who: str, cents: int, **when: Any) -> Any:
        self._sending = number
        id_ = await self._cluster.send(self._ref(who).deposit(number, cents), **when)
        self._sending = ""
        self._stage.mail.note(Sent(str(id_), who, self._name, number))
        return id_

    def _note(self, outcome: Outcome) -> None:
        if self._sending:
            self._stage.mail.sent(self._sending, outcome)

    def _new_deposit(self) -> tuple[str, str, int]:
        self._deposits.append(self._new())
        return self._deposits[-1]

    def _new(self) -> tuple[str, str, int]:
        return f"n{next(self._stage.numbers)}", self._other(), self._random.randint(1, 99)

    def _other(self) -> str:
        return f"account-{self._random.randrange(ENTITIES)}"

    def _ref(self, who: str) -> Any:
        return self._stage.cluster.ref(self._stage.account, who)

    def _timeout_s(self) -> float:
        return self._random.choice(TIMEOUTS_S)
