"""Calls over HTTP: who may make them, what they return, and how each failure looks (O4)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import pytest
import schemathesis

from coterie import (
    Cluster,
    ConfigurationError,
    Entity,
    MalformedMessage,
    PersistenceError,
    RunnerUnavailable,
    Workflow,
    rpc,
    web,
)
from coterie.kernel.ids import EntityAddress
from coterie.kernel.text import visible
from coterie.settings import Settings
from coterie.web.calls import handlers as calls
from coterie.web.calls.errors import refusal_of
from coterie.web.openapi import document
from coterie.web.server import HttpServer
from tests.unit.web.page_program import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "calls-token-of-these-tests"
PAGE_TOKEN = "page-token-of-these-tests"
FAR = "?timeout=120s"
"""For what takes a fraction of a second on an idle machine."""
JSON = {"content-type": "application/json"}


@dataclass
class Balance:
    cents: int = 0
    orders: list[str] = field(default_factory=list)


class OverdrawnError(Exception):
    pass


class Account(Entity[Balance]):
    @rpc(persisted=True, key="order", errors=[OverdrawnError])
    async def deposit(self, order: str, cents: int) -> Balance:
        if cents < 0:
            raise OverdrawnError(f"{order} takes too much")
        self.state.cents += cents
        self.state.orders.append(order)
        return self.state

    @rpc(persisted=True)
    async def add(self, cents: int) -> int:
        self.state.cents += cents
        return self.state.cents

    @rpc(persisted=True)
    async def wait(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "waited"

    @rpc
    async def who(self) -> str:
        return self.id

    @rpc
    async def typed(
        self, at: datetime, data: bytes, by: dict[int, float], lasting: timedelta = timedelta(minutes=90)
    ) -> tuple[datetime, bytes, dict[int, float], timedelta, int]:
        return at, data, by, lasting, 2**60

    @rpc
    async def fail(self) -> None:
        raise KeyError("what the body said")

    @rpc
    async def lie(self) -> int:
        return "no number"  # type: ignore[return-value]

    @rpc
    async def count(self) -> AsyncIterator[int]:
        yield 1


class Busy(Entity[None]):
    @rpc
    async def hold(self) -> None:
        await asyncio.Event().wait()


class Private(Entity[None]):
    @rpc
    async def open(self) -> int:
        return 1

    @rpc(persisted=True)
    async def closed(self) -> int:
        return 2


async def checkout(workflow: Workflow, order: Balance) -> Balance:
    return order


async def approve(workflow: Workflow, order: str) -> str:
    return await workflow.deferred("yes", str).wait()


async def break_down(workflow: Workflow, order: str) -> None:
    raise KeyError(order)


async def resize(picture: str, width: int = 200) -> Balance:
    return Balance(width)


async def hidden() -> None: ...


_RUNS = ("checkout", "approve", "break_down")
OFFERED = ["Account", "Busy", "Private.open", "task:resize", *(f"workflow:{name}" for name in _RUNS)]


def program(url: str, **settings: Any) -> Cluster:
    steady = {"lease_ttl": "60s", "stall_limit": "60s", "http_listen": None, "shards": 3}
    made = Cluster(url, **{**steady, "http_calls": OFFERED, "http_calls_token": TOKEN, **settings})
    made.entity(Account)
    made.entity(mailbox=1)(Busy)
    made.entity(Private)
    for each in (checkout, approve, break_down):
        made.workflow(each)
    made.task(key="picture", group="elsewhere")(resize)
    return made


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/calls.db"
    fresh: str = request.getfixturevalue("postgres_url")
    return fresh


@asynccontextmanager
async def running(url: str, **settings: Any) -> AsyncIterator[Cluster]:
    cluster = program(url, **settings)
    async with asyncio.timeout(LIMIT_S), cluster:
        await cluster.ready()
        yield cluster


@asynccontextmanager
async def caller(
    cluster: Cluster, *, token: str | None = TOKEN, client: str = "10.0.0.7", **app: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of its application, on another machine."""
    transport = httpx.ASGITransport(web.app(cluster, **app), client=(client, 50_000))
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{client}", headers=headers) as http:
        yield http


async def post(http: httpx.AsyncClient, path: str, body: Any = None, **headers: str) -> httpx.Response:
    """An answer of the form that every one has."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await http.post(path, json={} if body is None else body, headers=named)
    if answer.status_code >= 400:
        told = answer.json()
        assert {"error", "code", "retryable"} <= told.keys(), told
        assert told.keys() <= {"error", "code", "retryable", "hint", "type", "message"}
    return answer


async def refused(http: httpx.AsyncClient, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    answer = await post(http, path, body, **headers)
    return answer.status_code, answer.json()["code"] if answer.status_code >= 400 else ""


# Results


async def test_a_call_returns_its_result_as_json(url: str) -> None:
    async with running(url) as cluster, caller(cluster) as http:
        answer = await post(http, f"/api/call/Account/alice/deposit{FAR}", {"order": "o-1", "cents": 5})
        assert (answer.status_code, answer.json()) == (200, {"cents": 5, "orders": ["o-1"]})
        assert answer.headers["content-type"] == "application/json"
        again = await post(http, f"/api/call/Account/alice/deposit{FAR}", {"order": "o-1", "cents": 5})
        assert again.json() == answer.json(), "the rpc has a key of its own"


async def test_values_without_json_have_their_usual_texts(tmp_path: Path) -> None:
    given = {"at": "2026-03-29T02:30:00+02:00", "data": base64.b64encode(b"\xff").decode(), "by": {"7": 0.5}}
    async with running(f"sqlite:///{tmp_path}/c.db") as cluster, caller(cluster) as http:
        answer = await post(http, f"/api/call/Account/alice/typed{FAR}", given)
        assert answer.json() == ["2026-03-29T00:30:00Z", "/w==", {"7": 0.5}, "PT5400S", 2**60]


async def test_a_message_is_sent_and_its_result_read_later(url: str) -> None:
    async with running(url) as cluster, caller(cluster) as http:
        sent = await post(http, "/api/send/Account/alice/deposit?delay=1h", {"order": "o-1", "cents": 5})
        assert sent.status_code == 202
        message, place = sent.json()["message"], sent.headers["location"]
        assert place == f"/api/result/{message}"
        waits = await http.get(place)
        assert (waits.status_code, waits.json()) == (202, {"message": message, "status": "pending"})

        now = await post(http, "/api/send/Account/alice/deposit", {"order": "o-2", "cents": 5})
        done = await http.get(now.headers["location"] + FAR)
        assert (done.status_code, done.json()["orders"]) == (200, ["o-2"])
        at = quote(datetime(2020, 1, 1, tzinfo=UTC).isoformat())
        past = await post(http, f"/api/send/Account/alice/add?at={at}", {"cents": 1})
        assert (await http.get(past.headers["location"] + FAR)).json() == 6

        volatile = await post(http, f"/api/send/Account/alice/who{FAR}")
        assert (volatile.status_code, volatile.json()["persisted"]) == (202, False)
        assert "location" not in volatile.headers

        bad = await post(http, "/api/send/Account/alice/deposit", {"order": "o-3", "cents": -5})
        failed = await http.get(bad.headers["location"] + FAR)
        assert (failed.status_code, failed.json()["type"]) == (409, "OverdrawnError")


async def test_a_workflow_is_started_watched_and_read(url: str) -> None:
    async with running(url) as cluster, caller(cluster) as http:
        started = await post(http, "/api/workflows/checkout/o%2F1", {"cents": 7})
        assert (started.status_code, started.json()["id"]) == (202, "o/1")
        place = started.headers["location"]
        assert place == "/api/workflows/checkout/o%2F1"
        ended = (await http.get(f"{place}{FAR}")).json()
        assert (ended["workflow"], ended["status"], ended["problem"]) == ("checkout", "done", None)
        assert ended["result"] == (await http.get(place)).json()["result"] == {"cents": 7, "orders": []}
        again = await post(http, "/api/workflows/checkout/o%2F1", {"cents": 7})
        assert (again.status_code, again.json()["status"]) == (202, "done"), "once for each id"
        assert await refused(http, "/api/workflows/checkout/o%2F1", {"cents": 8}) == (409, "key_conflict")
        assert await refused(http, "/api/workflows/checkout/o-2", {"cents": "8"}) == (422, "malformed_message")

        await post(http, "/api/workflows/approve/o-3", "please")
        for timeout in ("", "?timeout=20ms"):
            waits = await http.get(f"/api/workflows/approve/o-3{timeout}")
            assert (waits.status_code, waits.json()["ended_at"]) == (200, None)
            assert "result" not in waits.json()
        await cluster.workflow_handle(approve, "o-3").interrupt()
        assert (await http.get(f"/api/workflows/approve/o-3{FAR}")).json()["status"] == "interrupted"

        await post(http, "/api/workflows/break_down/o-4", "please")
        broken = (await http.get(f"/api/workflows/break_down/o-4{FAR}")).json()
        assert (broken["status"], broken["problem"]) == ("failed", "KeyError: 'please'")
        nothing = await http.get("/api/workflows/checkout/nothing")
        assert (nothing.status_code, nothing.json()["code"]) == (404, "workflow_not_found")


async def test_a_job_is_sent_and_its_result_read(url: str) -> None:
    """No runner serves its group: it waits, until it is cancelled."""
    async with running(url) as cluster, caller(cluster) as http:
        sent = await post(http, "/api/tasks/resize?priority=7", {"picture": "a.png", "width": 7})
        assert sent.status_code == 202
        job, place = sent.json()["message"], sent.headers["location"]
        assert place == f"/api/result/{job}"
        shown = await cluster.jobs.show(job)
        assert (shown.task, shown.state, shown.priority) == ("resize", "ready", 7)
        assert shown.payload == {"picture": "a.png", "width": 7}
        waits = await http.get(place)
        assert (waits.status_code, waits.json()) == (202, {"message": job, "status": "pending"})
        assert (await post(http, "/api/tasks/resize", {"picture": "a.png", "width": 7})).json()["message"] == job
        assert await refused(http, "/api/tasks/resize", {"picture": "a.png", "width": 8}) == (409, "key_conflict")
        assert await cluster.cancel(job)
        ended = await http.get(place)
        assert (ended.status_code, ended.json()["code"]) == (409, "message_cancelled")

        later = await post(http, "/api/tasks/resize?delay=1h", {"picture": "b.png"}, idempotency_key="k")
        assert (await cluster.jobs.show(later.json()["message"])).state == "later"
        for wrong in ({"picture": 7}, {}, {"picture": "a", "hight": 5}):
            assert await refused(http, "/api/tasks/resize", wrong) == (422, "malformed_message")
        for bad in ("priority=high", "priority=101"):
            assert await refused(http, f"/api/tasks/resize?{bad}", {"picture": "c"}) == (422, "invalid_argument")
        for name in ("hidden", "nothing", "Account"):
            assert await refused(http, f"/api/tasks/{name}") == (404, "not_offered")
        (unseen,) = await cluster.send_many([cluster.task(name="unseen", group="elsewhere")(hidden).job()])
        assert (await http.get(f"/api/result/{unseen}")).status_code == 404


# Who may call


async def test_nothing_is_called_unless_the_setting_names_it(tmp_path: Path) -> None:
    async with running(f"sqlite:///{tmp_path}/c.db") as cluster, caller(cluster) as http:
        assert (await post(http, f"/api/call/Private/x/open{FAR}")).json() == 1
        for name in ("Private/x/closed", "Nobody/x/open", "private/x/open", "Account./x/who"):
            assert await refused(http, f"/api/call/{name}") == (404, "not_offered")
            assert await refused(http, f"/api/send/{name}") == (404, "not_offered")
        hidden = await cluster.send(cluster.ref(Private, "x").closed())
        assert await cluster.result(hidden) == 2
        read = await http.get(f"/api/result/{hidden}")
        never = await http.get(f"/api/result/{'0' * 32}")
        assert read.status_code == never.status_code == 404
        assert read.text.replace(str(hidden), "") == never.text.replace("0" * 32, "")
        assert await refused(http, "/api/workflows/Account/x") == (404, "not_offered")


async def test_without_the_setting_there_are_no_such_paths(tmp_path: Path) -> None:
    cluster = program(f"sqlite:///{tmp_path}/c.db", http_calls=None)
    async with caller(cluster, client="127.0.0.1") as http:
        for path in ("/api/call/Account/a/who", "/api/send/Account/a/who", "/api/workflows/checkout/x"):
            assert (await http.post(path, json={}, headers={"host": "localhost"})).status_code == 404
        assert not [path for path in document("1")["paths"] if "/api/call/" in path or "/api/workflows/" in path]


@pytest.mark.parametrize("client", ["10.0.0.7", "127.0.0.1"])
@pytest.mark.parametrize("headers", [
    {},
    {"authorization": TOKEN},
    {"authorization": f"Basic {TOKEN}"},
    {"authorization": f"Bearer {TOKEN}x"},
    {"authorization": f"Bearer {PAGE_TOKEN}"},
    {"authorization": "Bearer "},
    {"cookie": f"token={TOKEN}; http_calls_token={TOKEN}; authorization=Bearer {TOKEN}"},
    {"x-coterie-act": TOKEN},
])  # fmt: skip
async def test_without_the_token_nothing_is_called(tmp_path: Path, client: str, headers: dict[str, str]) -> None:
    """On loopback neither, nor by whoever may see the page."""
    cluster = program(f"sqlite:///{tmp_path}/c.db", http_token=PAGE_TOKEN)
    async with caller(cluster, token=None, client=client) as http:
        for method, path in (
            ("POST", f"/api/call/Account/a/who?token={TOKEN}"),
            ("POST", "/api/send/Account/a/who"),
            ("GET", "/api/result/1"),
            ("POST", "/api/workflows/checkout/1"),
            ("GET", "/api/workflows/checkout/1"),
        ):
            answer = await http.request(method, path, headers={"host": "localhost", **headers})
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_two_tokens_are_none(tmp_path: Path) -> None:
    async with caller(program(f"sqlite:///{tmp_path}/c.db"), token=None) as http:
        twice = [("authorization", f"Bearer {TOKEN}"), ("authorization", "Bearer x")]
        assert (await http.post("/api/call/Account/a/who", json={}, headers=twice)).status_code == 401


async def test_an_application_that_decides_on_access_needs_the_token_all_the_same(tmp_path: Path) -> None:
    cluster = program(f"sqlite:///{tmp_path}/c.db")
    async with caller(cluster, token=None, access=lambda _: "act") as http:
        assert await refused(http, "/api/call/Account/a/who") == (401, "unauthorized")


async def test_the_token_opens_nothing_else(tmp_path: Path) -> None:
    async with running(f"sqlite:///{tmp_path}/c.db", http_token=PAGE_TOKEN) as cluster, caller(cluster) as http:
        for path in ("/health", "/metrics", "/", "/api/session", "/api/view", "/api/messages"):
            assert (await http.get(path)).status_code == 401
        assert (await http.get("/openapi.json")).status_code == 200, "it describes what may be called"


@pytest.mark.parametrize("headers", [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": ""},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
    {"sec_fetch_site": "cross-site", "origin": "http://10.0.0.7"},
])  # fmt: skip
async def test_a_page_of_another_site_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    async with running(f"sqlite:///{tmp_path}/c.db") as cluster, caller(cluster) as http:
        assert await refused(http, "/api/call/Account/a/who", **headers) == (403, "foreign_origin")
        for answer in (
            await http.options("/api/call/Account/a/who", headers={"origin": "https://evil.example"}),
            await http.post(f"/api/call/Account/a/who{FAR}", json={}),
        ):
            assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_wrong_tokens_are_told_once_and_no_answer_or_log_has_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = program(f"sqlite:///{tmp_path}/c.db")
    for client in ("10.0.0.7", "127.0.0.1"):
        caplog.clear()
        async with caller(cluster, token="guess-guess-guess", client=client) as http:
            for number in range(20):
                answer = await http.post(f"/api/call/Account/{number}/who", json={}, headers={"host": "localhost"})
                assert "guess" not in answer.text
        async with caller(cluster, client=client) as http:
            answer = await http.post("/api/call/Nobody/a/who", json={}, headers={"host": "localhost"})
            assert TOKEN not in answer.text + str(answer.headers)
        assert [each.message for each in caplog.records if "token" in each.message] == [
            f"1 requests over HTTP had a wrong token, the last from {client}"
        ]
        assert "guess" not in caplog.text
        assert TOKEN not in caplog.text


def test_calls_without_a_token_of_their_own_are_refused_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match="without http_calls_token"):
        Settings.load({"http_calls": ["Account"]}, {})
    with pytest.raises(ConfigurationError, match="same as http_token"):
        Settings.load({"http_calls": ["Account"], "http_calls_token": TOKEN, "http_token": TOKEN}, {})
    for wrong in ("", ["a b"], ["Account/alice"], ["x", "x"], ["cron:nightly"]):
        with pytest.raises(ConfigurationError, match="http_calls is"):
            Settings.load({"http_calls": wrong, "http_calls_token": TOKEN}, {})
    assert Settings.load({}, {"COTERIE_HTTP_CALLS": "A, B.c", "COTERIE_HTTP_CALLS_TOKEN": TOKEN}).http_calls == (
        "A",
        "B.c",
    )


def test_a_name_that_the_program_does_not_define_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    web.app(program(f"sqlite:///{tmp_path}/c.db", http_calls=["Accont", "Account.who", "workflow:checkout"]))
    (told,) = [each.message for each in caplog.records if "http_calls" in each.message]
    assert told == "http_calls names Accont, which this program does not define: did you mean Account?"


# Keys


async def test_the_header_is_the_key(url: str) -> None:
    async with running(url) as cluster, caller(cluster) as http:
        path = f"/api/call/Account/alice/add{FAR}"
        first = await post(http, path, {"cents": 5}, idempotency_key="k 1")
        assert first.json() == 5
        assert (await post(http, path, {"cents": 5}, idempotency_key='"k 1"')).json() == 5, "as the standard quotes it"
        assert (await post(http, path, {"cents": 5}, idempotency_key="k 2")).json() == 10
        sent = await post(http, "/api/send/Account/alice/add", {"cents": 5}, idempotency_key="k 1")
        assert (await http.get(sent.headers["location"] + FAR)).json() == 5
        assert await refused(http, path, {"cents": 6}, idempotency_key="k 1") == (409, "key_conflict")


async def test_a_volatile_call_has_no_key_and_an_unreadable_one_is_refused(tmp_path: Path) -> None:
    async with running(f"sqlite:///{tmp_path}/c.db") as cluster, caller(cluster) as http:
        told = (await post(http, "/api/call/Account/alice/who", idempotency_key="k")).json()
        assert told["error"] == "Account/alice.who: it is not persisted, and cannot have a key"
        for key in ("", '""', "k" * 256, "k\u00e9"):
            headers = httpx.Headers([(b"idempotency-key", key.encode("latin-1"))])
            answer = await http.post("/api/call/Account/a/add", json={"cents": 1}, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument"), key
        twice = [("idempotency-key", "a"), ("idempotency-key", "b")]
        assert (await http.post("/api/call/Account/a/add", json={"cents": 1}, headers=twice)).status_code == 422


# Failures


async def test_each_failure_has_its_status_and_code(tmp_path: Path) -> None:
    async with running(f"sqlite:///{tmp_path}/c.db") as cluster, caller(cluster) as http:
        call = "/api/call/Account/alice"
        assert await refused(http, f"{call}/add", {"cents": "5"}) == (422, "malformed_message")
        assert await refused(http, f"{call}/add", {"cent": 5}) == (422, "malformed_message")
        assert await refused(http, f"{call}/add", [5]) == (422, "malformed_message")
        assert await refused(http, f"{call}/add") == (422, "malformed_message")
        assert await refused(http, f"{call}/count") == (422, "malformed_message"), "a stream"
        assert await refused(http, f"{call}/close") == (404, "unknown_entity")
        assert await refused(http, f"{call}/__init__") == (404, "unknown_entity")
        assert await refused(http, f"{call}/fail{FAR}") == (500, "failed")
        assert await refused(http, f"{call}/lie{FAR}") == (500, "failed"), "no fault of the caller"
        declared = (await post(http, f"{call}/deposit{FAR}", {"order": "o", "cents": -1})).json()
        assert declared == {
            "error": "OverdrawnError: o takes too much",
            "code": "declared",
            "type": "OverdrawnError",
            "retryable": False,
        }
        failed = (await post(http, f"{call}/fail{FAR}")).json()
        assert "Traceback" not in str(failed)
        assert failed["error"] == "KeyError: 'what the body said'"
        for wrong in ("?timeout=5", "?timeout=x", "?timeout=-1s", "?timeout=1h", "?timeout=", "?timeout=0s"):
            assert await refused(http, f"{call}/who{wrong}") == (422, "invalid_argument"), wrong
        for wrong in ("?delay=x", "?at=x", "?at=2026-01-01", "?at=2026-01-01T00:00:00Z&delay=1s"):
            assert await refused(http, f"/api/send/Account/alice/add{wrong}", {"cents": 1}) == (422, "invalid_argument")
        assert await refused(http, "/api/send/Account/alice/who?delay=1s") == (422, "malformed_message")
        for path in (call, f"{call}/who/more", "/api/call/", "/api/call//", "/api/workflows/checkout/1/2"):
            assert (await refused(http, path))[0] in (404, 422), path


async def test_a_body_is_json_and_bounded(tmp_path: Path) -> None:
    async with running(f"sqlite:///{tmp_path}/c.db") as cluster, caller(cluster) as http:
        path = f"/api/call/Account/alice/add{FAR}"
        for kind in (None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"):
            answer = await http.post(
                path, content=b'{"cents": 1}', headers={} if kind is None else {"content-type": kind}
            )
            assert (answer.status_code, answer.json()["code"]) == (415, "not_json")
        typed = {"content-type": "Application/JSON; charset=utf-8"}
        assert (await http.post(path, content=b'{"cents": 1}', headers=typed)).json() == 1
        for wrong in (b"{", b"\xff", b"1", b"[" * 100_000, b'{"cents": ' + b"[" * 100_000, b'{"cents": 1}{}'):
            assert (await http.post(path, content=wrong, headers=JSON)).status_code == 422, wrong[:20]
        large = await http.post(path, content=b" " * (calls.BODY_MOST_BYTES + 1), headers=JSON)
        assert (large.status_code, large.json()["code"]) == (413, "too_large")
        assert (await http.get(path)).status_code == 405


async def test_a_full_mailbox_is_429_and_says_when_to_come_again(tmp_path: Path) -> None:
    async with running(f"sqlite:///{tmp_path}/c.db") as cluster, caller(cluster) as http:
        held = [asyncio.create_task(post(http, "/api/call/Busy/a/hold?timeout=5s")) for _ in range(2)]
        while (answer := await post(http, "/api/call/Busy/a/hold?timeout=50ms")).status_code != 429:
            assert answer.status_code == 504
            assert not all(each.done() for each in held)
        assert (answer.json()["code"], answer.headers["retry-after"]) == ("mailbox_full", "1")
        await asyncio.gather(*held)


async def test_what_takes_too_long_is_504_and_a_stored_call_names_its_message(url: str) -> None:
    async with running(url) as cluster, caller(cluster) as http:
        late = await post(http, "/api/call/Account/alice/wait?timeout=300ms", {"seconds": 1.0})
        told = late.json()
        assert (late.status_code, told["code"], told["retryable"]) == (504, "send_timeout", True)
        assert told["hint"] == f"it is stored, and runs: /api/result/{told['message']} has its result then"
        assert (await http.get(f"/api/result/{told['message']}{FAR}")).json() == "waited"


async def test_without_a_runner_a_call_is_503(tmp_path: Path) -> None:
    cluster = program(f"sqlite:///{tmp_path}/c.db")
    async with caller(cluster) as http:
        assert await refused(http, "/api/call/Account/a/who") == (503, "not_started")
        async with cluster.connect():
            answer = await post(http, "/api/call/Account/a/who")
            assert (answer.status_code, answer.json()["code"]) == (503, "runner_unavailable")
            assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("error", [
    PersistenceError(doing="reading", problem="connection refused", outcome="unreachable"),
    RunnerUnavailable(runner="web-2", target="Account/a.who", problem="it left"),
])  # fmt: skip
def test_what_may_go_better_later_is_503(error: Any) -> None:
    refusal = refusal_of(error)
    assert (refusal.status_code, refusal.body["retryable"]) == (503, True)


@pytest.mark.parametrize(
    ("what", "status"), [("Account.add", 422), ("Account/a.add", 422), ("result of Account.add", 500)]
)
def test_what_does_not_fit_is_the_fault_of_the_caller_only_if_the_caller_gave_it(what: str, status: int) -> None:
    error = MalformedMessage(what=what, problem="it is nothing, expected a whole number")
    assert refusal_of(error, about=EntityAddress("Account", "a")).status_code == status


async def test_more_calls_than_fit_are_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CALLS_MOST", 2)
    async with running(f"sqlite:///{tmp_path}/c.db") as cluster, caller(cluster) as http:
        calls_ = [post(http, f"/api/call/Account/{number}/wait?timeout=2s", {"seconds": 3}) for number in range(5)]
        answers = await asyncio.gather(*calls_)
        assert sorted(each.status_code for each in answers) == [503, 503, 503, 504, 504]
        assert {each.json()["code"] for each in answers} == {"too_many_calls", "send_timeout"}
        assert (await post(http, f"/api/call/Account/b/who{FAR}")).json() == "b"


# Ids


HOSTILE = [
    "a/b", "a//b", "/", "..", ".", "%", "%2F", "a%00b", " ", "a b", "a+b", "?", "a?b=c", "#", "a#b", ";", "a;b", "&",
    "\\", "\n", "a\nb\n", "\r\n", "\x1b[2J", "\u202egnp.exe", "\u200b", "é", "日本", "😀", "a" * 1000, '"', "'",
    "{}", "<script>", "who", "x/who", "../../live", "..%2f..%2flive",
]  # fmt: skip


async def test_an_id_is_any_text(tmp_path: Path) -> None:
    """Through a real server, as clients write it."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with running(f"sqlite:///{tmp_path}/c.db", http_listen="127.0.0.1:0") as cluster:
        server = HttpServer(web.app(cluster), cluster.settings)
        async with server, httpx.AsyncClient(headers=headers, timeout=LIMIT_S) as http:
            http.base_url = httpx.URL(server.url)
            for id_ in HOSTILE:
                written = quote(id_, safe="").replace(".", "%2E")
                answer = await http.post(f"/api/call/Account/{written}/who{FAR}", json={})
                assert (answer.status_code, answer.json()) == (200, id_), visible(id_)
                started = await http.post(f"/api/workflows/checkout/{written}", json={})
                if id_.strip():
                    assert (started.status_code, started.json()["id"]) == (202, id_)
            for wrong in ("%00", "%ff", "%C0%AF", "%ED%A0%80", "", "a" * 1001, "%F0%9F%98%80" * 251):
                assert (await http.post(f"/api/call/Account/{wrong}/who", json={})).status_code == 422, wrong[:20]
            huge = await http.post(f"/api/call/Account/{'a' * 20_000}/who", json={})
            assert huge.status_code in (400, 431), "the head is bounded"
            assert (await http.get("/live")).status_code == 200


async def test_it_works_where_it_is_mounted_and_through_a_client(tmp_path: Path) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    url = f"sqlite:///{tmp_path}/c.db"
    async with running(url):
        other = Cluster(url, http_calls=["Account"], http_calls_token=TOKEN, http_listen=None)  # without the program
        async with other.connect():
            app = Starlette(routes=[Mount("/coterie", web.app(other))])
            headers = {"authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://10.0.0.7", headers=headers
            ) as http:
                answer = await post(http, f"/coterie/api/call/Account/a%2Fb/who{FAR}")
                assert (answer.status_code, answer.json()) == (200, "a/b")
                sent = await post(http, f"/coterie/api/send/Account/a/add{FAR}", {"cents": 3})
                assert sent.headers["location"].startswith("/coterie/api/result/")
                assert (await http.get(sent.headers["location"] + FAR)).json() == 3
                assert await refused(http, "/coterie/api/call/Account/a/add", {"cents": "3"}) == (
                    422,
                    "malformed_message",
                )
                assert await refused(http, "/coterie/api/call/Account/a/fail") == (500, "failed")


# The document


async def test_the_document_has_the_types_of_each_method(tmp_path: Path) -> None:
    async with caller(program(f"sqlite:///{tmp_path}/c.db")) as http:
        described = (await http.get("/openapi.json")).json()
    paths = described["paths"]
    called = sorted(path.removeprefix("/api/call/") for path in paths if path.startswith("/api/call/"))
    assert called == [
        *(f"Account/{{id}}/{name}" for name in ("add", "deposit", "fail", "lie", "typed", "wait", "who")),
        "Busy/{id}/hold",
        "Private/{id}/open",
    ], "no streams, and nothing that is not offered"
    deposit = paths["/api/call/Account/{id}/deposit"]["post"]
    assert deposit["requestBody"]["content"]["application/json"]["schema"] == {
        "type": "object",
        "properties": {"order": {"type": "string"}, "cents": {"type": "integer"}},
        "required": ["order", "cents"],
        "additionalProperties": False,
    }
    result = deposit["responses"]["200"]["content"]["application/json"]["schema"]
    assert result == {"$ref": "#/components/schemas/program.Balance"}
    assert "program.Balance" in described["components"]["schemas"]
    assert "Idempotency-Key" in [each["name"] for each in deposit["parameters"]]
    who = paths["/api/call/Account/{id}/who"]["post"]
    assert "Idempotency-Key" not in [each["name"] for each in who["parameters"]]
    for path, operations in paths.items():
        if path.startswith("/api/") and "Account" in path:
            assert all(each["security"] == [{"calls": []}] for each in operations.values())
    schemathesis.openapi.from_dict(described).validate()


def test_types_without_a_schema_are_any_value(tmp_path: Path) -> None:
    def local(kind: type) -> Any:
        return make_dataclass("Item", [("name", kind)])

    class Code(str):
        pass

    first, second = local(str), local(int)

    class Odd(Entity[None]):
        @rpc
        async def take(self, one: first, two: second, code: Code, many: list[Code]) -> Any:  # type: ignore[valid-type]
            return None

    Odd.take.__annotations__ = {"one": first, "two": second, "code": Code, "many": list[Code], "return": Any}
    cluster = Cluster(f"sqlite:///{tmp_path}/c.db", http_calls=["Odd"], http_calls_token=TOKEN)
    cluster.entity(Odd)
    from coterie.web.calls.offer import offer_of

    offer = offer_of(cluster.settings, lambda: cluster._program.entities.types, dict, dict)
    described = document("1", offer=offer)
    taken = described["paths"]["/api/call/Odd/{id}/take"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    assert taken["properties"]["code"] == {"type": "string"}
    assert taken["properties"]["one"] == {"$ref": "#/components/schemas/program.Item"}
    assert taken["properties"]["two"] == {}, "its class cannot be told from that one by its name"
    assert taken["required"] == ["one", "two", "code", "many"]
