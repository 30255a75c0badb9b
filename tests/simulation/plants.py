"""Planted bugs that the simulator must find, kept for ever: it is judged by them."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from coterie.entities.calls import client
from coterie.errors import PersistenceError, RunnerUnavailable, SendTimeout
from coterie.kv.changes import KeyValues
from coterie.storage.sqlite import seats, states
from coterie.testing import run_simulation
from tests.simulation import (
    planted_crons,
    planted_flows,
    planted_jobs,
    planted_later_starts,
    planted_leaders,
    planted_messages,
    planted_schedules,
    planted_seats,
    planted_talks,
    planted_tasks,
)
from tests.simulation.workloads import calls, fenced, kv
from tests.support.history.ownership import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

SEEDS_MOST = 300


@dataclass(frozen=True)
class Plant:
    """A bug: how it is planted, under which workload it shows, and which promise it breaks.

    Without a promise the workload is a test of one, and fails.
    """

    name: str
    planted: Callable[[], Any]
    workload: Callable[[], Coroutine[Any, Any, object]]
    breaks: tuple[str, ...] = ()

    def found_after(self, *, most: int = SEEDS_MOST) -> int | None:
        """How many seeds it took; None: it was not found."""
        with self.planted():
            for seed in range(most):
                try:
                    run_simulation(self.workload, seed=seed)
                except (AssertionError, TimeoutError) as error:
                    if self.breaks and not (isinstance(error, Violation) and error.promise in self.breaks):
                        raise
                    return seed + 1
        return None


@contextmanager
def _fence_removed() -> Iterator[None]:
    without = states.SQL["update"].replace("and epoch <= :epoch", "")
    with patch.object(states, "held", lambda *_: True), patch.dict(states.SQL, update=without):
        yield


@contextmanager
def _lease_checked_without_lock() -> Iterator[None]:
    # What was seen some time ago is believed at the moment of the eviction.
    with patch.object(seats, "is_still", lambda *_, **__: True):
        yield


@contextmanager
def _unknown_taken_as(answer: bool) -> Iterator[None]:
    right = KeyValues._swapped

    async def wrong(self: KeyValues, *args: Any) -> bool:
        try:
            return await right(self, *args)
        except PersistenceError as error:
            if error.outcome == "unknown":
                return answer
            raise

    with patch.object(KeyValues, "_swapped", wrong):
        yield


@contextmanager
def _belief_anchored_at_the_response() -> Iterator[None]:
    right = fenced.Owner._trust_from
    with patch.object(fenced.Owner, "_trust_from", lambda self, _: right(self, self._now_ns())):
        yield


@contextmanager
def _sent_again_whatever_happened() -> Iterator[None]:
    with patch.object(client, "may_run_elsewhere", lambda error: isinstance(error, RunnerUnavailable | SendTimeout)):
        yield


@contextmanager
def _deadline_forgotten_while_nobody_is_found() -> Iterator[None]:
    with patch.object(client.Trip, "left_s", 5.0):
        yield


PLANTS = (
    Plant("fence removed", _fence_removed, fenced.main, ("INV-F2", "INV-F3")),
    Plant("lease checked without a lock", _lease_checked_without_lock, fenced.main, ("INV-F4",)),
    Plant("unknown commit taken as failure", lambda: _unknown_taken_as(False), kv.main, ("INV-D1", "INV-D6")),
    Plant("unknown commit taken as success", lambda: _unknown_taken_as(True), kv.main, ("INV-D1",)),
    Plant("belief anchored at the response", _belief_anchored_at_the_response, fenced.main, ("INV-F4",)),
    Plant("a call that may have run sent again", _sent_again_whatever_happened, calls.main, ("INV-D8", "INV-E4")),
    Plant("deadline forgotten while waiting", _deadline_forgotten_while_nobody_is_found, calls.main, ("F8",)),
    *(
        Plant(*planted)
        for room in (
            *(planted_seats, planted_messages, planted_leaders, planted_crons, planted_flows, planted_schedules),
            *(planted_jobs, planted_talks, planted_tasks, planted_later_starts),
        )
        for planted in room.PLANTED
    ),
)


def main() -> int:
    """Plant each bug and print after how many seeds it was found; 0 if all were."""
    logging.getLogger("coterie").addHandler(logging.NullHandler())  # what breaks is said below
    print(f"{'PLANTED':<46}{'INSTRUMENT':<14}{'WORKLOAD':<16}FOUND AFTER")
    missed = 0
    for plant in PLANTS:
        seeds = plant.found_after()
        missed += seeds is None
        workload = plant.workload.__module__.rpartition(".")[2]
        found = f"✗ not within {SEEDS_MOST} seeds" if seeds is None else f"✓ {seeds} seeds"
        print(f"{plant.name:<46}{'simulator':<14}{workload:<16}{found}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
