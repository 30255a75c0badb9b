"""`coterie open`: where the page of a cluster is served."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import click
import pytest

from tests.unit.cli.command_runner import coterie

if TYPE_CHECKING:
    from collections.abc import Iterator


class Probe(BaseHTTPRequestHandler):
    """Lives, and says no more."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/live" else 404)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def answering() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Probe)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(click, "launch", seen.append)
    return seen


def test_the_address_is_said_and_opened(
    launched: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering() as port:
        monkeypatch.setenv("COTERIE_HTTP_LISTEN", f"127.0.0.1:{port}")
        url = f"http://127.0.0.1:{port}/"
        assert coterie(capsys, "open") == (0, f"{url}\n", "")
        assert launched == [url]
        assert coterie(capsys, "open", "--print") == (0, f"{url}\n", "")
        assert json.loads(coterie(capsys, "open", "--json").out) == {"url": url}
        assert launched == [url], "once"
        monkeypatch.setenv("COTERIE_WEB", "off")
        assert coterie(capsys, "open", "--print").out == f"{url}health\n"


def test_one_that_listens_everywhere_is_asked_here(
    launched: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering() as port:
        monkeypatch.setenv("COTERIE_HTTP_LISTEN", f"0.0.0.0:{port}")
        assert coterie(capsys, "open").out == f"http://127.0.0.1:{port}/\n"
    assert len(launched) == 1


def test_nobody_answers(
    launched: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering() as port:
        pass
    monkeypatch.setenv("COTERIE_HTTP_LISTEN", f"127.0.0.1:{port}")
    said = coterie(capsys, "open")
    assert (said.code, said.out, launched) == (3, "", [])
    assert said.err.startswith(f"error: nothing answers at http://127.0.0.1:{port}/: ")
    monkeypatch.setenv("COTERIE_HTTP_LISTEN", "off")
    said = coterie(capsys, "open")
    assert (said.code, launched) == (1, [])
    assert "http_listen is off" in said.err
