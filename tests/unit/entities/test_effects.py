"""Effects: what a handler leaves behind is collected while it runs, and not after."""

from __future__ import annotations

import math
from typing import Any

import pytest

from coterie.entities.host.work import Work
from coterie.entities.persisted.commit import ENDED, HandlerEffects, effects_of, has_ended


def started(**fields: Any) -> Work:
    return Work("Echo", "a", "echo", b"", math.inf, math.inf, "m1", **fields)


def test_effects_are_collected_from_the_first_use_on_and_kept() -> None:
    work = started()
    effects = effects_of(work)
    assert effects_of(work) is effects is work.effects
    assert (effects.sends, effects.transaction, effects.forgets, effects.is_open) == ([], None, False, True)


def test_m6_awaited_calls_are_numbered_from_one() -> None:
    effects = HandlerEffects()
    assert [effects.number_call() for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("is_open", "is_stopped", "ended"),
    [(True, False, False), (False, False, True), (False, True, False)],
    ids=["running", "answered", "cancelled and still running"],
)
def test_a_volatile_handler_has_ended_when_it_is_answered(is_open: bool, is_stopped: bool, ended: bool) -> None:
    assert has_ended(started(is_open=is_open, is_stopped=is_stopped)) is ended


def test_a_handler_with_effects_has_ended_when_they_are_closed() -> None:
    effects = HandlerEffects()
    work = started(effects=effects)
    assert not has_ended(work)
    effects.is_open = False
    assert has_ended(work)
    work.effects = ENDED
    assert has_ended(work)
