"""The processes of a campaign: each runs one seed after another within its limits, and is replaced when one fails.

    campaign ──number──▶ process ──what became of it──▶ campaign
                            └─ dies, or says nothing for too long: that is what became of it

A process is not used again after a failure: after one that ran out of memory it has little left.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import logging
import multiprocessing
import multiprocessing.connection
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.testing.limits import Limits, limit_memory, watched
from coterie.testing.verdicts import Seed, run_seed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from coterie.testing.running import Run
    from coterie.testing.verdicts import Workload

    Pipe = multiprocessing.connection.Connection[Any, Any]

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

    def tell(run: Run, failure: str) -> None:
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
