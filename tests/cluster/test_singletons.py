"""One leader in real processes, saving every 20 ms: whatever befalls it, another one goes on with what it has saved.

Each test ends with the judgement of all that was noted: no save that was acknowledged is lost, no former leader's is
accepted, hooks ran in order [S1, S2, S7, INV-F2].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.leader_cluster import block, crew, cut, freeze, kill, restart, roll
from tests.cluster.seat_cluster import QUICK, STEADY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from coterie.testing import Server
    from tests.cluster.leader_cluster import Befall


async def befalls(*what: Befall, url: str, folder: Path, times: Mapping[str, str] = QUICK) -> None:
    async with crew(url, folder, times=times) as there:
        for each in what:
            assert await each(there), "nobody else has led: the test shows nothing"


async def test_a_leader_that_is_killed_or_leaves_is_replaced_at_once(url: str, tmp_path: Path) -> None:
    """INV-F5, INV-L1: its lease would still run for seconds."""
    await befalls(kill, roll, url=url, folder=tmp_path, times=STEADY)


async def test_b2_a_leader_that_freezes_or_blocks_is_replaced_and_refused(url: str, tmp_path: Path) -> None:
    """B1: with its old epoch, and the version that the state has now."""
    await befalls(freeze, block, url=url, folder=tmp_path)


@pytest.mark.postgres
async def test_b2_a_leader_that_is_cut_off_is_replaced_and_refused(postgres_url: str, tmp_path: Path) -> None:
    """Incidents 2 and 31."""
    await befalls(cut, url=postgres_url, folder=tmp_path)


@pytest.mark.postgres
async def test_gap_06_nothing_is_lost_when_the_database_restarts_under_a_leader(
    postgres_server: Server, postgres_url: str, tmp_path: Path
) -> None:
    """Saves wait meanwhile."""
    await befalls(restart(postgres_server), url=postgres_url, folder=tmp_path, times=STEADY)


TIMES = 20


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("what", [kill, roll, freeze, block], ids=lambda befall: befall.__name__)
async def test_whatever_befalls_leaders_again_and_again(what: Befall, url: str, tmp_path: Path) -> None:
    await befalls(*[what] * TIMES, url=url, folder=tmp_path)


@pytest.mark.nightly
@pytest.mark.postgres
@pytest.mark.timeout(1800)
async def test_leaders_are_cut_off_and_the_database_restarts_again_and_again(
    postgres_server: Server, postgres_url: str, tmp_path: Path
) -> None:
    await befalls(*[cut, restart(postgres_server)] * TIMES, url=postgres_url, folder=tmp_path)
