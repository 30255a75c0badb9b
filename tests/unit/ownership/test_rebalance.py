"""Planning: what to take and what to hand over, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from coterie.ownership import assignment
from coterie.ownership.assignment import order, targets
from coterie.ownership.rebalance import Rebalance
from tests.unit.ownership.rows import held, runner, seat, shards, view

if TYPE_CHECKING:
    from coterie.storage.interface import ClusterSnapshot, RunnerRow, SeatRow

S = 1_000_000_000
NIGHTLY = "cron:nightly"
A, B, C = (runner(each, knows={NIGHTLY: "v1"}) for each in "abc")


def plans(me: str = "a", **delays_s: int) -> Rebalance:
    return Rebalance(me, delays={f"cron:{name}": delay_s * S for name, delay_s in delays_s.items()})


OLD = -1
"""An epoch of long ago."""


def nightly(holder: str | None = None, **options: Any) -> SeatRow:
    return seat(NIGHTLY, holder, fingerprint="v1", **options)


def lone(members: list[RunnerRow], row: SeatRow) -> list[str]:
    """The target of a free seat, and then the others in order."""
    [target] = targets(members, [row]).values()
    return [target, *(each for each in order(row, members) if each != target)]


def learned(me: str, seen: ClusterSnapshot, *, at_s: int = 0, renewals: int = 0, **delays_s: int) -> Rebalance:
    plan = plans(me, **delays_s)
    plan.learn(seen, now_ns=at_s * S, renewals=renewals)
    return plan


# Taking


def test_free_seats_go_to_their_targets_in_the_order_of_names() -> None:
    rows = shards(20)
    found = targets([A, B], rows)
    for me in "ab":
        wanted = learned(me, view([A, B], rows)).acquire([], 0)
        assert wanted == sorted(row.name for row in rows if found[row.name] == me)


def test_what_is_held_already_or_by_others_is_not_taken() -> None:
    seen = view([A], [*shards(2), seat("shard:default:8", "b")])
    assert learned("a", seen).acquire({"shard:default:0"}, 0) == ["shard:default:1"]


def test_a_seat_that_its_target_does_not_take_goes_to_the_next_in_order_m1() -> None:
    members = [A, B, C]
    target, second, third = lone(members, nightly())
    seen = view(members, [nightly()])
    assert learned(target, seen).acquire([], 0) == [NIGHTLY]
    assert learned(second, seen).acquire([], 5 * S - 1) == []
    assert learned(second, seen).acquire([], 5 * S) == [NIGHTLY]
    assert learned(third, seen).acquire([], 10 * S - 1) == []
    assert learned(third, seen).acquire([], 10 * S) == [NIGHTLY]


def test_a_seat_that_was_resigned_is_left_to_others_for_a_while() -> None:
    members = [A, B]
    target, _ = lone(members, nightly())
    plan = learned(target, view(members, [nightly()]))
    plan.exclude(NIGHTLY, 1 * S, cause="resigned")
    assert plan.acquire([], 11 * S - 1) == []
    assert plan.acquire([], 11 * S) == [NIGHTLY]


def test_who_resigned_may_take_a_seat_that_another_runner_has_held_since_and_gave_up_too() -> None:
    """Its offer may be lost: else both would wait."""
    members = [A, B]
    target, other = lone(members, nightly())
    plan = learned(target, view(members, [nightly(target, epoch=7)]))
    plan.exclude(NIGHTLY, 0, cause="resigned", epoch=7)
    plan.learn(view(members, [nightly(epoch=7)]), now_ns=1, renewals=1)
    assert plan.acquire([], 2) == []
    plan.learn(view(members, [nightly(other, epoch=8)]), now_ns=3, renewals=1)
    plan.learn(view(members, [nightly(epoch=8)]), now_ns=4, renewals=1)
    assert plan.acquire([], 5) == [NIGHTLY]


def test_a_seat_that_failed_here_is_left_alone_for_a_while_although_it_is_offered_or_nobody_else_is_there() -> None:
    for members in ([A, B], [A]):
        target, *_ = lone(members, nightly(epoch=7))
        plan = learned(target, view(members, [nightly(epoch=7)]))
        plan.exclude(NIGHTLY, 0, cause="failed", error="OSError: no")
        plan.offered(NIGHTLY, 7)
        assert plan.acquire([], 10 * S - 1) == []
        assert plan.excluded(10 * S - 1)[NIGHTLY].error == "OSError: no"
        assert plan.acquire([], 10 * S) == [NIGHTLY]
        assert plan.excluded(10 * S) == {}


def test_another_runner_takes_what_its_target_leaves_alone_and_still_moves_shards_there_m1() -> None:
    members = [A, B]
    target, second = lone(members, nightly())
    rows = held(shards(4), {row.name: second for row in shards(4)})
    plan = learned(second, view(members, [nightly(), *rows]))
    mine = {row.name for row in rows}
    assert plan.acquire(mine, 5 * S) == [NIGHTLY]
    plan.learn(view(members, [nightly(second), *rows]), now_ns=6 * S, renewals=6)
    assert [to for _, to in plan.give({NIGHTLY, *mine}, 8)] == [target, target]


def test_who_may_not_hold_a_seat_does_not_take_it_however_long_it_is_free_m1() -> None:
    stranger = runner("s", knows={NIGHTLY: "v0"})
    assert learned("s", view([A, stranger], [nightly()])).acquire([], 100 * S) == []
    assert learned("s", view([stranger], [nightly()])).acquire([], 100 * S) == []


def test_patience_starts_anew_when_the_seat_was_held_in_between_m1() -> None:
    members = [A, B]
    _, second = lone(members, nightly())
    plan = learned(second, view(members, [nightly(epoch=1)]))
    plan.learn(view(members, [nightly(epoch=2)]), now_ns=4 * S, renewals=4)
    assert plan.acquire([], 8 * S) == []
    assert plan.acquire([], 9 * S) == [NIGHTLY]


def test_patience_goes_on_while_other_things_change_m1() -> None:
    members = [A, B]
    _, second = lone(members, nightly())
    plan = learned(second, view(members, [nightly()]))
    plan.learn(view(members, [nightly(), seat("shard:other:1", group="other")]), now_ns=4 * S, renewals=4)
    assert plan.acquire([], 5 * S) == [NIGHTLY]


def test_a_seat_that_was_not_given_back_waits_for_its_takeover_delay() -> None:
    members = [A, B]
    target, second = lone(members, nightly())
    lost = view(members, [nightly(clean=False)])
    assert learned(target, lost, nightly=60).acquire([], 60 * S - 1) == []
    assert learned(target, lost, nightly=60).acquire([], 60 * S) == [NIGHTLY]
    assert learned(second, lost, nightly=60).acquire([], 65 * S - 1) == []
    assert learned(second, lost, nightly=60).acquire([], 65 * S) == [NIGHTLY]
    assert learned(target, view(members, [nightly()]), nightly=60).acquire([], 0) == [NIGHTLY]
    assert learned(target, lost).acquire([], 0) == [NIGHTLY]


def test_the_delay_of_a_seat_that_was_defined_later_counts_too() -> None:
    plan = plans("a")
    plan.delay(NIGHTLY, 30 * S)
    plan.learn(view([A], [nightly(clean=False)]), now_ns=0, renewals=0)
    assert plan.acquire([], 30 * S - 1) == []
    assert plan.acquire([], 30 * S) == [NIGHTLY]


def test_a_leader_that_stands_free_does_not_keep_shards_from_its_target_m1() -> None:
    """Why it is not taken may have to do with that one leader alone."""
    target, other = lone([A, B], nightly())
    plan = learned(other, view([A, B], [nightly()]))
    plan.acquire([], 6 * S)
    assert plan._shunned == {}
    free = seat("shard:default:0")
    target, other = lone([A, B], free)
    plan = learned(other, view([A, B], [free]))
    plan.acquire([], 6 * S)
    assert set(plan._shunned) == {target}


def test_a_refused_seat_is_never_taken_M8() -> None:
    plan = learned("a", view([A], [nightly()]))
    plan.exclude(NIGHTLY, 0, cause="refused")
    plan.exclude(NIGHTLY, 1 * S, cause="resigned")
    plan.offered(NIGHTLY, OLD)
    assert plan.acquire([], 100 * S) == []


# Offers


def test_an_offered_seat_is_taken_where_the_view_still_has_the_old_holder() -> None:
    """The offer comes a moment after the release, and the view is a second old."""
    plan = learned("a", view([A, B], [nightly("b")]))
    plan.offered(NIGHTLY, OLD)
    assert plan.acquire([], 0) == [NIGHTLY]


def test_an_offer_is_worth_one_try() -> None:
    """It may be an old one, for a seat that somebody has long taken."""
    plan = learned("a", view([A, B], [nightly("b")]))
    plan.offered(NIGHTLY, OLD)
    plan.acquire([], 0)
    assert plan.acquire([], 0) == []


def test_an_offer_outlives_a_view_that_was_read_before_it() -> None:
    plan = plans()
    plan.offered(NIGHTLY, OLD)
    plan.learn(view([A, B], [nightly("b")]), now_ns=0, renewals=1)
    assert plan.acquire([], 0) == [NIGHTLY]


def test_an_offer_of_a_free_seat_needs_our_own_consent() -> None:
    members = [A, B]
    target, second = lone(members, nightly())
    for me, wanted in ((target, [NIGHTLY]), (second, [])):
        plan = learned(me, view(members, [nightly()]))
        plan.offered(NIGHTLY, OLD)
        assert plan.acquire([], 0) == wanted


def test_a_fresh_offer_is_taken_whoever_is_its_target() -> None:
    """Who gave it back has resigned, and would be the target again."""
    members = [A, B]
    _, second = lone(members, nightly(epoch=7))
    plan = learned(second, view(members, [nightly(epoch=7)]))
    plan.offered(NIGHTLY, 7)
    assert plan.acquire([], 0) == [NIGHTLY]


def test_who_resigned_takes_a_seat_back_when_it_is_offered_or_nobody_else_is_left() -> None:
    for members, offered, wanted in (([A, B], False, []), ([A, B], True, [NIGHTLY]), ([A], False, [NIGHTLY])):
        target, *_ = lone(members, nightly(epoch=7))
        plan = learned(target, view(members, [nightly(epoch=7)]))
        plan.exclude(NIGHTLY, 0, cause="resigned")
        if offered:
            plan.offered(NIGHTLY, 7)
        assert plan.acquire([], 1) == wanted


def test_an_old_offer_does_not_shorten_the_takeover_delay() -> None:
    plan = learned("a", view([A], [nightly(clean=False)]), nightly=60)
    plan.offered(NIGHTLY, OLD)
    assert plan.acquire([], 0) == []


@pytest.mark.parametrize("name", ["cron:unheard-of", NIGHTLY])
def test_an_offer_to_who_may_not_hold_the_seat_is_left_alone(name: str) -> None:
    old = runner("a", knows={NIGHTLY: "v0"})
    plan = learned("a", view([old, B], [nightly("b")]))
    plan.offered(name, OLD)
    assert plan.acquire([], 0) == []


# Handing over


def test_a_seat_that_was_away_in_between_begins_its_two_renewals_anew_m2() -> None:
    """A leader has resigned to us what we had moved to it: it does not go back at once."""

    def over_quota(epoch: int) -> list[SeatRow]:
        return [seat(f"shard:default:{number}", "a", epoch=epoch) for number in range(4)]

    plan = learned("a", view([A, B], over_quota(1)), renewals=7)
    moved = plan.give([row.name for row in over_quota(1)], 9)
    assert len(moved) == 2, "they are ripe"
    plan.learn(view([A, B], over_quota(3)), now_ns=0, renewals=9)
    assert plan.give([row.name for row in over_quota(3)], 9) == []
    assert plan.give([row.name for row in over_quota(3)], 11) == moved


def test_a_move_must_have_been_the_answer_for_two_renewals_m2() -> None:
    rows = held(shards(4), {row.name: "a" for row in shards(4)})
    plan = learned("a", view([A, B], rows), renewals=7)
    mine = {row.name for row in rows}
    assert plan.give(mine, 7) == plan.give(mine, 8) == []
    moves = plan.give(mine, 9)
    assert [target for _, target in moves] == ["b", "b"]
    assert moves == sorted(moves)


def test_another_target_starts_the_count_anew_m2() -> None:
    rows = held(shards(2), {row.name: "a" for row in shards(2)})
    mine = {each.name for each in rows}
    plan = learned("a", view([A, B], rows), renewals=0)
    plan.learn(view([A, C], rows), now_ns=0, renewals=1)
    assert plan.give(mine, 2) == []
    assert [target for _, target in plan.give(mine, 3)] == ["c"]


def test_a_move_that_is_not_the_answer_any_more_is_forgotten_m2() -> None:
    rows = held(shards(2), {row.name: "a" for row in shards(2)})
    mine = {each.name for each in rows}
    plan = learned("a", view([A, B], rows))
    plan.learn(view([A], rows), now_ns=0, renewals=1)
    plan.learn(view([A, B], rows), now_ns=0, renewals=2)
    assert plan.give(mine, 3) == []
    assert len(plan.give(mine, 4)) == 1


def test_a_leader_is_not_moved_for_balance_alone() -> None:
    """Two singletons with one runner, and none with the other: after `resign` nothing comes back."""
    known = {NIGHTLY: "v1", "singleton:x": "v1"}
    members = [runner(each, knows=known) for each in "ab"]
    rows = [nightly("a"), seat("singleton:x", "a", fingerprint="v1")]
    assert learned("a", view(members, rows)).give(known, 100) == []


def two_singletons(*members: str, holder: str | None = None, epoch: int = 1) -> ClusterSnapshot:
    known = {"singleton:x": "v1", "singleton:y": "v1"}
    rows = [seat(name, holder, fingerprint="v1", epoch=epoch) for name in known]
    return view([runner(each, knows=known) for each in members], rows)


@pytest.mark.parametrize(
    ("joins_s", "how", "shares"),
    [(9, "taken", True), (10, "taken", False), (9, "offered", False), (9, "offered later", False)],
)
def test_what_a_runner_took_while_it_started_is_shared_with_one_that_starts_together_with_it(
    joins_s: int, how: str, shares: bool
) -> None:
    """What another runner gave to it, having resigned perhaps, is not sent back."""
    both = {"singleton:x", "singleton:y"}
    plan = learned("a", two_singletons("a", holder="b" if how == "offered" else None))
    for name in both if how == "offered" else ():
        plan.offered(name, 1)
    assert set(plan.acquire([], 0)) == both
    if how == "offered later":
        plan.learn(two_singletons("a", "b", holder="a", epoch=2), now_ns=1, renewals=0)
        plan.learn(two_singletons("a", "b", holder="b", epoch=3), now_ns=2, renewals=0)
        for name in both:
            plan.offered(name, 3)
        assert set(plan.acquire([], 3)) == both
    plan.learn(two_singletons("a", "b", holder="a", epoch=4), now_ns=joins_s * S, renewals=0)
    assert plan.give(both, 1) == []
    assert [to for _, to in plan.give(both, 2)] == (["b"] if shares else [])


def test_an_outdated_definition_is_handed_over_at_once_M8() -> None:
    new = runner("b", knows={NIGHTLY: "v2"})
    plan = learned("a", view([A, new], [seat(NIGHTLY, "a", fingerprint="v2")]), renewals=3)
    assert plan.give({NIGHTLY}, 3) == [(NIGHTLY, "b")]


def test_a_seat_that_nobody_else_may_hold_is_kept_M8() -> None:
    plan = learned("a", view([A], [seat(NIGHTLY, "a", fingerprint="v2")]))
    assert plan.give({NIGHTLY}, 100) == []


def test_nothing_is_handed_over_by_a_view_that_does_not_know_us() -> None:
    """Evicted, or read in the middle of it: what we hold is compared with the tables elsewhere."""
    assert learned("a", view([B], [nightly("a")])).give({NIGHTLY}, 100) == []


def test_who_leaves_hands_over_everything_at_once() -> None:
    rows = held(shards(6), {row.name: "a" for row in shards(6)})
    moves = learned("a", view([A, B, C], rows)).give([row.name for row in rows], 0, leaving=True)
    assert sorted(target or "" for _, target in moves) == ["b"] * 3 + ["c"] * 3


def test_the_last_to_leave_gives_back_to_nobody() -> None:
    plan = learned("a", view([A], [nightly("a")]))
    assert plan.give([NIGHTLY, "shard:default:1"], 0, leaving=True) == [(NIGHTLY, None), ("shard:default:1", None)]


def test_a_runner_that_is_asked_to_leave_hands_over_at_once() -> None:
    leaver = runner("a", knows=A.knows, leaving=True)
    assert learned("a", view([leaver, B], [nightly("a")])).give({NIGHTLY}, 0) == [(NIGHTLY, "b")]


def left_waiting() -> tuple[Rebalance, set[str]]:
    """The plans of a, which holds three of four shards and has seen b leave the fourth alone; what a holds then."""
    rows = held(shards(4), {row.name: "a" for row in shards(3)})
    plan = learned("a", view([A, B], rows))
    assert len(plan.give({row.name for row in rows[:3]}, 2)) == 1
    assert plan.acquire({row.name for row in rows[:3]}, 5 * S) == [rows[3].name]
    return plan, {row.name for row in rows}


def test_nothing_is_moved_to_a_runner_that_lets_a_seat_stand_free_for_a_while_m1() -> None:
    plan, mine = left_waiting()
    seen = view([A, B], held(shards(4), dict.fromkeys(mine, "a")))
    plan.learn(seen, now_ns=6 * S, renewals=6)
    assert plan.give(mine, 8) == plan.give(mine, 500) == []
    plan.learn(seen, now_ns=605 * S, renewals=600)
    assert len(plan.give(mine, 600)) == 2


def test_a_runner_that_takes_a_seat_after_all_is_well_again_m1() -> None:
    plan, mine = left_waiting()
    holders = dict.fromkeys(mine, "a") | {"shard:default:3": "b"}
    plan.learn(view([A, B], held(shards(4), holders)), now_ns=6 * S, renewals=6)
    assert len(plan.give(mine - {"shard:default:3"}, 8)) == 1


def test_runners_that_are_gone_are_not_remembered() -> None:
    plan, _ = left_waiting()
    plan.learn(view([A], shards(4)), now_ns=6 * S, renewals=6)
    assert plan._shunned == {}


# Whether all shards are with runners that live


def missing(rows: list[SeatRow], *living: str, me: RunnerRow = A) -> str:
    return learned("a", view([me, B], rows)).missing(lambda runner: runner in living)


def test_shards_that_nobody_holds_or_one_who_may_be_dead_are_missing() -> None:
    rows = held(shards(3), {"shard:default:0": "a", "shard:default:1": "b"})
    assert missing(rows, "b") == "1 of 3 shards are not held by any runner yet"
    rows = held(shards(3), dict.fromkeys((row.name for row in shards(3)), "b"))
    assert missing(rows) == "3 shards are held by b, not known yet to be alive"
    assert missing(rows, "b") == ""


def test_what_we_could_not_hold_is_not_missing() -> None:
    """Shards of another group, singletons and crons, and all of it once we leave."""
    assert missing([*held(shards(1), {"shard:default:0": "a"}), *shards(1, group="other"), nightly()]) == ""
    assert missing(shards(2), me=runner("a", leaving=True)) == ""
    assert plans().missing(lambda _: True) == ""


# Definitions that come back


def test_an_older_definition_comes_back_when_nobody_has_the_current_one_M8() -> None:
    row = seat(NIGHTLY, fingerprint="v2")
    assert learned("a", view([A], [row])).readopt({NIGHTLY: "v1", "cron:other": "v1"}) == [NIGHTLY]
    new = runner("b", knows={NIGHTLY: "v2"}, leaving=True)
    assert learned("a", view([A, new], [row])).readopt({NIGHTLY: "v1"}) == []
    assert learned("a", view([A], [nightly()])).readopt({NIGHTLY: "v1"}) == []


# The cost


def test_targets_are_computed_anew_only_when_the_view_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []

    def counted(*args: Any) -> dict[str, str]:
        computed.append(args)
        return targets(*args)

    monkeypatch.setattr(assignment, "targets", counted)
    plan = plans()
    for second in range(3):
        plan.learn(view([A, B], shards(3)), now_ns=second * S, renewals=second)
        plan.acquire([], second * S)
        plan.give([], second)
    assert len(computed) == 1
    plan.learn(view([A], shards(3)), now_ns=3 * S, renewals=3)
    assert len(computed) == 2


def test_who_is_next_for_a_free_seat_is_computed_once_for_each_view(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []

    def counted(*args: Any) -> list[str]:
        computed.append(args)
        return order(*args)

    members = [A, B, C]
    _, second, third = lone(members, nightly())
    plan = learned(third, view(members, [nightly()]))
    monkeypatch.setattr(assignment, "order", counted)
    assert [plan.acquire([], second * S) for second in (6, 8, 10)] == [[], [], [NIGHTLY]]
    assert len(computed) == 1
    members = [each for each in members if each.id != second]
    plan.learn(view(members, [nightly()]), now_ns=11 * S, renewals=11)
    assert plan.acquire([], 11 * S) == [NIGHTLY]
    assert len(computed) == 2, "another runner has gone"
