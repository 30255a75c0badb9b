"""Playing pairs: all their orders or a sample, whole and with every loss; and one run again by its id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.interleavings.catalogue import catalogue
from tests.support.interleaving import Count, Loss, Pair, Run, SessionPair, explore, losses

if TYPE_CHECKING:
    from collections.abc import Iterable


async def play_pair(stage: SessionPair, pair: Pair, *, most: int | None = None) -> Count:
    """Every order of a pair without losses; with each loss all orders, or a fixed sample of so many."""
    count = await explore(stage.play, pair)
    for number, loss in enumerate(losses(pair)):
        count.merge(await explore(stage.play, pair, loss, most=most, seed=number))
    return count


async def find(stage: SessionPair, pairs: Iterable[Pair], *, says: str) -> tuple[Run | None, int]:
    """The first run of which a judge says so, and after how many runs; whole orders of all pairs come first."""
    chosen, runs = list(pairs), 0
    ways: list[tuple[Pair, Loss | None]] = [(each, None) for each in chosen]
    ways += [(each, loss) for each in chosen for loss in losses(each)]
    for pair, loss in ways:
        count = await explore(stage.play, pair, loss, until=lambda run: _says(run, says))
        runs += count.runs
        found = [run for run in count.failed if _says(run, says)]
        if found:
            return found[0], runs
    return None, runs


def _says(run: Run, words: str) -> bool:
    return any(words in problem for problem in run.problems)


async def repeat(stage: SessionPair, id: str, pairs: dict[str, Pair] | None = None) -> Run:
    """Play one run again."""
    name, how, order = id.rsplit("/", 2)
    pair = (pairs or catalogue())[name]
    return await stage.repeat(pair, parse_loss(how), order)


def parse_loss(text: str) -> Loss | None:
    """What `str()` of a loss printed; None for "whole"."""
    if text == "whole":
        return None
    side, how = text.split(" ", 1)
    how, at = how.rsplit(" ", 1)
    assert side in ("A", "B"), text
    assert how in ("ended", "cut", "cut in commit", "ended in commit"), text
    return Loss("A" if side == "A" else "B", int(at), how)  # type: ignore[arg-type]  # just checked


def describe(count: Count) -> str:
    """The figures of a walk."""
    refused = ", ".join(f"{times} x {state}" for state, times in sorted(count.failures.items())) or "none"
    return f"{count.runs} runs, {count.waits} waits, refusals: {refused}, wrong: {len(count.failed)}"
