"""Which orders there are: a walk over all choices of who goes next, without doubles. No I/O of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coterie.kernel.random import Random

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.support.interleaving.run import Run
    from tests.support.interleaving.scripts import Loss, Pair


@dataclass(slots=True)
class Count:
    """What a walk has seen."""

    runs: int = 0
    failed: list[Run] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    waits: int = 0

    def add(self, run: Run) -> None:
        """Count one run."""
        self.runs += 1
        self.waits += run.waits
        for told in run.told.values():
            for state in told.failures:
                self.failures[state] = self.failures.get(state, 0) + 1
        if run.problems:
            self.failed.append(run)

    def merge(self, other: Count) -> None:
        """Count what another walk has seen, too."""
        self.runs += other.runs
        self.waits += other.waits
        self.failed += other.failed
        for state, times in other.failures.items():
            self.failures[state] = self.failures.get(state, 0) + times


async def explore(
    play: Callable[[Pair, Loss | None, str], Awaitable[Run]],
    pair: Pair,
    loss: Loss | None = None,
    *,
    most: int | None = None,
    seed: int = 1,
    until: Callable[[Run], bool] | None = None,
) -> Count:
    """Play every order of a pair, or a fixed sample of them.

    Args:
        play: Plays one run whose order begins as given, if it can be, and goes on as it likes.
        pair: What to play.
        loss: Which session gets lost where, if any.
        most: A bound: then a sample that the seed decides, all over the tree of choices.
        seed: Another seed, another sample.
        until: Stop after a run for which this holds.
    """
    count, chance = Count(), Random(seed)
    open_ends, seen = [""], {""}
    while open_ends and (most is None or count.runs < most):
        prefix = open_ends.pop(chance.bits(32) % len(open_ends) if most is not None else -1)
        run = await play(pair, loss, prefix)
        count.add(run)
        found = [other for other in others(run.choices, run.order, prefix) if other not in seen]
        open_ends += found
        seen.update(found)
        if until is not None and until(run):
            break
    return count


def others(choices: list[str], order: str, prefix: str) -> list[str]:
    """The orders that part from a run's after the part of it that was asked for, and was possible."""
    asked = next((turn for turn, choice in enumerate(prefix) if order[turn : turn + 1] != choice), len(prefix))
    return [
        order[:turn] + choice for turn in range(asked, len(order)) for choice in choices[turn] if choice != order[turn]
    ]
