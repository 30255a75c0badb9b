"""Tokens of deferreds: nobody can guess or change one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import WorkflowError
from coterie.durable.token import MalformedToken, TokenParts, Tokens
from coterie.kernel.serialization import schema

OURS, THEIRS = Tokens(b"s" * 32), Tokens(b"t" * 32)


@given(st.text(), st.text())
def test_a_token_is_read_as_it_was_made(unit: str, name: str) -> None:
    token = OURS.make(unit, name)
    assert OURS.read(token) == TokenParts(unit, name)
    assert OURS.make(unit, name) == token
    assert token.replace("-", "").replace("_", "").isalnum(), "it may stand in an address"
    assert token[0].isalpha(), "and on a command line: a dash would be taken for an option"
    with pytest.raises(MalformedToken):
        THEIRS.read(token)


@given(st.text(), st.text(), st.integers(1, 2**63 - 1), st.sampled_from([bool, list[int], dict[str, Any], Any]))
def test_a_token_tells_the_life_of_its_unit_and_the_type_of_its_value(
    unit: str, name: str, life: int, kind: Any
) -> None:
    takes = schema.describe(kind)
    token = OURS.make(unit, name, life=life, takes=takes)
    assert OURS.read(token) == TokenParts(unit, name, life, takes)
    assert OURS.make(unit, name, life=life, takes=takes) == token
    assert OURS.make(unit, name, life=life - 1, takes=takes) != token


@given(st.data())
def test_a_token_that_was_changed_is_refused(data: st.DataObject) -> None:
    token = OURS.make("workflow:Order/7", "approval")
    raw = list(token)
    where = data.draw(st.integers(0, len(raw) - 2))  # the last one has bits that say nothing
    raw[where] = data.draw(st.sampled_from([c for c in "ABCDwxyz0189-_" if c != raw[where]]))
    with pytest.raises(MalformedToken):
        OURS.read("".join(raw))


@given(st.text() | st.binary() | st.none() | st.integers())
def test_whatever_else_is_given_is_refused(token: Any) -> None:
    with pytest.raises(WorkflowError, match="this is no token of a deferred of this cluster"):
        OURS.read(token)


def test_every_shorter_one_is_refused() -> None:
    token = OURS.make("u", "n")
    for end in range(len(token)):
        with pytest.raises(MalformedToken):
            OURS.read(token[:end])
    with pytest.raises(MalformedToken):
        OURS.read(token + "AAAA")


def test_two_never_have_the_same_token() -> None:
    names = [("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc"), ("a:b", "c"), ("a", "b:c")]
    assert len({OURS.make(*each) for each in names}) == len(names)
