"""What the journals, the rows and the results of flows say, read together and judged: each step was recorded once."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tests.cluster.seat_history import Event

    Place = tuple[str, int]


class Effect(NamedTuple):
    """That a step ran; or that the body was told what it had given."""

    run: str
    step: int
    stamp: str
    pid: int
    at_ns: int

    @classmethod
    def of(cls, event: Event) -> Effect:
        """As a process has noted it."""
        more = event.more
        return cls(event.key, int(more["step"]), str(more["stamp"]), int(more["pid"]), event.at_ns)


def judge(
    ran: Iterable[Effect],
    saw: Iterable[Effect],
    results: Mapping[str, Sequence[str]],
    *,
    dead: Collection[int],
    rows: Mapping[str, Sequence[str]] | None = None,
) -> Counter[str]:
    """Raise an AssertionError if a step was recorded twice, or ran although it was stored [W1]; what there was.

    Args:
        ran: All steps that began.
        saw: All that bodies were told of steps.
        results: The stamps in the results of runs, those of their own steps, in order.
        dead: The processes that were killed: only their steps were cut.
        rows: The stamps that were stored of runs when they were looked at, in order.
    """
    runs, seen = _by_place(ran), _by_place(saw)
    told = {place: {each.stamp for each in its} for place, its in seen.items()}
    _require_none("gave one body this and another one that", [p for p, stamps in told.items() if len(stamps) > 1])
    stored = {place: next(iter(stamps)) for place, stamps in told.items()}
    made_up = [place for place, stamp in stored.items() if stamp not in {each.stamp for each in runs[place]}]
    _require_none("gave what no run of it has given", made_up)
    first_ns = {place: min(each.at_ns for each in its) for place, its in seen.items()}
    late = [p for p, at_ns in first_ns.items() if any(each.at_ns > at_ns for each in runs[p])]
    _require_none("ran although it was stored", late)
    uncut = [p for p, its in runs.items() for each in its if each.stamp != stored.get(p) and each.pid not in dead]
    _require_none("was not cut, and what it gave is lost", uncut)
    by_run: dict[str, list[str]] = defaultdict(list)
    for run, step in sorted(stored):
        by_run[run].append(stored[run, step])
    for run, stamps in results.items():
        assert list(stamps) == by_run[run], f"the result of {run}: {stamps}, its body was told {by_run[run]}"
    for run, stamps in (rows or {}).items():
        assert list(stamps) == by_run[run][: len(stamps)], f"the rows of {run}: {stamps}, not {by_run[run]}"
    again = sum(len(its) - 1 for its in runs.values())
    replays = sum(len(its) - 1 for (_, step), its in seen.items() if not step)
    return Counter(runs=len(results), steps=len(stored), cut=again, replays=replays)


def _by_place(effects: Iterable[Effect]) -> dict[Place, list[Effect]]:
    found: dict[Place, list[Effect]] = defaultdict(list)
    for each in effects:
        found[each.run, each.step].append(each)
    return found


def _require_none(problem: str, places: Collection[Place]) -> None:
    assert not places, f"{len(places)} times a step {problem}, such as {sorted(places)[:5]}"
