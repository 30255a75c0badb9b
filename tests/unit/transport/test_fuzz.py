"""Bad input at every boundary: only ProtocolError inside, only the connection's end outside."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.testing import run_simulation
from coterie.transport import protocol
from coterie.transport.protocol import MALFORMED, Frames, ProtocolError, decode, encode, require_optional
from tests.support.transport import framed
from tests.unit.transport.fuzz import ABSURD, fuzz
from tests.unit.transport.single_connection import LIMITS, Lone
from tests.unit.transport.test_envelopes import BOMBS, PROTOCOL_1

STREAM = framed(map(encode, PROTOCOL_1[1:-1]))


def read(stream: bytes, *, step: int) -> list[Any]:
    """All envelopes of a stream; nothing but ProtocolError is raised."""
    frames, found = Frames(LIMITS.body_most_bytes), []
    for at in range(0, len(stream), step):
        for body in frames.feed(stream[at : at + step]):
            try:
                found.append(decode(body))
            except MALFORMED as error:
                require_optional(body, error)
        assert len(frames._rest) <= LIMITS.body_most_bytes + 4
    return found


@pytest.mark.parametrize("step", [1, 2, 7, 1_000])
def test_truncation_at_every_byte_raises_nothing(step: int) -> None:
    for end in range(len(STREAM)):
        read(STREAM[:end], step=step)


def test_every_single_bit_flip_gives_envelopes_or_a_protocol_error() -> None:
    refused = 0
    for at in range(len(STREAM)):
        for bit in range(8):
            flipped = bytearray(STREAM)
            flipped[at] ^= 1 << bit
            try:
                read(bytes(flipped), step=len(STREAM))
            except ProtocolError:
                refused += 1
    assert refused > len(STREAM)


@given(junk=st.binary(max_size=400), step=st.integers(1, 50))
def test_junk_gives_envelopes_or_a_protocol_error(junk: bytes, step: int) -> None:
    with contextlib.suppress(ProtocolError):
        read(junk, step=step)


@given(junk=st.binary(min_size=1, max_size=200))
def test_a_frame_of_junk_gives_an_envelope_or_a_protocol_error(junk: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        read(framed([junk]), step=1_000)


def in_loop(check: Any) -> None:
    async def main() -> None:
        check()

    run_simulation(main, seed=0)


@pytest.mark.parametrize("length", [length for length in ABSURD if not 0 < length <= 2**16])
def test_an_absurd_length_ends_its_connection_and_no_other(length: int) -> None:
    def check() -> None:
        bad, good = Lone(), Lone()
        bad.connection.data_received(struct.pack(">I", length))
        assert bad.sink.is_closed
        assert bad.connection.is_lost
        assert len(bad.connection._frames._rest) <= 4
        assert good.say(protocol.PingFrame(1)) == [protocol.PongFrame(1)]

    in_loop(check)


@pytest.mark.parametrize(
    "bomb", [bomb for bomb in BOMBS.values() if bomb], ids=[name for name in BOMBS if name != "nothing"]
)
def test_a_bomb_ends_its_connection_and_no_other(bomb: bytes) -> None:
    def check() -> None:
        bad, good = Lone(), Lone()
        bad.connection.data_received(framed([bomb]))
        assert bad.sink.is_closed
        assert good.say(protocol.PingFrame(1)) == [protocol.PongFrame(1)]

    in_loop(check)


def test_a_bomb_in_a_body_is_never_looked_into() -> None:
    def check() -> None:
        lone = Lone()
        lone.say(protocol.RequestFrame(1, 1, b"\x91" * 50_000))
        assert lone.handler.kept[0].body == b"\x91" * 50_000
        assert not lone.connection.is_lost

    in_loop(check)


@pytest.mark.parametrize("seed", range(3))
def test_a_sample_of_the_long_fuzz_run(seed: int) -> None:
    tally = fuzz(20_000, seed=seed)
    assert tally.frames >= 20_000
    assert tally.echoes > 0
    assert len(tally.ends) > 5


@pytest.mark.nightly
def test_ten_million_broken_frames() -> None:
    assert fuzz(10_000_000, seed=1).frames >= 10_000_000
