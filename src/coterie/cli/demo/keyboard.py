"""Keys of a terminal, one by one, without Enter."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEPT_MOST = 8
"""Keys that wait for the previous action to end; more are dropped."""


@contextmanager
def keys() -> Iterator[asyncio.Queue[str]]:
    """The keys that are pressed on stdin during the block; the terminal is restored afterwards. "" is its end."""
    pressed: asyncio.Queue[str] = asyncio.Queue(_KEPT_MOST)
    loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def read() -> None:
        text = os.read(terminal, 64).decode(errors="replace")
        if not text:
            loop.remove_reader(terminal)
        for key in text or [""]:
            if not pressed.full():
                pressed.put_nowait(key)

    tty.setcbreak(terminal, termios.TCSADRAIN)  # Ctrl-C keeps its meaning
    loop.add_reader(terminal, read)
    try:
        yield pressed
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
