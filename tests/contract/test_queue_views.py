"""What people see of queues and jobs is the same on every engine: counts, the oldest job, what a filter chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from coterie.observe.jobs import queues
from coterie.observe.jobs.filter import JobOptions, choose_jobs, told_job_whole
from tests.contract.jobs import TWO, numbers
from tests.unit.cli.stored_jobs import DEAD, DONE, LATER, OTHER, PARKED, RUNS, WAITS, fill

if TYPE_CHECKING:
    from coterie.storage.interface import Storage


async def test_a_queue_is_counted_by_state(storage: Storage) -> None:
    assert await queues.read(storage.jobs) == ()
    await fill(storage)
    (queue,) = await queues.read(storage.jobs)
    assert (queue.name, queue.group, queue.seats) == ("one", "default", ("queue:one",))
    assert (queue.ready, queue.claimed, queue.later, queue.parked, queue.dead) == (1, 1, 1, 1, 2)
    assert queue.parked_tasks == ("send_email",)
    assert queue.oldest_s is not None
    assert queue.oldest_s >= 0
    assert (queue.limits.concurrency, queue.limits.rate, queue.expected_wait_s) == (2, 50.0, 3_600.0)
    await storage.jobs.pause("queue:one", paused=True)
    (paused,) = await queues.read(storage.jobs)
    assert paused.paused_at is not None


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({}, [WAITS, RUNS, LATER, PARKED, DEAD, OTHER]),
        ({"state": "waiting"}, [WAITS]),
        ({"state": "running", "task": "send_email"}, [RUNS]),
        ({"state": "dead", "error": "timeout"}, [OTHER]),
        ({"state": "done", "queue": "one"}, [DONE]),
        ({"queue": TWO.removeprefix("queue:")}, []),
        ({"tag": f"order={DONE}"}, [DONE]),
        ({"key": f"m-{DEAD}"}, [DEAD]),
        ({"older": "1h"}, []),
    ],
)
async def test_a_filter_chooses_the_same_jobs(storage: Storage, given: dict[str, Any], chosen: list[int]) -> None:
    await fill(storage)
    found = await choose_jobs(storage.jobs, JobOptions(**given), limit=100)
    assert (numbers(found.rows), found.more) == (chosen, False)
    newest = await choose_jobs(storage.jobs, JobOptions(**given), limit=100, newest=True)
    assert numbers(newest.rows) == chosen[::-1]
    first = await choose_jobs(storage.jobs, JobOptions(**given), limit=1)
    assert (numbers(first.rows), first.more) == (chosen[:1], len(chosen) > 1)


async def test_a_job_tells_what_is_stored_of_it(storage: Storage) -> None:
    await fill(storage)
    (running,) = (await choose_jobs(storage.jobs, JobOptions(state="running"), limit=1)).rows
    told = told_job_whole(running, {}, texts=True)
    assert (told["state"], told["key"], told["arguments"]["tenant"]) == ("running", f"m-{RUNS}", "acme")
    assert (told["progress"]["done"], told["progress"]["total"], told["progress"]["note"]) == (5_000, 12_000, "rows")
    hidden = told_job_whole(running, {}, texts=False)
    assert "acme" not in str(hidden)
    assert "rows" not in str(hidden)
