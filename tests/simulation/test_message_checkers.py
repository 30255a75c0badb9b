"""The checkers of messages are checked: each accepts good histories and rejects bad ones."""

from __future__ import annotations

import copy

import pytest

from tests.support.history.message_checkers import (
    AttemptsBounded,
    EffectsOnce,
    EverySendEnds,
    FirstAttemptsInOrder,
    LossesBounded,
    NotEarly,
    OneHandlerAtATime,
    OneMessagePerKey,
    OneReply,
    WithinBounds,
)
from tests.support.history.message_events import (
    Began,
    Cancelled,
    Completed,
    Counted,
    Died,
    Disturbed,
    Gauge,
    Left,
    Over,
    Replied,
    Revived,
    Sent,
)
from tests.support.history.ownership import Checker, Event, Violation, check

LOST, MADE_UP = Sent("m", "e"), Sent("m", "e", outcome="failed")
UNKNOWN = Sent("m", "e", key="k", outcome="unknown")


def sent(message: str, *, key: str = "", sender: str = "s", from_ns: int = 0, due_ns: int = 0) -> Sent:
    return Sent(message, "e", sender, key, from_ns=from_ns, due_ns=due_ns)


def began(message: str, at_ns: int, *, epoch: int = 1, attempt: int = 1, entity: str = "e") -> Began:
    return Began(message, entity, epoch, attempt, at_ns, at_ns)


def completed(message: str, at_ns: int = 0, *, epoch: int = 1, adds: int = 0, reply: object = None) -> Completed:
    return Completed(message, "e", epoch, reply, adds, at_ns)


def over(message: str, epoch: int = 1) -> Over:
    return Over(message, "e", epoch)


ACCEPTED: list[tuple[Checker, list[Event]]] = [
    (EverySendEnds(), []),
    (LossesBounded(3), [Began("m", "e", 1), Died("m", 1, 3), Left("m", "dead", losses=3), Died("n", 5)]),
    (LossesBounded(3), [Left("m", "pending", losses=2)]),
    (AttemptsBounded(5, 3), [Died("m", 1, 3)]),
    (EverySendEnds(), [sent("m"), sent("n"), Left("m", "done"), Left("n", "dead")]),
    (EverySendEnds(pending_allowed=True), [sent("m"), Left("m", "pending")]),
    (EverySendEnds(), [sent("m"), Cancelled("m"), Left("m", "cancelled")]),
    (EverySendEnds(), [UNKNOWN]),
    (EverySendEnds(), [UNKNOWN, Left("m", "done")]),
    (EverySendEnds(), [MADE_UP]),
    (EverySendEnds(), [MADE_UP, sent("m"), Left("m", "done")]),
    (EverySendEnds(), [MADE_UP, UNKNOWN, Left("m", "done")]),
    (OneReply(), [Replied("m", 1), completed("m", reply=1), Replied("m", 1), Left("m", "done", reply=1)]),
    (OneReply(), [Died("m", 3), Revived("m"), Died("m", 3), Revived("m"), completed("m"), Left("m", "done")]),
    (OneReply(), [Cancelled("m"), Left("m", "cancelled"), Left("n", "pending")]),
    (OneMessagePerKey(), [sent("m", key="k"), sent("m", key="k"), sent("n", key="l"), sent("o"), sent("p")]),
    (OneMessagePerKey(), [sent("m", key="k"), Sent("n", "other", key="k"), completed("m"), completed("n")]),
    (OneMessagePerKey(), [Cancelled("m"), sent("n", key="k"), sent("m", key="k"), completed("n")]),
    (OneMessagePerKey(), [UNKNOWN, sent("n", key="k"), completed("n")]),
    (EffectsOnce(), [Counted("e", 2, 10), completed("m", 10, adds=2), completed("n", 20, adds=3), Counted("e", 5, 20)]),
    (EffectsOnce(), [completed("m", 10, adds=2), completed("n", 10, adds=3), Counted("e", 5, 10)]),
    (EffectsOnce(), [completed("m", 10), Counted("other", 0, 10)]),
    (NotEarly(), [sent("m", due_ns=5), began("m", 5), began("m", 2), sent("n"), began("n", 1)]),
    (NotEarly(late_s=1.0), [sent("m", due_ns=5), began("m", 10**9)]),
    (AttemptsBounded(3), [began("m", 1, attempt=3), Died("m", 3), Left("m", "dead", 3), Left("n", "pending", 2)]),
    (OneHandlerAtATime(), [began("m", 1), completed("m", 5), over("m"), began("n", 6), completed("n", 9), over("n")]),
    (OneHandlerAtATime(), [began("m", 1), began("n", 2, entity="other"), completed("m", 5)]),
    (OneHandlerAtATime(), [began("m", 1), began("m", 4, epoch=2), over("m"), completed("m", 6, epoch=2)]),
    (OneHandlerAtATime(), [began("m", 1), over("m"), began("m", 3), over("m"), completed("m", 2)]),
    (FirstAttemptsInOrder(), [sent("m"), began("m", 1), sent("n"), began("n", 2), began("m", 3, attempt=2)]),
    (FirstAttemptsInOrder(), [began("m", 1), began("n", 2), sent("m"), sent("n")]),
    (FirstAttemptsInOrder(), [sent("m"), sent("n", sender="t"), began("n", 1), began("m", 2)]),
    (FirstAttemptsInOrder(), [sent("m", due_ns=9), sent("n"), began("n", 1), began("m", 9)]),
    (FirstAttemptsInOrder(), [sent("m"), sent("n"), began("n", 4), began("m", 6), Disturbed(5, 8)]),
    (WithinBounds(), [Gauge("mailbox", 3, 3), Gauge("mailbox", 0, 3)]),
]

REJECTED: list[tuple[Checker, list[Event], str]] = [
    (
        LossesBounded(3),
        [Began("n", "e", 1), Died("m", 1, 3)],
        "INV-D7: m was set aside after 3 losses, and never began",
    ),
    (LossesBounded(3), [Left("m", "pending", losses=3)], "INV-D7: m had 3 of 3 losses, and goes on"),
    (AttemptsBounded(5, 3), [Died("m", 4, 2)], "INV-D7: m was set aside after 4 of 5 attempts"),
    (EverySendEnds(), [LOST], "INV-D1: m was acknowledged and is not there"),
    (EverySendEnds(), [UNKNOWN, LOST], "INV-D1: m was acknowledged"),
    (EverySendEnds(), [sent("m"), Cancelled("m")], "INV-D1: m was acknowledged and is not there"),
    (EverySendEnds(), [sent("m"), Left("m", "pending")], "INV-D1: m is still pending"),
    (EverySendEnds(), [UNKNOWN, Left("m", "pending")], "INV-D1: m is still pending"),
    (EverySendEnds(), [MADE_UP, Left("m", "done")], "INV-D6: m was said to have failed and is done"),
    (OneReply(), [completed("m", reply=1), completed("m", reply=1)], "INV-D2: m is done after it was done"),
    (OneReply(), [Died("m", 3), completed("m")], "INV-D2: m is done after it was dead"),
    (OneReply(), [completed("m"), Cancelled("m")], "INV-D2: m is cancelled after it was done"),
    (OneReply(), [Cancelled("m"), completed("m")], "INV-D2: m is done after it was cancelled"),
    (OneReply(), [Cancelled("m"), Left("m", "done")], "INV-D2: m is done at the end and was cancelled"),
    (OneReply(), [completed("m"), Left("m", "cancelled")], "INV-D2: m is cancelled at the end and was done"),
    (OneReply(), [completed("m"), Revived("m")], "INV-D2: m was revived and was not dead"),
    (OneReply(), [Replied("m", 1), completed("m", reply=2)], "INV-D2: m: a caller was told 1, not 2"),
    (OneReply(), [Replied("m", 1)], "INV-D2: m: a caller was told 1, and nothing"),
    (OneReply(), [completed("m", reply=1), Left("m", "done", reply=2)], "INV-D2: m: the reply changed"),
    (OneReply(), [completed("m"), Left("m", "pending")], "INV-D2: m is pending at the end and was done"),
    (OneMessagePerKey(), [sent("m", key="k"), sent("n", key="k")], "INV-D3: e, key k: m and n were told"),
    (OneMessagePerKey(), [UNKNOWN, completed("m"), sent("n", key="k"), completed("n")], "INV-D3: .* 2 messages"),
    (EffectsOnce(), [completed("m", 10, adds=2)], "INV-D4: e is 0, and its messages added 2"),
    (EffectsOnce(), [Counted("e", 2, 10), completed("m", 11, adds=2)], "INV-D4: e is 2, and its messages added 0"),
    (EffectsOnce(), [Counted("e", 4, 10), completed("m", 10, adds=2)], "INV-D4: e is 4, and its messages added 2"),
    (NotEarly(), [began("m", 4), sent("m", due_ns=5), began("m", 6)], "INV-D5: m began .* before it was due"),
    (NotEarly(late_s=0.5), [sent("m", due_ns=5), began("m", 10**9)], "INV-D5: m began .* after it was due"),
    (AttemptsBounded(3), [began("m", 1, attempt=4)], "INV-D7: m: attempt 4 of 3 began"),
    (AttemptsBounded(3), [Died("m", 2)], "INV-D7: m was set aside after 2 of 3"),
    (AttemptsBounded(3), [Left("m", "pending", 3)], "INV-D7: m had 3 of 3 attempts, and goes on"),
    (OneHandlerAtATime(), [began("m", 1), began("n", 2)], "INV-E1: e: n began while m was running"),
    (
        OneHandlerAtATime(),
        [began("m", 1, epoch=2), began("n", 2), began("o", 3, epoch=2)],
        "o began while m was running",
    ),
    (
        OneHandlerAtATime(),
        [began("m", 1), began("n", 4, epoch=2), completed("m", 5), completed("n", 6, epoch=2)],
        "INV-E1: e: n committed, and had begun before m was committed",
    ),
    (
        OneHandlerAtATime(),
        [began("m", 1, epoch=2), completed("m", 2, epoch=2), began("n", 3), completed("n", 4)],
        "INV-E1: e: epoch 1 committed after epoch 2",
    ),
    (OneHandlerAtATime(), [began("m", 1), completed("m", 5, epoch=2)], "INV-E1: m was done at epoch 2, and no handler"),
    (FirstAttemptsInOrder(), [sent("m"), sent("n"), began("n", 1), began("m", 2)], "INV-E2: e: n of s began before m"),
    (
        FirstAttemptsInOrder(),
        [Disturbed(0, 5), sent("m", from_ns=6), sent("n", from_ns=7), began("n", 8), began("m", 9)],
        "INV-E2: e: n of s began before m",
    ),
    (WithinBounds(), [Gauge("mailbox", 4, 3)], "INV-R2: mailbox: 4, allowed are 3"),
]


@pytest.mark.parametrize(("checker", "history"), ACCEPTED)
def test_a_good_history_is_accepted(checker: Checker, history: list[Event]) -> None:
    assert check(history, copy.deepcopy(checker)) == len(history)


@pytest.mark.parametrize(("checker", "history", "problem"), REJECTED)
def test_a_bad_history_is_rejected(checker: Checker, history: list[Event], problem: str) -> None:
    with pytest.raises(Violation, match=problem):
        check(history, copy.deepcopy(checker))


def test_runs_of_two_epochs_may_overlap_and_are_counted() -> None:
    """INV-E1: a frozen runner does not know that it lost its seat; what it does is not committed."""
    checker = OneHandlerAtATime()
    history = [began("m", 1), began("m", 4, epoch=2), completed("m", 6, epoch=2), over("m", 2), over("m")]
    check([*history, began("n", 7, epoch=2)], checker)
    assert checker.overlapped == {history[0]}
