"""uvicorn in our loop: without signals, bounded, and closed in time whoever is connected."""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from coterie import ConfigurationError, Settings, ShuttingDown
from coterie.kernel.service import State
from coterie.web import limits
from coterie.web import server as web_server
from coterie.web.application import build
from coterie.web.server import HttpServer
from tests.unit.web.fake_cluster import FakeWebView

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.types import ASGIApp

LIMIT_S = 120.0  # for what takes a fraction of a second on an idle machine


def settings(listen: str = "127.0.0.1:0") -> Settings:
    return Settings.load({"http_listen": listen}, {})


@asynccontextmanager
async def serving_app(app: ASGIApp | None = None) -> AsyncIterator[HttpServer]:
    async with asyncio.timeout(LIMIT_S), HttpServer(app or build(FakeWebView()), settings()) as server:
        yield server


async def connect(server: HttpServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
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
        assert server.announcement == f"page, probes and metrics at {server.url}"
        url = server.url
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/live")


async def test_its_port_is_free_again_when_it_has_stopped() -> None:
    async with serving_app() as server:
        listen = server.url.removeprefix("http://")
    async with HttpServer(build(FakeWebView()), settings(listen)) as again:
        assert again.url == server.url


async def test_signals_are_left_alone() -> None:
    """P11: `cluster.run` owns them."""
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    async with serving_app():
        assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


async def test_a_chosen_port_that_is_taken_keeps_it_from_starting() -> None:
    async with serving_app() as server:
        second = HttpServer(build(FakeWebView()), settings(server.url.removeprefix("http://")))
        with pytest.raises(ConfigurationError, match="this port is taken"):
            await second.start()
        assert second.state is State.STOPPED


@pytest.mark.parametrize(
    ("token", "elsewhere"), [("correct-horse-battery", True), (None, True), ("correct-horse-battery", False)]
)
async def test_a_token_that_travels_in_the_clear_is_warned_of(
    token: str | None, elsewhere: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(web_server, "is_loopback", lambda _: not elsewhere)
    given = Settings.load({"http_listen": "127.0.0.1:0", "http_token": token}, {})
    async with HttpServer(build(FakeWebView()), given):
        said = [record.getMessage().partition("other machines, ")[2] for record in caplog.records]
    in_the_clear = "without TLS: http_token travels in the clear"
    readable = "without http_token: every client can read whether this runner is alive, has started and is ready"
    expected = [] if not elsewhere else [readable if token is None else in_the_clear]
    assert [line.removesuffix(", and nothing else") for line in said] == expected
    assert "correct-horse" not in caplog.text


async def test_it_may_be_stopped_before_and_while_it_starts() -> None:
    await HttpServer(build(FakeWebView()), settings()).stop()
    server = HttpServer(build(FakeWebView()), settings())
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


async def test_a_head_that_is_too_large_is_refused_also_if_it_comes_at_once() -> None:
    """h11 by itself counts only while it waits for the rest."""
    async with serving_app() as server:
        for header in (b"x: " + b"x" * limits.HEAD_MOST_BYTES, b"x: y\r\n" * (limits.HEAD_MOST_BYTES // 2)):
            reader, writer = await connect(server)
            writer.write(b"GET /live HTTP/1.1\r\nhost: localhost\r\n" + header + b"\r\n\r\n")
            assert (await closed_by_peer(reader)).startswith(b"HTTP/1.1 400")
            writer.close()


BAD = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /live HTTP/1.1\r\n\r\n",
    b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\nNONSENSE\r\n\r\n",
    b"POST /live HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"GET /live HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 40_000 + b"\r\n\r\n",
]


async def test_strangers_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """As at the port of the runners: the first one is told at once, the others are counted, and nobody is quoted."""
    async with serving_app() as server:
        for sent in BAD * 4:
            reader, writer = await connect(server)
            writer.write(sent)
            await closed_by_peer(reader)
            writer.close()
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "a request from 127.0.0.1 is refused: it is no HTTP request, or its head is too large",
        "23 more requests were refused, the last from 127.0.0.1: it is no HTTP request, or its head is too large",
    ]


async def test_nonsense_behind_a_request_ends_its_answer(caplog: pytest.LogCaptureFixture) -> None:
    """Its body cannot be read any more, and half of the answer is there already: no traceback, no second answer."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"part"
                begun.set()
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    async def stream(_: Request) -> StreamingResponse:
        return StreamingResponse(parts())

    async with serving_app(Starlette(routes=[Route("/", stream, methods=["POST"])])) as server:
        reader, writer = await connect(server)
        writer.write(b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        await begun.wait()
        writer.write(b"zz\r\n")
        assert b" 400 " not in await closed_by_peer(reader)
        await ended.wait()
        writer.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_whoever_does_not_read_its_answers_makes_room_for_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is being answered for as long as it likes: that must not protect it."""
    monkeypatch.setattr(limits, "PAGE_LIMITS", limits.HttpLimits(connections=3))

    async def much(_: Request) -> Response:
        return Response(b"x" * 2**24)

    async def live(_: Request) -> Response:
        return Response(b"live")

    async with serving_app(Starlette(routes=[Route("/much", much), Route("/live", live)])) as server:
        taken = [await connect(server) for _ in range(3)]
        for _, writer in taken:
            writer.write(b"GET /much HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2)
        connections: set[Any] = server._server.server_state.connections
        while not (len(connections) == 3 and all(each.is_stuck and not each.waits for each in connections)):
            await asyncio.sleep(0.001)
        async with httpx.AsyncClient(base_url=server.url) as http:
            for _ in range(3):
                assert (await http.get("/live", headers={"connection": "close"})).text == "live"
        for _, writer in taken:
            writer.close()


@dataclass(eq=False)
class Connected:
    """What decides about one that is open."""

    origin: str
    number: int
    is_stuck: bool = False
    waits: bool = False


@pytest.mark.parametrize(
    ("open_ones", "out"),
    [
        ([("a", "answered")] * 3 + [("a", "waits")], None),
        ([("a", "answered")] * 4 + [("a", "waits")], 0),
        ([("a", "answered"), ("a", "waits"), ("a", "waits"), ("a", "answered"), ("a", "waits")], 1),
        ([("a", "waits"), ("a", "answered"), ("a", "stuck"), ("a", "stuck"), ("a", "waits")], 2),
        ([("a", "answered")] * 4 + [("b", "waits")], 0),
        ([("b", "stuck"), ("a", "waits"), ("a", "answered"), ("a", "answered"), ("b", "waits")], 1),
        ([("b", "stuck"), ("a", "waits"), ("a", "waits"), ("b", "stuck"), ("c", "waits")], 0),
        ([("10.0.0.9", "answered")] * 2 + [("10.0.0.9", "waits")], 0),
        ([("10.0.0.9", "waits")] * 3, 0),
        ([("127.0.0.1", "waits")] * 3, None),
    ],
)
def test_whom_a_newcomer_pushes_out(open_ones: list[tuple[str, str]], out: int | None) -> None:
    """Of the address with the most: those who do not read, those who wait, the oldest; never the newcomer itself."""
    most = limits.HttpLimits(connections=4, address=2 if open_ones[0][0].count(".") == 3 else 4)
    made: list[Any] = [
        Connected(origin, number, is_stuck=how == "stuck", waits=how == "waits")
        for number, (origin, how) in enumerate(open_ones)
    ]
    found = limits.superfluous(made[-1], made, most)
    assert (None if found is None else found.number) == out


def test_half_of_an_ipv6_address_tells_who_it_is() -> None:
    same = ["2001:db8:1:2::1", "2001:db8:1:2:ffff::9"]
    assert {limits.origin_of(each) for each in same} == {"2001:db8:1:2::"}
    assert limits.origin_of("::ffff:10.0.0.9") == limits.origin_of("10.0.0.9") == "10.0.0.9"
    assert (limits.origin_of("::1"), limits.origin_of("unknown")) == ("::1", "unknown")


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
    monkeypatch.setattr(limits, "PAGE_LIMITS", limits.HttpLimits(connections=3))
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


async def test_when_all_are_being_answered_the_oldest_makes_room_for_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PAGE_LIMITS", limits.HttpLimits(connections=1))
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> Response:
        asked.set()
        await answer.wait()
        return Response()

    async def quick(_: Request) -> Response:
        return Response()

    async with serving_app(Starlette(routes=[Route("/slow", slow), Route("/quick", quick)])) as server:
        reading, writing = await connect(server)
        writing.write(b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await asked.wait()
        reader, writer = await connect(server)
        writer.write(b"GET /quick HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert await closed_by_peer(reading) == b""
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
