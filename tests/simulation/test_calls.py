"""Calls between simulated runners: routing, at most once, deadlines, cancellation, hand-over (F1, F4, F7, F8, K4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator  # annotations of rpcs are read at run time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from coterie import (
    Cluster,
    ClusterError,
    ConfigurationError,
    CoterieError,
    Entity,
    EntityNotAssigned,
    MailboxFull,
    RemoteError,
    RunnerUnavailable,
    SendTimeout,
    UnknownEntity,
    current,
    rpc,
)
from coterie.entities.calls.wire import Envelope, encode
from coterie.testing import Runner, Simulation, simulate
from coterie.transport.interface import PeerAddress, Route
from tests.simulation.workloads import calls

if TYPE_CHECKING:
    from collections.abc import Iterator

cluster = Cluster("sqlite://", shards=12, drain="5s", call_timeout="10s")  # one for all, as a program has it


@dataclass
class Notes:
    """What handlers note: they run in this process, whoever runs them."""

    ran: list[tuple[str, str]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    told: list[Any] = field(default_factory=list)
    peak: int = 0


notes = Notes()


@pytest.fixture(autouse=True)
def fresh() -> None:
    notes.__init__()  # type: ignore[misc] # the same object: entities know it


class Overdrawn(Exception):
    """Declared."""


@cluster.entity(mailbox=2)
class Account(Entity):
    count = 0

    @rpc
    async def add(self, by: int = 1) -> int:
        self.count += by
        notes.ran.append((self.id, runner_here()))
        return self.count

    @rpc
    async def think(self, for_s: float) -> str:
        notes.ran.append((self.id, runner_here()))
        try:
            await asyncio.sleep(for_s)
        except asyncio.CancelledError:
            notes.cancelled.append(self.id)
            raise
        return self.id

    @rpc
    async def items(self, things: list[list[int]]) -> list[list[int]]:
        notes.told.append(things)
        things[0].append(99)
        notes.told.append(things)
        return things

    @rpc(errors=[Overdrawn])
    async def charge(self, cents: int) -> None:
        if cents:
            raise Overdrawn(self.id, cents)
        raise ZeroDivisionError("nothing to charge")

    @rpc
    async def context(self) -> list[str | None]:
        found = current()
        return [found.runner_id, str(found.shard), found.entity_type, found.entity_id, found.trace_id, found.message_id]

    @rpc
    async def context_through(self, other: str) -> list[list[str | None]]:
        return [await self.context(), await cluster.ref(Account, other).context()]

    @rpc
    async def call_through(self, way: list[str]) -> int:
        return await cluster.ref(Account, way[0]).call_through(way[1:]) if way else 0

    @rpc
    async def numbers(self, to: int, every_s: float = 0.0) -> AsyncIterator[int]:
        notes.ran.append((self.id, runner_here()))
        try:
            for number in range(to):
                await asyncio.sleep(every_s)
                notes.peak = max(notes.peak, number)
                yield number
        finally:
            notes.cancelled.append(self.id)

    @rpc(errors=[Overdrawn])
    async def broken_numbers(self) -> AsyncIterator[int]:
        yield 1
        raise Overdrawn(self.id)


@cluster.entity
class Farewell(Entity):
    """Calls another entity when it leaves."""

    @rpc
    async def wake(self) -> None:
        """Come to life."""

    async def on_deactivate(self) -> None:
        try:
            notes.told.append(await cluster.ref(Account, self.id).add(0))
        except CoterieError as error:
            notes.told.append(error)


@cluster.entity(group="special")
class Special(Entity):
    @rpc
    async def where(self) -> str:
        return runner_here()


def runner_here() -> str:
    return current().runner_id or ""


def account(who: str, *, timeout: float | None = None) -> Account:
    return cluster.ref(Account, who, timeout=timeout)


async def settled(sim: Simulation, *, shards: int = 12) -> None:
    """Every shard has a holder that lives, and all of those have their share."""

    def is_settled() -> bool:
        alive = [each for each in sim.runners if each.alive]
        counts = [len([seat for seat in each.real.seats if seat.startswith("shard:default")]) for each in alive]
        return sum(counts) == shards and max(counts) - min(counts) <= 1

    await sim.wait_until(is_settled)


def id_of(sim: Simulation, runner: Runner) -> str:
    """An entity that lives on a runner."""
    return next(who for who in ids() if sim.owner(account(who)) is runner)


def ids() -> Iterator[str]:
    return (f"account-{number}" for number in range(10_000))


# Routing


@pytest.mark.simulated(seeds=3)
async def test_route_01_calls_run_on_the_owner_and_a_client_owns_nothing() -> None:
    async with simulate(cluster, runners=3) as sim:
        await settled(sim)
        for runner in sim.runners:
            who = id_of(sim, runner)
            assert [await account(who).add(), await account(who).add()] == [1, 2]
            assert notes.ran[-2:] == [(who, runner.incarnation)] * 2
            assert not cluster.is_local(account(who))
        assert len(await cluster.runners.list()) == 3


@pytest.mark.simulated(seeds=3)
async def test_runners_call_each_other_and_themselves() -> None:
    """F7."""
    async with simulate(cluster, runners=3) as sim:
        await settled(sim)
        here, there, _ = sim.runners
        mine, theirs = id_of(sim, here), id_of(sim, there)

        async def work() -> None:
            assert cluster.is_local(account(mine))
            assert not cluster.is_local(account(theirs))
            assert [await account(mine).add(), await account(theirs).add()] == [1, 1]

        await here.spawn(work())
        assert notes.ran == [(mine, here.incarnation), (theirs, there.incarnation)]


@pytest.mark.simulated(seeds=3)
async def test_route_03_entities_live_on_runners_of_their_group() -> None:
    async with simulate(cluster, runners=0) as sim:
        await sim.start(1, groups="default")
        await sim.start(1, groups="special")
        await sim.wait_until(lambda: all(len(each.real.seats) == 12 for each in sim.runners))
        ref = cluster.ref(Special, "one")
        assert await ref.where() == sim.runners[1].incarnation
        assert sim.owner(ref) is sim.runners[1]
        await account("one").add()
        assert notes.ran == [("one", sim.runners[0].incarnation)]


@pytest.mark.simulated(seeds=3)
async def test_route_04_a_volatile_call_leaves_no_row() -> None:
    """D8: never stored."""
    async with simulate(cluster, runners=1) as sim:
        await account("a").add()
        tables = [row[0] for row in sim.database.main.execute("select name from sqlite_master where type = 'table'")]
        for table in tables:
            assert "account-" not in str(list(sim.database.main.execute(f'select * from "{table}"')))


@pytest.mark.simulated(seeds=3)
async def test_rebal_01_an_entity_that_moved_to_a_newcomer_is_answered_there() -> None:
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        some = [who for who, _ in zip(ids(), range(100), strict=False)]
        for who in some:
            await account(who).add()
        await sim.start(1)
        await settled(sim)
        newcomer = sim.runners[2]
        moved = [who for who in some if sim.owner(account(who)) is newcomer]
        assert moved
        notes.ran.clear()
        for who in moved:
            assert await account(who).add() == 1, "it begins anew: there is no state"
        assert notes.ran == [(who, newcomer.incarnation) for who in moved]


@pytest.mark.simulated(seeds=5)
async def test_f6_no_call_fails_while_all_runners_are_replaced_one_after_the_other() -> None:
    """A runner that leaves says "not mine", and calls move on with what has not run."""
    async with simulate(cluster, runners=3) as sim:
        await settled(sim)
        over = asyncio.Event()

        async def client(number: int) -> int:
            done = 0
            while not over.is_set():
                await account(f"account-{number}").add()
                done += 1
                await asyncio.sleep(0.02)
            return done

        clients = [asyncio.create_task(client(number)) for number in range(20)]
        for runner in list(sim.runners):
            await sim.start(1)
            await settled(sim)
            await runner.stop()
            await settled(sim)
        over.set()
        assert min(await asyncio.gather(*clients)) > 10


@pytest.mark.simulated(seeds=5)
async def test_rebal_03_a_killed_owner_is_replaced_and_its_entities_answer() -> None:
    async with simulate(cluster, runners=3) as sim:
        await settled(sim)
        victim = sim.runners[0]
        who = id_of(sim, victim)
        await account(who).add()
        victim.kill()
        assert await calls_until_answered(who) == 1
        assert notes.ran[-1][1] in [each.incarnation for each in sim.runners[1:]]


async def calls_until_answered(who: str) -> int:
    """As callers do for whom it is safe: again, after an error that says it may have run."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await account(who).add()
            except (RunnerUnavailable, SendTimeout):
                await asyncio.sleep(0.1)


@pytest.mark.simulated(seeds=3)
async def test_a_call_waits_for_an_owner_until_its_deadline() -> None:
    async with simulate(cluster, runners=0) as sim:
        began_s = sim.loop.time()
        with pytest.raises(EntityNotAssigned, match=r"shard default:\d+ of Account/a has no owner"):
            await account("a", timeout=3).add()
        assert 3 <= sim.loop.time() - began_s < 3.1
        calling = asyncio.create_task(account("a").add())
        await sim.advance(1)
        await sim.start(1)
        assert await calling == 1


@pytest.mark.simulated(seeds=3)
async def test_a_client_that_counts_other_shards_is_told_so() -> None:
    """Otherwise it would look for its entities in the wrong places for ever."""
    other = Cluster("sqlite://", shards=5)
    other.entity(name="Account")(Account)
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        client = type(sim.new_client())(other.settings, sim._parts(sim.loop.test))
        with other._participant.bound(lambda: client):
            await client.start()
            refs = [other.ref(Account, f"account-{number}") for number in range(50)]
            with pytest.raises(ConfigurationError, match="shards is 5 here, and 12 in this cluster"):
                await asyncio.gather(*(ref.add() for ref in refs))
            await client.stop()


# At most once


@pytest.mark.simulated(seeds=5)
async def test_d8_a_call_whose_owner_was_killed_may_have_run_and_is_not_sent_again() -> None:
    """XPORT-02: the error names the runner as people do."""
    async with simulate(cluster, runners=3) as sim:
        await settled(sim)
        victim = sim.runners[1]
        who = id_of(sim, victim)
        calling = asyncio.create_task(account(who).think(5))
        await sim.wait_until(lambda: notes.ran)
        victim.kill()
        with pytest.raises((RunnerUnavailable, SendTimeout)) as caught:
            await calling
        assert f"Account/{who}.think" in str(caught.value)
        assert "runner-2" in str(caught.value)
        assert caught.value.retryable
        await sim.advance(10)
        assert notes.ran == [(who, victim.incarnation)]


@pytest.mark.simulated(seeds=5)
async def test_a_frozen_owner_costs_the_call_its_deadline_and_nothing_more() -> None:
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        victim = sim.runners[0]
        who = id_of(sim, victim)
        await account(who).add()
        victim.freeze()
        began_s = sim.loop.time()
        with pytest.raises(SendTimeout, match=f"no reply from Account/{who}.add on runner runner-1 within 2s"):
            await account(who, timeout=2).add()
        assert sim.loop.time() - began_s < 2.1
        await sim.wait_until(lambda: sim.owner(account(who)) is not victim)
        assert await calls_until_answered(who) == 1


@pytest.mark.simulated(seeds=3)
async def test_a_call_to_a_frozen_owner_ends_when_that_is_no_member_any_more() -> None:
    """Not at its deadline: it may have run, so it is not repeated."""
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        victim = sim.runners[0]
        who = id_of(sim, victim)
        await account(who).add()
        victim.freeze()
        began_s = sim.loop.time()
        with pytest.raises(RunnerUnavailable, match=r"runner-1 .*: it is no member of the cluster any more") as caught:
            await account(who, timeout=300).add()
        assert caught.value.sent
        assert sim.loop.time() - began_s < 15
        assert sim.owner(account(who)) is not victim


@pytest.mark.simulated(seeds=3)
async def test_the_first_call_of_an_idle_client_goes_to_whoever_owns_it_now() -> None:
    """Its picture is older than a lease: it is read before anything is sent by it."""
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        victim = sim.runners[0]
        who = id_of(sim, victim)
        await account(who).add()
        victim.freeze()
        await sim.wait_until(lambda: sim.owner(account(who)) is not victim)
        await sim.advance(10)
        began_s = sim.loop.time()
        await account(who, timeout=300).add()
        assert sim.loop.time() - began_s < 2


@pytest.mark.simulated(seeds=3)
async def test_a_call_that_never_left_is_sent_elsewhere() -> None:
    """Nobody listens any more at the address that the client knows."""
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        who = id_of(sim, sim.runners[0])
        await cluster._acting().directory.refresh()
        sim.runners[0].kill()
        assert await cluster.call(account(who).add(), timeout="30s") == 1  # perhaps nobody says that it is dead
        assert len(notes.ran) == 1


@pytest.mark.simulated(seeds=5)
async def test_e5_a_cut_between_runners_moves_no_seat_and_calls_end_typed() -> None:
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        here, there = sim.runners
        who = id_of(sim, there)
        epochs = {seat: here.real.directory.epoch(seat) for seat in (*here.real.seats, *there.real.seats)}
        here.cut("peers")
        began_s = sim.loop.time()
        with pytest.raises((SendTimeout, RunnerUnavailable)):
            await here.spawn(account(who, timeout=20).add())
        assert sim.loop.time() - began_s < 20.1
        await sim.advance(30)
        ran = len(notes.ran)
        assert ran <= 1
        assert await account(who).add() == ran + 1, "the client still reaches it"
        here.heal()
        await here.spawn(calls_until_answered(who))
        assert {seat: here.real.directory.epoch(seat) for seat in epochs} == epochs


@pytest.mark.simulated(seeds=3)
async def test_incident_39_every_reply_goes_to_its_own_caller_whatever_is_cancelled() -> None:
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        tasks = {who: asyncio.create_task(account(who).think(0.01)) for who, _ in zip(ids(), range(300), strict=False)}
        for number, task in enumerate(tasks.values()):
            if number % 3 == 0:
                await asyncio.sleep(0.0003)
                task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        replied = {who: task.result() for who, task in tasks.items() if not task.cancelled()}
        assert len(replied) >= 200
        assert all(who == reply for who, reply in replied.items())


# Cancellation


@pytest.mark.simulated(seeds=3)
@pytest.mark.parametrize("where", ["from elsewhere", "nearby"])
async def test_cancelling_the_caller_reaches_the_handler(where: str) -> None:
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        owner = sim.runners[0]
        caller = owner if where == "nearby" else sim.runners[1]
        who = id_of(sim, owner)
        calling = caller.spawn(account(who).think(1000))
        await sim.wait_until(lambda: notes.ran)
        calling.cancel()
        await sim.wait_until(lambda: notes.cancelled == [who], within="1s")
        assert await account(who).add() == 1


@pytest.mark.simulated(seeds=3)
async def test_a_handler_is_cancelled_when_its_caller_has_died() -> None:
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        who = id_of(sim, sim.runners[0])
        sim.runners[1].spawn(account(who, timeout=300).think(1000))
        await sim.wait_until(lambda: notes.ran)
        sim.runners[1].kill()
        await sim.wait_until(lambda: notes.cancelled == [who], within="60s")


# Isolation, errors, context


@pytest.mark.simulated(seeds=2)
@pytest.mark.parametrize("where", ["from elsewhere", "nearby"])
async def test_nothing_mutable_is_shared(where: str) -> None:
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        caller = sim.runners[0 if where == "nearby" else 1]
        things = [[1]]
        result = await caller.spawn(account(id_of(sim, sim.runners[0])).items(things))
        assert things == [[1]]
        assert result == [[1, 99]]
        assert result is not notes.told[1]
        assert result[0] is not notes.told[1][0]


@pytest.mark.simulated(seeds=2)
@pytest.mark.parametrize("where", ["from elsewhere", "nearby"])
async def test_errors_are_the_same_from_anywhere(where: str) -> None:
    """XPORT-03: a declared error arrives as itself, any other as `RemoteError` with its traceback."""
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        caller, who = sim.runners[0 if where == "nearby" else 1], id_of(sim, sim.runners[0])
        with pytest.raises(Overdrawn) as declared:
            await caller.spawn(account(who).charge(5))
        assert declared.value.args == (who, 5)
        with pytest.raises(RemoteError, match="ZeroDivisionError: nothing to charge") as defect:
            await caller.spawn(account(who).charge(0))
        assert "in charge" in defect.value.remote_traceback
        assert await caller.spawn(account(who).add()) == 1


@pytest.mark.simulated(seeds=2)
@pytest.mark.parametrize("where", ["from elsewhere", "nearby"])
async def test_a_full_mailbox_is_told_to_its_caller(where: str) -> None:
    """INV-E4."""
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        caller, who = sim.runners[0 if where == "nearby" else 1], id_of(sim, sim.runners[0])
        tasks = [caller.spawn(account(who).think(1)) for _ in range(4)]
        with pytest.raises(MailboxFull, match=f"mailbox of Account/{who} is full"):
            await tasks[3]
        assert [await task for task in tasks[:3]] == [who] * 3
        assert len(notes.ran) == 3


@pytest.mark.simulated(seeds=2)
async def test_k4_context_and_trace_follow_the_call_and_leak_nowhere() -> None:
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        here, there = sim.runners
        one, other = id_of(sim, here), id_of(sim, there)
        outer, inner = await account(one).context_through(other)
        assert outer[:4] == [here.incarnation, str(cluster.shard_of(Account, one)), "Account", one]
        assert inner[:4] == [there.incarnation, str(cluster.shard_of(Account, other)), "Account", other]
        assert outer[4] == inner[4] == outer[5], "the first call gives the trace its name"
        assert inner[5] != outer[5]
        again = await account(other).context()
        assert again[4] == again[5] != inner[4]


@pytest.mark.simulated(seeds=2)
async def test_a_call_that_would_wait_for_itself_is_refused_across_runners() -> None:
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        one, other = id_of(sim, sim.runners[0]), id_of(sim, sim.runners[1])
        began_s = sim.loop.time()
        with pytest.raises(RemoteError, match=f"Account/{one} → Account/{other} → Account/{one}"):
            await account(one).call_through([other, one])
        with pytest.raises(RemoteError, match="ReentrantCall"):
            await account(one).call_through([one])
        assert sim.loop.time() - began_s < 1
        assert await account(one).call_through([other]) == 0


@pytest.mark.simulated(seeds=2)
@pytest.mark.parametrize("method", ["__class__", "__init__", "add.__func__", "count", "on_activate", "keep_alive", ""])
async def test_incident_43_only_rpcs_can_be_named_from_outside(method: str) -> None:
    async with simulate(cluster, runners=1) as sim:
        await settled(sim)
        peer = PeerAddress((await cluster.runners.list())[0].address, sim.runners[0].incarnation)
        envelope = encode(Envelope("Account", "a", method, b"\x80", "1" * 32, 5.0))
        with pytest.raises(ClusterError) as caught:
            await cluster._acting().transport.request(peer, Route.CALL, envelope, within_s=5)
        assert type(caught.value).__name__ == ("UnknownEntity" if method else "MalformedMessage")


@pytest.mark.simulated(seeds=2)
async def test_an_entity_that_no_program_knows_is_unknown_at_once_if_nobody_else_could_own_it() -> None:
    async with simulate(cluster, runners=1) as sim:
        await settled(sim)
        newer = Cluster("sqlite://", shards=12, call_timeout="10s")

        @newer.entity
        class Novelty(Entity):
            @rpc
            async def use(self) -> None: ...

        client = type(sim.new_client())(newer.settings, sim._parts(sim.loop.test))
        with newer._participant.bound(lambda: client):
            await client.start()
            began_s = sim.loop.time()
            with pytest.raises(UnknownEntity, match=r"no runner knows Novelty/a\.use"):
                await newer.ref(Novelty, "a").use()
            assert sim.loop.time() - began_s < 1
            await sim.start(1)
            await settled(sim)
            with pytest.raises(UnknownEntity, match=r"no runner knows Novelty/a\.use"):
                await newer.ref(Novelty, "a").use()
            assert sim.loop.time() - began_s > 10
            await client.stop()


# Streams


async def collect(numbers: AsyncIterator[int], into: list[int]) -> None:
    async for number in numbers:
        into.append(number)


@pytest.mark.simulated(seeds=3)
@pytest.mark.parametrize("where", ["from elsewhere", "nearby"])
async def test_strm_06_a_stream_gives_its_items_and_ends(where: str) -> None:
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        caller, who = sim.runners[0 if where == "nearby" else 1], id_of(sim, sim.runners[0])

        async def read() -> list[int]:
            return [number async for number in account(who).numbers(50)]

        assert await caller.spawn(read()) == list(range(50))

        got: list[int] = []
        with pytest.raises(Overdrawn):
            await caller.spawn(collect(account(who).broken_numbers(), got))
        assert got == [1]


@pytest.mark.simulated(seeds=3)
@pytest.mark.parametrize("where", ["from elsewhere", "nearby"])
async def test_a_stream_waits_for_its_reader_and_is_cancelled_with_it(where: str) -> None:
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        caller, who = sim.runners[0 if where == "nearby" else 1], id_of(sim, sim.runners[0])

        async def read_some() -> None:
            async with aclosing(account(who).numbers(1_000_000)) as numbers:  # type: ignore[type-var] # a Stream
                async for number in numbers:
                    if number == 3:
                        await asyncio.sleep(5)
                        return

        await caller.spawn(read_some())
        await sim.wait_until(lambda: notes.cancelled == [who], within="1s")
        assert notes.peak < 10_000, "it ran ahead of its reader"
        assert await account(who).add() == 1


@pytest.mark.simulated(seeds=3)
async def test_shut_04_a_stream_whose_owner_dies_ends_by_an_error_and_is_not_repeated() -> None:
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        victim = sim.runners[0]
        who = id_of(sim, victim)
        got: list[int] = []
        reading = asyncio.create_task(collect(account(who, timeout=5).numbers(100, 0.1), got))
        await sim.wait_until(lambda: len(got) > 3)
        victim.kill()
        with pytest.raises((RunnerUnavailable, SendTimeout)):
            await reading
        assert got == list(range(len(got)))
        assert len(notes.ran) == 1
        assert await calls_until_answered(who) == 1


@pytest.mark.simulated(seeds=3)
async def test_a_stream_finds_an_owner_that_is_new() -> None:
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        who = id_of(sim, sim.runners[0])
        await account(who).add()
        await sim.runners[0].stop()
        assert [number async for number in account(who).numbers(3)] == [0, 1, 2]


@pytest.mark.simulated(seeds=2)
async def test_the_deadline_of_a_stream_is_its_longest_silence() -> None:
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        for runner in sim.runners:
            who = id_of(sim, runner)
            got = [number async for number in account(who, timeout=2).numbers(5, 1.0)]
            assert got == list(range(5))
            with pytest.raises(SendTimeout, match=f"Account/{who}.numbers on runner {runner.name} within 2s"):
                async for _ in account(who, timeout=2).numbers(5, 3.0):
                    pass


# Shutdown


@pytest.mark.simulated(seeds=3)
async def test_shut_01_an_entity_may_call_another_one_while_its_runner_leaves() -> None:
    async with simulate(cluster, runners=2) as sim:
        await settled(sim)
        leaver = sim.runners[0]
        who = next(
            who for who in ids() if sim.owner(account(who)) is not leaver is sim.owner(cluster.ref(Farewell, who))
        )
        await cluster.ref(Farewell, who).wake()
        began_s = sim.loop.time()
        await leaver.stop()
        assert sim.loop.time() - began_s < 4
        assert notes.told == [0]


@pytest.mark.simulated(seeds=3)
async def test_shut_02_incident_6_a_farewell_that_calls_nobody_does_not_keep_the_runner() -> None:
    async with simulate(cluster, runners=1) as sim:
        await settled(sim)
        for who, _ in zip(ids(), range(20), strict=False):
            await cluster.ref(Farewell, who).wake()
        began_s = sim.loop.time()
        await sim.runners[0].stop()
        assert sim.loop.time() - began_s < 4
        assert len(notes.told) == 20
        assert {type(told) for told in notes.told} <= {EntityNotAssigned, int}
        assert any(isinstance(told, EntityNotAssigned) for told in notes.told)


# Everything at once


@pytest.mark.simulated(seeds=12)
async def test_inv_d8_e1_e4_calls_end_in_time_and_run_at_most_once_under_all_faults() -> None:
    await calls.main()


def test_a_seed_of_calls_replays() -> None:
    from tests.support.campaign import run_seed

    seed = run_seed(calls.main, 3, replay=True)
    assert not seed.failure
    assert not seed.diverged
