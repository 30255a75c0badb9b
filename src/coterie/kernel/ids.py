"""Ids of things in a cluster: shards, entities, incarnations of runners, messages, and snowflakes.

Snowflakes are 64-bit ids that are unique in the cluster and sort by time [K2].

    0 │ 41 bits: milliseconds since 2025 │ 10 bits: machine id │ 12 bits: sequence

A machine id is leased, together with a *mark* that is written ahead: the millisecond up to which its holder
may draw. The next holder of the machine id starts after the mark, so nothing that a crashed holder drew since
it last wrote is ever drawn again [M15].

    predecessor's ids ……………… mark │ ids of this holder ………… mark │ ids of the next …
                            after_ms │                     until_ms │
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

from coterie.kernel.clock import Clock, to_datetime, to_ns
from coterie.kernel.text import not_unicode

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from coterie.kernel.random import Random

    T_co = TypeVarWithDefault("T_co", covariant=True, default=Any)
else:
    T_co = TypeVar("T_co", covariant=True)

_GROUP = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SHARD = re.compile(r"(?P<group>[^:]*):(?P<number>0|[1-9][0-9]{0,9})")

_MOST_SHARD_NUMBER = 2**31 - 1  # what an integer column holds
_MOST_NAME_BYTES = 1000  # two of them fit in one index entry of PostgreSQL (2,704 bytes)
_SEQUENCE_BITS = 16
_RANDOM_BITS = 64
_DRAWN_AHEAD = 64
"""How many random halves are drawn together: one system call for all of them."""


@dataclass(frozen=True, order=True, slots=True)
class ShardId:
    """One of the slices of a group's key space. Prints as `default:42`, which `parse` parses [K3]."""

    group: str
    number: int

    def __post_init__(self) -> None:
        check_group(self.group)
        if not 0 <= self.number <= _MOST_SHARD_NUMBER:
            raise ValueError(f"shard number {self.number} of group {self.group!r} is not in 0-{_MOST_SHARD_NUMBER}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a shard printed by `str()`."""
        match = _SHARD.fullmatch(text)
        if match is None:
            raise ValueError(f'{text!r} is not a shard: write group and number, as in "default:42"')
        return cls(match["group"], int(match["number"]))

    def __str__(self) -> str:
        return f"{self.group}:{self.number}"


class Seat:
    """Names of seats: the kind, a colon, and the name: `shard:default:42`, `singleton:importer`."""

    @staticmethod
    def shard(shard: ShardId) -> str:
        """The seat of a shard."""
        return f"shard:{shard}"

    @staticmethod
    def singleton(name: str) -> str:
        """The seat of a singleton."""
        return f"singleton:{name}"

    @staticmethod
    def cron(name: str) -> str:
        """The seat of a cron."""
        return f"cron:{name}"

    @staticmethod
    def incoming(group: str) -> str:
        """The seat of those who take in what SQL has sent to the types of a group."""
        return f"incoming:{group}"

    @staticmethod
    def queue(name: str) -> str:
        """The seat of a queue of jobs."""
        return f"queue:{name}"

    @staticmethod
    def jobs(group: str, number: int) -> str:
        """One of the seats of a group's jobs without a queue. No queue has a colon in its name."""
        return f"queue:{group}:{number}"

    @staticmethod
    def queue_name(seat: str) -> str:
        """The queue of a seat of jobs as people see it; `default:*` are the jobs without a queue of group `default`.

        >>> Seat.queue_name("queue:emails"), Seat.queue_name("queue:default:3")
        ('emails', 'default:*')
        """
        name, colon, _ = seat.removeprefix("queue:").partition(":")
        return f"{name}:*" if colon else name

    @staticmethod
    def split(seat: str) -> tuple[str, str]:
        """The kind and the rest."""
        kind, _, rest = seat.partition(":")
        return kind, rest

    @staticmethod
    def is_queue(seat: str) -> bool:
        """Whether it is a seat of jobs."""
        return seat.startswith("queue:")

    @staticmethod
    def is_shard(seat: str) -> bool:
        """Whether it is the seat of a shard."""
        return seat.startswith("shard:")


@dataclass(frozen=True, order=True, slots=True)
class EntityAddress:
    """The address of an entity: its type and its id. Prints as `Account/alice`, which `parse` parses."""

    type: str
    id: str

    def __post_init__(self) -> None:
        _check_name(self.type, what="entity type")
        _check_name(self.id, what="entity id")
        if "/" in self.type:
            raise ValueError(f'entity type {self.type!r} has a "/", which divides type and id')

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an address printed by `str()`. Ids may contain slashes."""
        if "/" not in text:
            raise ValueError(f'{text!r} is not an entity: write type and id, as in "Account/alice"')
        return cls(*text.split("/", 1))

    def __str__(self) -> str:
        return f"{self.type}/{self.id}"


class MessageId(str, Generic[T_co]):
    """The id of a message; its type parameter is the type of the reply."""

    __slots__ = ()


class MessageIds:
    """Draws the message ids of one sender, without coordination [M15].

    An id has 48 bits of milliseconds since 1970, 16 bits of sequence and 64 random bits, as 32 hexadecimal
    digits.

    Promise:
        Ids of one sender sort as text in the order in which they were drawn, also when the clock stands still
        or steps back, and when more than 65,536 are drawn in a millisecond (they borrow from the next).

    Not promised:
        An order between senders, nor the exact time after a clock went back. Not thread-safe.
    """

    def __init__(self, clock: Clock, chance: Random) -> None:
        self._wall_ns = clock.wall_ns
        self._chance = chance
        self._last = -1  # milliseconds and sequence as one number, so that carrying over is plain addition
        self._random: list[str] = []

    def draw(self) -> str:
        """A new id, greater than all before."""
        wall_ns, last, random = self._wall_ns, self._last + 1, self._random
        first = wall_ns() // 1_000_000 << _SEQUENCE_BITS
        self._last = last = max(last, first)
        if not random:
            drawn = f"{self._chance.bits(_RANDOM_BITS * _DRAWN_AHEAD):0{16 * _DRAWN_AHEAD}x}"
            random += [drawn[begin : begin + 16] for begin in range(0, len(drawn), 16)]
        return f"{last:016x}{random.pop()}"


_JOB = "j"


def job_id_of(drawn: str) -> str:
    """The id of a job, from one that `MessageIds` has drawn: it differs from all ids of messages."""
    return _JOB + drawn


def is_job(id: str) -> bool:
    """Whether an id is one of a job; else it is one of a message."""
    return str(id).startswith(_JOB)


def new_incarnation(chance: Random) -> str:
    """A runner's identity for one life: 128 random bits, so that a restart is not mistaken for its predecessor."""
    return f"{chance.bits(128):032x}"


def shard_number(entity_type: str, entity_id: str, shards: int) -> int:
    """The shard of an entity within its group.

    Promise:
        The same number in every process, on every platform and in every version: messages are stored under
        it. The encoding before the hash is injective, so ("ab", "c") and ("a", "bc") are unrelated.
    """
    if shards < 1:
        raise ValueError(f"a group needs at least one shard, not {shards}")
    type_bytes = entity_type.encode()
    try:
        encoded = len(type_bytes).to_bytes(4, "big") + type_bytes + entity_id.encode()
    except UnicodeEncodeError as error:
        raise not_unicode(entity_id, what="entity id") from error
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "big") % shards


def check_group(group: str) -> None:
    """Raise `ValueError` unless this is a valid name of a shard group."""
    if not _GROUP.fullmatch(group):
        raise ValueError(f'shard group {group!r} is not a name: use 1-64 of letters, digits, "_", "." and "-"')


def _check_name(name: str, *, what: str) -> None:
    """Names must fit in a database's text and index: what cannot be stored is refused early."""
    if not name:
        raise ValueError(f"an {what} cannot be empty")
    if "\0" in name:
        raise ValueError(f"{what} {name!r} has a zero character, which databases cannot store")
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError as error:
        raise not_unicode(name, what=what) from error
    if size_bytes > _MOST_NAME_BYTES:
        raise ValueError(f"{what} {name[:20]!r}… has {size_bytes} bytes, more than {_MOST_NAME_BYTES}")


EPOCH_MS = to_ns(dt.datetime(2025, 1, 1, tzinfo=dt.UTC)) // 1_000_000
MACHINES = 1024

_TIME_BITS, _MACHINE_BITS, _SNOWFLAKE_SEQUENCE_BITS = 41, 10, 12
_SEQUENCE_MOST = 2**_SNOWFLAKE_SEQUENCE_BITS - 1
_LAST_MS = EPOCH_MS + 2**_TIME_BITS - 1


class SnowflakeParts(NamedTuple):
    """The parts of a snowflake."""

    timestamp: int
    """Milliseconds since 1970."""
    machine_id: int
    sequence: int


class Snowflake:
    """Splits and composes snowflakes; the ids themselves are plain whole numbers."""

    @staticmethod
    def parts(id: int) -> SnowflakeParts:
        """Split an id."""
        if not 0 <= id < 2**63:
            raise ValueError(f"{id} is not a snowflake: those are from 0 to 2**63-1")
        sequence = id & _SEQUENCE_MOST
        machine_id = id >> _SNOWFLAKE_SEQUENCE_BITS & MACHINES - 1
        return SnowflakeParts((id >> _SNOWFLAKE_SEQUENCE_BITS + _MACHINE_BITS) + EPOCH_MS, machine_id, sequence)

    @staticmethod
    def datetime(id: int) -> dt.datetime:
        """The instant in an id, in UTC."""
        return to_datetime(Snowflake.parts(id).timestamp * 1_000_000)

    @staticmethod
    def compose(*, timestamp: int, machine_id: int, sequence: int) -> int:
        """The id of these parts; the inverse of `parts`."""
        _check_time(timestamp)
        _check_machine(machine_id)
        if not 0 <= sequence <= _SEQUENCE_MOST:
            raise ValueError(f"sequence {sequence} is out of range 0-{_SEQUENCE_MOST}")
        return ((timestamp - EPOCH_MS) << _MACHINE_BITS | machine_id) << _SNOWFLAKE_SEQUENCE_BITS | sequence


class SnowflakeGenerator:
    """Draws the ids of one holder of a machine id. It has no clock and no storage: the caller provides both.

    Args:
        machine_id: The leased machine id.
        after_ms: The mark that the previous holder wrote, or 0; every id here is later.
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
        self._last: int = max(after_ms, EPOCH_MS - 1) << _SNOWFLAKE_SEQUENCE_BITS | _SEQUENCE_MOST
        self._until_ms = after_ms
        self.extend(until_ms)

    @property
    def last_ms(self) -> int:
        """The millisecond of the last id. A useful new mark must lie beyond it and beyond the clock."""
        return self._last >> _SNOWFLAKE_SEQUENCE_BITS

    @property
    def until_ms(self) -> int:
        """The mark: no id is later."""
        return self._until_ms

    def take(self, now_ms: int) -> int | None:
        """The next id; None if it would pass the mark: store a higher one, then `extend`."""
        following = max(self._last + 1, now_ms << _SNOWFLAKE_SEQUENCE_BITS)
        timestamp, sequence = following >> _SNOWFLAKE_SEQUENCE_BITS, following & _SEQUENCE_MOST
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
