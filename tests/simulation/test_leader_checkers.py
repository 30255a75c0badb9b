"""The checkers of leaders are checked: each accepts good histories and rejects bad ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.history.leader_checkers import HooksInOrder, Led, OnlyTheLeaderLeads, Outlived
from tests.support.history.ownership import Checker, Event, Grant, Saved, Violation, check

TO_A, TO_B = Grant("s", 1, "a"), Grant("s", 2, "b")


def led(words: str, epoch: int = 1, process: str = "a", **more: Any) -> list[Event]:
    return [Led("s", epoch, process, what, **more) for what in words.split()]  # type: ignore[arg-type]


WHOLE = "becoming became began losing lost"

ACCEPTED: list[tuple[type[Checker], list[Event]]] = [
    (HooksInOrder, [*led(WHOLE), *led(WHOLE, 2), Outlived("a")]),
    (HooksInOrder, [*led("becoming became began began acting acting began losing lost"), Outlived("a")]),
    (HooksInOrder, led("becoming losing lost")),
    (HooksInOrder, [*led("becoming became"), *led(WHOLE, 2, "b"), Outlived("b")]),
    (HooksInOrder, [*led("becoming"), *led("becoming became", 2, "b")]),
    (OnlyTheLeaderLeads, [TO_A, *led(WHOLE, is_leader=True), TO_B, *led("becoming", 2, "b", is_leader=True)]),
    (OnlyTheLeaderLeads, [TO_A, TO_B, *led("becoming acting losing lost")]),
    (
        OnlyTheLeaderLeads,
        [TO_A, *led("becoming", state=()), Saved("k", "s", 1, 1, (5,)), TO_B, *led("began", 2, state=(5,))],
    ),
    (OnlyTheLeaderLeads, [TO_A, Saved("k", "s", 1, 1, (5,)), TO_B, *led("becoming", state=())]),
]

REJECTED: list[tuple[type[Checker], list[Event], str]] = [
    (HooksInOrder, led("began"), "began after nothing"),
    (HooksInOrder, led("losing"), "losing after nothing"),
    (HooksInOrder, led("becoming began"), "began after becoming"),
    (HooksInOrder, led("becoming became becoming"), "becoming after becoming became"),
    (HooksInOrder, led("becoming became began becoming"), "becoming after"),
    (HooksInOrder, led("becoming became lost"), "lost after"),
    (HooksInOrder, led(WHOLE + " losing"), "losing after"),
    (HooksInOrder, led("becoming became losing began"), "began after"),
    (HooksInOrder, led("becoming became acting"), "acting after becoming became"),
    (HooksInOrder, led(WHOLE + " acting"), "acting after"),
    (HooksInOrder, [*led("becoming became began"), Outlived("a")], "never told of its loss"),
    (HooksInOrder, [*led("becoming became losing"), Outlived("a")], "never told of its loss"),
    (HooksInOrder, [*led("becoming"), *led("becoming", 2)], "while becoming was not over"),
    (HooksInOrder, [*led("becoming became losing"), *led("becoming", 2)], "while losing was not over"),
    (OnlyTheLeaderLeads, [TO_A, *led("becoming", 2, "b")], "before it was granted"),
    (OnlyTheLeaderLeads, [TO_A, TO_B, *led("acting", is_leader=True)], "after epoch 2 was granted"),
    (
        OnlyTheLeaderLeads,
        [TO_A, Saved("k", "s", 1, 1, (5,)), TO_B, *led("becoming", 2, "b", state=())],
        "was saved",
    ),
]


@pytest.mark.parametrize(("checker", "history"), ACCEPTED)
def test_a_good_history_is_accepted(checker: type[Checker], history: list[Event]) -> None:
    assert check(history, checker()) == len(history)


@pytest.mark.parametrize(("checker", "history", "problem"), REJECTED)
def test_a_bad_history_is_rejected(checker: type[Checker], history: list[Event], problem: str) -> None:
    with pytest.raises(Violation, match=problem):
        check(history, checker())
