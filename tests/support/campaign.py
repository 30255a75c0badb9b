"""Many seeds of one workload on all cores, with progress, replays and a table of the chaos points reached.

    python -m tests.support.campaign tests.simulation.workloads.kv:main --seeds 5000

A workload is a coroutine function without arguments that raises when a promise is broken. A failing seed prints one
line to paste and a readable trace. Now and then a seed is run twice: its trace must be the same. A run that grows or
goes on without end fails like any other.

Limits of a process that runs seeds, so that a run which grows or goes on without end is a failure like any other.

Memory is limited by the system: what would take more raises `MemoryError`. Time is limited by a signal: it finds the
process in the middle of the run, of which nothing can be mended, so the process tells where it was, and ends. Neither
ends C code that never returns: that is left to the process that started it (see `Crew`).

What became of one seed of a workload: run once, and once more if it failed or is to be repeated.

The processes of a campaign: each runs one seed after another within its limits, and is replaced when one fails.

    campaign ──number──▶ process ──what became of it──▶ campaign
                            └─ dies, or says nothing for too long: that is what became of it

A process is not used again after a failure: after one that ran out of memory it has little left.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import itertools
import logging
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.testing.run import SeedRun, unwatched
from tests.support.chaos_points import coverage_table, declared_points

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from types import FrameType

    from coterie.testing.run import Watch

    Workload = Callable[[], Coroutine[Any, Any, Any]]
    from collections.abc import Iterable

    Pipe = multiprocessing.connection.Connection[Any, Any]


MEMORY_MIB = 2_048
RUN_S = 120.0

_FRAMES_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may take.

    Args:
        memory_mib: Address space of its process. Usual runs stay below a tenth of the default, and as many processes
            as there are cores leave most machines room to breathe.
        run_s: Real time. Usual runs take a second or two, so that no busy machine makes one fail.
        grace_s: Real time in which a process must have told of a run beyond its limit, before it is killed.
    """

    memory_mib: int = MEMORY_MIB
    run_s: float = RUN_S
    grace_s: float = 30.0

    @property
    def seed_s(self) -> float:
        """Real time after which a process can be expected to have told of a seed, which may run twice."""
        return 2 * self.run_s + self.grace_s


def limit_memory(limits: Limits) -> None:
    """Let this process take no more memory, from now on."""
    wished, (_, most) = limits.memory_mib * 2**20, resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (wished if most == resource.RLIM_INFINITY else min(wished, most), most))


@contextmanager
def watched(limits: Limits, tell: Callable[[SeedRun, str], object], run: SeedRun) -> Iterator[None]:
    """Limit the time of a run: beyond it `tell` is called, and the process ends. On the main thread only."""

    def end(_: int, frame: FrameType | None) -> None:
        try:
            _lift()
            stack = "".join(traceback.format_stack(frame)[-_FRAMES_SHOWN:])
            head = f"no end after {limits.run_s:g}s of real time; it was in\n{stack}"
            tell(run, f"{head}{run.report()}\n{run.loop.waits()}")
        finally:
            os._exit(1)  # also if nobody is left to be told

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limits.run_s)
    try:
        yield
    except MemoryError as error:
        _lift()
        error.add_note(f"its process may take {limits.memory_mib:,} MiB of memory\n{run.loop.waits()}")
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _lift() -> None:
    """Telling takes memory too."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


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
    run = SeedRun(number, watch=watch)
    failure = ""
    try:
        run(workload)
    except MemoryError as error:
        error.add_note(run.report())
        raise
    except Exception as error:
        failure = f"{_told(error)}\n{run.report()}"
    return Seed(number, run.loop.trace.digest(), failure, hits=run.chaos.hits, taken=run.chaos.taken)


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).strip()


REPLAY_EVERY = 50

_spawning = multiprocessing.get_context("spawn")


def run_seeds(name: str, seeds: Iterable[int], *, jobs: int, limits: Limits | None = None) -> Iterator[Seed]:
    """Run seeds of the workload `module:function` in `jobs` processes, in any order.

    Promise:
        Each seed has a result, whatever its run does to its process.
    """
    load(name)  # a name that is wrong is wrong here, not once a seed
    limits = limits or Limits()
    left = iter(seeds)
    hands: list[_Hand] = []
    try:
        hands.extend(_Hand(name, limits, number) for number in itertools.islice(left, jobs))
        while hands:
            for hand in _ready(hands):
                seed = hand.result()
                after = next(left, None)
                if after is not None and not seed.failure:
                    hand.begin(after)
                else:
                    hand.end()
                    hands.remove(hand)
                    hands.extend([] if after is None else [_Hand(name, limits, after)])
                yield seed
    finally:
        for hand in hands:
            hand.end()


def load(name: str) -> Workload:
    """The workload `module:function`; modules are also looked for where the command was given."""
    module, _, function = name.partition(":")
    sys.path[:0] = [] if "" in sys.path else [""]
    workload: Workload = getattr(importlib.import_module(module), function)
    return workload


class _Hand:
    """A process, and the seed it is busy with."""

    def __init__(self, name: str, limits: Limits, number: int) -> None:
        self.pipe, there = _spawning.Pipe()
        self._limits = limits
        self._process = _spawning.Process(target=_serve, args=(there, name, limits), daemon=True)
        self._process.start()
        there.close()  # so that the pipe ends with the process
        self.begin(number)

    def begin(self, number: int) -> None:
        """Give it a seed."""
        self.number = number
        self.until = time.monotonic() + self._limits.seed_s
        with contextlib.suppress(OSError):  # it has died: the result will say so
            self.pipe.send_bytes(b"%d" % number)

    def result(self) -> Seed:
        """What became of the seed, once there is something to read or the time is over."""
        if not self.pipe.poll():
            return Seed(self.number, failure=f"its process said nothing for {self._limits.seed_s:g}s and was killed")
        try:
            return msgspec.json.decode(self.pipe.recv_bytes(), type=Seed)
        except (EOFError, OSError):
            self._process.join()
            return Seed(self.number, failure=f"its process died, exit code {self._process.exitcode}")

    def end(self) -> None:
        """Let nothing of it be left."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self.pipe.close()


def _ready(hands: list[_Hand]) -> list[_Hand]:
    """Wait for those that have a result, or are late with it."""
    left_s = min(hand.until for hand in hands) - time.monotonic()
    told = multiprocessing.connection.wait([hand.pipe for hand in hands], timeout=max(0.0, left_s))
    return [hand for hand in hands if hand.pipe in told or time.monotonic() >= hand.until]


def _serve(pipe: Pipe, name: str, limits: Limits) -> None:
    """In a process of its own: run the seeds that come, until one fails or no more come."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the campaign's to take: it ends this process
    logging.getLogger("coterie").addHandler(logging.NullHandler())  # what breaks is said by the checkers, once
    workload = load(name)
    limit_memory(limits)

    def tell(run: SeedRun, failure: str) -> None:
        _send(pipe, Seed(run.seed, failure=failure))

    watch = functools.partial(watched, limits, tell)
    seed = Seed(0)
    while not seed.failure:
        try:
            number = int(pipe.recv_bytes())
        except EOFError:
            return
        seed = run_seed(workload, number, replay=number % REPLAY_EVERY == 0, watch=watch)
        _send(pipe, seed)


def _send(pipe: Pipe, seed: Seed) -> None:
    seed.failure = seed.failure.encode("utf-8", "backslashreplace").decode()  # half a character is no JSON
    pipe.send_bytes(msgspec.json.encode(seed))


_LINE_EVERY_S = 5.0
_SOURCES = Path(__file__).parents[1]


@dataclass
class CampaignCounts:
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


def campaign(name: str, *, first: int, count: int, jobs: int, limits: Limits) -> CampaignCounts:
    """Run a range of seeds and talk about it on stderr."""
    tally, began, spoke = CampaignCounts(name, count), time.perf_counter(), 0.0
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
    parser = argparse.ArgumentParser(prog="python -m tests.support.campaign", description=__doc__.partition("\n")[0])
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
    return f"python -m tests.support.campaign {name} --first {seed} --seeds 1 --jobs 1"


if __name__ == "__main__":
    main()
