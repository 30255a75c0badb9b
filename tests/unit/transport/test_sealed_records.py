"""Sealed records: whatever somebody in between does to them is noticed."""

from __future__ import annotations

import hmac
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.transport.protocol import ProtocolError
from coterie.transport.sealed_records import MAC_BYTES, RECORD_MOST_BYTES, Opener, Sealer

KEY, OTHER = b"k" * 32, b"o" * 32
WRITES = [b"one", b"two" * 100, b"three"]


def sealed(writes: list[bytes] | None = None) -> list[bytes]:
    sealer = Sealer(KEY)
    return [sealer.seal(write) for write in (WRITES if writes is None else writes)]


def opened(*data: bytes) -> list[bytes]:
    opener = Opener(KEY)
    return [payload for piece in data for payload in opener.open(piece)]


@given(st.lists(st.binary(max_size=2000), max_size=20), st.lists(st.integers(1, 700), max_size=60))
def test_what_is_sealed_comes_out_in_any_split(writes: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(sealed(writes))
    pieces, at = [], 0
    for size in [*sizes, len(stream)]:
        pieces.append(stream[at : at + size])
        at += size
    assert b"".join(opened(*pieces)) == b"".join(writes)


def test_each_write_comes_out_whole_byte_by_byte() -> None:
    stream = b"".join(sealed())
    assert opened(*(stream[at : at + 1] for at in range(len(stream)))) == WRITES


def test_a_long_write_becomes_several_records() -> None:
    write = bytes(range(256)) * 4096 + b"end"
    record = Sealer(KEY).seal(write)
    payloads = opened(record)
    assert b"".join(payloads) == write
    assert max(map(len, payloads)) == RECORD_MOST_BYTES
    assert len(record) == len(write) + len(payloads) * (4 + MAC_BYTES)


def test_nothing_is_sealed_as_nothing() -> None:
    assert Sealer(KEY).seal(b"") == b""


def test_every_flipped_bit_is_noticed() -> None:
    stream = b"".join(sealed())
    for bit in range(len(stream) * 8):
        flipped = (int.from_bytes(stream, "big") ^ (1 << bit)).to_bytes(len(stream), "big")
        opener, out = Opener(KEY), []
        with pytest.raises(ProtocolError):  # noqa: PT012 a longer length shows at the end
            out += opener.open(flipped)
            opener.end()
        assert out == WRITES[: len(out)], "only what was genuine came out"


@pytest.mark.parametrize(
    "order",
    [[0, 0], [0, 1, 1], [0, 1, 0], [1], [0, 2], [1, 0], [2, 1, 0], [0, 1, 2, 0]],
    ids=["repeated", "repeated later", "an old one", "first dropped", "one dropped", "swapped", "reversed", "again"],
)
def test_repeating_dropping_and_reordering_are_noticed(order: list[int]) -> None:
    records = sealed()
    with pytest.raises(ProtocolError, match="not genuine"):
        opened(*(records[at] for at in order))


def test_a_made_up_record_and_one_of_another_key_are_noticed() -> None:
    for forged in (Sealer(OTHER).seal(b"one"), b"\0\0\0\x03" + b"\0" * MAC_BYTES + b"one"):
        with pytest.raises(ProtocolError, match="not genuine"):
            opened(forged)


def test_a_record_of_ours_sent_back_is_noticed() -> None:
    """Each direction has its own key."""
    with pytest.raises(ProtocolError):
        Opener(OTHER).open(Sealer(KEY).seal(b"one"))


def test_two_records_do_not_pass_as_one_nor_one_as_two() -> None:
    one, two = sealed([b"ab", b"cd"])
    with pytest.raises(ProtocolError):
        opened(b"\0\0\0\x04" + one[4:20] + one[20:] + two[20:])


def test_every_cut_in_a_record_is_noticed_at_the_end() -> None:
    record = sealed([b"payload"])[0]
    for kept in range(1, len(record)):
        opener = Opener(KEY)
        assert opener.open(record[:kept]) == []
        with pytest.raises(ProtocolError, match=f"ended {kept} bytes into"):
            opener.end()
    opener = Opener(KEY)
    opener.open(record)
    opener.end()


@pytest.mark.parametrize("size", [0, RECORD_MOST_BYTES + 1, 2**31, 2**32 - 1])
def test_an_absurd_length_is_refused_before_anything_is_kept(size: int) -> None:
    opener = Opener(KEY)
    with pytest.raises(ProtocolError, match=f"of {size} bytes is announced"):
        opener.open(size.to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match="nothing after it is read"):
        opener.open(sealed()[0])


def test_after_a_forged_record_nothing_is_read_any_more() -> None:
    records = sealed()
    opener = Opener(KEY)
    with pytest.raises(ProtocolError):
        opener.open(records[1])
    with pytest.raises(ProtocolError, match="nothing after it is read"):
        opener.open(records[0])


def test_what_waits_for_verification_is_bounded_and_cheap_byte_by_byte() -> None:
    record = Sealer(KEY).seal(b"x" * RECORD_MOST_BYTES)
    opener = Opener(KEY)
    tracemalloc.start()
    try:
        for at in range(len(record) - 1):
            opener.open(record[at : at + 1])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * RECORD_MOST_BYTES


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_junk_raises_nothing_else_than_protocol_error(junk: bytes) -> None:
    opener = Opener(KEY)
    try:
        assert opener.open(junk) == []
        opener.end()
    except ProtocolError:
        pass


def test_macs_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def spy(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return real(one, other)

    monkeypatch.setattr("coterie.transport.sealed_records.hmac.compare_digest", spy)
    opened(*sealed())
    assert compared == [(MAC_BYTES, MAC_BYTES)] * 3


def test_a_key_is_not_shown_x4() -> None:
    assert KEY.decode() not in repr(Sealer(KEY)) + repr(Opener(KEY)) + repr(vars(Sealer(KEY)))
