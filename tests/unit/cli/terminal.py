"""Commands in a terminal: what is drawn, and keys."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal in which a command runs."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self.process = process
        self._end = end

    def press(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def until(self, *words: str, within_s: float = 120.0) -> str:
        """What is drawn from now on, as soon as it has all of the words."""
        seen, limit_s = b"", time.monotonic() + within_s
        while time.monotonic() < limit_s:
            if select.select([self._end], [], [], 0.1)[0]:
                try:
                    seen += os.read(self._end, 65536)
                except OSError:
                    break  # it has ended
            text = _ANSI.sub("", seen.decode(errors="ignore"))
            if all(word in text for word in words):
                return text
        raise AssertionError(f"{words} did not come, but:\n{_ANSI.sub('', seen.decode(errors='ignore'))[-3000:]}")


@contextmanager
def terminal(*args: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    before = termios.tcgetattr(theirs)
    env = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    env.pop("COLUMNS", None)  # whoever runs these tests may have set it
    command = [sys.executable, "-c", "from coterie.cli import main; main()", *args]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
    try:
        yield Terminal(process, ours)
        assert termios.tcgetattr(theirs) == before, "the terminal is left as it was"
    finally:
        process.kill()
        process.wait()
        os.close(theirs)
        os.close(ours)
