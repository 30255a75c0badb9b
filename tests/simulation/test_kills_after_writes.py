"""No procedure that commits twice is undone, doubled or stuck by a kill between the two."""

from __future__ import annotations

import pytest

from tests.simulation.kills_after_writes import ALONE, PROCEDURES, play

KINDS = sorted({kind for kinds in PROCEDURES.values() for kind in kinds})
DAILY = [
    ("register runner lease", 2),
    ("delete runner", 1),
    ("delete runner lease", 1),
    ("release seat", 1),
    ("TickNote", 1),
    ("UnitEnd of a cron", 1),
    ("StepWrite of a shard", 2),
    ("StateSave", 2),
    ("Commit", 2),
    ("start", 1),
    ("suspend", 1),
    ("load", 1),
]
"""Which commit of which kind a runner does not survive; the others every night."""
MOST = 6


@pytest.mark.simulated(seeds=1)
async def test_the_list_of_what_is_committed_in_a_row_is_complete() -> None:
    """A new kind of commit belongs to a procedure: then it is cut there, too."""
    seen = {kind for label in (await play(None)).labels for kind in label.split("+")}
    assert seen == {*KINDS, *ALONE}


@pytest.mark.parametrize(("kind", "number"), DAILY)
@pytest.mark.simulated(seeds=1)
async def test_a_kill_just_after_a_commit_neither_undoes_nor_doubles_what_was_stored(kind: str, number: int) -> None:
    await play((kind, number))


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(1, MOST + 1))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.simulated(seeds=1)
async def test_a_kill_just_after_any_commit_neither_undoes_nor_doubles_what_was_stored(kind: str, number: int) -> None:
    """All of them; of a kind that is rarer there is nothing more to be killed at."""
    await play((kind, number), at_most=True)
