"""Parses cron expressions: five or six fields, a shorthand, or an interval; errors point at the position."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from coterie.errors import ConfigurationError, ScheduleError
from coterie.kernel.durations import to_timedelta

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn


LAST = -1
"""Instead of the number of a weekday in the month: the last one."""

_FIFTH = 5
_DIGITS = re.compile(r"[0-9]{1,9}")


class CronField(NamedTuple):
    """One of the six fields: its name, its values, their names, and an example expression."""

    name: str
    low: int
    high: int
    names: tuple[str, ...]
    example: str

    def __str__(self) -> str:
        return self.name

    @property
    def size(self) -> int:
        """The number of different values; Sunday is both 0 and 7."""
        return len(self.names) or self.high - self.low + 1


MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
DAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_SUNDAY = 7

SECOND = CronField("second", 0, 59, (), 'every ten seconds is "*/10 * * * * *"')
MINUTE = CronField("minute", 0, 59, (), 'half past every hour is "30 * * * *"')
HOUR = CronField("hour", 0, 23, (), '03:00 every day is "0 3 * * *"')
DAY = CronField("day of month", 1, 31, (), '03:00 on the first of each month is "0 3 1 * *", on the last "0 3 L * *"')
MONTH = CronField("month", 1, 12, MONTH_NAMES, '03:00 on the first of January is "0 3 1 JAN *"')
WEEKDAY = CronField(
    "day of week", 0, 7, DAY_NAMES, '03:00 on Mondays is "0 3 * * MON", on the second one "0 3 * * MON#2"'
)
KINDS = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)


@dataclass(frozen=True, slots=True)
class Field:
    """A parsed field.

    Args:
        text: The same in digits, as cronsim reads it.
        values: The plain values, in order, Sunday as 0.
        nth: Weekdays with their number in the month: (weekday, 1 to 5, or LAST).
        last_day: Whether the last day of the month is included (`L`).
        last_workday: Whether the last day from Monday to Friday is included (`LW`).
    """

    text: str
    values: tuple[int, ...]
    nth: tuple[tuple[int, int], ...] = ()
    last_day: bool = False
    last_workday: bool = False

    @property
    def is_star(self) -> bool:
        """Whether it begins with a star, by which cron distinguishes wildcards from listed times and days."""
        return self.text.startswith("*")


def read_field(text: str, kind: CronField, source: Expression, start: int) -> Field:
    """Parse one field, which begins at `start` of the text of `source`."""
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


def _as_day(value: int, kind: CronField) -> int:
    return value % _SUNDAY if kind is WEEKDAY else value


@dataclass(frozen=True, slots=True)
class _Term:
    """The part between two commas."""

    text: str
    kind: CronField
    source: Expression
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


LONGEST = 1000
"""Characters: more than six fields with all their values listed."""

LONGEST_INTERVAL = timedelta(days=366)

SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_WORD = re.compile(r"\S+")
_ODD = re.compile(r"[^\x21-\x7e\s]")
_FORMS = 'minute, hour, day of month, month, day of week ("0 3 * * MON"), and before them the second if there are six'
_FIVE, _SIX = 5, 6


@dataclass(frozen=True, slots=True)
class Fields:
    """The six fields of a calendar schedule, seconds first."""

    second: Field
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    def __iter__(self) -> Iterator[Field]:
        return iter((self.second, self.minute, self.hour, self.day, self.month, self.weekday))

    @property
    def text(self) -> str:
        """All six in digits, as cronsim reads them."""
        return " ".join(field.text for field in self)

    @property
    def takes_either_day(self) -> bool:
        """Whether one of the two day fields suffices: if both list days. If one begins with a star, both must match."""
        return not (self.day.is_star or self.weekday.is_star)


@dataclass(frozen=True, slots=True)
class Expression:
    """The text that a user wrote.

    Args:
        text: The text.
        cron: The name of its cron, if any, for errors.
    """

    text: str
    cron: str = ""

    def read(self) -> Fields | timedelta:
        """Parse it. Returns: its fields, or the interval of `@every`.

        Raises:
            ScheduleError: It cannot be parsed; with the position. Whether such a day ever comes is left to the
                calendar.
        """
        if len(self.text) > LONGEST:
            self.refuse(f"it has {len(self.text)} characters, the most are {LONGEST}", start=0, length=1)
        if odd := _ODD.search(self.text):
            self.refuse("it has a character that no schedule has", start=odd.start(), length=1, hint=_FORMS)
        words = [(match.group(), match.start()) for match in _WORD.finditer(self.text)]
        if words and words[0][0].startswith("@"):
            return self._shorthand(words)
        return self._fields(words)

    def refuse(self, problem: str, *, start: int, length: int, hint: str = "") -> NoReturn:
        """Raise a `ScheduleError` that points at a part of the text."""
        shown = self.text if len(self.text) <= LONGEST else f"{self.text[:60]}…"
        raise ScheduleError(
            cron=self.cron, expression=shown, problem=problem, position=start, length=length, hint=hint
        ) from None

    def refuse_days(self, problem: str) -> NoReturn:
        """The same for the days of parsed fields: from the day of month to the last field."""
        start = list(_WORD.finditer(self.text))[-3].start()
        length = len(self.text.rstrip()) - start
        self.refuse(problem, start=start, length=length, hint='the last day of each month is "0 3 L * *"')

    def _fields(self, words: list[tuple[str, int]]) -> Fields:
        if len(words) not in (_FIVE, _SIX):
            count = f"{len(words)} field{'' if len(words) == 1 else 's'}"
            self.refuse(f"it has {count}, not five or six", start=0, length=max(len(self.text), 1), hint=_FORMS)
        if len(words) == _FIVE:
            words = [("0", 0), *words]
        read = [read_field(word, kind, self, start) for (word, start), kind in zip(words, KINDS, strict=True)]
        return Fields(*read)

    def _shorthand(self, words: list[tuple[str, int]]) -> Fields | timedelta:
        name, start = words[0][0].lower(), words[0][1]
        if name == "@every":
            return self._interval(words)
        if name not in SHORTHANDS:
            self.refuse(f"{name[:20]} is not known", start=start, length=len(name), hint=_suggest(name))
        if len(words) > 1:
            at, length = words[1][1], len(words[1][0])
            self.refuse(f"nothing can follow {name}", start=at, length=length, hint=HOUR.example)
        fields = Expression(SHORTHANDS[name]).read()
        assert isinstance(fields, Fields)
        return fields

    def _interval(self, words: list[tuple[str, int]]) -> timedelta:
        start = words[1][1] if len(words) > 1 else len(self.text)
        length = max(len(self.text.rstrip()) - start, 1)
        hint = 'write for example "@every 90s"'
        try:
            every = to_timedelta(self.text[start:].rstrip(), what="the interval")
        except ConfigurationError as refused:
            self.refuse(refused.problem, start=start, length=length, hint=hint)
        if every % timedelta(seconds=1) or every > LONGEST_INTERVAL:
            longest = f"{LONGEST_INTERVAL.days}d"
            self.refuse(f"an interval is whole seconds, from 1s to {longest}", start=start, length=length, hint=hint)
        return every


def _suggest(name: str) -> str:
    if name == "@reboot":
        return "what runs when a leader begins is a singleton"
    close = get_close_matches(name, [*SHORTHANDS, "@every"], n=1)
    return f'did you mean "{close[0]}"?' if close else f"there are {', '.join(SHORTHANDS)} and @every 90s"
