"""Values as JSON can represent them, for people and scripts: ids are strings, instants RFC 3339 in UTC, durations
seconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

_LARGEST_EXACT = 2**53


def instant(at: datetime) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def plain(value: Any) -> Any:
    """A value as JSON can represent it; integers beyond what a browser represents exactly are strings."""
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
    if isinstance(value, Mapping):
        items: Mapping[Any, Any] = value
        return {str(key): plain(each) for key, each in items.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, list | tuple | Set):
        return [plain(each) for each in value]
    return value if isinstance(value, float) else str(value)
