"""Envelopes of calls: what crosses, what is refused, and what other versions send (ROUTE-07, L3)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coterie.entities.calls.wire import (
    FAILED,
    MALFORMED,
    MARK,
    Broadcast,
    BroadcastReply,
    Envelope,
    NotMine,
    decode_broadcast,
    decode_broadcast_reply,
    decode_call,
    encode,
    pack_not_mine,
    read_marked,
)
from coterie.kernel.serialization.codec import PLAIN

CALL = Envelope("Account", "alice", "charge", b"\x81\xa1a\x01", "0" * 32, 2.5, "1" * 32, (("Shop/x", "2" * 32),), "k")


@pytest.mark.parametrize("payload", [b"", b"\x00\xff", b'{"json": true}', PLAIN.encode({"deep": [1, [2, [3]]]})])
def test_route_07_a_payload_crosses_untouched(payload: bytes) -> None:
    call = Envelope("Account", "alice", "charge", payload, "0" * 32, 2.5)
    assert decode_call(encode(call)).payload == payload


@pytest.mark.parametrize(
    ("envelope", "decode"),
    [
        (CALL, decode_call),
        (Broadcast("Account", "charge", b"\x80", 1.0, "1" * 32, (("Shop/x", "2" * 32),)), decode_broadcast),
        (BroadcastReply("alice", b"\x01", "mailbox_full", b"\x80"), decode_broadcast_reply),
    ],
)
def test_what_is_encoded_is_decoded_also_with_fields_of_tomorrow(envelope: Any, decode: Any) -> None:
    assert decode(encode(envelope)) == envelope
    newer = [*msgspec.msgpack.decode(encode(envelope)), "tomorrow", {"more": 1}]
    assert decode(msgspec.msgpack.encode(newer)) == envelope


def test_fields_that_an_older_sender_lacks_take_their_defaults() -> None:
    older = decode_call(msgspec.msgpack.encode(["Account", "alice", "charge", b"", "0" * 32, 2.5]))
    assert (older.trace_id, older.chain, older.key) == (None, (), None)


@pytest.mark.parametrize(
    "fields",
    [
        ["", "alice", "charge", b"", "0", 1.0],
        ["Account", "", "charge", b"", "0", 1.0],
        ["Account", "alice", "", b"", "0", 1.0],
        ["Account", "a" * 1001, "charge", b"", "0", 1.0],
        ["Account", "alice", "charge", {}, "0", 1.0],
        ["Account", "alice", "charge", b"", "0", 1.0, None, [["a", "b"]] * 1001],
        ["Account"],
        {},
    ],
)
def test_what_does_not_look_like_a_call_is_refused(fields: Any) -> None:
    with pytest.raises(MALFORMED):
        decode_call(msgspec.msgpack.encode(fields))


def test_no_result_begins_with_the_mark() -> None:
    """Results travel bare; the mark tells all other answers from them."""
    values = [None, True, 0, -1, 1.5, "", "x" * 300, b"", b"\xc1", [], {}, [1] * 70_000, 2**63, {"a": b"\xc1"}]
    assert MARK not in {PLAIN.encode(value)[0] for value in values}
    heads = set()
    for head in range(256):
        try:
            msgspec.msgpack.decode(bytes([head]) + bytes(64))
        except msgspec.DecodeError:
            continue
        heads.add(head)
    assert MARK not in heads


def test_not_mine_says_what_is_known() -> None:
    known = NotMine("shard:default:3", "f" * 32, 7, 300)
    assert read_marked(pack_not_mine(known)) == known


@pytest.mark.parametrize("body", [b"\xc1\x02", b"\xc1\x02junk", pack_not_mine(NotMine())])
def test_a_not_mine_that_cannot_be_read_knows_nothing(body: bytes) -> None:
    assert read_marked(body) == NotMine()


def test_a_failure_is_told_from_an_answer_of_tomorrow() -> None:
    assert read_marked(FAILED + b"failure") == b"failure"
    assert read_marked(b"\xc1\x09something") == b""
    assert read_marked(b"\xc1") == b""
