"""Calls between real processes: a client calls while runners are killed, frozen, stopped and replaced."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie import Cluster, CoterieError, RunnerUnavailable
from coterie.testing import Processes, processes
from tests.cluster.call_program import SHARDS, Account, NewerAccount, Vault, noted, program
from tests.cluster.seat_cluster import NO_HTTP, QUICK, STEADY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

TELLER = Path(__file__).with_name("call_program.py")
CLIENTS = 20
SLACK_S = 60.0  # beyond the deadline, for a machine that is busy: what hangs, hangs for ever


@dataclass
class CallCluster:
    """Runners, a client of theirs in this process, and what it was told."""

    tellers: Processes
    client: Cluster
    journals: Path
    kind: type[Account] = Account
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    told: dict[int, Exception | None] = field(default_factory=dict)

    def account(self, who: str, *, timeout: float = 20.0) -> Account:
        return self.client.ref(self.kind, who, timeout=timeout)

    async def call(self, who: str, *, think_s: float = 0.0, timeout: float = 20.0) -> str | None:
        """One call, and how it ended: never much later than its deadline."""
        number, began_s = next(self.numbers), time.monotonic()
        try:
            answer = await self.account(who, timeout=timeout).add(number, think_s)
        except CoterieError as error:
            answer, self.told[number] = None, error
        else:
            self.told[number] = None
        assert time.monotonic() - began_s < timeout + SLACK_S, f"call {number} hung: {self.told[number]}"
        return answer

    async def call_on(self, over: asyncio.Event, chance: random.Random) -> None:
        """One client, a call after the other."""
        while not over.is_set():
            think_s, timeout = chance.choice((0.0, 0.0, 0.05)), chance.choice((1.0, 5.0, 20.0))
            await self.call(f"account-{chance.randrange(200)}", think_s=think_s, timeout=timeout)
            await asyncio.sleep(chance.uniform(0, 0.05))

    def judge(self) -> None:
        """INV-D8: no handler began twice with a call; those that were answered ran, those refused did not."""
        ran = Counter(noted(self.journals))
        assert not [number for number, times in ran.items() if times > 1]
        assert not [number for number, error in self.told.items() if error is None and not ran[number]]
        unsent = [
            number for number, error in self.told.items() if isinstance(error, RunnerUnavailable) and not error.sent
        ]
        assert not [number for number in unsent if ran[number]]

    async def owners(self) -> set[str]:
        """Who answers calls to many entities just now."""
        answers = await asyncio.gather(*(self.call(f"account-{number}") for number in range(100)))
        return {answer for answer in answers if answer is not None}


@asynccontextmanager
async def tellers(
    url: str, folder: Path, *, runners: int = 3, times: Mapping[str, str] = QUICK, version: int = 1
) -> AsyncIterator[CallCluster]:
    journals = folder / "journals"
    journals.mkdir()
    env = {"TELLER_JOURNAL": str(journals), "COTERIE_SHARDS": str(SHARDS), "COTERIE_DRAIN": "5s", **NO_HTTP, **times}
    client = program(Cluster(url, shards=SHARDS), version=version)
    async with processes(TELLER, runners=runners, url=url, env=env) as cluster, client.connect():
        stage = CallCluster(cluster, client, journals, Account if version == 1 else NewerAccount)
        await until_shared(stage, runners)
        yield stage
        stage.judge()


async def until_shared(stage: CallCluster, runners: int) -> None:
    """All runners answer calls."""

    async def shared() -> bool:
        for each in stage.tellers.runners:
            if not each.alive:  # its database did not answer in time when it started: a supervisor would do the same
                await each.start()
        return len(await stage.owners()) == runners

    await stage.tellers.wait_until(shared)


async def test_rebal_03_calls_end_typed_and_run_once_at_most_while_runners_are_killed_and_frozen(
    url: str, tmp_path: Path
) -> None:
    """20 clients, kill -9, SIGSTOP and SIGTERM; afterwards everything answers again."""
    chance = random.Random(6)
    async with tellers(url, tmp_path) as stage:
        over = asyncio.Event()
        clients = [asyncio.create_task(stage.call_on(over, random.Random(number))) for number in range(CLIENTS)]
        for verb in ("kill", "freeze", "stop", "freeze"):
            victim = chance.choice([each for each in stage.tellers.runners if each.alive])
            await getattr(victim, verb)()
            await asyncio.sleep(chance.uniform(0.5, 4.0))
            if victim.frozen:
                await victim.thaw()
            if not victim.alive:
                await victim.start()
        over.set()
        await asyncio.gather(*clients)
        answered = sum(error is None for error in stage.told.values())
        assert answered > 100, "hardly any call was answered: the test shows nothing"
        await until_shared(stage, 3)


async def test_f6_a_rolling_deploy_fails_no_call(url_by_day: str, tmp_path: Path) -> None:
    async with tellers(url_by_day, tmp_path, runners=2, times=STEADY) as stage:
        over = asyncio.Event()
        clients = [asyncio.create_task(steady(stage, number, over)) for number in range(CLIENTS)]
        for old in list(stage.tellers.runners):
            await stage.tellers.start(1)
            await stage.tellers.wait_until(lambda: known(stage, 3))
            assert await old.stop() == 0, old.tail()
        over.set()
        await asyncio.gather(*clients)
        assert {number: error for number, error in stage.told.items() if error is not None} == {}
        assert len(stage.told) > 100


async def steady(stage: CallCluster, client: int, over: asyncio.Event) -> None:
    while not over.is_set():
        await stage.call(f"account-{client}", think_s=0.01, timeout=120.0)


async def known(stage: CallCluster, runners: int) -> bool:
    return len(await stage.owners()) == runners


async def test_l3_two_versions_of_a_program_understand_each_other(url_by_day: str, tmp_path: Path) -> None:
    """A new parameter, method and entity type: what the old program does not know waits until it is gone."""
    async with tellers(url_by_day, tmp_path, runners=1, times=STEADY, version=2) as stage:
        (old,) = stage.tellers.runners
        newer = stage.client.ref(NewerAccount, "a", timeout="2m")
        answer = await newer.add(next(stage.numbers), shout=True)
        assert answer == answer.lower(), "the old program drops what it does not know"
        await stage.tellers.start(1, env={"TELLER_VERSION": "2"})
        await until_shared(stage, 2)
        waiting: list[Any] = [
            asyncio.create_task(stage.client.ref(NewerAccount, f"account-{n}", timeout="2m").counted())
            for n in range(20)
        ]
        waiting += [asyncio.create_task(stage.client.ref(Vault, f"{n}", timeout="2m").open()) for n in range(20)]
        assert await stage.call("a") is not None, "what it knows goes on meanwhile"
        assert await old.stop() == 0, old.tail()
        assert set(await asyncio.gather(*waiting[20:])) == {"open"}
        assert all(count >= 0 for count in await asyncio.gather(*waiting[:20]))
        assert (await newer.add(next(stage.numbers), shout=True)).isupper()
