"""Rows that cannot be read: each is left out alone, logged once and counted, and its neighbours are read as ever.

Only what was written by another hand than coterie's, or by a fault of the disk, cannot be read. What is known of such
rows belongs to the process, as metrics do.
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
    """Those that this process has met and not read since."""
    return tuple(_known.values())


def readable(
    rows: Iterable[R], decode: Callable[[R], T], *, table: str, key: Callable[[R], Any], is_whole: bool = False
) -> list[T]:
    """The rows as values, without those that cannot be read.

    Args:
        rows: As the database gave them.
        decode: Makes a value of one of them; whatever it raises means that it cannot be read.
        table: Where they are from.
        key: By what people find one of them.
        is_whole: Whether these are all rows of the table: one that is not among them was deleted, and is forgotten.
    """
    values: list[T] = []
    met: set[str] = set()
    for row in rows:
        try:
            values.append(decode(row))
        except Exception as error:  # noqa: BLE001 whatever is in a row, it must not cost its neighbours
            met.add(place := _key(row, key))
            _set_aside(table, place, f"{type(error).__name__}: {error}")
        else:
            if _known:
                _known.pop((table, _key(row, key)), None)
    if is_whole:
        for known in tuple(_known):  # a copy: SQLite reads on threads of its own
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
    """A runner whose address leads somewhere and whose weight can be compared.

    Raises:
        ValueError: It is not so.
    """
    if row.address:  # without one it is reached by nobody, and says so
        split_address(row.address)
    if not math.isfinite(row.weight) or row.weight < 0:
        raise ValueError(f"its weight is {row.weight}")
    return row


def checked_seat(row: SeatRow) -> SeatRow:
    """A seat that somebody could sit on.

    Raises:
        ValueError: It is a shard that no entity can be in.
    """
    kind, name = Seat.split(row.name)
    if kind == "shard":
        ShardId.parse(name)
    return row
