"""A schedule as text: five or six fields, a shorthand, or an interval; read once, refused with the place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING

from coterie.cron.fields import HOUR, KINDS, Field, read_field
from coterie.errors import ConfigurationError, ScheduleError
from coterie.kernel.durations import to_timedelta

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

LONGEST = 1000
"""Characters: more than six fields with all their values written out."""

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
    """The six fields of a calendar schedule, the second first."""

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
        """Whether one of the two day fields suffices: where both name days. If one begins with a star, both count."""
        return not (self.day.is_star or self.weekday.is_star)


@dataclass(frozen=True, slots=True)
class Expression:
    """What a user wrote.

    Args:
        text: It, for messages and refusals.
        cron: The name of the cron that has it, if any.
    """

    text: str
    cron: str = ""

    def read(self) -> Fields | timedelta:
        """Its fields, or the interval of `@every`.

        Raises:
            ScheduleError: It cannot be read, with the place. Whether such a day ever comes is the calendar's business.
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
        """Raise a ScheduleError that points at a part of the text."""
        shown = self.text if len(self.text) <= LONGEST else f"{self.text[:60]}…"
        raise ScheduleError(
            cron=self.cron, expression=shown, problem=problem, position=start, length=length, hint=hint
        ) from None

    def refuse_days(self, problem: str) -> NoReturn:
        """The same for the days of fields that were read: from the day of month to the last field."""
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
