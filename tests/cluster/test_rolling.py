"""A rolling restart of all runners under load: no payment is lost, doubled or failed; how much later answers come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.cluster.bank_cluster import Branch, bank
from tests.cluster.seat_cluster import STEADY

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

STEADILY = {"BANK_TIMEOUT_S": "120", "BANK_HOW": "awaited sent"}


async def test_f6_a_rolling_restart_of_all_runners_loses_doubles_and_fails_nothing(
    url_by_day: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each old runner leaves by SIGTERM when a new one works."""
    async with bank(url_by_day, tmp_path, clients=0, times=STEADY) as branch:
        await branch.start_clients(2, pays=16, pause_s=0.05, **STEADILY)
        await branch.working(*branch.runners)
        began_s = time.monotonic()
        await branch.paying(500)
        rolling_s = time.monotonic()
        for old in list(branch.runners):
            (new,) = await branch.start_runners()
            await branch.working(new)
            assert await old.stop() == 0, old.tail()
        over_s = time.monotonic()
        counts = await branch.close_day()
        assert not branch.records.failed, branch.records.failed
        assert counts["unanswered"] + counts["retried"] == 0, counts
        calm, rolled = waits(branch, began_s, rolling_s), waits(branch, rolling_s, over_s)
        with capsys.disabled():
            print(f"\nundisturbed: {figures(calm)}\nrolling:     {figures(rolled)}, 0 lost, 0 doubled, 0 failed")


def waits(branch: Branch, since_s: float, until_s: float) -> list[float]:
    """How long the awaited payments took that were begun in a time, sorted."""
    told = branch.records.told.values()
    return sorted(each.took_s for each in told if each.what == "awaited" and since_s <= each.at_s < until_s)


def figures(waits: list[float]) -> str:
    p50, p99, most = (waits[int((len(waits) - 1) * part)] * 1e3 for part in (0.5, 0.99, 1))
    return f"{len(waits)} answers after p50 {p50:.0f} ms, p99 {p99:.0f} ms, at most {most:.0f} ms"
