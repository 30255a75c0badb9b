"""A runner of an earlier version beside one of today: each calls the other, and each takes over from the other (L3).

Earlier means the last commit before modules and classes were moved and renamed: what may not have changed are the rows,
the statements, the wire and the names in both.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster
from coterie.testing import Process, processes
from tests.cluster.seat_cluster import NO_HTTP, QUICK
from tests.cluster.version_program import ACCOUNTS, SHARDS, Account, next_of, program, travel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coterie.testing import Processes

EARLIER = "cd2d0a8"
ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("version_program.py")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the earlier version."""
    command = ["git", "-C", str(ROOT), "archive", EARLIER, "src"]
    try:
        packed = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"commit {EARLIER} is not in this clone: fetch the whole history to run this test")
    folder = tmp_path_factory.mktemp("earlier")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
    return folder / "src"


def events(process: Process, what: str) -> list[dict[str, Any]]:
    """What a process has noted of a kind, in all its starts."""
    noted = [json.loads(line[2:]) for line in process.log if line.startswith("@ ")]
    return [event for event in noted if event["what"] == what]


class Mixed:
    """Runners of both versions, a client of today in this process, and what must hold of what they did."""

    def __init__(self, cluster: Processes, client: Cluster, sources: Mapping[str, Path]) -> None:
        self.cluster = cluster
        self.client = client
        self.sources = sources
        self.versions: dict[str, str] = {}
        self.numbers: list[int] = []

    async def start(self, version: str, **variables: str) -> Process:
        """Start a process of a version, and see that it runs the code of that version."""
        source = self.sources[version]
        await self.cluster.start(1, env={"PYTHONPATH": str(source), **variables})
        new = self.cluster.runners[-1]
        self.versions[new.name] = version
        (event,) = events(new, "called" if variables else "up")
        assert Path(event["code"]) == source / "coterie"
        return new

    def account(self, name: str) -> Account:
        return self.client.ref(Account, name, timeout=120.0)

    async def homes(self) -> dict[str, str]:
        """The version on which each account lives."""
        names = await asyncio.gather(*(self.account(each).where() for each in ACCOUNTS))
        return {account: self.versions[name] for account, name in zip(ACCOUNTS, names, strict=True)}

    async def shared(self) -> dict[str, str]:
        """Wait until accounts live on both versions; who lives where."""
        found: dict[str, str] = {}

        async def both() -> bool:
            found.update(await self.homes())
            return set(found.values()) == set(self.sources)

        await self.cluster.wait_until(both)
        return found

    async def add(self, number: int) -> None:
        """Add a number to all accounts, from here."""
        self.numbers.append(number)
        await asyncio.gather(*(self.account(each).add(number, next_of(each)) for each in ACCOUNTS))

    def leader(self) -> Process:
        """Who leads: the process of the last grant."""
        led = [(event["epoch"], process) for process in self.cluster.runners for event in events(process, "leads")]
        return max(led, key=lambda each: each[0])[1]

    def saved(self) -> list[int]:
        """The numbers of all saves, sorted."""
        return sorted(event["number"] for process in self.cluster.runners for event in events(process, "saved"))

    async def kill(self, victim: Process, *, heir: Process) -> None:
        """SIGKILL while persisted calls are on their way: the other version takes over all that it had."""
        number = len(self.numbers) + 1
        runs = [await self.client.start_workflow(travel, number, id=f"{number}-{each}") for each in range(SHARDS)]

        def legs() -> int:
            return sum(event["number"] == number for event in events(victim, "leg"))

        await self.cluster.wait_until(legs, within="60s")
        on_the_way = asyncio.gather(self.add(number))
        await victim.kill()
        before = (events(victim, "saved") or events(heir, "saved"))[-1]["number"]
        ticks = len(events(heir, "tick"))
        await on_the_way
        assert await asyncio.gather(*(run.result(timeout="60s") for run in runs)) == [4 * number] * SHARDS
        assert set((await self.homes()).values()) == {self.versions[heir.name]}
        await self.cluster.wait_until(lambda: self.leader() is heir)
        assert events(heir, "leads")[-1]["number"] >= before, "a save that was acknowledged is lost"
        await self.cluster.wait_until(lambda: len(events(heir, "tick")) >= ticks + 2)

    async def judge(self) -> None:
        """Nothing was lost, nothing was done twice."""

        async def quiet() -> bool:
            return not await self.client.messages.list(status="pending", limit=1)

        await self.cluster.wait_until(quiet)
        for account, sums in zip(
            ACCOUNTS, await asyncio.gather(*(self.account(each).sums() for each in ACCOUNTS)), strict=True
        ):
            assert sorted(sums.added) == sorted(self.numbers), account
            assert sorted(sums.passed) == sorted(self.numbers), account
        saved = self.saved()
        assert len(saved) == len(set(saved)), "two leaders have saved the same number"
        ticks = [each for each in await self.client.crons.history("each", limit=1000) if each.kind == "scheduled"]
        seconds = [int(each.scheduled_at.timestamp()) for each in reversed(ticks)]
        assert all(each.count == 1 for each in ticks)
        assert seconds == list(range(seconds[0], seconds[0] + len(seconds))), "a tick was left out, or was there twice"


async def test_l3_an_earlier_version_and_this_one_work_in_one_cluster_and_take_over_from_each_other(
    url_by_day: str, earlier: Path
) -> None:
    sources = {"earlier": earlier, "today": ROOT / "src"}
    env = {"COTERIE_SHARDS": str(SHARDS), "COTERIE_DRAIN": "5s", **NO_HTTP, **QUICK}

    def ready(process: Process) -> object:
        return any(event["pid"] == process.pid for what in ("up", "called") for event in events(process, what))

    client = program(Cluster(url_by_day, shards=SHARDS))
    started = processes(PROGRAM, runners=0, url=url_by_day, env=env, ready=ready, proxied=False)
    async with started as cluster, client.connect():
        mixed = Mixed(cluster, client, sources)
        first = await mixed.start("earlier")
        other = await mixed.start("today")
        homes = await mixed.shared()

        # Calls from handler to handler, in both directions.
        one = {version: next(each for each in ACCOUNTS if homes[each] == version) for version in sources}
        for mine, theirs in (("earlier", "today"), ("today", "earlier")):
            names = await mixed.account(one[mine]).ask(one[theirs])
            assert [mixed.versions[name] for name in names] == [mine, theirs]

        # Persisted calls by clients of both versions, from and to runners of both.
        await mixed.add(1)
        await mixed.start("earlier", VERSION_CALLS="1 2")  # 1 is known: nothing happens again
        mixed.numbers.append(2)

        # Whoever leads is killed, and then whoever leads after it: both versions take over from the other.
        await cluster.wait_until(lambda: any(events(each, "saved") for each in (first, other)))
        victim, heir = (first, other) if mixed.leader() is first else (other, first)
        await mixed.kill(victim, heir=heir)
        back = await mixed.start(mixed.versions[victim.name])
        await mixed.shared()
        await mixed.kill(heir, heir=back)
        await mixed.judge()
