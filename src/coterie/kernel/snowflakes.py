"""Snowflakes: 64-bit ids that are unique in the cluster and sort by time [K2].

    0 │ 41 bits: milliseconds since 2025 │ 10 bits: machine id │ 12 bits: sequence

A machine id is leased, together with a *mark* that is written ahead: the millisecond up to which its holder
may draw. Whoever holds the machine id next starts after the mark, so nothing that a crashed holder drew since
it last wrote is ever drawn again [M15].

    predecessor's ids ……………… mark │ ids of this holder ………… mark │ ids of the next …
                            after_ms │                     until_ms │
"""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

from coterie.kernel.clock import to_datetime, to_ns

EPOCH_MS = to_ns(dt.datetime(2025, 1, 1, tzinfo=dt.UTC)) // 1_000_000
MACHINES = 1024

_TIME_BITS, _MACHINE_BITS, _SEQUENCE_BITS = 41, 10, 12
_SEQUENCE_MOST = 2**_SEQUENCE_BITS - 1
_LAST_MS = EPOCH_MS + 2**_TIME_BITS - 1


class SnowflakeParts(NamedTuple):
    """What a snowflake is made of."""

    timestamp: int
    """Milliseconds since 1970."""
    machine_id: int
    sequence: int


class Snowflake:
    """Reads and composes snowflakes; the ids themselves are plain whole numbers."""

    @staticmethod
    def parts(id: int) -> SnowflakeParts:
        """Take an id apart."""
        if not 0 <= id < 2**63:
            raise ValueError(f"{id} is not a snowflake: those are from 0 to 2**63-1")
        sequence = id & _SEQUENCE_MOST
        machine_id = id >> _SEQUENCE_BITS & MACHINES - 1
        return SnowflakeParts((id >> _SEQUENCE_BITS + _MACHINE_BITS) + EPOCH_MS, machine_id, sequence)

    @staticmethod
    def datetime(id: int) -> dt.datetime:
        """The instant in an id, in UTC."""
        return to_datetime(Snowflake.parts(id).timestamp * 1_000_000)

    @staticmethod
    def compose(*, timestamp: int, machine_id: int, sequence: int) -> int:
        """The id of these parts; the opposite of `parts`."""
        _check_time(timestamp)
        _check_machine(machine_id)
        if not 0 <= sequence <= _SEQUENCE_MOST:
            raise ValueError(f"sequence {sequence} is out of range 0-{_SEQUENCE_MOST}")
        return ((timestamp - EPOCH_MS) << _MACHINE_BITS | machine_id) << _SEQUENCE_BITS | sequence


class SnowflakeGenerator:
    """Draws the ids of one holder of a machine id. It has no clock and no storage: the caller brings both.

    Args:
        machine_id: The leased machine id.
        after_ms: The mark that the holder before wrote, or 0; every id here is later.
        until_ms: The mark that this holder wrote; no id here is later.

    Promise:
        Ids strictly increase and never repeat: not when the clock stands still or steps back, not when more
        than 4,096 are drawn in a millisecond (they borrow from the next ones, up to the mark), and not when
        the machine id had another holder whose mark this one starts after [S1].
    """

    def __init__(self, machine_id: int, *, after_ms: int, until_ms: int) -> None:
        _check_machine(machine_id)
        self.machine_id = machine_id
        # Milliseconds and sequence as one number: then "the next one" is plain addition, carry included.
        self._last: int = max(after_ms, EPOCH_MS - 1) << _SEQUENCE_BITS | _SEQUENCE_MOST
        self._until_ms = after_ms
        self.extend(until_ms)

    @property
    def last_ms(self) -> int:
        """The millisecond of the last id. A new mark must lie beyond it and beyond the clock to be of use."""
        return self._last >> _SEQUENCE_BITS

    @property
    def until_ms(self) -> int:
        """The mark: no id is later."""
        return self._until_ms

    def take(self, now_ms: int) -> int | None:
        """The next id; None if it would pass the mark: store a higher one, then `extend`."""
        following = max(self._last + 1, now_ms << _SEQUENCE_BITS)
        timestamp, sequence = following >> _SEQUENCE_BITS, following & _SEQUENCE_MOST
        if timestamp > self._until_ms:
            return None
        self._last = following
        return Snowflake.compose(timestamp=timestamp, machine_id=self.machine_id, sequence=sequence)

    def extend(self, until_ms: int) -> None:
        """Allow ids up to a mark that has been stored. A mark only moves forward."""
        if until_ms < self._until_ms:
            raise ValueError(f"the mark of machine {self.machine_id} cannot go back {self._until_ms - until_ms} ms")
        if until_ms > _LAST_MS:
            _check_time(until_ms)
        self._until_ms = until_ms


def _check_machine(machine_id: int) -> None:
    # Never reduced modulo 1024: that is how two machines come to draw the same ids (incident 7).
    if not 0 <= machine_id < MACHINES:
        raise ValueError(f"machine id {machine_id} is out of range 0-{MACHINES - 1}")


def _check_time(timestamp: int) -> None:
    if not EPOCH_MS <= timestamp <= _LAST_MS:
        raise ValueError(f"{timestamp} ms since 1970 is outside of what snowflakes can tell, 2025 to 2094")
