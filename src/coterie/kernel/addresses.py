"""Names of things in a cluster: shards, entities, incarnations of runners, messages."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from coterie.kernel.clock import to_datetime
from coterie.kernel.texts import not_unicode

if TYPE_CHECKING:
    from datetime import datetime

    from typing_extensions import TypeVar as TypeVarWithDefault

    from coterie.kernel.chance import Chance
    from coterie.kernel.clock import Clock

    T_co = TypeVarWithDefault("T_co", covariant=True, default=Any)
else:
    T_co = TypeVar("T_co", covariant=True)

_GROUP = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SHARD = re.compile(r"(?P<group>[^:]*):(?P<number>0|[1-9][0-9]{0,9})")
_MESSAGE_ID = re.compile(r"[0-9a-f]{32}")

_MOST_SHARD_NUMBER = 2**31 - 1  # what an integer column holds
_MOST_NAME_BYTES = 1000  # two of them fit in one index entry of PostgreSQL (2,704 bytes)
_SEQUENCE_BITS = 16
_RANDOM_BITS = 64
_DRAWN_AHEAD = 64
"""Random halves that are drawn together: the system is asked once for all of them."""


@dataclass(frozen=True, order=True, slots=True)
class ShardId:
    """One of the slices of a group's key space. Prints as `default:42`, which `parse` reads [K3]."""

    group: str
    number: int

    def __post_init__(self) -> None:
        check_group(self.group)
        if not 0 <= self.number <= _MOST_SHARD_NUMBER:
            raise ValueError(f"shard number {self.number} of group {self.group!r} is not in 0-{_MOST_SHARD_NUMBER}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """The shard that `str()` printed."""
        match = _SHARD.fullmatch(text)
        if match is None:
            raise ValueError(f'{text!r} is not a shard: write group and number, as in "default:42"')
        return cls(match["group"], int(match["number"]))

    def __str__(self) -> str:
        return f"{self.group}:{self.number}"


class Seat:
    """The names of seats: the kind, a colon, and what it is: `shard:default:42`, `singleton:importer`."""

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
    def split(seat: str) -> tuple[str, str]:
        """Kind and the rest."""
        kind, _, rest = seat.partition(":")
        return kind, rest


@dataclass(frozen=True, order=True, slots=True)
class EntityAddress:
    """Where an entity is called: its type and its id. Prints as `Account/alice`, which `parse` reads."""

    type: str
    id: str

    def __post_init__(self) -> None:
        _check_name(self.type, what="entity type")
        _check_name(self.id, what="entity id")
        if "/" in self.type:
            raise ValueError(f'entity type {self.type!r} has a "/", which divides type and id')

    @classmethod
    def parse(cls, text: str) -> Self:
        """The address that `str()` printed. Ids may have slashes of their own."""
        if "/" not in text:
            raise ValueError(f'{text!r} is not an entity: write type and id, as in "Account/alice"')
        return cls(*text.split("/", 1))

    def __str__(self) -> str:
        return f"{self.type}/{self.id}"


class MessageId(str, Generic[T_co]):
    """The name of a message; its type remembers what the reply will be."""

    __slots__ = ()


class MessageIds:
    """Draws the message ids of one sender, without asking anybody [M15].

    An id has 48 bits of milliseconds since 1970, 16 bits of sequence and 64 random bits, as 32 hexadecimal
    digits.

    Promise:
        Ids of one sender sort as text in the order in which they were drawn, also when the clock stands still
        or steps back, and when more than 65,536 are drawn in a millisecond (they borrow from the next).

    Not promised:
        An order between senders, nor the exact time after a clock went back. Not for several threads.
    """

    def __init__(self, clock: Clock, chance: Chance) -> None:
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


def drawn_at(message_id: str) -> datetime:
    """When the id was drawn, by its sender's clock, to the millisecond."""
    if not _MESSAGE_ID.fullmatch(message_id):
        raise ValueError(f"{message_id!r} is not a message id: those have 32 hexadecimal digits, in lower case")
    try:
        return to_datetime(int(message_id[:12], 16) * 1_000_000)
    except OverflowError:
        raise ValueError(f"message id {message_id!r} names a time after the year 9999") from None


def new_incarnation(chance: Chance) -> str:
    """A runner's identity for one life: 128 random bits, so no restart is taken for its predecessor."""
    return f"{chance.bits(128):032x}"


def shard_number(entity_type: str, entity_id: str, shards: int) -> int:
    """The shard of its group on which an entity lives.

    Promise:
        The same number in every process, on every platform and in every version: messages are stored under
        it. The encoding before the hash is injective, so ("ab", "c") and ("a", "bc") are strangers.
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
    """Raise `ValueError` unless this can name a shard group."""
    if not _GROUP.fullmatch(group):
        raise ValueError(f'shard group {group!r} is not a name: use 1-64 of letters, digits, "_", "." and "-"')


def _check_name(name: str, *, what: str) -> None:
    """Names must fit in a database's text and index: what cannot be stored is refused at the door."""
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
