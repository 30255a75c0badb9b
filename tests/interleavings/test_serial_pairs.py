"""No order of two statements on the same rows ends as in neither of the two serial orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.interleavings.database import SQL, stage
from tests.interleavings.serial_pairs import explore_serially, midway, serial_pairs
from tests.interleavings.serial_plants import SERIAL_PLANTS
from tests.interleavings.steps import Steps

if TYPE_CHECKING:
    from tests.interleavings.plant import Plant
    from tests.support.interleaving import Count, Pair

pytestmark = pytest.mark.postgres

PAIRS = serial_pairs(Steps(SQL))
GROUPS = sorted({name.partition(":")[0] for name in PAIRS})
DAILY = [
    "expired key: put x purge",
    "expired key: insert x purge",
    "expired key: fenced insert x purge",
    "expired key: clear x purge",
    "expired keys, one held: purge x put",
    "key: replace x discard",
    "pending message: cancel fenced x revive all",
    "dead message: revive x remove",
    "dead message: revive x discard dead",
    "dead message: revive all x remove dead",
    "dead messages, one held: remove dead x revive and end",
    "dead messages, one held: remove x revive and end",
    "done message: lone insert x purge",
    "message of a free seat: cancel x cancel",
    "expired state: lone save x purge",
    "expired state: claim x purge",
    "cron: end x purge",
    "paused cron: resume x purge",
    "unit of a leader: purge x steps",
    "unit that left a child: children x forget",
    "run and a message: receive x receive in another branch",
    "run and a message: send m1 x purge messages",
    "run that gives back: receive x give back",
    "run that gives back: send x give back",
    "run that waits: send x receive",
    "run that waits: send x suspend at the inbox",
    "run that has waited too long: send x receive",
    "run that may begin: send x begin and wait",
    "unit of a run: publish x purge",
    "unit of a run: receive x end",
    "unit of a run that is over: send m1 x purge",
    "ready job: claim job x cancel job",
    "ready job: claim job x park jobs",
    "later job: mature jobs x cancel job",
    "claimed job: end job x cancel job",
    "claimed job: give job back x cancel job",
    "lost job: take jobs back x cancel job",
    "dead job: revive job x remove jobs",
    "done job: insert job x purge jobs",
    "claimed job and a schedule: fire when j1 is over x end job",
    "claimed job and a schedule: fire when j1 is over x purge jobs",
    "seat: claim job x release",
    "unit that is stuck: suspend x retry stuck",
    "unit that is stuck: end x retry stuck",
    "incoming row: move x cancel",
    "incoming row that is the same: purge x purge",
    "incoming row and a free key: move x insert",
    "incoming row and the key of a done message: move x purge messages",
    "incoming run: start x start in Python",
    "seat: cancel x take",
    "seat: begin x evict",
    "seat: suspect x evict",
    "seat: move incoming x evict",
    "seat: start incoming x evict",
    "seat: fire x evict",
    "schedule: fire x swap",
    "schedule: fire x pause",
    "schedule: fire for the last time x pause",
    "schedule: fire x set",
    "runner: learn x evict",
    "runner: learn x learn another",
    "machine: lease x extend",
    "machine: lease x lease",
    "secret: draw 11 x draw 22",
]
"""Enough for every change: each purge, and what only here has a pair of its own."""


@pytest.mark.parametrize("name", DAILY)
async def test_two_statements_end_as_one_after_the_other(name: str, url: str) -> None:
    pair = PAIRS[name]
    async with stage(url) as on:
        _require_well(await explore_serially(on, pair, order=midway(pair) if pair.c else ""), pair)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("group", GROUPS)
async def test_all_statements_of_a_group_end_as_one_after_the_other(group: str, url: str) -> None:
    """Each against each."""
    async with stage(url) as on:
        for name, pair in PAIRS.items():
            if name.partition(":")[0] == group:
                _require_well(await explore_serially(on, pair), pair)


@pytest.mark.parametrize("plant", SERIAL_PLANTS, ids=lambda plant: plant.name.replace(" ", "-"))
async def test_a_statement_without_a_second_look_is_found(plant: Plant, url: str) -> None:
    pair = serial_pairs(plant.steps())[plant.found_by]
    async with stage(url) as on:
        count = await explore_serially(on, pair, order=midway(pair) if pair.c else "")
    assert any(plant.says in problem for run in count.failed for problem in run.problems)


def _require_well(count: Count, pair: Pair) -> None:
    assert not count.failed, "\n\n".join(map(str, count.failed[:3]))
    assert not count.failures.keys() - pair.allows, f"refusals: {count.failures}"
