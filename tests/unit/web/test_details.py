"""What the page shows of one thing: bounded, what nobody knows is null, nothing of the program if it is redacted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import schemathesis

from coterie.storage.contracts.incoming_calls import Found
from coterie.web.openapi import document
from tests.unit.web.fake_cluster import FakeWebView
from tests.unit.web.page_program import SECRET, Account, browser, checkout, dead, running, until
from tests.unit.web.test_application import DETAILS, ask

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from coterie import Cluster


async def got(http: httpx.AsyncClient, route: str, **query: Any) -> Any:
    """What the route tells once the runner answers within its half second: on a busy machine not at the first try."""
    answer = await until(lambda: answered(http, route, query))
    assert answer.status_code == 200, answer.text
    schemathesis.openapi.from_dict(document("1"))[f"/api/{route}"]["GET"].validate_response(answer)
    return answer.json()


async def answered(http: httpx.AsyncClient, route: str, query: dict[str, Any]) -> httpx.Response | None:
    answer = await http.get(f"/api/{route}", params=query)
    return None if answer.status_code == 200 and answer.json().get("silent") else answer


async def filled(cluster: Cluster) -> str:
    """With something of everything; the id of a dead message."""
    await cluster.call(cluster.ref(Account, "alice").deposit(500, SECRET))
    await cluster.kv.set("settings:theme", SECRET)
    await cluster.kv.set("settings:zone", "UTC")
    await cluster.start_workflow(checkout, f"order {SECRET}", id="o-7")
    tick = await cluster.crons.trigger("report")
    await cluster.crons.wait(tick)

    async def has_saved() -> Any:
        return await cluster.singletons.history("importer")

    async def waits() -> bool:
        (run,) = await cluster.workflows.list(name="checkout")
        return run.status == "suspended"

    await until(has_saved)
    await until(waits)
    message = await dead(cluster)
    await cluster.call(cluster.ref(Account, "alice").deposit(0))  # a failed handler's entity is not in memory
    return message


async def test_everything_in_detail(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, browser(cluster) as http:
        message = await filled(cluster)

        singleton = await got(http, "singleton", name="importer")
        assert (singleton["line"]["leader"], singleton["state"]["value"]["last_id"]) == ("anna", 1)
        assert singleton["state"]["saved_at"] == singleton["saved"][0]["saved_at"]
        assert [(each["runner"], each["until_at"]) for each in singleton["history"]] == [("anna", None)]

        cron = await got(http, "cron", name="report")
        (tick,) = cron["history"]
        assert (tick["outcome"], tick["attempts"], tick["runner"]) == ("failed", 1, "anna")
        assert tick["error"] == f"ValueError: no {SECRET} today"
        assert len(cron["next"]) == 10

        axis = await got(http, "ticks")
        (lane,) = axis["crons"]
        assert (lane["name"], len(lane["ticks"]), len(lane["next"])) == ("report", 1, 1)
        later = await got(http, "ticks", **{"from": "2126-01-01T00:00:00Z", "until": "2126-01-01T05:00:00Z"})
        assert (later["crons"][0]["ticks"], len(later["crons"][0]["next"])) == ([], 5)
        assert (await got(http, "ticks", name=["nothing", "report"]))["crons"] == axis["crons"]
        assert (await got(http, "ticks", name="nothing"))["crons"] == []
        assert (await http.get("/api/ticks", params={"name": ""})).status_code == 400

        moved = await got(http, "shards/moves")
        assert {each["shard"] for each in moved["moves"]} == {f"default:{number}" for number in range(3)}
        assert {(each["epoch"], each["from"], each["to"]) for each in moved["moves"]} == {(1, None, "anna")}
        assert all(moved["since"] <= each["at"] for each in moved["moves"])

        entities = await got(http, "entities", type="Account")
        assert [(each["id"], each["runner"], each["waiting"]) for each in entities["entities"]] == [
            ("alice", "anna", 0)
        ]
        assert entities["entities"][0]["shard"].startswith("default:")
        alice = await got(http, "entity", type="Account", id="alice")
        assert (alice["known"], alice["runner"], alice["state"]["value"]["cents"]) == (True, "anna", 500)
        assert alice["messages"] == {"pending": 0, "dead": 1}
        nobody = await got(http, "entity", type="Account", id="nobody")
        assert (nobody["known"], nobody["waiting"], nobody["idle_s"], nobody["state"]) == (False, None, None, None)

        listed = await got(http, "messages", type="Account", entity="alice", state="dead", error="payments")
        assert [each["id"] for each in listed["messages"]] == [message]
        assert "arguments" not in listed["messages"][0]
        (shown,) = (await got(http, "message", id=message)).values()
        assert (shown["state"], shown["arguments"]) == ("dead", {"cents": -5, "order": SECRET})
        assert shown["errors"][0]["traceback"].startswith("ConnectionRefusedError")

        run = await got(http, "workflow", name="checkout", id="o-7")
        assert (run["line"]["status"], run["input"], run["result"]) == ("suspended", f"order {SECRET}", None)
        charge, approval = run["steps"]
        assert (charge["name"], charge["status"], charge["attempts"], charge["runner"]) == ("charge", "done", 1, "anna")
        assert run["line"]["started_at"] <= charge["began_at"] <= charge["ended_at"] <= approval["began_at"]
        assert (approval["status"], approval["ended_at"], approval["attempts"]) == ("waiting", None, None)
        (wait,) = run["waits"]
        assert (wait["name"], wait["kind"], wait["began_at"]) == ("approval", "deferred", approval["began_at"])
        assert "approved" in str(wait["schema"])
        async with browser(cluster, access=lambda _: "read") as reader:
            (seen,) = (await got(reader, "workflow", name="checkout", id="o-7"))["waits"]
            assert seen == {**wait, "token": None}, "who has it can resolve the deferred"
        await cluster.resolve(wait["token"], {"approved": True})

        keys = await got(http, "kv", prefix="settings:", limit=1)
        assert ([each["key"] for each in keys["entries"]], keys["more"]) == (["settings:theme"], True)
        rest = await got(http, "kv", prefix="settings:", after="settings:theme")
        assert [(each["key"], each["value"], each["changed_at"]) for each in rest["entries"]] == [
            ("settings:zone", "UTC", None)
        ]


async def test_messages_are_listed_newest_first_and_page_by_page(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, browser(cluster) as http:
        sent = [str(await cluster.send(cluster.ref(Account, "a").deposit(each), delay="1h")) for each in range(5)]
        for state in ({}, {"state": "scheduled"}):
            listed: list[str] = []
            while True:
                page = await got(http, "messages", limit=2, **state, **({"after": listed[-1]} if listed else {}))
                listed += [each["id"] for each in page["messages"]]
                if not page["more"]:
                    break
            assert listed == sorted(sent, reverse=True)


async def test_what_sql_has_sent_is_shown_while_no_runner_has_taken_it_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Found("call", "Report", None, "7", "build", SECRET, 1_700_000_000.0)
    for redact in (False, True):
        folder = tmp_path / str(redact)
        folder.mkdir()
        async with running(folder, redact=redact) as cluster, browser(cluster) as http:

            async def find(id: str) -> Found | None:
                return found if id == "m-1" else None

            monkeypatch.setattr(cluster._acting().storage.incoming, "find", find)
            answer = await got(http, "message", id="m-1")
            assert answer["message"] is None
            incoming = answer["incoming"]
            assert (incoming["type"], incoming["entity"], incoming["method"]) == ("Report", "7", "build")
            assert incoming["sent_at"] == "2023-11-14T22:13:20Z"
            assert incoming["key"] == (None if redact else SECRET)
            assert (await http.get("/api/message", params={"id": "m-2"})).status_code == 404


async def test_redacted_nothing_of_the_program_is_shown(tmp_path: Path) -> None:
    async with running(tmp_path, redact=True) as cluster, browser(cluster) as http:
        message = await filled(cluster)
        asked = {
            "singleton": {"name": "importer"},
            "cron": {"name": "report"},
            "ticks": {},
            "entities": {"type": "Account"},
            "entity": {"type": "Account", "id": "alice"},
            "messages": {"state": "dead"},
            "message": {"id": message},
            "workflow": {"name": "checkout", "id": "o-7"},
            "kv": {},
            "view": {},
        }
        for route, query in asked.items():
            told = str(await got(http, route, **query))
            assert SECRET not in told, route
        assert "arguments" not in (await got(http, "message", id=message))["message"]
        assert (await http.get("/api/messages", params={"error": "payments"})).status_code == 403


@pytest.mark.parametrize(
    ("route", "query", "status"),
    [
        ("singleton", {"name": "nothing"}, 404),
        ("singleton", {}, 400),
        ("singleton", {"name": "a\0b"}, 400),
        ("singleton", {"name": "<script>alert(1)</script>" * 300}, 404),
        ("cron", {"name": "'; drop table ticks; --"}, 404),
        ("ticks", {"from": "yesterday"}, 400),
        ("ticks", {"name": "\x00"}, 400),
        ("ticks", {"from": "2026-01-01T00:00:00"}, 400),
        ("entities", {"type": "Nothing"}, 404),
        ("entities", {"type": "Account", "limit": "0"}, 400),
        ("entities", {"type": "Account", "limit": "1000000"}, 400),
        ("entities", {"type": "Account", "limit": "²"}, 400),
        ("entity", {"type": "Account"}, 400),
        ("entity", {"type": "Nothing", "id": "x"}, 404),
        ("messages", {"state": "lost"}, 400),
        ("messages", {"entity": "alice"}, 404),
        ("messages", {"older": "soon"}, 400),
        ("messages", {"type": "a\0b"}, 400),
        ("message", {"id": "nothing"}, 404),
        ("message", {"id": "\N{RIGHT-TO-LEFT OVERRIDE}x"}, 404),
        ("workflow", {"name": "checkout", "id": "nothing"}, 404),
        ("kv", {"prefix": "\0"}, 400),
    ],
)
async def test_what_is_not_there_or_no_name_is_refused(
    served: httpx.AsyncClient, route: str, query: Any, status: int
) -> None:
    answer = await served.get(f"/api/{route}", params=query)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]
    assert answer.headers["content-type"] == "application/json"


@pytest.fixture
async def served(tmp_path: Path) -> Any:
    async with running(tmp_path) as cluster, browser(cluster) as http:
        yield http


@pytest.mark.parametrize("route", DETAILS)
async def test_a_stranger_sees_nothing(route: str) -> None:
    assert (await ask(FakeWebView(), f"/api/{route}", client="10.0.0.7")).status_code == 401
    assert (await ask(FakeWebView(web="off"), f"/api/{route}")).status_code == 404


@pytest.mark.parametrize("route", [each for each in DETAILS if each != "ticks"])
async def test_a_runner_that_is_not_up_says_so(route: str) -> None:
    answer = await ask(FakeWebView(), f"/api/{route}?name=a&type=T&id=1")
    assert answer.status_code == 503
    assert "is not started" in answer.json()["error"]


async def test_the_wait_for_an_answer_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.web import details

    monkeypatch.setattr(details, "WITHIN_S", 0.05)
    web_view = FakeWebView()
    web_view.waits.clear()
    answer = await ask(web_view, "/api/ticks")
    assert (answer.status_code, answer.json()["error"]) == (503, "no answer in time")
