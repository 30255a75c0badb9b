"""Lanes: in which order jobs start, within a partition and between them, and what is known of what is stored."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from coterie.storage.contracts.jobs import JobHead, Partition
from coterie.tasks.dispatcher import lanes as module
from coterie.tasks.dispatcher.lanes import Lanes

if TYPE_CHECKING:
    import pytest

NOW = 1_000_000.0
AGE_S = 3600.0
_numbers = count()


def head(
    id: str = "", part: str = "", *, due_s: float = NOW, priority: int = 0, task: str = "mail", lost: int = 0
) -> JobHead:
    rank_s = due_s - priority * AGE_S
    return JobHead(id or f"{next(_numbers):08}", part, task, "", rank_s, lost=lost, priority=priority)


def lanes(*heads: JobHead, limit: int | None = None) -> Lanes:
    made = Lanes(is_picky=lambda each: each.lost > 0, age_s=AGE_S)
    made.is_complete = True
    made.add(heads, NOW)
    made.limit(limit, NOW)
    return made


def picked(of: Lanes, most: int = 100, *, now_s: float = NOW, without: str = "") -> list[str]:
    return [pick.head.id for pick in of.pick(most, now_s, lambda each: None if each.task == without else "r1")]


# Order


def test_within_a_partition_jobs_start_in_order_of_rank_then_id() -> None:
    found = lanes(head("d", due_s=NOW - 5), head("b"), head("a"), head("c", due_s=NOW - 9))
    assert picked(found) == ["c", "d", "a", "b"]


def test_a_higher_priority_starts_first_and_waiting_raises_it() -> None:
    old, high = head("old", due_s=NOW - 2 * AGE_S), head("high", priority=1)
    assert picked(lanes(old, high)) == ["old", "high"]
    assert picked(lanes(head("young", due_s=NOW - 0.5 * AGE_S), high)) == ["high", "young"]


def test_partitions_of_one_level_take_turns() -> None:
    found = lanes(*(head(f"{part}{n}", part) for part in "ab" for n in range(3)), head("c0", "c"))
    assert picked(found) == ["a0", "b0", "c0", "a1", "b1", "a2", "b2"]


def test_a_partition_that_was_served_waits_for_its_turn_though_it_was_empty_meanwhile() -> None:
    found = lanes(*(head(f"a{n}", "a") for n in range(3)), head("b0", "b"))
    assert picked(found, 2) == ["a0", "b0"]
    found.add([head("b1", "b")], NOW)
    assert picked(found, 2) == ["a1", "b1"]


def test_between_partitions_the_level_of_the_first_job_decides() -> None:
    found = lanes(head("a", "a"), head("b", "b", priority=2), head("c", "c", priority=1))
    assert picked(found) == ["b", "c", "a"]


def test_waiting_raises_a_partition_up_to_the_highest_priority_that_waits_and_no_further() -> None:
    backlog = [head(f"a{n}", "a", due_s=NOW - 9 * AGE_S + n) for n in range(3)]
    found = lanes(*backlog, head("b0", "b"), head("b1", "b"))
    assert picked(found) == ["a0", "b0", "a1", "b1", "a2"], "all have the same priority"
    found = lanes(*backlog, head("b0", "b", priority=3), head("c", "c", priority=2))
    assert picked(found, 2) == ["a0", "b0"], "it has risen to level 3, and c has not"
    assert picked(found) == ["c", "a1", "a2"], "now the highest one is 2"


def test_lanes_rise_while_they_wait() -> None:
    heads = head("a", "a"), head("b", "b", priority=1, due_s=NOW + AGE_S)
    assert picked(lanes(*heads), 1) == ["b"]
    found = lanes(*heads)
    assert picked(found, 1, now_s=NOW + 1.5 * AGE_S) == ["a"], "both are of level 1, and it is the turn of a"


def test_a_task_without_room_holds_up_nobody() -> None:
    found = lanes(head("a", "zip", task="zip"), head("b", "mail"), head("c", "mail"))
    assert picked(found, without="zip") == ["b", "c"]
    assert picked(found) == ["a"]


# Limits of partitions


def test_of_a_partition_no_more_start_than_its_limit_says() -> None:
    found = lanes(*(head(f"{part}{n}", part) for part in "ab" for n in range(3)), limit=2)
    assert picked(found) == ["a0", "b0", "a1", "b1"]
    found.end("a", NOW)
    assert picked(found) == ["a2"]
    found.limit(None, NOW)
    assert picked(found) == ["b2"]


def test_jobs_that_others_have_claimed_count() -> None:
    found = lanes(head("a0", "a"), head("b0", "b"), limit=2)
    for _ in range(2):
        found.begin("a", NOW)
    assert picked(found) == ["b0"]
    assert found.claimed("a") == 2


def test_where_one_job_runs_at_a_time_a_hint_makes_the_partition_be_read() -> None:
    found = lanes(limit=1)
    found.add([head("b", "acme")], NOW)
    assert picked(found) == [], "an earlier one may be stored"
    assert found.reading(10) == ["acme"]
    late = head("c", "acme")
    found.add([late], NOW)
    found.replace(Partition("acme", (head("a", "acme"), head("b", "acme")), False), NOW, new=[late])
    assert picked(found) == ["a"]
    assert found.reading(10) == ["acme"], "c has come while it was read"


def test_a_hint_without_a_rank_makes_the_partition_be_read() -> None:
    found = lanes(head("b"))
    unranked = JobHead("c", "", "mail", "f1", 0.0)
    found.add([unranked], NOW)
    assert found.reading(9) == [""]
    found.replace(Partition("", (head("b"),), False), NOW, new=[unranked])
    assert picked(found) == ["b"], "by its hint c would be the first"


# Suspects


def test_a_picky_job_begins_no_earlier_than_its_rank_and_is_overtaken_while_no_runner_takes_it() -> None:
    found = lanes(head("a"), head("b", lost=1), head("c"), head("d"))

    def place(each: JobHead) -> str | None:
        return None if each.lost and not free else "r1"

    free = True
    assert [each.head.id for each in found.pick(1, NOW, place)] == ["a"]
    free = False
    assert [each.head.id for each in found.pick(1, NOW, place)] == ["c"]
    free = True
    assert [each.head.id for each in found.pick(2, NOW, place)] == ["b", "d"]


def test_a_lane_of_picky_jobs_alone_holds_up_no_other_lane() -> None:
    found = lanes(head("a", "a", lost=1), head("b", "b"))
    assert [each.head.id for each in found.pick(9, NOW, lambda each: None if each.lost else "r1")] == ["b"]
    assert picked(found) == ["a"]


# What is known of what is stored


def test_a_lane_that_has_more_than_is_in_memory_takes_no_later_job() -> None:
    found = lanes()
    found.replace(Partition("", (head("b"), head("d")), True), NOW)
    found.add([head("e"), head("c"), head("a")], NOW)
    assert picked(found) == ["a", "b", "c", "d"]
    assert found.wants


def test_until_all_partitions_are_known_a_hint_makes_its_partition_be_read() -> None:
    found = Lanes(is_picky=lambda _: False)
    found.add([head("b", "p")], NOW)
    assert (picked(found), found.reading(9)) == ([], ["p"])
    found.replace(Partition("p", (head("a", "p"), head("b", "p")), False), NOW)
    assert picked(found) == ["a", "b"]


def test_a_read_replaces_what_was_known_up_to_its_last_job() -> None:
    found = lanes(*(head(each) for each in "abcdef"))
    found.replace(Partition("", (head("a"), head("c"), head("cc")), True), NOW)
    assert picked(found) == ["a", "c", "cc", "d", "e", "f"], "b is not ready any more, cc is new"


def test_a_read_to_the_end_replaces_all() -> None:
    found = lanes(*(head(each) for each in "abc"))
    found.replace(Partition("", (head("b"),), False), NOW)
    assert picked(found) == ["b"]
    assert found.parts == 1, "one is claimed"


def test_what_was_claimed_or_came_during_a_read_is_not_undone_by_it() -> None:
    found = lanes(head("a"), head("b"))
    assert picked(found, 1) == ["a"]
    found.replace(Partition("", (head("a"), head("b")), False), NOW, but=["a"], new=[head("c")])
    assert picked(found) == ["b", "c"]


def test_a_job_that_was_not_claimed_is_ready_as_before() -> None:
    found = lanes(head("a"), head("b"), limit=1)
    (pick,) = found.pick(9, NOW, lambda _: "r1")
    found.put_back(pick.head, NOW)
    assert found.claimed("") == 0
    assert picked(found) == ["a"]


def test_a_job_that_is_over_is_removed() -> None:
    found = lanes(head("a"), head("b", lost=1))
    assert found.remove("b", NOW) == head("b", lost=1)
    assert found.remove("b", NOW) is None
    assert picked(found) == ["a"]


def test_a_partition_without_jobs_is_forgotten() -> None:
    found = lanes(head("a", "p"))
    assert picked(found) == ["a"]
    found.end("p", NOW)
    assert (found.parts, found.is_open, len(found)) == (0, False, 0)


def test_partitions_that_a_sweep_did_not_find() -> None:
    found = lanes(head(part="a"), head(part="b"), head(part="c"), head(part="d"))
    assert found.absent("a", "c", {"b"}) == ["c"]
    assert found.absent(None, None, {"b"}) == ["a", "c", "d"]


def test_a_long_lane_is_cut_and_read_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LANE_MOST", 8)
    found = lanes(*(head() for _ in range(9)))
    assert len(found) == 4
    assert len(picked(found)) == 4
    assert found.reading(9) == [""]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JOBS_MOST", 50)
    monkeypatch.setattr(module, "PARTS_MOST", 20)
    found = lanes(*(head(part=f"{n % 30:02}") for n in range(600)))
    assert found.parts == 20
    assert len(found) <= 50
    assert not found.is_complete
    assert found.overflowed


def test_the_oldest_job_is_the_one_that_was_due_first() -> None:
    found = lanes(head(part="a", due_s=NOW - 9, priority=-5), head(part="b", due_s=NOW - 3, priority=9))
    assert found.oldest_due_s() == NOW - 9
    assert found.of_tasks({"mail"}) != []
    assert found.tasks() == {"mail"}


JOBS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(-2, 2), st.floats(0, 5 * AGE_S), st.integers(0, 1)),
    max_size=30,
)


@given(JOBS, st.lists(st.sampled_from("apeb"), max_size=90), st.integers(1, 4), st.one_of(st.none(), st.integers(2, 3)))
def test_any_course_of_things_keeps_the_order_the_limits_and_the_counts(
    jobs: list[tuple[str, int, float, int]], steps: list[str], most: int, limit: int | None
) -> None:
    heads = [
        head(f"{n:03}", part, priority=priority, due_s=NOW - waited_s, lost=lost)
        for n, (part, priority, waited_s, lost) in enumerate(jobs)
    ]
    found = lanes(limit=limit)
    waiting: dict[str, JobHead] = {}
    claimed: list[JobHead] = []
    for step in [*steps, *("a" * len(heads)), *("pe" * len(heads)), *("e" * len(heads))]:
        if step == "a" and heads:
            waiting[heads[-1].id] = heads[-1]
            found.add([heads.pop()], NOW)
        elif step == "e" and claimed:
            found.end(claimed.pop(0).part, NOW)
        elif step == "b" and claimed:
            back = claimed.pop()
            waiting[back.id] = back
            found.put_back(back, NOW)
        elif step == "p":
            for next_, _ in found.pick(most, NOW, lambda _: "r1"):
                first = min((each.rank_s, each.id) for each in waiting.values() if each.part == next_.part)
                assert (next_.rank_s, next_.id) == first
                claimed.append(waiting.pop(next_.id))
        counts = Counter(each.part for each in claimed)
        assert all(found.claimed(part) == counts[part] for part in "abc")
        assert limit is None or all(number <= limit for number in counts.values())
        assert len(found) == len(waiting)
    assert (waiting, found.parts, found.is_open) == ({}, 0, False)
