"""Retention: old messages go in small batches, now and then, and a database that is away stops nothing (GAP-21)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coterie.entities.retention import Retention
from coterie.kernel.chance import Chance
from coterie.kernel.supervisor import Supervisor
from coterie.settings import Settings
from tests.unit.entities.stores import unreachable

pytestmark = pytest.mark.simulated(seeds=2)


class Purged:
    """`storage.Messages`, as far as retention needs it: so many ids, of which each second is old enough."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[dict[str, Any]] = []
        self.at_s: list[float] = []
        self.failing: list[Exception] = []

    async def purge(self, **given: Any) -> tuple[int, str]:
        self.asked.append(given)
        self.at_s.append(asyncio.get_running_loop().time())
        if self.failing:
            raise self.failing.pop()
        done = int(given["after"] or 0) + given["most"]
        return given["most"] // 2, str(done) if done < self.count else ""


def retention(messages: Purged) -> Retention:
    settings = Settings.load({"retention": "1h", "key_retention": "2h"}, environ={})
    purged: Any = messages
    return Retention(purged, settings, chance=Chance(1), supervisor=Supervisor(Chance(1)))


async def test_a_purge_goes_on_where_the_last_batch_ended_with_pauses_between() -> None:
    messages = Purged(3_500)
    keeping = retention(messages)
    assert await keeping.purge() == 2_000
    assert keeping.purged == 2_000
    assert [each["after"] for each in messages.asked] == ["", "1000", "2000", "3000"]
    assert {(each["retention_s"], each["key_retention_s"]) for each in messages.asked} == {(3600.0, 7200.0)}
    pauses = [later - earlier for earlier, later in zip(messages.at_s, messages.at_s[1:], strict=False)]
    assert min(pauses) > 0, "others get their turn"


async def test_it_purges_now_and_then_until_it_stops_also_past_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    messages = Purged(10)
    messages.failing = [unreachable]
    keeping = retention(messages)
    keeping.start()
    keeping.start()
    await asyncio.sleep(600)
    times = len(messages.asked)
    assert 6 <= times <= 21, "each half to one and a half minutes, by one task"
    assert "old messages cannot be deleted just now" in caplog.text
    await keeping.stop()
    await asyncio.sleep(600)
    assert len(messages.asked) == times
