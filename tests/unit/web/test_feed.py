"""The feed of the page: what a browser has after any events is what there is, and nobody watches, no work."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import PersistenceError, ShuttingDown
from coterie.observe.facts import Incoming
from coterie.observe.view import PAGES, EntityLine, MessagesPage, OverdueLine, Shard, Shards, View, WorkflowLine
from coterie.web import feed as feeds
from coterie.web.application import build
from coterie.web.assets import assets
from coterie.web.feed import Feed, changed, tables
from coterie.web.server import HttpServer
from tests.unit.web.fake_cluster import AT, FakeWebView
from tests.unit.web.test_application import ask
from tests.unit.web.test_server import LIMIT_S, connect, settings

if TYPE_CHECKING:
    from collections.abc import Collection

    from coterie.web.feed import PageStream, Path, Tables

KEYED = ("entities", "messages", "shards", "workflows")
TABLES = st.dictionaries(
    st.sampled_from([("overview",), ("overview", "crons"), ("cron",)]),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3)),
)


@given(old=TABLES, new=TABLES)
def test_the_changes_make_the_new_of_the_old(old: Tables, new: Tables) -> None:
    paths, made, wanted = changed(old, new), flat(old), flat(new)
    for path in paths:
        if path in wanted:
            assert made.get(path) != wanted[path], "only what differs is sent"
            made[path] = wanted[path]
        else:
            del made[path]
    assert made == wanted
    assert len(set(paths)) == len(paths)


def flat(tables: Tables) -> dict[Path, Any]:
    return {(*table, name): value for table, rows in tables.items() for name, value in rows.items()}


class Changing(FakeWebView):
    """A cluster in which something else is so each time it is looked at."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.chance = random.Random(seed)
        self.looks: list[set[str]] = []
        self.data = self._any()

    def _some(self, most: int) -> list[int]:
        return self.chance.sample(range(most), self.chance.randrange(most))

    def _any(self) -> dict[str, Any]:
        shards = tuple(
            Shard(
                shard=f"default:{each}",
                group="default",
                number=each,
                owner=self.chance.choice(["a", "b"]),
                epoch=1,
                state="owned",
                target=None,
            )
            for each in self._some(6)
        )
        entities = tuple(
            EntityLine(type=f"T{each}", resident=self.chance.randrange(2), runners={}, is_complete=True)
            for each in self._some(4)
        )
        late = tuple(OverdueLine(id=str(each), what="T/1.f", shard="default:1", late_s=1.5) for each in self._some(3))
        incoming = tuple(Incoming(id=str(each), what="entity T", waited_s=1.5) for each in self._some(2))
        messages = MessagesPage(
            waiting=self.chance.choice([None, 0, 1]), running=0, dead=0, incoming=incoming, overdue=late, failures=()
        )
        workflows = tuple(
            WorkflowLine(
                name="order",
                id=str(each),
                kind="workflow",
                status=self.chance.choice(["running", "suspended"]),
                interrupting=False,
                steps=1,
                started_at=AT,
                changed_at=AT,
                ended_at=None,
                wake_at=None,
                error=None,
            )
            for each in self._some(3)
        )
        shown = Shards(groups=(), shards=shards)
        return {"entities": entities, "messages": messages, "shards": shown, "workflows": workflows}

    async def view(self, pages: Collection[str], *, within_s: float = 1.0) -> View:
        await self.health()  # fails if it is told to
        self.looks.append(set(pages))
        self.data = self._any()
        data = {page: self.data[page] for page in PAGES if page in pages}
        return View(revision=len(self.looks), at=AT, runner="web-2", data=data)


class Browser:
    """Keeps what it was sent, as the page does."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, ...], Any] = {}
        self.events: list[str] = []
        self.last_id = ""

    def take(self, event: bytes) -> None:
        lines = dict(line.split(": ", 1) for line in event.decode().splitlines() if line)
        self.events.append(lines["event"])
        self.last_id = lines["id"]
        told = json.loads(lines["data"])
        if lines["event"] == "view":
            self.kept = keyed(told["data"])
        else:
            for path, value in told["set"]:
                self.kept[tuple(path)] = value
            for path in told["remove"]:
                self.kept.pop(tuple(path), None)  # it may have come and gone since


def keyed(data: dict[str, Any]) -> dict[tuple[str, ...], Any]:
    """The pages as the page keeps them, from JSON: written apart from the code that sends them."""
    found: dict[tuple[str, ...], Any] = {}
    for each in data.get("entities", ()):
        found["entities", each["type"]] = each
    for each in data.get("workflows", ()):
        found["workflows", f"{each['kind']}/{each['name']}/{each['id']}"] = each
    for name, value in data.get("shards", {}).items():
        for each in value if name == "shards" else ():
            found["shards", "shards", each["shard"]] = each
    for name, value in data.get("messages", {}).items():
        if name == "overdue":
            found |= {("messages", "overdue", each["id"]): each for each in value}
        else:
            found["messages", name] = value
    return found


def there_is(web_view: Changing, pages: Collection[str]) -> dict[tuple[str, ...], Any]:
    shown = {page: web_view.data[page] for page in pages}
    return keyed(json.loads(feeds._encode(shown)))


async def sampled(web_view: Changing, count: int = 1) -> None:
    """Wait for further samples."""
    wanted = len(web_view.looks) + count
    while len(web_view.looks) < wanted:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "SAMPLED_S", 0.002)


async def opened(feed: Feed, pages: Collection[str] = KEYED, last_id: str = "") -> PageStream:
    stream = await feed.open(pages, last_id)
    assert stream is not None
    return stream


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_a_browser_misses_it_has_what_there_is(seed: int) -> None:
    """Streams of several pages, read at their own pace, broken and gone on from where they were."""
    web_view, chance = Changing(seed), random.Random(seed)
    feed = Feed(web_view)
    browsers = [(Browser(), tuple(chance.sample(KEYED, chance.randrange(1, 5)))) for _ in range(3)]
    streams = [await opened(feed, pages) for _, pages in browsers]
    for _ in range(30):
        await sampled(web_view)
        place = chance.randrange(3)
        browser, pages = browsers[place]
        if chance.random() < 0.3:
            feed.close(streams[place])
            streams[place] = await opened(feed, pages, browser.last_id)
        event = feed.event(streams[place])
        if event is not None:
            browser.take(event)
        assert browser.kept == there_is(web_view, pages)
    assert all(browser.events.count("view") <= 1 for browser, _ in browsers), "the rest were changes"
    for stream in streams:
        feed.close(stream)


async def test_nobody_watches_no_work() -> None:
    web_view = Changing()
    feed = Feed(web_view)
    await asyncio.sleep(0.01)
    assert not web_view.looks
    first, second = await opened(feed), await opened(feed, ["entities"])
    await sampled(web_view, 3)
    feed.close(first)
    await sampled(web_view, 2)
    assert web_view.looks[-1] == {"entities"}, "what nobody shows is not looked at"
    feed.close(second)
    while len(web_view.tasks):
        await asyncio.sleep(0.001)
    count = len(web_view.looks)
    await asyncio.sleep(0.01)
    assert len(web_view.looks) == count


async def test_a_page_that_was_not_sampled_is_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "SAMPLED_S", 3600.0)
    web_view = Changing()
    feed = Feed(web_view)
    await opened(feed, ["entities"])
    later = await opened(feed, ["shards"])
    assert web_view.looks == [{"entities"}, {"entities", "shards"}]
    assert b"event: view" in (feed.event(later) or b"")
    await web_view.stop()


@pytest.mark.parametrize("last_id", ["", "1", "other.f.1", "a.b.c", "é", "9" * 5000, "{id}.99999", "{id}.-1", "{id}.٣"])
async def test_what_cannot_be_gone_on_from_is_a_snapshot(last_id: str) -> None:
    web_view = Changing()
    feed = Feed(web_view)
    stream = await opened(feed)
    mine = feed._event_id(stream).rpartition(".")[0]
    again = await opened(feed, KEYED, last_id.replace("{id}", mine))
    assert b"event: view" in (feed.event(again) or b"")
    await web_view.stop()


async def test_after_a_minute_there_is_nothing_to_go_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    web_view, browser = Changing(), Browser()
    feed = Feed(web_view)
    stream = await opened(feed)
    browser.take(feed.event(stream) or b"")
    monkeypatch.setattr(feeds, "KEPT_S", 0.0)
    await sampled(web_view, 2)
    again = await opened(feed, KEYED, browser.last_id)
    assert b"event: view" in (feed.event(again) or b"")
    assert len(feed._samples) == 1
    await web_view.stop()


async def test_after_a_pause_nobody_is_shown_what_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first stream after a while waits for a sample, and goes on from the last one if it can."""
    web_view, browser = Changing(), Browser()
    feed = Feed(web_view)
    stream = await opened(feed)
    browser.take(feed.event(stream) or b"")
    feed.close(stream)
    while len(web_view.tasks):
        await asyncio.sleep(0.001)
    again = await opened(feed, KEYED, browser.last_id)
    browser.take(feed.event(again) or b"")
    assert browser.events == ["view", "changes"]
    assert browser.kept == there_is(web_view, KEYED)
    await web_view.stop()


async def test_when_the_runner_stops_every_stream_says_bye_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "SAMPLED_S", 3600.0)
    web_view = Changing()
    feed = Feed(web_view)
    events = (await opened(feed)).events()
    first = [await anext(events), await anext(events)]
    assert first[0].startswith(b"retry")
    assert first[1].startswith(b"event: view")
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    await web_view.stop()
    assert await waiting == b"event: bye\ndata: {}\n\n"
    with pytest.raises(StopAsyncIteration):
        await anext(events)
    assert not len(feed)
    with pytest.raises(ShuttingDown):
        await feed.open(KEYED)


async def test_a_server_that_waits_for_streams_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn around an application in which ours is mounted stops the runner after the last response."""

    class Server:
        should_exit = False

        def handle_exit(self, *_: object) -> None:
            pass

    server = Server()
    monkeypatch.setattr(signal, "getsignal", lambda _: server.handle_exit)
    feed = Feed(Changing())
    stream = await opened(feed)
    await asyncio.sleep(0.01)
    assert stream in feed._streams
    server.should_exit = True
    async with asyncio.timeout(LIMIT_S):
        while not stream.is_over:
            await asyncio.sleep(0.001)
    feed.close(stream)


async def test_a_silent_stream_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "SAMPLED_S", 3600.0)
    monkeypatch.setattr(feeds, "ALIVE_S", 0.001)
    web_view = Changing()
    events = (await opened(Feed(web_view))).events()
    assert [await anext(events) for _ in range(4)][2:] == [b": keep-alive\n\n"] * 2
    await web_view.stop()


async def test_without_a_database_a_stream_is_refused_and_an_open_one_goes_on() -> None:
    web_view = Changing()
    feed, well = Feed(web_view), web_view.judged
    web_view.judged = PersistenceError(doing="reading", problem="connection refused", outcome="unreachable")
    with pytest.raises(PersistenceError):
        await feed.open(KEYED)
    assert not len(feed)
    web_view.judged = well
    stream = await opened(feed)
    web_view.judged = PersistenceError(doing="reading", problem="connection refused", outcome="unreachable")
    await asyncio.sleep(0.01)
    web_view.judged = well
    await sampled(web_view, 2)
    assert stream in feed._streams
    await web_view.stop()


async def test_after_an_unexpected_error_an_open_stream_goes_on() -> None:
    web_view = Changing()
    stream, well = await opened(Feed(web_view)), web_view.judged
    web_view.judged = RuntimeError("a bug")
    await asyncio.sleep(0.01)
    web_view.judged = well
    await sampled(web_view, 2)
    assert not stream.is_over
    await web_view.stop()


async def test_there_are_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "MOST", 0)
    answer = await ask(FakeWebView(), "/api/stream")
    assert answer.status_code == 503
    assert answer.json() == {
        "error": "32 streams are open on this runner",
        "hint": "close other tabs, or read /api/view",
    }


async def test_a_stranger_opens_none() -> None:
    assert (await ask(FakeWebView(), "/api/stream", client="10.0.0.7")).status_code == 401
    assert (await ask(FakeWebView(), "/api/stream?pages=nothing")).status_code == 400


async def test_every_page_is_sent_row_by_row() -> None:
    seen = await FakeWebView().view(PAGES)
    paths = flat(tables(seen.data))
    assert ("singletons", "importer") in paths
    assert ("overview", "singletons", "importer") in paths, "the overview shows it as well"
    assert ("overview", "status") in paths
    assert ("messages", "failures") in paths
    assert not [path for path in paths if path[0] not in PAGES]


def test_the_browser_keeps_the_same_lists_by_the_same_keys() -> None:
    script = assets()["store.js"].body.decode()
    known = re.findall(r'^  "?([a-z.]+)"?: \(row\) =>', script, re.MULTILINE)
    assert known == [".".join(path) for path in feeds._KEYS]


async def test_over_the_wire() -> None:
    """With curl -N it looks like this; the server ends in time, and a browser that went is forgotten."""
    web_view = Changing()
    async with asyncio.timeout(LIMIT_S), HttpServer(build(web_view), settings()) as server:
        async with httpx.AsyncClient(base_url=server.url) as http:
            async with http.stream("GET", "/api/stream?pages=shards,messages") as answer:
                assert answer.status_code == 200
                assert answer.headers["content-type"].startswith("text/event-stream")
                assert answer.headers["cache-control"] == "no-store"
                assert answer.headers["x-accel-buffering"] == "no"
                lines = answer.aiter_lines()
                names = [line async for line in _until(lines, "event: changes")]
                assert names[:2] == ["event: view", "event: changes"]
            while len(web_view.tasks):
                await asyncio.sleep(0.001)
        reader, writer = await connect(server)
        writer.write(b"GET /api/stream?pages=shards HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"event: view")
        await web_view.stop()
        assert b"event: bye" in await reader.readuntil(b"event: bye")
        writer.close()


async def _until(lines: Any, wanted: str) -> Any:
    async for line in lines:
        if line.startswith("event:"):
            yield line
        if line == wanted:
            return
