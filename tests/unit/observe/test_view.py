"""The read model: pages from facts, what nobody knows as null, no texts of the program where none are wanted."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coterie.cron.api import TickInfo
from coterie.entities.persisted.api import FailedAttempt, MessageInfo
from coterie.kernel.ids import MessageId, Seat
from coterie.observe.failures import worded
from coterie.observe.health import judge
from coterie.observe.jobs import queues
from coterie.observe.pages import Pages
from coterie.observe.rates import rates
from coterie.observe.view import PAGES, WorkflowLine
from coterie.storage.contracts.jobs import JobRow
from coterie.storage.contracts.messages import Attempt
from coterie.work.threads import StubbornBody
from tests.unit.observe import cluster_facts
from tests.unit.observe.cluster_facts import NOW, ago

if TYPE_CHECKING:
    from coterie.observe.facts import ClusterFacts

SECRET = "the body's own words"


def pages(facts: ClusterFacts, *dead: MessageInfo, **more: Any) -> Pages:
    return Pages(judge(facts), rates({}, facts.runners), dead, **more)


def letter(id: str, error: str, *, method: str = "charge", at_s: float = 60.0) -> MessageInfo:
    return MessageInfo(
        id=MessageId(id),
        entity="Account/alice",
        method=method,
        status="dead",
        shard="default:1",
        key=SECRET,
        sent_at=ago(at_s),
        due_at=ago(at_s),
        completed_at=ago(at_s),
        attempts=1,
        errors=(FailedAttempt(1, ago(at_s), error),),
        payload={"secret": SECRET},
        reply=None,
        failure=None,
        trace_id=None,
    )


def failed() -> TickInfo:
    return TickInfo(
        cron="cleanup",
        scheduled_at=ago(60),
        until=ago(60),
        count=1,
        kind="scheduled",
        matches_schedule=True,
        outcome="failed",
        reason="",
        attempt=1,
        errors=(f"attempt 1: ValueError: {SECRET}\nTraceback",),
        runner="web-1",
        epoch=4,
        started_at=ago(60),
        ended_at=ago(59),
        late=timedelta(0),
        took=timedelta(seconds=1),
        note=SECRET,
        done=None,
        total=None,
    )


def test_a_runner_that_did_not_answer_has_no_figures_and_sums_are_not_known() -> None:
    facts = cluster_facts.cluster(
        cluster_facts.local(waiting=3), rows=[cluster_facts.row("web-1"), cluster_facts.row("web-2")]
    )
    told = pages(facts)
    first, second = told.runners()
    assert (first.state, first.shards, first.waiting, first.entities) == ("ready", 4, 3, 2)
    assert (second.state, second.shards, second.waiting, second.entities) == ("no answer", 0, None, None)
    overview = told.overview()
    assert (overview.waiting, overview.entities, overview.runners) == (None, None, 2)
    assert told.messages().waiting is None
    (account,) = told.entities()
    assert (account.resident, account.runners, account.is_complete) == (2, {"web-1": 2}, False)


def test_a_runner_with_what_it_holds() -> None:
    facts = cluster_facts.cluster(singletons=(cluster_facts.singleton(),), crons=(cluster_facts.cron(),))
    (line,) = pages(facts).runners()
    assert (line.leads, line.crons, line.shards) == (("importer",), ("nightly",), 4)
    draining = cluster_facts.cluster(cluster_facts.local(is_draining=True))
    assert pages(draining).runners()[0].state == "draining"
    starting = cluster_facts.cluster(cluster_facts.local(is_ready=False, missing="a seat"))
    assert (pages(starting).runners()[0].state, pages(starting).runners()[0].missing) == ("starting", "a seat")


def test_a_runner_with_its_threads_and_those_that_are_stuck() -> None:
    stuck = StubbornBody(what="Account/alice.slow", for_s=12.0)
    told = cluster_facts.local(threads_busy=3, threads_waiting=2, threads_most=32, stubborn=(stuck,))
    (line,) = pages(cluster_facts.cluster(told)).runners()
    assert (line.threads_busy, line.threads_most, line.threads_waiting) == (3, 32, 2)
    assert line.stubborn == (stuck,)
    older = pages(cluster_facts.cluster(cluster_facts.local(threads_busy=3))).runners()[0]
    assert (older.threads_busy, older.threads_most) == (3, None), "one that does not say how many there may be"


def test_shards_move_when_their_holder_leaves() -> None:
    rows = [cluster_facts.row("web-1", leaving=True), cluster_facts.row("web-2")]
    told = [cluster_facts.local("web-1"), cluster_facts.local("web-2")]
    seats = [
        *cluster_facts.shards(1, 2),
        *cluster_facts.shards(3, holder="web-2"),
        *cluster_facts.shards(4, holder=None),
    ]
    page = pages(cluster_facts.cluster(*told, rows=rows, seats=seats)).shards()
    assert [(each.shard, each.owner, each.state, each.target) for each in page.shards] == [
        ("default:1", "web-1", "moving", "web-2"),
        ("default:2", "web-1", "moving", "web-2"),
        ("default:3", "web-2", "owned", "web-2"),
        ("default:4", None, "no owner", "web-2"),
    ]
    (group,) = page.groups
    assert (group.shards, group.owned, group.moving, group.runners) == (4, 3, 2, {"web-1": 2, "web-2": 1})


@pytest.mark.parametrize(
    ("counts", "weights", "balance"), [((2, 1), (1, 1), 2.0), ((2, 1), (2, 1), 1.0), ((3, 0), (1, 1), None)]
)
def test_balance_is_by_weight(counts: tuple[int, int], weights: tuple[int, int], balance: float | None) -> None:
    rows = [cluster_facts.row("web-1", weight=float(weights[0])), cluster_facts.row("web-2", weight=float(weights[1]))]
    seats = [*cluster_facts.shards(*range(counts[0])), *cluster_facts.shards(*range(5, 5 + counts[1]), holder="web-2")]
    (group,) = pages(cluster_facts.cluster(cluster_facts.local(), rows=rows, seats=seats)).shards().groups
    assert group.balance == balance


def test_a_cron_that_is_overdue_says_for_how_long_how_often_and_why() -> None:
    late = cluster_facts.cron(
        schedule="*/5 * * * *", next_at=ago(480), runner=None, group="gpu", problem="overdue by 480s: nobody holds it"
    )
    (line,) = pages(cluster_facts.cluster(crons=(late,))).cron()
    assert (line.overdue_s, line.missed, line.problem) == (480.0, 2, 'no runner serves group "gpu"')
    unknown = cluster_facts.cron(runner=None, problem="nobody holds it")
    (line,) = pages(cluster_facts.cluster(crons=(unknown,))).cron()
    assert (line.overdue_s, line.missed, line.problem) == (None, 0, "no runner's program defines it")
    rows = [cluster_facts.row(knows={"cron:nightly": "x"})]
    (line,) = pages(cluster_facts.cluster(cluster_facts.local(), rows=rows, crons=(unknown,))).cron()
    assert line.problem == "nobody holds it"
    (line,) = pages(cluster_facts.cluster(crons=(cluster_facts.cron(),))).cron()
    assert (line.overdue_s, line.missed, line.problem) == (None, 0, "")


def test_dead_messages_are_grouped_by_what_failed() -> None:
    facts = cluster_facts.cluster(dead=3, overdue=(cluster_facts.overdue(40.0, shard=7),))
    dead = [
        letter("a", "OSError: x\nTraceback", at_s=90),
        letter("b", "OSError: x\nother lines", at_s=30),
        letter("c", "ValueError: y", method="refund"),
    ]
    page = pages(facts, *dead).messages()
    assert [(each.what, each.count, each.error, each.id) for each in page.failures] == [
        ("Account.charge", 2, "OSError: x", "b"),
        ("Account.refund", 1, "ValueError: y", "c"),
    ]
    assert (page.failures[0].first_at, page.failures[0].last_at) == (ago(90), ago(30))
    assert [(each.shard, each.late_s) for each in page.overdue] == [("default:7", 40.0)]


def test_no_text_of_the_program_is_shown_where_none_is_wanted() -> None:
    """INV-X4: texts, keys and payloads may hold anything."""
    spoken = cluster_facts.singleton(note=SECRET, last_error=f"ValueError: {SECRET}", last_error_at=NOW)
    facts = cluster_facts.cluster(
        singletons=(spoken,), crons=(cluster_facts.cron("cleanup", latest=failed(), failures=1),), dead=1
    )
    run = WorkflowLine(
        name="checkout",
        id="order-7",
        kind="workflow",
        status="failed",
        interrupting=False,
        steps=1,
        started_at=NOW,
        changed_at=NOW,
        ended_at=NOW,
        wake_at=None,
        error=f"ValueError: {SECRET}",
    )
    stuck = msgspec.structs.replace(run, id="order-8", status="suspended", error=None, stuck=f"NameError: {SECRET}")
    dead = letter("a", f"OSError: {SECRET}")

    def told(*, texts: bool) -> str:
        made = pages(facts, dead, workflows=(run, stuck), dead_jobs=[dead_job("id-1")], texts=texts)
        return str(msgspec.to_builtins({page: getattr(made, page)() for page in PAGES}))

    assert SECRET not in told(texts=False)
    assert told(texts=False).count("ValueError") >= 3, "types are no secret"
    assert "NameError" in told(texts=False), "why a run is stuck is shown"
    assert told(texts=True).count(SECRET) >= 6
    assert "payload" not in told(texts=True)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("ValueError: x", "ValueError"),
        ("attempt 3: app.errors.Refused: x", "app.errors.Refused"),
        ("TimeoutError", "TimeoutError"),
        ("the word is swordfish", ""),
        ("", ""),
    ],
)
def test_an_error_without_text_is_its_type(error: str, shown: str) -> None:
    assert worded(error, texts=False) == shown


def test_queues_tell_who_holds_them_and_what_is_wrong() -> None:
    emails = cluster_facts.queue(claimed=20, ready=31, oldest_s=95.0, expected_wait_s=60.0)
    plain = cluster_facts.queue("default:*", seats=("queue:default:0", "queue:default:1"), dead=3)
    seats = [cluster_facts.seat(name) for each in (emails, plain) for name in each.seats]
    told = pages(
        cluster_facts.cluster(seats=seats, queues=(plain, emails)), dead_jobs=[dead_job("id-1"), dead_job("id-2")]
    )
    page = told.jobs()
    first, second = page.queues
    assert (first.name, first.runners, first.problem, page.dead) == ("default:*", ("web-1",), "", 3)
    assert (second.waiting, second.running, second.concurrency) == (31, 20, 20)
    assert second.problem.startswith(
        "its oldest job waits for 95s (expected within 60s); 31 jobs waiting, 20 of 20 running"
    )
    (failure,) = page.failures
    assert (failure.kind, failure.what, failure.count, failure.id) == ("jobs", "send_email", 2, "id-2")
    assert failure.error == f"SmtpError: {SECRET}"
    overview = told.overview()
    assert (overview.queues, overview.dead_jobs, overview.failures) == (page.queues, 3, page.failures)


def dead_job(id: str) -> JobRow:
    return JobRow(
        id=id,
        seat="queue:emails",
        part="",
        task="send_email",
        fingerprint="",
        state="dead",
        key=None,
        priority=0,
        sent_at=ago(90),
        due_at=ago(90),
        claimed_at=ago(60),
        ended_at=ago(30),
        claim=1,
        runner=None,
        ran_by="id-web-1",
        failures=1,
        lost=0,
        cancelling=False,
        errors=(Attempt(1, ago(30), f"SmtpError: {SECRET}\nTraceback"),),
        payload=b"",
        reply=None,
        tags={},
        progress=None,
        trace_id=None,
    )


@pytest.mark.parametrize(
    ("seat", "name"),
    [("queue:emails", "emails"), ("queue:default:7", "default:*"), ("queue:gpu:0", "gpu:*"), ("queue:a1", "a1")],
)
def test_seats_of_tasks_without_a_queue_are_one_line(seat: str, name: str) -> None:
    assert Seat.queue_name(seat) == name


@pytest.mark.parametrize(("rate", "text"), [(50.0, "50/s"), (0.5, "30/m"), (10 / 86_400, "10/d"), (2.5, "150/m")])
def test_a_rate_is_written_in_whole_numbers(rate: float, text: str) -> None:
    assert queues.rate_text(rate) == text
