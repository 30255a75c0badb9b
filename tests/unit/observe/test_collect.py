"""Gathering facts: from whom, how long it may take, what is kept, and what a runner tells about itself (H2, L4)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from coterie import Cluster, Entity, PersistenceError, rpc
from coterie.errors import CoterieError, MalformedMessage, RunnerUnavailable, SendTimeout, ShuttingDown
from coterie.observe.collect import Collector, FactsServer, Free, ask
from coterie.observe.facts import LocalFacts, Usage, usage
from coterie.storage.contracts.incoming_calls import WaitingIncoming
from coterie.storage.contracts.messages import Backlog, LateReply
from coterie.storage.interface import ClusterSnapshot
from coterie.transport.interface import Route
from tests.support.manual_clock import ManualClock
from tests.unit.observe.cluster_facts import NOW, ago, local, row, seat, shards

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from coterie.client import Client
    from coterie.storage.contracts.jobs import QueueRow
    from coterie.storage.contracts.pauses import Pause
    from coterie.transport.interface import Request, Transport

AWAY = PersistenceError(doing="look", problem="the database is away", outcome="unreachable")
LONG_S = 60.0


class Wires:
    """A transport whose runners answer what they are told to."""

    def __init__(self, **answers: Callable[[], Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def request(self, peer: Any, route: int, body: bytes, **_: Any) -> bytes:
        assert (route, body) == (Route.OBSERVE, b"")
        self.asked.append(peer.incarnation)
        answer = self.answers[peer.incarnation.removeprefix("id-").replace("-", "_")]()
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await asyncio.sleep(LONG_S)
        return cast("bytes", answer)


class ObservedProcess:
    """A process: storage that can be away or hang, wires, and what it knows of itself."""

    def __init__(
        self, wires: Wires | None = None, *, facts: LocalFacts | None = None, view: ClusterSnapshot | None = None
    ) -> None:
        self.view_read = view or ClusterSnapshot((row(),), tuple(shards(1, 2)), "")
        self.late: tuple[LateReply, ...] = ()
        self.wrong: Exception | None = None
        self.reads = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.told = facts
        day = timedelta(days=1)
        self.settings = SimpleNamespace(
            heartbeat=timedelta(seconds=30), staleness=2.0, retention=day, key_retention=day
        )
        messages = SimpleNamespace(backlog=self._backlog)
        incoming = SimpleNamespace(backlog=self._incoming)
        jobs = SimpleNamespace(queues=self._queues)
        pauses = SimpleNamespace(list=self._pauses)
        self.storage = SimpleNamespace(
            view=self._view, messages=messages, incoming=incoming, jobs=jobs, pauses=pauses, overdue=self._overdue
        )
        self.transport = wires or Wires(web_1=lambda: encoded(local()))
        self.clock = ManualClock()
        self.paused: list[Pause] = []
        self.collector = Collector(cast("Client", self), self.clock)

    def facts(self) -> LocalFacts | None:
        return self.told

    async def _overdue(self, *, retention_s: float, key_retention_s: float) -> dict[str, float]:
        assert retention_s == key_retention_s == 86400
        return {"units": 7.0}

    async def _pauses(self) -> list[Pause]:
        return self.paused

    async def _view(self) -> ClusterSnapshot:
        self.reads += 1
        await self.go_on.wait()
        if self.wrong is not None:
            raise self.wrong
        return self.view_read

    async def _backlog(self, *, most: int, dead_most: int) -> Backlog:
        assert (most > 0, dead_most > 0) == (True, True)
        return Backlog(NOW, self.late, 3)

    async def _queues(self) -> list[QueueRow]:
        return []

    async def _incoming(self, *, most: int) -> list[WaitingIncoming]:
        assert most > 0
        return [WaitingIncoming("workflow", "order", "w1", 40.0), WaitingIncoming("call", "Account", "w2", 7.0)]


def encoded(facts: Any) -> bytes:
    return msgspec.msgpack.encode(facts)


# Asking


async def asked(answer: Callable[[], Any], *, within_s: float = LONG_S) -> LocalFacts | None:
    return await ask(cast("Transport", Wires(web_1=answer)), row(), within_s=within_s)


async def test_a_runner_is_asked_and_its_answer_read_by_names_also_that_of_a_later_version() -> None:
    assert await asked(lambda: encoded(local())) == local()
    later = msgspec.to_builtins(local()) | {"colour": "green", "rivers": [1, 2]}
    assert await asked(lambda: encoded(later)) == local()
    earlier = {"runner": "id-web-1", "name": "web-1"}
    assert await asked(lambda: encoded(earlier)) == LocalFacts(runner="id-web-1", name="web-1")


@pytest.mark.parametrize(
    "answer",
    [
        RunnerUnavailable(runner="web-1", target="", problem="refused", sent=False),
        SendTimeout(target="", waited_s=0.5),
        MalformedMessage(what="a request on route 5", problem="this runner knows no such route"),
        ShuttingDown(what="x"),
        b"\xff\x00garbage",
        msgspec.msgpack.encode({"runner": 7}),
        b"",
    ],
    ids=["unavailable", "timeout", "route", "stopping", "garbage", "shape", "empty"],
)
async def test_a_runner_that_cannot_be_understood_has_not_answered(answer: Any) -> None:
    """None, never zeros: an older version does not know the route."""
    assert await asked(lambda: answer) is None


async def test_a_runner_that_takes_too_long_has_not_answered() -> None:
    assert await asked(lambda: None, within_s=0.01) is None


def test_whoever_asks_is_told_at_once() -> None:
    replies: list[bytes] = []
    answering = FactsServer(lambda: local(seats=7))
    answering.on_request(cast("Request", SimpleNamespace(reply=replies.append)))
    assert [msgspec.msgpack.decode(reply)["seats"] for reply in replies] == [7]


# Gathering


async def test_everybody_is_asked_but_oneself_and_who_is_silent_stays_unknown() -> None:
    wires = Wires(web_2=lambda: encoded(local("web-2")), web_3=lambda: SendTimeout(target="", waited_s=0.5))
    rows = (row(), row("web-2"), row("web-3"))
    ground = ObservedProcess(wires, facts=local(seats=5), view=ClusterSnapshot(rows, (), ""))
    found = await ground.collector.collect()
    assert found.runners == {"id-web-1": local(seats=5), "id-web-2": local("web-2"), "id-web-3": None}
    assert sorted(wires.asked) == ["id-web-2", "id-web-3"]


async def test_what_waits_is_told_with_its_age_by_the_databases_clock() -> None:
    ground = ObservedProcess()
    ground.late = (LateReply("shard:default:1", "7", ago(42), "Account", "alice", "charge"),)
    found = await ground.collector.collect()
    assert (found.now, found.dead, found.oldest) == (NOW, 3, found.overdue[0])
    (oldest,) = found.overdue
    assert (oldest.id, oldest.what, oldest.late_s) == ("7", "Account/alice.charge", 42.0)
    assert [(each.what, each.waited_s) for each in found.incoming] == [
        ("workflow order", 40.0),
        ("entity Account", 7.0),
    ]


async def test_all_who_ask_at_once_share_one_look_and_the_next_one_looks_anew() -> None:
    ground = ObservedProcess()
    first, second = await asyncio.gather(ground.collector.collect(), ground.collector.collect())
    assert first is second
    assert ground.reads == 1
    await ground.collector.collect()
    assert ground.reads == 2


@pytest.mark.parametrize("part", ["view", "backlog"])
async def test_l4_a_database_that_is_away_is_an_error_of_its_own_and_spoils_nothing(part: str) -> None:
    """Whichever question it does not answer; nobody has to look into a group of errors."""
    ground = ObservedProcess()
    if part == "view":
        ground.wrong = AWAY
    else:
        ground.storage.messages.backlog = raising
    with pytest.raises(PersistenceError, match="away"):
        await ground.collector.health()
    assert (await ground.collector.recent()).facts is None
    ground.wrong, ground.storage.messages.backlog = None, ground._backlog
    assert (await ground.collector.health()).runners == 1


async def raising(**_: Any) -> Backlog:
    raise AWAY


async def test_whoever_gives_up_does_not_spoil_the_look_of_others() -> None:
    ground = ObservedProcess()
    ground.go_on.clear()
    impatient, patient = (asyncio.ensure_future(ground.collector.collect()) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    ground.go_on.set()
    assert (await patient).dead == 3


async def test_stopping_ends_a_look() -> None:
    ground = ObservedProcess()
    ground.go_on.clear()
    look = asyncio.ensure_future(ground.collector.collect())
    while not ground.reads:
        await asyncio.sleep(0)
    await ground.collector.stop()
    with pytest.raises(asyncio.CancelledError):
        await look


# What is kept for probes


async def test_l4_recent_facts_are_not_read_again_and_old_ones_are() -> None:
    ground = ObservedProcess()
    assert (await ground.collector.recent()).age_s == 0.0
    ground.clock.advance(timedelta(seconds=1))
    assert (await ground.collector.recent()).age_s == 1.0
    assert ground.reads == 1
    ground.clock.advance(timedelta(seconds=0.1))
    assert (await ground.collector.recent()).age_s == 0.0
    assert ground.reads == 2


@pytest.mark.parametrize("how", ["hangs", "away"])
async def test_l4_a_probe_does_not_wait_for_the_database_and_judges_by_the_age_of_what_it_has(how: str) -> None:
    ground = ObservedProcess(facts=local())
    assert await ground.collector.readiness() == ()
    ground.clock.advance(timedelta(seconds=11))
    if how == "hangs":
        ground.go_on.clear()
    else:
        ground.wrong = AWAY
    found = await ground.collector.recent(within_s=0.01)
    assert (found.facts is not None, found.age_s) == (True, 11.0)
    async with asyncio.timeout(120):
        (reason,) = await ground.collector.readiness()
    assert reason.problem == "the database was last read 11s ago"
    await ground.collector.stop()


@pytest.mark.parametrize(
    "wrong",
    [{"is_ready": False, "missing": "x"}, {"is_draining": True}, {"storage_problem": "x"}],
    ids=lambda each: "+".join(each),
)
async def test_l4_the_database_is_not_asked_where_it_changes_nothing(wrong: dict[str, Any]) -> None:
    """While a runner starts there is none; while it drains, or the database is away, it would be in vain."""
    ground = ObservedProcess(facts=local(**wrong))
    assert await ground.collector.readiness() != ()
    assert ground.reads == 0


# Since when seats are free


def free(*names: str | None) -> ClusterSnapshot:
    """Shard 1, 2, … and who holds it."""
    return ClusterSnapshot((), tuple(seat(f"shard:default:{number}", name) for number, name in enumerate(names, 1)), "")


def test_a_seat_that_was_seen_with_a_holder_is_known_to_be_free_since_it_was_missed() -> None:
    memory = Free(takeover_s=10.0)
    assert memory.saw(free("a", "a"), 100.0) == {}
    assert memory.saw(free("a", None), 105.0) == {"shard:default:2": 0.0}
    assert memory.saw(free("a", None), 125.0) == {"shard:default:2": 20.0}
    assert memory.saw(free("a", "b"), 130.0) == {}
    assert memory.saw(free("a", None), 131.0) == {"shard:default:2": 0.0}


def test_of_a_seat_that_was_never_seen_with_a_holder_nobody_knows_until_it_was_watched_for_long_enough() -> None:
    memory = Free(takeover_s=10.0)
    for now_s, known in ((100.0, None), (110.0, None), (110.5, 10.5)):
        assert memory.saw(free(None), now_s) == {"shard:default:1": known}


# A runner about itself


def test_what_a_process_takes_is_measured() -> None:
    sum(range(100_000))
    taken = usage()
    assert taken.memory_bytes > 5_000_000
    assert taken.cpu_s > 0
    assert Usage() == (0, 0.0)


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Cluster, asyncio.Event]]:
    """A cluster of one, with an entity that waits."""
    cluster, go_on = Cluster("sqlite://", shards=4, lease_renew="50ms"), asyncio.Event()

    @cluster.entity
    class Account(Entity):
        @rpc
        async def wait(self) -> None:
            await go_on.wait()

    cluster.account = Account  # type: ignore[attr-defined]
    async with cluster:
        await cluster.ready()
        yield cluster, go_on


async def test_h2_a_runner_counts_what_lives_waits_and_runs_on_it() -> None:
    async with running() as (cluster, go_on):
        account = cluster.ref(cluster.account, "a")  # type: ignore[attr-defined]
        calls = [asyncio.ensure_future(account.wait()) for _ in range(3)]
        other = asyncio.ensure_future(cluster.ref(cluster.account, "b").wait())  # type: ignore[attr-defined]
        here = cluster._acting()
        async with asyncio.timeout(120):
            while (facts := here.facts()) is None or (facts.waiting, facts.running) != (2, 2):
                await asyncio.sleep(0.01)
            while facts.clock_offset_s is None:
                await asyncio.sleep(0.01)
                facts = here.facts()
                assert facts is not None
        assert (facts.entities, facts.seats, facts.calls) == ({"Account": 2}, 4, 0)
        assert (facts.is_ready, facts.missing, facts.is_draining) == (True, "", False)
        assert 0 < (facts.lease_left_s or 0) <= 4.5
        assert facts.storage_s is not None
        assert abs(facts.clock_offset_s) < 1
        assert facts.memory_bytes > 5_000_000
        go_on.set()
        await asyncio.gather(*calls, other)
        facts = here.facts()
        assert facts is not None
        assert (facts.calls, facts.waiting, facts.running) == (4, 0, 0)
        health = await cluster.health()
        assert (health.runners, health.owned_shards, health.entities) == (1, 4, 2)
        assert [reason for reason in health.reasons if reason.status == "unhealthy"] == []
        assert await here.collector.readiness() == ()
    facts = here.facts()
    assert facts is not None
    assert facts.is_draining


async def test_a_runner_that_has_not_started_says_what_is_missing() -> None:
    cluster = Cluster("sqlite://")
    runner = cluster._program.new_runner(cluster.settings)
    facts = runner.facts()
    assert (facts.is_ready, facts.missing, facts.lease_left_s) == (False, "it is not started", None)
    assert [reason.problem for reason in await runner.collector.readiness()] == ["it is not ready: it is not started"]


async def test_health_of_a_cluster_that_is_not_started_says_so() -> None:
    with pytest.raises(CoterieError, match="not started"):
        await Cluster("sqlite://").health()
