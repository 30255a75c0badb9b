"""How a shard is given up, in order and in haste (F6, REBAL-05, SHUT-01, SHUT-02, incident 6)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coterie.entities.entity import Entity
from coterie.entities.rpc import rpc
from coterie.errors import RunnerUnavailable
from coterie.kernel.context import current
from tests.unit.entities.local_host import LocalHost, NotMine, until

seen: list[Any] = []
gate: list[asyncio.Event] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    seen.clear()
    gate.clear()


class Clerk(Entity):
    async def on_deactivate(self) -> None:
        seen.append(f"goodbye {self.id}")

    @rpc
    async def work(self) -> str:
        seen.append(f"begins {self.id}")
        try:
            await gate[0].wait()
        except asyncio.CancelledError:
            seen.append(f"cancelled {self.id}")
            raise
        return "done"

    @rpc
    async def quick(self) -> str:
        return "quick"


async def busy(ground: LocalHost) -> list[Any]:
    """One call runs, two wait, another entity is idle."""
    gate.append(asyncio.Event())
    await ground.call("idle", "quick")
    asked = [ground.ask("a", method, within_s=600.0) for method in ("work", "quick", "quick")]
    await until(lambda: seen == ["begins a"])
    return asked


@pytest.mark.simulated(seeds=5)
async def test_what_runs_may_end_what_waits_moves_and_all_say_goodbye() -> None:
    """REBAL-05: the entity leaves the count at once, its handler is neither interrupted nor cut off."""
    ground = LocalHost(Clerk, drain="20s")
    running, *waiting = await busy(ground)
    draining = asyncio.gather(ground.drain())
    for each in waiting:
        with pytest.raises(NotMine):
            await each.future
    with pytest.raises(NotMine):
        await ground.call("a", "quick")
    assert ground.host.counts.resident == 0
    await asyncio.sleep(10)
    assert not draining.done()
    assert "cancelled a" not in seen
    gate[0].set()
    assert await running.future == "done"
    await draining
    assert sorted(seen) == ["begins a", "goodbye a", "goodbye idle"]


@pytest.mark.simulated(seeds=5)
async def test_what_does_not_end_in_time_is_cancelled_and_its_caller_told() -> None:
    """REBAL-05."""
    ground = LocalHost(Clerk, drain="20s")
    loop = asyncio.get_running_loop()
    running, *_ = await busy(ground)
    began_s = loop.time()
    await ground.drain()
    assert 20 <= loop.time() - began_s < 21
    with pytest.raises(RunnerUnavailable, match="did not end within 20s") as caught:
        await running.future
    assert caught.value.sent
    assert seen == ["begins a", "goodbye idle", "cancelled a", "goodbye a"]


@pytest.mark.simulated(seeds=5)
async def test_a_shard_that_comes_back_waits_for_the_handlers_that_still_end() -> None:
    """INV-E1: though only what is committed counts, two handlers of one entity shall not overlap on one runner."""
    ground = LocalHost(Tidy)
    ground.ask("a", "work")
    await until(lambda: seen == ["begins"])
    ground.abandon()
    ground.occupy()
    assert await ground.call("a", "quick") == "quick"
    assert seen == ["begins", "tidied up", "quick"]
    await ground.host.stop()


class Tidy(Entity):
    @rpc
    async def work(self) -> None:
        seen.append("begins")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.5)
            seen.append("tidied up")

    @rpc
    async def quick(self) -> str:
        seen.append("quick")
        return "quick"


@pytest.mark.simulated(seeds=5)
async def test_a_lost_seat_stops_everything_at_once() -> None:
    """INV-D8: those that ran are told so, those that waited may go elsewhere."""
    ground = LocalHost(Clerk, drain="20s")
    running, *waiting = await busy(ground)
    ground.abandon()
    with pytest.raises(RunnerUnavailable, match="lost the shard") as caught:
        await running.future
    assert caught.value.sent
    for each in waiting:
        with pytest.raises(NotMine):
            await each.future
    await until(lambda: sorted(seen) == ["begins a", "cancelled a", "goodbye a", "goodbye idle"])
    await ground.host.stop()


@pytest.mark.parametrize("how", ["drain", "abandon"])
async def test_calls_that_were_admitted_and_not_begun_move_too(how: str) -> None:
    ground = LocalHost(Clerk, shards=1)
    asked = [ground.ask(f"e{number}", "quick") for number in range(10)]
    if how == "drain":
        await ground.shards[0].drain()
    else:
        ground.abandon()
    for each in asked:
        with pytest.raises(NotMine):
            await each.future
    await ground.host.stop()


class Lingering(Entity):
    """Its farewell, or its handler, does what the test says."""

    async def on_deactivate(self) -> None:
        seen.append(current().deadline)
        if self.id == "hangs":
            await asyncio.Event().wait()
        if self.id == "ignores":
            await ignore()
        if self.id == "raises":
            raise ZeroDivisionError("no goodbye")

    @rpc
    async def quick(self) -> str:
        return "quick"

    @rpc
    async def ignore(self) -> None:
        await ignore()


async def ignore() -> None:
    seen.append("begins")
    while "enough" not in seen:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            seen.append("ignored")


@pytest.mark.simulated(seeds=3)
@pytest.mark.parametrize("id", ["hangs", "ignores", "raises"])
async def test_a_farewell_that_does_not_end_holds_up_no_shutdown(id: str, caplog: pytest.LogCaptureFixture) -> None:
    """SHUT-02, incident 6: it has its time, and it can see how much."""
    ground = LocalHost(Lingering)
    loop = asyncio.get_running_loop()
    await ground.call(id, "quick")
    began_s = loop.time()
    await ground.drain()
    assert loop.time() - began_s <= 4.0
    assert seen[0] is not None
    assert "on_deactivate of Lingering/" in caplog.text
    seen.append("enough")
    await ground.host.stop()


@pytest.mark.simulated(seeds=3)
async def test_a_handler_that_ignores_its_cancellation_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    ground = LocalHost(Lingering, drain="2s")
    loop = asyncio.get_running_loop()
    asked = ground.ask("a", "ignore")
    await until(lambda: seen == ["begins"])
    began_s = loop.time()
    await ground.drain()
    assert loop.time() - began_s < 4.0
    assert "is released while 1 handlers ignore their cancellation" in caplog.text
    with pytest.raises(RunnerUnavailable):
        await asked.future
    seen.append("enough")
    await ground.host.stop()


@pytest.mark.simulated(seeds=3)
async def test_stopping_ends_what_is_left_whatever_it_does() -> None:
    ground = LocalHost(Lingering, drain="2s")
    loop = asyncio.get_running_loop()
    asked = ground.ask("a", "ignore")
    await until(lambda: seen == ["begins"])
    await ground.call("hangs", "quick")
    began_s = loop.time()
    await ground.host.stop()
    assert loop.time() - began_s <= 5.0
    with pytest.raises(RunnerUnavailable):
        await asked.future
    seen.append("enough")


async def test_a_shard_that_comes_back_waits_for_the_last_farewell() -> None:
    """Two lives of an entity never overlap on a runner."""
    ground = LocalHost(Slow)
    await ground.call("a", "live")
    ground.abandon()
    ground.occupy()
    asked = ground.ask("a", "live")
    await until(lambda: seen == ["live 1", "leaving"])
    assert not asked.future.done()
    gate.append(asyncio.Event())
    gate[0].set()
    assert await asked.future == 2
    assert seen == ["live 1", "leaving", "left", "live 2"]
    await ground.host.stop()


class Slow(Entity):
    @rpc
    async def live(self) -> int:
        epoch = current().epoch
        assert epoch is not None
        seen.append(f"live {epoch}")
        return epoch

    async def on_deactivate(self) -> None:
        seen.append("leaving")
        await until(lambda: gate)
        await gate[0].wait()
        seen.append("left")
