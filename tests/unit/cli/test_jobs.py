"""`coterie jobs` and `coterie queues`: T8 (progress), T9 (pause), T10 (tags), dead letters run again or deleted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from coterie import Cluster, MessageId, Retry
from coterie.errors import RunnerUnavailable
from coterie.storage.contracts.jobs import JobInsert
from coterie.tasks.edit import send_edited_job
from coterie.tasks.task import Task
from tests.contract.jobs import job
from tests.unit.cli.command_runner import SHARDS, coterie, require_golden, transcript
from tests.unit.cli.stored_cluster import Stored
from tests.unit.cli.stored_jobs import DEAD, DONE, LATER, OTHER, PARKED, RUNS, WAITS, StoredJobs, id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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


def test_a_task_is_paused_and_resumed(ask: Ask) -> None:
    """T9."""
    paused = ask("pauses", "pause", "task", "resize", "--yes")
    assert (paused.code, "undo: coterie pauses resume task resize" in paused.out) == (0, True)
    assert json.loads(ask("pauses", "pause", "task", "resize", "--yes", "--json").out)["changed"] is False
    (listed,) = json.loads(ask("pauses", "list", "--json").out)
    assert (listed["kind"], listed["name"]) == ("task", "resize")
    assert json.loads(ask("pauses", "resume", "task", "resize", "--yes", "--json").out)["changed"] is True
    assert "nothing is paused" in ask("pauses", "list").out


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


def mail_program(url: str, name: str) -> Cluster:
    """A runner whose task refuses most tenants."""
    cluster = Cluster(url, runner_name=name, shards=SHARDS, http_listen=None, lease_ttl="30s")
    emails = cluster.queue("emails", concurrency=2)

    @cluster.task(queue=emails, retry=Retry(attempts=1))
    async def send_email(tenant: str, copies: int) -> str:
        if tenant != "acme":
            raise ConnectionRefusedError(f"no mailbox of {tenant}")
        return f"{copies} to {tenant}"

    return cluster


@pytest.fixture(scope="module")
def mails(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """One runner, web-1, that runs jobs."""
    running = Stored(f"sqlite:///{tmp_path_factory.mktemp('cli') / 'mails.db'}", mail_program)
    try:
        running.start("web-1")
        yield running
    finally:
        running.do(running._stop())


def dead_mail(mails: Stored) -> str:
    """A job that is dead; its id."""

    async def send() -> str:
        sent = await mails.cluster.send(_task(mails.cluster).job("beta", 1), tags={"order": "7"})

        async def is_dead() -> bool:
            return (await mails.cluster.jobs.show(sent)).state == "dead"

        await mails.until(is_dead)
        return str(sent)

    return str(mails.do(send()))


def _task(cluster: Cluster) -> Task[..., Any, Any]:
    return Task(cluster._program.tasks.named("send_email"), cluster._program.job_caller)


def test_a_dead_job_is_sent_again_with_other_arguments(mails: Stored, capsys: pytest.CaptureFixture[str]) -> None:
    """A runner that has the task checks them: the command has no tasks."""
    dead = dead_mail(mails)

    def edit(arguments: str, *options: str) -> Said:
        return coterie(capsys, "jobs", "edit", dead, "--args", arguments, "--url", mails.url, *options)

    assert edit('{"tenant": "acme", "copies": 2}').code == 1, "no terminal to ask"
    wrong = edit('{"tenant": "acme", "copies": "many"}', "--yes")
    assert (wrong.code, "copies" in wrong.err) == (1, True)
    said = json.loads(edit('{"tenant": "acme", "copies": 2}', "--yes", "--json").out)
    assert said["dead"] == dead
    again = json.loads(edit('{"tenant": "acme", "copies": 2}', "--yes", "--json").out)
    assert again["sent"] == said["sent"], "repeated, it is the same job"
    other = edit('{"tenant": "acme", "copies": 3}', "--yes")
    assert other.code == 1
    sent: MessageId[Any] = MessageId(said["sent"])
    assert mails.do(mails.cluster.result(sent)) == "2 to acme"
    shown = json.loads(coterie(capsys, "jobs", "show", said["sent"], "--url", mails.url, "--json").out)
    assert (shown["state"], shown["reply"], shown["tags"]) == ("done", "2 to acme", {"order": "7"})
    over = coterie(capsys, "jobs", "edit", said["sent"], "--args", "{}", "--url", mails.url, "--yes")
    assert (over.code, "only dead jobs are sent again" in over.err) == (1, True)
    acts = json.loads(coterie(capsys, "activity", "--url", mails.url, "--json").out)
    assert {"edit-job"} == {each["act"] for each in acts}


def test_a_dead_job_is_not_sent_while_no_runner_can_be_reached(ask: Ask) -> None:
    said = ask("jobs", "edit", id_of(DEAD), "--args", "{}", "--yes")
    assert (said.code, said.out) == (1, "")
    assert "cannot be reached" in said.err, "the one that there is has no address"


def test_a_job_of_a_task_that_no_runner_has_is_not_sent(mails: Stored, capsys: pytest.CaptureFixture[str]) -> None:
    storage = mails.cluster._acting().storage

    async def die() -> str:
        other = job(1, seat="queue:emails", task="forgotten")
        await storage.jobs.insert(JobInsert((other,)))
        await storage.jobs.cancel(other.id, reply=b"")
        return other.id

    over = coterie(capsys, "jobs", "edit", mails.do(die()), "--args", "{}", "--url", mails.url, "--yes")
    assert (over.code, "only dead jobs" in over.err) == (1, True)
    row = replace(mails.do(storage.jobs.look([id_of(1)]))[0], state="dead")
    with pytest.raises(RunnerUnavailable, match="no runner's program has task forgotten"):
        mails.do(send_edited_job(mails.cluster._acting(), row, b"{}", within_s=10))


def test_a_paused_queue_starts_nothing_until_it_is_resumed(mails: Stored, capsys: pytest.CaptureFixture[str]) -> None:
    """T9, on a runner."""
    assert coterie(capsys, "queues", "pause", "emails", "--url", mails.url, "--yes").code == 0

    async def send() -> MessageId[str]:
        return await mails.cluster.send(_task(mails.cluster).job("acme", 5))

    sent = mails.do(send())
    shown = json.loads(coterie(capsys, "queues", "show", "emails", "--url", mails.url, "--json").out)
    assert (shown["waiting"], shown["running"], shown["runners"]) == (1, 0, ["web-1"])
    assert coterie(capsys, "queues", "resume", "emails", "--url", mails.url, "--yes").code == 0
    assert mails.do(mails.cluster.result(sent)) == "5 to acme"


def test_a_schedule_of_a_task_tells_its_jobs(mails: Stored, capsys: pytest.CaptureFixture[str]) -> None:
    async def put() -> None:
        await mails.cluster.schedules.put("mail/acme", "0 7 * * *", _task(mails.cluster).job("acme", 1))

    mails.do(put())
    url = ("--url", mails.url)
    shown = json.loads(coterie(capsys, "schedules", "show", "mail/acme", "--json", *url).out)
    assert "send_email" in shown["schedule"]["calls"]
    when = ("--since", "2026-03-01T00:00:00Z", "--until", "2026-03-03T00:00:00Z")
    said = coterie(capsys, "schedules", "backfill", "mail/acme", *when, "--yes", *url)
    assert "2 jobs of mail/acme sent; sent again, they are the same jobs" in said.out
    job_id = said.out.split()[-1]
    assert f"coterie jobs show {job_id}" in said.out
    assert mails.do(mails.cluster.result(MessageId(job_id))) == "1 to acme"
