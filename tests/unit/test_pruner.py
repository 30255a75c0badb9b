"""The pruner: bounded statements until nothing is left, a batch of each table in turn, and an outage stops nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from coterie.kernel.random import Random
from coterie.kernel.supervisor import Supervisor
from coterie.settings import Settings
from coterie.storage.contracts.units import UnitsPurged
from coterie.work.pruner import TABLES, Pruner
from tests.unit.entities.fake_storage import unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.simulated(seeds=2)


class Store:
    """`storage.Storage`, as far as the pruner needs it: so many rows of each table that are due."""

    def __init__(self, **due: int) -> None:
        self.due = Counter(due)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.at_s: list[float] = []
        self.failing: list[Exception] = []
        self.kv = SimpleNamespace(purge=lambda **given: self._delete("kv", given))
        self.states = SimpleNamespace(purge=lambda **given: self._delete("states", given))
        self.ticks = SimpleNamespace(purge=lambda **given: self._delete("ticks", given))
        self.units = SimpleNamespace(purge=self._units)
        self.activity = SimpleNamespace(purge=lambda **given: self._delete("activity", given))
        self.incoming = SimpleNamespace(purge=lambda **given: self._delete("incoming", given))
        self.schedules = SimpleNamespace(purge=lambda **given: self._delete("schedules", given))
        self.run_messages = SimpleNamespace(purge=lambda **given: self._delete("run_messages", given))
        self.messages = SimpleNamespace(purge=lambda **given: self._by_id("messages", given))
        self.jobs = SimpleNamespace(purge=lambda **given: self._by_id("jobs", given))

    async def _delete(self, table: str, given: dict[str, Any]) -> int:
        self.asked.append((table, given))
        self.at_s.append(asyncio.get_running_loop().time())
        if self.failing:
            raise self.failing.pop()
        gone: int = min(given["most"], self.due[table])
        self.due[table] -= gone
        return gone

    async def _units(self, **given: Any) -> UnitsPurged:
        return UnitsPurged(("singleton:s/left",) if self.due["units"] == 1 else (), await self._delete("units", given))

    async def _by_id(self, table: str, given: dict[str, Any]) -> tuple[int, str]:
        """Each second one is old enough."""
        deleted = await self._delete(table, given)
        return deleted // 2, str(int(given["after"] or 0) + deleted) if self.due[table] else ""


def pruner(store: Any, tables: Sequence[Any] = TABLES) -> Pruner:
    settings = Settings.load({"retention": "1h", "key_retention": "2h"}, environ={})
    return Pruner(store, settings, chance=Random(1), supervisor=Supervisor(Random(1)), tables=tables)


async def test_it_goes_on_until_nothing_is_left_a_batch_of_each_table_in_turn() -> None:
    due = {"kv": 2, "states": 700, "ticks": 500, "units": 12_001, "activity": 3, "incoming": 4, "schedules": 5}
    due["run_messages"] = 6
    store = Store(**due, messages=1_700, jobs=600)
    counts = await pruner(store).prune()
    assert counts == {
        "kv": 2,
        "states": 700,
        "ticks": 500,
        "units": 12_001,
        "activity": 3,
        "incoming": 4,
        "schedules": 5,
        "run_messages": 6,
        "messages": 850,
        "jobs": 300,
    }
    assert +store.due == Counter()
    assert [table for table, _ in store.asked][:13] == [*TABLES, "states", "ticks", "units"], (
        "no table waits for another"
    )
    assert {given["most"] for _, given in store.asked} == {500}, "each statement is bounded"
    assert [given["after"] for table, given in store.asked if table == "messages"] == ["", "500", "1000", "1500"]
    assert [given["after"] for table, given in store.asked if table == "jobs"] == ["", "500"]
    kept = {tuple(sorted((key, told) for key, told in given.items() if key.endswith("_s"))) for _, given in store.asked}
    assert kept == {
        (),
        (("older_s", 3600.0),),
        (("older_s", 7200.0),),
        (("key_retention_s", 7200.0), ("retention_s", 3600.0)),
    }
    of_units = [at_s for (table, _), at_s in zip(store.asked, store.at_s, strict=True) if table == "units"]
    pauses = [later - earlier for earlier, later in pairwise(of_units)]
    assert min(pauses) > 0, "others get their turn"


async def test_a_client_prunes_keys_alone() -> None:
    store = Store(kv=600, units=10)
    assert await pruner(store, ["kv"]).prune() == {"kv": 600}
    assert {table for table, _ in store.asked} == {"kv"}


async def test_what_was_abandoned_is_told(caplog: pytest.LogCaptureFixture) -> None:
    await pruner(Store(units=1)).prune()
    assert "singleton:s/left was deleted with its steps: no runner has continued it for 3600s" in caplog.text


async def test_it_prunes_each_minute_until_it_stops_also_past_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    store = Store(kv=10, units=10)
    store.failing = [unreachable]
    keeping = pruner(store)
    keeping.start()
    await asyncio.sleep(61)
    assert "kv were not pruned" in caplog.text
    assert store.due["units"] == 0, "the other tables are"
    await asyncio.sleep(61)
    assert +store.due == Counter()
    times = len(store.asked)
    await keeping.stop()
    await asyncio.sleep(600)
    assert len(store.asked) == times
