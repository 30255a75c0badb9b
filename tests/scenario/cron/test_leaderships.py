"""Leaderships on real databases, with two runners in one process, a singleton and a cron: they do not come and go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from coterie import Cluster, Retry
from tests.scenario.persisted.entity_program import until

if TYPE_CHECKING:
    from coterie import Leader, Tick
    from coterie.runner import Runner

NEVER = "0 0 29 2 *"


def program(url: str, name: str, led: list[str], *, fails: bool = False) -> Cluster:
    cluster = Cluster(url, runner_name=name, shards=1, lease_renew="200ms")

    @cluster.singleton("x", retry=Retry(2, base="10ms"))
    async def body(_: Leader[None]) -> None:
        led.append(name)
        if fails:
            raise OSError("no licence on this machine")
        await asyncio.Event().wait()

    @cluster.cron("y", NEVER)
    async def tick(_: Tick) -> None:
        """Nothing."""

    return cluster


async def renewed(*clusters: Cluster, times: int = 6) -> None:
    """Each of them has renewed its lease, and looked at its plans, so often."""
    memberships: list[Any] = [
        cast("Any", cast("Runner", each._participant.present()))._life.membership for each in clusters
    ]
    wanted = [each._renewals + times for each in memberships]
    await until(lambda: all(each._renewals >= number for each, number in zip(memberships, wanted, strict=True)))


async def test_after_resign_the_former_leader_does_not_come_back(url: str) -> None:
    """The cron and the singleton are with one runner then, and stay there."""
    led: list[str] = []
    anna, bert = program(url, "anna", led), program(url, "bert", led)
    async with anna, bert:
        await until(lambda: led != [])
        await renewed(anna, bert)
        former = led[-1]
        before = len(led)
        successor = await anna.singletons.resign("x")
        assert successor != former
        await until(lambda: len(led) > before)
        await renewed(anna, bert)
        assert led[before:] == [successor]


async def test_a_body_that_fails_on_one_runner_is_left_to_the_other(url: str) -> None:
    led: list[str] = []
    anna, bert = program(url, "anna", led, fails=True), program(url, "bert", led)
    async with anna:
        await until(lambda: led == ["anna"] * 2)
        async with bert:
            await until(lambda: "bert" in led)
            await renewed(anna, bert)
            assert led == ["anna", "anna", "bert"]


async def test_a_body_that_fails_on_the_only_runner_is_tried_there_later_and_health_says_why_nobody_leads(
    url: str,
) -> None:
    led: list[str] = []
    anna = program(url, "anna", led, fails=True)
    async with anna:
        await until(lambda: led == ["anna"] * 2)
        await renewed(anna)
        assert led == ["anna"] * 2
        (reason,) = [each for each in (await anna.health()).reasons if each.what == "singleton x"]
        assert reason.status == "unhealthy"
        assert reason.problem.startswith("nobody leads it; anna failed with OSError, and takes it again in ")
        assert reason.hint == "coterie singletons show x has the error"
