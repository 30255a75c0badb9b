"""The rule for runners that died before we started: each row of its table, and what each condition wards off."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.ownership.liveness import Lock, Look, Rule, series
from coterie.storage.interface import Presences
from coterie.transport.interface import Presence

S = 1_000_000_000
PAUSE_NS = 3 * S // 2
RULE = Rule(pause_ns=PAUSE_NS, ttl_s=6.0)
FREE = Look(at_ns=100 * S, server="start 1 session 1", lock="free", counter=7, expired=False, up_s=3600.0)
LOOKED_TWICE = replace(FREE, at_ns=FREE.at_ns - PAUSE_NS)

DEAD_ANSWERS: list[Presence] = ["refused", "other"]
NO_ANSWERS: list[Presence | None] = ["silent", "stranger", None]
ANSWERS: list[Presence | None] = [*get_args(Presence), None]
LOCKS: tuple[Lock, ...] = get_args(Lock)


def judge(presence: Presence | None, *, first: Look = FREE, near: bool = False, **seen: Any) -> str:
    return RULE.judge(first, replace(FREE, **seen), presence, near=near)


@pytest.mark.parametrize("presence", DEAD_ANSWERS)
def test_a_free_lock_and_an_address_without_the_runner_prove_its_death_at_once(presence: Presence) -> None:
    assert judge(presence) == "gone"
    assert judge(presence, near=True) == "gone"
    assert judge(presence, near=True, up_s=0.1) == "gone", "the kernel speaks for the address, whatever the server does"


@pytest.mark.parametrize("presence", DEAD_ANSWERS)
def test_right_after_a_start_of_the_server_a_far_address_needs_a_second_look_M1(presence: Presence) -> None:
    """Nobody holds a lock yet, and a firewall may refuse for a living runner."""
    assert judge(presence, up_s=5.9) == "unknown"
    assert judge(presence, up_s=5.9, first=replace(FREE, at_ns=FREE.at_ns - PAUSE_NS + 1)) == "unknown"
    assert judge(presence, up_s=5.9, first=LOOKED_TWICE) == "gone"
    assert judge(presence, up_s=6.0) == "gone"


@pytest.mark.parametrize("presence", NO_ANSWERS)
def test_where_nothing_answers_the_lease_must_be_over_and_a_second_look_find_nothing_new(
    presence: Presence | None,
) -> None:
    assert judge(presence, expired=True, first=LOOKED_TWICE) == "lapsed"
    assert judge(presence, expired=False, first=LOOKED_TWICE) == "unknown"
    assert judge(presence, expired=True) == "unknown"
    assert judge(presence, expired=True, first=replace(FREE, at_ns=FREE.at_ns - PAUSE_NS + 1)) == "unknown"
    assert judge(presence, expired=True, near=True, first=FREE) == "unknown"


@pytest.mark.parametrize("lock", [lock for lock in LOCKS if lock != "gone"])
def test_a_runner_that_answers_is_alive_whatever_became_of_its_lock_and_lease(lock: Lock) -> None:
    assert judge("present", lock=lock, expired=True, first=replace(LOOKED_TWICE, lock=lock), near=True) == "alive"


@pytest.mark.parametrize(("lock", "presence"), [*product(("held", "none"), [p for p in ANSWERS if p != "present"])])
def test_a_lock_that_is_held_or_that_never_was_leaves_it_to_the_lease(lock: Lock, presence: Presence | None) -> None:
    """A session that a dead machine left behind; a runner behind a pooler, or of an older version."""
    assert judge(presence, lock=lock, expired=True, first=replace(LOOKED_TWICE, lock=lock), near=True) == "unknown"


@pytest.mark.parametrize("presence", ANSWERS)
def test_where_the_kernel_says_that_the_process_is_gone_nothing_else_is_asked_m5(presence: Presence | None) -> None:
    assert judge(presence, lock="gone", up_s=0.0) == "gone"


@given(
    presence=st.sampled_from([p for p in ANSWERS if p != "present"]),
    ago_ns=st.integers(0, PAUSE_NS - 1),
    lock=st.sampled_from(["held", "free", "none"]),
)
def test_m1_no_restart_of_the_server_is_a_death_before_a_second_look(
    presence: Presence | None, ago_ns: int, lock: Lock
) -> None:
    """All leases have run out and all locks are free, for less time than a living runner takes to renew."""
    first = replace(FREE, at_ns=FREE.at_ns - ago_ns, lock=lock)
    assert judge(presence, first=first, lock=lock, expired=True, up_s=ago_ns / 1e9) == "unknown"


def test_a_series_of_looks_is_broken_by_another_session_another_counter_and_a_lock_that_was_held() -> None:
    later = replace(FREE, at_ns=FREE.at_ns + S, expired=True, up_s=3601.0)
    assert series(None, FREE) is FREE
    assert series(FREE, later) is FREE
    for change in ({"server": "start 1 session 2"}, {"counter": 8}, {"lock": "held"}):
        broken = replace(later, **change)
        assert series(FREE, broken) is broken
    assert series(replace(FREE, lock="held"), later) is later


def test_a_look_is_what_was_found_about_one_runner() -> None:
    found = Presences(
        "start",
        held=frozenset({"held"}),
        counters={"held": 1, "free": 2, "gone": 3, "none": 4, "held and none": 5},
        expired=frozenset({"free", "gone"}),
        gone=frozenset({"gone"}),
        unwitnessed=frozenset({"none"}),
        up_s=9.0,
    )
    for lock in LOCKS:
        look = Look.of(lock, found, at_ns=5)
        assert look == Look(5, "start", lock, found.counters[lock], lock in found.expired, 9.0)
    assert Look.of("left", found, at_ns=5) is None


# Who may be alive among those that could never reach us.


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lease_that_is_over_refuses_nobody(lock: Lock) -> None:
    look = replace(FREE, lock=lock, expired=True)
    assert RULE.may_live(look, look) is False


@pytest.mark.parametrize(
    ("first", "look", "lives"),
    [
        ({"lock": "held"}, {"lock": "held"}, True),
        ({"lock": "gone"}, {"lock": "gone"}, False),
        ({}, {}, None),
        ({}, {"counter": 8}, True),
        ({}, {"at_ns": FREE.at_ns + PAUSE_NS - 1}, None),
        ({}, {"at_ns": FREE.at_ns + PAUSE_NS}, False),
        ({}, {"at_ns": FREE.at_ns + PAUSE_NS, "lock": "held"}, True),
        ({}, {"at_ns": FREE.at_ns + PAUSE_NS, "server": "start 2"}, None),
        ({"lock": "none"}, {"at_ns": FREE.at_ns + PAUSE_NS, "lock": "none"}, None),
        ({"lock": "none"}, {"counter": 8, "lock": "none"}, True),
    ],
)
def test_who_has_a_lease_may_be_alive_until_its_lock_was_free_for_two_looks(
    first: dict[str, Any], look: dict[str, Any], lives: bool | None
) -> None:
    assert RULE.may_live(replace(FREE, **first), replace(FREE, **look)) is lives
