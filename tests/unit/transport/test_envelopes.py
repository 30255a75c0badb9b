"""Envelopes: they grow at the end, skip what may be skipped, and talk to the peers of older versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import MailboxFull, MalformedMessage, RemoteError, RunnerUnavailable
from coterie.transport import protocol
from coterie.transport.protocol import (
    FACTS_MOST_BYTES,
    HEADERS_MOST_BYTES,
    KINDS,
    MALFORMED,
    OPTIONAL_FROM,
    FailureFrame,
    Frames,
    ProtocolError,
    decode,
    encode,
    pack_error,
    pack_headers,
    read_error,
    read_headers,
    require_optional,
)
from tests.support.transport import framed

GOLDEN = Path(__file__).parent / "golden" / "protocol-1.bin"

# What a peer of protocol 1 sends, one of each kind. Never changed: the file holds the bytes as they were recorded.
PROTOCOL_1: list[Any] = [
    protocol.TermsFrame(8_388_608, 16_384, 67_108_864),
    protocol.RequestFrame(1, 3, b"payload", 30_000, b"\x81\xa1a\xa1b", 0),
    protocol.RequestFrame(2, 3, b"", 250, b"", 262_144),
    protocol.ReplyFrame(1, b"reply"),
    protocol.FailureFrame(2, "mailbox_full", pack_error(MailboxFull(entity="Account/alice", waiting=7))[1]),
    protocol.CancelFrame(3),
    protocol.NoticeFrame(4, b"told", b""),
    protocol.ItemFrame(5, b"item"),
    protocol.EndFrame(5),
    protocol.CreditFrame(5, 131_072),
    protocol.PingFrame(1),
    protocol.PongFrame(1),
    protocol.GoodbyeFrame("stopping", is_final=True, taken_id=7),
]


def test_the_recorded_bytes_of_protocol_1_are_understood_and_still_what_is_sent_L3() -> None:
    recorded = GOLDEN.read_bytes()
    assert [decode(body) for body in Frames().feed(recorded)] == PROTOCOL_1
    assert framed(map(encode, PROTOCOL_1)) == recorded


def test_every_kind_is_recorded() -> None:
    assert {type(frame) for frame in PROTOCOL_1} == set(KINDS)
    numbers = [kind.__struct_config__.tag for kind in KINDS]
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) < OPTIONAL_FROM


def fields(frame: Any) -> list[Any]:
    return list(msgspec.msgpack.decode(encode(frame)))


@pytest.mark.parametrize("frame", PROTOCOL_1, ids=lambda frame: type(frame).__name__)
def test_fields_of_a_newer_peer_are_dropped(frame: Any) -> None:
    newer = [*fields(frame), "a field of tomorrow", {"nested": [1, 2, {"deep": b""}]}]
    assert decode(msgspec.msgpack.encode(newer)) == frame


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_fields_that_an_older_peer_lacks_take_their_defaults(kind: Any) -> None:
    """All that protocol 1 did not have from its first day on must have a default."""
    frame = next(frame for frame in PROTOCOL_1 if type(frame) is kind)
    required = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
    older = decode(msgspec.msgpack.encode(fields(frame)[: 1 + required]))
    assert type(older) is kind
    assert fields(older)[: 1 + required] == fields(frame)[: 1 + required]


@pytest.mark.parametrize("kind", [OPTIONAL_FROM, 200, 2**40])
def test_an_optional_kind_of_tomorrow_is_skipped(kind: int) -> None:
    body = msgspec.msgpack.encode([kind, "anything", [1]])
    with pytest.raises(MALFORMED) as told:
        decode(body)
    require_optional(body, told.value)


@pytest.mark.parametrize("kind", [0, 13, OPTIONAL_FROM - 1, -1])
def test_an_unknown_kind_that_must_be_understood_breaks_off(kind: int) -> None:
    body = msgspec.msgpack.encode([kind, "anything"])
    with pytest.raises(MALFORMED) as told:
        decode(body)
    with pytest.raises(ProtocolError, match=f"kind {kind}"):
        require_optional(body, told.value)


def test_a_known_kind_with_a_wrong_field_breaks_off() -> None:
    body = msgspec.msgpack.encode([2, "no number", b""])
    with pytest.raises(MALFORMED) as told:
        decode(body)
    with pytest.raises(ProtocolError):
        require_optional(body, told.value)


BOMBS = {
    "lists": b"\x91" * 100_000,
    "in a field to come": b"\x94\x02\x01\xc4\x01x" + b"\x91" * 100_000,
    "in a kind to come": b"\x92\x7f" + b"\x91" * 100_000,
    "a list of 2^32-1": b"\xdd\xff\xff\xff\xff\x02\x01",
    "a body of 2^32-1": b"\x93\x02\x01\xc6\xff\xff\xff\xff",
    "a map": b"\x81\x01\x02",
    "an extension": b"\x93\x02\x01\xc7\x01\x05x",
    "nothing": b"",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_bombs_are_protocol_errors(bomb: bytes) -> None:
    with pytest.raises(MALFORMED) as told:
        decode(bomb)
    with pytest.raises(ProtocolError):
        require_optional(bomb, told.value)


def test_headers_round_trip_and_are_bounded() -> None:
    headers = {"traceparent": "00-ab", "ü": "…"}
    assert read_headers(pack_headers(headers)) == headers
    assert read_headers(pack_headers({})) == {}
    with pytest.raises(MalformedMessage, match="the most is"):
        pack_headers({"long": "x" * HEADERS_MOST_BYTES})


def test_headers_beyond_the_bound_are_refused_when_they_arrive() -> None:
    with pytest.raises(MALFORMED):
        decode(msgspec.msgpack.encode([1, 1, 1, b"", 0, bytes(HEADERS_MOST_BYTES + 1)]))


@given(st.binary(max_size=200))
def test_reading_headers_and_errors_never_raises(junk: bytes) -> None:
    assert isinstance(read_headers(junk), dict)
    assert isinstance(read_error(FailureFrame(1, "mailbox_full", junk)), Exception)
    assert isinstance(read_error(FailureFrame(1, "of tomorrow", junk)), RemoteError)


def test_an_error_survives_with_its_facts() -> None:
    sent = RunnerUnavailable(runner="web-2", target="x", problem="p", sent=False)
    error = read_error(FailureFrame(1, *pack_error(sent)))
    assert isinstance(error, RunnerUnavailable)
    assert (error.message, error.sent) == (sent.message, False)


def test_an_error_with_too_much_text_is_shortened() -> None:
    code, facts = pack_error(MalformedMessage(what="x", problem="y" * 2 * FACTS_MOST_BYTES))
    assert len(facts) <= FACTS_MOST_BYTES
    assert "yyy" in str(read_error(FailureFrame(1, code, facts)))
