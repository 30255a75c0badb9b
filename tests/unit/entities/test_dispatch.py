"""Calls that begin in the turn that read them: as tasks, contexts, deadlines and cancellation go, like any other."""

from __future__ import annotations

import asyncio
import itertools
import logging
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie.entities.entity import Entity
from coterie.entities.rpc import rpc
from coterie.errors import RemoteError, RunnerUnavailable
from coterie.kernel.context import current
from tests.support.manual_clock import ManualClock
from tests.unit.entities.local_host import PROMPTLY_S, Asked, LocalHost, until

if TYPE_CHECKING:
    from collections.abc import Callable

seen: list[Any] = []
served: list[bool] = []
shared: list[asyncio.Future[str]] = []
tint: ContextVar[str] = ContextVar("tint", default="none")
_ids = itertools.count(1)


@pytest.fixture(autouse=True)
def fresh(caplog: pytest.LogCaptureFixture) -> None:
    seen.clear()
    served.clear()
    shared.clear()
    caplog.set_level(logging.CRITICAL, logger="coterie")


class Arrived(Asked):
    """A call whose transport request is the call itself."""

    @property
    def request(self) -> Asked:
        return self


class Desk(Entity):
    """Does what it is told."""

    @rpc
    async def task(self, wait: bool) -> bool:
        before = asyncio.current_task()
        assert before is not None
        seen.append(before)
        if wait:
            await asyncio.sleep(0)
        return asyncio.current_task() is before

    @rpc
    async def paint(self, colour: str, wait: bool) -> list[str | None]:
        before = tint.get()
        tint.set(colour)
        if wait:
            await asyncio.sleep(0)
        assert tint.get() == colour
        return [before, current().entity_id, str(current().message_id)]

    @rpc
    async def share(self) -> str:
        return await shared[0]

    @rpc
    async def hang(self) -> None:
        await self._until_cancelled(asyncio.Event().wait())

    @rpc
    async def hang_in_a_task(self) -> None:
        await asyncio.create_task(self._until_cancelled(asyncio.Event().wait()))

    @rpc
    async def yield_and_hang(self) -> None:
        await self._until_cancelled(asyncio.sleep(0))
        seen.append("yielded")
        await asyncio.Event().wait()

    async def _until_cancelled(self, wait: Any) -> None:
        seen.append("hangs")
        try:
            await wait
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @rpc
    async def limit(self, seconds: float) -> str:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.Event().wait()
        except TimeoutError:
            return "limited"
        return "waited"

    @rpc
    async def group(self) -> list[int]:
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(asyncio.sleep(0, number)) for number in range(3)]
        return [task.result() for task in made]

    @rpc
    async def cancel_its_task(self, wait: bool, uncancel: bool = False) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if uncancel:
            task.uncancel()
        if wait:
            await asyncio.sleep(PROMPTLY_S)
        return "returned"

    @rpc
    async def take_a_millisecond(self) -> None:
        grounds[-1].clock.advance(timedelta(milliseconds=1))

    @rpc
    async def crash(self) -> None:
        raise ZeroDivisionError

    @rpc
    async def lie(self) -> int:
        return "five"  # type: ignore[return-value] # that is the point

    @rpc
    async def lose(self) -> str:
        grounds[-1].trust.end()
        return "said by somebody who holds nothing"


grounds: list[LocalHost] = []


async def ready(*ids: str) -> LocalHost:
    """A host with these entities resident, and a task that stands by."""
    ground = LocalHost(Desk, clock=ManualClock())  # which stands still, however slow the machine
    grounds.append(ground)
    for each in ids:
        await ground.call(each, "task", False)
    if ids:
        await prompt(ground, ids[0], "task", False, taken=None)
        await until(lambda: spare(ground) is not None)
    seen.clear()
    served.clear()
    return ground


def spare(ground: LocalHost) -> Any:
    found = ground.host.handlers.queue.spare
    return found.task if found is not None and found.is_ready else None


async def prompt(ground: LocalHost, id: str, method: str, *args: Any, taken: bool | None = True) -> Asked:
    """Have a call served from outside of any task, as a socket does. `taken`: whether it must be, or must not."""
    (work,) = await prompt_all(ground, [(id, method, args)], taken=taken)
    return work


async def prompt_all(
    ground: LocalHost,
    calls: list[tuple[str, str, tuple[Any, ...]]],
    *,
    taken: bool | None,
    then: Callable[[Asked], None] | None = None,
) -> list[Asked]:
    """Have several calls served, as those of one read; `then` is done with each in the same turn."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[list[Asked]] = loop.create_future()

    def read() -> None:
        arrived_s = loop.time()
        works = [_serve(ground, arrived_s, *each, taken=taken) for each in calls]
        if then is not None:
            for work in works:
                then(work)
        done.set_result(works)

    loop.call_soon(read)
    return await done


def _serve(ground: LocalHost, arrived_s: float, id: str, method: str, args: Any, *, taken: bool | None) -> Asked:
    payload = ground.types["Desk"].rpcs[method].arguments.encode(args, {})
    number = f"p{next(_ids)}"
    work = Arrived("Desk", id, method, payload, arrived_s + PROMPTLY_S, PROMPTLY_S, number)
    work.future = asyncio.get_running_loop().create_future()
    taken_now = ground.host.dispatch.serve(work, arrived_s)  # type: ignore[arg-type] # answers like an ArrivedCall
    served.append(taken_now)
    assert taken is None or taken_now == taken
    if not taken_now:
        ground.host.deliver(work)
    return work


async def test_a_call_that_does_not_wait_is_answered_before_the_socket_is_left() -> None:
    ground = await ready("a")
    standing = spare(ground)
    work = await prompt(ground, "a", "task", False)
    assert work.future.done()
    assert work.future.result() is True
    assert seen == [standing]
    assert spare(ground) is standing
    assert ground.host.counts.delivered == ground.host.counts.replied
    await ground.host.stop()


async def test_a_call_that_waits_keeps_the_task_it_began_in_and_another_one_stands_by() -> None:
    ground = await ready("a", "b")
    for _ in range(3):
        works = [await prompt(ground, each, "task", True, taken=None) for each in ("a", "b")]
        assert [await work.future for work in works] == [True, True]
    assert len(set(seen)) == len(seen) == 6
    await ground.host.stop()


async def test_a_call_from_inside_of_a_task_is_queued() -> None:
    ground = await ready("a")
    work = _serve(ground, asyncio.get_running_loop().time(), "a", "task", (False,), taken=False)
    assert not work.future.done()
    assert await work.future
    await ground.host.stop()


@pytest.mark.parametrize("wait", [False, True])
async def test_nothing_leaks_from_one_call_into_the_next(wait: bool) -> None:
    """K4."""
    ground = await ready("a", "b")
    works = await prompt_all(ground, [("a", "paint", ("red", wait)), ("b", "paint", ("blue", wait))], taken=None)
    works += await prompt_all(ground, [("a", "paint", ("green", wait))], taken=None)
    told = [await work.future for work in works]
    assert told == [["none", work.entity_id, work.message_id] for work in works]
    await ground.host.stop()


async def test_a_future_that_others_await_too_can_be_awaited() -> None:
    ground = await ready("a")
    shared.append(asyncio.get_running_loop().create_future())

    async def other() -> str:
        return await shared[0]

    asking = asyncio.create_task(prompt(ground, "a", "share"))
    await asyncio.sleep(0)
    others = [asyncio.create_task(other()) for _ in range(3)]  # these await it after the handler, before its task does
    work = await asking
    shared[0].set_result("known")
    assert [await work.future, *[await each for each in others]] == ["known"] * 4
    await ground.host.stop()


@pytest.mark.parametrize("method", ["hang", "hang_in_a_task", "yield_and_hang"])
@pytest.mark.parametrize("turns", [None, *range(5)])
async def test_a_cancellation_reaches_the_handler_however_early_it_comes(method: str, turns: int | None) -> None:
    """At `turns` None: in the very turn in which the handler began, so that its task has not heard of it yet."""
    ground = await ready("a")
    cancel = ground.host.cancel
    (work,) = await prompt_all(ground, [("a", method, ())], taken=True, then=cancel if turns is None else None)
    for _ in range(turns or 0):
        await asyncio.sleep(0)
    cancel(work)
    task = work.task
    await until(lambda: task is not None and task.done())
    work = await prompt(ground, "a", "task", False, taken=None)
    assert await work.future, "the entity is free again"
    told = [each for each in seen if isinstance(each, str)]
    assert told == ["hangs", "cancelled"] or (told == [] and method == "hang_in_a_task") or told == ["hangs", "yielded"]
    await ground.host.stop()


@pytest.mark.parametrize("seconds", [0.0, 0.001])
async def test_a_handler_can_limit_itself(seconds: float) -> None:
    ground = await ready("a")
    assert await (await prompt(ground, "a", "limit", seconds)).future == "limited"
    await ground.host.stop()


async def test_a_handler_can_have_a_task_group() -> None:
    ground = await ready("a")
    assert await (await prompt(ground, "a", "group")).future == [0, 1, 2]
    await ground.host.stop()


@pytest.mark.parametrize("uncancel", [False, True])
async def test_a_handler_that_cancels_its_own_task_cancels_nobody_else(uncancel: bool) -> None:
    ground = await ready("a", "b")
    works = await prompt_all(ground, [("a", "cancel_its_task", (False, uncancel)), ("b", "task", (True,))], taken=None)
    assert [await work.future for work in works] == ["returned", True]
    await ground.host.stop()


async def test_a_handler_that_cancels_its_own_task_and_waits_is_cancelled() -> None:
    ground = await ready("a")
    with pytest.raises(RemoteError, match="CancelledError"):
        await (await prompt(ground, "a", "cancel_its_task", True)).future
    await ground.host.stop()


@pytest.mark.parametrize("method", ["crash", "lie"])
async def test_a_defect_is_told_and_costs_the_instance(method: str) -> None:
    ground = await ready("a")
    work = await prompt(ground, "a", method)
    with pytest.raises(RemoteError):
        await work.future
    assert list(ground.host.residents("Desk")) == []
    assert await ground.call("a", "task", False)
    await ground.host.stop()


async def test_nothing_is_said_after_the_seat_was_lost() -> None:
    """INV-D8."""
    ground = await ready("a")
    work = await prompt(ground, "a", "lose")
    with pytest.raises(RunnerUnavailable) as caught:
        await work.future
    assert caught.value.sent
    await ground.host.stop()


async def test_a_busy_entity_takes_one_call_after_the_other() -> None:
    """INV-E1."""
    ground = await ready("a")
    works = await prompt_all(ground, [("a", "task", (True,)), ("a", "task", (False,))], taken=None)
    assert not works[1].future.done()
    assert [await work.future for work in works] == [True, True]
    await ground.host.stop()


async def test_a_read_full_of_slow_handlers_lets_the_loop_have_its_turn() -> None:
    ids = [str(number) for number in range(200)]
    ground = await ready(*ids)
    works = await prompt_all(ground, [(each, "take_a_millisecond", ()) for each in ids], taken=None)
    assert 0 < served.count(True) < 100
    assert [await work.future for work in works] == [None] * 200
    served.clear()
    works = await prompt_all(ground, [(each, "task", (False,)) for each in ids], taken=True)
    assert all(work.future.done() for work in works)
    await ground.host.stop()


async def test_nobody_stands_by_after_the_end() -> None:
    before = asyncio.all_tasks()
    ground = await ready("a")
    assert spare(ground) is not None
    await ground.host.stop()
    assert asyncio.all_tasks() == before
