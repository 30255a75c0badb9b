"""Persisted calls in real processes: whoever dies, freezes or restarts, each payment is made once."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from tests.processes.branch import bank

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


async def test_gap_02_a_runner_that_is_killed_under_load_loses_and_doubles_nothing(url: str, tmp_path: Path) -> None:
    """REBAL-03, INV-D1, INV-D2."""
    async with bank(url, tmp_path) as branch:
        await branch.paying()
        await branch.runners[0].kill()
        await branch.paying(100)
        await branch.runners[0].start()
        await branch.working(*branch.runners)
        print(await branch.close_day())
