"""The committed state beside the one that handlers change [M7]: what is written, and what can be had back."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from coterie.entities.persisted.commit import CommittedState, key_of
from coterie.errors import MalformedMessage
from coterie.kernel.serialization.versions import Versioned
from coterie.storage.contracts.messages import StateChange


@dataclass
class Balance:
    cents: int = 0
    orders: list[str] = field(default_factory=list)


CODEC = Versioned(Balance, 1)


def kept(state: Balance, version: int = 0) -> CommittedState:
    return CommittedState(CODEC, "k", CODEC.encode(state), version)


def test_changed_means_encodes_differently() -> None:
    state = Balance(5, ["a"])
    of = kept(state, 3)
    assert of.change(state) is None
    assert of.change(Balance(5, ["a"])) is None, "another object, the same value"
    state.orders.append("b")
    assert of.change(state) == StateChange("k", CODEC.encode(Balance(5, ["a", "b"])), 3)


def test_versions_follow_each_other_as_changes_are_committed() -> None:
    of, state = kept(Balance()), Balance()
    for version in range(3):
        state.cents += 1
        change = of.change(state)
        assert change is not None
        assert change.version == version
        assert of.change(state) == change, "until it is committed it is to be written"
        of.committed(change)
        assert of.change(state) is None


def test_what_is_committed_can_be_had_back_as_a_new_object() -> None:
    state = Balance(5, ["a"])
    of = kept(state)
    state.orders.append("b")
    assert of.restored() == Balance(5, ["a"])
    assert of.restored() is not of.restored()
    assert of.restored().orders is not of.restored().orders


def test_a_removal_is_of_the_version_that_is_there() -> None:
    of = kept(Balance(), 4)
    assert of.removal() == StateChange("k", None, 4)
    of.committed(of.removal())
    assert of.restored() == Balance()


def test_what_does_not_fit_its_type_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="cents"):
        kept(Balance()).change(Balance("many"))  # type: ignore[arg-type] # that is the point


def test_the_key_names_type_and_entity() -> None:
    assert key_of("Account", "a/b") == "entity-state:Account/a/b"
