"""Many seeds of one workload on all cores, with progress, replays and a table of the chaos points reached.

    python -m coterie.testing.campaign tests.simulation.workloads.kv:main --seeds 5000

A workload is a coroutine function without arguments that raises when a promise is broken. A failing seed prints one
line to paste and a readable trace. Now and then a seed is run twice: its trace must be the same. A run that grows or
goes on without end fails like any other (see `limits`).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.testing.chaos import coverage_table, declared_points
from coterie.testing.crew import run_seeds
from coterie.testing.limits import MEMORY_MIB, RUN_S, Limits

if TYPE_CHECKING:
    from coterie.testing.verdicts import Seed

_LINE_EVERY_S = 5.0
_SOURCES = Path(__file__).parents[1]


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


def campaign(name: str, *, first: int, count: int, jobs: int, limits: Limits) -> Tally:
    """Run a range of seeds and talk about it on stderr."""
    tally, began, spoke = Tally(name, count), time.perf_counter(), 0.0
    redraw = sys.stderr.isatty()
    for seed in run_seeds(name, range(first, first + count), jobs=jobs, limits=limits):
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
    parser.add_argument(
        "--memory", type=int, default=MEMORY_MIB, help=f"what a process may take, in MiB (default {MEMORY_MIB})"
    )
    parser.add_argument(
        "--seconds", type=float, default=RUN_S, help=f"what a run may take, in real time (default {RUN_S:g})"
    )
    options = parser.parse_args()
    limits = Limits(memory_mib=options.memory, run_s=options.seconds)
    tallies = [
        campaign(name, first=options.first, count=options.seeds, jobs=options.jobs, limits=limits)
        for name in options.workload
    ]
    hits: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for tally in tallies:
        hits.update(tally.hits)
        taken.update(tally.taken)
    sources = (path for path in _SOURCES.rglob("*.py") if path.name != "chaos.py")  # which only explains them
    print(coverage_table(declared_points(sources), hits, taken))
    sys.exit(1 if any(tally.failed or tally.diverged for tally in tallies) else 0)


def _again(name: str, seed: int) -> str:
    return f"python -m coterie.testing.campaign {name} --first {seed} --seeds 1 --jobs 1"


if __name__ == "__main__":
    main()
