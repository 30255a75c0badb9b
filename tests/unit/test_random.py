"""Chance: a seed decides everything; without one nothing can be foretold."""

from __future__ import annotations

import pytest

from coterie.kernel.random import Random


def draws(chance: Random) -> list[object]:
    return [chance.bits(64), chance.token(16), chance.between(1.0, 2.0), chance.bits(1)]


def test_the_same_seed_draws_the_same() -> None:
    assert draws(Random(7)) == draws(Random(7))
    assert Random(7).seed == 7


def test_another_seed_and_no_seed_draw_something_else() -> None:
    assert draws(Random(7)) != draws(Random(8))
    assert draws(Random()) != draws(Random())


@pytest.mark.parametrize("size_bytes", [1, 16, 32])
def test_a_token_has_the_size_that_was_asked_for(size_bytes: int) -> None:
    chance = Random(1)
    assert {len(chance.token(size_bytes)) for _ in range(600)} == {size_bytes}


def test_bits_and_bounds_hold() -> None:
    chance = Random(1)
    assert all(0 <= chance.bits(3) < 8 for _ in range(200))
    assert all(2.0 <= chance.between(2.0, 3.0) <= 3.0 for _ in range(200))
