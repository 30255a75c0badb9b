"""Measuring on a noisy machine: rivals take turns in one run, and what counts is the median of their ratios."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Work = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Row:
    """One line of the table: what we do beside what the machine does without us."""

    scenario: str
    callers: int
    ours_per_s: float
    raw_per_s: float
    ratio: float
    goal: float | None

    @property
    def met(self) -> bool:
        return self.goal is None or self.ratio >= self.goal


async def rate(work: Work, *, callers: int, seconds: float) -> float:
    """How often per second `callers` tasks together finish `work`: each at least once, and then anew at once."""
    until = time.perf_counter() + seconds
    done = 0

    async def caller() -> None:
        nonlocal done
        while True:
            await work()
            done += 1
            if time.perf_counter() >= until:
                return

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return done / (time.perf_counter() - began)


async def compare(
    scenario: str, *, ours: Work, raw: Work, callers: int, goal: float | None, rounds: int, seconds: float
) -> Row:
    """Let both take turns; the median of each and of the ratios within a round."""
    for work in (raw, ours):
        await rate(work, callers=callers, seconds=seconds / 4)
    pairs = []
    for _ in range(rounds):
        base = await rate(raw, callers=callers, seconds=seconds)
        pairs.append((await rate(ours, callers=callers, seconds=seconds), base))
    return Row(
        scenario,
        callers,
        statistics.median(ours for ours, _ in pairs),
        statistics.median(base for _, base in pairs),
        statistics.median(ours / base for ours, base in pairs),
        goal,
    )


def fsync_per_s(folder: str | None = None, *, seconds: float = 0.5) -> float:
    """How often per second this disk takes 8 KiB for good: the floor under every durable figure."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        block, done, began = b"x" * 8192, 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            os.pwrite(file.fileno(), block, 0)
            os.fdatasync(file.fileno())
            done += 1
        return done / (time.perf_counter() - began)


async def p50_s(work: Work, *, times: int) -> float:
    """The median time of one call after the other."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        await work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


async def compare_alone(scenario: str, *, ours: Work, raw: Work, goal: float | None, rounds: int, times: int) -> Row:
    """One call at a time, taking turns: the medians as rates, so that more is better here too."""
    for work in (raw, ours):
        await p50_s(work, times=times // 4)
    pairs = []
    for _ in range(rounds):
        base = await p50_s(raw, times=times)
        pairs.append((await p50_s(ours, times=times), base))
    return Row(
        scenario,
        1,
        1 / statistics.median(ours for ours, _ in pairs),
        1 / statistics.median(base for _, base in pairs),
        statistics.median(base / ours for ours, base in pairs),
        goal,
    )
