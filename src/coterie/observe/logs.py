"""Log formatting: one event, one line, with the fields of errors; equal warnings are counted, not repeated.

Used by the handler that coterie installs if a program has no logging configuration. Other programs get plain records.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from coterie.errors import CoterieError, quoted
from coterie.kernel import spans
from coterie.kernel.clock import SystemClock, to_datetime
from coterie.kernel.context import trace_here, work_here
from coterie.kernel.text import visible, visible_json

if TYPE_CHECKING:
    from typing import TextIO

    from coterie.kernel.clock import Clock

    Key = tuple[str, int, str, type[BaseException] | None, str]

_WINDOW_S: Final = 60
"""The first of equal warnings is written at once, and the number of repetitions at most once in this time."""
_KEYS_MOST: Final = 256
"""Distinct warnings that are remembered; a forgotten one is written again."""
_PLAIN = re.compile(r"[\w./:@+-]+")
_OURS: Final = "coterie"
_OWN = ("time", "level", "logger", "msg", "runner", "service.name", "trace_id", "exc")


def handler(*, as_json: bool, runner: str, clock: Clock | None = None, stream: TextIO | None = None) -> LogHandler:
    """Create coterie's own handler.

    Args:
        as_json: Whether each line is a JSON object.
        runner: The name of this process's runner.
        clock: The clock for counting equal warnings.
        stream: Where lines are written; stderr if left out.
    """
    made = LogHandler(stream)
    made.setFormatter(JsonLine(runner) if as_json else TextLine())
    made.addFilter(Repeats(made, clock or SystemClock()))
    return made


class LogHandler(logging.StreamHandler["TextIO"]):
    """Writes lines, and the remaining counts when it is closed."""

    def close(self) -> None:
        for each in self.filters:
            if isinstance(each, Repeats):
                each.flush()
        super().close()


class TextLine(logging.Formatter):
    """Time, level and message; then the fields as `key=value`; then the traceback, indented.

    Args:
        form: The line, in logging's own terms.
        fields: Whether to write the fields after the message.

    Promise:
        A record is one line, and those of its traceback begin with a space: quoted text neither looks like another
        event nor acts on a terminal.
    """

    def __init__(self, form: str = "%(asctime)s %(levelname)s %(message)s", *, fields: bool = True) -> None:
        super().__init__(form)
        self._has_fields = fields

    def formatException(self, ei: Any) -> str:  # noqa: N802 logging's name
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 logging's name
        return _indented(super().formatStack(stack_info))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 logging's name
        record.message = visible(record.message)
        if not self._has_fields:
            return super().formatMessage(record)
        fields = {**_service(), **_fields(record)}
        if (trace_id := _trace_id()) is not None:
            fields["trace_id"] = trace_id
        return " ".join([super().formatMessage(record), *(f"{key}={_shown(value)}" for key, value in fields.items())])


class JsonLine(logging.Formatter):
    """The same as one JSON object.

    Args:
        runner: The name of the runner that logs.
    """

    def __init__(self, runner: str) -> None:
        super().__init__()
        self._runner = runner

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": to_datetime(int(record.created * 1e9)).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "msg": record.getMessage(),
            "runner": self._runner,
            **_service(),
        }
        if (trace_id := _trace_id()) is not None:
            line["trace_id"] = trace_id
        for name, value in _fields(record).items():
            line[f"error_{name}" if name in _OWN else name] = value
        if record.exc_info and record.exc_info[0] is not None:
            line["exc"] = self.formatException(record.exc_info)
        return visible_json(json.dumps(line, default=str, ensure_ascii=False))


class Repeats(logging.Filter):
    """Counts repeated records.

    Two warnings are equal if they have the same message about the same things; only their figures may differ. Two
    errors are equal only if their texts are, since each may concern a different caller. Records with `extra={"about":
    …}` are about that. Records below warning, and those of the program itself, are never counted.

    Args:
        out: The handler that it belongs to, which writes the counts.
        clock: Measures the time.

    Not promised:
        That a count is written as soon as its window ends: it waits for the next line of any kind, or for the end.
    """

    def __init__(self, out: logging.Handler, clock: Clock) -> None:
        super().__init__()
        self._out = out
        self._clock = clock
        self._known: OrderedDict[Key | None, Repeated] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        self._out.acquire()  # reentrant: counts are written in here
        try:
            return self._is_new(record)
        finally:
            self._out.release()

    def flush(self) -> None:
        """Write all counts."""
        while self._known:
            self._say(self._known.popitem(last=False)[1], self._now_s())

    def _is_new(self, record: logging.LogRecord) -> bool:
        now_s = self._now_s()
        self._say_due(now_s)
        key = _key(record)
        if (repeated := self._known.get(key)) is not None:
            repeated.count(record)
            return False
        if key is not None:
            self._known[key] = Repeated(record, now_s)
            if len(self._known) > _KEYS_MOST:
                self._say(self._known.popitem(last=False)[1], now_s)
        return True

    def _say_due(self, now_s: float) -> None:
        """Entries are in the order in which their windows end."""
        while self._known:
            key, oldest = next(iter(self._known.items()))
            if now_s - oldest.since_s < _WINDOW_S:
                return
            del self._known[key]
            if oldest.more:
                self._say(oldest, now_s)
                oldest.more, oldest.since_s = 0, now_s
                self._known[key] = oldest

    def _say(self, repeated: Repeated, now_s: float) -> None:
        if repeated.more:
            self._out.emit(repeated.summary(now_s))

    def _now_s(self) -> float:
        return self._clock.steady_ns() / 1e9


class Repeated:
    """A record that was written, and its repetitions. Holds texts only: records keep alive what their errors hold."""

    __slots__ = ("_place", "_said", "more", "since_s")

    def __init__(self, record: logging.LogRecord, now_s: float) -> None:
        self._place = (record.name, record.levelno, record.pathname, record.lineno)
        self._said = ""
        self.more = 0
        self.since_s = now_s

    def count(self, record: logging.LogRecord) -> None:
        """Count a repetition."""
        self._said = record.getMessage()
        self.more += 1

    def summary(self, now_s: float) -> logging.LogRecord:
        """The text of the last one and the number of repetitions. The traceback was in the first one."""
        said = f"{self._said} … {self.more} more in {now_s - self.since_s:.0f}s"
        return logging.LogRecord(*self._place, said, None, None)


def _key(record: logging.LogRecord) -> Key | None:
    """The key by which records are equal; None if it is not to be counted."""
    if record.levelno < logging.WARNING or record.name.partition(".")[0] != _OURS:  # not for the program
        return None
    try:
        said = record.getMessage()
    except Exception:  # noqa: BLE001 unformattable: the handler reports it
        return None
    if record.levelno == logging.WARNING and isinstance(record.args, tuple):
        things = (str(each) for each in record.args if not isinstance(each, int | float))
        said = "\n".join([str(record.msg), *things])
    raised = record.exc_info[0] if record.exc_info else None
    return record.name, record.levelno, said, raised, str(getattr(record, "about", ""))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Code and fields of the error that a record is about: the one that was raised, or one among its arguments."""
    args = record.args if isinstance(record.args, tuple) else ()
    raised = record.exc_info[1] if record.exc_info else None
    error = next((each for each in (raised, *args) if isinstance(each, CoterieError)), None)
    if error is None:
        return {}
    return {"code": error.code, **{name: value for name, value in error.facts.items() if value not in ("", None)}}


def _service() -> dict[str, str]:
    """The singleton, cron or workflow that logs, under the field name that log collectors use."""
    with contextlib.suppress(Exception):
        work = work_here()
        if work is not None and work.name is not None:
            return {"service.name": work.name}
    return {}


def _trace_id() -> str | None:
    """The current trace. Never raises: a log line is written whatever else fails."""
    with contextlib.suppress(Exception):
        return spans.id_of((spans.on and spans.here()) or trace_here())
    return None


def _shown(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else quoted(text)


def _indented(text: str) -> str:
    return "\n".join(f"  {visible(line)}" for line in text.splitlines())
