"""The checkers are checked: each accepts good histories and rejects bad ones."""

from __future__ import annotations

import pytest

from tests.support.history.ownership import (
    AppendOutcome,
    BeliefBounded,
    Checker,
    Drawn,
    EpochsGrow,
    Event,
    Final,
    Gone,
    Grant,
    HeldAgain,
    IdsUnique,
    NoStaleCommit,
    NothingLostNothingDoubled,
    OneChain,
    Saved,
    Trusted,
    Violation,
    check,
)

TO_A, TO_B, A3 = Grant("s", 1, "a", 100), Grant("s", 2, "b", 200), Grant("s", 3, "a", 300)


def saved(version: int, epoch: int, *value: int, key: str = "k") -> Saved:
    return Saved(key, "s", epoch, version, value)


ACCEPTED: list[tuple[type[Checker], list[Event]]] = [
    (EpochsGrow, []),
    (EpochsGrow, [TO_A, TO_B, A3, Grant("t", 1, "b")]),
    (NoStaleCommit, [TO_A, saved(1, 1, 5), TO_B, saved(2, 2, 5, 6)]),
    (NoStaleCommit, [TO_A, Grant("t", 9, "b"), saved(1, 1, 5)]),
    (OneChain, [saved(1, 1, 5), saved(2, 2, 5, 6), saved(1, 1, 9, key="other")]),
    (BeliefBounded, [TO_A, TO_B, Trusted("s", 1, "a", 200), Trusted("s", 2, "b", 9_999)]),
    (BeliefBounded, [TO_A, TO_B]),
    (
        NothingLostNothingDoubled,
        [AppendOutcome("k", 1, "ok", (1,)), AppendOutcome("k", 2, "ok", (1, 2)), Final("k", (1, 2))],
    ),
    (NothingLostNothingDoubled, [AppendOutcome("k", 1, "unknown"), Final("k", ())]),
    (NothingLostNothingDoubled, [AppendOutcome("k", 1, "unknown"), Final("k", (1,))]),
    (NothingLostNothingDoubled, [AppendOutcome("k", 1, "failed"), Final("k", (2,)), AppendOutcome("k", 2, "ok", (2,))]),
    (HeldAgain, [TO_A, Gone("a", 150, 50), TO_B, Gone("a", 250, 0)]),
    (HeldAgain, [Gone("a", 50, 10), TO_A]),
    (IdsUnique, [Drawn(5, "a"), Drawn(3, "b"), Drawn(6, "a"), Drawn(4, "b")]),
]

REJECTED: list[tuple[type[Checker], list[Event], str]] = [
    (EpochsGrow, [TO_A, TO_B, Grant("s", 2, "a")], "epoch 2 was granted after 2"),
    (EpochsGrow, [TO_B, TO_A], "epoch 1 was granted after 2"),
    (EpochsGrow, [TO_A, Grant("s", 1, "b")], "epoch 1 was granted after 1"),
    (NoStaleCommit, [TO_A, TO_B, saved(1, 1, 5)], "at epoch 1 after epoch 2"),
    (NoStaleCommit, [TO_A, saved(1, 1, 5), TO_B, A3, saved(2, 2, 5, 6)], "at epoch 2 after epoch 3"),
    (OneChain, [saved(1, 1, 5), saved(1, 2, 6)], "version 1 follows 1"),
    (OneChain, [saved(1, 1, 5), saved(3, 1, 5, 6)], "version 3 follows 1"),
    (OneChain, [saved(1, 1, 5), saved(2, 2, 6)], "does not continue"),
    (OneChain, [saved(2, 1, 5)], "version 2 follows 0"),
    (BeliefBounded, [TO_A, TO_B, Trusted("s", 1, "a", 201)], "while a trusted epoch 1"),
    (BeliefBounded, [TO_A, TO_B, A3, Trusted("s", 2, "b", 301)], "while b trusted epoch 2"),
    (NothingLostNothingDoubled, [AppendOutcome("k", 1, "ok", (1,)), Final("k", ())], "is not there"),
    (NothingLostNothingDoubled, [AppendOutcome("k", 1, "ok", (1,))], "is not there"),
    (NothingLostNothingDoubled, [AppendOutcome("k", 1, "failed"), Final("k", (1,))], "said to have failed"),
    (NothingLostNothingDoubled, [AppendOutcome("k", 1, "unknown"), Final("k", (1, 1))], "2 times"),
    (NothingLostNothingDoubled, [AppendOutcome("k", 2, "ok", (2,)), Final("k", (1, 2))], "no beginning"),
    (HeldAgain, [TO_A, Gone("a", 150, 49), TO_B], "stood empty"),
    (HeldAgain, [TO_A, TO_B, Gone("b", 250, 10**9)], "never held again"),
    (IdsUnique, [Drawn(5, "a"), Drawn(5, "b")], "which a had drawn"),
    (IdsUnique, [Drawn(5, "a"), Drawn(4, "a")], "drew 4 after 5"),
]


@pytest.mark.parametrize(("checker", "history"), ACCEPTED)
def test_a_good_history_is_accepted(checker: type[Checker], history: list[Event]) -> None:
    assert check(history, checker()) == len(history)


@pytest.mark.parametrize(("checker", "history", "problem"), REJECTED)
def test_a_bad_history_is_rejected(checker: type[Checker], history: list[Event], problem: str) -> None:
    with pytest.raises(Violation, match=problem):
        check(history, checker())
