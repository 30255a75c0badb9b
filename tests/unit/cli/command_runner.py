"""A cluster that runs in this process while commands ask it, and what they said, compared with what they should say."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from coterie import Cluster, Entity, Leader, Tick, rpc
from coterie.cli import main
from coterie.cli.output import Screen

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

GOLDEN = Path(__file__).parent.parent / "golden" / "cli"
SHARDS = 12

_NORMAL = [
    (re.compile(r"sqlite:///\S+\.db"), "sqlite:///<file>.db"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<instant>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<id>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "<address>"),
    (re.compile(r"\b0\.1\.0\S*"), "<version>"),
    (re.compile(r"(in )?(?<![\d.])(<1|\b\d+)ms\b( ago)?"), "<time>"),
    (re.compile(r"[+-]?\b\d+(\.\d+)? ?(ms|MB|%)"), "<figure>"),
    (re.compile(r"\b(in )?(\d+[dhms] ?)?\b\d+(\.\d+)?[dhms]\b( ago)?"), "<time>"),
    (re.compile(r"[\d,.]+/s"), "<rate>/s"),
    (re.compile(r" {3,}"), "  "),
]


class Said(NamedTuple):
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


def coterie(capsys: pytest.CaptureFixture[str], *args: str) -> Said:
    """Run a command here."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    out, err = capsys.readouterr()
    code = ended.value.code
    return Said(code if isinstance(code, int) else 0, out, err)


def eventually(capsys: pytest.CaptureFixture[str], words: str, *args: str) -> Said:
    """Run a command until it says this: on a busy machine a runner may be slow to answer, and views say so."""
    limit_s = time.monotonic() + 40
    while True:
        said = coterie(capsys, *args)
        if words in said.out or time.monotonic() > limit_s:
            return said


def normal(text: str) -> str:
    """The same without what differs from run to run."""
    for pattern, instead in _NORMAL:
        text = pattern.sub(instead, text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def require_golden(name: str, text: str) -> None:
    """Compare a transcript with the one that is kept. GOLDEN=write keeps this one instead."""
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), f"{file} has other words"


def transcript(said: Said) -> str:
    """All that a command said, and its exit code."""
    return normal(f"{said.err}{said.out}") + f"exit {said.code}\n"


class FixedScreen(Screen):
    """One of a certain width, whatever the tests' own output is."""

    def __init__(self, columns: int | None, *, is_utf8: bool = True, colour: bool = False) -> None:
        super().__init__(colour=colour)
        self.is_terminal, self.is_utf8 = columns is not None, is_utf8
        self._columns = columns

    @property
    def columns(self) -> int | None:
        return self._columns


def screen(*, is_terminal: bool = True, is_utf8: bool = True) -> Screen:
    """One that shows this, whatever the tests' own output is."""
    return FixedScreen(100 if is_terminal else None, is_utf8=is_utf8)


class Account(Entity):
    """Whom tests call."""

    @rpc
    async def deposit(self, cents: int) -> int:
        return cents


@dataclass
class Progress:
    last_id: int = 0


def program(url: str, name: str) -> Cluster:
    """A runner's program: an entity, a singleton, and crons that run seldom. Its lease is long: epochs are compared."""
    cluster = Cluster(url, runner_name=name, shards=SHARDS, http_listen=None, lease_ttl="30s")

    cluster.entity(Account)

    @cluster.singleton("importer", state=Progress)
    async def importer(leader: Leader[Progress]) -> None:
        async with leader.update() as state:
            state.last_id += 88_123
        leader.heartbeat("rows", done=5_000, total=12_000)
        await asyncio.Event().wait()

    @cluster.cron("invoices", "0 0 1 1 *")
    async def invoices(_: Tick) -> None: ...

    @cluster.cron("cleanup", "0 0 1 1 *")
    async def cleanup(_: Tick) -> None:
        raise TimeoutError("payments.internal")

    @cluster.cron("nightly", "0 3 1 1 *", timezone="Europe/Zurich")
    async def nightly(_: Tick) -> None: ...

    return cluster


class Served:
    """Runners in a thread of their own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clusters: dict[str, Cluster] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def do(self, what: Coroutine[Any, Any, Any], *, within_s: float = 120.0) -> Any:
        """Have something done beside the runners."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(within_s)

    def start(self, *names: str) -> None:
        """Start runners, and wait until they have settled."""
        if not self._thread.is_alive():
            self._thread.start()
        self.do(self._start(names))

    def close(self) -> None:
        """Stop all of it."""
        self.do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()

    async def _start(self, names: tuple[str, ...]) -> None:
        for name in names:
            self.clusters[name] = cluster = program(self.url, name)
            await cluster.start()
        for name in names:
            await self.clusters[name].ready()
        await until_told(self.clusters[names[0]])

    async def _stop(self) -> None:
        for cluster in self.clusters.values():
            await cluster.stop()

    async def until_shared(self) -> None:
        """Return when each runner has its share of the shards."""
        first, *_ = self.clusters.values()
        async with asyncio.timeout(120):
            while True:
                held = [*(await first.shards()).values()]
                if all(held.count(name) == SHARDS // len(self.clusters) for name in self.clusters):
                    return
                await asyncio.sleep(0.05)


async def until_told(cluster: Cluster) -> None:
    """Return when all crons have holders that have told their schedules: some moments after a runner is ready."""
    async with asyncio.timeout(120):
        while True:
            rows = await cluster._acting().storage.ticks.list()
            if all(row.definition for row in rows):
                return
            await asyncio.sleep(0.02)


@contextmanager
def serving(file: Path, *names: str) -> Iterator[Served]:
    """Runners on a file."""
    served = Served(f"sqlite:///{file}")
    try:
        served.start(*names)
        yield served
    finally:
        served.close()
