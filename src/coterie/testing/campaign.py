"""Many seeds of one workload on all cores, with progress, replays and a table of the chaos points reached.

    python -m coterie.testing.campaign tests.simulation.workloads.kv:main --seeds 5000

A workload is a coroutine function without arguments that raises when a promise is broken. A failing seed prints one
line to paste and a readable trace. Now and then a seed is run twice: its trace must be the same.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.testing.chaos import coverage_table, declared_points
from coterie.testing.running import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    Workload = Callable[[], Coroutine[Any, Any, Any]]

REPLAY_EVERY = 50
_LINE_EVERY_S = 5.0
_SOURCES = Path(__file__).parents[1]


@dataclass
class Seed:
    """What became of one seed."""

    number: int
    digest: str
    failure: str = ""
    replayed: bool = False
    diverged: bool = False
    hits: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)


@dataclass
class Tally:
    """What became of all of them."""

    workload: str
    total: int
    done: int = 0
    failed: int = 0
    replayed: int = 0
    diverged: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)

    def add(self, seed: Seed) -> None:
        """Count one."""
        self.done += 1
        self.failed += bool(seed.failure)
        self.replayed += seed.replayed
        self.diverged += seed.diverged
        self.hits.update(seed.hits)
        self.taken.update(seed.taken)

    def line(self, *, seconds: float) -> str:
        """How far it is, how fast, how long still."""
        rate = self.done / seconds if seconds else 0.0
        left = "" if self.done == self.total or not rate else f"  {(self.total - self.done) / rate:,.0f}s left"
        return (
            f"simulating {self.workload}  {self.done:,} of {self.total:,} seeds  {rate * 3600:,.0f} an hour"
            f"  {self.failed} failed  {self.replayed} replayed, {self.diverged} differed{left}"
        )


def run_seed(workload: Workload, number: int, *, replay: bool) -> Seed:
    """Run one seed, and once more if it failed or should be replayed."""
    first = _attempt(workload, number)
    if replay or first.failure:
        again = _attempt(workload, number)
        first.replayed, first.diverged = True, again.digest != first.digest
    return first


def run_seeds(name: str, seeds: Iterable[int], *, jobs: int) -> Iterable[Seed]:
    """Run seeds of the workload `module:function` in `jobs` processes, in any order."""
    work = [(name, seed) for seed in seeds]
    if jobs == 1:
        yield from map(_work, work)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_work, work, chunksize=4)


def campaign(name: str, *, first: int, count: int, jobs: int) -> Tally:
    """Run a range of seeds and talk about it on stderr."""
    tally, began, spoke = Tally(name, count), time.perf_counter(), 0.0
    redraw = sys.stderr.isatty()
    for seed in run_seeds(name, range(first, first + count), jobs=jobs):
        tally.add(seed)
        passed = time.perf_counter() - began
        if seed.failure:
            print(f"\n✗ seed {seed.number}\n{seed.failure}\nagain: {_again(name, seed.number)}", file=sys.stderr)
        if passed - spoke >= (0.2 if redraw else _LINE_EVERY_S):
            spoke = passed
            _say(tally.line(seconds=passed), redraw=redraw)
    _say(tally.line(seconds=time.perf_counter() - began) + "\n" * redraw, redraw=redraw)
    return tally


def _say(line: str, *, redraw: bool) -> None:
    print(f"\r{line}" if redraw else line, end="" if redraw else "\n", file=sys.stderr, flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m coterie.testing.campaign", description=__doc__.partition("\n")[0])
    parser.add_argument("workload", nargs="+", help="module:function")
    parser.add_argument("--seeds", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--first", type=int, default=0, help="the first one (default 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    options = parser.parse_args()
    tallies = [campaign(name, first=options.first, count=options.seeds, jobs=options.jobs) for name in options.workload]
    hits: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for tally in tallies:
        hits.update(tally.hits)
        taken.update(tally.taken)
    sources = (path for path in _SOURCES.rglob("*.py") if path.name != "chaos.py")  # which only explains them
    print(coverage_table(declared_points(sources), hits, taken))
    sys.exit(1 if any(tally.failed or tally.diverged for tally in tallies) else 0)


def _work(task: tuple[str, int]) -> Seed:
    name, seed = task
    module, _, function = name.partition(":")
    logging.getLogger("coterie").addHandler(logging.NullHandler())  # what breaks is said by the checkers, once
    sys.path[:0] = [] if "" in sys.path else [""]
    return run_seed(getattr(importlib.import_module(module), function), seed, replay=seed % REPLAY_EVERY == 0)


def _attempt(workload: Workload, number: int) -> Seed:
    run = Run(number)
    failure = ""
    try:
        run(workload)
    except Exception as error:  # noqa: BLE001 whatever broke, it is the seed's result
        failure = f"{''.join(traceback.format_exception(error)).strip()}\n{run.report()}"
    return Seed(number, run.loop.trace.digest(), failure, hits=run.chaos.hits, taken=run.chaos.taken)


def _again(name: str, seed: int) -> str:
    return f"python -m coterie.testing.campaign {name} --first {seed} --seeds 1 --jobs 1"


if __name__ == "__main__":
    main()
