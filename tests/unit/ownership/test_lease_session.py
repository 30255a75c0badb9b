"""The lease on its session: renewals, lost sessions, self-eviction, with the session and the thread played by hand."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import PersistenceError, StorageReplaced
from coterie.kernel.clock import SystemClock
from coterie.kernel.supervisor import Supervisor
from coterie.ownership.lease import LeasePolicy, LeaseTimes
from coterie.ownership.lease_thread import LeaseKeeper, retry_until_done
from coterie.ownership.runner_health import RunnerHealth
from coterie.ownership.seats import Trust
from coterie.storage.interface import Renewal
from tests.unit.ownership.test_eviction import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from coterie.errors import Outcome

MS = 1_000_000
TIMES = LeaseTimes(ttl_ns=60_000 * MS, renew_ns=10 * MS, margin_ns=1_000 * MS, stall_ns=30_000 * MS)
RENEWAL = Renewal(1, False, (), "", "stamp", datetime(2025, 1, 1, tzinfo=UTC))


def trouble(outcome: Outcome = "unreachable") -> PersistenceError:
    return PersistenceError(doing="test", problem="test", outcome=outcome)


class Here:
    """Stands in for the thread: all on one loop."""

    async def run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await work()

    def tell(self, callback: Callable[..., object], *args: object) -> None:
        asyncio.get_running_loop().call_soon(callback, *args)

    def stack(self) -> str:
        return ""


class Session:
    """The dedicated session. `errors` are raised by the next calls."""

    witnessed = True
    leases_only = False
    generation = 4

    def __init__(self) -> None:
        self.opened = self.closed = self.renewals = self.left = 0
        self.opening: list[Exception] = []
        self.errors: list[BaseException] = []
        self.renewal: Renewal | None = RENEWAL

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Session]:
        if self.opening:
            raise self.opening.pop(0)
        self.opened += 1
        try:
            yield self
        finally:
            self.closed += 1

    async def register(self, *_: Any, ttl_s: float) -> None:
        assert ttl_s == 60.0

    async def renew(self, *, ttl_s: float) -> Renewal | None:
        assert ttl_s == 60.0
        self.renewals += 1
        self._fail()
        return self.renewal

    async def leave(self) -> None:
        self.left += 1
        self._fail()

    async def view(self) -> str:
        self._fail()
        return "view"

    def _fail(self) -> None:
        if self.errors:
            raise self.errors.pop(0)


class KeptLease:
    """A lease that is kept."""

    def __init__(self, times: LeaseTimes = TIMES) -> None:
        clock = SystemClock()
        self.session = Session()
        self.trust = Trust(clock)
        self.vitals = RunnerHealth(clock, silence_s=10.0)
        self.keeper = LeasePolicy(times)
        self.present: list[str] = []
        self.renewed: list[Renewal] = []
        self.ended: list[str | StorageReplaced] = []
        self.lease_keeper = LeaseKeeper(
            self.keeper,
            open=self.session.open,  # type: ignore[arg-type] # a stand-in
            presence=self._presence,
            aside=Here(),  # type: ignore[arg-type] # the same
            trust=self.trust,
            clock=clock,
            ttl_s=60.0,
            vitals=self.vitals,
            on_renewed=lambda renewal, _: self.renewed.append(renewal),
            on_ended=self.ended.append,
            supervisor=Supervisor(),
        )

    @asynccontextmanager
    async def _presence(self) -> AsyncIterator[None]:
        self.present.append("here")
        yield
        self.present.append("gone")

    async def view(self) -> Any:
        return await self.lease_keeper.ask(lambda session: session.view())

    async def register(self) -> None:
        await self.lease_keeper.register(None, [])  # type: ignore[arg-type]

    @asynccontextmanager
    async def living(self) -> AsyncIterator[asyncio.Task[None]]:
        await self.register()
        task = asyncio.create_task(self.lease_keeper.live())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])


# What has to be done at last


async def test_what_may_work_later_is_tried_again_and_the_rest_raises() -> None:
    answers: list[Any] = [trouble(), trouble("unknown"), trouble("refused"), 7]

    async def work() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert await retry_until_done(work, what="test") == 7
    for error in (StorageReplaced(doing="test", problem="test"), KeyError("x")):
        answers = [error, 7]
        with pytest.raises(type(error)):
            await retry_until_done(work, what="test")
        assert answers == [7]


# The session


async def test_registering_begins_trust_on_a_session_that_is_witnessed() -> None:
    stage = KeptLease()
    assert not stage.trust.holds
    await stage.register()
    assert (stage.trust.holds, stage.trust.connected, stage.lease_keeper.generation) == (True, True, 4)
    assert stage.trust.left_s <= 59.0, "the margin is taken off"
    assert stage.vitals.storage_s is not None


@pytest.mark.parametrize(
    ("witnessed", "leases_only", "may_start"), [(True, False, True), (False, True, True), (False, False, False)]
)
async def test_nothing_new_is_started_without_a_lock_where_there_are_locks(
    witnessed: bool, leases_only: bool, may_start: bool
) -> None:
    stage = KeptLease()
    stage.session.witnessed, stage.session.leases_only = witnessed, leases_only
    await stage.register()
    assert stage.trust.connected is may_start


@pytest.mark.parametrize(
    ("error", "is_closed"),
    [(trouble("refused"), False), (trouble("unknown"), True), (trouble("unreachable"), True), (KeyError("x"), True)],
)
async def test_a_session_in_doubt_is_closed_and_another_one_opened(error: Exception, is_closed: bool) -> None:
    stage = KeptLease()
    await stage.register()
    stage.session.errors = [error]
    with pytest.raises(type(error)):
        await stage.view()
    assert (stage.session.closed, stage.trust.connected) == (int(is_closed), not is_closed)
    assert await stage.view() == "view"
    assert (stage.session.opened, stage.lease_keeper.sessions) == (1 + is_closed, 1 + is_closed)
    assert stage.present == ["here"], "the sign of life outlasts sessions"
    assert stage.trust.holds, "the lease has not ended"


async def test_after_a_failed_try_to_open_it_others_fail_at_once_for_a_while() -> None:
    stage = KeptLease()
    stage.session.opening = [trouble(), trouble("refused")]
    for _ in range(2):
        with pytest.raises(PersistenceError) as raised:
            await stage.view()
        assert raised.value.outcome == "unreachable"
    assert len(stage.session.opening) == 1, "the second did not try"
    stage.session.opening = []

    async def opens() -> bool:
        try:
            return bool(await stage.view() == "view")
        except PersistenceError:
            return False

    async with asyncio.timeout(120):
        while not await opens():
            await asyncio.sleep(0.01)


async def test_a_file_that_was_replaced_ends_this_incarnation_for_good() -> None:
    stage = KeptLease()
    await stage.register()
    error = StorageReplaced(doing="test", problem="test")
    stage.session.errors = [error]
    with pytest.raises(StorageReplaced):
        await stage.view()
    await asyncio.sleep(0)
    assert (stage.ended, stage.trust.holds, stage.session.closed) == ([error], False, 1)
    assert stage.keeper.state == "ended"


async def test_closing_ends_trust_the_session_and_the_sign_of_life() -> None:
    stage = KeptLease()
    await stage.register()
    await stage.lease_keeper.close()
    assert (stage.trust.holds, stage.session.closed, stage.present) == (False, 1, ["here", "gone"])


# The lease


async def test_it_is_renewed_again_and_again_and_the_runner_is_told() -> None:
    stage = KeptLease()
    async with stage.living():
        until_ns = stage.trust.until_ns
        await until(lambda: len(stage.renewed) >= 3)
    assert stage.trust.until_ns > until_ns
    assert stage.vitals.clock_offset_s is not None, "renewals tell the time of the database"
    assert not stage.ended


async def test_a_renewal_that_fails_is_said_once_per_outage_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = KeptLease()
    async with stage.living():
        stage.session.errors = [trouble("refused"), trouble("refused")]
        await until(lambda: not stage.session.errors and stage.keeper.state == "kept")
        assert stage.vitals.storage_problem == ""
        stage.session.errors = [trouble("refused")]
        await until(lambda: not stage.session.errors and stage.keeper.state == "kept")
    warnings = [each for each in caplog.records if each.levelname == "WARNING" and "renewed" in each.message]
    assert len(warnings) == 2
    assert not stage.ended


async def test_what_nobody_expected_fails_the_renewal_and_the_keeper_begins_again() -> None:
    stage = KeptLease()
    async with stage.living() as task:
        stage.session.errors = [KeyError("x")]
        await until(lambda: stage.vitals.storage_problem)
        assert "KeyError" in stage.vitals.storage_problem
        await until(lambda: stage.keeper.state == "kept")
        assert not task.done()
    assert stage.session.closed == 1


async def test_a_keeper_that_begins_again_while_it_renewed_goes_on_renewing(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, renewing = KeptLease(), asyncio.Event()
    renew, report = stage.session.renew, stage.lease_keeper._pulse

    async def hang(*, ttl_s: float) -> Renewal | None:
        renewing.set()
        await asyncio.Event().wait()
        return await renew(ttl_s=ttl_s)

    def fail(*_: object) -> None:
        if renewing.is_set():
            monkeypatch.undo()
            raise KeyError("x")

    monkeypatch.setattr(stage.session, "renew", hang)
    monkeypatch.setattr(stage.lease_keeper._aside, "tell", fail)
    async with stage.living() as task:
        await until(lambda: renewing.is_set() and stage.session.renewals > 2)
        assert stage.lease_keeper._pulse == report
        assert not task.done()
    assert not stage.ended


async def test_one_whose_row_is_gone_is_over() -> None:
    stage = KeptLease()
    async with stage.living() as task:
        stage.session.renewal = None
        await asyncio.wait_for(task, 20)
        await asyncio.sleep(0)
    assert stage.ended == ["another runner found this one dead and evicted it"]
    assert not stage.trust.holds


@pytest.mark.parametrize("fails", [False, True])
async def test_one_whose_loop_stands_still_says_where_and_then_gives_itself_up(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stage = KeptLease(
        LeaseTimes(ttl_ns=60_000 * MS, renew_ns=30_000 * MS, margin_ns=1_000 * MS, stall_ns=600 * MS, stack_ns=20 * MS)
    )
    stage.lease_keeper._pulse = lambda since_ns: None  # type: ignore[method-assign]
    await stage.register()
    stage.session.errors = [trouble("refused")] if fails else []
    await asyncio.wait_for(stage.lease_keeper.live(), 20)
    await asyncio.sleep(0)
    assert stage.session.left == 1
    assert not stage.trust.holds
    [reason] = stage.ended
    assert "the event loop was blocked for" in str(reason)
    assert "(unknown)" in caplog.text, "nobody knows where"
    assert ("could not delete its row" in caplog.text) is fails


async def test_a_turn_of_the_loop_is_a_sign_of_its_life() -> None:
    stage = KeptLease()
    before_ns = stage.lease_keeper._pulse_ns
    stage.lease_keeper._pulse(before_ns)
    assert stage.lease_keeper._pulse_ns >= before_ns
    assert stage.vitals.lag_s >= 0.0
