"""Ledgers: what a handler leaves behind is collected while it runs, and not after."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from coterie.entities.persisted.effects import ENDED, HandlerEffects, has_ended, ledger_of


def test_a_ledger_is_made_at_its_first_use_and_kept() -> None:
    work = SimpleNamespace(ledger=None)
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
    assert has_ended(SimpleNamespace(ledger=None, is_open=is_open, is_stopped=is_stopped)) is ended


def test_a_handler_with_a_ledger_has_ended_when_that_is_closed() -> None:
    work = SimpleNamespace(ledger=HandlerEffects(), is_open=True, is_stopped=False)
    assert not has_ended(work)
    work.ledger.is_open = False
    assert has_ended(work)
    work.ledger = ENDED
    assert has_ended(work)
