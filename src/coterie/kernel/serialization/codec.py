"""From values to bytes and back, by declared type: msgpack, data only, never code.

Types: dataclasses, msgspec Structs, attrs classes, TypedDicts, pydantic models (when installed) and plain
values. Maps may have keys that are not text. NaN is a number. Instants are encoded as the timestamp of the msgpack
standard; every other msgpack extension is refused.

Decoding is lenient about fields (S4): unknown ones are dropped, missing ones take their defaults. It is
strict about types: `"500"` is not a whole number (pydantic models decide that for themselves).

Errors of msgspec become sentences for users:
`Expected `int`, got `str` - at `$.cents`` becomes `cents is "500" (text), expected a whole number`.
"""

from __future__ import annotations

import io
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, get_origin, overload

import msgspec

from coterie.errors import ConfigurationError, MalformedMessage, quoted
from coterie.kernel.serialization.canonical import Walk
from coterie.kernel.serialization.models import (
    ABSENT,
    dump_model,
    is_model_type,
    make_model,
    parts_of,
    private_attrs_field,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


NESTED_MOST = 64
"""Nesting depth of lists and maps: more than data needs, less than any stack allows (P24)."""

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
    assert match is not None  # the pattern matches everything
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
    """The value and its kind; only the kind that msgspec found if the value is not known."""
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


T = TypeVar("T")

ACCEPTED = (
    "use dataclasses, msgspec Structs, attrs classes, TypedDicts, pydantic models or plain values: "
    "text, numbers, bytes, lists, maps, instants"
)

_BASES = (str, int, float)  # subclasses of these are encoded as what they extend
_HEADS = frozenset([*range(0x80, 0xA0), *range(0xDC, 0xE0)])  # the bytes that begin a list or a map
_ANYTHING = (msgspec.inspect.AnyType, msgspec.inspect.CustomType)
_NOT_HEADS = bytes(byte for byte in range(256) if byte not in _HEADS)


class Codec(Generic[T]):
    """Encodes and decodes values of one type. `codec_for` returns the codec of a type.

    Args:
        type: The declared type. One that cannot be decoded is refused here, not when data is at stake.

    Promise:
        Every failure is a `MalformedMessage` that says which part is wrong, whatever the bytes are; no input
        leads to a `RecursionError`, to code looked up by name, or to more memory than its size warrants.

    Not promised:
        A limit on the size: the caller must check it before decoding.
    """

    def __init__(self, type: Any) -> None:
        self.type = type
        self.name = _type_name(type)
        self._decoder, self._open, self._is_flat = _decoder(type, self.name)
        self._exact = next((each for each in _EXACT if each is type), None)

    def encode(self, value: T, *, what: str | None = None) -> bytes:
        """The value as bytes. Not checked against the type: see `checked`.

        Args:
            value: The value.
            what: What is encoded, for the error; default: the type's name.
        """
        try:
            data = _ENCODER.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            problem = unencodable(value, _ENCODER.encode, error)
            hint = ACCEPTED if "not data" in problem else ""
            raise MalformedMessage(what=what or self.name, problem=problem, hint=hint) from error
        if _too_deep(data):
            raise MalformedMessage(what=what or self.name, problem=TOO_DEEP)
        return data

    def decode(self, data: bytes, what: str | None = None) -> T:
        """The value that the bytes hold."""
        if not self._is_flat and _too_deep(data):
            raise MalformedMessage(what=what or self.name, problem=TOO_DEEP)
        try:
            decoded: T = self._decoder.decode(data)
        except Exception as error:  # a class's own __post_init__ may raise anything (P24)
            problem = TOO_DEEP if self._is_flat and _too_deep(data) else misfit(error, data)
            raise MalformedMessage(what=what or self.name, problem=problem) from error
        return decoded

    def from_json(self, data: bytes, *, what: str | None = None) -> T:
        """Decode JSON as people write it: instants, UUIDs and bytes are texts there."""
        try:
            decoded: T = msgspec.json.decode(data, type=self.type, dec_hook=_dec_hook)
        except Exception as error:  # as in `decode`
            try:
                plain = PLAIN.encode(msgspec.json.decode(data))
            except (ValueError, RecursionError, MalformedMessage):
                problem = TOO_DEEP if isinstance(error, RecursionError) else f"it is no JSON: {error}"
                raise MalformedMessage(what=what or self.name, problem=problem) from error
            self.decode(plain, what=what)  # raises, and words the error
            raise MalformedMessage(what=what or self.name, problem=misfit(error, plain)) from error
        return decoded

    def checked(self, value: T, what: str | None = None) -> bytes:
        """Encode to bytes that are known to decode: for what is stored, or sent to another process."""
        if self._is_flat:
            try:
                data = _ENCODER.encode(value)
                if type(value) is not self._exact:
                    self._decoder.decode(data)
            except Exception:  # noqa: BLE001 S110 whatever it is, it is found again below, and told
                pass
            else:
                return data
        data = self.encode(value, what=what)
        self.decode(data, what=what)
        return data

    def settled(self, value: T, what: str | None = None) -> tuple[bytes, T]:
        """As `checked`; also returns the value as its readers will decode it."""
        data = self.encode(value, what=what)
        return data, self.decode(data, what)

    def copy(self, value: T, *, what: str | None = None) -> T:
        """The value as the other side would get it, sharing nothing with this one."""
        return self.decode(self.encode(value, what=what), what=what)

    def canonical(self, value: T, *, what: str | None = None) -> bytes:
        """Bytes that are equal for equal values, for comparing payloads [M4].

        Promise:
            The same in every process, whatever the order of maps, sets and fields. Fields at their default
            are left out, so that a caller whose class has one more field, with a default, compares equal.
            Numbers compare by value: 1 and 1.0 are equal.

        Not promised:
            That values differ when a default was changed between two versions of a class. Classes under `Any`
            are maps, without defaults.
        """
        data = self.encode(value, what=what)  # refuses what the walks could not handle
        if self._open:
            data = _FULL.bytes_of(value)  # a set under Any would become a list in the order of its hashes
        return canonical(self.decode(data, what=what))


def canonical(decoded: object) -> bytes:
    """As `Codec.canonical`, for a value that a codec has just decoded."""
    return _BARE.bytes_of(decoded)


@overload
def codec_for(type: type[T], /) -> Codec[T]: ...
@overload
def codec_for(type: Any, /) -> Codec[Any]: ...
def codec_for(type: Any, /) -> Codec[Any]:
    """The codec of a type, made once.

    >>> codec_for(list[int]).decode(codec_for(list[int]).encode([1, 2]))
    [1, 2]

    Raises:
        ConfigurationError: The type, or a part of it, cannot be encoded and decoded.
    """
    try:
        return _cached(type)
    except TypeError:  # not hashable: an Annotated[…] with a list in it
        return Codec(type)


@lru_cache(maxsize=1024)
def _cached(type: Any) -> Codec[Any]:
    return Codec(type)


def _enc_hook(value: Any) -> Any:
    """Encodes what msgspec does not support by itself."""
    if is_model_type(type(value)):
        return dump_model(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"{type(value).__name__} is not data")


def _dec_hook(kind: Any, value: Any) -> Any:
    if is_model_type(kind):
        return make_model(kind, value)
    made = get_origin(kind) or kind
    base = next((base for base in _BASES if issubclass(made, base)), object)
    if not isinstance(value, base):
        raise TypeError(f"Expected `{base.__name__}`, got `{type(value).__name__}`")
    return value if made is object else made(value)


def _refuse_extension(code: int, _: object) -> NoReturn:
    raise msgspec.ValidationError(f"msgpack extension {code} is not accepted")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_enc_hook)

_EXACT = (bytes, str, bool, float)
"""Types of which every encodable value can be decoded: nothing to check."""
_FULL = Walk(_ENCODER.encode, bare=False)
_BARE = Walk(_ENCODER.encode, bare=True)


def _decoder(type: Any, name: str) -> tuple[msgspec.msgpack.Decoder[Any], bool, bool]:
    """The decoder of a type, whether it has parts of any type, and whether it cannot nest deeply."""
    seen: dict[int, Any] = {}
    try:
        _check(msgspec.inspect.type_info(type), seen)
        decoder = msgspec.msgpack.Decoder(type, dec_hook=_dec_hook, ext_hook=_refuse_extension)
    except (TypeError, ValueError, NameError, RuntimeError) as error:
        raise ConfigurationError(
            problem=f"values of type {name} cannot be stored or sent: {error}", hint=ACCEPTED
        ) from error
    is_open = any(isinstance(info, _ANYTHING) for info in seen.values())
    return decoder, is_open, not is_open and _nests(seen) <= NESTED_MOST


def _nests(seen: dict[int, Any]) -> float:
    """The maximum nesting of values of a type, by the parts of the type; infinite if it contains itself."""
    levels: dict[int, float] = {}

    def level(info: Any) -> float:
        if id(info) not in levels:
            levels[id(info)] = math.inf  # until it is known: if met again meanwhile, it contains itself
            levels[id(info)] = 1 + max(map(level, _parts(info)), default=0)
        return levels[id(info)]

    return max(map(level, seen.values()), default=0)


def _check(info: Any, seen: dict[int, Any]) -> None:
    """Raise `TypeError` if a part of the type could be encoded but not decoded, or would be lost."""
    if id(info) in seen:
        return
    seen[id(info)] = info
    kind = getattr(info, "cls", None)
    if isinstance(info, msgspec.inspect.CustomType) and not _understood(kind):
        raise TypeError(f"{_type_name(kind)} is not data")
    if isinstance(info, msgspec.inspect.ExtType | msgspec.inspect.RawType):
        raise TypeError("raw msgpack and its extensions are not accepted")
    if isinstance(kind, type) and (private := private_attrs_field(kind)):
        raise TypeError(f"field {private} of {kind.__name__} begins with an underscore, which attrs hides")
    for part in _parts(info):
        _check(part, seen)


def _parts(info: Any) -> list[Any]:
    named = [getattr(info, name, None) for name in ("item_type", "key_type", "value_type", "type")]
    several = [*getattr(info, "item_types", ()), *getattr(info, "types", ()), *getattr(info, "fields", ())]
    return [part for part in [*named, *several] if isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field)]


def _understood(kind: Any) -> bool:
    return kind is object or is_model_type(kind) or (isinstance(kind, type) and issubclass(kind, _BASES))


def _too_deep(data: bytes) -> bool:
    """Whether lists and maps nest too deeply, at next to no cost for data that cannot.

    Each level takes a byte that begins a list or a map, so data with few such bytes is accepted at once. Many of
    them may also occur inside texts and numbers: then the levels are counted.
    """
    if len(data) <= NESTED_MOST or len(data.translate(None, _NOT_HEADS)) <= NESTED_MOST:
        return False
    try:
        level = [msgspec.msgpack.decode(data)]
    except RecursionError:
        return True
    except ValueError:  # not readable: decoding by type will say why
        return False
    for _ in range(NESTED_MOST):
        inner = [part for outer in level for part in (outer.values() if isinstance(outer, dict) else outer)]
        level = [part for part in inner if isinstance(part, dict | list)]
        if not level:
            return False
    return True


def _type_name(type: Any) -> str:
    """The type's name as written in the program, without modules: `list[Item]`, `Item | None`."""
    if get_origin(type) is None and isinstance(name := getattr(type, "__name__", None), str):
        return name
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(type))


PLAIN: Codec[Any] = Codec(Any)
"""For values without declared type."""
