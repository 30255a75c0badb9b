"""A schedule in words. Pure: `0 3 * * MON` is "every Monday at 03:00, UTC".

cronsim has an `explain` too: it says "every seventh minute" of `*/7`, which is not true across hours, and "the 21th".
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from coterie.cron.expression import DAY, HOUR, LAST, MINUTE, MONTH, SECOND, WEEKDAY, CronField, Field, Fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta


_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))

_TIMES_MOST = 4
"""Up to this many times of day are listed; more are described."""

_HOURS_MOST = 12
"""The same for times that share one minute."""

_RUN_LEAST = 3
"""From this many values in a row on, "from … to …" is written."""


def explain_interval(every: timedelta) -> str:
    """`every 90 seconds`: in the largest unit that needs no fraction."""
    seconds = round(every.total_seconds())
    unit, size = next((unit, size) for unit, size in _UNITS if seconds % size == 0)
    count = seconds // size
    return f"every {unit}" if count == 1 else f"every {count} {unit}s"


def explain_fields(fields: Fields, timezone: str) -> str:
    """The days, the times, and the zone where it matters."""
    days = _days(fields)
    named = _named_times(fields)
    text = f"{days or 'every day'} at {named}" if named else _recurring(fields) + (f", {days}" if days else "")
    goes_round = fields.hour.is_star and bool(_steps(fields.hour.values, HOUR))
    return text if timezone == "UTC" and goes_round and not days else f"{text}, {timezone}"


# ── times ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _named_times(fields: Fields) -> str:
    """`03:00 and 15:00`, where hours are listed and the times are few."""
    hours, minutes, seconds = fields.hour.values, fields.minute.values, fields.second.values
    each_hour = len(minutes) * len(seconds)
    most = _TIMES_MOST if each_hour > 1 or _is_run(hours) else _HOURS_MOST
    if fields.hour.is_star or len(hours) * each_hour > most or (_is_run(hours) and _steps(minutes, MINUTE)):
        return ""
    times = product(hours, minutes, seconds)
    if seconds == (0,):
        return _listed([f"{hour:02}:{minute:02}" for hour, minute, _ in times])
    return _listed([f"{hour:02}:{minute:02}:{second:02}" for hour, minute, second in times])


def _recurring(fields: Fields) -> str:
    """From the smallest unit that varies to the largest: `every 15 minutes from 09:00 to 17:59`."""
    second, minute, hour = fields.second.values, fields.minute.values, fields.hour.values
    if second == (0,):
        return _minutes(minute, hour)
    steps = _steps(second, SECOND)
    seconds = steps or f"at {_numbers('second', second)}"
    if _is_all(minute, MINUTE):
        return f"{seconds}{'' if steps else ' of every minute'}{_within(hour)}"
    return f"{seconds} of {_numbers('minute', minute)} of {_hours(hour)}"


def _minutes(minute: Sequence[int], hour: Sequence[int]) -> str:
    if steps := _steps(minute, MINUTE):
        return f"{steps}{_within(hour)}"
    if minute == (0,) and (_steps(hour, HOUR) or _is_run(hour)):
        return _steps(hour, HOUR) or f"every hour from {hour[0]:02}:00 to {hour[-1]:02}:00"
    return f"at {_numbers('minute', minute)} of {_hours(hour)}"


def _steps(values: Sequence[int], kind: CronField) -> str:
    """`every 5 minutes`, where they are evenly spaced all the way round; otherwise empty."""
    step = kind.size // len(values)
    if len(values) == 1 or tuple(range(0, kind.size, step)) != tuple(values) or kind.size % step:
        return ""
    return f"every {kind}" if step == 1 else f"every {step} {kind}s"


def _within(hours: Sequence[int]) -> str:
    """` from 09:00 to 17:59`, after what recurs in them; empty if it is all day."""
    if _is_all(hours, HOUR):
        return ""
    if _is_run(hours) or len(hours) == 1:
        return f" from {hours[0]:02}:00 to {hours[-1]:02}:59"
    return f" in {_steps(hours, HOUR) or _numbers('hour', hours)}"


def _hours(hours: Sequence[int]) -> str:
    if steps := _steps(hours, HOUR):
        return steps
    return f"every hour{_within(hours)}" if _is_run(hours) else _numbers("hour", hours)


def _numbers(unit: str, values: Sequence[int]) -> str:
    """`minute 5`, `minutes 5 to 10`, `minutes 1, 3 and 20`."""
    return f"{unit}{'' if len(values) == 1 else 's'} {_listed(_spans([str(value) for value in values], values))}"


# ── days ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _days(fields: Fields) -> str:
    """The days; empty if it is every day."""
    month_days, months = _month_days(fields.day), _months(fields.month)
    weekdays, nth = _weekdays(fields.weekday), _nth(fields.weekday)
    if month_days and (weekdays or nth):
        if fields.takes_either_day:
            named = [f"every {_listed(weekdays)}"] if weekdays else []
            named += [f"the {_listed(nth)}"] if nth else []
            return f"on {month_days} and {' and '.join(named)} of {months or 'every month'}"
        kinds = [*(f"a {day}" for day in weekdays), *(f"the {each}" for each in nth)]
        return f"on {month_days} of {months or 'every month'} if it is {_listed(kinds, 'or')}"
    if month_days:
        return f"on {month_days} of {months or 'every month'}"
    if nth:
        named = [f"every {_listed(weekdays)}"] if weekdays else []
        return f"on {' and '.join([*named, f'the {_listed(nth)}'])} of {months or 'every month'}"
    if weekdays:
        every = "" if " to " in weekdays[0] else "every "
        return f"{every}{_listed(weekdays)}{f' in {months}' if months else ''}"
    return f"every day in {months}" if months else ""


def _month_days(day: Field) -> str:
    values = day.values
    if _is_all(values, DAY):
        return ""
    step = values[1] - values[0] if len(values) > _RUN_LEAST else 0
    if step > 1 and values == tuple(range(values[0], DAY.high + 1, step)):
        named = [f"every {_ordinal(step)} day from the {_ordinal(values[0])}"]
    else:
        named = [f"the {each}" for each in _spans([_ordinal(value) for value in values], values)]
    named += ["the last day"] if day.last_day else []
    named += ["the last workday"] if day.last_workday else []
    return _listed(named)


def _weekdays(weekday: Field) -> list[str]:
    if _is_all(weekday.values, WEEKDAY):
        return []
    # Monday first, so that the weekend is a run.
    order = sorted((day - 1) % 7 for day in weekday.values)
    return _spans([_DAYS[(day + 1) % 7] for day in order], order)


def _nth(weekday: Field) -> list[str]:
    return [f"{'last' if which == LAST else _ordinal(which)} {_DAYS[day]}" for day, which in weekday.nth]


def _months(month: Field) -> str:
    if _is_all(month.values, MONTH):
        return ""
    return _listed(_spans([_MONTHS[value - 1] for value in month.values], month.values))


# ── lists ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _is_all(values: Sequence[int], kind: CronField) -> bool:
    return len(values) == kind.size


def _is_run(values: Sequence[int]) -> bool:
    return len(values) >= _RUN_LEAST and values[-1] - values[0] == len(values) - 1


def _spans(named: Sequence[str], values: Sequence[int]) -> list[str]:
    """Names, where three or more in a row become `a to b`."""
    found: list[str] = []
    begin = 0
    for index in range(1, len(values) + 1):
        if index < len(values) and values[index] == values[index - 1] + 1:
            continue
        row = named[begin:index]
        found += [f"{row[0]} to {row[-1]}"] if len(row) >= _RUN_LEAST else row
        begin = index
    return found


def _listed(parts: Iterable[str], word: str = "and") -> str:
    *some, final = parts
    return f"{', '.join(some)} {word} {final}" if some else final


def _ordinal(value: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th") if value // 10 != 1 else "th"
    return f"{value}{ending}"
