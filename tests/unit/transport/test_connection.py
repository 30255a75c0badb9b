"""One connection: nothing decoded before the proof, writes coalesced, pings, goodbyes, older and newer peers."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coterie.errors import RunnerUnavailable, ShuttingDown
from coterie.kernel.random import Random
from coterie.testing import run_simulation
from coterie.transport import connection as module
from coterie.transport import protocol
from coterie.transport.connection import Connection
from coterie.transport.handshake import BYTES_MOST, HELLO_BYTES, Handshake
from coterie.transport.identity import Identity
from coterie.transport.protocol import (
    Frames,
    GoodbyeFrame,
    ItemFrame,
    PingFrame,
    PongFrame,
    ReplyFrame,
    RequestFrame,
    encode,
)
from tests.support.transport import framed
from tests.unit.transport.single_connection import LIMITS, TERMS, Answering, Lone, Sink

GOLDEN = Path(__file__).parent / "golden" / "session-1.bin"
SECRET = b"the cluster's secret, of 32 bytes"


def end(role: Any, *, seal: bool = False, me: Identity | None = None, handler: Answering | None = None) -> Connection:
    who = me or Identity("cluster", role)
    return Connection(
        handler=handler or Answering(),
        limits=LIMITS,
        greet=lambda _: Handshake(
            role=role, me=who, secrets=[SECRET], chance=Random(1 if role == "client" else 2), seal=seal
        ),
        on_open=lambda _: None,
        on_lost=lambda *_: None,
        on_gone=lambda _: None,
    )


class Echo(Answering):
    """Answers at once."""

    def on_request(self, request: Any) -> None:
        request.reply(request.body)


def exchange(one: Connection, other: Connection, sinks: tuple[Sink, Sink]) -> tuple[bytes, bytes]:
    """Carry bytes both ways until none are left; what each has written."""
    said = (bytearray(), bytearray())
    while sinks[0].written or sinks[1].written:
        for index, receiver in ((0, other), (1, one)):
            data = bytes(sinks[index].written)
            sinks[index].written.clear()
            said[index].extend(data)
            if data:
                receiver.data_received(data)
    return bytes(said[0]), bytes(said[1])


def joined(**options: Any) -> tuple[Connection, Connection, tuple[Sink, Sink]]:
    client, server = end("client", **options), end("server", **options)
    sinks = Sink(), Sink()
    client.connection_made(sinks[0])
    server.connection_made(sinks[1])
    exchange(client, server, sinks)
    return client, server, sinks


@pytest.mark.simulated(seeds=2)
async def test_both_ends_open_after_the_handshake_and_the_terms() -> None:
    client, server, _ = joined()
    assert client.is_usable
    assert server.is_usable
    assert (client.peer, server.peer) == ("server", "client")


@pytest.mark.simulated(seeds=2)
async def test_a_sealed_connection_carries_requests_too() -> None:
    client, server, sinks = joined(seal=True)
    call = asyncio.ensure_future(client.calls.request(1, b"body", 5.0, b""))
    await asyncio.sleep(0)
    assert b"body" in sinks[0].written
    exchange(client, server, sinks)
    server._handler.kept[0].reply(b"done")  # type: ignore[attr-defined] # an Answering
    await asyncio.sleep(0)
    exchange(client, server, sinks)
    assert await call == b"done"


@pytest.mark.simulated(seeds=2)
@pytest.mark.parametrize("kept", [1, 4, 19, 25, -1])
async def test_a_sealed_connection_that_ends_inside_a_record_says_so(kept: int) -> None:
    client, server, sinks = joined(seal=True)
    lost: list[Exception] = []
    client._on_lost = lambda _, error: lost.append(error)
    call = asyncio.ensure_future(client.calls.request(1, b"body", 5.0, b""))
    await asyncio.sleep(0)
    exchange(client, server, sinks)
    server._handler.kept[0].reply(b"done")  # type: ignore[attr-defined] # an Answering
    await asyncio.sleep(0)
    record = bytes(sinks[1].written)[:kept]
    client.data_received(record)
    client.eof_received()
    client.connection_lost(None)
    with pytest.raises(RunnerUnavailable, match=f"the connection ended {len(record)} bytes into a sealed record"):
        await call
    assert "into a sealed record" in str(lost[0])


@pytest.mark.simulated(seeds=2)
async def test_a_sealed_connection_that_ends_between_records_is_a_peer_that_went_away() -> None:
    client, _, _ = joined(seal=True)
    call = asyncio.ensure_future(client.calls.request(1, b"body", 5.0, b""))
    await asyncio.sleep(0)
    client.connection_lost(None)
    with pytest.raises(RunnerUnavailable, match="closed by the other end"):
        await call


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", framed([encode(PingFrame(1))]), TERMS, b"\x00" * 4096])
def test_nothing_of_a_stranger_reaches_a_decoder_inv_x1(first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    monkeypatch.setattr(module, "_decode", decoded.append)
    monkeypatch.setattr(Frames, "feed", lambda _, data: decoded.append(data))

    async def main() -> None:
        server, sink = end("server"), Sink()
        server.connection_made(sink)
        for at in range(0, len(first), 3):
            server.data_received(first[at : at + 3])
        assert decoded == []
        assert sink.is_closed

    run_simulation(main, seed=0)


@pytest.mark.simulated(seeds=1)
@pytest.mark.parametrize("frame", [RequestFrame(1, 1, b""), ReplyFrame(1, b""), GoodbyeFrame("")], ids=repr)
async def test_frames_before_the_terms_break_off(frame: Any) -> None:
    lone = Lone(agreed=False)
    lone.say(frame)
    assert lone.sink.is_closed
    assert lone.handler.kept == []
    assert "before the terms" in str(lone.errors[0])


@pytest.mark.simulated(seeds=2)
async def test_frames_of_one_turn_leave_in_one_write_and_a_lone_one_at_once() -> None:
    lone = Lone()
    calls = [asyncio.ensure_future(lone.connection.calls.request(1, b"%d" % n, 5.0, b"")) for n in range(10)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    one = len(framed([encode(RequestFrame(1, 1, b"0", 5_000))]))
    assert lone.sink.sizes == [one, 9 * one]
    lone.connection.data_received(framed(encode(ReplyFrame(number, b"")) for number in range(1, 11)))
    await asyncio.gather(*calls)


@pytest.mark.simulated(seeds=2)
async def test_replies_that_a_read_caused_leave_together_at_its_end() -> None:
    lone = Lone(handler=Echo())
    assert lone.say(*(RequestFrame(number, 1, b"x") for number in range(1, 41))) == [
        ReplyFrame(n, b"x") for n in range(1, 41)
    ]
    assert len(lone.sink.sizes) == 1


@pytest.mark.simulated(seeds=2)
async def test_a_request_id_is_never_taken_twice() -> None:
    lone = Lone()
    lone.say(RequestFrame(5, 1, b"first"))
    lone.say(RequestFrame(5, 1, b"again"))
    assert lone.sink.is_closed
    assert [request.body for request in lone.handler.cancelled] == [b"first"]
    assert lone.handler.kept == []


@pytest.mark.simulated(seeds=2)
async def test_requests_beyond_what_we_said_we_take_are_refused() -> None:
    lone = Lone()
    frames = lone.say(*(RequestFrame(number, 1, b"") for number in range(1, LIMITS.in_flight + 3)))
    assert len(lone.handler.kept) == LIMITS.in_flight
    assert [type(frame) for frame in frames] == [protocol.FailureFrame] * 2
    error = protocol.read_error(frames[0])
    assert isinstance(error, RunnerUnavailable)
    assert not error.sent


@pytest.mark.simulated(seeds=1)
async def test_reading_stops_while_too_much_waits_to_be_written_and_then_goes_on() -> None:
    lone = Lone()
    lone.say(*(RequestFrame(number, 1, b"") for number in range(1, 21)))
    lone.connection.pause_writing()
    body = bytes(60_000)
    for request in lone.handler.kept[:8]:
        request.reply(body)
    paused = [lone.sink.is_paused]
    lone.handler.kept[8].reply(body)  # 540,000 of 524,288 bytes
    paused.append(lone.sink.is_paused)
    lone.connection.resume_writing()
    assert [*paused, lone.sink.is_paused] == [False, True, False]
    assert lone.sink.frames() == [ReplyFrame(number, body) for number in range(1, 10)]
    assert lone.connection._out.held_bytes == 0


@pytest.mark.simulated(seeds=1)
async def test_a_peer_that_reads_nothing_costs_four_times_the_bound_and_then_its_connection() -> None:
    lone = Lone()
    lone.say(*(RequestFrame(number, 1, b"") for number in range(1, LIMITS.in_flight + 1)))
    lone.connection.pause_writing()
    for request in list(lone.handler.kept):
        request.reply(bytes(60_000))
        assert lone.connection._out.held_bytes <= 4 * LIMITS.in_flight_bytes
    assert lone.sink.is_closed
    assert "it reads nothing" in str(lone.errors[0])


@pytest.mark.simulated(seeds=1)
async def test_a_stream_that_sends_on_without_credit_breaks_off() -> None:
    lone = Lone()
    reading = await lone.connection.stream(1, b"", 5.0, b"")
    for _ in range(2):
        lone.say(ItemFrame(1, bytes(LIMITS.window_bytes - 100)))
    assert not lone.connection.is_lost, "one item may overshoot"
    lone.say(ItemFrame(1, b"more"))
    assert lone.sink.is_closed
    assert len([await reading.next() for _ in range(2)]) == 2, "what had come is still given"
    with pytest.raises(RunnerUnavailable, match="without credit"):
        await reading.next()


@pytest.mark.simulated(seeds=2)
async def test_a_silent_peer_is_pinged_and_then_given_up() -> None:
    lone = Lone()
    await asyncio.sleep(LIMITS.ping_s * 2 + 0.1)
    assert lone.sink.frames() == [PingFrame(0)]
    lone.say(PongFrame(0))
    await asyncio.sleep(LIMITS.ping_s * (LIMITS.pings + 2) + 0.1)
    assert lone.sink.is_closed
    assert "nothing heard from it for 20s" in str(lone.errors[0])


@pytest.mark.simulated(seeds=2)
async def test_a_goodbye_is_answered_and_what_is_under_way_is_finished_first() -> None:
    lone = Lone()
    call = asyncio.ensure_future(lone.connection.calls.request(1, b"", 5.0, b""))
    await asyncio.sleep(0)
    lone.sink.frames()
    lone.say(RequestFrame(1, 1, b"theirs"))
    assert lone.say(GoodbyeFrame("moving")) == [GoodbyeFrame("moving")]
    assert not lone.connection.is_usable
    lone.handler.kept[0].reply(b"")
    await asyncio.sleep(0)
    assert lone.sink.frames() == [ReplyFrame(1, b"")]
    assert lone.say(ReplyFrame(1, b"ours")) == [GoodbyeFrame("done", is_final=True, taken_id=1)]
    assert await call == b"ours"
    assert isinstance(lone.errors[0], ShuttingDown)


@pytest.mark.simulated(seeds=2)
async def test_a_final_goodbye_ends_everything_at_once() -> None:
    lone = Lone()
    call = asyncio.ensure_future(lone.connection.calls.request(1, b"", 5.0, b""))
    await asyncio.sleep(0)
    lone.say(GoodbyeFrame("stopping", is_final=True))
    with pytest.raises(RunnerUnavailable, match="it said goodbye"):
        await call
    assert lone.sink.is_closed


@pytest.mark.simulated(seeds=2)
async def test_a_final_goodbye_says_which_requests_were_never_read() -> None:
    """D8: those may be sent elsewhere, so that no call fails because its owner leaves."""
    lone = Lone()
    calls = [asyncio.ensure_future(lone.connection.calls.request(1, b"", 5.0, b"")) for _ in range(3)]
    await asyncio.sleep(0.01)
    lone.say(GoodbyeFrame("stopping", is_final=True, taken_id=2))
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(error, RunnerUnavailable) and error.sent for error in errors] == [True, True, False]


@pytest.mark.simulated(seeds=2)
async def test_after_close_a_peer_that_does_not_close_is_aborted() -> None:
    lone = Lone()
    lone.connection.close("stopping")
    assert lone.sink.frames() == [GoodbyeFrame("stopping", is_final=True, taken_id=0)]
    assert not lone.sink.is_closed
    lone.say(RequestFrame(1, 1, b"too late"))
    assert lone.handler.kept == []
    await asyncio.sleep(LIMITS.goodbye_s + 0.1)
    assert lone.sink.is_closed


@pytest.mark.simulated(seeds=2)
async def test_what_was_never_written_is_told_as_not_sent() -> None:
    lone = Lone()
    first = asyncio.ensure_future(lone.connection.calls.request(1, b"", 5.0, b""))
    await asyncio.sleep(0)
    lone.connection.pause_writing()
    second = asyncio.ensure_future(lone.connection.calls.request(1, b"", 5.0, b""))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    lone.connection.connection_lost(ConnectionResetError("reset"))
    errors = await asyncio.gather(first, second, return_exceptions=True)
    assert [error.sent for error in errors if isinstance(error, RunnerUnavailable)] == [True, False]


@pytest.mark.simulated(seeds=2)
async def test_a_peer_of_tomorrow_is_understood_l3() -> None:
    """Protocol 2 that still speaks 1: more fields everywhere, and kinds that may be skipped."""
    handler = Answering()
    server = end("server", handler=handler)
    client = end("client", me=Identity("cluster", "client", protocol=2, protocol_least=1))
    sinks = Sink(), Sink()
    client.connection_made(sinks[0])
    server.connection_made(sinks[1])
    exchange(client, server, sinks)
    assert server.is_usable
    newer = [[1, 1, 7, b"body", 1_000, b"", 0, "more", [1, 2]], [99, {"a": "hint"}], [5, 7, b"told", b"", 3]]
    server.data_received(framed(msgspec.msgpack.encode(frame) for frame in newer))
    assert [request.body for request in handler.kept] == [b"body"]
    assert handler.notices == [b"told"]
    handler.kept[0].reply(b"")
    await asyncio.sleep(0)
    assert not server.is_lost


def record() -> bytes:
    """A session as a client of protocol 1 says it, against a server whose nonce is known."""
    said = bytearray()

    async def main() -> None:
        client, server, sinks = end("client"), end("server"), (Sink(), Sink())
        client.connection_made(sinks[0])
        server.connection_made(sinks[1])
        said.extend(exchange(client, server, sinks)[0])
        calls = [asyncio.ensure_future(client.calls.request(3, b"ask %d" % n, 5.0, b"")) for n in range(3)]
        client.notify(4, b"told", b"")
        await asyncio.sleep(0)
        calls[1].cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        said.extend(exchange(client, server, sinks)[0])

    run_simulation(main, seed=0)
    return bytes(said)


@pytest.mark.parametrize("step", [1, 64, 1_000_000])
def test_a_recorded_peer_of_protocol_1_is_still_served_l3(step: int) -> None:
    recorded, handler = GOLDEN.read_bytes(), Answering()
    turns = [0, HELLO_BYTES, BYTES_MOST]  # the handshake takes turns, so these are never in one read
    edges = sorted({*turns, *range(BYTES_MOST, len(recorded), step), len(recorded)})

    async def main() -> None:
        server, sink = end("server", handler=handler), Sink()
        server.connection_made(sink)
        for begin, stop in pairwise(edges):
            server.data_received(recorded[begin:stop])
        assert server.is_usable
        assert server.peer == "client"
        assert [request.body for request in handler.kept] == [b"ask 0", b"ask 2"]
        assert handler.notices == [b"told"]
        assert [request.body for request in handler.cancelled] == [b"ask 1"]

    run_simulation(main, seed=0)


def test_the_recording_is_what_a_client_says_today() -> None:
    assert record() == GOLDEN.read_bytes()
