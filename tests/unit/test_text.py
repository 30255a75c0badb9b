"""Texts of strangers: whatever they are, they can be told and stored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.kernel.text import countable, said, storable

ANY = st.text(st.characters(codec=None))
"""Zero characters and halves of surrogate pairs among them."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@given(text=ANY)
def test_what_is_storable_is_text_without_zeros(text: str) -> None:
    stored = storable(text)
    assert "\x00" not in stored
    assert len(stored) == len(text)
    assert stored.encode().decode() == stored
    assert storable(stored) == stored


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\x00")))
def test_all_else_stays_as_it_is(text: str) -> None:
    assert storable(text) == text


def test_an_error_is_told_whatever_its_own_words_do() -> None:
    assert said(ValueError("no")) == "ValueError: no"
    assert said(Unprintable()) == "Unprintable, which raises when it is asked what it says"


@pytest.mark.parametrize(("number", "stored"), [(None, None), (7, 7), (2**70, 2**63 - 1), (-(2**70), -(2**63) + 1)])
def test_a_count_beyond_all_databases_is_stored_as_far_as_they_count(number: int | None, stored: int | None) -> None:
    assert countable(number) == stored
