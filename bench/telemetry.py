"""What telemetry costs: remote calls without any, with metrics, with all traced; and the memory of an idle runner.

Each variant has its own pair of processes, and they take turns. RAW is the variant without any telemetry.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import statistics
import sys
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.measure import Row
from bench.ownership import Limit

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

IN_FLIGHT = 1_000
MEMORY_MB = 60
_VARIANTS: dict[str, float | None] = {"metrics": 0.95, "tracing": None}
"""What is compared with "absent", and what it has to reach of its calls per second. With tracing each call has two
spans that are recorded, batched and exported to nowhere: what that costs is OpenTelemetry's. `telemetry_peer` sets them
up by their names; the places where there could be spans are part of "metrics"."""
_SETTLED_S = 3.0
_ROOT = Path(__file__).parents[1]
_PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """Each variant beside "absent", in one run; memory."""
    async with AsyncExitStack() as stack:
        pairs = {each: await stack.enter_async_context(_pair(each)) for each in ("absent", *_VARIANTS)}
        figures: dict[str, list[Figures]] = {each: [] for each in pairs}
        for pair in pairs.values():
            await pair.measure(seconds)
        for number in range(rounds * 3):  # many: what else the machine does meets all of them
            for each in list(pairs) if number % 2 else reversed(pairs):
                figures[each].append(await pairs[each].measure(seconds))
    for each, goal in _VARIANTS.items():
        yield _row(f"call, {each} / no telemetry", figures[each], figures["absent"], 0, goal)
        yield _row(f"its CPU time, {each} / none", figures[each], figures["absent"], 1, None)
    yield await _memory()


class Figures(NamedTuple):
    """Of one round."""

    per_s: float
    per_cpu_s: float
    """Calls for each second of CPU that both ends took: what else the machine does shows less in it."""


def _row(scenario: str, ours: list[Figures], raw: list[Figures], which: int, goal: float | None) -> Row:
    ratios = [one[which] / other[which] for one, other in zip(ours, raw, strict=True)]
    per_s, raw_per_s = (statistics.median(each[which] for each in figures) for figures in (ours, raw))
    return Row(scenario, IN_FLIGHT, per_s, raw_per_s, statistics.median(ratios), goal)


class Pair(NamedTuple):
    """A runner, and a client that calls its entities."""

    runner: Process
    client: Process

    async def measure(self, seconds: float) -> Figures:
        """One round."""
        assert self.client.stdin is not None, "it was asked for"
        before_s = self._cpu_s()
        self.client.stdin.write(f"{IN_FLIGHT} {seconds}\n".encode())
        per_s, calls = (await _heard(self.client)).split()
        return Figures(float(per_s), int(calls) / (self._cpu_s() - before_s))

    def _cpu_s(self) -> float:
        """Of the main threads, where the loops run."""
        return sum(int(Path(f"/proc/{each.pid}/schedstat").read_text().split()[0]) for each in self) / 1e9


@asynccontextmanager
async def _pair(variant: str) -> AsyncIterator[Pair]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/bench.db"
        async with _peer("runner", variant, url) as runner, _peer("client", variant, url) as client:
            yield Pair(runner, client)


@asynccontextmanager
async def _peer(end: str, variant: str, url: str) -> AsyncIterator[Process]:
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "bench.telemetry_peer", end, variant, url)
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=_ROOT)
    assert process.stdin is not None, "it was asked for"
    try:
        assert await _heard(process) == "ready", f"the {end} of {variant} did not start"
        yield process
    finally:
        process.stdin.close()
        code = await process.wait()
    assert code == 0, f"the {end} of {variant} ended with {code}"


async def _heard(process: Process) -> str:
    assert process.stdout is not None, "it was asked for"
    return (await process.stdout.readline()).decode().strip()


# Memory


async def _memory() -> Limit:
    """What the README's program takes as a runner that does nothing, its HTTP endpoints served."""
    match = _PROGRAM.search((_ROOT / "README.md").read_text())
    assert match is not None, "the README has a program"
    program = f"import logging\nlogging.basicConfig(level=logging.INFO)\n{match[1]}"
    program = program.replace("asyncio.run(main())", "cluster.run()")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program.py").write_text(program)
        environ = {key: value for key, value in os.environ.items() if not key.startswith("COTERIE_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "program.py", cwd=folder, env=environ, stderr=asyncio.subprocess.PIPE
        )
        try:
            mb = await _resident_mb(process)
        finally:
            process.send_signal(signal.SIGTERM)
            await process.communicate()
    return Limit("idle runner of the README", 1, 0, 0, MEMORY_MB / mb, 1, median=mb, most=mb, unit="MB")


async def _resident_mb(process: Process) -> float:
    assert process.stderr is not None, "it was asked for"
    async with asyncio.timeout(30):
        while line := await process.stderr.readline():
            if b"has joined" in line:
                break
        await asyncio.sleep(_SETTLED_S)
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024
