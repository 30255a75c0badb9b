"""uvicorn in our loop: without signals, bounded, and closed in time whoever is connected."""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from coterie import ConfigurationError, Settings, ShuttingDown
from coterie.kernel.service import State
from coterie.web import limits, serving
from coterie.web.application import build
from coterie.web.serving import Serving
from tests.unit.web.sights import FakeSight

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.types import ASGIApp

LIMIT_S = 30.0  # for what takes a fraction of a second on an idle machine


def settings(listen: str = "127.0.0.1:0") -> Settings:
    return Settings.load({"http_listen": listen}, {})


@asynccontextmanager
async def serving_app(app: ASGIApp | None = None) -> AsyncIterator[Serving]:
    async with asyncio.timeout(LIMIT_S), Serving(app or build(FakeSight()), settings()) as server:
        yield server


async def connect(server: Serving) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = server.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def closed_by_peer(reader: asyncio.StreamReader) -> bytes:
    """What came until the other end closed."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_it_answers_from_start_to_stop() -> None:
    async with serving_app() as server, httpx.AsyncClient(base_url=server.url) as http:
        answer = await http.get("/live")
        assert answer.json() == {"status": "live"}
        assert "date" in answer.headers
        assert "server" not in answer.headers
        head = await http.head("/live")
        assert (head.status_code, head.content) == (200, b"")
        assert server.announcement == f"probes and metrics at {server.url}"
        url = server.url
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/live")


async def test_its_port_is_free_again_when_it_has_stopped() -> None:
    async with serving_app() as server:
        listen = server.url.removeprefix("http://")
    async with Serving(build(FakeSight()), settings(listen)) as again:
        assert again.url == server.url


async def test_signals_are_left_alone() -> None:
    """P11: `cluster.run` owns them."""
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    async with serving_app():
        assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


async def test_a_chosen_port_that_is_taken_keeps_it_from_starting() -> None:
    async with serving_app() as server:
        second = Serving(build(FakeSight()), settings(server.url.removeprefix("http://")))
        with pytest.raises(ConfigurationError, match="this port is taken"):
            await second.start()
        assert second.state is State.STOPPED


@pytest.mark.parametrize(
    ("token", "elsewhere"), [("correct-horse-battery", True), (None, True), ("correct-horse-battery", False)]
)
async def test_a_token_that_travels_in_the_clear_is_warned_of(
    token: str | None, elsewhere: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "is_loopback", lambda _: not elsewhere)
    given = Settings.load({"http_listen": "127.0.0.1:0", "http_token": token}, {})
    async with Serving(build(FakeSight()), given):
        warned = "travels in the clear" in caplog.text
    assert warned is (token is not None and elsewhere)
    assert "correct-horse" not in caplog.text


async def test_it_may_be_stopped_before_and_while_it_starts() -> None:
    await Serving(build(FakeSight()), settings()).stop()
    server = Serving(build(FakeSight()), settings())
    starting = asyncio.create_task(server.start())
    await asyncio.sleep(0)
    await server.stop()
    with pytest.raises(ShuttingDown):
        await starting


async def test_an_open_stream_does_not_delay_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn by itself waits for as long as the browser stays."""
    streams = asyncio.Event()
    ended = asyncio.Event()

    async def forever() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b": alive\n\n"
                streams.set()
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    async def stream(_: Request) -> StreamingResponse:
        return StreamingResponse(forever(), media_type="text/event-stream")

    async with serving_app(Starlette(routes=[Route("/stream", stream)])) as server:
        reader, writer = await connect(server)
        writer.write(b"GET /stream HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await streams.wait()
        began_s = asyncio.get_running_loop().time()
        await server.stop()
        took_s = asyncio.get_running_loop().time() - began_s
        await ended.wait()
        assert b"alive" in await closed_by_peer(reader)
        writer.close()
    assert took_s < LIMIT_S / 3
    assert "Traceback" not in caplog.text
    assert not [each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]


async def test_an_idle_connection_does_not_delay_the_end() -> None:
    async with serving_app() as server:
        reader, writer = await connect(server)
        writer.write(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"200" in await reader.readline()
        await server.stop()
        await closed_by_peer(reader)
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /live HT",
        b"GET /live HTTP/1.1\r\nhost: localhost\r\n",
        b"POST /live HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nsome",
    ],
    ids=["nothing", "half a line", "half a head", "half a body"],
)
async def test_whoever_asks_too_slowly_is_cut_off(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn by itself waits for ever before the first request."""
    monkeypatch.setattr(limits, "ASKED_WITHIN_S", 0.2)
    async with serving_app() as server:
        reader, writer = await connect(server)
        writer.write(sent)
        await closed_by_peer(reader)
        writer.close()


async def test_the_second_request_of_a_connection_must_be_in_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ASKED_WITHIN_S", 0.5)
    async with serving_app() as server:
        reader, writer = await connect(server)
        writer.write(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"200" in await reader.readuntil(b'{"status":"live"}')
        await asyncio.sleep(0.6)  # between two requests it may rest for longer
        writer.write(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"200" in await reader.readuntil(b'{"status":"live"}')
        writer.write(b"GET /live HTTP/1.1\r\n")
        assert await closed_by_peer(reader) == b""
        writer.close()


async def test_a_head_that_is_too_large_is_refused() -> None:
    async with serving_app() as server:
        reader, writer = await connect(server)
        writer.write(b"GET /live HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 2 * limits.HEAD_MOST_BYTES)
        await closed_by_peer(reader)
        writer.close()
        async with httpx.AsyncClient(base_url=server.url) as http:
            assert (await http.get("/live")).status_code == 200


async def test_whoever_does_not_read_what_it_asked_for_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_WITHIN_S", 0.2)
    ended = asyncio.Event()

    async def much() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 2**16
                await asyncio.sleep(0)
        finally:
            ended.set()

    async def stream(_: Request) -> StreamingResponse:
        return StreamingResponse(much())

    async with serving_app(Starlette(routes=[Route("/stream", stream)])) as server:
        _, writer = await connect(server)
        writer.write(b"GET /stream HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await ended.wait()
        writer.close()


async def test_newcomers_push_out_those_who_wait_and_no_one_who_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens connections by the thousand does not keep the probes out: that would restart the process."""
    monkeypatch.setattr(limits, "CONNECTIONS_MOST", 3)
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> Response:
        asked.set()
        await answer.wait()
        return Response(b"slow")

    async def live(_: Request) -> Response:
        return Response(b"live")

    async with serving_app(Starlette(routes=[Route("/slow", slow), Route("/live", live)])) as server:
        answered, writing = await connect(server)
        writing.write(b"GET /slow HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        await asked.wait()
        waiting = [await connect(server) for _ in range(20)]
        burst = await asyncio.gather(*(connect(server) for _ in range(20)))
        async with httpx.AsyncClient(base_url=server.url) as http:
            assert (await http.get("/live")).text == "live"
        for reader, _ in waiting:
            assert await closed_by_peer(reader) == b""
        assert len(server._server.server_state.connections) <= 3
        answer.set()
        assert (await closed_by_peer(answered)).endswith(b"slow")
        for _, each in [*waiting, *burst, (answered, writing)]:
            each.close()


async def test_when_all_are_answered_the_newcomer_has_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS_MOST", 1)
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> Response:
        asked.set()
        await answer.wait()
        return Response()

    async with serving_app(Starlette(routes=[Route("/slow", slow)])) as server:
        _, writing = await connect(server)
        writing.write(b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await asked.wait()
        reader, writer = await connect(server)
        assert await closed_by_peer(reader) == b""
        answer.set()
        for each in (writing, writer):
            each.close()


async def test_a_server_that_cannot_serve_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(uvicorn.Server, "startup", fail)
    with pytest.raises(RuntimeError, match="no"):
        async with serving_app():
            pass
