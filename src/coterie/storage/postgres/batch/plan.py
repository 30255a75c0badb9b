"""Combines a group of writes into few statements, and maps their rows to one result per write. Pure.

A group has the effect of its members one after another in the order they queued: a statement carries all writes of
one shape that may share it, and a key that recurs in another shape waits for the next round of statements. Rows go in
key order, so that two groups never deadlock [M3].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from coterie.storage.contracts.executions import Stamp
from coterie.storage.contracts.messages import Insert
from coterie.storage.contracts.ticks import ClaimResult
from coterie.storage.contracts.units import UnitEnd
from coterie.storage.interface import KvPut, KvRemove, KvSwap, StateSave, Write
from coterie.storage.postgres.batch import jobs, messages, single, units
from coterie.storage.postgres.batch import ticks as tick_batch

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from coterie.storage.interface import Claim

Shape = (
    Literal[
        "put",
        "insert",
        "replace",
        "discard",
        "present",
        "remove",
        "put_kv",
        "swap_kv",
        "remove_kv",
        "write_states",
        "save_states",
        "stamp_executions",
    ]
    | single.Shape
    | messages.Shape
    | jobs.Shape
    | tick_batch.Shape
    | units.Shape
)
"""The statement that carries a write; its name in one of the SQL files."""

_LEADING = frozenset[Shape]({"write_states", "save_states", "stamp_executions"})

_WORKING = frozenset[Shape]({"claim_ticks", "note_ticks", "add_steps", "write_steps", "end_units"})

_PROVEN = frozenset[Shape]({"end_jobs", "commit_jobs", "set_jobs_back"})
"""Shapes whose fence is the row of the runner and that of the job, no seat."""

_ONCE = (
    _LEADING
    | _WORKING
    | _PROVEN
    | frozenset[Shape]({"swap_kv", "end_messages", "commit_handlers", "commit_handlers_and_jobs", "set_back"})
)
"""Shapes that cannot carry a row twice: each save builds on the version that the one before it wrote."""

ADDING = frozenset[Shape]({"add_step", "add_message"})
"""Shapes that fail, with their whole statement, if the row exists already."""

FENCED = (_ONCE - _PROVEN) | frozenset[Shape]({"put_kv", "remove_kv", "save_state", "end_message", "add_step"})
"""Fenced shapes. They return for each write whether its seat was held."""

_COLUMNS: dict[Shape, tuple[str, ...]] = {
    "write_states": ("key", "value", "version"),
    "save_states": ("key", "value", "version", "ttl_s", "keep"),
    "stamp_executions": ("key", "runs", "ran_s", "progress_s", "error", "error_s", "note", "done", "total"),
    "put_kv": ("key", "value", "stamp", "ttl_s"),
    "swap_kv": ("key", "expected", "value", "stamp", "ttl_s"),
    "remove_kv": ("key",),
    "put": ("key", "value", "stamp", "ttl_s"),
    "insert": ("key", "value", "stamp", "ttl_s"),
    "replace": ("key", "expected", "value", "stamp", "ttl_s"),
    "discard": ("key", "expected"),
    "present": ("key",),
    "remove": ("key",),
}
"""The values of keys, states and stamps that their statements take."""

Keyed = KvPut | KvSwap | KvRemove | StateSave | Stamp
_Spot = tuple[int, Shape, str]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Writes that share a statement, by their places in the group: of one shape and, if fenced, of one runner."""

    shape: Shape
    places: list[int]


def fold(writes: Sequence[Write]) -> list[Bucket]:
    """The statements of a group, in order. One bucket means a single statement."""
    if len(writes) == 1:
        return [_bucket(shape_of(writes[0]), [0], writes)]
    buckets: dict[_Spot, list[int]] = {}
    latest: dict[Hashable, tuple[_Spot, Write]] = {}
    for place, write in enumerate(writes):
        rows = rows_of(write)
        spot = _spot(write, [latest[row] for row in rows if row in latest])
        latest.update(dict.fromkeys(rows, (spot, write)))
        buckets.setdefault(spot, []).append(place)
    return [_bucket(spot[1], buckets[spot], writes) for spot in sorted(buckets)]


def _bucket(shape: Shape, places: list[int], writes: Sequence[Write]) -> Bucket:
    shorter = single.shape_of(writes[places[0]]) if len(places) == 1 else None
    if shorter is None or shorter in ADDING:
        return Bucket(shape, places)
    return Bucket(shorter, places)


def _spot(write: Write, before: Sequence[tuple[_Spot, Write]]) -> _Spot:
    """The round, the statement and the runner: not before the rounds of earlier writes to the same rows."""
    shape, claim = shape_of(write), _claim(write)
    turn = 0
    for (earlier, other_shape, _), other in before:
        # Of two writes to a row in one statement one stands for both, so both must prove the same claim.
        turn = max(turn, earlier + (other_shape != shape or shape in _ONCE or _claim(other) != claim))
    # An evicted process continues as another incarnation: saves of both may have queued.
    if isinstance(write, jobs.JobWrite):
        return turn, shape, jobs.runner_of(write)
    return turn, shape, "" if claim is None else claim.runner


def rows_of(write: Write) -> Sequence[Hashable]:
    """The rows that a write touches: writes with a common row are serialised."""
    if isinstance(write, messages.Post):
        return messages.rows_of(write)
    if isinstance(write, tick_batch.Ticking):
        return [("cron", write.key)]
    if isinstance(write, units.Working):
        return [("unit", write.unit), *([] if isinstance(write, UnitEnd) else [("step", write.key)])]
    if isinstance(write, jobs.JobWrite):
        return jobs.rows_of(write)
    return [("execution", write.key) if isinstance(write, Stamp) else (isinstance(write, StateSave), write.key)]


def shape_of(write: Write) -> Shape:
    """The statement that a write needs."""
    if isinstance(write, messages.Post):
        return messages.shape_of(write)
    if isinstance(write, tick_batch.Ticking):
        return tick_batch.shape_of(write)
    if isinstance(write, units.Working):
        return units.shape_of(write)
    if isinstance(write, jobs.JobWrite):
        return jobs.shape_of(write)
    if isinstance(write, StateSave):
        return "save_states" if write.keep or write.ttl_s is not None else "write_states"
    if isinstance(write, Stamp):
        return "stamp_executions"
    if isinstance(write, KvPut):
        return "put" if write.claim is None else "put_kv"
    if isinstance(write, KvRemove):
        return "remove" if write.claim is None else "remove_kv"
    if write.claim is not None:
        return "swap_kv"
    if write.expected is None:
        return "present" if write.value is None else "insert"
    return "discard" if write.value is None else "replace"


def values(bucket: Bucket, writes: Sequence[Write]) -> Sequence[Any]:
    """The statement's values after the cluster's name: arrays, if fenced after the runner."""
    if single.is_shape(bucket.shape):
        return single.values(bucket.shape, writes[bucket.places[0]])
    if messages.is_shape(bucket.shape):
        posts = _members(bucket, writes)
        claims = _claims(posts) if bucket.shape in FENCED else []
        return [*claims, *messages.values(bucket.shape, posts)]
    if jobs.is_shape(bucket.shape):
        return jobs.values(bucket.shape, _members(bucket, writes))
    if tick_batch.is_shape(bucket.shape):
        ticks = sorted(_members(bucket, writes), key=lambda write: write.name)
        return [*_claims(ticks), *tick_batch.values(bucket.shape, ticks)]
    if units.is_shape(bucket.shape):
        works = sorted(_members(bucket, writes), key=lambda write: write.key)
        return [*_claims(works), *units.values(bucket.shape, works)]
    chosen = [_keyed(writes[place]) for place in _winners(bucket, writes)]
    chosen.sort(key=lambda write: write.key)  # code points sort like UTF-8 bytes, which is the column's order
    columns = _columns(chosen, *_COLUMNS[bucket.shape])
    return [*_claims(chosen), *columns] if bucket.shape in FENCED else columns


def results(bucket: Bucket, writes: Sequence[Write], rows: Sequence[Sequence[Any]]) -> list[Any]:
    """One result per write of the bucket, from the statement's rows."""
    if single.is_shape(bucket.shape):
        return [single.result(bucket.shape, writes[bucket.places[0]], rows)]
    if messages.is_shape(bucket.shape):
        return messages.results(bucket.shape, _members(bucket, writes), rows)
    if jobs.is_shape(bucket.shape):
        return jobs.results(bucket.shape, _members(bucket, writes), rows)
    if tick_batch.is_shape(bucket.shape):
        return tick_batch.results(bucket.shape, _members(bucket, writes), rows)
    if units.is_shape(bucket.shape):
        return units.results(bucket.shape, _members(bucket, writes), rows)
    if bucket.shape == "put":
        return [None] * len(bucket.places)
    if bucket.shape in _LEADING:
        told = {key: single.written(held=held, was_written=written) for key, held, written in rows}
        return [told[_keyed(writes[place]).key] for place in bucket.places]
    if bucket.shape in FENCED:
        return _fenced_results(bucket, writes, rows)
    hits = {tuple(row) for row in rows}
    if bucket.shape == "present":
        return [(_keyed(writes[place]).key,) not in hits for place in bucket.places]
    winners = _winners(bucket, writes)
    return [place in winners and _mark(bucket.shape, _keyed(writes[place])) in hits for place in bucket.places]


def _fenced_results(bucket: Bucket, writes: Sequence[Write], rows: Iterable[Iterable[Any]]) -> list[Any]:
    told = {key: (held, written) for key, held, written in rows}
    winners = _winners(bucket, writes)
    found: list[Any] = []
    for place in bucket.places:
        held, written = told[_keyed(writes[place]).key]
        done = None if bucket.shape == "put_kv" else written and place in winners
        found.append(done if held else "fenced")
    return found


def refused(bucket: Bucket, writes: Sequence[Write], found: Sequence[Any]) -> list[Any]:
    """The audit's values after the cluster's name; empty if the fence has refused nothing."""
    places = [place for place, result in zip(bucket.places, found, strict=True) if _is_fenced(result)]
    lost: list[Any] = [writes[place] for place in places]  # of the kinds that are fenced
    notes = [messages.note(write) if isinstance(write, messages.FencedPost) else write.key for write in lost]
    return [*_claims(lost), notes] if lost else []


def _is_fenced(result: Any) -> bool:
    return units.is_fenced(result) or (result.told if isinstance(result, ClaimResult) else result) == "fenced"


def _winners(bucket: Bucket, writes: Sequence[Write]) -> dict[int, None]:
    """The places that the statement carries: one for each row, as no statement changes a row twice."""
    if bucket.shape in _ONCE:
        return dict.fromkeys(bucket.places)  # each key occurs once
    if bucket.shape in ("put", "put_kv"):
        return dict.fromkeys({_keyed(writes[place]).key: place for place in bucket.places}.values())  # the last
    firsts: dict[Any, int] = {}
    for place in bucket.places:
        write = _keyed(writes[place])
        firsts.setdefault((write.key, write.expected if isinstance(write, KvSwap) else None), place)
    return dict.fromkeys(firsts.values())


def _mark(shape: Shape, write: Keyed) -> tuple[Any, ...]:
    """The row that the statement returns for a write that took effect."""
    if isinstance(write, KvSwap):
        return (write.key, write.expected) if shape == "discard" else (write.stamp,)
    return (write.key,)


def _claims(chosen: Sequence[Write]) -> list[Any]:
    """The common runner of the writes, their seats and their epochs."""
    claims = [claim for claim in map(_claim, chosen) if claim is not None]
    (runner,) = {claim.runner for claim in claims}
    return [runner, [claim.seat for claim in claims], [claim.epoch for claim in claims]]


def _claim(write: Write) -> Claim | None:
    return None if isinstance(write, Insert | jobs.JobWrite) else write.claim


def _members(bucket: Bucket, writes: Sequence[Write]) -> list[Any]:
    return [writes[place] for place in bucket.places]  # of the kind that the shape says


def _keyed(write: Write) -> Keyed:
    return cast("Keyed", write)  # as the shape says


def _columns(chosen: Sequence[Keyed], *names: str) -> list[list[Any]]:
    columns: dict[str, list[Any]] = {name: [getattr(write, name) for write in chosen] for name in names}
    return [[*map(single.capped, column)] if name == "ttl_s" else column for name, column in columns.items()]
