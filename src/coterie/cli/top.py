"""`coterie top`: how the cluster fares, live."""

from __future__ import annotations

import asyncio
import codecs
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from coterie.cli.asking import WRONG, YES, asks, refuse
from coterie.cli.looking import viewing
from coterie.cli.panel import Panel, frame
from coterie.cli.showing import as_json, safe, tell
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.live import Live

    from coterie.cli.asking import Asking
    from coterie.observe.pages import Viewing
    from coterie.observe.view import View

_EVERY_S = 1.0
"""Between two looks."""
_DRAWN_S = 0.25
"""Between two drawings, so that what is said about age is true."""


@click.command()
@asks
async def command(asking: Asking) -> int:
    """The same as status, live. Keys: q, space, 1-6, / and ?.

    With --json one object per second and line, until it is interrupted.

    \b
    Example:
      coterie top --url postgresql://app@db.internal/app
    """
    if asking.as_json:
        await _follow(viewing(asking))
    if not (sys.stdin.isatty() and asking.screen.is_terminal):
        refuse("top needs a terminal", hint="coterie status shows the same once, top --json line by line", code=WRONG)
    await Top(asking).run()
    return YES


async def _follow(look: Viewing) -> None:
    while True:
        tell(as_json(await look.look(["overview", "runners"])))
        await asyncio.sleep(_EVERY_S)


class Top:
    """Looks, reads keys and draws, until somebody quits."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._look = viewing(asking)
        self._panel = Panel()
        self._view: View | None = None
        self._seen_s = 0.0
        self._problem = ""
        self._pressed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._decode = codecs.getincrementaldecoder("utf-8")("ignore").decode

    async def run(self) -> None:
        """Until `q`."""
        from rich.console import Console  # 100 ms, for those who look live
        from rich.live import Live

        await self._see()
        with _keys(self._read), Live(console=Console(), screen=True, auto_refresh=False) as live:
            async with asyncio.TaskGroup() as group:
                looking = group.create_task(self._keep_looking(), name="look")
                while not self._panel.over:
                    self._draw(live)
                    await _set_within(self._pressed, _DRAWN_S)
                looking.cancel()

    async def _keep_looking(self) -> None:
        while True:
            await _set_within(self._wanted, _EVERY_S)
            if not self._panel.paused or self._panel.page not in self._shown():
                try:
                    await self._see()
                except CoterieError as error:
                    self._problem = error.message

    async def _see(self) -> None:
        view = await self._look.look({"overview", self._panel.page})
        self._view, self._problem, self._seen_s = view, "", self._now_s()
        self._panel.learn(view.data["overview"])
        self._pressed.set()

    def _read(self, data: bytes) -> None:
        for key in self._decode(data):
            self._panel.press(key)
        if self._panel.page not in self._shown():
            self._wanted.set()  # another page: at once
        self._pressed.set()

    def _draw(self, live: Live) -> None:
        from rich.text import Text

        assert self._view is not None, "it has looked"
        panel = self._panel
        shown = frame(
            panel if panel.page in self._shown() else _waiting(panel, self._view),
            self._view,
            name=self._asking.cluster.settings.name,
            age_s=self._now_s() - self._seen_s,
            problem=self._problem,
            screen=self._asking.screen,
        )
        live.update(Text.from_ansi(safe(shown), no_wrap=True, overflow="crop"), refresh=True)

    def _shown(self) -> set[str]:
        return set() if self._view is None else set(self._view.data)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def _waiting(panel: Panel, view: View) -> Panel:
    """The same with the page that is there, until the other one is."""
    import dataclasses

    return dataclasses.replace(panel, page=next(page for page in view.data if page != "overview"))


async def _set_within(event: asyncio.Event, limit_s: float) -> None:
    """Wait for an event, or for so long."""
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        pass
    event.clear()


@contextmanager
def _keys(read: Callable[[bytes], None]) -> Iterator[None]:
    """Give keys to a function as they are pressed, unseen; afterwards the terminal is as it was."""
    import termios
    import tty

    terminal, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    loop.add_reader(terminal, lambda: read(os.read(terminal, 1024) or b"q"))  # no terminal any more: nobody looks
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
