"""Calls through a host: results, errors, defects, contexts, cancellation, deadlines, re-entry (F1, F2, K4, INV-D8)."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest

from coterie.entities.entity import Entity
from coterie.entities.rpc import rpc
from coterie.errors import (
    MalformedMessage,
    RemoteError,
    RunnerFull,
    RunnerUnavailable,
    SendTimeout,
    UnknownEntity,
)
from coterie.kernel.clock import to_datetime
from coterie.kernel.context import ClusterContext, current, within_cluster
from tests.unit.entities.local_host import LocalHost, NotMine, until

seen: list[Any] = []
tint: ContextVar[str] = ContextVar("tint", default="none")


@pytest.fixture(autouse=True)
def fresh() -> None:
    seen.clear()


class Overdrawn(Exception):
    """A declared error."""


class Desk(Entity):
    """Does what it is told."""

    calls = 0

    @rpc(errors=[Overdrawn])
    async def do(self, what: str) -> int:
        self.calls += 1
        await getattr(self, f"_{what}")()
        return self.calls

    @rpc
    async def lie(self) -> int:
        return "five"  # type: ignore[return-value] # that is the point

    @rpc
    async def paint(self, colour: str) -> str:
        before = tint.get()
        tint.set(colour)
        await asyncio.sleep(0)
        assert tint.get() == colour
        return before

    @rpc
    async def paint_at_once(self, colour: str) -> str:
        before = tint.get()
        tint.set(colour)
        return before

    @rpc
    async def trace(self) -> str | None:
        return current().trace_id

    async def _nothing(self) -> None:
        pass

    async def _yield(self) -> None:
        await asyncio.sleep(0)

    async def _overdraw(self) -> None:
        raise Overdrawn("by 5")

    async def _crash(self) -> None:
        raise ZeroDivisionError("division by zero")

    async def _crash_late(self) -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError("division by zero")

    async def _cancel_itself(self) -> None:
        raise asyncio.CancelledError

    async def _cancel_its_task(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def _exit(self) -> None:
        raise SystemExit(3)

    async def _exit_late(self) -> None:
        await asyncio.sleep(0)
        raise SystemExit(3)

    async def _hang(self) -> None:
        seen.append("hangs")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    async def _limit_itself(self) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()

    async def _remember(self) -> None:
        seen.append(current())

    async def _ignore(self) -> None:
        seen.append("hangs")
        while not seen.count("enough"):
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                seen.append("ignored")


async def test_a_call_is_answered_with_its_result() -> None:
    ground = LocalHost(Desk)
    assert [await ground.call("a", "do", how) for how in ("nothing", "yield", "nothing")] == [1, 2, 3]
    assert ground.host.counts.replied == ground.host.counts.delivered == 3
    await ground.host.stop()


async def test_handlers_that_never_wait_share_a_task_and_those_that_wait_have_their_own() -> None:
    ground = LocalHost(Tasked)
    at_once = await asyncio.gather(*(ground.call(f"e{number}", "task") for number in range(50)))
    late = await asyncio.gather(*(ground.call(f"e{number}", "task_after_a_wait") for number in range(50)))
    assert len(set(at_once)) == 1
    assert len(set(late)) == 50
    await ground.host.stop()


tasks: list[Any] = []


class Tasked(Entity):
    @rpc
    async def task(self) -> int:
        return self._number()

    @rpc
    async def task_after_a_wait(self) -> int:
        before = self._number()
        await asyncio.sleep(0)
        assert self._number() == before
        return before

    def _number(self) -> int:
        task = asyncio.current_task()
        if task not in tasks:
            tasks.append(task)  # kept, so that no number is used again
        return tasks.index(task)


async def test_a_declared_error_is_a_result_and_the_instance_stays() -> None:
    ground = LocalHost(Desk)
    with pytest.raises(Overdrawn, match="by 5"):
        await ground.call("a", "do", "overdraw")
    assert await ground.call("a", "do", "nothing") == 2
    assert ground.host.counts.activations == 1
    await ground.host.stop()


@pytest.mark.parametrize("how", ["crash", "crash_late", "cancel_itself", "exit", "exit_late"])
async def test_a_defect_reaches_its_caller_and_drops_the_instance_and_nobody_else_notices(how: str) -> None:
    """DEF-01, as a volatile call has it: `RemoteError`, nothing is replayed, the next call finds a new instance."""
    ground = LocalHost(Desk)
    assert await ground.call("a", "do", "nothing") == 1
    assert await ground.call("b", "do", "nothing") == 1
    asked = [ground.ask("a", "do", each) for each in (how, "nothing", "nothing")]
    with pytest.raises(RemoteError) as caught:
        await asked[0].future
    assert caught.value.type_name in ("ZeroDivisionError", "CancelledError", "SystemExit")
    assert [await each.future for each in asked[1:]] == [1, 2]
    assert await ground.call("b", "do", "nothing") == 2
    await ground.host.stop()


async def test_the_traceback_of_a_defect_begins_with_the_handler() -> None:
    ground = LocalHost(Desk)
    with pytest.raises(RemoteError) as caught:
        await ground.call("a", "do", "crash_late")
    first = caught.value.remote_traceback.splitlines()[1]
    assert "test_host.py" in first
    await ground.host.stop()


async def test_a_handler_that_cancels_its_own_task_cancels_no_other() -> None:
    ground = LocalHost(Desk)
    asked = [ground.ask("a", "do", "cancel_its_task"), *(ground.ask(f"e{n}", "do", "yield") for n in range(20))]
    assert [await each.future for each in asked] == [1] * 21
    await ground.host.stop()


async def test_timeouts_inside_of_handlers_hit_nobody_else() -> None:
    ground = LocalHost(Desk)
    asked = [ground.ask(f"e{n}", "do", "limit_itself" if n % 2 else "nothing") for n in range(20)]
    assert [await each.future for each in asked] == [1] * 20
    await ground.host.stop()


async def test_with_several_at_once_a_defect_leaves_the_others_of_its_entity_running() -> None:
    """DEF-02, as a volatile call has it: X is neither replayed nor cut short."""
    ground = LocalHost((Slow, {"concurrency": 2}))
    gate = gates["x"] = asyncio.Event()
    x = ground.ask("x", "wait")
    await until(lambda: seen == ["waits"])
    with pytest.raises(RemoteError):
        await ground.call("x", "crash")
    assert await ground.call("x", "lives") == 2
    gate.set()
    assert await x.future == 1
    await until(lambda: seen == ["waits", "goodbye 1"])
    await ground.host.stop()


gates: dict[str, asyncio.Event] = {}
lives: dict[str, int] = {}


class Slow(Entity):
    async def on_activate(self) -> None:
        self.life = lives[self.id] = lives.get(self.id, 0) + 1

    async def on_deactivate(self) -> None:
        seen.append(f"goodbye {self.life}")

    @rpc
    async def wait(self) -> int:
        seen.append("waits")
        await gates[self.id].wait()
        return self.life

    @rpc
    async def crash(self) -> None:
        raise ZeroDivisionError

    @rpc
    async def lives(self) -> int:
        return self.life


async def test_a_result_that_does_not_fit_its_annotation_is_a_defect_of_that_call_alone() -> None:
    """XPORT-05."""
    ground = LocalHost(Desk)
    with pytest.raises(RemoteError, match=r"result of Desk\.lie"):
        await ground.call("a", "lie")
    assert await ground.call("a", "do", "nothing") == 1
    await ground.host.stop()


async def test_a_payload_that_does_not_fit_is_refused_before_the_handler_runs() -> None:
    """F1: also at the receiver."""
    ground = LocalHost(Desk)
    with pytest.raises(MalformedMessage, match=r"Desk\.do"):
        await ground.call("a", "do", payload=b"\x81\xa4what\x05")
    assert await ground.call("a", "do", "nothing") == 1
    await ground.host.stop()


@pytest.mark.parametrize(("type_name", "method"), [("Desk", "undo"), ("Chair", "do")])
async def test_an_unknown_type_or_method_is_refused(type_name: str, method: str) -> None:
    ground = LocalHost(Desk)
    with pytest.raises(UnknownEntity, match=f"no runner knows {type_name}/a.{method}"):
        await ground.ask_for(type_name, "a", method).future
    await ground.host.stop()


# Contexts


async def test_the_context_is_complete_in_a_handler() -> None:
    """K4."""
    ground = LocalHost(Desk)
    asked = ground.ask("alice", "do", "remember", within_s=40.0, key="k1", trace_id="t1", attempt=1)
    await asked.future
    found: ClusterContext = seen[0]
    assert found.runner_id == "incarnation-1"
    assert found.shard in {shard.id for shard in ground.shards}
    assert (found.entity_type, found.entity_id, found.epoch) == ("Desk", "alice", 1)
    assert (found.message_id, found.key, found.attempt, found.trace_id) == (asked.message_id, "k1", 1, "t1")
    assert found.deadline is not None
    left = found.deadline - to_datetime(ground.clock.wall_ns())
    assert timedelta(seconds=20) < left <= timedelta(seconds=40)
    await ground.host.stop()


@pytest.mark.parametrize("method", ["paint", "paint_at_once"])
async def test_what_one_handler_sets_no_other_one_sees(method: str) -> None:
    """ROUTE-05: neither the next of the same entity, nor another one, nor the caller."""
    ground = LocalHost(Desk)
    asked = [ground.ask(f"e{number % 3}", method, f"colour {number}") for number in range(30)]
    assert {await each.future for each in asked} == {"none"}
    assert tint.get() == "none"
    await ground.host.stop()


async def test_callers_leave_nothing_of_their_context_behind() -> None:
    """ROUTE-05: what crosses is what the call carries: "A", then nothing."""
    ground = LocalHost(Desk)
    tint.set("of the caller")
    try:
        assert await ground.call("a", "paint", "red") == "none"
    finally:
        tint.set("none")
    with within_cluster(trace_id="A"):
        assert await ground.call("a", "trace", trace_id="A") == "A"
        assert await ground.call("a", "trace") is None
    await ground.host.stop()


# Re-entry


async def test_a_call_that_would_wait_for_itself_is_refused_at_once() -> None:
    ground = LocalHost(Caller)
    Caller.ground = ground
    with pytest.raises(RemoteError, match="ReentrantCall") as caught:
        await ground.call("a", "ring", ["b", "a"])
    assert "Caller/a → Caller/b → Caller/a" in caught.value.problem
    with pytest.raises(RemoteError, match="ReentrantCall"):
        await ground.call("a", "ring", ["a"])
    assert await ground.call("a", "ring", ["b", "c"]) == "c"
    await ground.host.stop()


async def test_a_call_behind_a_handler_that_has_ended_waits_for_nobody() -> None:
    """A task that outlives its handler may call the entity, which is not waiting for it."""
    ground = LocalHost(Caller)
    Caller.ground = ground
    assert await ground.call("a", "leave_behind") == "left"
    assert await Caller.behind == "a"
    await ground.host.stop()


async def test_a_call_behind_a_stranger_waits_for_its_turn() -> None:
    """The entity is busy, but not with what awaits this call."""
    ground = LocalHost(Caller)
    Caller.ground = ground
    assert await ground.call("a", "leave_behind") == "left"
    pause = ground.ask("a", "pause")
    assert await Caller.behind == "a"
    assert pause.future.done()
    await ground.host.stop()


async def test_with_several_at_once_an_entity_may_call_itself() -> None:
    ground = LocalHost((Caller, {"concurrency": 2}))
    Caller.ground = ground
    assert await ground.call("a", "ring", ["a"]) == "a"
    await ground.host.stop()


class Caller(Entity):
    ground: LocalHost
    behind: asyncio.Task[str]

    @rpc
    async def ring(self, ids: list[str]) -> str:
        if not ids:
            return self.id
        answer: str = await Caller.ground.onward(ids[0], "ring", ids[1:])
        return answer

    @rpc
    async def pause(self) -> None:
        await asyncio.sleep(0.1)

    @rpc
    async def leave_behind(self) -> str:
        async def later() -> str:
            await asyncio.sleep(0.01)
            answer: str = await Caller.ground.onward("a", "ring", [])
            return answer

        Caller.behind = asyncio.get_running_loop().create_task(later())
        return "left"


# The end of a call before its handler's


async def test_a_caller_that_leaves_cancels_the_handler() -> None:
    ground = LocalHost(Desk)
    asked = ground.ask("a", "do", "hang")
    await until(lambda: seen == ["hangs"])
    ground.host.cancel(asked)
    await until(lambda: seen == ["hangs", "cancelled"])
    assert await ground.call("a", "do", "nothing") == 2
    assert asked.answers == 0
    await ground.host.stop()


@pytest.mark.simulated(seeds=3)
async def test_a_handler_is_cancelled_at_its_deadline_and_the_next_one_runs() -> None:
    ground = LocalHost(Desk)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    asked = ground.ask("a", "do", "hang", within_s=3.0)
    behind = ground.ask("a", "do", "nothing", within_s=30.0)
    with pytest.raises(SendTimeout, match="within 3s"):
        await asked.future
    assert 3.0 <= loop.time() - began_s < 3.1
    assert await behind.future == 2
    assert seen == ["hangs", "cancelled"]
    await ground.host.stop()


async def test_a_call_that_arrives_after_its_deadline_is_not_run() -> None:
    ground = LocalHost(Desk)
    with pytest.raises(SendTimeout):
        await ground.call("a", "do", "remember", within_s=-1.0)
    assert seen == []
    assert await ground.call("a", "do", "nothing") == 1
    await ground.host.stop()


@pytest.mark.simulated(seeds=3)
async def test_a_handler_that_ignores_its_cancellation_is_reported_and_keeps_its_entity(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """INV-E1: a second one beside it would be worse than a wait."""
    ground = LocalHost(Desk)
    with pytest.raises(SendTimeout):
        await ground.call("a", "do", "ignore", within_s=1.0)
    with pytest.raises(SendTimeout):
        await ground.call("a", "do", "remember", within_s=5.0)
    assert "Desk/a.do was cancelled 1 s ago and still runs" in caplog.text
    assert seen.count("ignored") == 1
    seen.append("enough")
    assert await ground.call("a", "do", "nothing") == 2
    await ground.host.stop()


# Trust


async def test_a_reply_after_the_seat_was_lost_is_not_sent() -> None:
    """INV-D8: the caller learns that it may have run."""
    ground = LocalHost(Desk)
    asked = ground.ask("a", "do", "yield")
    ground.trust.end()
    with pytest.raises(NotMine):
        await asked.future
    assert seen == []


@pytest.mark.parametrize("how", ["hang", "crash"])
async def test_what_a_handler_gives_after_the_seat_was_lost_is_not_said(how: str) -> None:
    ground = LocalHost(Losing)
    Losing.ground = ground
    with pytest.raises(RunnerUnavailable, match="lost the shard") as caught:
        await ground.call("a", "lose", how)
    assert caught.value.sent
    await ground.host.stop()


class Losing(Entity):
    ground: LocalHost

    @rpc
    async def lose(self, how: str) -> int:
        await asyncio.sleep(0)
        Losing.ground.trust.end()
        if how == "crash":
            raise ZeroDivisionError
        return 1


@pytest.mark.simulated(seeds=2)
async def test_without_its_session_a_runner_starts_nothing_until_it_is_back() -> None:
    """M2."""
    ground = LocalHost(Desk)
    assert await ground.call("a", "do", "nothing") == 1
    ground.trust.connected = False
    asked = [ground.ask("a", "do", "remember"), ground.ask("a", "do", "nothing"), ground.ask("b", "do", "nothing")]
    await asyncio.sleep(2)
    assert not any(each.future.done() for each in asked)
    assert seen == []
    ground.trust.connected = True
    assert [await each.future for each in asked] == [2, 3, 1]
    ground.trust.connected = False
    late = ground.ask("a", "do", "nothing", within_s=1.0)
    with pytest.raises(SendTimeout):
        await late.future
    lost = ground.ask("a", "do", "nothing")
    await asyncio.sleep(1)
    ground.trust.end()
    with pytest.raises(NotMine):
        await lost.future
    await ground.host.stop()


class Blocking(Entity):
    """Its handler takes a minute of its thread: nothing else gets a turn meanwhile."""

    ground: LocalHost

    @rpc
    async def take_a_minute(self) -> None:
        seen.append(self.id)
        Blocking.ground.clock.advance(timedelta(minutes=1))

    @rpc
    async def crash_after_a_minute(self) -> None:
        await self.take_a_minute()
        raise ZeroDivisionError


@pytest.mark.parametrize("method", ["take_a_minute", "crash_after_a_minute"])
async def test_inv_f4_nothing_begins_after_trust_has_run_out_however_many_wait_behind_one_another(method: str) -> None:
    """One task runs many handlers: the end of one is the beginning of the next, by no older reading of the clock."""
    ground = Blocking.ground = LocalHost(Blocking)
    for each in ("a", "b", "c"):
        await ground.call(each, "take_a_minute")
    seen.clear()
    ground.trust.until_ns = ground.clock.steady_ns() + 90 * 10**9
    asked = [ground.ask(each, method) for each in ("a", "b", "c")]
    await asyncio.gather(*(each.future for each in asked), return_exceptions=True)
    assert seen == ["a", "b"]
    assert [type(each.future.exception()) for each in asked[1:]] == [RunnerUnavailable, NotMine]
    await ground.host.stop()


async def test_inv_f4_a_reading_of_the_clock_is_good_for_one_turn_of_the_loop() -> None:
    ground = Blocking.ground = LocalHost(Blocking)
    await ground.call("a", "take_a_minute")
    seen.clear()
    ground.trust.until_ns = ground.clock.steady_ns() + 10**9
    ground.clock.advance(timedelta(minutes=1))
    with pytest.raises(NotMine):
        await ground.call("a", "take_a_minute")
    assert seen == []
    await ground.host.stop()


async def test_a_shard_of_somebody_else_is_not_ours() -> None:
    ground = LocalHost(Desk)
    await ground.drain()
    with pytest.raises(NotMine):
        await ground.call("a", "do", "nothing")
    ground.occupy()
    assert await ground.call("a", "do", "nothing") == 1
    await ground.host.stop()


# Bounds


async def test_a_full_runner_refuses_another_entity_and_serves_those_it_has() -> None:
    """MBOX-09: told from a full mailbox."""
    ground = LocalHost(Desk, resident_entities=2)
    busy = [ground.ask(each, "do", "hang") for each in ("a", "b")]
    await until(lambda: seen == ["hangs", "hangs"])
    with pytest.raises(RunnerFull, match="runner runner-1 holds 2 entities, the most it may, so Desk/c"):
        await ground.call("c", "do", "nothing")
    for each in busy:
        ground.host.cancel(each)
    assert await ground.call("a", "do", "nothing") == 2
    await ground.host.stop()


async def test_residents_are_told_by_type() -> None:
    ground = LocalHost(Desk, Tasked)
    for each in ("a", "b"):
        await ground.call(each, "do", "nothing")
    assert list(ground.host.residents("Desk")) == ["a", "b"]
    assert list(ground.host.residents("Tasked")) == []
    assert ground.host.counts.resident == 2
    await ground.host.stop()


async def test_a_long_queue_of_quick_handlers_lets_others_have_the_loop() -> None:
    ground = LocalHost(Desk)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while not all(each.future.done() for each in asked):
            turns += 1
            await asyncio.sleep(0)

    asked = [ground.ask(f"e{number}", "do", "nothing") for number in range(1_000)]
    await other()
    assert turns >= 10
    await ground.host.stop()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="coterie")
