"""What became of one seed of a workload: run once, and once more if it failed or is to be repeated."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coterie.testing.running import Run, unwatched

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from coterie.testing.running import Watch

    Workload = Callable[[], Coroutine[Any, Any, Any]]


@dataclass
class Seed:
    """What became of one seed."""

    number: int
    digest: str = ""
    failure: str = ""
    replayed: bool = False
    diverged: bool = False
    hits: dict[str, int] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)


def run_seed(workload: Workload, number: int, *, replay: bool, watch: Watch = unwatched) -> Seed:
    """Run one seed, and once more if it failed or should be replayed.

    Args:
        watch: To limit each run.
    """
    try:
        first = _attempt(workload, number, watch)
        if replay or first.failure:
            again = _attempt(workload, number, watch)
            first.replayed, first.diverged = True, again.digest != first.digest
    except MemoryError as error:  # not replayed: where it strikes differs from run to run
        return Seed(number, failure=_told(error))
    return first


def _attempt(workload: Workload, number: int, watch: Watch) -> Seed:
    run = Run(number, watch=watch)
    failure = ""
    try:
        run(workload)
    except MemoryError as error:
        error.add_note(run.report())
        raise
    except Exception as error:  # noqa: BLE001 whatever broke, it is the seed's result
        failure = f"{_told(error)}\n{run.report()}"
    return Seed(number, run.loop.trace.digest(), failure, hits=run.chaos.hits, taken=run.chaos.taken)


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).strip()
