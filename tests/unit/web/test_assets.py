"""The page's files over HTTP, and its first requests."""

from __future__ import annotations

import gzip
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from coterie.settings.secret import Secret
from coterie.web.application import build
from coterie.web.assets import FOLDER, INDEX, assets
from tests.unit.web.fake_cluster import STUCK, FakeWebView, health
from tests.unit.web.test_application import PAGE, TOKEN, ask

if TYPE_CHECKING:
    from pathlib import Path

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


async def test_a_browser_gets_the_page_and_curl_the_status() -> None:
    page = await ask(FakeWebView(), "/", accept=BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.content == (FOLDER / INDEX).read_bytes()
    text = await ask(FakeWebView(), "/", accept="*/*")
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert text.text == "cluster default   healthy\n"


@pytest.mark.parametrize("name", sorted(assets()))
async def test_every_file_is_sent_once_and_compressed(name: str) -> None:
    plain = await ask(FakeWebView(), f"/page/{name}", accept_encoding="identity")
    assert plain.content == (FOLDER / name).read_bytes()
    assert plain.headers["cache-control"] == "no-cache"
    packed = await ask(FakeWebView(), f"/page/{name}", accept_encoding="gzip, br")
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content
    again = await ask(FakeWebView(), f"/page/{name}", if_none_match=f'"other", {plain.headers["etag"]}')
    assert (again.status_code, again.content) == (304, b"")


def test_only_known_kinds_of_files_are_served(tmp_path: Path) -> None:
    for name in ("app.js", "notes.py", ".hidden", "uplot/uPlot.min.js"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    assert assets(tmp_path).keys() == {"app.js", "uplot/uPlot.min.js"}


def test_the_files_are_small() -> None:
    """What a browser loads, compressed; licences are for people."""
    loaded = [each for name, each in assets().items() if not name.endswith(".txt")]
    assert sum(len(each.compressed) for each in loaded) <= 120 * 1024
    assert gzip.decompress(loaded[0].compressed) == loaded[0].body


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given: dict[str, Any] = dict(attrs)
        self.found += [given[name] for name in ("href", "src") if given.get(name)]
        self.inline += [name for name in given if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)


def test_the_page_loads_nothing_from_elsewhere_and_nothing_inline() -> None:
    """The content security policy would refuse it; and any prefix has to work."""
    links = _Links()
    links.feed((FOLDER / INDEX).read_text("utf-8"))
    assert not links.inline
    assert not [each for each in links.found if re.match(r"[a-z]+:|/", each) and not each.startswith("data:")]


async def test_a_session_says_what_the_client_may_do() -> None:
    told = (await ask(FakeWebView(), "/api/session")).json()
    token = told.pop("token")
    assert told == {
        "cluster": "default",
        "runner": "web-2",
        "version": "1.2.3",
        "access": "act",
        "redacted": False,
    }
    assert len(token) == 32
    assert token != (await ask(FakeWebView(), "/api/session")).json()["token"], "each process has its own"
    reading = (await ask(FakeWebView(web="read", redacted=True), "/api/session")).json()
    assert (reading["access"], reading["token"], reading["redacted"]) == ("read", None, True)


async def test_a_view_that_has_not_changed_is_not_sent_again() -> None:
    web_view = FakeWebView()
    first = await ask(web_view, "/api/view?pages=overview")
    again = await ask(web_view, "/api/view?pages=overview", if_none_match=first.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")
    web_view.judged = health(STUCK)
    changed = await ask(web_view, "/api/view?pages=overview", if_none_match=first.headers["etag"])
    assert changed.status_code == 200
    other = await ask(web_view, "/api/view?pages=cron", if_none_match=changed.headers["etag"])
    assert other.status_code == 200


@pytest.mark.parametrize("path", ["/", "/page/main.js"])
async def test_a_reader_can_give_the_token_in_the_page(path: str) -> None:
    """Its files need none, what they show does. Without http_token, or where access= decides, they are refused."""
    elsewhere = "10.0.0.7"
    web_view = FakeWebView(Secret(TOKEN))
    assert (await ask(web_view, path, client=elsewhere, accept="text/html")).status_code == 200
    assert (await ask(web_view, "/", client=elsewhere)).status_code == 401, "the text of coterie status"
    assert (await ask(web_view, "/api/session", client=elsewhere)).status_code == 401
    assert (await ask(FakeWebView(), path, client=elsewhere, accept="text/html")).status_code == 401
    decided = httpx.ASGITransport(build(web_view, decide=lambda _: "none"))
    async with httpx.AsyncClient(transport=decided, base_url="http://localhost") as http:
        assert (await http.get(path, headers={"accept": "text/html"})).status_code == 401


@pytest.mark.parametrize("path", [*PAGE, "/page/index.html"])
async def test_web_off_has_no_page(path: str) -> None:
    assert (await ask(FakeWebView(web="off"), path)).status_code == 404


@pytest.mark.parametrize("path", ["/live", "/ready", "/startup", "/health", "/metrics", "/openapi.json"])
async def test_web_off_has_all_the_rest(path: str) -> None:
    answer = await ask(FakeWebView(web="off"), path)
    assert answer.status_code == 200
    assert "/api/view" not in answer.text
