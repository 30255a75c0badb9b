"""The output of commands: tables without boxes, a glyph and a word for states, readable times, findings.

Programs get JSON instead: ids are strings, instants RFC 3339 in UTC, durations seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

import click

from coterie.kernel.plain import instant as instant
from coterie.kernel.plain import plain as plain
from coterie.kernel.text import visible, visible_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence, Set


_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_GLYPHS = {
    "good": ("✓", "+"),
    "warn": ("!", "!"),
    "bad": ("✗", "x"),
    "lead": ("★", "*"),
    "owned": ("▪", "#"),
    "move": ("◐", "o"),
    "none": ("·", "."),
}
_COLOURS = {
    "good": "green",
    "warn": "yellow",
    "bad": "red",
    "lead": "cyan",
    "owned": "green",
    "move": "yellow",
    "none": "red",
}
_GAP = "  "
_HEAD = 75
"""The column of the state in a view's first line, in a pipe."""
_HEAD_MOST = 120
"""The rightmost column for it, so that it stays near the text at the left."""
_LEAST = 12
"""No text is cut to less."""
_ANSI = re.compile(r"(\x1b\[[0-9;]*m)")


_OURS = re.compile(rf"\x1b\[3[1-6]m[{re.escape(''.join(map(''.join, _GLYPHS.values())))}]\x1b\[0m")
"""The only coloured text allowed: a glyph, and nothing after it."""


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Write to stdout or stderr: all output goes through here, whatever its source."""
    click.echo(safe(text), err=err, nl=nl)


def safe(text: str, *, keep: str = "\n") -> str:
    """The text made safe for a terminal, see `visible`; our own glyphs keep their colours."""
    if "\x1b" not in text:
        return visible(text, keep=keep)
    rest = (visible(part, keep=keep) for part in _OURS.split(text))
    return "".join(part for pair in zip_longest(rest, _OURS.findall(text), fillvalue="") for part in pair)


class Screen:
    """The output stream, and what it can show.

    Args:
        colour: Whether to colour; None: if it is a terminal and NO_COLOR is not set.
    """

    def __init__(self, *, colour: bool | None = None) -> None:
        self.is_terminal = sys.stdout.isatty()
        self.is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        self.has_colour = (self.is_terminal and not os.environ.get("NO_COLOR")) if colour is None else colour

    def glyph(self, how: str) -> str:
        """One of "good", "warn", "bad", "lead", "owned", "move" and "none". Always followed by its word."""
        glyph = _GLYPHS[how][0 if self.is_utf8 else 1]
        return click.style(glyph, fg=_COLOURS[how]) if self.has_colour else glyph

    @property
    def columns(self) -> int | None:
        """The current width of the terminal; None if there is none: then nothing is cut."""
        return shutil.get_terminal_size().columns if self.is_terminal else None

    def headed(self, left: str, right: str) -> str:
        """A first line: the subject, and its state at the right edge."""
        left, right = safe(left, keep=""), safe(right, keep="")
        if not right:
            return left
        columns = self.columns
        if columns is None:
            return f"{left:<{_HEAD}}{_GAP}{right}"
        edge = min(columns, _HEAD_MOST) - _width(right) - len(_GAP)
        space = " " * (edge - _width(left))
        return f"{left}{space}{_GAP}{right}" if _width(left) <= edge else f"{left}\n{right}"

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        right: Iterable[str] = (),
        spare: Iterable[str] = (),
    ) -> str:
        """Aligned columns, two spaces apart, under their names.

        In a terminal it is at most as wide as that: texts are cut, the longest first, but never the first column, which
        names the subject of a line. For a pipe nothing is cut.

        Args:
            columns: Their names.
            rows: A text for each column.
            right: Columns that are aligned to the right; they are never cut.
            spare: Columns that are left out, the first one first, where cutting does not suffice.
        """
        lines = [list(columns), *([safe(cell, keep="") for cell in row] for row in rows)]
        widths = [max(_width(line[place]) for line in lines) for place in range(len(columns))]
        to_right = {columns.index(name) for name in right}
        if (room := self.columns) is not None:
            widths = _fitted(columns, widths, to_right, [columns.index(name) for name in spare], room)
        mark = "…" if self.is_utf8 else "~"
        return "\n".join(
            _GAP.join(
                _filled(_cut(cell, width, mark), width, right=place in to_right)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
                if width
            ).rstrip()
            for line in lines
        )

    def time(self, at: datetime | None, now: datetime) -> str:
        """An instant in a list: relative for people, in full for a pipe; "never" if there is none."""
        if at is None:
            return "never"
        return relative(at, now) if self.is_terminal else instant(at)


def lasting(length: timedelta | float) -> str:
    """`4ms`, `0.3s`, `41s`, `6h 12m`, `2d 4h`: the two largest units."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if 0 < abs(seconds) < 0.1:
        return f"{seconds * 1000:.0f}ms" if abs(seconds) >= 0.0005 else "<1ms"
    if abs(seconds) < 10:
        return f"{seconds:.1f}s" if round(seconds, 1) % 1 else f"{seconds:.0f}s"
    left = round(abs(seconds))
    parts: list[str] = []
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part)


def took(length: timedelta | float | None, *, unknown: str = "-") -> str:
    """How long something that has ended took, as `lasting`; the loop's clock has milliseconds, so 0 means `<1ms`."""
    return unknown if length is None else lasting(length) if length else "<1ms"


def relative(at: datetime, now: datetime) -> str:
    """`in 3m`, `12s ago`, `0.3s ago`."""
    seconds = (at - now).total_seconds()
    seconds = round(seconds) if abs(seconds) >= 1 else seconds
    return f"in {lasting(seconds)}" if seconds > 0 else f"{lasting(abs(seconds))} ago"


def as_json(value: Any) -> str:
    """One JSON document."""
    return visible_json(json.dumps(plain(value), ensure_ascii=False))


def _fitted(
    columns: Sequence[str], widths: Sequence[int], to_right: Set[int], spare: Sequence[int], room: int
) -> list[int]:
    """The widths of columns that fit into a terminal, if that is possible; 0: it is left out."""
    least = [
        width if place == 0 or place in to_right else min(width, max(len(columns[place]), _LEAST))
        for place, width in enumerate(widths)
    ]
    for left_out in range(len(spare) + 1):
        gone = set(spare[:left_out])
        found = [0 if place in gone else width for place, width in enumerate(widths)]
        least = [0 if place in gone else width for place, width in enumerate(least)]
        if _total(least) <= room:
            break
    while _total(found) > room:
        longest = max(range(len(found)), key=lambda place: (found[place] > least[place], found[place]))
        if found[longest] <= least[longest]:
            break  # it does not fit: the terminal wraps its lines
        found[longest] -= 1
    return found


def _total(widths: Sequence[int]) -> int:
    shown = [width for width in widths if width]
    return sum(shown) + len(_GAP) * (len(shown) - 1)


def _cut(cell: str, width: int, mark: str) -> str:
    """The beginning of a text that is too long; its colours do not count."""
    if _width(cell) <= width:
        return cell
    kept, left = "", width - len(mark)
    for part in _ANSI.split(cell):
        if _ANSI.fullmatch(part):
            kept += part
        else:
            kept, left = kept + part[:left], left - len(part[:left])
    return kept + mark


def _width(cell: str) -> int:
    return len(click.unstyle(cell))


def _filled(cell: str, width: int, *, right: bool) -> str:
    space = " " * (width - _width(cell))
    return f"{space}{cell}" if right else f"{cell}{space}"


How = Literal["good", "warn", "bad"]
_WORDS: dict[How, str] = {"good": "good", "warn": "remark", "bad": "problem"}
_WIDE = 14
_LINE = 79


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        what: The subject, a word.
        says: What was found, with figures.
        how: Good, something to know, or a problem.
        hint: What to do.
    """

    what: str
    says: str
    how: How = "good"
    hint: str = ""


def shown(screen: Screen, findings: Sequence[Finding]) -> str:
    """A line for each, with its hint in the lines below."""
    lines: list[str] = []
    for each in findings:
        head = f"{screen.glyph(each.how)} {each.what:<{_WIDE}}"
        texts = [f"{each.says}:" if each.hint else each.says, *each.hint.splitlines()]
        lines.append(f"{head}{safe(texts[0], keep='')}")
        lines += [f"{'':<{_WIDE + 2}}{text}" for text in texts[1:]]
    return "\n".join(lines)


def concluded(findings: Sequence[Finding], code: int) -> str:
    """The last line: `1 problem, 1 remark`, and the exit code if it is not 0."""
    problems, remarks = counts(findings)
    parts = [plural(problems, "problem")] if problems else []
    parts += [plural(remarks, "remark")] if remarks else []
    text = ", ".join(parts) or "no problems"
    return f"{text:<{_LINE}}exit {code}" if code else text


def counts(findings: Sequence[Finding]) -> tuple[int, int]:
    """The numbers of problems and remarks."""
    return len([f for f in findings if f.how == "bad"]), len([f for f in findings if f.how == "warn"])


def as_objects(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The findings as JSON."""
    return [{"check": f.what, "status": _WORDS[f.how], "says": f.says, "hint": f.hint or None} for f in findings]


def plural(count: int, word: str) -> str:
    """`1 runner`, `1,204 runners`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


@contextmanager
def pressed_keys(read: Callable[[bytes], None]) -> Iterator[None]:
    """Pass keys to a function as they are pressed, without Enter and echo; b"" when the terminal is closed.

    The terminal is restored afterwards.
    """
    import termios
    import tty

    terminal, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(terminal)

    def on_input() -> None:
        data = os.read(terminal, 1024)
        if not data:
            loop.remove_reader(terminal)
        read(data)

    tty.setcbreak(terminal, termios.TCSADRAIN)  # Ctrl-C keeps its meaning
    loop.add_reader(terminal, on_input)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
