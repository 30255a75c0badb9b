"""Plans of the flows workload: what a run does, drawn by the seed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coterie.testing.loop.seeds import Stream

BRANCHED = ("both", "group")
"""Two branches side by side, by `asyncio.gather` and in a `TaskGroup`."""
SIMPLE = ("step", "step", "undone", "undone", "sleep", "wait", "wait", "timed")


@dataclass
class Act:
    """Something that a run does: `Player` has a method for each kind."""

    kind: str
    name: str
    seconds: float = 0.0
    parts: list[list[Act]] = field(default_factory=list)
    """Of branches side by side: what each does. Of a child: its plan."""


def new_plan(random: Stream) -> list[Act]:
    """Some acts; their names are their own."""
    numbers = itertools.count(1)
    plan = [_act(random, random.choice((*SIMPLE, "child", *BRANCHED)), numbers) for _ in range(random.randint(2, 5))]
    if random.random() < 0.2:
        plan.append(_act(random, "doomed", numbers))
    return plan


def new_tree(random: Stream) -> list[Act]:
    """Two branches: one that has branches of its own and much to undo, and one that waits and fails."""
    numbers = itertools.count(1)
    undone = [_act(random, "undone", numbers) for _ in range(3)]
    slow = [Act("both", "both", parts=[[Act("both", "both", parts=[undone[:2]])]]), undone[2]]
    quick = [_act(random, random.choice(("wait", "timed", "sleep")), numbers), _act(random, "doomed", numbers)]
    return [Act(random.choice(BRANCHED), "root", parts=[slow, quick])]


def new_errand(random: Stream) -> list[Act]:
    """One thing after the other, each of which may take long: a successor is still at it when a late write arrives."""
    numbers = itertools.count(1)
    kinds = random.choices(("step", "undone", "timed"), k=4)
    return [Act(kind, f"{kind} {next(numbers)}", 1.5 if kind == "timed" else 4.0) for kind in kinds]


def names_of(id: str, plan: list[Act]) -> tuple[str, ...]:
    """What a run that does all of it has seen, in order."""
    return tuple(_names(id, plan))


def unit_of(id: str) -> str:
    """The key of a run."""
    return f"workflow:flow/{id}"


def child_id(parent: str, act: Act) -> str:
    """Of a child, by which its parent starts it."""
    return f"{parent}-{act.name}"


def _names(id: str, plan: list[Act]) -> Iterator[str]:
    for act in plan:
        if act.kind in BRANCHED:
            for part in act.parts:
                yield from _names(id, part)
        else:
            yield unit_of(child_id(id, act)) if act.kind == "child" else act.name


def _act(random: Stream, kind: str, numbers: Iterator[int]) -> Act:
    if kind in BRANCHED:
        parts = [_some(random, numbers), _some(random, numbers)]
        if random.random() < 0.2:  # the one has branches of its own, the other fails
            parts[0].insert(0, Act("both", "both", parts=[_some(random, numbers)]))
            parts[1].append(_act(random, "doomed", numbers))
        return Act(kind, kind, parts=parts)
    name = f"{kind} {next(numbers)}"
    if kind == "child":
        return Act(kind, name, parts=[_some(random, itertools.count(1))])
    longest_s = {"sleep": 12.0, "timed": 8.0}.get(kind, random.choice((0.5, 0.5, 2.0)))
    return Act(kind, name, round(random.uniform(0.2, longest_s), 3))


def _some(random: Stream, numbers: Iterator[int]) -> list[Act]:
    return [_act(random, random.choice(SIMPLE), numbers) for _ in range(random.randint(1, 3))]
