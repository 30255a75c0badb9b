"""Watching: a counter that stands still while we can see it is a suspect's; an outage makes nobody one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.ownership.failure_detector import LeaseWatch, Suspect
from coterie.storage.interface import Sighting

if TYPE_CHECKING:
    from collections.abc import Callable

S = 1_000_000_000
MS = 1_000_000
TTL_S = 6


def watch() -> LeaseWatch:
    return LeaseWatch(ttl_ns=TTL_S * S, gap_ns=3 * S)


def see(watch: LeaseWatch, at_ns: int, *, took_ns: int = 0, expired: bool = True, **counters: int) -> None:
    others = [Sighting(runner, counter, expired, leaving=False) for runner, counter in counters.items()]
    watch.saw(others, sent_ns=at_ns, got_ns=at_ns + took_ns)


def test_a_counter_that_stood_still_for_the_ttl_makes_a_suspect_if_the_lease_has_expired_M1() -> None:
    watching = watch()
    for second in range(6):
        see(watching, second * S, dead=7, alive=second)
        assert watching.evictable() == []
    see(watching, 6 * S, dead=7, alive=6)
    assert watching.evictable() == [Suspect("dead", 7, expired=True)]


def test_after_twice_the_ttl_no_clock_matters_M1() -> None:
    watching = watch()
    for second in range(12):
        see(watching, second * S, dead=7, expired=False)
        assert watching.evictable() == []
    see(watching, 12 * S, dead=7, expired=False)
    assert watching.evictable() == [Suspect("dead", 7, expired=False)]


def test_a_runner_has_moved_once_its_counter_was_another_one() -> None:
    watching = watch()
    see(watching, 0, dead=7, alive=1)
    assert not watching.has_moved("alive")
    see(watching, 1 * S, dead=7, alive=2)
    see(watching, 2 * S, dead=7, alive=2)
    assert watching.has_moved("alive")
    assert not watching.has_moved("dead")
    assert not watching.has_moved("unknown")


def test_the_first_to_return_after_an_outage_evicts_nobody_M1() -> None:
    watching = watch()
    see(watching, 0, a=1, b=1)
    see(watching, 1 * S, a=2, b=2)
    see(watching, 100 * S, a=2, b=2)  # everybody's lease ran out long ago
    see(watching, 101 * S, a=3, b=2)
    assert watching.evictable() == []


def test_a_thawed_observer_counts_no_time_in_which_it_was_frozen_M1() -> None:
    """Frozen before it sent, or before it read the answer: neither says anything about the others."""
    watching = watch()
    see(watching, 0, a=1)
    see(watching, 1 * S, a=1, took_ns=50 * S)
    see(watching, 51 * S, a=1)
    assert watching.evictable() == []


def test_only_what_was_seen_counts_so_the_dead_before_our_start_wait_as_well_M1() -> None:
    watching = watch()
    see(watching, 0, dead=7)
    assert watching.evictable() == []


def test_time_is_counted_from_the_answer_that_showed_the_counter() -> None:
    """It was read at some moment between question and answer: to count from the question would be too much."""
    watching = watch()
    see(watching, 0, a=1, took_ns=500 * MS)
    for second in range(1, 7):
        see(watching, second * S, a=1)
    assert watching.evictable() == []
    see(watching, 6_500 * MS, a=1)
    assert [each.id for each in watching.evictable()] == ["a"]


def test_any_other_counter_is_a_sign_of_life_also_a_smaller_one_M13() -> None:
    """A failover may have lost some renewals."""
    watching = watch()
    for second in range(6):
        see(watching, second * S, a=7)
    see(watching, 6 * S, a=3)
    assert watching.evictable() == []


def test_who_is_gone_from_the_table_is_forgotten() -> None:
    watching = watch()
    for second in range(7):
        see(watching, second * S, a=7)
    see(watching, 7 * S)
    see(watching, 8 * S, a=7)
    assert watching.evictable() == []


# Properties, over simulated seconds: everybody renews once a second while the database is up


STEP_NS = 100 * MS


class Peer:
    """Renews once a second; while the database is down it tries again a second later."""

    def __init__(self, phase: int) -> None:
        self.counter = 1
        self._next = phase

    def step(self, tick: int, *, up: bool) -> None:
        if tick == self._next:
            self.counter += up
            self._next += 10


def observe(
    watching: LeaseWatch, peers: dict[str, Peer], ticks: range, up: Callable[[int], bool], expired: Callable[[], bool]
) -> None:
    """The observer itself is always the first to return."""
    last = ticks.start - 10
    for tick in ticks:
        for peer in peers.values():
            peer.step(tick, up=up(tick))
        if up(tick) and tick - last >= 10:
            last = tick
            others = [Sighting(each, peer.counter, expired(), leaving=False) for each, peer in peers.items()]
            watching.saw(others, sent_ns=tick * STEP_NS, got_ns=tick * STEP_NS + 20 * MS)
            assert watching.evictable() == []


@settings(deadline=None)
@given(
    phases=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    outages=st.lists(st.tuples(st.integers(30, 90), st.integers(1, 400)), max_size=5),
    chance=st.randoms(use_true_random=False),
)
def test_no_outage_and_no_step_of_the_clock_makes_a_suspect_of_who_renews_again_M1(
    phases: list[int], outages: list[tuple[int, int]], chance: Any
) -> None:
    """Outages of any length, with three seconds in between; what the database says about expiry is pure chance."""
    down: set[int] = set()
    end = 0
    for pause, length in outages:
        down.update(range(end + pause, end + pause + length))
        end += pause + length
    peers = {f"r{number}": Peer(phase) for number, phase in enumerate(phases)}
    observe(watch(), peers, range(end + 100), lambda tick: tick not in down, lambda: chance.random() < 0.7)


@settings(deadline=None)
@given(
    gaps=st.lists(st.integers(700, 1000), min_size=30, max_size=30),
    took=st.integers(0, 300),
    died=st.integers(0, 5000),
    clock=st.sampled_from(["right", "back"]),
)
def test_a_dead_runner_is_a_suspect_two_renewals_after_the_ttl_and_not_before_it(
    gaps: list[int], took: int, died: int, clock: str
) -> None:
    """INV-F5, also if the database's clock stepped back so that nothing ever expires: then after twice the TTL."""
    watching = watch()
    limit_ms = (TTL_S if clock == "right" else 2 * TTL_S) * 1000
    at_ms = 0
    for gap in gaps:
        at_ms += gap
        counter = min(at_ms, died)  # renews all the time until it dies
        expired = clock == "right" and at_ms >= died + TTL_S * 1000
        see(watching, at_ms * MS, took_ns=took * MS, expired=expired, dead=counter)
        if at_ms < died + limit_ms:
            assert watching.evictable() == []
        if at_ms >= died + limit_ms + 2 * 1000:
            assert watching.evictable() == [Suspect("dead", died, expired=clock == "right")]
            return
