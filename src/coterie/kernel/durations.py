"""Durations as users write them: a timedelta, seconds, or text such as "1h30m"."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from fractions import Fraction
from typing import NoReturn, TypeAlias

from coterie.errors import ConfigurationError

Duration: TypeAlias = timedelta | float | str

_UNITS_US = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_TEXT = re.compile("".join(rf"(?:({_NUMBER}){unit})?" for unit in _UNITS_US))
_FORMS = "250ms, 10m, 1h30m"

# Longer than any duration, and short enough that its digits cost nothing to parse.
_MOST_CHARACTERS = 60


def to_timedelta(value: Duration, *, what: str, allow_zero: bool = False) -> timedelta:
    """Parse a duration, to the microsecond.

    Text has whole or decimal numbers, each with its unit (d, h, m, s, ms), the largest unit first. A string
    without unit is refused: "30" has meant seconds, minutes and milliseconds, and each reader is sure.

        >>> to_timedelta("1h30m", what="timeout")
        datetime.timedelta(seconds=5400)

    Args:
        value: What the user wrote.
        what: The name under which the user knows the value, for the error.
        allow_zero: Whether zero makes sense here.

    Raises:
        ConfigurationError: It is not a duration, negative, zero where that makes no sense, or too long.
    """
    try:
        length = _read(value, what)
    except OverflowError:
        _refuse(what, value, "a duration that long cannot be kept", hint="the longest is 999999999d")
    if length < timedelta():
        _refuse(what, value, "a duration cannot be negative")
    if not length and not allow_zero:
        _refuse(what, value, "it must be longer than zero")
    return length


def to_seconds(value: Duration, *, what: str, allow_zero: bool = False) -> float:
    """The same in seconds, for asyncio."""
    return to_timedelta(value, what=what, allow_zero=allow_zero).total_seconds()


def seconds_or_none(value: Duration | None, *, what: str) -> float | None:
    """The same for an optional value."""
    return None if value is None else to_seconds(value, what=what)


def format_duration(length: timedelta) -> str:
    """The text that parses back to exactly this duration: `1h30m`, `1.5s`, `250ms`, `0s`."""
    if length < timedelta():
        raise ValueError(f"a duration cannot be negative, this one is {length.total_seconds():g}s")
    rest_us = length // timedelta(microseconds=1)
    parts = []
    for unit in ("d", "h", "m"):
        count, rest_us = divmod(rest_us, _UNITS_US[unit])
        parts.append(f"{count}{unit}" if count else "")
    unit = "ms" if 0 < rest_us < _UNITS_US["s"] else "s"
    if rest_us or not any(parts):
        parts.append(f"{_decimal(rest_us, _UNITS_US[unit])}{unit}")
    return "".join(parts)


def _decimal(count: int, divisor: int) -> str:
    """count/divisor for a divisor that is a power of ten, exactly, without trailing zeros."""
    whole, fraction = divmod(count, divisor)
    digits = str(divisor + fraction)[1:].rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


def _read(value: Duration, what: str) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        return _read_text(value, what)
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(what, value, f"a duration is text, seconds or a timedelta, not {type(value).__name__}")
    if not math.isfinite(value):
        _refuse(what, value, "a duration must be finite")
    return timedelta(seconds=value)


def _read_text(text: str, what: str) -> timedelta:
    bare = len(text) <= _MOST_CHARACTERS and re.fullmatch(_NUMBER, text)
    if bare:
        _refuse(what, text, "a duration needs a unit", hint=f'write "{text}s" (also: {_FORMS})')
    if text.startswith("-") and _match(text[1:]):
        _refuse(what, text, "a duration cannot be negative")
    match = _match(text)
    if match is None:
        _refuse(what, text, "that cannot be read as a duration")
    counted = zip(match.groups(), _UNITS_US.values(), strict=True)
    return timedelta(microseconds=round(sum(Fraction(count) * us for count, us in counted if count)))


def _match(text: str) -> re.Match[str] | None:
    return _TEXT.fullmatch(text) if 0 < len(text) <= _MOST_CHARACTERS else None


def _refuse(
    what: str, value: object, problem: str, *, hint: str = f'write for example "30s" (also: {_FORMS})'
) -> NoReturn:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    if len(shown) > _MOST_CHARACTERS:
        shown = f"{shown[:_MOST_CHARACTERS]}…"
    raise ConfigurationError(problem=f"{what} is {shown}: {problem}", hint=hint) from None
