"""What is counted where: known work on small clusters, and the figures that have to come of it (H4).

Meters belong to the process, so tests look at what was added.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from coterie import Cluster, Entity, Leader, MailboxFull, RemoteError, Retry, Tick, Workflow, rpc
from coterie.errors import MessageDead, PersistenceError, SendTimeout
from coterie.kernel import metrics
from coterie.storage.group_commit import GroupWriter
from coterie.storage.interface import KvPut
from coterie.testing.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from coterie.kernel.metrics import Meter
    from coterie.storage.group_commit import Group


class Since:
    """How much was added to the meters since it was made."""

    def __init__(self) -> None:
        self._before = _everything()

    def __call__(self, meter: Meter, *labels: str) -> float:
        """What was counted, or how often a histogram has seen something."""
        return self.at_once((meter, labels))[0]

    def at_once(self, *asked: tuple[Meter, tuple[str, ...]]) -> list[float]:
        """The same of several, at one moment: a runner that another test keeps goes on in a thread of its own."""
        now = _everything()
        keys = [(meter.name, labels) for meter, labels in asked]
        return [now.get(key, 0) - self._before.get(key, 0) for key in keys]


def _everything() -> dict[tuple[str, tuple[str, ...]], float]:
    counted = {(each.name, labels): series.value for each in metrics.ALL for labels, series in each.series.items()}
    seen = {
        (each.name, labels): float(sum(spread.counts))
        for each in metrics.ALL
        for labels, spread in each.spreads.items()
    }
    return counted | seen


class Overdrawn(Exception):
    """Declared."""


class Purse(Entity):
    """Does what it is told."""

    @rpc(errors=[Overdrawn])
    async def pay(self, cents: int) -> int:
        if cents > 100:
            raise Overdrawn
        if cents < 0:
            raise RuntimeError("a defect")
        return cents

    @rpc(timeout="2s")
    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @rpc(persisted=True, errors=[Overdrawn])
    async def post(self, cents: int) -> int:
        if cents < 0:
            raise RuntimeError("a defect")
        return await self.pay(cents)


def new_cluster() -> Cluster:
    cluster = Cluster("sqlite://", shards=8, http_listen=None)
    cluster.entity(mailbox=2, retry=Retry(attempts=2, base="100ms"))(Purse)
    return cluster


# Calls


@pytest.mark.simulated(seeds=1)
async def test_h4_calls_are_counted_by_how_they_ended_and_timed() -> None:
    cluster, since = new_cluster(), Since()
    before_s = metrics.CALL_DURATION.spread("Purse", "pay").total
    async with simulate(cluster, runners=2) as sim:
        purses = [cluster.ref(Purse, f"p{number}") for number in range(20)]
        for purse in purses[:10]:
            await purse.pay(1)
        await sim.advance(60)
        for purse in (*purses[:5], *purses[10:], *purses[:5]):  # some live already, and begin at once
            await purse.pay(1)
        assert 0 <= metrics.CALL_DURATION.spread("Purse", "pay").total - before_s < 1
        with pytest.raises(Overdrawn):
            await purses[0].pay(101)
        with pytest.raises(RemoteError):
            await purses[0].pay(-1)
        for outcome, count in {"ok": 30, "declared": 1, "failed": 1}.items():
            assert since(metrics.CALLS, "Purse", "pay", outcome) == count
        assert since(metrics.CALL_DURATION, "Purse", "pay") == 32
        assert since(metrics.ACTIVATIONS, "Purse", "ok") == 20, (
            "a defect drops an instance, and nobody has called since"
        )
        before_s = metrics.CALL_DURATION.spread("Purse", "wait").total
        await purses[0].wait(0.5)
        assert metrics.CALL_DURATION.spread("Purse", "wait").total - before_s == pytest.approx(0.5, abs=0.01)


@pytest.mark.simulated(seeds=1)
async def test_h4_a_mailbox_is_timed_and_what_it_refuses_is_counted() -> None:
    """One runs, two wait for it, the others find it full."""
    cluster, since = new_cluster(), Since()
    async with simulate(cluster, runners=2):
        purse = cluster.ref(Purse, "busy")
        await purse.pay(1)
        waited_s = metrics.MAILBOX_WAIT.spread("Purse").total
        told = await asyncio.gather(*(purse.wait(0.5) for _ in range(5)), return_exceptions=True)
        assert [type(each) for each in told].count(MailboxFull) == 2
        assert since(metrics.MAILBOX_WAIT, "Purse") == 2
        assert metrics.MAILBOX_WAIT.spread("Purse").total - waited_s == pytest.approx(0.5 + 1.0, abs=0.05)
        assert since(metrics.REFUSED, "Purse", "mailbox_full") == 2
        assert since(metrics.SENT_FAILED, "Purse", "mailbox_full") == 2
        with pytest.raises(SendTimeout):
            await purse.wait(60)
        assert since(metrics.SENT_FAILED, "Purse", "send_timeout") == 1
        assert since(metrics.CALLS, "Purse", "wait", "ok") == 3


@pytest.mark.simulated(seeds=1)
async def test_x2_what_nobody_here_knows_is_counted_without_its_name() -> None:
    """RELIABILITY 3.3 #8: a name that another process sends is no name of this program."""
    cluster, since = new_cluster(), Since()
    other = Cluster("sqlite://", shards=8)
    async with simulate(cluster, runners=1) as sim:

        @other.entity
        class Stranger(Entity):
            @rpc(timeout="1s")
            async def hello(self) -> None: ...

        with other._participant.bound(sim.new_client) as client:
            await client.start()
            try:
                with pytest.raises(Exception, match="Stranger"):
                    await other.ref(Stranger, "x").hello()
            finally:
                await client.stop()
        assert since(metrics.REFUSED, "", "unknown_entity") >= 1
        assert not [labels for labels in metrics.REFUSED.series if "Stranger" in labels]


@pytest.mark.simulated(seeds=1)
async def test_h4_persisted_messages_are_counted_by_how_their_attempts_ended() -> None:
    cluster, since = new_cluster(), Since()
    async with simulate(cluster, runners=2) as sim:
        purse = cluster.ref(Purse, "stored")
        assert await purse.post(5) == 5
        with pytest.raises(Overdrawn):
            await purse.post(101)
        with pytest.raises(MessageDead):
            await purse.post(-1)
        await sim.advance(1)
        for outcome, count in {"ok": 1, "declared": 1, "retried": 1, "dead": 1}.items():
            assert since(metrics.MESSAGES, "Purse", "post", outcome) == count
        assert since(metrics.MESSAGES_SENT, "Purse", "post") == 3
        assert since(metrics.CALLS, "Purse", "post", "ok") == 0, "calls are those that nobody stored"
        assert since(metrics.CALL_DURATION, "Purse", "post") == 4
        groups, sizes = since.at_once((metrics.COMMIT_DURATION, ()), (metrics.GROUP_SIZE, ()))
        assert groups > 0
        assert groups == sizes


# Seats, frames, leases


@pytest.mark.simulated(seeds=1)
async def test_h4_a_takeover_is_counted_and_an_eviction_and_frames() -> None:
    """Two runners, eight shards; one is killed, and the other takes what it held."""
    cluster, since = new_cluster(), Since()
    async with simulate(cluster, runners=2) as sim:
        for number in range(20):
            await cluster.ref(Purse, f"p{number}").pay(1)
        assert since(metrics.SEATS_ACQUIRED, "shard") >= 8
        assert since(metrics.TAKEOVERS, "shard") == 0, "they were given, not taken"
        await asyncio.gather(*(cluster.ref(Purse, f"p{number}").pay(1) for number in range(20)))
        frames = since(metrics.FRAMES, "sent")
        assert frames >= 80, "a request and a reply each"
        await sim.wait_until(lambda: since(metrics.FRAMES, "sent") == since(metrics.FRAMES, "received"))
        assert since(metrics.BYTES, "sent") == since(metrics.BYTES, "received")
        assert since(metrics.BYTES, "sent") > frames * 4
        assert since(metrics.CONNECTIONS_OPENED, "us") == since(metrics.CONNECTIONS_OPENED, "peer") >= 2
        victim = sim.owner(cluster.ref(Purse, "p0"))
        held = len([seat for seat in range(8) if sim.owner(f"shard:default:{seat}") is victim])
        await victim.kill()
        await sim.wait_until(lambda: since(metrics.TAKEOVERS, "shard") >= held, within="30s")
        assert since(metrics.TAKEOVERS, "shard") == held
        assert since(metrics.EVICTIONS, "process") + since(metrics.EVICTIONS, "lease") == 1
        await sim.advance(5)
        renewals, margins = since.at_once((metrics.RENEWALS, ("ok",)), (metrics.LEASE_MARGIN, ()))
        assert renewals >= 5
        assert margins == renewals
    assert metrics.CONNECTIONS.of().value >= 0


@pytest.mark.simulated(seeds=1)
async def test_h4_a_database_that_is_away_shows_as_errors_of_renewals() -> None:
    cluster, since = new_cluster(), Since()
    async with simulate(cluster, runners=1) as sim:
        await sim.restart_storage(down="3s")
        await sim.advance(5)
        failed = since(metrics.RENEWALS, "failed")
        assert failed >= 1
        assert sum(since(metrics.STORAGE_ERRORS, "lease", each) for each in ("unreachable", "unknown")) == failed


# Leaders, crons, workflows


@pytest.mark.simulated(seeds=1)
async def test_h4_executions_of_a_singleton_are_counted_timed_and_dated() -> None:
    cluster, since = new_cluster(), Since()
    runs: list[float] = []

    @cluster.singleton("sweeper", every="10s")
    async def sweep(leader: Leader[None]) -> None:
        runs.append(sim.now().timestamp())
        await asyncio.sleep(0.5)
        if len(runs) == 2:
            raise ValueError("the second one")

    async with simulate(cluster, runners=2) as sim:
        await sim.wait_until(lambda: len(runs) >= 4)
        await sim.advance(1)
        labels = "sweeper", "singleton"
        assert since(metrics.EXECUTIONS, *labels) == len(runs)
        assert since(metrics.EXECUTION_DURATION, *labels) == len(runs)
        assert metrics.LAST_EXECUTION.of(*labels).value == pytest.approx(runs[-1], abs=5)  # its machine's clock is off
        metrics.LAST_EXECUTION.of(*labels).value = 0.0
        await sim.wait_until(lambda: metrics.LAST_EXECUTION.of(*labels).value)
        began = metrics.LAST_EXECUTION.of(*labels).value
        await sim.advance(1)
        assert metrics.LAST_EXECUTION.of(*labels).value - began == pytest.approx(0.5, abs=0.1), "its end counts, too"
        assert since(metrics.SINGLETON_FAILURES, "sweeper") == 1


@pytest.mark.simulated(seeds=1)
async def test_h4_a_state_that_cannot_be_read_is_counted() -> None:
    """What is stored is of another type: it is set aside."""
    cluster, since = new_cluster(), Since()

    @cluster.singleton("saver", state=dict[str, int])
    async def save(leader: Leader[dict[str, int]]) -> None:
        await leader.save({"a": 1})
        await asyncio.Event().wait()

    changed = new_cluster()

    @changed.singleton("saver", state=list[int])
    async def save_list(leader: Leader[list[int]]) -> None:
        await asyncio.Event().wait()

    async with simulate(cluster, runners=1) as sim:
        await sim.wait_until(lambda: since(metrics.EXECUTIONS, "saver", "singleton"))
        await sim.advance(1)
        assert since(metrics.STATE_ERRORS, "saver", "singleton") == 0
        sim.cluster = changed
        runner = sim.leader("saver")
        await runner.stop()
        await sim.start()
        await sim.wait_until(lambda: since(metrics.STATE_ERRORS, "saver", "singleton"))
        assert since(metrics.STATE_ERRORS, "saver", "singleton") == 1


@pytest.mark.simulated(seeds=1)
async def test_h4_ticks_are_counted_by_outcome_and_how_late_they_are() -> None:
    cluster, since = new_cluster(), Since()
    ticks: list[int] = []

    @cluster.cron("beat", "@every 1s", overlap="skip")
    async def beat(tick: Tick) -> None:
        ticks.append(1)
        if len(ticks) == 1:
            raise ValueError("the first one")
        if len(ticks) == 2:
            await asyncio.sleep(2.5)

    async with simulate(cluster, runners=2) as sim:
        await sim.wait_until(lambda: len(ticks) >= 5)
        await sim.advance(0.2)
        assert since(metrics.CRON_TICKS, "beat", "failed") == 1
        assert since(metrics.CRON_TICKS, "beat", "skipped") >= 1
        assert since(metrics.CRON_TICKS, "beat", "ran") == len(ticks) - 1
        assert since(metrics.EXECUTIONS, "beat", "cron") == since(metrics.CRON_LATENESS, "beat") == len(ticks)
        assert since(metrics.EXECUTION_DURATION, "beat", "cron") == len(ticks)
        assert metrics.LAST_EXECUTION.of("beat", "cron").value == pytest.approx(sim.now().timestamp(), abs=1.3)


@pytest.mark.simulated(seeds=1)
async def test_h4_workflows_are_counted_by_outcome_and_their_steps() -> None:
    cluster, since = new_cluster(), Since()

    async def double(n: int) -> int:
        if n > 10:
            raise ValueError("too much")
        return 2 * n

    @cluster.workflow
    async def doubling(workflow: Workflow, n: int) -> int:
        found = await workflow.step("double", double, n)
        await workflow.sleep("1m", name="rest")
        return found

    async with simulate(cluster, runners=2):
        run = await cluster.start_workflow(doubling, 4, id="a")
        assert await run.result(timeout="5m") == 8
        bad = await cluster.start_workflow(doubling, 11, id="b")
        with pytest.raises(Exception, match="too much"):
            await bad.result(timeout="5m")
        for outcome, count in {"done": 1, "failed": 1, "suspended": 1}.items():
            assert since(metrics.WORKFLOWS, "doubling", outcome) == count
        assert (since(metrics.STEPS, "ok"), since(metrics.STEPS, "failed")) == (1, 1)


# Storage


async def test_b1_a_write_that_the_fence_refuses_is_counted() -> None:
    """And errors by their outcome, and groups by their size."""
    since, away = Since(), PersistenceError(doing="write", problem="away", outcome="unknown")
    told: Iterator[list[str | None] | PersistenceError] = iter([["fenced"], [None, "fenced"], away])

    async def commit(group: Group) -> Sequence[str | None]:
        found = next(told)
        if isinstance(found, PersistenceError):
            raise found
        return found

    writer = GroupWriter(commit)
    await writer.start()
    put = KvPut("key", b"value", 1)
    await writer.write(put)
    await asyncio.gather(writer.write(put), writer.write(put))
    with pytest.raises(PersistenceError):
        await writer.write(put)
    await writer.stop()
    assert since(metrics.FENCED) == 2
    assert since(metrics.GROUP_SIZE) == since(metrics.COMMIT_DURATION) == 2
    assert since(metrics.STORAGE_ERRORS, "commit", "unknown") == 1


# Jobs


@pytest.mark.simulated(seeds=1)
async def test_h4_jobs_are_counted_by_queue_and_how_they_ended() -> None:
    cluster, since = Cluster("sqlite://", shards=8, http_listen=None), Since()
    emails = cluster.queue("emails", concurrency=3)

    @cluster.task(queue=emails, retry=Retry(attempts=2, base="100ms"))
    async def mail(tenant: str) -> None:
        if tenant != "acme":
            raise RuntimeError("a defect")

    @cluster.task
    async def resize(picture: str) -> str:
        return picture

    async with simulate(cluster, runners=2):
        await asyncio.gather(*(mail.job("acme") for _ in range(5)), resize.job("a.png"))
        with pytest.raises(MessageDead):
            await mail.job("beta")
        for outcome, count in {"ok": 5, "retried": 1, "dead": 1}.items():
            assert since(metrics.JOBS, "emails", "mail", outcome) == count
        assert since(metrics.JOBS, "default:*", "resize", "ok") == 1
        assert since(metrics.JOBS_STARTED, "emails", "mail") == 7
        assert since(metrics.JOBS_STARTED, "default:*", "resize") == 1
        assert since(metrics.JOBS_SENT, "mail") == 6
