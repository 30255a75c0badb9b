"""Maps instants of PostgreSQL that Python cannot express (years BC, after 9999) to the nearest ones that it can.

The driver would raise while it reads them, which costs all rows of the statement: one message dated BC would hide all
messages of its runner.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncpg

_TIMESTAMPTZ = 1184
"""Its oid, the same on every server."""
_ORIGIN = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_FIRST_US, _LAST_US = (_FIRST - _ORIGIN) // _MICROSECOND, (_LAST - _ORIGIN) // _MICROSECOND
_INFINITY_US = 2**63 - 1


def install(connection: asyncpg.Connection[Any]) -> None:
    """Install this codec on a connection. No round trip, which `set_type_codec` would need."""
    settings = connection._protocol.get_settings()  # type: ignore[attr-defined] # noqa: SLF001 see above
    settings.add_python_codec(_TIMESTAMPTZ, "timestamptz", "pg_catalog", [], "scalar", _encoded, _decoded, "tuple")


def _decoded(row: tuple[int]) -> datetime:
    (us,) = row
    if us <= _FIRST_US:
        return _FIRST
    return _LAST if us >= _LAST_US else _ORIGIN + timedelta(microseconds=us)


def _encoded(at: Any) -> tuple[int]:
    """Like the driver: a date is its midnight, a naive datetime is local, the extremes are infinite."""
    if not isinstance(at, datetime):
        if not isinstance(at, date):
            raise TypeError(f"expected a datetime, not {type(at).__name__}")
        at = datetime(at.year, at.month, at.day)  # noqa: DTZ001 local, as the driver takes it
    if at.tzinfo is None:
        if at in (datetime.min, datetime.max):  # noqa: DTZ901 the driver's infinities
            return (_INFINITY_US if at == datetime.max else -_INFINITY_US - 1,)  # noqa: DTZ901
        at = at.astimezone(UTC)
    us = (at - _ORIGIN) // _MICROSECOND
    if us >= _LAST_US:
        return (_INFINITY_US,)
    return (-_INFINITY_US - 1,) if us <= _FIRST_US else (us,)
