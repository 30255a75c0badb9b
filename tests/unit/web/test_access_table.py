"""docs/page.md: what each access setting allows, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from coterie.settings.secret import Secret
from coterie.web.application import build
from tests.unit.web.fake_cluster import FakeWebView
from tests.unit.web.test_application import TOKEN

PAGE = Path(__file__).parents[3] / "docs" / "page.md"


def rows() -> list[list[str]]:
    lines = PAGE.read_text("utf-8").partition("| web | from |")[2].splitlines()[2:]
    table = lines[: lines.index("")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_table_is_there() -> None:
    assert len(rows()) == 13


@pytest.mark.parametrize("row", rows(), ids=" ".join)
async def test_what_the_page_says_each_setting_allows(row: list[str]) -> None:
    web, origin, token, *wanted = row
    named: Any = None if web == "auto" else web
    web_view = FakeWebView(None if token == "not set" else Secret(TOKEN), web=named)
    address = "127.0.0.1" if origin == "loopback" else "10.0.0.7"
    headers = {"authorization": f"Bearer {TOKEN}"} if token == "given" else {}
    transport = httpx.ASGITransport(build(web_view), client=(address, 50_000))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{address}:7650", headers=headers) as http:
        told = await http.get("/api/session")
        act = {
            "content-type": "application/json",
            "sec-fetch-site": "same-origin",
            "x-coterie-act": str(told.json().get("token")),
        }
        probe, details = await http.get("/ready"), await http.get("/api/view")
        acted = await http.post("/api/acts/pause", content=b'{"cron": "report"}', headers=act)
    # The fake cluster is not started: an act that is allowed gets as far as that.
    found = [probe.status_code, details.status_code, 200 if acted.status_code == 503 else acted.status_code]
    assert [str(each) for each in found] == wanted
