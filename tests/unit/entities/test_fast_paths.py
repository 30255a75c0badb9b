"""The fast end of a call leaves the same counters as the slow one, whatever calls came before."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from coterie.entities.entity import Entity
from coterie.entities.host.activation import HostCounts
from coterie.entities.host.executor import HandlerExecutor
from coterie.entities.rpc import rpc
from coterie.testing import run_simulation
from tests.unit.entities.local_host import LocalHost

if TYPE_CHECKING:
    from coterie.entities.host.work import Work

WAYS = ("return", "wait", "declared", "defect", "misfit")
_fast = HandlerExecutor.returned


class Shortage(Exception):
    """Declared."""


class Till(Entity):
    """Ends its calls in every way."""

    @rpc(errors=[Shortage])
    async def end(self, way: str) -> str:
        if way == "wait":
            await asyncio.sleep(0.01)
        if way == "declared":
            raise Shortage
        if way == "defect":
            raise ValueError(way)
        return 7 if way == "misfit" else way  # type: ignore[return-value] # on purpose


def always_slow(self: HandlerExecutor, work: Work, value: Any) -> None:
    """`returned` without its fast path; effects and state are committed as ever."""
    if work.effects is None and work.resident.kept is None:
        self._returned(work, value)
    else:
        _fast(self, work, value)


def ended(plan: list[tuple[str, str, float]], *, concurrency: int) -> dict[str, Any]:
    """Everything that is counted when calls have ended: of the host, the rpc, the shards and each entity."""

    async def main() -> dict[str, Any]:
        ground = LocalHost((Till, {"concurrency": concurrency, "mailbox": 3}))
        counted = ground.types["Till"].rpcs["end"].counted
        before = (counted.ok.value, counted.declared.value, counted.failed.value, sum(counted.took.counts))
        answers = []
        for entity_id, way, pause_s in plan:
            answers.append(ground.ask(entity_id, "end", way).future)
            if pause_s:
                await asyncio.sleep(pause_s)
        await asyncio.wait(answers)
        await asyncio.sleep(0.1)
        now = (counted.ok.value, counted.declared.value, counted.failed.value, sum(counted.took.counts))
        residents = ground.host.lives("Till")
        return {
            "host": {name: getattr(ground.host.counts, name) for name in HostCounts.__slots__},
            "rpc": [after - earlier for after, earlier in zip(now, before, strict=True)],
            "busy": [shard.busy for shard in ground.shards],
            "entities": {
                name: (each.running, each.current, each.mailbox is None, each.is_leaving, each.rested_ns > 0)
                for name, each in sorted(residents.items())
            },
            "waiting": len(ground.host.handlers.waiting),
            "answers": [repr(each.exception() or each.result()) for each in answers],
        }

    return run_simulation(main, seed=0)


@pytest.mark.parametrize("seed", range(12))
def test_the_fast_and_the_slow_end_of_a_call_leave_the_same_counters(
    seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", logger="coterie")
    chance = random.Random(seed)
    plan = [(chance.choice("abcd"), chance.choice(WAYS), chance.choice([0.0, 0.0, 0.02])) for _ in range(40)]
    concurrency = chance.choice([1, 1, 3])
    fast = ended(plan, concurrency=concurrency)
    monkeypatch.setattr(HandlerExecutor, "returned", always_slow)
    assert ended(plan, concurrency=concurrency) == fast
    assert fast["host"]["replied"] == fast["rpc"][0] > 0
    assert set(fast["busy"]) == {0}
    assert fast["rpc"][3] == sum(fast["rpc"][:3]), "each call that began is timed once"
