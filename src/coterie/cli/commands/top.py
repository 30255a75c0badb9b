"""`coterie top`: a live view of the cluster.

`Panel` and `frame` hold what keys do to it and what it looks like, and neither read keys nor draw.
"""

from __future__ import annotations

import asyncio
import codecs
import sys
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from coterie.cli.client import WRONG, YES, ClientCommand, client_command, counted, quick, refuse, view_reader
from coterie.cli.commands import cron, queues, runners, shards, singletons
from coterie.cli.commands.status import standing
from coterie.cli.output import Screen, as_json, echo, lasting, plural, pressed_keys, safe
from coterie.errors import CoterieError
from coterie.work.limits import set_within

if TYPE_CHECKING:
    from datetime import datetime

    from rich.live import Live

    from coterie.observe.pages import ViewReader
    from coterie.observe.view import EntityLine, Failure, JobsPage, MessagesPage, Overview, View


PAGES = ("runners", "shards", "singletons", "cron", "entities", "messages", "jobs")
"""Selected by the keys 1 to 7."""
KEYS = "q quit  space pause  1-7 pages  / filter  ? help"
_SEEN = 8
_SPARKS = "▁▂▃▄▅▆▇█"
_HELP = """\
1 runners   2 shards   3 singletons   4 cron   5 entities   6 messages   7 jobs
space       stop and go on
/           show only lines with a text; Enter keeps it, Esc ends it
q           quit"""
_ESCAPE, _ERASE, _ENTER = "\x1b", ("\x7f", "\b"), ("\r", "\n")


@dataclass
class Panel:
    """What is shown, as chosen by keys."""

    page: str = PAGES[0]
    paused: bool = False
    filter: str = ""
    typing: bool = False
    """Whether keys go into the filter."""
    helping: bool = False
    over: bool = False
    trends: dict[str, deque[float]] = field(default_factory=dict)

    def press(self, key: str) -> None:
        """Handle a key; unknown keys do nothing."""
        if self.typing:
            self._type(key)
        elif key in ("q", "\x03"):
            self.over = True
        elif key == " ":
            self.paused = not self.paused
        elif key == "/":
            self.typing, self.filter = True, ""
        elif key == "?":
            self.helping = not self.helping
        elif key == _ESCAPE:
            self.filter, self.helping = "", False
        elif key in "1234567":
            self.page = PAGES[int(key) - 1]

    def _type(self, key: str) -> None:
        if key in _ENTER:
            self.typing = False
        elif key == _ESCAPE:
            self.typing, self.filter = False, ""
        elif key in _ERASE:
            self.filter = self.filter[:-1]
        elif key == "\x03":
            self.over = True
        elif key.isprintable():
            self.filter += key

    def learn(self, overview: Overview) -> None:
        """Record the figures that are drawn as sparklines."""
        seen = {"in": overview.calls_s, "p99": overview.p99_s, "waiting": overview.waiting}
        for name, value in seen.items():
            self.trends.setdefault(name, deque(maxlen=_SEEN)).append(value or 0.0)


def frame(panel: Panel, view: View, *, name: str, age_s: float, problem: str, screen: Screen) -> str:
    """The panel as text.

    Args:
        panel: What is shown, as chosen by keys.
        view: The last reading: the overview and the panel's page.
        name: Name of the cluster.
        age_s: Age of the reading.
        problem: Why no newer reading is available; empty: nothing is wrong.
        screen: What the terminal can show.
    """
    overview: Overview = view.data["overview"]
    owned = f"{overview.owned_shards}/{overview.shards} shards"
    left = f"{name} · {plural(overview.runners, 'runner')} · {owned} · {standing(overview, screen)}"
    lines = [
        screen.headed("coterie top", KEYS),
        screen.headed(left, _freshness(panel, age_s, problem)),
        _figures(panel, overview, screen),
        *([safe(problem, keep="")] if problem else []),
        *(
            f"{screen.glyph('bad' if each.status == 'unhealthy' else 'warn')} {safe(str(each), keep='')}"
            for each in overview.reasons
        ),
        *_chosen(panel, _HELP if panel.helping else body(panel.page, view, screen)),
    ]
    if panel.typing or panel.filter:
        lines.append(f"/{panel.filter}" + ("▏" if panel.typing and screen.is_utf8 else ""))
    return "\n".join(lines)


def body(page: str, view: View, screen: Screen) -> str:
    """A page."""
    data = view.data
    if page == "runners":
        return runners.table(screen, data[page]) if data[page] else "no runners: coterie run app.py starts one"
    if page == "shards":
        return shards.drawn(screen, data[page])
    if page == "singletons":
        return singletons.table(screen, data[page], view.at) if data[page] else "no singletons yet"
    if page == "cron":
        return cron.table(screen, data[page], view.at, full=True) if data[page] else "no crons yet"
    if page == "jobs":
        return _jobs(screen, data[page], view.at)
    return _entities(screen, data[page]) if page == "entities" else _messages(screen, data[page])


def spark(values: deque[float] | None, screen: Screen) -> str:
    """A sparkline: `▂▃▅▅▆▇▆▅`."""
    if not values or not screen.is_utf8:
        return ""
    most = max(values)
    return "".join(_SPARKS[0 if not most else round(value / most * (len(_SPARKS) - 1))] for value in values)


def _freshness(panel: Panel, age_s: float, problem: str) -> str:
    state = "paused" if panel.paused else "stale" if problem else "live"
    return f"{state}, {age_s:.1f}s ago"


def _figures(panel: Panel, overview: Overview, screen: Screen) -> str:
    parts = (
        ("in", f"in {counted(overview.calls_s)}/s"),
        ("p99", f"p99 {quick(overview.p99_s).replace(' ', '')}"),
        ("waiting", f"waiting {counted(overview.waiting)}"),
        ("dead", f"dead {counted(overview.dead)}"),
    )
    return "   ".join(f"{text} {spark(panel.trends.get(name), screen)}".rstrip() for name, text in parts)


def _chosen(panel: Panel, text: str) -> list[str]:
    """The lines that match the filter; the first one has the names of the columns."""
    first, *rest = text.splitlines()
    wanted = "" if panel.helping else panel.filter.casefold()
    return [first, *(line for line in rest if wanted in line.casefold())]


def _entities(screen: Screen, lines: tuple[EntityLine, ...]) -> str:
    rows = [
        (
            each.type,
            counted(each.resident) + ("" if each.is_complete else " or more"),
            ", ".join(f"{name} {count:,}" for name, count in each.runners.items()),
        )
        for each in lines
    ]
    return screen.table(("ENTITY", "RESIDENT", "WHERE"), rows, right=("RESIDENT",)) if rows else "no entities live now"


def _messages(screen: Screen, page: MessagesPage) -> str:
    rows = [
        *_dead(page.failures, "messages"),
        *(
            (f"late {lasting(each.late_s)}", each.what, each.shard, f"coterie messages show {each.id}")
            for each in page.overdue
        ),
    ]
    return screen.table(("STATE", "WHAT", "WHY OR WHERE", "LOOK"), rows) if rows else "nothing is late, nothing is dead"


def _dead(failures: tuple[Failure, ...], noun: str) -> list[tuple[str, str, str, str]]:
    return [(f"{each.count:,} dead", each.what, each.error, f"coterie {noun} show {each.id}") for each in failures]


def _jobs(screen: Screen, page: JobsPage, now: datetime) -> str:
    if not page.queues:
        return "no queues yet"
    parts = [queues.table(screen, page.queues, now)]
    if page.failures:
        parts.append(screen.table(("STATE", "TASK", "WHY", "LOOK"), _dead(page.failures, "jobs")))
    return "\n\n".join(parts)


_EVERY_S = 1.0
"""Between two readings."""
_DRAWN_S = 0.25
"""Between two drawings, so that the age shown is right."""


@click.command()
@client_command
async def command(ctx: ClientCommand) -> int:
    """The same as status, live. Keys: q, space, 1-7, / and ?.

    With --json one object per second and line, until it is interrupted.

    \b
    Example:
      coterie top --url postgresql://app@db.internal/app
    """
    if ctx.as_json:
        await _follow(view_reader(ctx))
    if not (sys.stdin.isatty() and ctx.screen.is_terminal):
        refuse("top needs a terminal", hint="coterie status shows the same once, top --json line by line", code=WRONG)
    await Top(ctx).run()
    return YES


async def _follow(reader: ViewReader) -> None:
    while True:
        echo(as_json(await reader.read(["overview", "runners"])))
        await asyncio.sleep(_EVERY_S)


class Top:
    """Reads the cluster and the keys, and draws, until the user quits."""

    def __init__(self, ctx: ClientCommand) -> None:
        self._ctx = ctx
        self._reader = view_reader(ctx)
        self._panel = Panel()
        self._view: View | None = None
        self._seen_s = 0.0
        self._problem = ""
        self._pressed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._decode = codecs.getincrementaldecoder("utf-8")("ignore").decode

    async def run(self) -> None:
        """Until `q`."""
        from rich.console import Console  # takes 100 ms: only for the live view
        from rich.live import Live

        await self._refresh()
        with pressed_keys(self._press), Live(console=Console(), screen=True, auto_refresh=False) as live:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._keep_reading(), name="read")
                while not self._panel.over:
                    self._draw(live)
                    await set_within(self._pressed, _DRAWN_S)
                    self._pressed.clear()
                reading.cancel()

    async def _keep_reading(self) -> None:
        while True:
            await set_within(self._wanted, _EVERY_S)
            self._wanted.clear()
            if not self._panel.paused or self._panel.page not in self._shown():
                try:
                    await self._refresh()
                except CoterieError as error:
                    self._problem = error.message

    async def _refresh(self) -> None:
        view = await self._reader.read({"overview", self._panel.page})
        self._view, self._problem, self._seen_s = view, "", self._now_s()
        self._panel.learn(view.data["overview"])
        self._pressed.set()

    def _press(self, data: bytes) -> None:
        for key in self._decode(data or b"q"):  # the terminal is closed: quit
            self._panel.press(key)
        if self._panel.page not in self._shown():
            self._wanted.set()  # another page: at once
        self._pressed.set()

    def _draw(self, live: Live) -> None:
        from rich.text import Text

        assert self._view is not None, "it was read"
        panel = self._panel
        shown = frame(
            panel if panel.page in self._shown() else _waiting(panel, self._view),
            self._view,
            name=self._ctx.cluster.settings.name,
            age_s=self._now_s() - self._seen_s,
            problem=self._problem,
            screen=self._ctx.screen,
        )
        live.update(Text.from_ansi(safe(shown), no_wrap=True, overflow="crop"), refresh=True)

    def _shown(self) -> set[str]:
        return set() if self._view is None else set(self._view.data)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def _waiting(panel: Panel, view: View) -> Panel:
    """The panel with the page that is available, until the chosen one is."""
    import dataclasses

    return dataclasses.replace(panel, page=next(page for page in view.data if page != "overview"))
