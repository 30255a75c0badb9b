"""No procedure that commits twice is undone, doubled or stuck by a kill between the two."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from coterie.storage import statements
from tests.simulation.kills_after_writes import ALONE, NOT_RUN, PROCEDURES, play

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
    ("receive a message", 2),
    ("give back messages", 1),
    ("publish a value", 1),
    ("load", 1),
    ("Setback", 1),
    ("fire schedules", 1),
    ("extend machine id", 1),
    ("look after children", 1),
]
"""Which commit of which kind a runner does not survive; the others every night."""
MOST = 6
PACKAGE = "coterie.storage.sqlite.sql"


WRITES = re.compile(r"\b(insert|update|delete|replace)\b")
ROWS = re.compile(r"\([?\d, ]+\)( -- each|(,\n\([?\d, ]+\))*)")
"""Rows of a statement, as they are written and as they are run."""


def writing() -> set[tuple[str, str, str]]:
    """The statements that write: file, name, text."""
    files = [each.name for each in resources.files(PACKAGE).iterdir() if each.name.endswith(".sql")]
    return {
        (file.removesuffix(".sql"), name, ROWS.sub("rows", text))
        for file in files
        for name, text in statements.load(PACKAGE, file).items()
        if WRITES.search(re.sub(r"--.*|'[^']*'", "", text))
    }


@pytest.mark.simulated(seeds=1)
async def test_the_list_of_what_is_committed_in_a_row_is_complete() -> None:
    """A new kind of commit belongs to a procedure: then it is cut there, too. A new statement is run, or excused."""
    ledger = await play(None)
    assert {kind for label in ledger.labels for kind in label.split("+")} == {*KINDS, *ALONE}
    ran = {ROWS.sub("rows", each) for each in ledger.texts}
    excused = {(file, name) for file, names in NOT_RUN.items() for name in names}
    assert {(file, name) for file, name, text in writing() if text not in ran} == excused


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
