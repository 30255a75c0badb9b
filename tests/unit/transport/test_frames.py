"""Frames: any split gives the same bodies, lengths are judged before anything is kept."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.transport.protocol import HEAD_BYTES, Frames, ProtocolError
from tests.support.transport import framed

BODIES = st.lists(st.binary(min_size=1, max_size=300), max_size=12)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


def feed(frames: Frames, pieces: list[bytes]) -> list[bytes]:
    return [bytes(body) for piece in pieces for body in frames.feed(piece)]


@given(bodies=BODIES, places=st.lists(st.integers(0, 5_000), max_size=20))
def test_any_split_gives_the_same_bodies(bodies: list[bytes], places: list[int]) -> None:
    assert feed(Frames(), cut(framed(bodies), places)) == bodies


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7])
def test_a_split_at_every_byte_gives_the_same_bodies(step: int) -> None:
    bodies = [b"a", b"bc" * 50, b"\x00", b"d" * 9]
    stream = framed(bodies)
    frames = Frames()
    assert feed(frames, [stream[at : at + step] for at in range(0, len(stream), step)]) == bodies
    assert len(frames._rest) == 0


@pytest.mark.parametrize("length", [0, 1_001, 2**31, 2**32 - 1])
def test_an_absurd_length_is_refused_as_soon_as_it_is_there(length: int) -> None:
    frames = Frames(1_000)
    head = struct.pack(">I", length)
    assert feed(frames, [head[:3]]) == []
    with pytest.raises(ProtocolError, match="no bytes" if length == 0 else f"{length} bytes, the limit is 1000"):
        feed(frames, [head[3:]])


def test_bodies_ahead_of_a_bad_length_are_given_first() -> None:
    found = iter(Frames(10).feed(framed([b"one", b"two"]) + b"\xff\xff\xff\xff"))
    assert [next(found), next(found)] == [b"one", b"two"]
    with pytest.raises(ProtocolError):
        next(found)


def test_a_body_at_the_limit_passes() -> None:
    frames = Frames(1_000)
    assert feed(frames, [framed([bytes(1_000)])]) == [bytes(1_000)]


def test_an_announced_length_allocates_nothing_until_bytes_come() -> None:
    frames = Frames(2**31)
    assert feed(frames, [struct.pack(">I", 2**31), b"ab"]) == []
    assert len(frames._rest) == HEAD_BYTES + 2
    assert frames._rest.__sizeof__() < 1_000


@given(sizes=st.lists(st.integers(1, 400), max_size=50))
def test_never_more_than_one_frame_and_one_read_is_kept(sizes: list[int]) -> None:
    frames, read = Frames(400), 64
    stream = framed([bytes(size) for size in sizes])
    for at in range(0, len(stream), read):
        feed(frames, [stream[at : at + read]])
        assert len(frames._rest) <= 400 + HEAD_BYTES


@pytest.mark.parametrize("limit", [0, -1, 2**32])
def test_a_limit_that_the_length_field_cannot_hold_is_refused(limit: int) -> None:
    with pytest.raises(AssertionError):
        Frames(limit)
