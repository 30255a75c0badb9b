"""Runners behind a pooler that lends sessions per transaction: leases decide, the fence holds (GAP-07, incident 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.seat_cluster import QUICK, comes_back, holders, said
from tests.cluster.seat_program import now_ns
from tests.support.pooler import Pooler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.postgres

TIMES = QUICK
"""A call has a third of it, and takes more round trips here."""
BY_LEASE = "runner {} was evicted: its lease has run out"
BY_WITNESSES = "runner {} was evicted: its process is gone"


@pytest.fixture
def pooler(postgres_url: str) -> Iterator[Pooler]:
    with Pooler(postgres_url, sessions=5) as pooler:
        yield pooler


async def test_gap_07_incident_8_runners_frozen_and_killed_behind_a_pooler_are_replaced_when_their_leases_have_run_out(
    pooler: Pooler, tmp_path: Path
) -> None:
    """B2, M12: late writes of the frozen one are refused."""
    async with holders(pooler.url, tmp_path, runners=2, times=TIMES, proxied=False) as stage:
        victim, observer = stage.runners
        await victim.freeze()
        await stage.settled()
        await stage.writing()
        thawed_ns = now_ns()
        await victim.thaw()
        assert await comes_back(stage, victim, since_ns=thawed_ns)
        assert not stage.late_of(victim, since_ns=thawed_ns)
        assert stage.journals.of("refused", runner=victim.name, since_ns=thawed_ns), "nothing was tried after the thaw"
        await stage.settled()
        before = said([observer], BY_LEASE.format(victim.name))
        assert before
        await victim.kill()
        # It may have had no seats yet: then nothing has to move, and its eviction is all there is to see.
        await stage.cluster.wait_until(lambda: len(said([observer], BY_LEASE.format(victim.name))) > len(before))
        await stage.settled()
        await stage.writing()
        assert not said([observer], BY_WITNESSES.format(victim.name))
        for each in stage.runners:
            assert len(said([each], "lends sessions per transaction")) == 1
    assert pooler.moves > 100, "hardly a session was swapped: the test shows nothing"


@pytest.mark.nightly
async def test_gap_07_m2_in_a_mixed_cluster_only_those_whose_locks_were_seen_are_replaced_at_once(
    pooler: Pooler, postgres_url: str, tmp_path: Path
) -> None:
    async with holders(postgres_url, tmp_path, runners=2, times=TIMES, proxied=False) as stage:
        await stage.cluster.start(1, env={"COTERIE_URL": pooler.url})
        await stage.settled()
        direct, observer, pooled = stage.runners
        assert said([pooled], "lends sessions per transaction")
        await pooled.kill()
        await stage.settled()
        assert said([direct, observer], BY_LEASE.format(pooled.name))
        await direct.kill()
        await stage.settled()
        await stage.writing()
        assert said([observer], BY_WITNESSES.format(direct.name))
