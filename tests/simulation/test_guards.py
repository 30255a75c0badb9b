"""Guards: the real world raises inside a simulation, randomness repeats, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from coterie.kernel.clock import SystemClock
from coterie.kernel.random import Random
from coterie.testing import run_simulation
from coterie.testing.run import current_loop

if TYPE_CHECKING:
    from collections.abc import Callable


def in_simulation(act: Callable[[], Any], *, seed: int = 1) -> Any:
    async def main() -> Any:
        result = act()
        return await result if asyncio.iscoroutine(result) else result

    return run_simulation(main, seed=seed)


@pytest.mark.parametrize("name", ["time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"])
def test_real_time_raises_and_says_what_to_use(name: str) -> None:
    with pytest.raises(RuntimeError, match=rf"time\.{name}\(\) inside a simulation .*get_running_loop\(\)\.time"):
        in_simulation(lambda: getattr(time, name)())
    assert getattr(time, name)() > 0


def test_blocking_sleep_raises() -> None:
    with pytest.raises(RuntimeError, match=r"time\.sleep\(\).*await asyncio\.sleep"):
        in_simulation(lambda: time.sleep(0.01))


def test_the_system_clock_raises() -> None:
    for read in (SystemClock().wall_ns, SystemClock().steady_ns):
        with pytest.raises(RuntimeError, match="inside a simulation"):
            in_simulation(read)


def test_the_standard_library_may_still_stamp_its_log_records(caplog: pytest.LogCaptureFixture) -> None:
    in_simulation(lambda: logging.getLogger("test").warning("hello"))
    assert caplog.records[0].created > 1e9


def test_threads_raise() -> None:
    with pytest.raises(RuntimeError, match="a thread inside a simulation: there are no threads"):
        in_simulation(lambda: threading.Thread(target=print).start())
    with pytest.raises(RuntimeError, match=r"loop\.run_in_executor\(\) inside a simulation"):
        in_simulation(lambda: asyncio.to_thread(print))
    with pytest.raises(RuntimeError, match=r"loop\.run_in_executor\(\) inside a simulation"):
        in_simulation(lambda: current_loop().run_in_executor(None, print))
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def test_sockets_raise() -> None:
    with pytest.raises(RuntimeError, match="a socket inside a simulation: use the simulated network"):
        in_simulation(lambda: socket.socket())
    with pytest.raises(RuntimeError, match=r"loop\.create_connection\(\) inside a simulation"):
        in_simulation(lambda: asyncio.open_connection("127.0.0.1", 1))
    with pytest.raises(RuntimeError, match=r"loop\.create_server\(\) inside a simulation"):
        in_simulation(lambda: asyncio.start_server(lambda *_: None, "127.0.0.1", 0))
    with pytest.raises(RuntimeError, match=r"loop\.getaddrinfo\(\) inside a simulation"):
        in_simulation(lambda: current_loop().getaddrinfo("localhost", 1))
    socket.socket().close()


def test_processes_and_signals_raise() -> None:
    with pytest.raises(RuntimeError, match=r"loop\.subprocess_exec\(\) inside a simulation"):
        in_simulation(lambda: asyncio.create_subprocess_exec("true"))
    with pytest.raises(RuntimeError, match=r"loop\.add_signal_handler\(\) inside a simulation"):
        in_simulation(lambda: current_loop().add_signal_handler(15, print))


def draw_all() -> list[Any]:
    return [
        random.random(),
        random.SystemRandom().random(),
        os.urandom(8),
        uuid.uuid4(),
        secrets.token_hex(8),
        Random().bits(64),
    ]


def test_randomness_comes_from_the_seed() -> None:
    first, again, other = (in_simulation(draw_all, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert not set(map(str, first)) & set(map(str, other))
    assert not set(map(str, first)) & set(map(str, draw_all()))


def test_the_state_of_random_is_given_back() -> None:
    random.seed(5)
    expected = random.random()
    random.seed(5)
    in_simulation(draw_all)
    assert random.random() == expected


def test_everything_is_given_back_even_after_a_failure() -> None:
    places = [(time, "time"), (time, "sleep"), (threading.Thread, "start"), (os, "urandom"), (random, "_urandom")]
    before = [getattr(place, name) for place, name in places]

    async def failing() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        run_simulation(failing, seed=1)
    assert [getattr(place, name) for place, name in places] == before


def test_other_threads_are_left_alone() -> None:
    """pytest-xdist and pytest-timeout have threads of their own, which must not notice a simulation."""
    go, gone = threading.Event(), threading.Event()
    seen: list[float] = []

    def elsewhere() -> None:
        go.wait(10)
        seen.append(time.monotonic())
        os.urandom(4)
        inner = threading.Thread(target=int)
        inner.start()
        inner.join()
        socket.socket().close()
        seen.append(time.time())
        gone.set()

    thread = threading.Thread(target=elsewhere)
    thread.start()

    def act() -> None:
        go.set()
        gone.wait(10)

    in_simulation(act)
    thread.join()
    assert len(seen) == 2


def test_a_simulation_inside_a_loop_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="cannot run inside another"):
            run_simulation(lambda: asyncio.sleep(0), seed=1)

    asyncio.run(main())
    in_simulation(main)


def test_the_loop_of_another_kind_is_refused_with_the_way_out() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"simulate needs the simulator's loop: run_simulation\(main\)"):
            current_loop()

    asyncio.run(main())
    with pytest.raises(RuntimeError, match="simulate needs"):
        current_loop()
