"""The commits of users' transactions are asked for, soon and all together, and wake the owners (O1)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from coterie.entities.persisted import commit_watcher
from coterie.entities.persisted.commit_watcher import CommitWatcher, News
from coterie.errors import PersistenceError
from coterie.kernel.supervisor import Supervisor
from coterie.testing import run_simulation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence


class Database:
    """Transactions, and who asked for them when."""

    def __init__(self) -> None:
        self.ends: dict[str, bool] = {}
        self.asked: list[tuple[float, list[str]]] = []
        self.is_away = False

    async def ended(self, transactions: Sequence[str]) -> Mapping[str, bool]:
        self.asked.append((now_s(), list(transactions)))
        if self.is_away:
            raise PersistenceError(doing="ask", problem="it is away")
        return {each: self.ends[each] for each in transactions if each in self.ends}

    async def insert(self, messages: Any) -> Any:
        raise NotImplementedError

    async def insert_jobs(self, jobs: Any) -> Any:
        raise NotImplementedError

    async def start(self, unit: Any) -> Any:
        raise NotImplementedError


def now_s() -> float:
    return asyncio.get_running_loop().time()


def watched(test: Callable[[CommitWatcher, Database, list[tuple[float, set[News]]]], Awaitable[None]]) -> Any:
    """Run a test in virtual time, with a watcher and what it has woken, when."""

    def wrapped() -> None:
        async def main() -> None:
            database, woken = Database(), list[tuple[float, set[News]]]()

            async def wake(news: Collection[News]) -> None:
                woken.append((now_s(), set(news)))

            watcher = CommitWatcher(database, wake=wake, supervisor=Supervisor())
            try:
                await test(watcher, database, woken)
            finally:
                await watcher.stop()

        run_simulation(main, seed=1)

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


@watched
async def test_a_commit_wakes_the_owners_within_20_ms(
    watcher: CommitWatcher, database: Database, woken: list[tuple[float, set[News]]]
) -> None:
    watcher.watch("7", [("shard:a:1", ""), ("shard:a:2", "u")], messages=["m"])
    await asyncio.sleep(1.0)
    assert watcher.is_open("m")
    database.ends["7"] = True
    began_s = now_s()
    await asyncio.sleep(0.1)
    ((at_s, news),) = woken
    assert at_s - began_s <= 0.021
    assert news == {("shard:a:1", ""), ("shard:a:2", "u")}
    assert not watcher.is_open("m")


@watched
async def test_one_that_is_rolled_back_wakes_nobody_and_is_forgotten(
    watcher: CommitWatcher, database: Database, woken: list[tuple[float, set[News]]]
) -> None:
    watcher.watch("7", [("s", "")], messages=["m"])
    database.ends["7"] = False
    await asyncio.sleep(1.0)
    assert not woken
    assert not watcher.is_open("m")
    assert len(database.asked) == 1, "without open transactions nothing is asked"


@watched
async def test_all_that_are_open_are_asked_for_together(
    watcher: CommitWatcher, database: Database, woken: list[tuple[float, set[News]]]
) -> None:
    for number in range(100):
        watcher.watch(str(number), [(f"s{number % 3}", "")])
        database.ends[str(number)] = True
    await asyncio.sleep(1.0)
    ((_, asked),) = database.asked
    assert len(asked) == 100
    ((_, news),) = woken
    assert news == {("s0", ""), ("s1", ""), ("s2", "")}


@watched
async def test_old_ones_are_asked_for_less_often_and_a_new_one_at_once(
    watcher: CommitWatcher, database: Database, woken: list[tuple[float, set[News]]]
) -> None:
    watcher.watch("old", [("s", "")])
    await asyncio.sleep(600)
    assert len(database.asked) < 3_000
    begun = len(database.asked)
    await asyncio.sleep(60)
    assert len(database.asked) - begun <= 61
    watcher.watch("new", [("t", "")])
    database.ends["new"] = True
    began_s = now_s()
    await asyncio.sleep(0.1)
    assert woken[0][0] - began_s <= 0.005
    await asyncio.sleep(3600)
    asked = len(database.asked)
    await asyncio.sleep(60)
    assert len(database.asked) == asked, "after an hour it is left to the owners' polls"


@watched
async def test_while_the_database_is_away_they_stay_open(
    watcher: CommitWatcher, database: Database, woken: list[tuple[float, set[News]]]
) -> None:
    database.is_away = True
    watcher.watch("7", [("s", "")])
    await asyncio.sleep(60)
    assert len(database.asked) < 200
    database.is_away, database.ends["7"] = False, True
    await asyncio.sleep(1.0)
    assert len(woken) == 1


@watched
async def test_beyond_the_bound_they_are_left_to_the_owners_polls(
    watcher: CommitWatcher, database: Database, woken: list[tuple[float, set[News]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_watcher, "_OPEN_MOST", 2)
        for number in range(3):
            watcher.watch(str(number), [(f"s{number}", "")])
        watcher.watch("1", [("more", "")])
    database.ends = dict.fromkeys("012", True)
    await asyncio.sleep(1.0)
    assert woken[0][1] == {("s0", ""), ("s1", ""), ("more", "")}
