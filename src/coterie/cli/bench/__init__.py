"""`coterie bench`: measures this machine and its database, in a cluster with a name of its own, apart from the other
clusters of the database.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import tempfile
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from coterie import Cluster, Entity, rpc
from coterie.cli.client import UNANSWERED, refuse, settings_for
from coterie.cli.output import Screen, as_json, echo
from coterie.cli.progress import ProgressLine
from coterie.cli.run.worker import Worker, ending
from coterie.kernel.clock import SystemClock, steady_s
from coterie.kernel.service import Tasks
from coterie.settings.secret import redacted_url
from coterie.storage.contracts.messages import MessageFilter
from coterie.storage.interface import KvPut

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    Work = Callable[[], Awaitable[object]]
    from collections.abc import Sequence


NAME = "coterie-bench"
TOGETHER = 100
"""Concurrent callers, for the throughput."""
_SHARDS = 12
_ENTITIES = 100
_BODY = b"b" * 100
_START_S = 30.0
_LOOK_S = 0.02
_KEYS = "bench/"
_REMOVED_AT_ONCE = 5_000

SCENARIOS = {
    "commit": "one write, one commit: the floor under all that is durable",
    "kv": "cluster.kv.set",
    "local": "a call to an entity of the same process",
    "remote": "a call to an entity of another process, on loopback",
    "persisted": "the same, stored before it is sent and with its reply",
}


class Echo(Entity):
    """An entity with trivial handlers."""

    @rpc
    async def echo(self, data: bytes) -> bytes:
        """Return the data."""
        return data

    @rpc(persisted=True)
    async def keep(self, data: bytes) -> int:
        """The same as a persisted call; returns its length."""
        return len(data)


@dataclass(frozen=True, slots=True)
class Figures:
    """The measurements of one scenario."""

    scenario: str
    what: str
    p50_s: float
    """Of one call at a time."""
    p99_s: float
    callers: int
    per_s: float
    """Of so many concurrent callers."""


def program(url: str | None = None) -> Cluster:
    """The cluster, not started."""
    cluster = Cluster(url, name=NAME, shards=_SHARDS, http_listen=None)
    cluster.entity(Echo)
    return cluster


async def measure(url: str, chosen: list[str], *, seconds: float, begins: Callable[[str], None]) -> list[Figures]:
    """Measure some scenarios, in the order of `SCENARIOS`.

    Args:
        url: The database.
        chosen: The scenarios.
        seconds: How long each takes.
        begins: Called with the name of each before it begins.
    """
    found = []
    near = [name for name in SCENARIOS if name in chosen and name in ("commit", "kv", "local")]
    far = [name for name in SCENARIOS if name in chosen and name not in near]
    for names, opened in ((near, _here), (far, _elsewhere)):
        if names:
            async with opened(url) as cluster:
                for name in names:
                    begins(name)
                    callers = 1 if name == "commit" else TOGETHER
                    found.append(await _figures(name, _work(cluster, name), callers=callers, seconds=seconds))
                await _clean(cluster)
    return found


async def _figures(name: str, work: Work, *, callers: int, seconds: float) -> Figures:
    """First one caller, then all concurrently; both are warmed up before they count."""
    await _taken(work, callers=callers, seconds=seconds / 10)
    alone = sorted(await _taken(work, callers=1, seconds=seconds / 2))
    began_s = steady_s()
    done = len(await _taken(work, callers=callers, seconds=seconds / 2))
    per_s = done / (steady_s() - began_s)
    p50_s, p99_s = alone[len(alone) // 2], alone[len(alone) * 99 // 100]
    return Figures(name, SCENARIOS[name], p50_s=p50_s, p99_s=p99_s, callers=callers, per_s=per_s)


async def _taken(work: Work, *, callers: int, seconds: float) -> list[float]:
    """The durations of calls by concurrent callers, each of which calls again at once; each calls at least once."""
    until_s = steady_s() + seconds
    taken: list[float] = []

    async def caller() -> None:
        while True:
            began_s = steady_s()
            await work()
            now_s = steady_s()
            taken.append(now_s - began_s)
            if now_s >= until_s:
                return

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(caller())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # they are all alike
    return taken


def _work(cluster: Cluster, name: str) -> Work:
    numbers: Iterator[int] = itertools.count()
    if name == "commit":
        kv = cluster._acting().storage.kv
        stamps = itertools.count(SystemClock().wall_ns())  # never used twice, not by the next run either
        return lambda: kv.put(KvPut(f"{_KEYS}{next(numbers) % _ENTITIES}", _BODY, stamp=next(stamps)))
    if name == "kv":
        return lambda: cluster.kv.set(f"{_KEYS}{next(numbers) % _ENTITIES}", _BODY)
    refs = itertools.cycle([cluster.ref(Echo, f"echo-{number}") for number in range(_ENTITIES)])
    if name == "persisted":
        return lambda: next(refs).keep(_BODY)
    return lambda: next(refs).echo(_BODY)


@asynccontextmanager
async def _here(url: str) -> AsyncIterator[Cluster]:
    """A runner in this process, which holds all seats."""
    cluster = program(url)
    async with cluster:
        await cluster.ready(timeout=f"{_START_S:g}s")
        yield cluster


@asynccontextmanager
async def _elsewhere(url: str) -> AsyncIterator[Cluster]:
    """A runner in another process, and this one as its client."""
    worker = Worker("coterie.cli.bench.program:cluster", number=1, on_event=lambda _: None, env={"COTERIE_URL": url})
    tasks = Tasks("bench")
    living = tasks.spawn(worker.live(), name="the other process")
    try:
        await _joined(worker, living)
        cluster = program(url)
        async with cluster.connect():
            yield cluster
    finally:
        worker.send(signal.SIGTERM)
        await living
        await tasks.stop()


async def _joined(worker: Worker, living: asyncio.Task[int]) -> None:
    hint = "its output is above"
    try:
        async with asyncio.timeout(_START_S):
            while worker.joined is None:
                if living.done():
                    refuse(f"the other process {ending(living.result())} before it had joined", hint=hint)
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        refuse(f"the other process has not joined within {_START_S:g}s", hint=hint, code=UNANSWERED)


async def _clean(cluster: Cluster) -> None:
    """Delete what would fill the database."""
    storage = cluster._acting().storage
    await storage.kv.clear(_KEYS)
    while await storage.messages.remove(MessageFilter(), most=_REMOVED_AT_ONCE) == _REMOVED_AT_ONCE:
        pass


_COLUMNS = ("SCENARIO", "P50", "P99", "CALLERS", "PER S", "WHAT")
_RIGHT = ("P50", "P99", "CALLERS", "PER S")


@click.command()
@click.argument("scenario", required=False, type=click.Choice([*SCENARIOS]))
@click.option("--seconds", type=click.FloatRange(0.05, 600), default=2.0, show_default=True, help="For each scenario.")
@click.option("--color/--no-color", "colour", default=None, help="Colours (default: on a terminal).")
@click.option("--json", "is_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--url", metavar="URL", help="The database (default: a temporary SQLite file).")
def command(scenario: str | None, seconds: float, url: str | None, is_json: bool, colour: bool | None) -> None:
    """Numbers for this machine: commits, keys, calls and persisted calls.

    With --url they are measured there, in a cluster of the name coterie-bench: others in the same database are not
    touched, but share its load. A database without a schema gets one.

    \b
    Example:
      coterie bench persisted --url postgresql://app@db.internal/app --seconds 5
    """
    chosen = [scenario] if scenario else [*SCENARIOS]
    with _database(url) as (where, shown), ProgressLine("measuring", total=len(chosen), json=is_json) as progress:

        def begins(name: str) -> None:
            progress.at(chosen.index(name))
            progress.phase(name)

        found = asyncio.run(measure(where, chosen, seconds=seconds, begins=begins))
        if is_json:
            echo(as_json({"database": shown, "seconds": seconds, "figures": found}))
        else:
            echo(f"cluster {NAME} on {shown}\n\n{_table(Screen(colour=colour), found)}")
            echo(f"\nP50 and P99 of one at a time; PER S with CALLERS at once ({TOGETHER}, but for commit)", err=True)


@contextmanager
def _database(url: str | None) -> Iterator[tuple[str, str]]:
    """The database to measure, and its display name."""
    if url is not None:
        yield url, redacted_url(settings_for(url).url)
        return
    with tempfile.TemporaryDirectory(prefix="coterie-bench-") as folder:
        where = f"sqlite:///{folder}/bench.db"
        yield where, f"{where} (temporary)"


def _table(screen: Screen, found: Sequence[Figures]) -> str:
    rows = [(f.scenario, _ms(f.p50_s), _ms(f.p99_s), f"{f.callers:,}", f"{f.per_s:,.0f}", f.what) for f in found]
    return screen.table(_COLUMNS, rows, right=_RIGHT)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.3f} ms"
