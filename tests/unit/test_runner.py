"""A runner's life: what begins and ends in which order, and what becomes of it after an eviction."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from coterie import runner as module
from coterie.client import Client, ClientParts
from coterie.errors import NotReady, PersistenceError, RunnerUnavailable, ShuttingDown
from coterie.kernel.clock import SystemClock, to_datetime
from coterie.kernel.random import Random
from coterie.kernel.service import Service, State
from coterie.kernel.supervisor import FailingTask
from coterie.ownership.admission import Definition
from coterie.ownership.seats import Occupant, Occupy, Tenure, Trust
from coterie.runner import NoOccupant, Runner
from coterie.settings import Settings
from coterie.storage.interface import Claim, ClusterSnapshot, RunnerRow, Storage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from coterie.transport.interface import Wire

Log = list[str]


class FakeOwnership:
    def __init__(self, log: Log) -> None:
        self._log = log

    async def leaving(self, runner: str) -> bool:
        self._log.append(f"leaving {runner}")
        return runner != "just-left"


class NoKeys:
    """Nothing that is stored is encrypted."""

    async def keys(self) -> dict[str, str]:
        return {}


class FakeStorage(Storage):
    kv = machines = user_writes = cast("Any", None)
    payloads = cast("Any", NoKeys())

    def __init__(self, log: Log, incarnation: str) -> None:
        super().__init__(what="storage")
        self.names = [incarnation]
        self.rows: tuple[RunnerRow, ...] = ()
        self._log = log

    async def _start(self) -> None:
        self._log.append("storage starts")

    async def _stop(self) -> None:
        self._log.append("storage stops")

    async def secret(self) -> bytes:
        return bytes(32)

    def rename(self, incarnation: str) -> None:
        self.names.append(incarnation)

    async def view(self) -> ClusterSnapshot:
        return ClusterSnapshot(self.rows, (), "")

    @asynccontextmanager
    async def ownership(self, incarnation: str) -> AsyncIterator[Any]:
        assert incarnation not in self.names, "the session of a runner is its lease keeper's"
        yield FakeOwnership(self._log)


class FakeWire:
    def __init__(self, log: Log) -> None:
        self._log = log

    async def listen(self, factory: Callable[[], asyncio.Protocol]) -> str:
        self._log.append("listens")
        return "127.0.0.1:1"

    async def connect(self, address: str, factory: Callable[[], asyncio.Protocol]) -> object:
        raise ConnectionRefusedError

    def made(self, transport: asyncio.BaseTransport) -> bool:
        return False

    def gone(self, transport: asyncio.BaseTransport) -> None: ...

    async def close(self) -> None:
        self._log.append("listens no more")


class FakeMembership(Service):
    """Registers at once; the test says when it is ready, evicted, or cannot start."""

    log: Log
    made: list[FakeMembership]
    failures: list[Exception]
    leaving: asyncio.Event
    missing = "it has not taken all of its seats yet"

    def __init__(self, settings: Settings, *, incarnation: str, name: str, occupy: Occupy, **parts: Any) -> None:
        super().__init__(what=f"runner {name}")
        self.incarnation = incarnation
        self.occupy = occupy
        self.definitions: Sequence[Definition] = parts["definitions"]
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.trust = Trust(SystemClock())
        self.trust.extend(2**62)
        self.settled = asyncio.Event()
        self.held: dict[str, tuple[Tenure, Occupant]] = {}
        self.made.append(self)

    async def ready(self) -> None:
        await self.settled.wait()

    def tenure(self, seat: str) -> Tenure | None:
        return self.held[seat][0] if seat in self.held else None

    def grant(self, seat: str) -> Tenure:
        tenure = Tenure(Claim(self.incarnation, seat, 1), clean=True, trust=self.trust)
        self.held[seat] = tenure, self.occupy(tenure)
        return tenure

    def evict(self, reason: str) -> None:
        self.trust.end()
        for tenure, occupant in self.held.values():
            tenure.ended = True
            occupant.abandon()
        self.ended.set_result(reason)

    async def leave(self, beside: object = ()) -> None:
        self.log.append("leaves")
        await self.leaving.wait()
        for tenure, occupant in self.held.values():
            await occupant.drain()
            tenure.ended = True

    async def _start(self) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.log.append("registers")

    async def _stop(self) -> None:
        self.log.append("session closes")
        if not self.ended.done():
            self.ended.cancel()


class RunnerEnvironment:
    """Everything around a runner, and what happened in it, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: Log = []
        self.made: list[FakeMembership] = []
        self.failures: list[Exception] = []
        self.leaving = asyncio.Event()
        self.leaving.set()
        world = {"log": self.log, "made": self.made, "failures": self.failures, "leaving": self.leaving}
        monkeypatch.setattr(module, "Membership", type("Membership", (FakeMembership,), world))

    @property
    def membership(self) -> FakeMembership:
        return self.made[-1]

    def parts(self) -> ClientParts:
        return ClientParts(
            clock=SystemClock(),
            chance=Random(1),
            open_storage=lambda incarnation: FakeStorage(self.log, incarnation),
            new_wire=lambda: cast("Wire", FakeWire(self.log)),
            new_aside=lambda: cast("Any", None),
            host="here",
        )

    def runner(self, **options: Any) -> Runner:
        return Runner(Settings.load({"runner_name": "anna"}, environ={}), self.parts(), **options)

    def setup(self, name: str) -> Callable[[], Any]:
        @asynccontextmanager
        async def opened() -> AsyncIterator[None]:
            self.log.append(f"{name} opens")
            task = asyncio.current_task()
            try:
                yield
            finally:
                assert asyncio.current_task() is task, "as anyio demands"
                self.log.append(f"{name} closes")

        return opened


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> RunnerEnvironment:
    return RunnerEnvironment(monkeypatch)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.001)


async def test_it_listens_before_it_registers_and_until_it_has_left(world: RunnerEnvironment) -> None:
    """M2: others must reach a runner as long as they can know of it. Setups embrace all its seats."""
    async with world.runner(setups=[world.setup("first"), world.setup("second")]):
        world.log.append("works")
    assert world.log == [
        *("storage starts", "first opens", "second opens", "listens", "registers", "works"),
        *("leaves", "session closes", "listens no more", "second closes", "first closes", "storage stops"),
    ]


async def test_an_evicted_runner_comes_back_as_another_incarnation(
    world: RunnerEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.runner() as runner:
        old, storage = runner.incarnation, runner.storage
        assert isinstance(storage, FakeStorage)
        first_wires = runner.transport
        world.log.clear()
        world.membership.evict("the event loop was blocked for 9.0 s")
        await until(lambda: len(world.made) == 2 and world.membership.state is State.RUNNING)
        assert world.log == ["session closes", "listens no more", "listens", "registers"]
        assert runner.incarnation == world.membership.incarnation != old
        assert storage.names == [old, runner.incarnation]
        assert runner.transport is not first_wires
        assert runner.storage.state is State.RUNNING
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "the event loop was blocked for 9.0 s" in warned[0].getMessage()


async def test_nothing_of_the_old_life_runs_when_the_new_one_begins(world: RunnerEnvironment) -> None:
    class Watched(NoOccupant):
        def abandon(self) -> None:
            world.log.append("abandoned")

    async with world.runner(occupy=lambda _: lambda _: Watched()) as runner:
        world.membership.grant("shard:default:1")
        assert runner.seats == ["shard:default:1"]
        world.log.clear()
        world.membership.evict("test")
        await until(lambda: len(world.made) == 2 and world.membership.state is State.RUNNING)
        assert world.log == ["abandoned", "session closes", "listens no more", "listens", "registers"]
        assert runner.seats == []
        assert runner.tenure("shard:default:1") is None


async def test_it_comes_back_as_soon_as_the_database_is_there_again(world: RunnerEnvironment) -> None:
    down = PersistenceError(doing="register", problem="connection refused", outcome="unreachable")
    async with world.runner() as runner:
        world.failures += [down, down, RuntimeError("a bug")]
        world.membership.evict("test")
        with pytest.raises(NotReady, match=r"was evicted \(test\)"):
            await runner.ready(within_s=0.01)
        await until(lambda: len(world.made) == 5 and world.membership.state is State.RUNNING)
        assert len({membership.incarnation for membership in world.made}) == 5
        assert all(membership.state is State.STOPPED for membership in world.made[:-1])
        world.membership.settled.set()
        await runner.ready(within_s=120)


async def test_an_error_on_the_way_back_delays_it_and_no_more(
    world: RunnerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The life that could not begin never ends: what begins again must not wait for that."""
    attempt, pauses = Runner._came_back, [RuntimeError("a bug between two attempts")]

    async def attempt_then_fail(runner: Runner, reason: str) -> bool:
        back = await attempt(runner, reason)
        if not back and pauses:
            raise pauses.pop()
        return back

    monkeypatch.setattr(Runner, "_came_back", attempt_then_fail)
    async with world.runner() as runner:
        world.failures.append(PersistenceError(doing="register", problem="connection refused"))
        world.membership.evict("test")
        await until(lambda: len(world.made) == 3 and world.membership.state is State.RUNNING)
        assert not pauses
        assert runner.failure == ""


async def test_a_first_registration_that_is_answered_too_late_is_made_again_if_it_waits_for_its_database(
    world: RunnerEnvironment,
) -> None:
    late = PersistenceError(doing="register", problem="no answer within 1.33s", outcome="unknown")
    refused = PersistenceError(doing="register", problem="permission denied", outcome="refused")
    world.failures.append(late)
    with pytest.raises(PersistenceError, match=r"1\.33s"):
        await world.runner().start()
    world.failures += [late, late]
    waited: list[PersistenceError] = []
    patient = world.runner()
    patient.storage.on_unreachable = waited.append
    async with patient:
        assert waited == [late, late]
        names = cast("FakeStorage", patient.storage).names
        assert len(set(names)) == 3, "under another incarnation each time: it may have been registered"
    world.failures.append(refused)
    hopeless = world.runner()
    hopeless.storage.on_unreachable = waited.append
    with pytest.raises(PersistenceError, match="permission denied"):
        await hopeless.start()


async def test_what_keeps_it_from_coming_back_is_in_the_error(world: RunnerEnvironment) -> None:
    async with world.runner() as runner:
        world.failures += [PersistenceError(doing="register", problem="connection refused")] * 3
        world.membership.evict("test")
        await until(lambda: "connection refused" in runner.missing)
        with pytest.raises(NotReady, match="connection refused"):
            await runner.ready(within_s=0.001)


async def test_it_can_be_stopped_while_it_comes_back(world: RunnerEnvironment) -> None:
    async with world.runner() as runner:
        world.failures += [PersistenceError(doing="register", problem="connection refused")] * 1000
        world.membership.evict("test")
        await until(lambda: len(world.made) > 1)
    assert runner.state is State.STOPPED
    assert runner.left_behind == []
    assert all(membership.state is State.STOPPED for membership in world.made)


async def test_ready_waits_for_the_first_settling_and_says_what_is_missing(world: RunnerEnvironment) -> None:
    async with world.runner() as runner:
        with pytest.raises(NotReady, match=r"not ready after 0.01s: it has not taken all of its seats yet") as caught:
            await runner.ready(within_s=0.01)
        assert isinstance(caught.value, TimeoutError)
        world.membership.settled.set()
        await runner.ready(within_s=120)


async def test_after_an_eviction_it_is_not_ready_until_it_has_settled_again(world: RunnerEnvironment) -> None:
    async with world.runner() as runner:
        world.membership.settled.set()
        await runner.ready(within_s=120)
        world.membership.evict("test")
        await until(lambda: len(world.made) == 2 and world.membership.state is State.RUNNING)
        with pytest.raises(NotReady):
            await runner.ready(within_s=0.01)


async def test_whoever_waits_for_a_runner_that_stops_is_told(world: RunnerEnvironment) -> None:
    runner = world.runner()
    await runner.start()
    waiting = asyncio.create_task(runner.ready())
    await asyncio.sleep(0)
    await runner.stop()
    with pytest.raises(ShuttingDown):
        await waiting


async def test_whoever_waits_for_a_runner_that_cannot_start_is_told(world: RunnerEnvironment) -> None:
    world.failures.append(PersistenceError(doing="register", problem="connection refused"))
    runner = world.runner()
    waiting = asyncio.create_task(runner.ready())
    with pytest.raises(PersistenceError, match="connection refused"):
        await runner.start()
    with pytest.raises(ShuttingDown):
        await waiting


async def test_a_runner_whose_own_task_keeps_failing_ends_and_says_why(
    world: RunnerEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    runner = world.runner()
    told: list[str] = []
    runner.on_failure(lambda: told.append(runner.failure))
    await runner.start()
    runner.supervisor.give_up(FailingTask(name="settle seats", failures=7, error="ValueError: odd"))
    async with asyncio.timeout(120):
        await runner.gone.wait()
    assert told == ["its standing task 'settle seats' failed 7 times within a minute, ValueError: odd"]
    assert f"runner anna ends: {told[0]}" in caplog.text
    assert "leaves" in world.log  # in order
    await runner.stop()
    assert runner.state is State.STOPPED


async def test_an_error_while_it_comes_back_does_not_keep_it_away(world: RunnerEnvironment) -> None:
    """A life is begun again, whatever the error was and wherever it struck."""
    async with world.runner() as runner:
        broken = world.membership.stop

        async def stop() -> None:
            world.membership.stop = broken  # type: ignore[method-assign]
            raise OSError("once")

        world.membership.stop = stop  # type: ignore[method-assign]
        world.membership.evict("test")
        await until(lambda: len(world.made) == 2 and world.membership.state is State.RUNNING)
        assert runner.incarnation == world.membership.incarnation


async def test_what_was_not_given_back_is_known_afterwards(world: RunnerEnvironment) -> None:
    """L1: a process that leaves others waiting for its lease does not claim to have left in order."""

    class Stubborn(NoOccupant):
        async def drain(self) -> None:
            raise PersistenceError(doing="release", problem="connection refused")

    runner = world.runner(occupy=lambda _: lambda _: Stubborn())
    await runner.start()
    world.membership.grant("shard:default:1")
    with pytest.raises(PersistenceError):
        await runner.stop()
    assert runner.gone.is_set()
    assert runner.left_behind == ["shard:default:1"]
    assert world.log[-3:] == ["session closes", "listens no more", "storage stops"]


async def test_it_draws_no_ids_out_of_trust_and_again_in_its_next_life(world: RunnerEnvironment) -> None:
    runner = world.runner()
    assert runner._trusts(), "setups may draw"
    async with runner:
        assert runner._trusts()
        world.failures += [PersistenceError(doing="register", problem="connection refused")]
        world.membership.evict("test")
        assert not runner._trusts()
        await until(lambda: len(world.made) == 3 and world.membership.state is State.RUNNING)
        assert runner._trusts()


class Leaders:
    """A room."""

    kind = "singleton"

    def __init__(self) -> None:
        self.seats: list[str] = []

    def definitions(self) -> Sequence[Definition]:
        return [Definition(seat="singleton:importer", group="default")]

    def occupants(self, runner: Runner, /) -> Occupy:
        def occupy(tenure: Tenure) -> Occupant:
            self.seats.append(tenure.seat)
            return NoOccupant()

        return occupy


async def test_each_room_sits_on_its_own_kind_of_seats_and_the_rest_is_given(world: RunnerEnvironment) -> None:
    leaders, rest = Leaders(), Leaders()
    more = Definition(seat="cron:nightly", group="default")
    async with world.runner(workplaces=[leaders], occupy=rest.occupants, definitions=[more]):
        assert [each.seat for each in world.membership.definitions] == ["cron:nightly", "singleton:importer"]
        world.membership.grant("singleton:importer")
        world.membership.grant("shard:default:7")
    assert leaders.seats == ["singleton:importer"]
    assert rest.seats == ["shard:default:7"]


# Setups


async def test_a_setup_that_fails_ends_the_start_and_closes_those_before_it(world: RunnerEnvironment) -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        if world.log:
            raise OSError("no such host")
        yield

    with pytest.raises(OSError, match="no such host"):
        await world.runner(setups=[world.setup("first"), broken]).start()
    assert world.log == ["storage starts", "first opens", "first closes", "storage stops"]


async def test_setups_stay_open_through_an_eviction(world: RunnerEnvironment) -> None:
    async with world.runner(setups=[world.setup("pool")]):
        world.membership.evict("test")
        await until(lambda: len(world.made) == 2 and world.membership.state is State.RUNNING)
        assert "pool closes" not in world.log
    assert world.log.count("pool opens") == world.log.count("pool closes") == 1


async def test_a_setup_that_hangs_or_fails_when_it_closes_does_not_keep_the_process(
    world: RunnerEnvironment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("coterie.setup.CLOSING_S", 0.01)

    @asynccontextmanager
    async def hangs() -> AsyncIterator[None]:
        yield
        await asyncio.sleep(3600)

    @asynccontextmanager
    async def fails() -> AsyncIterator[None]:
        yield
        raise OSError("broken pipe")

    for setup in (hangs, fails):
        async with world.runner(setups=[setup]):
            pass
        assert world.log[-1] == "storage stops"
    assert "did not close" in caplog.text
    assert "broken pipe" in caplog.text


async def test_a_runner_stopped_while_a_setup_opens_closes_what_is_open(
    world: RunnerEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    entered = asyncio.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        entered.set()
        await asyncio.sleep(3600)
        yield

    runner = world.runner(setups=[world.setup("first"), slow])
    starting = asyncio.create_task(runner.start())
    await entered.wait()
    await runner.stop()
    with pytest.raises(ShuttingDown):
        await starting
    assert world.log == ["storage starts", "first opens", "first closes", "storage stops"]
    assert "did not close" not in caplog.text


# Drains


def row(id: str, name: str) -> RunnerRow:
    return RunnerRow(
        id=id, name=name, address="127.0.0.1:1", host_id="", groups=("default",), started_at=to_datetime(0)
    )


@pytest.fixture
def rows() -> tuple[RunnerRow, ...]:
    return row("id-1", "anna"), row("id-2", "bert"), row("id-3", "bert"), row("just-left", "clara")


@pytest.mark.parametrize(("wanted", "told"), [("anna", "id-1"), ("id-2", "id-2")])
async def test_a_client_drains_a_runner_by_its_name_or_id(
    world: RunnerEnvironment, rows: tuple[RunnerRow, ...], wanted: str, told: str
) -> None:
    async with Client(Settings.load({}, environ={}), world.parts()) as client:
        storage = client.storage
        assert isinstance(storage, FakeStorage)
        storage.rows = rows
        await client.drain(wanted)
        assert await client.runners() == rows
    assert f"leaving {told}" in world.log
    assert "listens" not in world.log


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [("dora", "there are: anna, bert, bert, clara"), ("bert", "the ids id-2, id-3"), ("clara", "just left")],
)
async def test_a_drain_of_nobody_or_of_two_is_refused_with_what_there_is(
    world: RunnerEnvironment, rows: tuple[RunnerRow, ...], wanted: str, problem: str
) -> None:
    async with Client(Settings.load({}, environ={}), world.parts()) as client:
        storage = client.storage
        assert isinstance(storage, FakeStorage)
        storage.rows = rows
        with pytest.raises(RunnerUnavailable, match=problem):
            await client.drain(wanted)
