"""Skips rows that cannot be read: each is logged once and counted, and the other rows are read as usual.

Rows become unreadable only through another program or a disk fault. The list of them is kept per process, like
metrics.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from coterie.kernel import metrics
from coterie.kernel.ids import Seat, ShardId
from coterie.settings.parsers import split_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coterie.storage.interface import RunnerRow, SeatRow

R = TypeVar("R")
T = TypeVar("T")

log = logging.getLogger("coterie")

_KNOWN_MOST = 1_000
_SHOWN = 120


class UnreadableRow(NamedTuple):
    """A row that could not be read."""

    table: str
    key: str
    problem: str

    def __str__(self) -> str:
        return f"row {self.key!r} of table {self.table} cannot be read: {self.problem}"


_known: dict[tuple[str, str], UnreadableRow] = {}


def found() -> tuple[UnreadableRow, ...]:
    """The unreadable rows that this process has met and not been able to read since."""
    return tuple(_known.values())


def readable(
    rows: Iterable[R], decode: Callable[[R], T], *, table: str, key: Callable[[R], Any], is_whole: bool = False
) -> list[T]:
    """Decode rows, leaving out those that cannot be read.

    Args:
        rows: The rows from the database.
        decode: Decodes a row; any exception means that it cannot be read.
        table: The table's name.
        key: Returns the key by which people find a row.
        is_whole: Whether these are all rows of the table: a known bad row that is missing was deleted, and is
            forgotten.
    """
    values: list[T] = []
    met: set[str] = set()
    for row in rows:
        try:
            values.append(decode(row))
        except Exception as error:  # noqa: BLE001 a bad row must not cost the other rows
            met.add(place := _key(row, key))
            _set_aside(table, place, f"{type(error).__name__}: {error}")
        else:
            if _known:
                _known.pop((table, _key(row, key)), None)
    if is_whole:
        for known in tuple(_known):  # a copy: SQLite reads on its own threads
            if known[0] == table and known[1] not in met:
                _known.pop(known, None)
    return values


def _key(row: R, key: Callable[[R], Any]) -> str:
    try:
        return str(key(row))
    except Exception:  # noqa: BLE001 the key cannot be read either
        return repr(row)[:_SHOWN]


def _set_aside(table: str, key: str, problem: str) -> None:
    metrics.UNREADABLE_ROWS.of(table).value += 1
    if (table, key) not in _known and len(_known) < _KNOWN_MOST:
        row = _known[table, key] = UnreadableRow(table, key, problem)
        log.error("%s; it is left out, and the other rows are read as ever", row)


def checked_runner(row: RunnerRow) -> RunnerRow:
    """Return the runner if its address and its weight are valid.

    Raises:
        ValueError: They are not.
    """
    if row.address:  # empty: the runner accepts no connections
        split_address(row.address)
    if not math.isfinite(row.weight) or row.weight < 0:
        raise ValueError(f"its weight is {row.weight}")
    return row


def checked_seat(row: SeatRow) -> SeatRow:
    """Return the seat if its name is valid.

    Raises:
        ValueError: It is a shard that no entity can be in.
    """
    kind, name = Seat.split(row.name)
    if kind == "shard":
        ShardId.parse(name)
    return row
