"""The beginning of a life: before the first call, once, and at nobody else's cost."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from coterie.entities.entity import Entity
from coterie.entities.rpc import rpc
from coterie.errors import RemoteError, SendTimeout
from coterie.kernel.context import current
from coterie.kernel.retry import Retry
from tests.unit.entities.local_host import LocalHost, NotMine, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

seen: list[Any] = []
script: dict[str, Any] = {}
shade: ContextVar[str] = ContextVar("shade", default="none")


@pytest.fixture(autouse=True)
def fresh() -> None:
    seen.clear()
    script.clear()


class Absent(Exception):
    """What an on_activate may say on purpose."""


class Sleeper(Entity):
    """Does in its activation what the script says."""

    async def on_activate(self) -> None:
        seen.append("activate")
        behaviour = script.get(self.id)
        if behaviour is not None:
            await behaviour(self)
        self.ready = True

    @rpc(errors=[Absent])
    async def greet(self, name: str) -> str:
        assert self.ready
        seen.append(name)
        return f"hello {name}"


async def hang(_: Entity) -> None:
    await asyncio.Event().wait()


async def refuse(_: Entity) -> None:
    raise ZeroDivisionError("not today")


async def test_on_activate_runs_once_before_the_first_call() -> None:
    ground = LocalHost(Sleeper)
    asked = [ground.ask("a", "greet", name) for name in ("x", "y")]
    assert [await each.future for each in asked] == ["hello x", "hello y"]
    assert seen == ["activate", "x", "y"]
    assert ground.host.counts.activations == 1
    await ground.host.stop()


async def test_an_activation_that_fails_tells_all_its_callers_and_the_next_call_tries_again() -> None:
    ground = LocalHost((Sleeper, {"retry": Retry(attempts=3, base="1ms", max="1ms")}))
    script["a"] = refuse
    asked = [ground.ask("a", "greet", name) for name in ("x", "y")]
    for each in asked:
        with pytest.raises(RemoteError, match="ZeroDivisionError: not today"):
            await each.future
    assert seen == ["activate"]
    del script["a"]
    assert await ground.call("a", "greet", "z") == "hello z"
    await ground.host.stop()


async def test_an_error_that_the_rpc_declares_crosses_from_the_activation_too() -> None:
    ground = LocalHost(Sleeper)

    async def absent(_: Entity) -> None:
        raise Absent("no such sleeper")

    script["a"] = absent
    with pytest.raises(Absent, match="no such sleeper"):
        await ground.call("a", "greet", "x")
    await ground.host.stop()


@pytest.mark.simulated(seeds=3)
async def test_failing_activations_are_tried_with_growing_pauses() -> None:
    ground = LocalHost((Sleeper, {"retry": Retry(attempts=4, base="1s", factor=2, max="10s", jitter=0)}))
    script["a"] = refuse
    loop, began = asyncio.get_running_loop(), []
    for _ in range(6):
        with pytest.raises(RemoteError):
            await ground.call("a", "greet", "x", within_s=60.0)
        began.append(loop.time())
    pauses = [round(later - earlier, 3) for earlier, later in itertools.pairwise(began)]
    assert pauses == [1, 2, 4, 4, 4]
    await ground.host.stop()


@pytest.mark.simulated(seeds=3)
async def test_an_activation_that_hangs_ends_with_the_call_and_blocks_nobody_else() -> None:
    ground = LocalHost((Sleeper, {"retry": Retry(attempts=3, base="10ms")}))
    script["stuck"] = hang
    first = ground.ask("stuck", "greet", "x", within_s=2.0)
    second = ground.ask("stuck", "greet", "y", within_s=30.0)
    assert await ground.call("other", "greet", "z") == "hello z"
    with pytest.raises(SendTimeout) as caught:
        await first.future
    assert "has not run" in caught.value.hint
    del script["stuck"]  # the next try, for the call that still waits, works
    assert await second.future == "hello y"
    await ground.host.stop()


@pytest.mark.simulated(seeds=3)
async def test_a_caller_that_leaves_does_not_end_the_activation_others_wait_for() -> None:
    ground = LocalHost(Sleeper)
    gate = asyncio.Event()

    async def wait(_: Entity) -> None:
        await gate.wait()

    script["a"] = wait
    first = ground.ask("a", "greet", "x")
    second = ground.ask("a", "greet", "y")
    await until(lambda: seen == ["activate"])
    ground.host.cancel(first)
    gate.set()
    assert await second.future == "hello y"
    assert seen == ["activate", "y"]
    assert first.answers == 0
    await ground.host.stop()


async def test_an_activation_in_progress_moves_with_its_shard() -> None:
    """Nothing has run, so the calls may go elsewhere at once."""
    ground = LocalHost(Sleeper)
    script["a"] = hang
    asked = [ground.ask("a", "greet", name) for name in ("x", "y")]
    await until(lambda: seen == ["activate"])
    await ground.drain()
    for each in asked:
        with pytest.raises(NotMine):
            await each.future
    await ground.host.stop()


async def test_what_a_failed_activation_opened_is_closed() -> None:
    ground = LocalHost(Sleeper)

    @asynccontextmanager
    async def door() -> AsyncIterator[str]:
        seen.append("open")
        yield "door"
        seen.append("close")

    async def half(entity: Entity) -> None:
        assert await entity.resource("door", door) == "door"
        raise ZeroDivisionError("after the door")

    script["a"] = half
    with pytest.raises(RemoteError):
        await ground.call("a", "greet", "x")
    await until(lambda: seen == ["activate", "open", "close"])
    await ground.host.stop()


async def test_what_an_activation_sets_in_its_context_no_handler_sees() -> None:
    ground = LocalHost(Tinted)
    assert [await ground.call("a", "look") for _ in range(2)] == ["none", "none"]
    assert seen == [("Tinted", "a")]
    await ground.host.stop()


class Tinted(Entity):
    async def on_activate(self) -> None:
        seen.append((current().entity_type, current().entity_id))
        shade.set("of the activation")

    @rpc
    async def look(self) -> str:
        return shade.get()


@dataclass
class Broken:
    level: int


class Stateful(Entity[Broken]):
    def initial_state(self) -> Broken:
        if script.get("broken"):
            raise ValueError("no state today")
        return Broken(3)

    @rpc
    async def level(self) -> int:
        self.state.level += 1
        return self.state.level


async def test_each_entity_begins_with_a_state_of_its_own() -> None:
    ground = LocalHost(Stateful)
    assert [await ground.call(each, "level") for each in ("a", "a", "b")] == [4, 5, 4]
    await ground.host.stop()


async def test_an_initial_state_that_raises_fails_the_call_and_not_the_runner() -> None:
    ground = LocalHost((Stateful, {"retry": Retry.never}))
    script["broken"] = True
    with pytest.raises(RemoteError, match="no state today"):
        await ground.call("a", "level")
    script["broken"] = False
    assert await ground.call("a", "level") == 4
    await ground.host.stop()


async def test_an_activation_that_raises_cancelled_error_itself_is_a_failure_like_any_other() -> None:
    ground = LocalHost(Sleeper)

    async def give_in(_: Entity) -> None:
        raise asyncio.CancelledError

    script["a"] = give_in
    with pytest.raises(RemoteError, match="CancelledError"):
        await ground.call("a", "greet", "x")
    assert await ground.call("b", "greet", "y") == "hello y"
    await ground.host.stop()
