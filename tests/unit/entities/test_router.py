"""Routing: whose shard it is, how old the picture may be, how often it is read, and what is worth another attempt."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec
import pytest

from coterie.entities.calls import router
from coterie.entities.calls.router import Router, error_for_caller, may_run_elsewhere
from coterie.errors import (
    CoterieError,
    EntityNotAssigned,
    MailboxFull,
    PersistenceError,
    RunnerUnavailable,
    SendTimeout,
    ShuttingDown,
    UnknownEntity,
)
from coterie.kernel.ids import shard_number
from coterie.ownership.directory import Directory
from coterie.storage.interface import ClusterSnapshot  # noqa: TC001 a fixture's field
from tests.support.manual_clock import ManualClock
from tests.unit.ownership.rows import held, runner, shards, view

ME = "a"


@dataclass
class RoutingProcess:
    """A process with a directory, and tables that it may read."""

    view: ClusterSnapshot = field(default_factory=lambda: view([runner("a"), runner("b")], shards(4)))
    reads_s: list[float] = field(default_factory=list)
    broken: bool = False
    incarnation: str = ME

    def __post_init__(self) -> None:
        self.directory = Directory(self.read, ManualClock())
        self.routing = Router(self, shards=4, lease_s=6)
        self.routing.keeps_itself = False  # a client's needs a loop

    async def read(self) -> ClusterSnapshot:
        self.reads_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.001)
        if self.broken:
            raise PersistenceError(doing="read", problem="it is down")
        return self.view

    def give(self, holder: str) -> None:
        """Let one runner hold everything, at the next epoch."""
        epoch = self.view.seats[0].epoch + 1
        names = {seat.name: holder for seat in self.view.seats}
        seats = [msgspec.structs.replace(seat, epoch=epoch) for seat in held(self.view.seats, names)]
        self.view = view(self.view.runners, seats)


def test_an_entity_is_on_the_shard_that_its_name_says() -> None:
    ground = RoutingProcess()
    for who in map(str, range(20)):
        shard = ground.routing.find("Account", who, "default")
        assert shard.id.number == shard_number("Account", who, 4)
        assert shard is ground.routing.find("Account", who, "default")
    assert ground.routing.find("Special", "1", "special").id.group == "special"


def test_route_08_a_change_of_the_picture_is_seen_by_the_next_call() -> None:
    ground = RoutingProcess()
    shard = ground.routing.find("Account", "x", "default")
    assert (shard.peer, shard.is_mine) == (None, False)
    ground.give("b")
    ground.directory.learn(ground.view)
    shard = ground.routing.find("Account", "x", "default")
    assert shard.peer is not None
    assert shard.peer.incarnation == "b"
    ground.give(ME)
    ground.directory.learn(ground.view)
    shard = ground.routing.find("Account", "x", "default")
    assert (shard.peer, shard.is_mine) == (None, True)


def test_what_is_remembered_of_entities_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "_ENTITIES_MOST", 100)
    ground = RoutingProcess()
    for who in range(1_000):
        ground.routing.find("Account", str(who), "default")
    assert sum(map(len, ground.routing._found.values())) <= 100
    assert ground.routing.find("Account", "7", "default").id.number == shard_number("Account", "7", 4)


def test_what_another_runner_knows_counts_if_it_is_newer() -> None:
    ground = RoutingProcess()
    ground.give("a")
    ground.directory.learn(ground.view)
    shard = ground.routing.find("Account", "x", "default")
    assert not ground.routing.learn(shard, "b", 2), "as old as what is known"
    assert not ground.routing.learn(shard, "c", 9), "a runner that is not known here"
    assert ground.routing.learn(shard, "b", 3)
    ground.routing.resolve(shard)
    assert shard.peer is not None


def test_only_runners_of_the_group_that_stay_count_as_others() -> None:
    ground = RoutingProcess()
    rows = [runner("a"), runner("b"), runner("c", groups=("special",)), runner("d", leaving=True)]
    ground.directory.learn(view(rows, []))
    assert [row.id for row in ground.routing.others("default", than="a")] == ["b"]
    assert ground.routing.others("special", than="c") == []


@pytest.mark.parametrize("groups", [("special", "default"), ("default", "special"), ("a", "special", "b", "default")])
def test_a_runner_of_several_groups_counts_in_each_of_them(groups: tuple[str, ...]) -> None:
    ground = RoutingProcess()
    ground.directory.learn(view([runner("a"), runner("b", groups=groups), runner("c", groups=("a",))], []))
    assert [row.id for row in ground.routing.others("default", than="a")] == ["b"]
    assert [row.id for row in ground.routing.others("special", than="a")] == ["b"]


@pytest.mark.simulated(seeds=3)
async def test_all_who_wait_share_readings_with_pauses_that_grow() -> None:
    ground = RoutingProcess()

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + 10
        while loop.time() < until_s:
            await ground.routing.wait_for_change(within_s=until_s - loop.time())

    await asyncio.gather(*(wait() for _ in range(100)))
    pauses = [after - before for before, after in zip(ground.reads_s, ground.reads_s[1:], strict=False)]
    assert ground.reads_s[0] < 0.01, "the first one at once"
    assert 0.05 <= pauses[0] < 0.1
    assert min(pauses) >= 0.05
    assert max(pauses) < 0.6
    assert len(ground.reads_s) < 40
    await ground.routing.stop()


@pytest.mark.simulated(seeds=3)
async def test_a_change_that_others_tell_of_wakes_those_who_wait() -> None:
    ground = RoutingProcess()
    ground.broken = True
    waiting = asyncio.create_task(ground.routing.wait_for_change(within_s=60))
    await asyncio.sleep(0.0005)
    ground.directory.learn_grants("b", [("shard:default:1", 9)])
    await asyncio.sleep(0.0001)
    assert waiting.done()
    await ground.routing.stop()


@pytest.mark.simulated(seeds=3)
async def test_waiting_ends_with_its_time_whatever_the_database_does() -> None:
    ground = RoutingProcess()
    ground.broken = True
    loop = asyncio.get_running_loop()
    until_s = loop.time() + 3
    while loop.time() < until_s:
        await ground.routing.wait_for_change(within_s=until_s - loop.time())
    assert loop.time() - until_s < 0.01
    await ground.routing.stop()


@pytest.mark.simulated(seeds=1)
async def test_a_client_doubts_a_picture_that_is_seconds_old_and_a_runner_does_not() -> None:
    """Nobody tells clients of changes; runners are told."""
    ground = RoutingProcess()
    ground.routing.keeps_itself = True
    ground.directory.learn(ground.view)
    assert 1 < ground.routing.fresh_until_s - asyncio.get_running_loop().time() < 5
    told = RoutingProcess()
    told.directory.learn(told.view)
    assert told.routing.fresh_until_s == float("inf")
    await ground.routing.stop()
    await told.routing.stop()


@pytest.mark.simulated(seeds=3)
async def test_a_picture_older_than_a_lease_is_read_before_anything_is_sent_by_it() -> None:
    """All who send meanwhile wait for that one reading; a younger one is read beside them."""
    ground, loop = RoutingProcess(), asyncio.get_running_loop()
    ground.routing.keeps_itself = True
    await ground.directory.refresh()
    await asyncio.sleep(3)
    await ground.routing.refresh(within_s=20)
    assert len(ground.reads_s) == 1, "not read yet"
    await asyncio.sleep(7)
    ground.give("b")
    await asyncio.gather(*(ground.routing.refresh(within_s=20) for _ in range(5)))
    assert ground.routing.find("Account", "x", "default").peer is not None
    assert (len(ground.reads_s), ground.routing.fresh_until_s > loop.time()) == (3, True)
    await asyncio.sleep(7)
    ground.broken = True
    await ground.routing.refresh(within_s=20)
    assert ground.routing.fresh_until_s > loop.time(), "while the database is away the old picture has to do"
    await ground.routing.stop()


# What to do after an attempt


UNSENT = RunnerUnavailable(runner="f" * 32, target="x", problem="nobody listens", sent=False)
SENT = RunnerUnavailable(runner="f" * 32, target="x", problem="the connection broke", sent=True)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (UNSENT, True),
        (SENT, False),
        (UnknownEntity(target="Account/a.new"), True),
        (SendTimeout(target="x", waited_s=1.0), False),
        (MailboxFull(entity="Account/a", waiting=3), False),
        (ShuttingDown(what="the transport"), False),
        (EntityNotAssigned(entity="Account/a", shard="default:1"), False),
    ],
)
def test_d8_only_what_provably_did_not_run_is_worth_another_attempt(error: CoterieError, again: bool) -> None:
    assert may_run_elsewhere(error) is again


def told(error: CoterieError, *, stopping: bool = False) -> CoterieError:
    return error_for_caller(error, what="Account/a.add", runner="anna", waited_s=2.0, stopping=stopping)


def test_errors_name_the_call_and_the_runner_as_people_do() -> None:
    assert str(told(SENT)).startswith("runner anna cannot be reached for Account/a.add: the connection broke")
    late = told(SendTimeout(target=f"Account/a.add on runner {'f' * 32}", waited_s=0.3, hint="it was not sent"))
    assert str(late) == "no reply from Account/a.add on runner anna within 2s: it was not sent"
    full = MailboxFull(entity="Account/a", waiting=3)
    assert told(full) is full


def test_the_loss_of_ones_own_connections_may_have_cost_a_call_that_ran() -> None:
    lost = told(ShuttingDown(what="the transport"))
    assert isinstance(lost, RunnerUnavailable)
    assert lost.sent
    assert isinstance(told(ShuttingDown(what="the transport"), stopping=True), ShuttingDown)
