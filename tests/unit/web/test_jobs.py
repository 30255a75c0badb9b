"""Jobs, queues and schedules over HTTP: what is shown of them, what is refused, what people may do (T8, T9, T10)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from coterie import Cluster
from coterie.storage.contracts.schedules import ScheduleTerms
from coterie.web.details import TAG_MOST
from tests.contract.conftest import opened
from tests.contract.jobs import id_of
from tests.unit.cli.stored_jobs import DEAD, DONE, LATER, OTHER, PARKED, RUNS, WAITS, fill
from tests.unit.web.page_program import Account, browser, running, until
from tests.unit.web.test_acts import done, post, recorded
from tests.unit.web.test_details import got

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx


@asynccontextmanager
async def served(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Cluster, httpx.AsyncClient]]:
    """A client that serves the page of a file with jobs in all states."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with opened(url) as storage:
        await fill(storage)
    cluster = Cluster(url, http_listen=None, **settings)
    async with cluster.connect(), browser(cluster) as http:
        yield cluster, http


async def found(http: httpx.AsyncClient, **query: Any) -> list[int]:
    return [int(each["id"], 16) for each in (await got(http, "jobs", **query))["jobs"]]


async def test_jobs_are_listed_newest_first_by_filter_and_page_by_page(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, http):
        assert await found(http) == [OTHER, DEAD, PARKED, LATER, RUNS, WAITS]
        assert await found(http, state="running") == [RUNS]
        assert await found(http, state="dead", task="resize") == [OTHER]
        assert await found(http, tag=f"order={DONE}") == [DONE]
        assert await found(http, error="smtp", queue="one") == [DEAD]
        assert await found(http, queue="nothing") == []
        first = await got(http, "jobs", limit=4)
        assert first["more"]
        assert await found(http, limit=4, after=first["jobs"][-1]["id"]) == [RUNS, WAITS]
        (job,) = (await got(http, "jobs", state="running"))["jobs"]
        assert (job["task"], job["queue"], job["partition"]) == ("send_email", "one", "acme")
        assert (job["progress"]["done"], job["progress"]["note"]) == (5_000, "rows")
        assert "arguments" not in job
        whole = (await got(http, "job", id=id_of(DEAD)))["job"]
        assert (whole["state"], whole["arguments"]["mail"]) == ("dead", f"m-{DEAD}")
        assert whole["errors"][0]["traceback"].startswith("SmtpError")
        assert (await http.get("/api/job", params={"id": id_of(99)})).status_code == 404


@pytest.mark.parametrize(
    "query",
    [
        {"tag": "order"},
        {"tag": "=7"},
        {"tag": "o=" + "7" * TAG_MOST},
        {"state": "pending"},
        {"older": "soon"},
        {"limit": "0"},
        {"task": "a\0b"},
    ],
)
async def test_a_filter_that_the_schema_refuses_is_refused(tmp_path: Path, query: dict[str, str]) -> None:
    async with served(tmp_path) as (_, http):
        assert (await http.get("/api/jobs", params=query)).status_code == 400


async def test_a_tag_that_no_job_can_have_is_found_nowhere(tmp_path: Path) -> None:
    """The schema bounds characters, storage bytes."""
    async with served(tmp_path) as (_, http):
        assert await found(http, tag="ö" * 300 + "=7") == []


async def test_nothing_of_the_program_is_shown_if_it_is_redacted(tmp_path: Path) -> None:
    async with served(tmp_path, redact=True) as (_, http):
        listed = await got(http, "jobs", state="dead")
        whole = await got(http, "job", id=id_of(DEAD))
        page = (await http.get("/api/view?pages=jobs,overview")).text
        for text in (str(listed), str(whole), page):
            assert "mailbox" not in text
            assert "m-5" not in text
            assert "SmtpError" in text
        running = (await got(http, "jobs", state="running"))["jobs"][0]
        assert (running["progress"]["note"], running["key"], running["tags"]) == (None, None, {})
        for query in ({"tag": "order=1"}, {"key": "m-1"}, {"error": "Smtp"}):
            assert (await http.get("/api/jobs", params=query)).status_code == 403
        assert (await post(http, "retry-jobs", {"filter": {"error": "Smtp"}})).status_code == 403
        assert (await post(http, "edit-job", {"id": id_of(DEAD), "arguments": {}})).status_code == 403


async def test_queues_are_paused_and_limited(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, http):
        (row,) = await cluster._acting().storage.jobs.queues()
        before, after = await done(http, "pause-queue", {"queue": "one"})
        assert before == {"will": "starts no jobs of one until it is resumed; what runs ends", "count": 1}
        assert after == {"done": "one is paused", "count": 1}
        assert (await post(http, "pause-queue", {"queue": "one"}, preview=True)).json()["count"] == 0
        await done(http, "resume-queue", {"queue": "one"})
        before, after = await done(http, "limits", {"queue": "one", "concurrency": 40, "rate": None})
        assert (
            before["will"] == "gives one concurrency 40, no limit of rate, in the whole cluster, until they are reset"
        )
        (changed,) = await cluster._acting().storage.jobs.queues()
        assert (changed.concurrency, changed.rate, changed.is_set, changed.paused_at) == (40, None, True, None)
        await done(http, "limits", {"queue": "one", "reset": True})
        (changed,) = await cluster._acting().storage.jobs.queues()
        assert (changed.concurrency, changed.rate, changed.is_set) == (row.concurrency, row.rate, False)
        for body in ({}, {"reset": True, "concurrency": 3}, {"concurrency": 0}, {"rate": "fast"}):
            assert (await post(http, "limits", {"queue": "one", **body})).status_code == 400, body
        for act in ("pause-queue", "resume-queue"):
            assert (await post(http, act, {"queue": "two"})).status_code == 404
        acts = [(each["act"], each["what"]) for each in await recorded(http)]
        assert acts[-2:] == [("resume-queue", "queue one"), ("pause-queue", "queue one")]


async def test_dead_jobs_run_again_others_are_cancelled_or_deleted(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, http):
        before, after = await done(http, "retry-jobs", {"filter": {"error": "Smtp"}})
        assert before == {"will": "runs 1 dead job of send_email again", "count": 1}
        assert after == {"done": "1 dead job of send_email run again", "count": 1}
        assert await found(http, state="dead") == [OTHER]
        nothing = await post(http, "retry-jobs", {"ids": [id_of(DONE)]}, preview=True)
        assert nothing.json() == {"will": "runs nothing again: no dead job matches", "count": 0}
        edit = {"id": id_of(OTHER), "arguments": {"picture": "a.png"}}
        before = (await post(http, "edit-job", edit, preview=True)).json()
        assert before["will"].startswith("sends resize with these arguments as a new job")
        assert (await post(http, "edit-job", edit)).status_code == 503, "no runner can be reached"
        assert (await post(http, "edit-job", {**edit, "id": id_of(DONE)})).status_code == 409
        before, _ = await done(http, "cancel-job", {"id": id_of(RUNS)})
        assert before["will"].endswith("nothing of it will commit; its body, which runs, is cancelled")
        assert (await got(http, "job", id=id_of(RUNS)))["job"]["cancelling"]
        await done(http, "cancel-job", {"id": id_of(WAITS)})
        assert (await post(http, "cancel-job", {"id": id_of(WAITS)})).status_code == 409
        assert (await post(http, "cancel-job", {"id": id_of(99)})).status_code == 404
        before, after = await done(http, "purge-jobs", {"filter": {"task": "resize"}})
        assert before["will"] == "deletes 1 dead job for good: task:resize state:dead"
        assert after == {"done": "1 dead job deleted", "count": 1}
        for body in ({"state": "waiting"}, {"error": "x"}, {"type": "Account"}, {"task": 7}):
            assert (await post(http, "purge-jobs", {"filter": body})).status_code == 400, body
        many = [str(number) for number in range(1_001)]
        wrongs: list[dict[str, Any]] = [{}, {"ids": [], "filter": {}}, {"filter": {"state": "done"}}, {"ids": many}]
        for wrong in wrongs:
            assert (await post(http, "retry-jobs", wrong)).status_code == 400, wrong


async def test_the_page_has_queues_and_dead_jobs_by_failure(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, http):
        data = (await http.get("/api/view?pages=jobs,overview")).json()["data"]
        (queue,) = data["jobs"]["queues"]
        assert (queue["name"], queue["waiting"], queue["dead"], queue["concurrency"]) == ("one", 1, 2, 2)
        assert data["overview"]["queues"] == [queue]
        assert data["overview"]["dead_jobs"] == data["jobs"]["dead"] == 2
        failures = {each["what"]: each["error"] for each in data["jobs"]["failures"]}
        assert failures == {"send_email": "SmtpError: no such mailbox", "resize": "TimeoutError: after 30s"}
        assert "no runner has task send_email" in queue["problem"]


async def test_schedules_tell_what_comes_and_what_became_of_the_last_instants(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, browser(cluster) as http:
        call = cluster.ref(Account, "alice").deposit
        await cluster.schedules.put("report/acme", "0 7 * * *", call(5, "hunter2"), timezone="Europe/Zurich")
        await cluster.schedules.put("report/often", "* * * * * *", call(1))

        async def is_sent() -> Any:
            return await cluster.schedules.history("report/often")

        await until(is_sent)
        listed = await got(http, "schedules", prefix="report/")
        acme, often = listed["schedules"]
        assert (acme["name"], acme["calls"], acme["outcomes"]) == ("report/acme", "Account/alice.deposit", [])
        assert often["outcomes"][0]["message"]
        assert len(often["coming"]) == 100, "as many as are named"
        later = await got(http, "schedules", limit=1, until="2126-01-01T00:00:00Z")
        assert (later["more"], len(later["schedules"][0]["coming"])) == (True, 100)
        rest = await got(http, "schedules", after="report/acme")
        assert [each["name"] for each in rest["schedules"]] == ["report/often"]
        whole = (await got(http, "schedule", name="report/acme"))["schedule"]
        assert (whole["arguments"], len(whole["coming"])) == ({"cents": 5, "memo": "hunter2"}, 10)
        assert (await http.get("/api/schedule", params={"name": "nothing"})).status_code == 404


async def test_schedules_are_paused_resumed_sent_again_and_removed(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, browser(cluster) as http:
        await cluster.schedules.put("report", "0 7 * * *", cluster.ref(Account, "alice").deposit(5))
        body = {"schedule": "report"}
        before, _ = await done(http, "pause-schedule", body)
        assert before["will"] == "sends nothing of report until it is resumed"
        assert (await cluster.schedules.get("report")).paused_at is not None
        await done(http, "resume-schedule", body)
        assert (await cluster.schedules.get("report")).paused_at is None
        when = {"since": "2026-03-01T00:00:00Z", "until": "2026-03-04T00:00:00Z"}
        _, after = await done(http, "backfill", body | when)
        assert after == {"done": "3 messages of report sent", "count": 3}
        too_many = await post(http, "backfill", body | when | {"since": "2016-03-01T00:00:00Z"})
        assert (too_many.status_code, "send 1000 at most" in too_many.json()["error"]) == (400, True)
        assert (await post(http, "backfill", body | when | {"since": "2026-03-01T00:00:00"})).status_code == 400
        before, _ = await done(http, "remove-schedule", body)
        assert before["will"] == "removes report, which calls Account/alice.deposit; what it has sent runs"
        assert (await post(http, "pause-schedule", body)).status_code == 404


async def test_a_schedule_of_a_later_version_is_shown_with_its_problem(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, browser(cluster) as http:
        await cluster.schedules.put("report", "0 7 1 1 *", cluster.ref(Account, "alice").deposit(5))
        schedules = cluster._acting().storage.schedules
        row = await schedules.get("schedule/report")
        assert row is not None
        unread = replace(row, definition=ScheduleTerms(schedule="every blue moon").encode())
        assert await schedules.swap(unread, row.mark)
        (line,) = (await got(http, "schedules"))["schedules"]
        assert line["problem"].startswith("it cannot be read")
