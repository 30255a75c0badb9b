"""Persisted calls in real processes: whoever dies, freezes or restarts, each payment is made once.

Each test ends with the judgement of all payments: what was acknowledged is there, once and whole [INV-D1, INV-D2, B3].
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.cluster.bank_cluster import bank

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from coterie.testing import Server
    from coterie.testing.database import Way


async def test_gap_02_runners_are_killed_and_frozen_and_a_client_dies_under_load(url: str, tmp_path: Path) -> None:
    """REBAL-03, REBAL-04: the survivor finds in storage what was pending; what a dead client has sent goes on."""
    async with bank(url, tmp_path) as branch:
        killed, frozen, _ = branch.runners
        await killed.kill()
        await branch.clients[0].kill()
        await frozen.freeze()
        await branch.paying(150)
        await killed.start()
        await frozen.thaw()
        if not frozen.alive:  # ended while it was frozen in a commit [C3]
            await frozen.start()
        await branch.working(*branch.runners)


async def test_b2_the_commit_of_a_holder_that_was_frozen_in_it_is_refused(url_by_day: str, tmp_path: Path) -> None:
    """INV-F2: SIGSTOP between its last look at its lease and the write; its successor has made the payment by then."""
    async with bank(url_by_day, tmp_path, runners=0, clients=0) as branch:
        await branch.start_runners(BANK_DIE="halt commit")
        paying = asyncio.create_task(branch.pay("account-1", to="account-2"))
        await branch.wait_until(lambda: branch.records.refresh().began)
        (frozen,) = branch.runners
        (successor,) = await branch.start_runners()
        await paying
        assert branch.records.refresh().by.keys() == {frozen.name, successor.name}, "the test shows nothing"
        await frozen.thaw()
        await branch.wait_until(lambda: branch.records.refresh().halted)
        assert branch.records.halted == ["fenced"]


@pytest.mark.postgres
async def test_gap_06_the_database_crashes_and_restarts_under_load(
    postgres_server: Server, postgres_url: str, tmp_path: Path
) -> None:
    async with bank(postgres_url, tmp_path, runners=2, clients=1, pays=16) as branch:
        postgres_server.restart("immediate")
        await branch.paying(100)
        postgres_server.restart("fast")
        await branch.paying(100)


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["requests", "replies"])
async def test_gap_09_a_runner_that_cannot_be_reached_gets_its_messages_from_storage(
    way: Way, url: str, tmp_path: Path
) -> None:
    """And its replies are found there."""
    with ExitStack() as stack:
        async with bank(url, tmp_path, runners=0, clients=0) as branch:
            wire = await branch.start_behind_proxy(stack)
            await branch.pay("account-1", to="account-2")
            wire.cut(way)
            await branch.pay("account-1", to="account-2")
            wire.heal()


async def test_dur_02_all_runners_die_and_their_clients_too_and_a_new_one_finishes_what_was_sent(
    url: str, tmp_path: Path
) -> None:
    """State is there again, a scheduled payment is made once and not early [INV-D5], by whoever lives then."""
    async with bank(url, tmp_path, runners=2, clients=1) as branch:
        (sender,) = await branch.start_clients(BANK_HOW="sent later")
        scheduled = await branch.schedule("account-1", to="account-2", delay_s=3.0)
        for each in branch.runners:
            await each.kill()
        await branch.paying(50)  # nobody is there to do it: these are acknowledged because they are stored
        await sender.kill()
        await branch.clients[0].kill()
        assert await branch.pending(), "nothing was left to do: the test shows nothing"
        await branch.runners[0].start()
        await branch.client.result(scheduled, timeout="2m")


RUNNERS_DIE = ["load", "due", "fetch", "commit 3", "insert", "setback", "suspect"]
CLIENTS_DIE = ["insert", "insert 5"]


async def die_at(moments: Sequence[str], url: str, folder: Path, *, client: bool) -> None:
    """One process after the other comes and dies at a moment of a message's path; others carry on."""
    async with bank(url, folder, runners=2, clients=1, pays=16, pause_s=0.05, flaw=0.05) as branch:
        for moment in moments:
            start = branch.start_clients if client else branch.start_runners
            (victim,) = await start(BANK_DIE=moment)
            if "suspect" in moment:  # which only who takes over from a dead one has to ask for
                await branch.working(victim)
                await branch.runners[0].kill()
            await branch.wait_until(lambda: not victim.alive)  # noqa: B023 used in this turn only
            assert victim.exit_code == -9, f"{moment}: {victim.tail()}"
            await branch.paying(20)
            if not branch.runners[0].alive:
                await branch.runners[0].start()


def each_moment(methods: Sequence[str]) -> list[str]:
    return [f"{when} {method}" for method in methods for when in ("before", "during", "after")]


async def test_a_runner_dies_before_and_after_a_commit_of_which_nobody_has_heard(
    url_by_day: str, tmp_path: Path
) -> None:
    """Incident 12: a sample of the moments below."""
    await die_at(["before commit 3", "after commit 3"], url_by_day, tmp_path, client=False)


@pytest.mark.nightly
async def test_a_runner_may_die_at_each_statement_of_a_messages_path(url: str, tmp_path: Path) -> None:
    await die_at(each_moment(RUNNERS_DIE), url, tmp_path, client=False)


@pytest.mark.nightly
async def test_a_client_may_die_at_each_statement_of_a_messages_path(url: str, tmp_path: Path) -> None:
    await die_at(each_moment(CLIENTS_DIE), url, tmp_path, client=True)
