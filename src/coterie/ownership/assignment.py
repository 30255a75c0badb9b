"""Which runner should hold which seat: a pure function of the membership and of the current holders.

Every runner computes it for itself from what the database shows, and all get the same result:

- A seat stays where it is unless its holder is gone or may not hold it. A shard also leaves a holder that exceeds its
  quota; a leader or a cron is not interrupted for balance alone.
- Seats without a holder go, in order of name, each to the nearest runner that has room. Distance is weighted rendezvous
  hashing: the hash of seat and runner makes a number u in (0, 1], and the least -ln(u) / weight comes first (the order
  of -weight / ln(u)).
- Seats are balanced in pools: the shards of a group, and the other seats of a group that have the same candidates.

Promise:
    Within a pool of shards each runner's number of seats is its weighted share, rounded up or down. With equal weights
    the end of a runner moves its seats only, and a new runner receives seats while no others move. Where all runners
    hold what they should, nothing moves. Of other seats a runner gets free ones up to its share, and keeps what it
    holds.

Not promised:
    An order of weighted runners that survives another C library's logarithm in its last digit. Runners that disagree
    about a seat for that reason do no harm: the database grants it to one.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from itertools import chain, compress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from coterie.kernel.ids import Seat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from coterie.storage.interface import RunnerRow, SeatRow


def is_candidate(runner: RunnerRow, seat: SeatRow) -> bool:
    """Whether a runner may hold a seat: it is in the group, and has its current definition, which shards lack [M8]."""
    if runner.leaving or seat.group not in runner.groups:
        return False
    return _is_shard(seat) or runner.knows.get(seat.name) == seat.fingerprint


def is_shard_of(runner: RunnerRow, seat: SeatRow) -> bool:
    """Whether a seat is a shard that a runner may hold."""
    return _is_shard(seat) and is_candidate(runner, seat)


def order(seat: SeatRow, runners: Iterable[RunnerRow]) -> list[str]:
    """The ids of all runners that may hold a seat, the nearest first."""
    near = _Near(seat.name)
    bidders = [_Bidder.of(each) for each in runners if is_candidate(each, seat)]
    return [bidder.id for _, bidder in sorted((near.to(each), each) for each in bidders)]


def targets(runners: Iterable[RunnerRow], seats: Iterable[SeatRow], *, balances: bool = False) -> dict[str, str]:
    """The runner that should hold each seat, by the seat's name. A seat without a candidate is absent.

    Args:
        runners: All runners.
        seats: The seats, with their current holders.
        balances: Whether seats other than shards are balanced too.
    """
    found: dict[str, str] = {}
    for bidders, pool in _pools(runners, seats):
        found.update(_settle(bidders, pool, balances=balances or _is_shard(pool[0])))
    return found


class _Bidder(NamedTuple):
    """The facts about a runner that matter for the assignment."""

    id: str
    key: bytes
    weight: float
    units: int
    """The weight as an exact whole number: sums of it do not depend on the order of input."""

    @classmethod
    def of(cls, runner: RunnerRow) -> _Bidder:
        return cls(runner.id, runner.id.encode(), runner.weight, int(math.ldexp(runner.weight, 64)))


_Pool: TypeAlias = tuple[list[_Bidder], list["SeatRow"]]


class _Near:
    """Distances between a seat and runners."""

    __slots__ = ("_seat",)

    def __init__(self, name: str) -> None:
        self._seat = blake2b(name.encode() + b"\0", digest_size=8)

    def to(self, bidder: _Bidder) -> float:
        """The distance to a runner; the smaller the nearer."""
        both = self._seat.copy()  # a third of the cost of a new hash, which is nearly all that an assignment costs
        both.update(bidder.key)
        return -math.log((int.from_bytes(both.digest(), "big") + 1) * 2.0**-64) / bidder.weight

    def first(self, bidders: list[_Bidder]) -> _Bidder:
        """The nearest of them; of two equally near ones the first."""
        distances = [self.to(each) for each in bidders]
        return bidders[distances.index(min(distances))]


def _pools(runners: Iterable[RunnerRow], seats: Iterable[SeatRow]) -> Iterator[_Pool]:
    """Seats that are balanced together, by name, with all candidates, by id."""
    staying = sorted((each for each in runners if not each.leaving), key=lambda each: each.id)
    kinds: dict[tuple[str, bool], list[SeatRow]] = {}
    for seat in sorted(seats, key=lambda each: each.name):
        kinds.setdefault((seat.group, _is_shard(seat)), []).append(seat)
    for (group, shards), of_kind in kinds.items():
        serving = [each for each in staying if group in each.groups]
        if shards and serving:
            yield [_Bidder.of(each) for each in serving], of_kind
        elif serving:
            yield from _pools_by_knowledge(serving, of_kind)


def _pools_by_knowledge(serving: list[RunnerRow], seats: list[SeatRow]) -> Iterator[_Pool]:
    """Usually all runners have the same definitions: they are compared as a whole, not seat by seat."""
    names = [each.name for each in seats]
    versions: dict[tuple[str | None, ...], list[_Bidder]] = {}
    for runner in serving:
        versions.setdefault(tuple(map(runner.knows.get, names)), []).append(_Bidder.of(runner))
    pools: dict[tuple[bool, ...], list[SeatRow]] = {}
    for seat, known in zip(seats, zip(*versions, strict=True), strict=True):
        pools.setdefault(tuple([each == seat.fingerprint for each in known]), []).append(seat)
    for current, pool in pools.items():
        bidders = list(chain.from_iterable(compress(versions.values(), current)))
        if bidders:
            yield bidders, pool


def _is_shard(seat: SeatRow) -> bool:
    return Seat.is_shard(seat.name)


def _settle(bidders: list[_Bidder], pool: list[SeatRow], *, balances: bool) -> Iterator[tuple[str, str]]:
    """Assign a pool: a holder within its quota keeps its seats, the rest go to the nearest runner with room.

    Without `balances` every holder keeps what it has; only seats without a holder are assigned.
    """
    holding: dict[str, list[str]] = {each.id: [] for each in bidders}
    homeless: list[str] = []
    for seat in pool:
        holding.get(seat.holder or "", homeless).append(seat.name)
    quotas = _quotas(bidders, holding, pool)
    for bidder in bidders:
        quota = quotas[bidder.id] if balances else len(pool)
        kept, left = _part(bidder, holding[bidder.id], quota)
        yield from ((name, bidder.id) for name in kept)
        homeless += left
        quotas[bidder.id] -= len(kept)
    yield from _house(sorted(homeless), [each for each in bidders if quotas[each.id] > 0], quotas)


def _quotas(bidders: list[_Bidder], holding: Mapping[str, list[str]], pool: list[SeatRow]) -> dict[str, int]:
    """How many seats each may hold: its share rounded down, plus one for some, first for those that have it already."""
    units = sum(each.units for each in bidders)
    quotas = {each.id: len(pool) * each.units // units for each in bidders}
    odd = len(pool) - sum(quotas.values())
    if odd:
        near = _Near(pool[0].name)
        rest = {each.id: len(pool) * each.units % units for each in bidders}
        line = sorted(
            (len(holding[each.id]) <= quotas[each.id], -rest[each.id], near.to(each), each.id)
            for each in bidders
            if rest[each.id]
        )
        quotas |= {runner: quotas[runner] + 1 for *_, runner in line[:odd]}
    return quotas


def _part(bidder: _Bidder, names: list[str], quota: int) -> tuple[list[str], list[str]]:
    """The seats that a runner keeps, and those that it loses: the farthest."""
    if len(names) <= quota:
        return names, []
    nearest_first = sorted(names, key=lambda name: (_Near(name).to(bidder), name))
    return nearest_first[:quota], nearest_first[quota:]


def _house(names: list[str], open: list[_Bidder], room: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Assign each seat to the nearest runner that has room. Only these runners are scored."""
    for name in names:
        first = _Near(name).first(open)
        yield name, first.id
        room[first.id] -= 1
        if not room[first.id]:
            open.remove(first)
