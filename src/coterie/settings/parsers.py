"""Parsers of settings: from Python values or the text of a variable, and back to text.

Each constructor below makes a `Parser`: `duration("1s", "5m")`, `whole(1, 100)`, …
They accept both what a program passes and what a variable holds: `8MiB` means the same in either place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from coterie.errors import ConfigurationError, quoted
from coterie.kernel.durations import format_duration, to_timedelta
from coterie.kernel.retry import Retry
from coterie.settings.secret import Secret, redacted_url

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

_ON, _OFF = ("on", "true", "yes", "1"), ("off", "false", "no", "0")
_SIZE = re.compile(r"(?P<count>[0-9]{1,15}) ?(?P<unit>B|KiB|MiB|GiB)?")
_SIZE_UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_CALL = re.compile(r"(?:workflow:|task:)?[^\s,/:]{1,200}")
_SECRET_LEAST = 16
_DISTINCT_LEAST = 6
"""Distinct characters that a secret needs: 16 random hexadecimal digits usually have nine or more."""
_ENCODED = "%23 for #, %2F for /, %3F for ?, %40 for @, %5B for [, %5D for ]"
_SHOWN_MOST = 60


@dataclass(frozen=True, slots=True)
class Parser:
    """Parses and formats the values of a setting.

    Args:
        parse: Returns the value, or raises `ValueError` (it is refused with `accepts`) or `ConfigurationError`.
        accepts: What `parse` accepts.
        show: The value as text that `parse` accepts.
        hidden: Whether the value must not appear in an error.
        optional: Whether None is accepted, written as `off` in a variable.
    """

    parse: Callable[[Any, str], Any]
    accepts: str
    show: Callable[[Any], str] = str
    hidden: bool = False
    optional: bool = False

    def read(self, value: object, *, what: str) -> Any:
        """Parse the value, or raise a `ConfigurationError` with `what`, the value and what would be accepted."""
        value = value.strip() if isinstance(value, str) else value
        if self.optional and (value is None or value == "off"):
            return None
        try:
            return self.parse(value, what)
        except ValueError:
            refuse(what, "(hidden)" if self.hidden else _shown(value), f"expected {self.expected}")

    @property
    def expected(self) -> str:
        """What is accepted, to follow the word "expected"."""
        return f"{self.accepts}, or off" if self.optional else self.accepts

    def text(self, value: Any) -> str:
        """The value as it would be written in a variable, secrets hidden."""
        return "off" if value is None and self.optional else self.show(value)


def refuse(what: str, shown: str, problem: str, *, hint: str = "") -> NoReturn:
    """Raise the error of an invalid setting."""
    raise ConfigurationError(problem=f"{what} is {shown}: {problem}", hint=hint) from None


def optional(kind: Parser) -> Parser:
    """The same, or None, which is `off` in a variable."""
    return replace(kind, optional=True)


def duration(least: str, most: str) -> Parser:
    """A length of time within bounds."""
    low, high = to_timedelta(least, what="", allow_zero=True), to_timedelta(most, what="")

    def parse(value: Any, what: str) -> timedelta:
        length = to_timedelta(value, what=what, allow_zero=True)
        return length if low <= length <= high else _fail()

    return Parser(parse, f"a duration from {least} to {most}", format_duration)


def whole(least: int, most: int) -> Parser:
    """A whole number within bounds."""
    return Parser(lambda value, _: _number(value, int, least, most), f"a whole number from {least} to {most}")


def number(least: float, most: float) -> Parser:
    """A number within bounds."""
    return Parser(
        lambda value, _: _number(value, float, least, most),
        f"a number from {least:g} to {most:g}",
        "{:g}".format,
    )


def size(least: int, most: int) -> Parser:
    """A number of bytes within bounds: 8388608, or `8MiB`."""

    def parse(value: Any, _: str) -> int:
        if isinstance(value, str):
            match = _SIZE.fullmatch(value) or _fail()
            value = int(match["count"]) * _SIZE_UNITS[match["unit"] or "B"]
        return int(_number(value, int, least, most))

    return Parser(parse, f'a size from {format_size(least)} to {format_size(most)}, such as "8MiB"', format_size)


def flag() -> Parser:
    """True or false; `on` or `off` in a variable."""

    def parse(value: Any, _: str) -> bool:
        if isinstance(value, bool):
            return value
        word = value.lower() if isinstance(value, str) else _fail()
        return word in _ON if word in _ON + _OFF else _fail()

    return Parser(parse, "on or off", lambda value: "on" if value else "off")


def choice(*words: str, unset: str | None = None) -> Parser:
    """One of a few words. `unset` is how "none of them" is written, if that is allowed."""

    def parse(value: Any, _: str) -> str | None:
        if unset is not None and value in (None, unset):
            return None
        return value if isinstance(value, str) and value in words else _fail()

    return Parser(parse, _either([*words, *([unset] if unset else [])]), lambda value: str(value or unset))


def name() -> Parser:
    """A name that can be part of keys, file names and `group:number`."""
    return Parser(lambda value, _: _match(_NAME, value)[0], '1-64 of letters, digits, "_", "." and "-"')


def names() -> Parser:
    """One or more names: a sequence, or `a,b`."""

    def parse(value: Any, _: str) -> tuple[str, ...]:
        found = tuple(_match(_NAME, one)[0] for one in _several(value))
        return found if found and len(set(found)) == len(found) else _fail()

    return Parser(
        parse, 'names apart by commas, no two alike, each 1-64 of letters, digits, "_", "." and "-"', ",".join
    )


def call_names() -> Parser:
    """Names of entity types, of their methods, and of workflows: a sequence, or `a,b`."""

    def parse(value: Any, _: str) -> tuple[str, ...]:
        found = tuple(_match(_CALL, one)[0] for one in _several(value))
        return found if found and len(set(found)) == len(found) else _fail()

    return Parser(parse, 'names apart by commas, such as "Account,Order.cancel,workflow:checkout"', ",".join)


def address(*, port_least: int = 0) -> Parser:
    """An address to listen at or to connect to: `host:port`."""

    def parse(value: Any, _: str) -> str:
        _, port = split_address(value if isinstance(value, str) else _fail())
        return str(value) if port >= port_least else _fail()

    return Parser(parse, f'host:port with a port from {port_least} to 65535, such as "127.0.0.1:7650" or "[::1]:7650"')


def split_address(text: str) -> tuple[str, int]:
    """Host (without brackets) and port of `host:port`; otherwise raises `ValueError`."""
    match = _match(_ADDRESS, text)
    port = int(match["port"])
    return match["host"].strip("[]"), port if port <= 65535 else _fail()


def file_path() -> Parser:
    """The path of a file. Whether it exists is not checked here."""
    return Parser(
        lambda value, _: str(value) if isinstance(value, str | Path) and str(value) else _fail(),
        "the path of a file",
    )


def url() -> Parser:
    """The URL of the database. Which schemes exist is up to the storage."""
    accepts = "a URL: sqlite:///file.db, sqlite:// (memory) or postgresql://user@host/database"

    def parse(value: Any, what: str) -> str:
        if isinstance(value, str) and "://" in value:
            if value.startswith("postgres") and not _is_whole(value):
                refuse(what, "(hidden)", f"its user or password must be encoded: {_ENCODED}")
            return value
        safe = isinstance(value, str) and not set(value) & set(":@=")  # otherwise it may contain a password
        refuse(what, _shown(value) if safe else "(hidden)", f"expected {accepts}")

    return Parser(parse, accepts, redacted_url)


def _is_whole(url: str) -> bool:
    """Whether no character of the user or password ends them early: a URL parser would then show the rest of them."""
    rest = url.partition("://")[2]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    begun = rest[len(authority) :].partition("=")[0]  # an @ in the value of a parameter is allowed
    host = authority.rpartition("@")[2]
    return (
        "#" not in rest
        and authority.count("@") < 2  # the driver takes what follows the first one for the host, and looks that up
        and ("@" in authority or "@" not in begun)
        and not set(authority[: -len(host) or None]) & {*"[]"}
    )


def retry() -> Parser:
    """A `Retry`, or its arguments: `attempts=5,base=100ms`, or `never`."""
    return Parser(
        _retry,
        '"never", or some of attempts, base, factor, max and jitter as in "attempts=5,base=100ms"',
        _retry_text,
    )


def secrets(*, most: int) -> Parser:
    """Up to `most` secrets: `a,b`, a sequence, `file:` and a path, or a function that returns them."""

    def parse(value: Any, what: str) -> tuple[Secret, ...]:
        if value is None or value in ("off", ()):
            return ()
        found = tuple(one if isinstance(one, Secret) else Secret(one) for one in _several(fetched(value, what)))
        sound = all(isinstance(one.reveal(), str) and _is_strong(one.reveal()) for one in found)
        return found if sound and len(found) <= most else _fail()

    count = "one text" if most == 1 else f"up to {most} texts apart by commas, each"
    least = f"of at least {_SECRET_LEAST} characters, {_DISTINCT_LEAST} of them different"
    accepts = f'{count} {least}, or "file:" and the path of a file with that'
    return Parser(parse, accepts, lambda value: ",".join(map(str, value)) or "off", hidden=True)


def _is_strong(text: str) -> bool:
    return len(text) >= _SECRET_LEAST and len(set(text)) >= _DISTINCT_LEAST


def secret() -> Parser:
    """One secret, or None."""
    several = secrets(most=1)
    return optional(replace(several, parse=lambda value, what: several.parse(value, what)[0], show=str))


def format_size(count: int) -> str:
    """The text that parses back to this many bytes: `8MiB`."""
    unit = next(unit for unit, size_bytes in _SIZE_UNITS.items() if count % size_bytes == 0)
    return f"{count // _SIZE_UNITS[unit]}{unit}" if count else "0B"


def _fail() -> NoReturn:
    raise ValueError


def _shown(value: object) -> str:
    if isinstance(value, str):
        value = redacted_url(value)
        return quoted(value if len(value) <= _SHOWN_MOST else f"{value[:_SHOWN_MOST]}…")
    text = repr(value)
    return text if len(text) <= _SHOWN_MOST else f"{text[:_SHOWN_MOST]}…"


def _number(value: Any, kind: type[int] | type[float], least: float, most: float) -> Any:
    if isinstance(value, str):
        value = kind(value)
    fits = isinstance(value, int | kind) and not isinstance(value, bool)
    return kind(value) if fits and least <= value <= most else _fail()  # NaN is in no range


def _match(pattern: re.Pattern[str], value: object) -> re.Match[str]:
    return (pattern.fullmatch(value) if isinstance(value, str) else None) or _fail()


def _either(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _several(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return list(value) if isinstance(value, list | tuple) else [value]


def fetched(value: Any, what: str) -> Any:
    """Fetch secrets from a file (as orchestrators mount them) or from a function."""
    if callable(value):
        return value()
    if isinstance(value, str) and value.startswith("file:"):
        path = value.removeprefix("file:")
        try:
            return Path(path).read_text("utf-8").strip()
        except OSError as error:
            refuse(what, quoted(value), f"that file cannot be read ({error.strerror})")
    return value


def _retry(value: Any, what: str) -> Retry:
    if isinstance(value, Retry):
        return value
    if value == "never":
        return Retry.never
    pairs = dict(part.split("=", 1) for part in _several(value if isinstance(value, str) else _fail()))
    readers: dict[str, Callable[[str], Any]] = {
        "attempts": int,
        "factor": float,
        "jitter": float,
        "base": str,
        "max": str,
    }
    if not pairs.keys() <= readers.keys():
        _fail()
    try:
        return Retry(**{key: readers[key](text.strip()) for key, text in pairs.items()})
    except ConfigurationError as error:
        refuse(what, quoted(value), error.problem, hint=error.hint)


def _retry_text(policy: Retry) -> str:
    base, most = format_duration(policy.base), format_duration(policy.max)
    plain = f"attempts={policy.attempts},base={base},factor={policy.factor:g},max={most},jitter={policy.jitter:g}"
    classes = (("on", policy.on), ("unless", policy.unless))  # shown, and given only in the program: they are no text
    return plain + "".join(f",{name}={'+'.join(kind.__name__ for kind in kinds)}" for name, kinds in classes if kinds)
