"""From msgspec's errors to sentences for users: which part is what, and what was expected. Pure.

`Expected `int`, got `str` - at `$.cents`` becomes `cents is "500" (text), expected a whole number`.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.errors import quoted
from coterie.kernel.shapes import ABSENT, dump_model, is_model_type, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NESTED_MOST = 64
"""Levels of lists and maps inside each other: more than data needs, fewer than any stack holds (P24)."""

TOO_DEEP = f"it is nested deeper than {NESTED_MOST} levels, or contains itself"

_SHOWN_MOST = 40
_PLACE = re.compile(r"(?P<said>.*?)(?: - at (?P<key>`key` in )?`(?P<path>\$.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(?P<field>[^.\[]+)|\[(?P<index>\d+)\]|(?P<some>\[\.\.\.\])")
_MISSING = re.compile(r"Object (?P<how>missing required|contains unknown) field `(?P<field>.*)`")
_EXPECTED = re.compile(r"Expected `(?P<wanted>[^`]*)`(?P<limit>.*?)(?:, got `?(?P<found>[^`]*)`?)?", re.DOTALL)

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "decimal": "a decimal number",
    "str": "text",
    "bool": "true or false",
    "bytes": "bytes",
    "null": "nothing",
    "NoneType": "nothing",
    "array": "a list",
    "object": "a map",
    "datetime": "an instant",
    "date": "a date",
    "time": "a time of day",
    "timedelta": "a duration",
    "uuid": "a UUID",
    "ext": "a msgpack extension",
}
_INVALID = {
    "Invalid enum value": "one of the values of its type",
    "Invalid value": "one of the values of its type",
    "Invalid UUID": "a UUID",
    "Invalid RFC3339 encoded datetime": 'an instant such as "2026-03-29T02:30:00+02:00"',
    "Invalid RFC3339 encoded date": 'a date such as "2026-03-29"',
    "Invalid RFC3339 encoded time": 'a time of day such as "02:30:00"',
    "Invalid ISO8601 duration": 'a duration such as "PT1H30M"',
    "Invalid decimal string": "a decimal number",
}


def misfit(error: Exception, data: bytes) -> str:
    """What is wrong with `data`, from the error that decoding it raised."""
    if isinstance(error, RecursionError):
        return TOO_DEEP
    if isinstance(error, UnicodeDecodeError):
        return "a text in it is not valid UTF-8"
    if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
        said = str(error).removeprefix("MessagePack data is malformed: ")
        return f"it is not readable as msgpack ({said[:1].lower()}{said[1:]})"
    if not isinstance(error, msgspec.ValidationError):
        return f"{type(error).__name__}: {error}"
    match = _PLACE.fullmatch(str(error))
    assert match is not None  # the pattern takes everything
    if match["key"]:
        return _sentence(match["said"], f"a key of {_place(match['path']) or 'it'}", ABSENT)
    path = match["path"] or "$"
    return _sentence(match["said"], _place(path), _look_up(path, data))


def unencodable(value: object, encode: Callable[[object], bytes], error: Exception) -> str:
    """Which part of `value` cannot be encoded, and why."""
    if isinstance(error, RecursionError):
        return TOO_DEEP
    for place, part in _leaves(value, "", 0):
        try:
            encode(part)
        except (TypeError, ValueError, OverflowError) as reason:
            subject = place if place[:1].strip() else f"it{place}"
            return f"{subject} is {_described(part, reason)}"
    return str(error)


def _sentence(said: str, place: str, value: Any) -> str:
    if match := _MISSING.fullmatch(said):
        name = f"{place}.{match['field']}" if place else match["field"]
        return f"{name} is missing" if match["how"].startswith("missing") else f"{name} is not known here"
    match = _EXPECTED.fullmatch(said)
    expected = _wanted(match) if match else next((_INVALID[s] for s in _INVALID if said.startswith(s)), None)
    if expected is None:
        return f"{place}: {said}" if place else said
    found = _shown(value, (match["found"] if match else None) or "")
    return f"{place or 'it'} is {found}, expected {expected}"


def _wanted(match: re.Match[str]) -> str:
    words = [_WORDS.get(word, word) for word in match["wanted"].split(" | ")]
    return " or ".join(words) + match["limit"]


def _place(path: str) -> str:
    return path.removeprefix("$").removeprefix(".").replace("[...]", "[…]")


def _look_up(path: str, data: bytes) -> Any:
    """The value at a path of msgspec; ABSENT where the path does not say which (some value of a map)."""
    try:
        value = msgspec.msgpack.decode(data)
        for step in _STEP.finditer(path):
            if step["some"]:
                return ABSENT
            value = value[step["field"]] if step["field"] else value[int(step["index"])]
    except (msgspec.MsgspecError, ValueError, LookupError, TypeError):
        return ABSENT
    return value


def _shown(value: Any, found: str) -> str:
    """The value and what it is; only what msgspec found it to be where it is not known."""
    if value is ABSENT:
        return _WORDS.get(found, "something else")
    if isinstance(value, str):
        cut = value if len(value) <= _SHOWN_MOST else f"{value[:_SHOWN_MOST]}…"
        return f"{quoted(cut)} (text)"
    if isinstance(value, bool):
        return f"{str(value).lower()} (true or false)"
    if isinstance(value, list | dict | bytes):
        word = {list: "a list", dict: "a map", bytes: "bytes"}[type(value)]
        return f"{word} of length {len(value)}"
    if isinstance(value, int | float):
        return f"{value} ({_WORDS[type(value).__name__].removeprefix('a ')})"
    return _WORDS.get(type(value).__name__) or _WORDS.get(found, "something else")


def _leaves(value: Any, place: str, depth: int) -> Iterator[tuple[str, Any]]:
    """All parts that have no parts themselves, each with its place."""
    if depth > NESTED_MOST:
        return
    inside = _inside(value)
    if inside is None:
        yield place, value
        return
    for step, part in inside:
        yield from _leaves(part, f"{place}{step}".removeprefix("."), depth + 1)


def _inside(value: Any) -> list[tuple[str, Any]] | None:
    if is_model_type(type(value)):
        value = dump_model(value)
    elif (parts := parts_of(type(value))) is not None:
        held = ((f".{part.name}", part.of(value)) for part in parts)
        return [(step, part) for step, part in held if part is not ABSENT]
    if isinstance(value, dict):
        keys = [(" (a key)", key) for key in value]
        return keys + [(f".{key}" if isinstance(key, str) else f"[{key!r}]", value[key]) for key in value]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    return None


def _described(part: Any, reason: Exception) -> str:
    if isinstance(part, str):
        return "text with half a surrogate pair, which is no Unicode"
    if isinstance(part, int):
        return "a whole number beyond 64 bits"
    if isinstance(part, io.IOBase):
        return "an open file, which is not data"
    name = "a function" if callable(part) and not isinstance(part, type) else f"of type {type(part).__name__}"
    return f"{name}, which is not data" if isinstance(reason, TypeError) else f"{name}: {reason}"
