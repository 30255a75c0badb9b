"""How answers look: tables without boxes, a glyph and a word for how things stand, times that people read.

For programs there is JSON instead: ids are texts, instants RFC 3339 in UTC, durations seconds.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import click
import msgspec

from coterie.kernel.texts import visible, visible_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
_LARGEST_EXACT = 2**53


_OURS = re.compile(rf"\x1b\[3[1-6]m[{re.escape(''.join(map(''.join, _GLYPHS.values())))}]\x1b\[0m")
"""The one thing that may colour: a glyph, and nothing after it."""


def tell(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Write to stdout, or stderr: the one way by which text leaves, whoever has written it."""
    click.echo(safe(text), err=err, nl=nl)


def safe(text: str, *, keep: str = "\n") -> str:
    """The same, fit for a terminal, see `visible`; our own glyphs keep their colours."""
    if "\x1b" not in text:
        return visible(text, keep=keep)
    rest = (visible(part, keep=keep) for part in _OURS.split(text))
    return "".join(part for pair in zip_longest(rest, _OURS.findall(text), fillvalue="") for part in pair)


class Screen:
    """Where answers go, and what it can show.

    Args:
        colour: Whether to colour; None: where it is a terminal and NO_COLOR is not set.
    """

    def __init__(self, *, colour: bool | None = None) -> None:
        self.is_terminal = sys.stdout.isatty()
        self.is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        self.has_colour = (self.is_terminal and not os.environ.get("NO_COLOR")) if colour is None else colour

    def glyph(self, how: str) -> str:
        """One of "good", "warn", "bad", "lead", "owned", "move" and "none". It never stands without its word."""
        glyph = _GLYPHS[how][0 if self.is_utf8 else 1]
        return click.style(glyph, fg=_COLOURS[how]) if self.has_colour else glyph

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()) -> str:
        """Aligned columns, two spaces apart, under their names; those in `right` to the right."""
        lines = [list(columns), *([safe(cell, keep="") for cell in row] for row in rows)]
        widths = [max(_width(line[place]) for line in lines) for place in range(len(columns))]
        to_right = {columns.index(name) for name in right}
        return "\n".join(
            "  ".join(_filled(cell, widths[place], right=place in to_right) for place, cell in enumerate(line)).rstrip()
            for line in lines
        )

    def time(self, at: datetime | None, now: datetime) -> str:
        """An instant in a list: relative for people, in full for a pipe; "never" if there is none."""
        if at is None:
            return "never"
        return relative(at, now) if self.is_terminal else instant(at)


def lasting(length: timedelta | float) -> str:
    """`0.3s`, `41s`, `6h 12m`, `2d 4h`: the two largest units."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
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


def relative(at: datetime, now: datetime) -> str:
    """`in 3m`, `12s ago`."""
    seconds = round((at - now).total_seconds())
    return f"in {lasting(seconds)}" if seconds > 0 else f"{lasting(-seconds)} ago"


def instant(at: datetime) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_json(value: Any) -> str:
    """One document."""
    return visible_json(json.dumps(plain(value), ensure_ascii=False))


def plain(value: Any) -> Any:
    """What JSON can say of a value; whole numbers that a browser cannot count as far as are texts."""
    if isinstance(value, bool | str | None):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _LARGEST_EXACT else str(value)
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return _plain_many(value)


def _plain_many(value: Any) -> Any:
    from collections.abc import Mapping, Set

    if isinstance(value, Mapping):
        items: Mapping[Any, Any] = value
        return {str(key): plain(each) for key, each in items.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, list | tuple | Set):
        return [plain(each) for each in value]
    return value if isinstance(value, float) else str(value)


def _width(cell: str) -> int:
    return len(click.unstyle(cell))


def _filled(cell: str, width: int, *, right: bool) -> str:
    space = " " * (width - _width(cell))
    return f"{space}{cell}" if right else f"{cell}{space}"
