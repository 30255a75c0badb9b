"""Runs code on the simulator's loop: one seed, one run, with nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.kernel import chaos
from coterie.kernel.random import Random
from coterie.testing.chaos import SeededChaos
from coterie.testing.loop.guards import guarded
from coterie.testing.loop.loop import SimLoop
from coterie.testing.loop.trace import moment

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Watch = Callable[["SeedRun"], contextlib.AbstractContextManager[None]]

T = TypeVar("T")

log = logging.getLogger("coterie.testing")

_SEED_BITS = 31
_OTHERS_SHOWN = 3
_COLLECT_STEPS = 200_000  # a collection between runs costs some 50 ms in a test process: not after each small run


def run_simulation(main: Callable[[], Coroutine[Any, Any, T]], *, seed: int | None = None) -> T:
    """Run `main()` in virtual time, in an order that the seed decides, and return its result.

    Args:
        main: Called and awaited on the simulator's loop.
        seed: Repeats a run. Without one a random seed is drawn, and named in the error if the run fails.

    Example:
        >>> async def main() -> float:
        ...     await asyncio.sleep(3600)
        ...     return asyncio.get_running_loop().time()
        >>> run_simulation(main, seed=7)
        3600.0

    Promise:
        The same seed and the same code give the same run. Nothing of it goes on when this returns: what is still
        pending is discarded without running its `finally` blocks. Unhandled errors fail the run.

    Raises:
        RuntimeError: Called inside a running loop.
    """
    chosen = Random().bits(_SEED_BITS) if seed is None else seed
    name = getattr(main, "__qualname__", "…")
    again = f"run_simulation({'…' if '<' in name else name}, seed={chosen})"
    run = SeedRun(chosen)
    try:
        result = run(main)
        if faultless := run.faultless():
            log.warning("%s: %s", again, faultless)
        return result
    except BaseException as error:
        error.add_note(f"{run.report()}\nagain: {again}")
        raise


def current_loop() -> SimLoop:
    """The simulator's loop that runs here.

    Raises:
        RuntimeError: Another loop runs, or none.
    """
    loop = asyncio._get_running_loop()
    if not isinstance(loop, SimLoop):
        raise RuntimeError(  # noqa: TRY004 it is not an argument that is wrong
            "simulate needs the simulator's loop: run_simulation(main), or @pytest.mark.simulated on the test"
        )
    return loop


def unwatched(_: SeedRun) -> contextlib.AbstractContextManager[None]:
    """A run without limits."""
    return contextlib.nullcontext()


class SeedRun:
    """One run of one seed. Called once, with the coroutine function to run.

    Args:
        watch: Entered while it runs, to limit it. Nothing is discarded yet when it is left.
    """

    def __init__(self, seed: int, *, watch: Watch = unwatched) -> None:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError(
                "a simulation makes a loop of its own and cannot run inside another: start it from plain code, "
                "or mark the test with @pytest.mark.simulated"
            )
        self.seed = seed
        self.chaos = SeededChaos(seed)
        self.loop = SimLoop(seed)
        self.chaos.on_work = self.loop.trace.saw
        self._watch = watch

    def __call__(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        collecting = gc.isenabled()
        gc.disable()
        chaos.install(self.chaos)
        try:
            with guarded(self.seed), self._watch(self):
                return self._result(main)
        finally:
            chaos.install(None)
            self.loop.dispose()
            if collecting:
                gc.enable()
            _collect(self.loop.steps)

    def report(self) -> str:
        """The report of a failed run: its seed, how far it came, and the last events."""
        loop = self.loop
        head = (
            f"seed {self.seed} failed at {moment(loop.now_ns)} after {loop.steps:,} steps, "
            f"nodes scheduled {loop.nodes.schedule.name}"
        )
        parts = [head, self.faultless(), loop.trace.text()]
        return "\n".join(part for part in parts if part).rstrip()

    def faultless(self) -> str:
        """A message that faults were requested and none has struck; empty if one has, or none was requested."""
        loop = self.loop
        if not loop.faults or loop.strikes:
            return ""
        return f"no fault struck in {loop.now_ns / 1e9:.1f}s of virtual time (of {', '.join(loop.faults)})"

    def _result(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            result = self.loop.run_until_complete(main())
        except BaseException as error:
            for other in self.loop.unhandled()[:_OTHERS_SHOWN]:
                error.add_note(f"also, nobody handled {other!r}")
            raise
        if errors := self.loop.unhandled():
            raise BaseExceptionGroup("errors that nobody handled", errors)
        return result


_steps_since = 0


def _collect(steps: int) -> None:
    """Collect garbage between runs, now and then: during a run it would happen at moments that do not repeat."""
    global _steps_since
    _steps_since += steps + 1_000
    if _steps_since >= _COLLECT_STEPS and gc.isenabled():
        _steps_since = 0
        gc.collect()
