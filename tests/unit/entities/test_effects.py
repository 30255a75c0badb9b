"""Ledgers: what a handler leaves behind is collected while it runs, and not after."""

from __future__ import annotations

import math
from typing import Any

import pytest

from coterie.entities.host.work import Work
from coterie.entities.persisted.commit import ENDED, HandlerEffects, has_ended, ledger_of


def started(**fields: Any) -> Work:
    return Work("Echo", "a", "echo", b"", math.inf, math.inf, "m1", **fields)


def test_a_ledger_is_made_at_its_first_use_and_kept() -> None:
    work = started()
    ledger = ledger_of(work)
    assert ledger_of(work) is ledger is work.ledger
    assert (ledger.sends, ledger.transaction, ledger.forgets, ledger.is_open) == ([], None, False, True)


def test_m6_awaited_calls_are_numbered_from_one() -> None:
    ledger = HandlerEffects()
    assert [ledger.number_call() for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("is_open", "is_stopped", "ended"),
    [(True, False, False), (False, False, True), (False, True, False)],
    ids=["running", "answered", "cancelled and still running"],
)
def test_a_volatile_handler_has_ended_when_it_is_answered(is_open: bool, is_stopped: bool, ended: bool) -> None:
    assert has_ended(started(is_open=is_open, is_stopped=is_stopped)) is ended


def test_a_handler_with_a_ledger_has_ended_when_that_is_closed() -> None:
    ledger = HandlerEffects()
    work = started(ledger=ledger)
    assert not has_ended(work)
    ledger.is_open = False
    assert has_ended(work)
    work.ledger = ENDED
    assert has_ended(work)
