"""Guards: threads, sockets and real time raise inside a simulation; randomness comes from the seed.

Not guarded, since Python has no hook for them: `datetime.now()` and other clocks read in C, and functions that a module
imported by name before (`from time import monotonic`). Lint rules cover the product; users' code should read the time
from the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from coterie.testing.loop.seeds import stream
from coterie.work.threads import await_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

inside: set[int] = set()
"""The threads that are part of the simulation: that of the loop, and those of its plain functions."""

_USE_LOOP_TIME = "use asyncio.get_running_loop().time(), or the clock you are given"
_TIMES = {
    "time": _USE_LOOP_TIME,
    "time_ns": _USE_LOOP_TIME,
    "monotonic": _USE_LOOP_TIME,
    "monotonic_ns": _USE_LOOP_TIME,
    "perf_counter": _USE_LOOP_TIME,
    "perf_counter_ns": _USE_LOOP_TIME,
    "clock_gettime": _USE_LOOP_TIME,
    "clock_gettime_ns": _USE_LOOP_TIME,
}
# They measure real durations, or stamp log records and spans: nothing that a run depends on.
_MAY_READ_TIME = sys.stdlib_module_names | {
    "_pytest", "coverage", "execnet", "hypothesis", "opentelemetry", "pluggy", "pytest", "pytest_asyncio",
    "pytest_timeout", "xdist",
}  # fmt: skip

_USE_NETWORK = "use the simulated network (coterie.testing.network.network)"
_NO_THREADS = "there are no threads in a simulation: await something of the loop instead"
_REFUSED = {
    "run_in_executor": _NO_THREADS,
    "getaddrinfo": _USE_NETWORK,
    "getnameinfo": _USE_NETWORK,
    "create_connection": _USE_NETWORK,
    "create_server": _USE_NETWORK,
    "create_datagram_endpoint": _USE_NETWORK,
    "create_unix_connection": _USE_NETWORK,
    "create_unix_server": _USE_NETWORK,
    "connect_accepted_socket": _USE_NETWORK,
    "start_tls": _USE_NETWORK,
    "sendfile": _USE_NETWORK,
    "sock_accept": _USE_NETWORK,
    "sock_connect": _USE_NETWORK,
    "sock_recv": _USE_NETWORK,
    "sock_sendall": _USE_NETWORK,
    "add_reader": _USE_NETWORK,
    "add_writer": _USE_NETWORK,
    "connect_read_pipe": _USE_NETWORK,
    "connect_write_pipe": _USE_NETWORK,
    "subprocess_exec": "there are no processes in a simulation: add a node",
    "subprocess_shell": "there are no processes in a simulation: add a node",
    "add_signal_handler": "there are no signals in a simulation: stop, kill or freeze a runner",
}


class SealedLoop(asyncio.BaseEventLoop):
    """A loop without access to the outside: whatever would reach the real world raises and says what to use instead."""


def _refusal(what: str, instead: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        raise RuntimeError(f"{what} inside a simulation: {instead}")

    return refuse


for _name, _instead in _REFUSED.items():
    setattr(SealedLoop, _name, _refusal(f"loop.{_name}()", _instead))


@contextlib.contextmanager
def guarded(seed: int) -> Iterator[None]:
    """Keep this thread in the simulation while the block runs; other threads are not affected by the refusals."""
    before = random.getstate()
    random.seed(f"{seed}/random")
    with contextlib.ExitStack() as stack:
        stack.callback(random.setstate, before)
        inside.add(threading.get_ident())
        stack.callback(inside.discard, threading.get_ident())
        for target, name, replacement in _replacements(seed):
            stack.callback(setattr, target, name, getattr(target, name))
            setattr(target, name, replacement)
        yield


def _replacements(seed: int) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    for name, instead in _TIMES.items():
        yield time, name, _time_guard(f"time.{name}()", instead, getattr(time, name))
    yield time, "sleep", _virtual_sleep(time.sleep)
    start, init = threading.Thread.start, socket.socket.__init__
    yield threading.Thread, "start", _guard("a thread", _NO_THREADS, start)
    yield socket.socket, "__init__", _guard("a socket", _USE_NETWORK, init)
    # uuid4, secrets and SystemRandom all draw from these two names.
    urandom = _seeded(stream(seed, "urandom").randbytes, os.urandom)
    yield os, "urandom", urandom
    yield random, "_urandom", urandom


def _guard(what: str, instead: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def guard(*args: Any, **options: Any) -> Any:
        if threading.get_ident() in inside:
            raise RuntimeError(f"{what} inside a simulation: {instead}")
        return original(*args, **options)

    return guard


def _time_guard(what: str, instead: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def guard(*args: Any) -> Any:
        if threading.get_ident() in inside and not _may_read_time(sys._getframe(1)):
            raise RuntimeError(f"{what} inside a simulation differs from run to run: {instead}")
        return original(*args)

    return guard


def _virtual_sleep(original: Callable[..., Any]) -> Callable[..., Any]:
    """In a plain function it takes virtual time; in a coroutine, where it would stop the loop, it is refused."""

    def sleep(seconds: float) -> None:
        if (simulated := await_here.get()) is not None:
            simulated(lambda: asyncio.sleep(seconds))
        elif threading.get_ident() in inside and not _may_read_time(sys._getframe(1)):
            raise RuntimeError("time.sleep() inside a simulation differs from run to run: use await asyncio.sleep(…)")
        else:
            original(seconds)

    return sleep


def _may_read_time(frame: Any) -> bool:
    """Whether the caller is a tool or the standard library, or a module that is being imported."""
    module = str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] in _MAY_READ_TIME or frame.f_code.co_name == "<module>"


def _seeded(draw: Callable[[int], bytes], original: Callable[[int], bytes]) -> Callable[[int], bytes]:
    def urandom(size: int, /) -> bytes:
        return draw(size) if threading.get_ident() in inside else original(size)

    return urandom
