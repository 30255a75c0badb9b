"""What is answered over HTTP, and to whom: H3, incident 42, INV-X2, INV-X4."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import schemathesis

from coterie.errors import PersistenceError
from coterie.observe.health import Reason
from coterie.observe.view import PAGES as PAGES_OF_VIEW
from coterie.settings.secret import Secret
from coterie.web import access, application
from coterie.web.application import build
from coterie.web.openapi import document
from tests.unit.web.fake_cluster import SECRET_NOTE, STUCK, FakeWebView, health

TOKEN = "correct-horse-battery-staple"
PROBES = ["/live", "/ready", "/startup"]
MACHINES = ["/health", "/metrics", "/openapi.json"]
PAGE = ["/", "/api/session", "/api/view"]
PATHS = [*PROBES, *MACHINES, *PAGE]
ASSET, STREAM = "/page/index.html", "/api/stream"
DETAILS = [
    "singleton", "cron", "ticks", "shards/moves", "entities", "entity", "messages", "message", "jobs", "job",
    "schedules", "schedule", "workflow", "kv", "activity",
]  # fmt: skip
GUARDED = [*MACHINES, *PAGE]  # files of the page: test_assets.py
METHODS = ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"]


async def ask(
    web_view: FakeWebView, path: str, *, method: str = "GET", client: str = "127.0.0.1", **headers: str
) -> httpx.Response:
    """One request; the server's address is the client's, as on loopback."""
    transport = httpx.ASGITransport(build(web_view), client=(client, 50_000), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{client}:7650") as http:
        return await http.request(method, path, headers={key.replace("_", "-"): each for key, each in headers.items()})


def words(answer: httpx.Response) -> tuple[int, Any]:
    return answer.status_code, answer.json()


async def test_the_probes_of_a_runner_that_is_well() -> None:
    web_view = FakeWebView()
    assert words(await ask(web_view, "/live")) == (200, {"status": "live"})
    assert words(await ask(web_view, "/ready")) == (200, {"status": "ready", "reasons": []})
    assert words(await ask(web_view, "/startup")) == (200, {"status": "started", "reasons": []})


async def test_the_probes_of_one_that_is_not() -> None:
    web_view = FakeWebView()
    web_view.why_unready = web_view.why_unstarted = (STUCK,)
    told = {
        "status": "unhealthy",
        "what": "singleton importer",
        "problem": "no progress for 74s (expected every 30s)",
        "hint": "coterie singletons resign importer moves it",
        "runner": "web-2",
    }
    assert words(await ask(web_view, "/live")) == (200, {"status": "live"})
    assert words(await ask(web_view, "/ready")) == (503, {"status": "unready", "reasons": [told]})
    assert words(await ask(web_view, "/startup")) == (503, {"status": "starting", "reasons": [told]})


async def test_a_runner_whose_task_keeps_failing_lives_and_says_so() -> None:
    web_view = FakeWebView()
    web_view.what_fails = (STUCK,)
    status, told = words(await ask(web_view, "/live"))
    assert (status, told["status"], told["reasons"][0]["what"]) == (200, "degraded", "singleton importer")
    assert words(await ask(web_view, "/live", client="10.0.0.7")) == (200, {"status": "degraded"})


async def test_from_elsewhere_probes_say_words_and_no_more() -> None:
    """INV-X4."""
    web_view = FakeWebView(Secret(TOKEN))
    web_view.why_unready = web_view.why_unstarted = (STUCK,)
    assert words(await ask(web_view, "/live", client="10.0.0.7")) == (200, {"status": "live"})
    assert words(await ask(web_view, "/ready", client="10.0.0.7")) == (503, {"status": "unready"})
    assert words(await ask(web_view, "/startup", client="10.0.0.7")) == (503, {"status": "starting"})
    full = await ask(web_view, "/ready", client="10.0.0.7", authorization=f"Bearer {TOKEN}")
    assert full.json()["reasons"][0]["what"] == "singleton importer"


@pytest.mark.parametrize("token", [None, Secret(TOKEN)], ids=["no token set", "a token set"])
@pytest.mark.parametrize("path", GUARDED)
async def test_from_elsewhere_details_need_the_token(path: str, token: Secret | None) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": f"token={TOKEN}"}):
        refused = await ask(FakeWebView(token), path, client="10.0.0.7", **headers)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.json().keys() == {"error", "hint"}
    in_query = await ask(FakeWebView(token), f"{path}?token={TOKEN}&http_token={TOKEN}", client="10.0.0.7")
    assert in_query.status_code == 401


@pytest.mark.parametrize("path", GUARDED)
async def test_the_token_opens_details(path: str) -> None:
    answer = await ask(FakeWebView(Secret(TOKEN)), path, client="10.0.0.7", authorization=f"Bearer {TOKEN}")
    assert answer.status_code == 200


@pytest.mark.parametrize("path", [*PATHS, ASSET, STREAM, "/nothing"])
async def test_a_rebound_name_is_refused_everywhere(path: str) -> None:
    """Incident 42."""
    refused = await ask(FakeWebView(), path, host="evil.example:7650")
    assert refused.status_code == 421
    assert refused.json().keys() == {"error", "hint"}


@pytest.mark.parametrize("client", ["127.0.0.1", "10.0.0.7"])
@pytest.mark.parametrize("path", [*PATHS, ASSET, STREAM, *(f"/api/{each}" for each in DETAILS)])
async def test_nothing_is_changed_over_http(path: str, client: str) -> None:
    """INV-X2, incident 42: all methods on all paths."""
    for method in METHODS:
        refused = await ask(FakeWebView(), path, method=method, client=client)
        assert refused.status_code == 405, method
        assert "error" in refused.json()
        assert {each.strip() for each in refused.headers["allow"].split(",")} == {"GET", "HEAD"}


@pytest.mark.parametrize(
    "path",
    [
        "/live/",
        "/page",
        "/page/",
        "/api",
        "/page/../application.py",
        "/page/%2e%2e/application.py",
        "/page//etc/passwd",
        "/Live",
        "/nothing",
        "/%2e%2e/live",
    ],
)
async def test_other_paths_do_not_exist_and_lead_nowhere(path: str) -> None:
    answer = await ask(FakeWebView(), path)
    assert answer.status_code == 404
    assert "location" not in answer.headers


@pytest.mark.parametrize("path", [*PATHS, "/nothing"])
async def test_every_answer_keeps_browsers_from_mischief(path: str) -> None:
    """No CORS: another site's page cannot read any of it."""
    for answer in (
        await ask(FakeWebView(), path, origin="https://evil.example"),
        await ask(FakeWebView(), path, method="POST"),
        await ask(FakeWebView(), path, host="evil.example"),
        await ask(FakeWebView(), path, client="10.0.0.7"),
    ):
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("path", PATHS)
async def test_head_is_answered_like_get(path: str) -> None:
    web_view = FakeWebView()
    asked, got = await ask(web_view, path, method="HEAD"), await ask(web_view, path)
    assert asked.status_code == got.status_code == 200
    assert asked.headers["content-type"] == got.headers["content-type"]


async def test_health_as_json() -> None:
    """Ids are texts, instants RFC 3339 in UTC, durations seconds; never-was is null."""
    answer = await ask(FakeWebView(), "/health")
    told = answer.json()
    assert answer.status_code == 200
    assert told["status"] == "healthy"
    assert told["at"] == "2026-03-01T12:00:00.250000Z"
    assert told["reasons"] == []
    assert told["runners"]["count"] == 2
    assert told["runners"]["healthy"] == 1
    assert told["shards"] == {"count": 100, "owned": 99}
    assert told["entities"] is None
    (importer,) = told["singletons"]
    assert importer["expected_interval_s"] == 30.0
    assert importer["alive_at"] is None
    assert importer["progress_at"] == "2026-03-01T12:00:00.250000Z"
    assert importer["ok"] is False


async def test_what_a_body_said_or_raised_is_no_part_of_it() -> None:
    """INV-X4: texts of the program may hold anything."""
    assert SECRET_NOTE not in (await ask(FakeWebView(), "/health")).text
    assert SECRET_NOTE in (await ask(FakeWebView(), "/api/view")).text, "the page shows why something fails"
    assert SECRET_NOTE not in (await ask(FakeWebView(redacted=True), "/api/view")).text


async def test_a_view_has_the_pages_that_were_asked_for() -> None:
    answer = await ask(FakeWebView(), "/api/view?pages=singletons,runners")
    told = answer.json()
    assert (told["revision"], told["at"], told["runner"]) == (7, "2026-03-01T12:00:00.250000Z", "web-2")
    assert told["data"].keys() == {"singletons", "runners"}
    (importer,) = told["data"]["singletons"]
    assert (importer["leader"], importer["epoch"], importer["expected_interval_s"]) == ("web-2", 17, 30.0)
    assert (await ask(FakeWebView(), "/api/view")).json()["data"].keys() == set(PAGES_OF_VIEW)


@pytest.mark.parametrize("pages", ["nothing", "overview,nothing", "", "overview,", "__class__"])
async def test_a_page_that_does_not_exist_is_refused(pages: str) -> None:
    answer = await ask(FakeWebView(), f"/api/view?pages={pages}")
    assert answer.status_code == 400
    assert "overview, runners" in answer.json()["hint"]


async def test_without_a_database_there_is_no_view() -> None:
    web_view = FakeWebView()
    web_view.judged = PersistenceError(doing="reading", problem="connection refused", outcome="unreachable")
    answer = await ask(web_view, "/api/view?pages=overview")
    assert answer.status_code == 503
    assert "connection refused" in answer.json()["error"]


@pytest.mark.parametrize(("status", "code"), [("degraded", 200), ("unhealthy", 503)])
async def test_an_unhealthy_cluster_is_a_503_and_a_degraded_one_is_not(status: Any, code: int) -> None:
    web_view = FakeWebView()
    reason = Reason(status=status, what="14 shards", problem="no owner", hint="coterie shards")
    web_view.judged = health(reason)
    answer = await ask(web_view, "/health")
    assert answer.status_code == code
    assert answer.json()["reasons"] == [
        {"status": status, "what": "14 shards", "problem": "no owner", "hint": "coterie shards"}
    ]


async def test_without_a_database_health_says_so() -> None:
    web_view = FakeWebView()
    web_view.judged = PersistenceError(doing="reading", problem="connection refused", outcome="unreachable")
    web_view.why_unready = (STUCK,)
    answer = await ask(web_view, "/health")
    assert answer.status_code == 503
    assert answer.json()["status"] == "unhealthy"
    away, here = answer.json()["reasons"]
    assert "connection refused" in away["problem"]
    assert here["what"] == "singleton importer", "what is known without it"


async def test_a_database_that_hangs_does_not_hang_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "LOOKED_WITHIN_S", 0.05)
    web_view = FakeWebView()
    web_view.waits.clear()
    answer = await ask(web_view, "/health")
    assert answer.status_code == 503
    assert answer.json()["reasons"][0]["problem"] == "no answer within 0.05s"


async def test_metrics_honour_what_the_scraper_accepts() -> None:
    web_view = FakeWebView()
    answer = await ask(web_view, "/metrics", accept="application/openmetrics-text")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.text == "# EOF\n"
    assert web_view.accepted == "application/openmetrics-text"


async def test_an_answer_that_fails_shows_nothing_of_why(caplog: pytest.LogCaptureFixture) -> None:
    """INV-X4: a stack may hold anything. It is in the log, once."""
    web_view = FakeWebView()
    web_view.judged = RuntimeError("the password is hunter2")
    answer = await ask(web_view, "/health")
    assert answer.status_code == 500
    assert "hunter2" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert [each.message for each in caplog.records if each.name == "coterie"] == [
        "an answer to GET /health has failed"
    ]


async def test_the_token_is_in_no_answer_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """INV-X4."""
    for path in PATHS:
        for headers in ({}, {"authorization": f"Bearer {TOKEN}"}, {"authorization": f"Basic {TOKEN}"}):
            answer = await ask(FakeWebView(Secret(TOKEN)), path, client="10.0.0.7", **headers)
            assert TOKEN not in answer.text + str(answer.headers)
    assert TOKEN not in caplog.text


async def test_wrong_tokens_are_told_once_in_a_while_and_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guesser is noticed, and does not fill the log."""
    transport = httpx.ASGITransport(build(FakeWebView(Secret(TOKEN))), client=("10.0.0.7", 50_000))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://10.0.0.7", headers={"authorization": "x"}
    ) as http:
        for _ in range(5):
            await http.get("/health")
        assert [each.message for each in caplog.records if each.name == "coterie"] == [
            "1 requests over HTTP had a wrong token, the last from 10.0.0.7"
        ]
        later_s = asyncio.get_running_loop().time() + access.TOLD_EVERY_S
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: later_s)
        await http.get("/health")
    assert caplog.records[-1].message == "5 requests over HTTP had a wrong token, the last from 10.0.0.7"


async def test_the_document_describes_every_path() -> None:
    described = (await ask(FakeWebView(), "/openapi.json")).json()
    assert sorted(described["paths"]) == sorted(
        [*PATHS, "/page/{file}", STREAM, "/api/acts/{act}", *(f"/api/{each}" for each in DETAILS)]
    )
    assert described["info"]["version"] == "1.2.3"


@pytest.mark.parametrize("path", PATHS)
async def test_every_answer_is_what_the_document_promises(path: str) -> None:
    """To whomever, whatever the cluster's state."""
    promised = schemathesis.openapi.from_dict(document("1"))[path]["GET"]
    well, ill, away = FakeWebView(Secret(TOKEN)), FakeWebView(Secret(TOKEN)), FakeWebView(Secret(TOKEN))
    ill.why_unready = ill.why_unstarted = (STUCK,)
    ill.judged = health(STUCK)
    away.judged = PersistenceError(doing="reading", problem="connection refused", outcome="unreachable")
    for web_view in (well, ill, away):
        for answer in (
            await ask(web_view, path),
            await ask(web_view, path, client="10.0.0.7"),
            await ask(web_view, path, client="10.0.0.7", authorization=f"Bearer {TOKEN}"),
            await ask(web_view, path, host="evil.example"),
        ):
            promised.validate_response(answer)
            assert str(answer.status_code) in promised.definition.raw["responses"]
