"""A program with tasks that run in processes: these import it by its name."""

from __future__ import annotations

import os
import signal
import sys
import time

from coterie import Cluster, Discard, Retry, Snooze, current

cluster = Cluster("sqlite://")
ARGUMENTS = list(sys.argv)
"""As programs read them, when they are imported."""


class TooDeep(Exception):
    """Declared by `work`."""


@cluster.task(pool="process", errors=[TooDeep], retry=Retry(base="10ms", unless=[KeyError]))
def work(what: str) -> str:
    """Do as it is told."""
    match what:
        case "declared":
            raise TooDeep("a mine")
        case "snooze":
            raise Snooze("10m")
        case "discard":
            raise Discard("no such thing")
        case "fail":
            raise ValueError("a wrong value")
        case "never again":
            raise KeyError("a wrong key")
        case "exit":
            sys.exit(3)
        case "arguments":
            return repr(ARGUMENTS)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
    print("a line for stdout")
    return f"{what} {os.getpid()} {current().name} {current().attempt}"


@cluster.task(pool="process")
def slow(ignores: bool) -> None:
    """Report progress, then run until it is cancelled, or for ever."""
    current().progress(1, 2, str(os.getpid()))
    while ignores or not current().cancelled:
        time.sleep(0.001)
