"""The demo from its first line to its last: runners, load, actions by key or by script, and the verdict."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.cli.demo.actions import ACTS, deploy, freeze, kill
from coterie.cli.demo.cluster_view import IMPORTER, DemoFailed, DemoView
from coterie.cli.demo.load import ACCOUNTS, DepositCount, DepositLoad
from coterie.cli.demo.program import Account
from coterie.cli.demo.runners import NAME, DemoRunner
from coterie.cli.output import Screen, echo, lasting, pressed_keys
from coterie.cluster import Cluster
from coterie.kernel.clock import SystemClock, steady_s, to_datetime
from coterie.kernel.random import Random
from coterie.settings.secret import redacted_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.cli.demo.actions import Act

PROGRAM = "coterie-demo.py"
FILE = "coterie-demo.db"
_RUNNERS, _RUNNERS_MOST = 3, 9
_KEYS_MOST = 8
"""Keys that wait for the previous action to end; more are dropped."""
_HELP = "k kill the leader   f freeze it   p cut its network   a add a runner   d deploy (rolling)   q quit"
_SCRIPT: tuple[tuple[str, Act], ...] = (("k", kill), ("f", freeze), ("d", deploy))


class Demo:
    """A running cluster, and the operations on it.

    Args:
        cluster: A client of it.
        url: The database.
        run: Tells this run from earlier ones in the same database.
    """

    def __init__(self, cluster: Cluster, url: str, *, run: str) -> None:
        self.view = DemoView(cluster)
        self.load = DepositLoad(cluster, run=run)
        self.is_file = url.startswith("sqlite")
        self.is_clean = True
        """Whether all runners that were stopped exited cleanly."""
        self.is_stuck = False
        """Whether an action did not complete."""
        self.screen = Screen()
        self._url = url
        self._runners: list[DemoRunner] = []

    def log(self, text: str) -> None:
        """Print one line, with the time."""
        now = to_datetime(SystemClock().wall_ns()).astimezone()
        echo(f"  {now:%H:%M:%S}.{now.microsecond // 1000:03}  {text.replace('★', self.screen.glyph('lead'))}")

    def names(self) -> list[str]:
        """The names of the running runners."""
        return [each.name for each in self.living()]

    def living(self) -> list[DemoRunner]:
        """The running runners, frozen or not."""
        return [each for each in self._runners if each.lives]

    def runner(self, name: str) -> DemoRunner:
        """The runner with a name."""
        return next(each for each in self._runners if each.name == name)

    @property
    def has_room(self) -> bool:
        """Whether another runner may be added."""
        return len(self._runners) < _RUNNERS_MOST

    async def add_runner(self) -> DemoRunner:
        """Start another runner; it has joined when this returns."""
        new = DemoRunner(PROGRAM, self._url, number=len(self._runners) + 1)
        self._runners.append(new)
        await new.start()
        return new

    async def leave(self) -> None:
        """Stop all runners gracefully."""
        codes = await asyncio.gather(*(each.stop() for each in self.living()))
        self.is_clean = self.is_clean and not any(codes)

    async def close(self) -> None:
        """End what is left, even if some of it fails."""
        await self.load.stop()
        await asyncio.gather(*(each.close() for each in self._runners), return_exceptions=True)


async def demo(url: str | None, *, script: bool) -> int:
    """Run it; returns the exit code: 0 if nothing was lost or doubled."""
    began_s = steady_s()
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in one"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # else a frozen runner would stay frozen
    place = url or f"sqlite:///{FILE}"
    shown = FILE if url is None else redacted_url(url)
    is_new, made = url is None and not Path(FILE).exists(), write_program(Path(PROGRAM))  # noqa: ASYNC240 at first
    what = f"one file ({FILE}), nothing to install" if url is None else f"on {shown}"
    echo(f"coterie demo: three runners on this machine, {what}\n")
    cluster = Cluster(place, name=NAME)
    cluster.entity(Account)
    async with _served(cluster) as page, cluster.connect():
        demo = Demo(cluster, place, run=f"{Random().between(0, 1):.8f}"[2:])
        done = "created" if is_new else "found, with what is in it" if url is None else "is ready"
        _tick(demo, "database", f"{shown} {done}", steady_s() - began_s)
        async with _opened(demo):
            _introduce(page, made=made)
            lead, rows = await demo.view.lead(), await demo.view.rows()
            star = demo.screen.glyph("lead")
            echo(f"\n  {star} {IMPORTER} leads on {lead.runner}, epoch {lead.epoch}, imported {rows:,} rows\n")
            counts = await (_play(demo) if script else _obey(demo))
            counts.append(await demo.load.check(everything=True))
            await demo.leave()
    return _verdict(demo, counts, shown if url is None else None)


@asynccontextmanager
async def _served(cluster: Cluster) -> AsyncIterator[str | None]:
    """Serve the page from this process, which outlives what is done to runners; its URL, or None: it is off."""
    if cluster.settings.http_listen is None or cluster.settings.web == "off":
        yield None
        return
    from coterie import web  # takes 200 ms
    from coterie.web.server import HttpServer

    async with HttpServer(web.app(cluster), cluster.settings) as server:
        yield server.url


@asynccontextmanager
async def _opened(demo: Demo) -> AsyncIterator[None]:
    """Runners and load, until the block ends; then none of them runs any more."""
    try:
        began_s = steady_s()
        await asyncio.gather(*(demo.add_runner() for _ in range(_RUNNERS)))
        joined_s = steady_s()
        _tick(demo, "runners", f"{'  '.join(demo.names())} joined", joined_s - began_s)
        share = Counter((await demo.view.settled(demo.names())).values())
        shares = " / ".join(str(share[name]) for name in demo.names())
        _tick(demo, "shards", f"{share.total()} shards owned: {shares}", steady_s() - joined_s)
        demo.load.start()
        _tick(demo, "work", f'{ACCOUNTS:,} accounts, singleton "{IMPORTER}", cron "heartbeat" every 10s')
        yield
    finally:
        await demo.close()


def write_program(path: Path) -> bool:
    """Write the program that the runners run; False if there is one already, which the user may have changed."""
    if path.exists():
        return False
    path.write_text(Path(__file__).with_name("program.py").read_text("utf-8"), "utf-8")
    return True


def _introduce(page: str | None, *, made: bool) -> None:
    lines = len(Path(PROGRAM).read_text("utf-8").splitlines())
    about = f"{lines} lines" if made else f"{lines} lines, as it was here"
    echo(f"\n  {'page':<11}  {'off' if page is None else f'{page}/'}")
    echo(f"  {'source':<11}  {PROGRAM}, {about}: read it, change it, coterie run {PROGRAM}")


async def _play(demo: Demo) -> list[DepositCount]:
    """Without a terminal: kill, freeze, deploy."""
    counts = []
    for key, act in _SCRIPT:
        echo(key)
        counts.append(await act(demo))
    return counts


async def _obey(demo: Demo) -> list[DepositCount]:
    """By the keys of the terminal, until q."""
    counts: list[DepositCount] = []
    pressed: asyncio.Queue[str] = asyncio.Queue(_KEYS_MOST)

    def press(data: bytes) -> None:
        for key in data.decode(errors="replace") or [""]:
            if not pressed.full():
                pressed.put_nowait(key)

    echo(f"  {_HELP}\n")
    with pressed_keys(press):
        while (key := (await pressed.get()).lower()) not in ("q", ""):
            if key not in ACTS:
                echo(f"  {_HELP}")
                continue
            echo(key)
            try:
                counts.append(await ACTS[key](demo))
            except DemoFailed as error:
                demo.log(f"{demo.screen.glyph('bad')} {error}")
                demo.is_stuck = True
    echo("q")
    return counts


def _verdict(demo: Demo, counts: list[DepositCount], file: str | None) -> int:
    last = counts[-1]
    wrong = demo.is_stuck or not demo.is_clean or not all(count.is_right for count in counts)
    glyph = demo.screen.glyph("bad" if wrong else "good")
    left = "all runners left cleanly" if demo.is_clean else "not all runners left cleanly"
    echo(f"\n  {glyph} {last.deposits:,} deposits: {last}; {left}")
    files = PROGRAM if file is None else f"{PROGRAM}, and {file} with its leases beside it ({file}-leases)"
    echo(f"  left here: {files}")
    return 1 if wrong else 0


def _tick(demo: Demo, what: str, text: str, took_s: float | None = None) -> None:
    took = "" if took_s is None else lasting(took_s)
    echo(f"  {demo.screen.glyph('good')} {what:<9}  {text:<60}  {took}".rstrip())
