"""Calls are real coroutines, used once; streams are async iterators [M14]."""

from __future__ import annotations

import asyncio
import gc
import inspect
import subprocess
import sys
from collections.abc import Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

import pytest

from coterie.entities.reference import Call, Stream, require_call
from coterie.errors import MalformedMessage, RemoteError
from tests.unit.entities.account_entity import ACCOUNT, Account, Item, Loopback, Overdrawn, account

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def by_await(call: Coroutine[Any, Any, Any]) -> Any:
    return await call


async def by_task(call: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.create_task(call)


async def by_gather(call: Coroutine[Any, Any, Any]) -> Any:
    return (await asyncio.gather(call))[0]


async def by_group(call: Coroutine[Any, Any, Any]) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(call)
    return task.result()


async def by_timeout(call: Coroutine[Any, Any, Any]) -> Any:
    async with asyncio.timeout(120):
        return await call


async def by_wait_for(call: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.wait_for(call, 30)


async def by_shield(call: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.shield(call)


WAYS = [by_await, by_task, by_gather, by_group, by_timeout, by_wait_for, by_shield]


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_works_wherever_a_coroutine_does(way: Callable[[Any], Awaitable[Any]]) -> None:
    ref, sender = account()
    assert await way(ref.balance()) == 0
    assert len(sender.seen) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_an_error_comes_out_wherever_a_coroutines_does(way: Callable[[Any], Awaitable[Any]]) -> None:
    ref, _ = account()
    with pytest.raises((Overdrawn, ExceptionGroup)) as caught:
        await way(ref.charge("o-1", 5))
    inner = caught.value.exceptions[0] if isinstance(caught.value, ExceptionGroup) else caught.value
    assert (type(inner), inner.args) == (Overdrawn, ("o-1", 5))


def test_a_call_runs_as_the_main_coroutine() -> None:
    ref, _ = account()
    assert asyncio.run(ref.balance()) == 0


def test_a_call_is_a_coroutine_for_whoever_asks() -> None:
    call = account()[0].balance()
    assert isinstance(call, Coroutine)
    assert asyncio.iscoroutine(call)
    assert inspect.isawaitable(call)
    call.close()


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("second", [by_await, by_task])
async def test_awaited_twice_it_raises_and_is_sent_once(
    first: Callable[[Any], Awaitable[Any]], second: Callable[[Any], Awaitable[Any]]
) -> None:
    ref, sender = account()
    call = ref.balance()
    await first(call)
    with pytest.raises(RuntimeError, match=r"awaited"):
        await second(call)
    assert len(sender.seen) == 1


async def test_a_task_cancelled_before_it_began_sends_nothing() -> None:
    ref, sender = account()
    task = asyncio.create_task(ref.balance())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sender.seen == []


class Stuck(Loopback):
    """A sender whose calls wait until they are cancelled."""

    began = 0
    cancelled = 0

    async def _call(self, call: Call[Any]) -> Any:
        self.began += 1
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def test_cancelling_a_task_reaches_the_sender() -> None:
    sender = Stuck(ACCOUNT)
    task = asyncio.create_task(ACCOUNT.ref("alice", sender).balance())
    while not sender.began:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sender.cancelled == 1


async def test_closing_a_call_under_way_closes_what_sends_it() -> None:
    call = ACCOUNT.ref("alice", Stuck(ACCOUNT)).balance()
    future = call.send(None)
    call.close()
    future.cancel()
    with pytest.raises(RuntimeError, match=r"reuse already awaited"):
        call.send(None)


def test_a_call_that_is_dropped_warns_with_its_name() -> None:
    call = account()[0].charge("o-1", 5)
    with pytest.warns(RuntimeWarning, match=r"^call Account/alice\.charge was never awaited$"):
        del call


async def test_calls_that_were_used_do_not_warn() -> None:
    ref, _ = account()
    await ref.balance()
    ref.balance().close()
    require_call(ref.balance(), what="send")
    with pytest.raises(KeyError):
        ref.balance().throw(KeyError("thrown before it began"))
    gc.collect()  # warnings are errors here


def test_nothing_warns_when_the_interpreter_exits() -> None:
    program = "from tests.unit.entities.account_entity import account; kept = account()[0].balance()"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert ended.stderr == ""


async def test_wrong_arguments_are_refused_when_the_call_is_built() -> None:
    ref, sender = account()
    with pytest.raises(MalformedMessage) as caught:
        _ = ref.charge("o-1", "500")  # type: ignore[arg-type] # that is the point
    assert caught.value.message == 'Account.charge: cents is "500" (text), expected a whole number'
    with pytest.raises(TypeError, match=r"^Account\.charge\(\): missing a required argument: 'order_id'$"):
        _ = ref.charge()  # type: ignore[call-arg] # that is the point
    assert sender.seen == []


async def test_nothing_is_shared_with_the_handler() -> None:
    ref, _ = account()
    mine = [Item("pen", ["blue"])]
    call = ref.buy(mine)
    mine[0].tags.append("changed after the call was built")
    assert await call == [Item("pen", ["blue"]), Item("gift")]
    assert len(mine) == 1


async def test_a_result_that_does_not_fit_is_found_at_the_handler() -> None:
    with pytest.raises(RemoteError) as caught:
        await account()[0].lie()
    assert caught.value.message == (
        'MalformedMessage: result of Account.lie: it is "five" (text), expected a whole number'
    )


async def test_an_undeclared_exception_is_a_remote_error_for_local_calls_too() -> None:
    with pytest.raises(RemoteError) as caught:
        await account()[0].explode()
    assert caught.value.type_name == "ZeroDivisionError"
    assert "in explode" in caught.value.remote_traceback


def test_a_call_knows_what_it_is() -> None:
    call = cast("Call[int]", account()[0].charge("o-1", 5))
    assert (str(call.address), call.rpc.name, call.timeout_s, call.key) == ("Account/alice", "charge", 5.0, None)
    assert repr(call) == "Account/alice.charge"
    call.close()


def test_the_timeout_of_the_reference_comes_before_that_of_the_rpc() -> None:
    calls = [cast("Call[int]", account(timeout_s=given)[0].charge("o")) for given in (None, 2.0)]
    calls += [cast("Call[int]", account()[0].balance())]
    assert [call.timeout_s for call in calls] == [5.0, 2.0, None]
    for call in calls:
        call.close()


async def test_a_task_shows_the_call_in_its_name() -> None:
    task = asyncio.create_task(account()[0].balance())
    assert "Account/alice.balance" in repr(task)
    await task


def test_something_else_than_a_call_is_a_type_error() -> None:
    sleeping = asyncio.sleep(1)
    for other in (sleeping, account()[0].count(3)):
        with pytest.raises(TypeError, match=r"^send takes a call, such as account\.charge\(…\)"):
            require_call(other, what="send")
    sleeping.close()


def test_a_call_taken_twice_raises() -> None:
    call = account()[0].balance()
    require_call(call, what="send")
    with pytest.raises(RuntimeError, match=r"^call Account/alice\.balance was awaited, sent or closed before"):
        require_call(call, what="send")


async def test_a_stream_gives_its_items_once() -> None:
    stream = account()[0].count(3)
    assert repr(stream) == "Account/alice.count"
    assert [item async for item in stream] == [0, 1, 2]
    assert [item async for item in stream] == []


async def test_a_stream_asks_for_nothing_until_its_first_item_is_wanted() -> None:
    ref, sender = account()
    stream = cast("Stream[int]", ref.count(3))
    await stream.aclose()
    assert [item async for item in stream] == []
    assert sender.closed == 0


async def test_leaving_a_stream_early_closes_it_at_the_sender() -> None:
    ref, sender = account()
    async with aclosing(cast("Stream[int]", ref.count(1000))) as items:
        async for item in items:
            if item == 2:
                break
    assert sender.closed == 1


async def test_a_stream_cannot_be_awaited() -> None:
    with pytest.raises(TypeError, match="Stream"):
        await account()[0].count(3)  # type: ignore[misc] # that is the point


def test_the_wrong_arguments_of_a_stream_are_refused_when_it_is_built() -> None:
    with pytest.raises(MalformedMessage, match=r"^Account\.count: to is"):
        account()[0].count("3")  # type: ignore[arg-type] # that is the point


def test_a_plain_instance_has_plain_methods() -> None:
    assert inspect.iscoroutinefunction(Account.charge)
