"""Every rule of the judge, at the bound and past it: the same facts always give the same verdict (H1, H2, L4)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coterie.kernel.supervisor import FailingTask
from coterie.observe.facts import ClusterFacts, ExcludedSeat, FailingCalls, Incoming
from coterie.observe.health import BOUNDS, judge, liveness, readiness
from coterie.storage.contracts.jobs import QueueLimits
from tests.unit.observe import cluster_facts
from tests.unit.observe.cluster_facts import NOW, ago, cluster, cron, local, overdue, row, seat, shards, singleton

if TYPE_CHECKING:
    from coterie.observe.facts import QueueFacts
    from coterie.observe.health import Reason, Status


def told(facts: ClusterFacts) -> list[tuple[Status, str]]:
    """What is wrong, the worst first."""
    return [(reason.status, str(reason)) for reason in judge(facts).reasons]


def only(facts: ClusterFacts) -> Reason:
    """The one thing that is wrong."""
    (reason,) = judge(facts).reasons
    assert judge(facts).status == reason.status
    assert reason.hint, "every reason says what helps"
    return reason


# The whole


def test_a_cluster_in_which_nothing_is_wrong_is_healthy() -> None:
    """H2: with the figures that the first screen shows."""
    health = judge(cluster(local(), local("web-2"), singletons=(singleton(),), crons=(cron(),)))
    assert (health.status, health.reasons, health.is_healthy, health.at) == ("healthy", (), True, NOW)
    assert (health.runners, health.healthy_runners, health.shards, health.owned_shards) == (2, 2, 4, 4)
    assert (health.entities, health.singletons, health.crons) == (4, 1, 1)


def test_the_worst_reason_decides_and_comes_first() -> None:
    facts = cluster(local(loop_lag_s=3.0), singletons=(singleton(problem="no progress for 74s"),), dead=7)
    health = judge(facts)
    assert (health.status, [reason.status for reason in health.reasons]) == ("unhealthy", ["unhealthy", "degraded"])
    assert judge(cluster(local(loop_lag_s=3.0))).status == "degraded"


def test_versions_side_by_side_dead_letters_and_failures_are_no_reason() -> None:
    """A rolling deploy is no trouble; what was given up is told, not judged."""
    crons = (cron(last_error="ValueError: x", failures=3),)
    assert told(cluster(local(version="1"), local("web-2", version="2"), dead=10_000, crons=crons)) == []


def test_a_failover_is_said_for_an_hour_and_once_for_all_runners() -> None:
    reason = only(cluster(local(failed_over_s=7.0), local("web-2", failed_over_s=9.0)))
    assert (reason.status, reason.what) == ("degraded", "database")
    assert reason.problem.startswith("failed over 7s ago: work that was acknowledged and not replicated may be missing")
    assert told(cluster(local(failed_over_s=BOUNDS.failover_s + 1))) == []


# Runners


def test_without_runners_it_is_unhealthy_and_said_once() -> None:
    facts = ClusterFacts(now=NOW, view=cluster(rows=[], seats=shards(1, 2, holder=None)).view, runners={})
    assert told(facts) == [("unhealthy", "runners: there are none")]
    assert judge(facts).entities == 0


def test_a_runner_that_does_not_answer_is_named_and_its_entities_are_not_counted_as_none() -> None:
    facts = cluster(local(), None, rows=[row(), row("web-2")])
    reason = only(facts)
    assert (reason.status, str(reason), reason.runner) == ("degraded", "runner web-2: it does not answer", "web-2")
    health = judge(facts)
    assert (health.entities, health.runners, health.healthy_runners) == (None, 2, 1)


@pytest.mark.parametrize(
    ("wrong", "status", "problem"),
    [
        ({"loop_lag_s": 1.1}, "degraded", "its event loop was blocked for 1.1s"),
        ({"storage_s": 1.3}, "degraded", "the database takes 1.3s to answer it"),
        (
            {"storage_s": None, "storage_problem": "connection refused"},
            "unhealthy",
            "the database does not answer it: connection refused",
        ),
        ({"clock_offset_s": 2.0}, "degraded", "its clock is 2.0s ahead of the database's"),
        ({"clock_offset_s": -2.0}, "degraded", "its clock is 2.0s behind the database's"),
        ({"lease_left_s": None}, "degraded", "its lease has run out"),
        ({"lease_left_s": -0.1}, "degraded", "its lease has run out"),
        (
            {"is_ready": False, "missing": "it has not taken all of its seats yet", "up_s": 31.0},
            "degraded",
            "not ready for 31s: it has not taken all of its seats yet",
        ),
        ({"is_ready": False, "up_s": 31.0}, "degraded", "not ready for 31s: it is still starting"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "+".join(value),
)
def test_what_is_wrong_with_a_runner_is_told(wrong: dict[str, Any], status: Status, problem: str) -> None:
    reason = only(cluster(local(**wrong)))
    assert (reason.status, str(reason), reason.runner) == (status, f"runner web-1: {problem}", "web-1")


@pytest.mark.parametrize(
    "fine",
    [
        {"loop_lag_s": 1.0},
        {"storage_s": 1.0},
        {"storage_s": None},
        {"clock_offset_s": -1.0},
        {"clock_offset_s": None},
        {"is_ready": False, "missing": "it is starting", "up_s": 30.0},
        {"is_draining": True, "lease_left_s": None},
        {"is_ready": False, "is_draining": True},
    ],
    ids=lambda value: "+".join(value),
)
def test_what_is_at_its_bound_or_not_known_or_on_its_way_is_no_reason(fine: dict[str, Any]) -> None:
    """A runner that starts or drains is what every deploy shows."""
    assert told(cluster(local(**fine))) == []


@pytest.mark.parametrize(
    ("wrong", "healthy"),
    [
        ({}, 1),
        ({"is_ready": False}, 0),
        ({"lease_left_s": None}, 0),
        ({"lease_left_s": 0.0}, 0),
        ({"loop_lag_s": 2.0}, 0),
        ({"storage_problem": "x"}, 0),
        ({"clock_offset_s": 9.0}, 1),
        ({"is_draining": True}, 1),
    ],
    ids=lambda value: "" if isinstance(value, int) else "+".join(value) or "well",
)
def test_a_runner_is_healthy_if_it_answers_is_ready_and_turns_and_holds_its_lease(
    wrong: dict[str, Any], healthy: int
) -> None:
    assert judge(cluster(local(**wrong))).healthy_runners == healthy


# Shards


def test_shards_without_owner_are_named_up_to_three_and_counted() -> None:
    facts = cluster(seats=[*shards(1), *shards(2, 3, 4, 5, 6, holder=None)])
    reason = only(facts)
    assert (reason.status, reason.runner) == ("degraded", None)
    assert str(reason) == "5 shards: no owner (default:2, default:3, default:4 and 2 more)"
    assert (judge(facts).shards, judge(facts).owned_shards) == (6, 1)
    one = cluster(seats=[*shards(1), *shards(2, holder=None)])
    assert str(only(one)) == "1 shard: no owner (default:2)"


@pytest.mark.parametrize(
    ("free_s", "status"),
    [(0.0, None), (10.0, None), (10.1, "degraded"), (None, "degraded"), (60.0, "degraded"), (60.1, "unhealthy")],
)
def test_a_takeover_under_way_is_no_reason_where_that_can_be_known_and_one_that_lasts_is(
    free_s: float | None, status: Status | None
) -> None:
    """Nobody knows (None): then it is told, as it may have been so for long."""
    facts = cluster(seats=[*shards(1), *shards(2, holder=None)], free_s={"shard:default:2": free_s})
    assert [reason.status for reason in judge(facts).reasons] == ([] if status is None else [status])


def test_a_group_all_of_whose_shards_have_no_owner_is_unhealthy_at_once() -> None:
    """Of each group by itself; where nobody serves it, that is said."""
    facts = cluster(seats=[*shards(1, 2), *shards(1, 2, group="gpu", holder=None)])
    reason = only(facts)
    assert (reason.status, str(reason)) == ("unhealthy", "2 shards: no owner (gpu:1, gpu:2)")
    assert "no runner serves group 'gpu'" in reason.hint
    served = cluster(rows=[row(groups=("default", "gpu"))], seats=[*shards(1, group="gpu", holder=None)])
    assert "coterie shards" in only(served).hint
    moving = cluster(seats=shards(1, holder=None), free_s={"shard:default:1": 3.0})
    assert told(moving) == []


# Entities


def test_entities_that_cannot_begin_are_told_by_their_type_with_the_error_and_what_to_do() -> None:
    """Every call of such an entity fails, though all runners are well."""
    newer = {"Account": {"NewerVersion": 7, "KeyError": 1}}
    health = judge(
        cluster(local(failing_entities=newer), local("web-2", failing_entities={"Account": {"NewerVersion": 3}}))
    )
    assert health.status == "degraded"
    assert [(str(reason), reason.runner) for reason in health.reasons] == [
        ("entity Account: 1 entity cannot begin on web-1: KeyError", "web-1"),
        ("entity Account: 10 entities cannot begin on web-1, web-2: NewerVersion", None),
    ]
    assert [reason.hint for reason in health.reasons] == [
        "the log of web-1 has the stack of the first one",
        "a newer program wrote their state: roll the program forward, or add a migration",
    ]


def failing(**facts: Any) -> dict[str, FailingCalls]:
    return {"Account": FailingCalls(**{"calls": 5, "error": "KeyError", "for_s": 60.0, "ago_s": 300.0, **facts})}


def test_a_type_whose_calls_all_fail_is_told_with_their_number_and_error() -> None:
    reason = only(cluster(local(failing_calls=failing()), local("web-2")))
    assert (reason.status, reason.runner) == ("degraded", "web-1")
    assert str(reason) == "entity Account: all its calls fail on web-1, 5 within 60s: KeyError"
    assert reason.hint == "the log of web-1 has their stacks"
    both = cluster(local(failing_calls=failing()), local("web-2", failing_calls=failing(calls=7, for_s=90.0)))
    assert told(both) == [("degraded", "entity Account: all its calls fail on web-1, web-2, 12 within 90s: KeyError")]
    assert only(both).runner is None


def test_few_failures_a_bad_moment_and_what_is_long_over_are_no_reason() -> None:
    for facts in ({"calls": 4}, {"for_s": 59.0}, {"ago_s": 301.0}, {"calls": 4, "is_first": True}):
        assert told(cluster(local(failing_calls=failing(**facts)))) == []
    assert only(cluster(local(failing_calls=failing(for_s=1.0, is_first=True)))).status == "degraded"


# Singletons


def test_h1_a_singleton_without_progress_is_unhealthy_with_its_leader_and_what_moves_it() -> None:
    stale = singleton(problem="no heartbeat for 74s (expected every 30s)")
    reason = only(cluster(singletons=(singleton("other"), stale)))
    assert (reason.status, reason.runner) == ("unhealthy", "web-1")
    expected = "singleton importer: no heartbeat for 74s (expected every 30s); leader web-1, epoch 17"
    assert str(reason) == expected
    assert reason.hint == "web-1 still holds it: coterie singletons resign importer moves it"


def test_h2_what_never_ran_is_said_as_such() -> None:
    never = singleton(problem="never executed in 70s (expected every 30s)", last_run_at=None, last_heartbeat_at=None)
    assert "never executed in 70s" in str(only(cluster(singletons=(never,))))
    unrun = cron(problem="overdue by 70s: web-1 holds it", last_run_at=None)
    assert str(only(cluster(crons=(unrun,)))) == "cron nightly: overdue by 70s: web-1 holds it; never executed"


def nobody_leads(**more: Any) -> Any:
    return singleton(leader=None, problem="nobody leads it", **more)


@pytest.mark.parametrize(
    ("free_s", "silent_s", "problem"),
    [
        (3.0, 59.0, None),
        (10.0, 59.0, None),
        (10.1, 59.0, "nobody leads it"),
        (None, 59.0, "nobody leads it"),
        (3.0, 61.0, "no progress for 61s (expected every 30s); nobody leads it"),
    ],
)
def test_h1_a_takeover_is_no_reason_and_gives_no_grace_for_progress(
    free_s: float | None, silent_s: float, problem: str | None
) -> None:
    """What was silent for too long before its leader was lost stays unhealthy while another one takes over."""
    info, knows = nobody_leads(last_heartbeat_at=ago(silent_s)), {"singleton:importer": "1"}
    facts = cluster(rows=[row(knows=knows)], singletons=(info,), free_s={"singleton:importer": free_s})
    assert told(facts) == ([] if problem is None else [("unhealthy", f"singleton importer: {problem}")])


@pytest.mark.parametrize("silent", [{"expected_interval": None}, {"last_heartbeat_at": None}], ids=["any", "never"])
def test_without_an_interval_or_any_progress_a_takeover_is_just_that(silent: dict[str, Any]) -> None:
    info = nobody_leads(**{"last_heartbeat_at": ago(9999), **silent})
    assert told(cluster(singletons=(info,), free_s={"singleton:importer": 2.0})) == []


def test_why_nobody_leads_is_told_as_far_as_it_is_known() -> None:
    """A definition that no program has any more may have been removed: that is not for probes."""
    knows = {"singleton:importer": "1"}
    able = only(cluster(rows=[row(knows=knows)], singletons=(nobody_leads(),)))
    assert (able.status, able.hint) == ("unhealthy", "web-1 may take it: the logs there say why not")
    elsewhere = only(cluster(rows=[row(knows=knows)], singletons=(nobody_leads(group="gpu"),)))
    assert elsewhere.status == "unhealthy"
    assert "no runner that defines it serves group 'gpu'" in elsewhere.hint
    unknown = only(cluster(singletons=(nobody_leads(),)))
    assert (unknown.status, "no runner's program defines it" in unknown.hint) == ("degraded", True)


def out(cause: str, *, left_s: float | None = 12.0, times: int = 1, seat: str = "singleton:importer") -> ExcludedSeat:
    return ExcludedSeat(seat=seat, cause=cause, times=times, left_s=left_s, error="OSError: the secret is 7")


def test_a_singleton_on_which_every_runner_failed_is_told_at_once_with_the_reason() -> None:
    """Nobody is about to take it: it is no takeover. What the program said is not told."""
    rows = [row(each, knows={"singleton:importer": "1"}) for each in ("web-1", "web-2", "web-3")]
    said = [
        local("web-1", excluded=(out("failed", times=2), out("failed", seat="singleton:x"))),
        local("web-2", excluded=(out("refused", left_s=None),)),
        local("web-3", excluded=(out("failed"),)),
    ]
    free: dict[str, Any] = {"singletons": (nobody_leads(),), "free_s": {"singleton:importer": 2.0}}
    reason = only(cluster(*said, rows=rows, **free))
    assert reason.status == "unhealthy"
    assert reason.problem.split("; ") == [
        "nobody leads it",
        "web-1 failed 2 times with OSError, and takes it again in 12s",
        "web-2 cannot begin it: OSError",
        "web-3 failed with OSError, and takes it again in 12s",
    ]
    assert reason.hint == "coterie singletons show importer has the error"
    for one in (local("web-3"), local("web-3", excluded=(out("resigned"),)), None):  # it may take it any moment
        assert not [each for each in judge(cluster(*said[:2], one, rows=rows, **free)).reasons if each.runner is None]
    late = {**free, "free_s": {"singleton:importer": 11.0}}
    assert (
        "web-3 resigned, and takes it again in 12s"
        in only(cluster(*said[:2], local("web-3", excluded=(out("resigned"),)), rows=rows, **late)).problem
    )


def test_a_cron_that_every_runner_gave_up_is_told_at_once_with_the_reason() -> None:
    rows = [row(knows={"cron:nightly": "1"})]
    info = cron(runner=None, problem="nobody holds it")
    said = local(excluded=(out("failed", seat="cron:nightly"),))
    reason = only(cluster(said, rows=rows, crons=(info,), free_s={"cron:nightly": 2.0}))
    assert "nobody holds it; last run 7200s ago; web-1 failed with OSError" in reason.problem
    assert reason.hint == "coterie cron show nightly has the error"


# Crons


def test_h1_a_cron_whose_next_tick_is_overdue_is_unhealthy() -> None:
    reason = only(cluster(crons=(cron(problem="overdue by 420s: web-1 holds it"),)))
    assert (reason.status, reason.runner) == ("unhealthy", "web-1")
    assert str(reason) == "cron nightly: overdue by 420s: web-1 holds it; last run 7200s ago"
    assert "coterie cron show nightly" in reason.hint


@pytest.mark.parametrize(
    ("free_s", "late_s", "is_told"),
    [(3.0, -5.0, False), (3.0, 9.0, False), (3.0, 11.0, True), (10.1, -5.0, True), (None, -5.0, True)],
)
def test_a_cron_that_nobody_holds_is_told_unless_it_moves_and_no_tick_is_late(
    free_s: float | None, late_s: float, is_told: bool
) -> None:
    info = cron(runner=None, problem="nobody holds it", next_at=NOW - timedelta(seconds=late_s))
    facts = cluster(rows=[row(knows={"cron:nightly": "1"})], crons=(info,), free_s={"cron:nightly": free_s})
    expected = [("unhealthy", "cron nightly: nobody holds it; last run 7200s ago")]
    assert told(facts) == (expected if is_told else [])


@pytest.mark.parametrize(
    ("schedule", "ran_s", "beat_s", "running", "is_told"),
    [
        ("* * * * *", 120, 120, 1, False),  # the second tick is now
        ("* * * * *", 121, 121, 1, True),
        ("* * * * *", 121, None, 0, False),
        ("* * * * *", 9999, 9999, 3, True),
        ("* * * * *", 9999, 120, 1, False),  # slow, and it says so
        ("* * * * *", 9999, 121, 1, True),
        ("50 * * * * *", 71, 71, 1, False),  # 10 s ago: it may be on its way
        ("49 * * * * *", 72, 72, 1, True),
    ],
)
def test_h1_a_run_that_gives_no_sign_while_two_ticks_pass_is_unhealthy_where_it_runs(
    schedule: str, ran_s: float, beat_s: float | None, running: int, is_told: bool
) -> None:
    """With `overlap` skip or queue no other begins."""
    beat_at = None if beat_s is None else ago(beat_s)
    info = cron(schedule=schedule, last_run_at=ago(ran_s), last_heartbeat_at=beat_at, running=running)
    facts = cluster(crons=(info,))
    problem = f"a run goes on without a heartbeat while two ticks have passed; last run {ran_s}s ago"
    assert told(facts) == ([("unhealthy", f"cron nightly: {problem}")] if is_told else [])
    assert bool(readiness(local(), facts)) == is_told


@pytest.mark.parametrize("unknown", [{"last_run_at": None}, {"schedule": ""}], ids=["never", "schedule"])
def test_a_run_of_which_too_little_is_known_is_no_reason(unknown: dict[str, Any]) -> None:
    info = cron(**{"schedule": "* * * * *", "last_run_at": ago(9999), "running": 1, **unknown})
    assert told(cluster(crons=(info,))) == []


def test_a_cron_that_is_paused_is_no_reason() -> None:
    assert told(cluster(crons=(cron(paused_at=ago(999), next_at=None, runner=None, problem="nobody holds it"),))) == []


# Messages


@pytest.mark.parametrize(
    ("late_s", "status"), [(30.0, None), (30.1, "degraded"), (300.0, "degraded"), (300.1, "unhealthy")]
)
def test_the_message_that_is_due_longest_decides(late_s: float, status: Status | None) -> None:
    reasons = judge(cluster(overdue=(overdue(late_s),))).reasons
    assert [reason.status for reason in reasons] == ([] if status is None else [status])


def test_the_oldest_message_is_named_with_its_runner_and_how_many_shards_have_such() -> None:
    reason = only(cluster(overdue=(overdue(95.0, shard=2), overdue(40.0, shard=3), overdue(5.0, shard=4))))
    assert reason.runner == "web-1"
    expected = "due for 95s and not done, on web-1; so do messages of 1 more shards"
    assert str(reason) == f"message Account/alice.charge: {expected}"
    assert reason.hint == "coterie messages show id-2"
    unheld = only(cluster(overdue=(overdue(95.0, shard=99),)))
    assert (unheld.runner, "nobody holds its shard" in unheld.problem) == (None, True)


@pytest.mark.parametrize(("late_s", "status"), [(600.0, None), (600.1, "degraded"), (1e6, "degraded")])
def test_pruning_that_is_behind_is_told(late_s: float, status: Status | None) -> None:
    reasons = judge(cluster(unpruned={"units": late_s, "kv": 3.0})).reasons
    assert [reason.status for reason in reasons] == ([] if status is None else [status])
    for reason in reasons:
        assert reason.what == "table units"
        assert f"should have been deleted {late_s:.0f}s ago" in reason.problem


@pytest.mark.parametrize(("waited_s", "status"), [(29.0, None), (31.0, "degraded"), (90_000.0, "degraded")])
def test_o2_what_sql_has_sent_and_nobody_takes_is_told_and_makes_no_runner_unready(
    waited_s: float, status: Status | None
) -> None:
    waiting = [Incoming(id=str(number), what=f"entity T{number}", waited_s=waited_s - number) for number in range(5)]
    facts = cluster(incoming=(*waiting, Incoming(id="w", what="workflow W", waited_s=1.0)))
    reasons = [reason for reason in judge(facts).reasons if "SQL" in reason.what]
    assert {reason.status for reason in reasons} == (set() if status is None else {status})
    if waited_s > 40:
        assert [str(reason) for reason in reasons[2:]] == [
            "calls from SQL to entity T2: the oldest waits for 89998s, and no runner moves it",
            "calls from SQL: calls to 2 more types wait",
        ]
    assert unready(facts) == []


# Readiness


def unready(facts: ClusterFacts | None, *, age_s: float = 0.0, **wrong: Any) -> list[str]:
    reasons = readiness(local(**wrong), facts, age_s=age_s)
    assert {reason.status for reason in reasons} <= {"unhealthy"}
    return [str(reason) for reason in reasons]


def test_l4_a_runner_that_can_work_is_ready() -> None:
    everything = cluster(singletons=(singleton(),), crons=(cron(),), overdue=(overdue(29.0),))
    assert unready(everything) == []
    assert unready(everything, age_s=10.0) == []


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"is_draining": True}, "it is draining"),
        (
            {"is_ready": False, "missing": "the database is not open yet"},
            "it is not ready: the database is not open yet",
        ),
        ({"is_ready": False}, "it is not ready: it is still starting"),
        ({"lease_left_s": None}, "its lease has run out"),
        ({"lease_left_s": 0.0}, "its lease has run out"),
        ({"storage_problem": "no answer for 3.4s"}, "the database does not answer: no answer for 3.4s"),
    ],
    ids=["draining", "starting", "begun", "no lease", "lease over", "storage"],
)
def test_l4_a_runner_that_cannot_work_is_not_ready(wrong: dict[str, Any], problem: str) -> None:
    """Whether it has looked at the database or not."""
    for facts in (cluster(), None):
        assert unready(facts, **wrong) == [f"runner web-1: {problem}"]


def test_l4_facts_that_are_missing_or_too_old_prove_nothing() -> None:
    assert unready(None) == ["runner web-1: the database has not been read yet"]
    assert unready(cluster(), age_s=12.2) == ["runner web-1: the database was last read 12s ago"]


def test_h1_a_stale_singleton_or_cron_turns_off_the_runner_that_hosts_it_and_no_other() -> None:
    stale = singleton(problem="no progress for 74s (expected every 30s)")
    late = cron(problem="overdue by 420s: web-1 holds it")
    facts = cluster(local(), local("web-2"), singletons=(stale,), crons=(late,))
    assert [reason.what for reason in readiness(local(), facts)] == ["singleton importer", "cron nightly"]
    assert readiness(local("web-2"), facts) == ()


def test_h1_another_runner_of_the_same_name_is_not_the_one() -> None:
    """During a deploy two may have one name: who holds the seat decides."""
    facts = cluster(singletons=(singleton(problem="no progress for 74s"),))
    assert readiness(local(runner="another"), facts) == ()


def test_l4_messages_that_are_stuck_on_its_own_shards_turn_a_runner_off() -> None:
    mine, others = overdue(301.0, shard=1), overdue(999.0, shard=2)
    seats = [seat("shard:default:1"), seat("shard:default:2", "web-2")]
    facts = cluster(local(), local("web-2"), seats=seats, overdue=(others, mine))
    assert unready(facts) == ["message Account/alice.charge: due for 301s and not done, on web-1"]
    late = cluster(local(), local("web-2"), seats=seats, overdue=(others, overdue(300.0, shard=1)))
    assert unready(late) == []


def test_what_is_degraded_or_wrong_elsewhere_does_not_turn_a_runner_off() -> None:
    facts = cluster(local(loop_lag_s=5.0, clock_offset_s=9.0), seats=shards(1, 2, holder=None), dead=3)
    assert judge(facts).status == "unhealthy"
    assert unready(facts, loop_lag_s=5.0, clock_offset_s=9.0) == []


def test_l4_whoever_can_answer_lives_whatever_else_is_wrong() -> None:
    """A database that is away must not start everybody anew."""
    assert liveness(local(is_ready=False, lease_left_s=None, storage_problem="away", loop_lag_s=60.0)) == ()


# Standing tasks


def test_a_task_that_failed_once_is_told_and_turns_nothing_off() -> None:
    failed = FailingTask(name="sweep crons", failures=1, error="OSError: gone")
    facts = cluster(local(failing=(failed,)))
    reason = only(facts)
    assert (reason.status, reason.problem) == (
        "degraded",
        "its task 'sweep crons' failed within the last minute: OSError: gone",
    )
    assert unready(facts, failing=(failed,)) == []
    assert liveness(local(failing=(failed,))) == ()
    assert judge(facts).healthy_runners == 1


def test_a_task_of_the_runner_that_keeps_failing_makes_it_unready_and_its_liveness_names_it() -> None:
    failed = FailingTask(name="settle seats", failures=3, error="ValueError: odd", keeps_failing=True)
    facts = cluster(local(failing=(failed,)))
    problem = "its task 'settle seats' keeps failing, 3 times within a minute: ValueError: odd"
    assert only(facts).problem == "its task 'settle seats' failed 3 times within a minute: ValueError: odd"
    assert unready(facts, failing=(failed,)) == [f"runner web-1: {problem}"]
    [reason] = liveness(local(failing=(failed,)))
    assert (reason.status, reason.problem) == ("degraded", problem)
    assert [each.hint for each in readiness(local(failing=(failed,)), facts)] == [reason.hint]
    assert judge(facts).healthy_runners == 0


def test_a_task_of_a_seat_that_keeps_failing_turns_no_runner_off() -> None:
    failed = FailingTask(name="hold cron", seat="cron:x", failures=3, error="ValueError: odd", keeps_failing=True)
    facts = cluster(local(failing=(failed,)))
    assert only(facts).problem == "its task 'hold cron' of cron:x failed 3 times within a minute: ValueError: odd"
    assert unready(facts, failing=(failed,)) == []
    assert liveness(local(failing=(failed,))) == ()


def test_the_bounds_can_be_told() -> None:
    assert BOUNDS.takeover_s == 10.0
    assert BOUNDS.stuck_s > BOUNDS.late_s


# Queues


def queue_problems(*queues: QueueFacts, **more: Any) -> dict[str, str]:
    seats = [cluster_facts.seat(name) for each in queues for name in each.seats]
    judged = judge(cluster_facts.cluster(queues=queues, **{"seats": seats, **more}))
    assert {each.status for each in judged.reasons} <= {"degraded"}
    assert not any(each.runner for each in judged.reasons), "none of it makes a runner unready"
    return {each.what: each.problem for each in judged.reasons}


def test_a_queue_whose_oldest_job_waits_longer_than_expected_is_degraded() -> None:
    slow = cluster_facts.queue(ready=31, claimed=20, oldest_s=95.0, expected_wait_s=60.0)
    problem = "its oldest job waits for 95s (expected within 60s); 31 jobs waiting, 20 of 20 running"
    assert queue_problems(slow) == {"queue emails": problem}
    for quick in (
        msgspec.structs.replace(slow, oldest_s=60.0),
        msgspec.structs.replace(slow, oldest_s=None, ready=0),
        msgspec.structs.replace(slow, expected_wait_s=None),
        cluster_facts.queue(claimed=20, ready=10_000, oldest_s=1e6),
    ):
        assert queue_problems(quick) == {}


def test_a_paused_queue_is_well_whatever_waits() -> None:
    slow = cluster_facts.queue(ready=31, parked=2, oldest_s=95.0, expected_wait_s=60.0, paused_at=ago(90))
    assert queue_problems(slow) == {}
    assert queue_problems(slow, seats=cluster_facts.shards(1)) == {}, "nor does anybody have to hold it"


def test_a_queue_that_no_runner_holds_is_degraded_once_jobs_wait() -> None:
    free = [cluster_facts.seat("queue:emails", None)]
    waiting = cluster_facts.queue(ready=1)
    problem = {"queue emails": "1 job waiting, and no runner claims its jobs"}
    assert queue_problems(waiting, seats=free) == problem
    assert queue_problems(waiting, seats=[]) == problem
    assert queue_problems(waiting, seats=free, free_s={"queue:emails": 3.0}) == {}, "a takeover"
    assert queue_problems(cluster_facts.queue(), seats=free) == {}
    names = ("queue:default:0", "queue:default:1")
    some = cluster_facts.queue("default:*", seats=names, ready=10_000)
    seats = [cluster_facts.seat(names[0]), cluster_facts.seat(names[1], None)]
    assert queue_problems(some, seats=seats) == {
        "queue default:*": "10,000 jobs or more waiting, and 1 of 2 seats free"
    }


def test_jobs_that_no_runner_has_the_task_of_are_reported_with_their_tasks() -> None:
    tasks = ("a", "b", "c", "d")
    parked = cluster_facts.queue(parked=7, parked_tasks=tasks)
    assert queue_problems(parked) == {"queue emails": "7 jobs parked: no runner has task a, b, c and 1 more"}


@pytest.mark.parametrize(
    ("limits", "claimed", "hint"),
    [
        ({"concurrency": 20}, 20, "coterie queues limits emails --concurrency 40 allows more"),
        ({"rate": 50.0, "burst": 5.0}, 3, "it may start 50/s"),
        ({}, 3, "more runners, or more slots"),
    ],
)
def test_the_hint_of_a_slow_queue_names_what_holds_it_up(limits: dict[str, Any], claimed: int, hint: str) -> None:
    slow = cluster_facts.queue(
        ready=9, claimed=claimed, oldest_s=95.0, expected_wait_s=60.0, limits=QueueLimits(**limits)
    )
    seats = [cluster_facts.seat("queue:emails")]
    (reason,) = judge(cluster_facts.cluster(queues=(slow,), seats=seats)).reasons
    assert hint in reason.hint
