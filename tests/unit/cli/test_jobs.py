"""`coterie jobs` and `coterie queues`: T8 (progress), T9 (pause), T10 (tags), dead letters run again or deleted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.unit.cli.command_runner import coterie, require_golden, transcript
from tests.unit.cli.stored_jobs import DEAD, DONE, LATER, OTHER, PARKED, RUNS, WAITS, StoredJobs, id_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.cli.command_runner import Said

    Ask = Callable[..., Said]


@pytest.fixture
def jobs(tmp_path: Path) -> StoredJobs:
    """A file of its own."""
    return StoredJobs(f"sqlite:///{tmp_path / 'jobs.db'}")


@pytest.fixture
def ask(jobs: StoredJobs, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a command against it."""
    return lambda *args: coterie(capsys, *args, "--url", jobs.url)


def listed(ask: Ask, *options: str) -> list[int]:
    """The numbers of the jobs in a list."""
    return [int(each["id"], 16) for each in json.loads(ask("jobs", "list", *options, "--json").out)]


def test_jobs_are_found_by_state_task_queue_tag_key_and_error(ask: Ask) -> None:
    """T10."""
    assert listed(ask) == [WAITS, RUNS, LATER, PARKED, DEAD, OTHER], "all that are not over"
    for state, number in {
        "waiting": WAITS,
        "running": RUNS,
        "scheduled": LATER,
        "parked": PARKED,
        "done": DONE,
    }.items():
        assert listed(ask, "--state", state) == [number]
    assert listed(ask, "--filter", "state:dead") == [DEAD, OTHER]
    assert listed(ask, "--filter", "state:dead task:resize") == [OTHER]
    assert listed(ask, "--filter", "state:dead error:smtp") == [DEAD]
    assert listed(ask, "--filter", "queue:two") == []
    assert listed(ask, "--tag", f"order={DONE}") == [DONE], "with a tag all, also those that are over"
    assert listed(ask, "--filter", f"key:m-{DONE}") == [DONE]
    assert listed(ask, "--filter", "older:1h") == []
    first = ask("jobs", "list", "--limit", "2")
    assert f"more: coterie jobs list --after {id_of(RUNS)}" in first.err
    assert listed(ask, "--limit", "2", "--after", id_of(RUNS)) == [LATER, PARKED]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("type:Account", 'unknown qualifier "type"'),
        ("state:pending", "there are waiting, running"),
        ("tag:order", "write a name and a value"),
        ("older:soon", "older"),
        ("task:a task:b", "task is given twice"),
    ],
)
def test_a_filter_that_cannot_be_read_is_wrong_usage(ask: Ask, text: str, problem: str) -> None:
    said = ask("jobs", "list", "--filter", text)
    assert (said.code, said.out) == (2, "")
    assert problem in said.err


def test_jobs_are_shown_as_text(ask: Ask) -> None:
    require_golden("jobs_list", transcript(ask("jobs", "list")))
    require_golden("jobs_show_running", transcript(ask("jobs", "show", id_of(RUNS))))
    require_golden("jobs_show_dead", transcript(ask("jobs", "show", id_of(DEAD))))
    require_golden("jobs_show_done", transcript(ask("jobs", "show", id_of(DONE))))


def test_a_job_tells_its_arguments_its_progress_and_its_errors(ask: Ask) -> None:
    """T8."""
    running = json.loads(ask("jobs", "show", id_of(RUNS), "--json").out)
    assert (running["state"], running["arguments"]) == ("running", {"tenant": "acme", "mail": f"m-{RUNS}"})
    progress = running["progress"]
    assert (progress["done"], progress["total"], progress["note"]) == (5_000, 12_000, "rows")
    dead = json.loads(ask("jobs", "show", id_of(DEAD), "--json").out)
    assert (dead["state"], dead["failures"], dead["error"]) == ("dead", 1, "SmtpError: no such mailbox")
    assert dead["errors"][0]["traceback"].startswith("SmtpError")
    assert json.loads(ask("jobs", "show", id_of(DONE), "--json").out)["reply"] == "sent"
    unknown = ask("jobs", "show", id_of(99))
    assert (unknown.code, "there is no job" in unknown.err) == (1, True)


def test_dead_jobs_are_run_again(ask: Ask, jobs: StoredJobs) -> None:
    require_golden("jobs_retry_refused", transcript(ask("jobs", "retry", "--filter", "task:send_email")))
    assert json.loads(ask("jobs", "retry", id_of(DEAD), id_of(DONE), "--yes", "--json").out) == {"retried": 1}
    row = jobs.look(DEAD)
    assert row is not None
    assert (row.state, row.failures) == ("ready", 0)
    assert json.loads(ask("jobs", "retry", "--filter", "error:Timeout", "--yes", "--json").out) == {"retried": 1}
    assert listed(ask, "--state", "dead") == []
    assert ask("jobs", "retry", "--yes").code == 2
    assert ask("jobs", "retry", "--filter", "state:done", "--yes").code == 2


def test_a_job_is_cancelled_and_that_is_recorded(ask: Ask, jobs: StoredJobs) -> None:
    """T6."""
    said = ask("jobs", "cancel", id_of(WAITS), "--yes")
    assert f"job {id_of(WAITS)} is cancelled" in said.out
    row = jobs.look(WAITS)
    assert row is not None
    assert row.state == "cancelled"
    assert "raised" in ask("jobs", "show", id_of(WAITS)).out
    running = json.loads(ask("jobs", "cancel", id_of(RUNS), "--yes", "--json").out)
    assert running["cancelled"] is True
    assert ", being cancelled" in ask("jobs", "list", "--state", "running").out
    over = ask("jobs", "cancel", id_of(DONE), "--yes")
    assert (over.code, "is over: done" in over.err) == (1, True)
    acts = [each["act"] for each in json.loads(ask("activity", "--json").out)]
    assert acts == ["cancel-job", "cancel-job"]


def test_jobs_that_are_over_are_deleted(ask: Ask, jobs: StoredJobs) -> None:
    assert (
        "1 job would be deleted: task:resize state:dead"
        in ask("jobs", "purge", "--filter", "state:dead task:resize").err
    )
    said = json.loads(
        ask("jobs", "purge", "--filter", "state:dead task:resize", "--yes", "--json").out.splitlines()[-1]
    )
    assert said["purged"] == 1
    assert (jobs.look(OTHER), jobs.look(DEAD) is None) == (None, False)
    for text in ("task:resize", "state:waiting", "state:dead error:Smtp"):
        assert ask("jobs", "purge", "--filter", text, "--yes").code == 2, text


def test_queues_tell_what_waits_and_runs(ask: Ask) -> None:
    require_golden("queues_list", transcript(ask("queues")))
    require_golden("queues_show", transcript(ask("queues", "show", "one")))
    (line,) = json.loads(ask("queues", "--json").out)
    assert [line[name] for name in ("waiting", "running", "scheduled", "parked", "dead")] == [1, 1, 1, 1, 2]
    unknown = ask("queues", "show", "three")
    assert (unknown.code, "there are one" in unknown.err) == (1, True)


def test_a_queue_is_paused_and_resumed(ask: Ask) -> None:
    """T9."""
    require_golden("queues_pause", transcript(ask("queues", "pause", "one", "--yes")))
    assert json.loads(ask("queues", "show", "one", "--json").out)["paused_at"] is not None
    assert json.loads(ask("queues", "pause", "one", "--yes", "--json").out)["changed"] is False
    assert "paused <instant>" in transcript(ask("queues"))
    require_golden("queues_resume", transcript(ask("queues", "resume", "one", "--yes")))
    assert json.loads(ask("queues", "show", "one", "--json").out)["paused_at"] is None
    assert ask("queues", "pause", "one").code == 1, "no terminal to ask"


def test_limits_are_set_some_at_a_time_and_reset(ask: Ask) -> None:
    """T9."""
    require_golden("queues_limits", transcript(ask("queues", "limits", "one", "--concurrency", "40", "--yes")))
    (line,) = json.loads(ask("queues", "--json").out)
    assert (line["concurrency"], line["rate"], line["is_set"]) == (40, 50.0, True)
    ask("queues", "limits", "one", "--rate", "30/m", "--concurrency", "none", "--partition-concurrency", "3", "--yes")
    (line,) = json.loads(ask("queues", "--json").out)
    assert (line["concurrency"], line["partition_concurrency"], line["rate"]) == (None, 3, 0.5)
    assert "3 a partition, 30/m (set)" in ask("queues").out
    require_golden("queues_limits_reset", transcript(ask("queues", "limits", "one", "--reset", "--yes")))
    (line,) = json.loads(ask("queues", "--json").out)
    assert (line["concurrency"], line["rate"], line["is_set"]) == (2, 50.0, False)


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--reset", "--rate", "5/s"],
        ["--rate", "fast"],
        ["--concurrency", "0"],
        ["--concurrency", "-1"],
        ["--concurrency", "many"],
    ],
)
def test_limits_that_are_none_are_wrong_usage(ask: Ask, options: list[str]) -> None:
    said = ask("queues", "limits", "one", *options, "--yes")
    assert (said.code, said.out) == (2, "")


def test_the_status_has_queues_and_dead_jobs(ask: Ask) -> None:
    said = ask("status")
    assert "QUEUE" in said.out
    assert "2 dead jobs: coterie jobs list --state dead" in said.out
    assert "queue one: 1 job parked: no runner has task send_email" in said.out
