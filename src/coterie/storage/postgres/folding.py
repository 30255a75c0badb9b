"""From a group of writes to few statements, and from their rows back to one result per write. Pure.

A group has the effect of its members one after another in the order they queued: a statement carries all
neighbours of one shape, and a key that comes back in another shape waits for the next round of statements.
Rows go in key order, so that two groups never wait for each other in a circle [M3].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from coterie.storage.interface import KvPut, KvRemove, KvSwap, Write

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Shape = Literal["put", "insert", "replace", "discard", "present", "remove"]
"""The statement that carries a write; its name in kv.sql."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Writes of one shape that share a statement, by their places in the group."""

    shape: Shape
    places: list[int]


def fold(writes: Sequence[Write]) -> list[Bucket]:
    """The statements of a group, in order. One bucket means that one statement does it all."""
    buckets: dict[tuple[int, Shape], list[int]] = {}
    latest: dict[str, tuple[int, Shape]] = {}
    for place, write in enumerate(writes):
        shape = shape_of(write)
        turn, before = latest.get(write.key, (0, shape))
        spot = (turn if before == shape else turn + 1, shape)
        latest[write.key] = spot
        buckets.setdefault(spot, []).append(place)
    return [Bucket(shape, buckets[turn, shape]) for turn, shape in sorted(buckets)]


def shape_of(write: Write) -> Shape:
    """The statement that a write needs."""
    if isinstance(write, KvPut):
        return "put"
    if isinstance(write, KvRemove):
        return "remove"
    if write.expected is None:
        return "present" if write.value is None else "insert"
    return "discard" if write.value is None else "replace"


def values(bucket: Bucket, writes: Sequence[Write]) -> list[list[Any]]:
    """The arrays that the statement takes after the cluster's name."""
    chosen = [writes[place] for place in _winners(bucket, writes)]
    chosen.sort(key=lambda write: write.key)  # code points sort as UTF-8 bytes do, which is the column's order
    if bucket.shape in ("put", "insert"):
        return _columns(cast("list[KvPut]", chosen), "key", "value", "stamp", "ttl_s")
    if bucket.shape == "replace":
        return _columns(chosen, "key", "expected", "value", "stamp", "ttl_s")
    if bucket.shape == "discard":
        return _columns(chosen, "key", "expected")
    return _columns(chosen, "key")


def results(bucket: Bucket, writes: Sequence[Write], rows: Iterable[Iterable[Any]]) -> list[Any]:
    """One result per write of the bucket, from the statement's rows."""
    if bucket.shape == "put":
        return [None] * len(bucket.places)
    hits = {tuple(row) for row in rows}
    if bucket.shape == "present":
        return [(writes[place].key,) not in hits for place in bucket.places]
    winners = _winners(bucket, writes)
    return [place in winners and _mark(bucket.shape, writes[place]) in hits for place in bucket.places]


def _winners(bucket: Bucket, writes: Sequence[Write]) -> dict[int, None]:
    """The places that the statement carries: one of those that meet, as no statement changes a row twice."""
    if bucket.shape == "put":
        return dict.fromkeys({writes[place].key: place for place in bucket.places}.values())  # the last
    firsts: dict[Any, int] = {}
    for place in bucket.places:
        write = writes[place]
        firsts.setdefault((write.key, write.expected if isinstance(write, KvSwap) else None), place)
    return dict.fromkeys(firsts.values())


def _mark(shape: Shape, write: Write) -> tuple[Any, ...]:
    """The row that the statement returns for a write that took effect."""
    if isinstance(write, KvSwap):
        return (write.key, write.expected) if shape == "discard" else (write.stamp,)
    return (write.key,)


def _columns(chosen: Sequence[Write], *names: str) -> list[list[Any]]:
    return [[getattr(write, name) for write in chosen] for name in names]
