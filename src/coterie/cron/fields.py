"""One field of a cron expression: what may stand in it, read with errors that point at the place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

LAST = -1
"""In place of which one of the month: the last."""

_FIFTH = 5
_DIGITS = re.compile(r"[0-9]{1,9}")


class Kind(NamedTuple):
    """A field of the six: what users call it, its values, their names, and an expression that shows it at work."""

    name: str
    low: int
    high: int
    names: tuple[str, ...]
    example: str

    def __str__(self) -> str:
        return self.name

    @property
    def size(self) -> int:
        """How many different values there are; Sunday is both 0 and 7."""
        return len(self.names) or self.high - self.low + 1


MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
DAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_SUNDAY = 7

SECOND = Kind("second", 0, 59, (), 'every ten seconds is "*/10 * * * * *"')
MINUTE = Kind("minute", 0, 59, (), 'half past every hour is "30 * * * *"')
HOUR = Kind("hour", 0, 23, (), '03:00 every day is "0 3 * * *"')
DAY = Kind("day of month", 1, 31, (), '03:00 on the first of each month is "0 3 1 * *", on the last "0 3 L * *"')
MONTH = Kind("month", 1, 12, MONTH_NAMES, '03:00 on the first of January is "0 3 1 JAN *"')
WEEKDAY = Kind("day of week", 0, 7, DAY_NAMES, '03:00 on Mondays is "0 3 * * MON", on the second one "0 3 * * MON#2"')
KINDS = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)


class Source(Protocol):
    """What is being read, and how it is refused."""

    def refuse(self, problem: str, *, start: int, length: int, hint: str = "") -> NoReturn:
        """Raise a ScheduleError that points at a part of the text."""
        ...


@dataclass(frozen=True, slots=True)
class Field:
    """A field that was read.

    Args:
        text: The same in digits, as cronsim reads it.
        values: The plain values, in order, Sunday as 0.
        nth: Weekdays of which one of the month is meant: (weekday, 1 to 5, or LAST).
        last_day: Whether the last day of the month is meant (`L`).
        last_workday: Whether the last one from Monday to Friday is meant (`LW`).
    """

    text: str
    values: tuple[int, ...]
    nth: tuple[tuple[int, int], ...] = ()
    last_day: bool = False
    last_workday: bool = False

    @property
    def is_star(self) -> bool:
        """Whether it begins with a star, by which cron tells a wildcard from times and days that are named."""
        return self.text.startswith("*")


def read_field(text: str, kind: Kind, source: Source, start: int) -> Field:
    """Read one field, which stands at `start` of what `source` shows."""
    terms = [_Term(term, kind, source, start + at).read() for term, at in _split(text)]
    return Field(
        text=",".join(term.text for term in terms),
        values=tuple(sorted({_as_day(value, kind) for term in terms for value in term.values})),
        nth=tuple(sorted({pair for term in terms for pair in term.nth})),
        last_day=any(term.last_day for term in terms),
        last_workday=any(term.last_workday for term in terms),
    )


def _split(text: str) -> Iterator[tuple[str, int]]:
    at = 0
    for term in text.split(","):
        yield term, at
        at += len(term) + 1


def _as_day(value: int, kind: Kind) -> int:
    return value % _SUNDAY if kind is WEEKDAY else value


@dataclass(frozen=True, slots=True)
class _Term:
    """What stands between two commas."""

    text: str
    kind: Kind
    source: Source
    start: int

    def read(self) -> Field:
        text, kind = self.text.upper(), self.kind
        if not text:
            self._refuse("has an empty entry", hint=f"values are set apart by one comma: {kind.example}")
        if "?" in text:
            self._refuse('has a "?", which cron does not know', hint='write "*" in its place')
        if kind is DAY and text in ("L", "LW"):
            return Field(text, (), last_day=text == "L", last_workday=text == "LW")
        if kind is WEEKDAY and (text.endswith("L") or "#" in text):
            return self._nth(text)
        base, slash, step = text.partition("/")
        first, last = self._range(base, open_ended=bool(slash))
        values = range(first, last + 1)[:: self._step(step, at=len(base) + 1) if slash else 1]
        shown = "*" if base == "*" else f"{first}-{last}"
        return Field(f"{shown}/{values.step}" if first < last else str(first), tuple(values))

    def _nth(self, text: str) -> Field:
        """`MON#2`, `FRIL`."""
        base, hash_, number = text.partition("#")
        if not hash_:
            day = self._number(text[:-1], at=0) % _SUNDAY
            return Field(f"{day}L", (), nth=((day, LAST),))
        day = self._number(base, at=0) % _SUNDAY
        if not _DIGITS.fullmatch(number) or not 1 <= int(number) <= _FIFTH:
            self._refuse(f'"{number}" is not one of the 1st to the 5th of a month', at=len(base) + 1)
        return Field(f"{day}#{int(number)}", (), nth=((day, int(number)),))

    def _range(self, base: str, *, open_ended: bool) -> tuple[int, int]:
        kind = self.kind
        if base == "*":
            return kind.low, kind.low + kind.size - 1
        low, dash, high = base.partition("-")
        first = self._number(low, at=0)
        if not dash:
            return first, kind.high if open_ended else first
        last = self._number(high, at=len(low) + 1)
        if kind is WEEKDAY and last == 0 < first:
            last = _SUNDAY  # FRI-SUN: a week may end with Sunday as well as begin with it
        if last < first:
            around = f"{low}-{kind.high},{kind.low}-{high}"
            self._refuse(f"range {base} ends before it begins", length=len(base), hint=f'write "{around}"')
        return first, last

    def _number(self, text: str, *, at: int) -> int:
        kind = self.kind
        if text in kind.names:
            return kind.names.index(text) + kind.low
        if not text:
            self._refuse("lacks a value", hint=kind.example)
        if not _DIGITS.fullmatch(text):
            known = f"; it has {kind.names[0]} to {kind.names[-1]}" if kind.names and text.isalpha() else ""
            self._refuse(f'"{text[:20]}" cannot be read{known}', at=at, length=len(text))
        if not kind.low <= int(text) <= kind.high:
            self._refuse(f"{int(text)} is out of range {kind.low}-{kind.high}", at=at, length=len(text))
        return int(text)

    def _step(self, text: str, *, at: int) -> int:
        if not _DIGITS.fullmatch(text):
            self._refuse(f'step "{text[:20]}" is not a whole number', at=at, length=len(text))
        step, most = int(text), self.kind.size - 1
        if not 1 <= step <= most:
            unit = {"second": "s", "minute": "m", "hour": "h"}.get(self.kind.name)
            steady = f'for every {step}{unit}, whatever the clock shows, write "@every {step}{unit}"' if unit else ""
            self._refuse(f"step {step} is out of range 1-{most}", at=at, length=len(text), hint=steady if step else "")
        return step

    def _refuse(self, problem: str, *, at: int = 0, length: int | None = None, hint: str = "") -> NoReturn:
        length = len(self.text) - at if length is None else length
        self.source.refuse(
            f"{self.kind} {problem}", start=self.start + at, length=max(length, 1), hint=hint or self.kind.example
        )
