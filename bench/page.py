"""What the page costs: a runner while nobody watches, the server and the browser for one watcher of a big cluster.

CPU time is that of the process, all threads, in ms per second. The big cluster is `bench.simulated_cluster`: making the
pages of its facts, finding what has changed, encoding and sending it are measured, reading the facts from a database
and from the runners is not. Script time is that of the browser's thread from one event of the stream to the next, with
all that is drawn in between; its clock stands still while other processes have the processor.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import operator
import shutil
import statistics
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from tests.cluster.cli_process import command

from bench import peers, simulated_cluster
from bench.ownership import Limit
from coterie.observe.view import PAGES
from coterie.web.assets import assets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping

    from playwright.async_api import Browser, Page

    from bench.measure import Row

ADDED_MS = 1.0
"""Of CPU per second, by a page at which nobody looks."""
WATCHED_MS = 10.0
"""Of CPU per second: 1 % of a core."""
ASSETS_KB = 120.0
SCRIPT_MS = 50.0
DRAWN = ("overview", "shards", "cron", "runners")
WATCHED: Mapping[str, Collection[str]] = {"overview": ("overview", "runners"), "all pages": PAGES}
"""What a person has open, and more than one person can."""
_STILL = {"singletons", "entities", "messages", "workflows"}
"""Pages that need not change with each reading."""
_SETTLED_S = 3.0
"""What a start brings with it is over by then."""
_LIMIT_S = 60.0
"""For what takes a second or two on an idle machine."""
_PROGRAM = """
from coterie import Cluster, Entity, rpc

cluster = Cluster()


@cluster.entity
class Account(Entity):
    @rpc
    async def balance(self) -> int:
        return 0
"""
_IS_DRAWN = """() => document.getElementById("main").dataset.address === location.hash.slice(1)
    && !document.querySelector("#main .loading")"""
_MARK = "bench-update"
_MARK_UPDATES = """async (times) => {
    const { app } = await import(new URL("page/app.js", document.baseURI));
    const { changed } = app.feed;
    await new Promise((end) => {
        app.feed.changed = (feed) => {
            performance.mark("bench-update");
            changed(feed);
            times -= 1;
            if (!times) end();
        };
    });
    app.feed.changed = changed;
}"""
_SCRIPT = {"EvaluateScript", "FunctionCall", "RunMicrotasks"}
"""Events of a trace in which script runs; collections of garbage in it count."""


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """Rows for a runner, the server, the files and the browser."""
    yield await _idle(seconds=7 * rounds * seconds)
    spent = multiprocessing.get_context("spawn").Value("d", 0.0)
    async with peers.elsewhere(partial(simulated_cluster.serve, spent), pinned=False) as said:
        pid, url = said.split()
        updates = round(7 * seconds)
        for what, pages in WATCHED.items():
            figures = _watched(url, pages, lambda: _cpu_s(int(pid)) - spent.value, rounds=rounds, updates=updates)
            yield _limit(f"server, {what} watched", await figures, allowed=WATCHED_MS, unit="ms/s")
        yield _assets()
        async for row in _drawn(url, updates=rounds):
            yield row


@dataclass(frozen=True)
class Addition(Limit):
    """What something adds to what there is without it, which are shown beside each other."""

    def line(self) -> str:
        """As a line of the table."""
        figures = f"{f'{self.ours_per_s:,.3g} {self.unit}':>12}{f'{self.raw_per_s:,.3g} {self.unit}':>12}"
        mark = "✓" if self.met else "✗"
        return f"{self.scenario:<28}{self.callers:>8}{figures}{self.ratio:>8.2f}{self.goal:>8.2g} {mark}"


@dataclass(frozen=True)
class Unmeasured(Limit):
    """What could not be measured here."""

    why: str

    def line(self) -> str:
        """As a line of the table."""
        return f"{self.scenario:<28}{self.callers:>8}  not measured: {self.why}"


def _limit(scenario: str, figures: list[float], *, allowed: float, unit: str, callers: int = 1) -> Limit:
    """Judged by the median."""
    median = statistics.median(figures)
    return Limit(scenario, callers, 0.0, 0.0, allowed / max(median, 1e-3), 1.0, median, max(figures), unit)


def _cpu_s(pid: int) -> float:
    """The CPU time of a process and all of its threads, also of those that have ended: clock_getcpuclockid(3)."""
    return time.clock_gettime((~pid << 3) | 2)


# A runner


async def _idle(*, seconds: float) -> Row:
    """Two runners in the same stretch of time, each with a database of its own.

    One long stretch: what a runner does once a second falls into the one or the other of short ones.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "program.py"
        program.write_text(_PROGRAM)

        def runner(http: str) -> Any:
            env = {"COTERIE_URL": f"sqlite:///{folder}/{http[:3]}.db", "COTERIE_HTTP_LISTEN": http}
            return command(folder, "run", str(program), env=env)

        with runner("127.0.0.1:0") as page, runner("off") as none:
            for each in (page, none):
                await asyncio.to_thread(each.wait_for, "joined")
            assert "http://127.0.0.1:" in page.said, page.said
            assert "http://" not in none.said, none.said
            await asyncio.sleep(_SETTLED_S)
            ours, raw = await _busy_ms(page.process.pid, none.process.pid, seconds=seconds)
    added = ours - raw
    ratio = ADDED_MS / max(added, 1e-3)
    return Addition("idle runner, page / no HTTP", 0, ours, raw, ratio, 1.0, added, added, "ms/s")


async def _busy_ms(*pids: int, seconds: float) -> list[float]:
    """The CPU time of each process, in ms per second."""
    began, before = time.perf_counter(), [_cpu_s(pid) for pid in pids]
    await asyncio.sleep(seconds)
    took_s, after = time.perf_counter() - began, [_cpu_s(pid) for pid in pids]
    return [1000 * (late - early) / took_s for early, late in zip(before, after, strict=True)]


# The server


async def _watched(
    url: str, pages: Collection[str], cpu_s: Callable[[], float], *, rounds: int, updates: int
) -> list[float]:
    """By the number of updates: there is at most one each second, and fewer where the machine is busy."""
    figures = []
    async with asyncio.timeout(_LIMIT_S + 5 * rounds * updates), _changes(url, pages) as changes:
        await anext(changes)
        for _ in range(rounds):
            began_s = cpu_s()
            for _ in range(updates):
                shown = {path[0] for path, _ in (await anext(changes))["set"]}
                assert shown >= set(pages) - _STILL, f"only {shown} have changed"
            figures.append(1000 * (cpu_s() - began_s) / updates)
    return figures


@asynccontextmanager
async def _changes(url: str, pages: Collection[str]) -> AsyncIterator[AsyncIterator[Any]]:
    """The changes of some pages."""

    async def received(answer: httpx.Response) -> AsyncIterator[Any]:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                said = json.loads(line.removeprefix("data: "))
                if "set" in said:
                    yield said

    asked = f"{url}/api/stream?pages={','.join(pages)}"
    async with httpx.AsyncClient(timeout=_LIMIT_S) as http, http.stream("GET", asked) as answer:
        yield received(answer)


# The browser


def _assets() -> Row:
    kb = sum(len(each.compressed) for each in assets().values()) / 1000
    return _limit("all files, compressed", [kb], allowed=ASSETS_KB, unit="KB", callers=len(assets()))


async def _drawn(url: str, *, updates: int) -> AsyncIterator[Row]:
    """A row for each page."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        yield Unmeasured("script of update", 1, 0.0, 0.0, 0.0, None, 0.0, 0.0, "ms", "there is no chromium")
        return
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            page = await browser.new_page(viewport={"width": 1280, "height": 800})
            page.set_default_timeout(1000 * _LIMIT_S)
            await page.goto(f"{url}/")
            for each in DRAWN:
                await page.evaluate("to => { location.hash = to }", each)
                await page.wait_for_function(_IS_DRAWN)
                figures = await _script_ms(browser, page, updates)
                yield _limit(f"script of update, {each}", figures, allowed=SCRIPT_MS, unit="ms")
        finally:
            await browser.close()


async def _script_ms(browser: Browser, page: Page, updates: int) -> list[float]:
    """The script time of each update, by a trace: the metrics of the browser have no promises in it."""
    await browser.start_tracing(categories=["devtools.timeline", "v8.execute", "blink.user_timing"])
    async with asyncio.timeout(_LIMIT_S + 5 * updates):
        await page.evaluate(_MARK_UPDATES, updates + 1)
    trace = json.loads(await browser.stop_tracing())["traceEvents"]
    marks = [each for each in trace if each["name"] == _MARK]
    assert len(marks) == updates + 1, f"{len(marks)} marks in the trace"
    where = operator.itemgetter("pid", "tid")
    scripts = [each for each in trace if each["name"] in _SCRIPT and where(each) == where(marks[0]) and "tdur" in each]
    assert {each["name"] for each in scripts} >= {"FunctionCall", "RunMicrotasks"}, "the trace has no script"
    spans = pairwise(sorted(each["ts"] for each in marks))
    return [
        sum(each["tdur"] for each in _outermost(scripts) if begin <= each["ts"] < end) / 1000 for begin, end in spans
    ]


def _outermost(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Those that are not part of another one."""
    until = 0
    for each in sorted(events, key=lambda each: (each["ts"], -each["dur"])):
        if each["ts"] >= until:
            until = each["ts"] + each["dur"]
            yield each
