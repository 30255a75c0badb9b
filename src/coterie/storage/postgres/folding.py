"""From a group of writes to few statements, and from their rows back to one result per write. Pure.

A group has the effect of its members one after another in the order they queued: a statement carries all
neighbours of one shape, and a key that comes back in another shape waits for the next round of statements.
Rows go in key order, so that two groups never wait for each other in a circle [M3].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from coterie.storage.interface import KvPut, KvRemove, KvSwap, StateSave, Write

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from coterie.storage.interface import Written

Shape = Literal["put", "insert", "replace", "discard", "present", "remove", "write_states"]
"""The statement that carries a write; its name in kv.sql or fence.sql."""

_Spot = tuple[int, Shape, str]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Writes that share a statement, by their places in the group: of one shape and, under the fence, one runner."""

    shape: Shape
    places: list[int]


def fold(writes: Sequence[Write]) -> list[Bucket]:
    """The statements of a group, in order. One bucket means that one statement does it all."""
    buckets: dict[_Spot, list[int]] = {}
    latest: dict[tuple[bool, str], _Spot] = {}
    for place, write in enumerate(writes):
        row = isinstance(write, StateSave), write.key
        spot = latest[row] = _spot(write, latest.get(row))
        buckets.setdefault(spot, []).append(place)
    return [Bucket(spot[1], buckets[spot]) for spot in sorted(buckets)]


def _spot(write: Write, before: _Spot | None) -> _Spot:
    """The turn, the statement and in whose name: at or past the turn of the write before it to the same row."""
    shape = shape_of(write)
    # A process that was evicted goes on as another incarnation: saves of both may have queued.
    runner = write.claim.runner if isinstance(write, StateSave) else ""
    if before is None:
        return 0, shape, runner
    # Each save builds on the version that the one before it wrote: no statement can carry two.
    return before[0] + (before[1] != shape or shape == "write_states"), shape, runner


def shape_of(write: Write) -> Shape:
    """The statement that a write needs."""
    if isinstance(write, StateSave):
        return "write_states"
    if isinstance(write, KvPut):
        return "put"
    if isinstance(write, KvRemove):
        return "remove"
    if write.expected is None:
        return "present" if write.value is None else "insert"
    return "discard" if write.value is None else "replace"


def values(bucket: Bucket, writes: Sequence[Write]) -> list[Any]:
    """What the statement takes after the cluster's name: arrays, under the fence after the runner."""
    chosen = [writes[place] for place in _winners(bucket, writes)]
    chosen.sort(key=lambda write: write.key)  # code points sort as UTF-8 bytes do, which is the column's order
    if bucket.shape == "write_states":
        saves = cast("list[StateSave]", chosen)
        return [*_claims(saves), *_columns(saves, "key", "value", "version")]
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
    if bucket.shape == "write_states":
        told = {key: _written(held=held, written=written) for key, held, written in rows}
        return [told[writes[place].key] for place in bucket.places]
    hits = {tuple(row) for row in rows}
    if bucket.shape == "present":
        return [(writes[place].key,) not in hits for place in bucket.places]
    winners = _winners(bucket, writes)
    return [place in winners and _mark(bucket.shape, writes[place]) in hits for place in bucket.places]


def refused(bucket: Bucket, writes: Sequence[Write], found: Sequence[Any]) -> list[Any]:
    """What the audit takes after the cluster's name; empty if the fence has let everything through."""
    places = [place for place, result in zip(bucket.places, found, strict=True) if result == "fenced"]
    saves = cast("list[StateSave]", [writes[place] for place in places])
    return [*_claims(saves), *_columns(saves, "key")] if saves else []


def _written(*, held: bool, written: bool) -> Written:
    if not held:
        return "fenced"
    return "written" if written else "conflict"


def _winners(bucket: Bucket, writes: Sequence[Write]) -> dict[int, None]:
    """The places that the statement carries: one of those that meet, as no statement changes a row twice."""
    if bucket.shape == "write_states":
        return dict.fromkeys(bucket.places)  # its keys are there once each
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


def _claims(saves: Sequence[StateSave]) -> list[Any]:
    """The runner in whose name all of them are, their seats and their epochs."""
    claims = [save.claim for save in saves]
    (runner,) = {claim.runner for claim in claims}
    return [runner, [claim.seat for claim in claims], [claim.epoch for claim in claims]]


def _columns(chosen: Sequence[Write], *names: str) -> list[list[Any]]:
    return [[getattr(write, name) for write in chosen] for name in names]
