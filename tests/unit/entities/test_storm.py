"""Everything at once, in an order that a seed decides: what has to hold whatever happens (INV-D8, E1, E4)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from coterie.entities.entity import Entity
from coterie.entities.rpc import rpc
from coterie.errors import CoterieError, RemoteError, RunnerUnavailable
from coterie.kernel.context import current
from coterie.kernel.retry import Retry
from tests.unit.entities.local_host import Asked, LocalHost, NotMine

_CALLS = 300
_IDS = 6
_TICK_S = 0.02


class Storm:
    """What happened in a run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.runs: Counter[str] = Counter()
        self.inside: Counter[str] = Counter()
        self.alive: Counter[str] = Counter()
        self.overlaps: list[str] = []


storm = Storm(0)


class Busy(Entity):
    """Waits, fails, and hangs by chance."""

    async def on_activate(self) -> None:
        if storm.random.random() < 0.1:
            await asyncio.sleep(storm.random.choice([0.0, 100.0]))
            raise ConnectionError("no activation")
        storm.alive[self.id] += 1
        if storm.alive[self.id] > 1:
            storm.overlaps.append(f"two lives of {self.id}")

    async def on_deactivate(self) -> None:
        try:
            await asyncio.sleep(storm.random.choice([0.0, 0.5, 100.0]))
        finally:
            storm.alive[self.id] -= 1

    @rpc
    async def work(self) -> str:
        message_id = current().message_id
        assert message_id is not None
        storm.runs[message_id] += 1
        storm.inside[self.id] += 1
        if storm.inside[self.id] > 1:
            storm.overlaps.append(f"two handlers of {self.id}")
        try:
            await asyncio.sleep(storm.random.choice([0.0, 0.1, 1.0, 100.0]))
            if storm.random.random() < 0.1:
                raise ZeroDivisionError
        finally:
            storm.inside[self.id] -= 1
        return message_id


@pytest.mark.simulated(seeds=40)
async def test_every_call_ends_once_and_in_time_and_runs_once_or_not_at_all(
    request: pytest.FixtureRequest,
) -> None:
    global storm
    storm = Storm(request.node.callspec.params["_simulation_seed"])
    ground = LocalHost(
        (Busy, {"mailbox": 3, "max_idle": "2s", "retry": Retry(attempts=3, base="10ms")}),
        resident_entities=4,
        drain="2s",
    )
    asked, left = [], set()
    for _ in range(_CALLS):
        await asyncio.sleep(storm.random.choice([0.0, 0.0, 0.0, 0.05, 0.5]))
        work = ground.ask(f"e{storm.random.randrange(_IDS)}", "work", within_s=storm.random.choice([0.2, 2.0, 20.0]))
        asked.append(work)
        fate = storm.random.random()
        if fate < 0.1:
            leaver = storm.random.choice(asked)
            if not leaver.future.done():
                ground.host.cancel(leaver)
                left.add(leaver.message_id)
        elif fate < 0.12:
            ground.abandon()
            ground.occupy()
        elif fate < 0.13:
            await ground.drain()
            ground.occupy()
    for work in asked:
        if work.message_id not in left:
            await _judge(work)
    assert all(count == 1 for count in storm.runs.values())
    assert not storm.overlaps
    assert ground.host.counts.resident <= 4
    await ground.host.stop()
    assert not any(storm.inside.values())


async def _judge(work: Asked) -> None:
    """It was answered once, by its deadline and a tick, and what the answer says is true."""
    outcome: Any = (await asyncio.gather(work.future, return_exceptions=True))[0]
    assert work.answers == 1
    assert work.answered_s <= work.deadline_s + _TICK_S
    ran = storm.runs[work.message_id]
    if isinstance(outcome, str):
        assert outcome == work.message_id
        assert ran == 1
    elif isinstance(outcome, RunnerUnavailable):
        assert outcome.sent
    elif isinstance(outcome, NotMine) or (isinstance(outcome, CoterieError) and "has not run" in outcome.hint):
        assert ran == 0
    elif not isinstance(outcome, RemoteError):
        assert outcome.code in ("send_timeout", "mailbox_full", "runner_full")
