"""What people may do with the page: who may, what is said before, what is done, and what is recorded."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import schemathesis

from coterie.errors import PersistenceError
from coterie.web import acts
from coterie.web.acts import Acts
from coterie.web.application import build
from coterie.web.openapi import document
from coterie.web.server import HttpServer
from tests.unit.web.fake_cluster import FakeWebView
from tests.unit.web.page_program import CARRIERS, SECRET, Account, browser, checkout, dead, delivery, running, until
from tests.unit.web.test_application import METHODS, TOKEN, ask
from tests.unit.web.test_server import connect, settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from coterie import Cluster

DESCRIBED = schemathesis.openapi.from_dict(document("1"))
ACTS = list(Acts(FakeWebView(), token="").plans)


async def token_of(http: httpx.AsyncClient) -> str:
    return str((await http.get("/api/session")).json()["token"])


async def post(
    http: httpx.AsyncClient, act: str, body: Any, *, preview: bool = False, **headers: str
) -> httpx.Response:
    token = await token_of(http)
    path = f"/api/acts/{act}" + ("?preview=1" if preview else "")
    answer = await http.post(path, json=body, headers={"x-coterie-act": token, **headers})
    DESCRIBED["/api/acts/{act}"]["POST"].validate_response(answer)
    return answer


async def done(http: httpx.AsyncClient, act: str, body: Any) -> tuple[Any, Any]:
    """What it says before, and after."""
    before = await post(http, act, body, preview=True)
    assert before.status_code == 200, before.text
    after = await post(http, act, body)
    assert after.status_code == 200, after.text
    return before.json(), after.json()


async def recorded(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await http.get("/api/activity")).json()["rows"]
    return rows


async def test_messages_are_retried_deleted_and_sent_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, browser(cluster) as http:
        one, two = await dead(cluster, "alice"), await dead(cluster, "bob", "other")

        before, after = await done(http, "retry", {"ids": [one]})
        assert before == {"will": "retries 1 dead message of Account.charge", "count": 1}
        assert after == {"done": "1 dead message of Account.charge run again", "count": 1}
        await until_dead(cluster, one)  # again
        before, after = await done(http, "retry", {"filter": {"type": "Account", "error": "other"}})
        assert before["count"] == after["count"] == 1
        await until_dead(cluster, two)
        nothing = (await post(http, "retry", {"filter": {"type": "Nothing"}}, preview=True)).json()
        assert nothing == {"will": "retries nothing: no dead message matches", "count": 0}

        body = {"id": one, "arguments": {"cents": 5, "order": "o-1"}}
        before, after = await done(http, "edit", body)
        assert before["will"].startswith("sends Account/alice.charge with these arguments as a new message")
        sent = after["done"].split("message ")[1].partition(";")[0]
        assert await cluster.result(sent) == 5
        assert (await cluster.messages.show(one)).status == "dead", "it stays until it is purged"
        assert sent in (await post(http, "edit", body)).json()["done"], "a repeated request is the same message"
        wrong = await post(http, "edit", {"id": one, "arguments": {"cents": "five", "order": "o-1"}})
        assert wrong.status_code == 400
        ended = await post(http, "edit", {"id": sent, "arguments": {}})
        assert ended.status_code == 409

        before, after = await done(http, "purge", {"filter": {"state": "dead"}})
        assert (before["count"], after["count"]) == (2, 2)
        assert (await post(http, "retry", {"ids": [one]})).status_code == 404
        assert (await post(http, "purge", {"filter": {"state": "waiting"}})).status_code == 400
        assert (await post(http, "purge", {"ids": [sent], "filter": {}})).status_code == 400
        assert (await post(http, "purge", {})).status_code == 400
        assert (await post(http, "purge", {"ids": ["x"] * 2 + [str(each) for each in range(1_001)]})).status_code == 400


async def until_dead(cluster: Cluster, message: str) -> None:
    async def is_dead() -> bool:
        return (await cluster.messages.show(message)).status == "dead"

    await until(is_dead)


async def test_crons_singletons_entities_and_runners(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, browser(cluster) as http:
        message = await dead(cluster)
        before, after = await done(http, "trigger", {"cron": "report"})
        assert before == {"will": "runs report once now, outside its schedule", "count": 1}
        assert after["done"].startswith("report runs once, as the tick 20")
        assert len(await cluster.crons.history("report")) == 1
        await done(http, "pause", {"cron": "report"})
        assert (await cluster.crons.get("report")).paused_at is not None
        assert (await post(http, "pause", {"cron": "report"}, preview=True)).json()["count"] == 0
        await done(http, "resume", {"cron": "report"})
        assert (await cluster.crons.get("report")).paused_at is None

        epoch = (await cluster.singletons.get("importer")).epoch
        before, after = await done(http, "resign", {"singleton": "importer"})
        assert before["will"].startswith("importer will be led anew, by another runner if there is one: anna, epoch")
        assert (await cluster.singletons.get("importer")).epoch > epoch

        before, after = await done(http, "reset", {"type": "Account", "id": "alice"})
        assert (before["count"], after["count"]) == (1, 1)
        await until_dead(cluster, message)

        before, after = await done(http, "drain", {"runner": "anna"})
        assert before["will"] == "anna will give up 5 seats with no other runner to take over"

        async def is_empty() -> bool:
            return not any((await cluster.shards()).values())

        await until(is_empty)
        for act, body in (
            ("trigger", {"cron": "nothing"}),
            ("resign", {"singleton": "nothing"}),
            ("drain", {"runner": "nothing"}),
            ("interrupt", {"workflow": "checkout", "id": "nothing"}),
        ):
            refused = await post(http, act, body)
            assert refused.status_code == 404, refused.text
            assert "nothing" in refused.json()["error"]


async def test_workflows_are_resolved_resumed_and_interrupted(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, browser(cluster) as http:
        for id_ in ("o-7", "o-8"):
            await cluster.start_workflow(checkout, id_, id=id_)

        async def waits() -> Any:
            return [await waiting(http, id_) for id_ in ("o-7", "o-8") if await waiting(http, id_)][1:]

        await until(waits)
        (wait,) = await waiting(http, "o-7")
        unfit = await post(http, "resolve", {"token": wait["token"], "value": {"approved": "perhaps"}})
        assert unfit.status_code == 400
        before, _ = await done(http, "resolve", {"token": wait["token"], "value": {"approved": True, "note": SECRET}})
        assert before["will"] == 'deferred "approval" of checkout/o-7 will have this value, for good'
        assert await cluster.workflow_handle(checkout, "o-7").result() == "o-7 is paid True"
        again = await post(http, "resolve", {"token": wait["token"], "value": {"approved": True}})
        assert again.status_code == 409
        assert (await post(http, "resolve", {"token": "tnone", "value": 1})).status_code == 400

        await done(http, "resume-workflow", {"workflow": "checkout", "id": "o-8"})
        before, _ = await done(http, "interrupt", {"workflow": "checkout", "id": "o-8"})
        assert "1 step done) will be interrupted, and undo what it has done" in before["will"]

        async def is_over() -> bool:
            return await cluster.workflow_handle(checkout, "o-8").status() == "interrupted"

        await until(is_over)
        assert (await post(http, "interrupt", {"workflow": "checkout", "id": "o-8"})).status_code == 409
        assert SECRET not in json.dumps(await recorded(http)), "values are not recorded"


async def test_runs_are_sent_messages_retried_and_forked(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, browser(cluster) as http:
        run = {"workflow": "delivery", "id": "p"}
        handle = await cluster.start_workflow(delivery, "p", id="p")

        def stands(id_: str, status: str) -> Callable[[], Awaitable[Any]]:
            async def found() -> bool:
                return await cluster.workflow_handle(delivery, id_).status() == status

            return found

        assert (await post(http, "send-to-workflow", {**run, "name": "", "value": 1})).status_code == 400
        message = {**run, "name": "dispatch", "value": SECRET}
        before, after = await done(http, "send-to-workflow", message)
        assert (before["will"], after["done"]) == (
            "delivery/p will be sent the message dispatch",
            "message dispatch is sent to delivery/p",
        )
        await until(stands("p", "failed"))
        told = (await http.get("/api/workflow", params={"name": "delivery", "id": "p"})).json()
        assert [(each["name"], each["value"]) for each in told["published"]] == [("status", "packed")]
        assert (await post(http, "send-to-workflow", message)).status_code == 409

        CARRIERS.add("p")
        before, _ = await done(http, "retry-workflow", run)
        assert before["will"] == "delivery/p will go on from the step that failed"
        assert await handle.result() == f"by train, {SECRET}"
        assert (await post(http, "retry-workflow", run)).status_code == 409
        before, _ = await done(http, "fork-workflow", {**run, "before": "book", "new_id": "q"})
        assert before["will"] == "delivery/q will be started with 2 steps of delivery/p, before book"
        await until(stands("q", "done"))
        assert (await post(http, "fork-workflow", {**run, "before": "book", "new_id": "q"})).status_code == 409
        assert (await post(http, "fork-workflow", {**run, "before": "pay", "new_id": "r"})).status_code == 400
        for act in ("retry-workflow", "send-to-workflow", "fork-workflow"):
            more: dict[str, dict[str, Any]] = {
                "send-to-workflow": {"name": "a", "value": 1},
                "fork-workflow": {"before": "a", "new_id": "b"},
            }
            assert (await post(http, act, {**run, "id": "nobody", **more.get(act, {})})).status_code == 404
        assert SECRET not in json.dumps(await recorded(http)), "values are not recorded"


async def waiting(http: httpx.AsyncClient, id_: str) -> Any:
    answer = await http.get("/api/workflow", params={"name": "checkout", "id": id_})
    return answer.json()["waits"]


async def test_each_act_is_recorded_with_who_and_from_where(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path) as cluster, browser(cluster) as http:
        caplog.set_level(logging.INFO, "coterie")
        await post(http, "pause", {"cron": "report"}, preview=True)
        assert await recorded(http) == [], "nothing was done"
        await post(http, "pause", {"cron": "report"})
        await post(http, "resume", {"cron": "report"})
        (last, first) = await recorded(http)
        assert {name: first[name] for name in ("who", "from", "act", "what", "result")} == {
            "who": "this machine",
            "from": "127.0.0.1",
            "act": "pause",
            "what": "cron report",
            "result": "report is paused",
        }
        assert first["at"].endswith("Z")
        assert "pause by this machine from 127.0.0.1: cron report: report is paused" in caplog.text
        older = (await http.get("/api/activity", params={"before": last["id"], "limit": 1})).json()
        assert (older["rows"], older["more"]) == ([first], False)
        assert (await http.get("/api/activity", params={"before": "²"})).status_code == 400


async def test_a_refused_act_is_recorded_and_one_that_cannot_be_recorded_is_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as cluster, browser(cluster) as http:
        message = await dead(cluster)
        await post(http, "edit", {"id": message, "arguments": {"cents": "five", "order": "o-1"}})
        (row,) = await recorded(http)
        assert row["result"].startswith("refused: ")

        async def full(*_: object) -> None:
            raise PersistenceError(doing="writing", problem="disk full", outcome="refused")

        monkeypatch.setattr(cluster._acting().storage.activity, "add", full)
        assert (await post(http, "pause", {"cron": "report"})).status_code == 200
        assert "the act pause is in this log only" in caplog.text


async def test_an_application_says_who_it_is(tmp_path: Path) -> None:
    """With `access=` it decides, whatever the address; a user of Starlette's authentication is recorded."""

    class User:
        is_authenticated = True
        display_name = "mara \N{RIGHT-TO-LEFT OVERRIDE}" + "x" * 10_000

    def decide(request: Any) -> Any:
        request.scope["user"] = User()
        return request.headers.get("x-role", "none")

    async with (
        running(tmp_path, http_token=TOKEN) as cluster,
        browser(cluster, client="10.0.0.7", host="ops.example", access=decide) as http,
    ):
        assert (await http.get("/api/view")).status_code == 401
        http.headers["x-role"] = "read"
        assert (await http.get("/api/session")).json()["access"] == "read"
        http.headers["x-role"] = "act"
        assert (await post(http, "pause", {"cron": "report"})).status_code == 200
        (row,) = await recorded(http)
        assert (row["who"][:6], len(row["who"]), row["from"]) == ("mara \u202e", 500, "10.0.0.7")


async def test_a_decision_may_be_awaited_and_an_unknown_one_is_an_error() -> None:
    async def allows(_: Any) -> Any:
        await asyncio.sleep(0)
        return "read"

    decisions: list[tuple[Any, int]] = [(allows, 200), (lambda _: "all", 500)]
    for decide, status in decisions:
        transport = httpx.ASGITransport(build(FakeWebView(), decide=decide), client=("10.0.0.7", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://ops.example") as http:
            assert (await http.get("/api/view")).status_code == status


# ── refusals ────────────────────────────────────────────────────────────────────────────────────────────────────

GOOD = {"content_type": "application/json", "origin": "http://127.0.0.1:7650"}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({}, 403),  # without the token
        ({"x_coterie_act": "guess"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:7651"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "none"}, 403),
        ({"host": "evil.example:7650", "origin": "http://evil.example:7650"}, 421),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_type": ""}, 415),
        ({"x_forwarded_for": "1.2.3.4"}, 401),
    ],
    ids=str,
)
async def test_what_the_page_has_not_sent_is_refused(act: str, given: dict[str, str], status: int) -> None:
    refused = await ask(FakeWebView(), f"/api/acts/{act}", method="POST", **{**GOOD, **given})
    assert refused.status_code == status, refused.text
    assert refused.json()["error"]
    assert refused.json().get("renew", False) is (status == 403 and given.keys() <= {"x_coterie_act"})


@pytest.mark.parametrize(
    ("web_view", "client", "status"),
    [
        (FakeWebView(web="read"), "127.0.0.1", 403),
        (FakeWebView(web="off"), "127.0.0.1", 404),
        (FakeWebView(), "10.0.0.7", 401),
        (FakeWebView(web="act"), "10.0.0.7", 401),
    ],
    ids=["read", "off", "elsewhere", "elsewhere, act"],
)
async def test_who_may_not_act_does_not(web_view: FakeWebView, client: str, status: int) -> None:
    for preview in ("", "?preview=1"):
        refused = await ask(web_view, f"/api/acts/pause{preview}", method="POST", client=client, **GOOD)
        assert refused.status_code == status


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"cron": 1}',
        b'{"cron": "a", "more": 1}',
        b"\xff",
        b'{"cron": "\\ud800"}',
        b"[" * 5000,
    ],
)
async def test_a_body_that_cannot_be_read_is_refused(body: bytes) -> None:
    assert (await sent(FakeWebView(), body)).status_code == 400


async def test_a_body_that_is_too_large_is_refused() -> None:
    assert (await sent(FakeWebView(), b" " * (acts.BODY_MOST_BYTES + 1))).status_code == 413


async def test_other_acts_do_not_exist() -> None:
    refused = await sent(FakeWebView(), b"{}", act="<b>drop</b>")
    assert refused.status_code == 404


async def test_a_runner_that_stops_does_nothing_more() -> None:
    assert (await sent(FakeWebView(), b'{"cron": "a"}')).status_code == 503


async def sent(web_view: FakeWebView, body: bytes, *, act: str = "pause") -> httpx.Response:
    """A request with everything that the page sends."""
    transport = httpx.ASGITransport(build(web_view), client=("127.0.0.1", 50_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7650") as http:
        headers = {
            "x-coterie-act": await token_of(http),
            "content-type": "application/json; charset=utf-8",
            "sec-fetch-site": "same-origin",
        }
        return await http.post(f"/api/acts/{act}", content=body, headers=headers)


@pytest.mark.parametrize("method", [each for each in [*METHODS, "GET", "HEAD"] if each != "POST"])
async def test_nothing_but_a_post_acts(method: str) -> None:
    refused = await ask(FakeWebView(), "/api/acts/pause", method=method, **GOOD)
    assert refused.status_code == 405


async def test_redacted_arguments_cannot_be_edited(tmp_path: Path) -> None:
    async with running(tmp_path, redact=True) as cluster, browser(cluster) as http:
        message = await dead(cluster)
        refused = await post(http, "edit", {"id": message, "arguments": {"cents": 5, "order": "o-1"}})
        assert refused.status_code == 403
        guess = await post(http, "retry", {"filter": {"error": SECRET}}, preview=True)
        assert guess.status_code == 403, "an answer would tell what is hidden"
        assert (await post(http, "retry", {"ids": [message]}, preview=True)).json()["count"] == 1


async def test_over_the_wire_a_large_body_is_cut_off() -> None:
    async with asyncio.timeout(120), HttpServer(build(FakeWebView()), settings()) as server:
        reader, writer = await connect(server)
        writer.write(
            b"POST /api/acts/pause HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 99999999\r\n\r\n"
        )
        assert b" 403 " in await reader.readline(), "refused before it is read"
        writer.close()


async def test_hostile_names_are_names(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, browser(cluster) as http:
        hostile = "<img src=x onerror=alert(1)>\"';--\N{RIGHT-TO-LEFT OVERRIDE}" + "x" * 900
        await cluster.call(cluster.ref(Account, hostile).deposit(1))
        answer = await http.get("/api/entity", params={"type": "Account", "id": hostile})
        assert answer.json()["id"] == hostile
        refused = await post(http, "trigger", {"cron": hostile * 10})
        assert refused.status_code == 404
        assert refused.headers["content-type"] == "application/json"
        reset = await post(http, "reset", {"type": "Account", "id": hostile}, preview=True)
        assert hostile in reset.json()["will"]
