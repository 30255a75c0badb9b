"""Limits of a process that runs seeds, so that a run which grows or goes on without end is a failure like any other.

Memory is limited by the system: what would take more raises `MemoryError`. Time is limited by a signal: it finds the
process in the middle of the run, of which nothing can be mended, so the process tells where it was, and ends. Neither
ends C code that never returns: that is left to whoever started the process (see `crew`).
"""

from __future__ import annotations

import os
import resource
import signal
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from coterie.testing.running import Run

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
def watched(limits: Limits, tell: Callable[[Run, str], object], run: Run) -> Iterator[None]:
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
