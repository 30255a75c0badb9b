"""Stored messages between simulated runners: lost never, applied once, in order, counted (B3, C5, M5, incidents)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from coterie import CoterieError, MessageDead, PersistenceError
from coterie.entities.persisted import inbox
from coterie.testing.loop.seeds import stream
from coterie.testing.run import SeedRun, current_loop
from coterie.testing.simulation import Runner, Simulation, simulate
from tests.simulation.workloads import messages
from tests.simulation.workloads.message_history import ATTEMPTS, LOSSES, judge
from tests.support.history.message_checkers import FirstAttemptsInOrder, WithinBounds
from tests.support.history.message_events import Began, Completed, Gauge, Sent
from tests.support.history.ownership import check

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.testing.loop.seeds import Stream
    from tests.support.history.ownership import Event

TTL_S = 6


@dataclass
class SettledBank:
    """Accounts on settled runners."""

    stage: messages.SimulatedBank
    sim: Simulation
    random: Stream

    def ref(self, who: str = "alice") -> Any:
        return self.stage.cluster.ref(self.stage.account, who)

    def owner(self, who: str = "alice") -> Runner:
        return self.sim.owner(self.ref(who))

    async def send(self, number: str, *, to: str = "alice", think_s: float = 0.0, **when: Any) -> Any:
        call = self.ref(to).deposit(number, 1, think_s)
        sender, from_ns = asyncio.current_task(), self.sim.loop.now_ns
        id_ = await self.stage.cluster.send(call, **when)
        name = "" if sender is None else sender.get_name()
        self.stage.mail.note(Sent(str(id_), to, name, number, from_ns=from_ns, due_ns=1 if when else 0))
        return id_

    def row(self, id_: Any) -> tuple[int, int, str]:
        """Status, attempts and errors."""
        sql = "select status, attempts, errors from messages where id = ?"
        status, attempts, errors = next(iter(self.sim.database.main.execute(sql, (str(id_),))))
        return status, attempts, errors

    def losses(self, id_: Any) -> int:
        """How often its runner was lost when it ran a message alone."""
        row = self.sim.database.main.execute("select losses from messages where id = ?", (str(id_),))
        return int(row.get)

    def is_done(self, *ids: Any) -> bool:
        return all(self.row(id_)[0] == 1 for id_ in ids)

    def began(self, id_: Any = None) -> list[Began]:
        begun = [event for _, event in self.stage.mail.noted if isinstance(event, Began)]
        return [event for event in begun if id_ is None or event.message == str(id_)]

    async def has_begun(self, id_: Any, times: int = 1) -> None:
        await self.sim.wait_until(lambda: len(self.began(id_)) >= times)

    async def is_settled(self, who: str = "alice") -> Runner:
        """The shard of an account is held by a runner that lives."""
        await self.sim.wait_until(lambda: self.owner(who).alive)
        return self.owner(who)


@asynccontextmanager
async def scene(*, runners: int = 3, judged: bool = True, **settings: Any) -> AsyncIterator[SettledBank]:
    """At its end everything is mended, every message has ended, and the history is judged."""
    stage = messages.new_stage(**settings)
    stage.has_defects = False
    async with simulate(stage.cluster, runners=0) as sim:
        stage.watch(sim)
        await sim.start(runners)
        if runners:
            await sim.advance(10)
        yield SettledBank(stage, sim, stream(current_loop().seed, "scene"))
        await sim.calm()
        await messages.all_quiet(stage)
        history = stage.mail.history()
    if judged:
        judge(history)


@pytest.mark.simulated(seeds=8)
async def test_inv_d1_d7_e1_f2_replies_come_to_the_state_at_every_instant_under_all_faults() -> None:
    """B3, M5 to M7: the fixed sample of what `make sim` does by the thousand."""
    await messages.main()


def test_a_seed_of_the_workload_repeats() -> None:
    def digest(seed: int) -> str:
        run = SeedRun(seed)
        run(lambda: messages.main(lasting_s=30, least=1))
        return run.loop.trace.digest()

    assert digest(3) == digest(3)
    assert digest(3) != digest(4)


# A message that kills its process


@pytest.mark.simulated(seeds=4)
async def test_c5_inv_d7_a_message_that_kills_its_process_is_set_aside_and_the_cluster_lives() -> None:
    """Incident 29: losses are counted across crashes; its neighbours, of the same entity too, are done."""
    async with scene(runners=3) as here:
        here.stage.meets = lambda number: here.owner().kill() if number == "poison" else None
        ids = [await here.send("poison", think_s=1)]
        ids += [await here.send(f"n{each}", to=who) for each in range(12) for who in ("alice", "bob", "carol")]
        for _ in range(LOSSES):
            await here.sim.wait_until(lambda: any(not runner.alive for runner in here.sim.runners))
            dead = next(runner for runner in here.sim.runners if not runner.alive)
            await here.sim.advance(here.random.uniform(0, 8))
            dead.start()
        await here.sim.wait_until(lambda: here.row(ids[0])[0] == 2)
        assert len(here.began(ids[0])) == 1 + LOSSES, "the first time nobody suspects it"
        assert f"({LOSSES} of {LOSSES})" in here.row(ids[0])[2]
        await here.sim.wait_until(lambda: here.is_done(*ids[1:]))
        assert sum(here.losses(id_) for id_ in ids[1:]) == 0, "the innocent count nothing"
        with pytest.raises(MessageDead):
            await here.stage.cluster.result(ids[0])


@pytest.mark.simulated(seeds=4)
async def test_c5_a_message_whose_runner_leaves_in_good_order_counts_no_attempt() -> None:
    async with scene() as here:
        id_ = await here.send("n1", think_s=60)
        for _ in range(ATTEMPTS + 2):
            await here.has_begun(id_)
            owner = here.owner()
            await owner.stop()
            owner.start()
            await here.is_settled()
        assert here.row(id_)[:2] == (0, 0)


# Owners that go, freeze, or are cut off


@pytest.mark.simulated(seeds=4)
async def test_incident_2_a_runner_cut_off_from_storage_is_replaced_and_its_commit_refused() -> None:
    """INV-E1, F4, R3: the old handler commits nothing, and the runner comes back with new connections."""
    async with scene() as here:
        first = here.owner()
        id_ = await here.send("n1", think_s=3)
        await here.has_begun(id_)
        first.cut("storage")
        await here.has_begun(id_, times=2)
        await here.sim.wait_until(lambda: here.is_done(id_))
        assert [event.epoch for event in here.stage.mail.history() if isinstance(event, Completed)] == [
            here.began(id_)[-1].epoch
        ]
        first.heal()
        incarnation = first.incarnation
        for runner in here.sim.runners:
            if runner is not first:
                runner.kill()
        second = await here.send("n2")
        await here.sim.wait_until(lambda: here.is_done(second))
        assert here.owner() is first
        assert first.incarnation == incarnation or first.alive


@pytest.mark.simulated(seeds=4)
async def test_incident_3_under_a_rolling_restart_each_message_is_read_within_a_bound() -> None:
    """INV-D1, L4, F6: nothing waits for longer than a move takes, and nothing is lost."""
    async with scene() as here:
        sent: list[tuple[Any, float]] = []

        async def keep_sending() -> None:
            for number in range(1_000):
                sent.append((await here.send(f"n{number}", to=f"account-{number % 10}"), here.sim.loop.time()))
                await asyncio.sleep(0.05)

        sending = asyncio.create_task(keep_sending())
        for runner in here.sim.runners:
            await runner.stop()
            await runner.start()
            await here.sim.advance(4)
        await sending
        await here.sim.wait_until(lambda: here.is_done(*(id_ for id_, _ in sent)), within="10s")
        assert not any(here.row(id_)[1] for id_, _ in sent)


@pytest.mark.simulated(seeds=4)
async def test_incident_12_what_a_pruned_runner_had_in_hand_is_found_also_when_its_name_returns() -> None:
    """INV-D1: its row is gone before anybody looks, and a new process with the same host name takes its place."""
    async with scene() as here:
        owner = here.owner()
        ids = [await here.send(f"n{number}", think_s=0.2) for number in range(6)]
        await here.has_begun(ids[0])
        incarnation = owner.incarnation
        owner.kill()
        here.sim.database.main.execute("delete from runners where id = ?", (incarnation,))
        await owner.start()
        await here.sim.wait_until(lambda: here.is_done(*ids), within="10s")


@pytest.mark.simulated(seeds=12)
async def test_incidents_13_and_29_a_runner_told_to_leave_at_any_moment_loses_nothing_it_had_taken() -> None:
    """INV-L1, D1: between hand-over and start, in a handler, in its commit; none of it counts as an attempt."""
    async with scene() as here:
        owner = here.owner()
        ids = [await here.send(f"n{number}", think_s=0.05) for number in range(8)]
        await here.sim.advance(here.random.uniform(0.001, 0.4))
        await owner.stop()
        await here.sim.wait_until(lambda: here.is_done(*ids), within="5s")
        assert not any(here.row(id_)[1] for id_ in ids)


@pytest.mark.simulated(seeds=4)
async def test_incident_14_a_handler_that_blocks_its_loop_for_three_leases_is_applied_once() -> None:
    """INV-D2, F4: another runs the message meanwhile; nobody crashes, and the late commit is refused."""
    async with scene() as here:
        owner = here.owner()
        id_ = await here.send("n1", think_s=0.5)
        await here.has_begun(id_)
        await owner.block(3 * TTL_S)
        await here.sim.wait_until(lambda: here.is_done(id_))
        await here.sim.wait_until(lambda: owner.alive and owner.started)
        assert len(here.began(id_)) == 2


@pytest.mark.simulated(seeds=10)
async def test_incident_23_a_message_that_falls_due_while_its_shard_moves_runs_once_and_not_early() -> None:
    """INV-E1, D5: the judge compares each beginning with the database's clock."""
    async with scene() as here:
        id_ = await here.send("n1", delay=5)
        await here.sim.advance(here.random.uniform(4.5, 5.05))
        moves = here.owner()
        await here.random.choice([moves.stop, moves.kill, moves.freeze])()
        await here.sim.wait_until(lambda: here.is_done(id_))
        assert len([event for event in here.stage.mail.history() if isinstance(event, Completed)]) == 1


@pytest.mark.simulated(seeds=2)
async def test_incident_28_what_is_due_long_after_every_timeout_runs_once() -> None:
    """INV-D5, D2: ten times the longest time that anything in here waits for."""
    async with scene() as here:
        id_ = await here.send("n1", delay=10 * 60)
        await here.sim.advance(10 * 60 - 1)
        assert not here.began(id_)
        await here.sim.wait_until(lambda: here.is_done(id_), within="2s")
        await here.sim.advance(60)
        assert len(here.began(id_)) == 1


# Ways that do not work


@pytest.mark.simulated(seeds=3)
async def test_incident_18_a_message_that_cannot_be_read_strands_none_of_its_batch() -> None:
    async with scene(runners=0, judged=False) as here:
        ids = [await here.send(f"n{number}") for number in range(10)]
        here.sim.database.main.execute("update messages set payload = x'c1' where id = ?", (str(ids[3]),))
        await here.sim.start(2)
        await here.sim.wait_until(lambda: here.is_done(*ids[:3], *ids[4:]))
        await here.sim.wait_until(lambda: here.row(ids[3])[0] == 2)


@pytest.mark.simulated(seeds=3)
async def test_incident_37_when_hand_overs_are_lost_in_silence_the_sweep_finds_each_message() -> None:
    """INV-D5, R3, GAP-09: within about a second; whoever waits finds the reply in storage."""
    async with scene() as here:
        for runner in here.sim.runners:
            here.sim.network.cut(here.sim.loop.test.name, runner.name)
        ids = [await here.send(f"n{number}", to=f"account-{number}") for number in range(5)]
        await here.sim.wait_until(lambda: here.is_done(*ids), within="2s")
        assert await here.ref("account-6").deposit("n6", 1) == ["n6", 1, 1]


@pytest.mark.simulated(seeds=3)
@pytest.mark.parametrize("way", ["requests", "replies"])
async def test_incident_38_a_database_that_is_silent_ends_each_wait_and_hides_nothing(way: Any) -> None:
    """INV-R3, L1, D6: the sender hears of the doubt, and by the same key it learns what came of it."""
    async with scene() as here:
        here.sim.database.cut(here.sim.loop.test.name, way)
        began_s = here.sim.loop.time()
        with pytest.raises(PersistenceError) as told:
            await here.stage.cluster.call(here.ref().deposit("n1", 1), timeout=1)
        assert told.value.outcome == "unknown"
        assert here.sim.loop.time() - began_s < 6  # the simulated driver gives up after 5 s
        here.sim.database.heal(here.sim.loop.test.name)
        assert await here.ref().deposit("n1", 1) == ["n1", 1, 1]


# Order and bounds


@pytest.mark.simulated(seeds=8)
async def test_m5_inv_e2_messages_of_a_sender_begin_in_order_past_full_mailboxes_and_moves() -> None:
    """The mailbox takes four: most are left in storage meanwhile. The shard moves by a drain, which fails nothing."""
    async with scene(runners=2) as here:
        here.sim.database.weather.slow = 0.0

        async def send_on(sender: str) -> None:
            for number in range(30):
                await here.send(f"{sender}{number}", think_s=here.random.uniform(0, 0.03))
                await asyncio.sleep(here.random.uniform(0, 0.04))  # now there is room, and now there is none

        async with asyncio.TaskGroup() as group:
            for sender in ("a", "b"):
                group.create_task(send_on(sender), name=sender)
            await here.sim.advance(here.random.uniform(0.05, 0.8))
            await here.owner().stop()
        await messages.all_quiet(here.stage)
        assert len(here.began()) == 60
        check(here.stage.mail.history(), FirstAttemptsInOrder())


@pytest.mark.simulated(seeds=2)
async def test_inv_r1_r2_a_backlog_stays_in_storage_beyond_what_memory_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MEMORY_MOST", 20)
    monkeypatch.setattr("coterie.entities.persisted.poller.MEMORY_MOST", 20)
    gauges: list[Event] = []

    def measure(_: str) -> None:
        for host in hosts():
            gauges.append(Gauge("messages in memory", len(host.inbox.works), 20))
            gauges.append(Gauge("of one entity", max(len(each.works) for each in host.inbox.shards.values()), 20))

    async with scene(runners=1) as here:

        def hosts() -> list[Any]:
            return [runner.real.calling.host for runner in here.sim.runners]

        here.stage.meets = measure
        ids = [await here.send(f"n{each}", to=f"account-{each % 30}", think_s=0.02) for each in range(200)]
        await here.sim.wait_until(lambda: here.is_done(*ids))
    assert len(gauges) >= 200
    check(gauges, WithinBounds())


@pytest.mark.simulated(seeds=6)
async def test_inv_d6_a_send_that_was_refused_after_a_try_nobody_knows_of_is_not_said_to_have_failed() -> None:
    async with scene() as here:
        weather = here.sim.database.weather
        weather.error_before, weather.error_after = 0.3, 0.6
        for number in range(20):
            try:
                await here.stage.cluster.call(here.ref().deposit(f"n{number}", 1), timeout=0.2)
                here.stage.mail.sent(f"n{number}", "ok")
            except PersistenceError as error:
                here.stage.mail.sent(f"n{number}", "unknown" if error.outcome == "unknown" else "failed")
            except CoterieError:
                here.stage.mail.sent(f"n{number}", "unknown")
