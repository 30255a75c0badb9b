"""Frames that are broken in every way, against whole connections: `python -m tests.unit.transport.fuzz --frames N`.

Holds: nothing but the end of its own connection comes of it; what is kept is bounded; another connection goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import resource
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coterie.transport import protocol
from coterie.transport.protocol import AROUND_BODY_BYTES, HEAD_BYTES, encode
from tests.support.transport import framed
from tests.unit.transport.single_connection import LIMITS, Answering, Lone

if TYPE_CHECKING:
    from collections.abc import Callable

ABSURD = [0, 1, 2**16, 2**23, 2**31 - 1, 2**31, 2**32 - 1]
KEPT_MOST_BYTES = LIMITS.body_most_bytes + AROUND_BODY_BYTES + HEAD_BYTES
GROWN_MOST_KIB = 256 * 1024
_FRAMES_OF_ONE = 40
_CALLS = 3


@dataclass
class Tally:
    """What a run has seen."""

    frames: int = 0
    bytes: int = 0
    connections: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    kept_most_bytes: int = 0
    echoes: int = 0


def fuzz(frames: int, *, seed: int) -> Tally:
    """Send so many frames; raises whatever should not have happened."""
    return asyncio.run(_fuzz(frames, seed=seed))


async def _fuzz(frames: int, *, seed: int) -> Tally:
    chance, tally = random.Random(seed), Tally()
    witness = Lone(handler=Answering(random.Random(seed)))
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while tally.frames < frames:
        await _one_connection(chance, tally)
        if tally.connections % 100 == 0:
            _still_lives(witness, tally)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - grown_kib
    assert grown_kib < GROWN_MOST_KIB, f"memory grew by {grown_kib} KiB"
    return tally


async def _one_connection(chance: random.Random, tally: Tally) -> None:
    lone = Lone(handler=Answering(chance))
    tally.connections += 1
    calls = [asyncio.ensure_future(lone.connection.calls.request(1, b"x", 5.0, b"")) for _ in range(_CALLS)]
    await asyncio.sleep(0)
    await lone.connection.stream(1, b"", 5.0, b"")
    while not lone.errors:
        stream, count = _stream(chance)
        tally.frames += count
        tally.bytes += len(stream)
        for piece in _pieces(chance, stream):
            lone.connection.data_received(piece)
            lone.sink.written.clear()
            tally.kept_most_bytes = max(tally.kept_most_bytes, len(lone.connection._frames._rest))
        if tally.frames % 7 == 0:
            break
    assert tally.kept_most_bytes <= KEPT_MOST_BYTES + 2**18
    lone.connection.abort(protocol.read_error(protocol.FailureFrame(1, "the test is over")))
    await asyncio.gather(*calls, return_exceptions=True)
    assert lone.sink.is_closed
    assert len(lone.errors) == 1, "lost once"
    problem = str(getattr(lone.errors[0], "problem", lone.errors[0]))
    tally.ends[re.sub(r"\d+", "N", problem)[:40]] += 1


def _still_lives(witness: Lone, tally: Tally) -> None:
    witness.handler.chance = None
    tally.echoes += 1
    witness.say(protocol.RequestFrame(tally.echoes, 1, b"still there?"))
    request = witness.handler.kept.pop()
    request.reply(request.body)
    witness.connection._out.flush()
    assert witness.sink.frames() == [protocol.ReplyFrame(tally.echoes, b"still there?")]


def _stream(chance: random.Random) -> tuple[bytes, int]:
    bodies = [_body(chance) for _ in range(chance.randint(1, _FRAMES_OF_ONE))]
    stream = bytearray(framed(bodies))
    if chance.random() < 0.3:
        _BREAKS[int(chance.random() * len(_BREAKS))](chance, stream)
    return bytes(stream), len(bodies)


def _body(chance: random.Random) -> bytes:
    body = encode(_KINDS[int(chance.random() * len(_KINDS))](chance))
    draw = chance.random()
    if draw > 0.02:
        return body
    if draw < 0.004:
        return b"\x91" * chance.choice([10, 1_000, 50_000])  # a depth bomb
    if draw < 0.008:
        return chance.randbytes(chance.randint(1, 40))
    if draw < 0.012:
        return encode([chance.choice([0, 13, 64, 1000]), 1, [2, {"x": b""}]])
    changed = bytearray(body)
    changed[int(chance.random() * len(changed))] ^= 1 << chance.randint(0, 7)
    return bytes(changed)


def _number(chance: random.Random) -> int:
    return int(chance.random() * 60)


def _asked(chance: random.Random) -> int:
    """A request of ours, the stream, or, seldom, one that was never sent."""
    return 1 + int(chance.random() * (_CALLS + 1.01))


_serial = iter(range(1, 2**62))

_KINDS: list[Callable[[random.Random], Any]] = [
    lambda chance: protocol.RequestFrame(next(_serial), 1, b"x" * _number(chance), 1_000),
    lambda chance: protocol.RequestFrame(next(_serial), 1, b"", 1_000, b"", _number(chance)),
    lambda chance: protocol.ReplyFrame(_asked(chance), b"x"),
    lambda chance: protocol.FailureFrame(_asked(chance), "mailbox_full", b"\x80"),
    lambda chance: protocol.CancelFrame(_number(chance)),
    lambda chance: protocol.NoticeFrame(1, b"x" * _number(chance)),
    lambda chance: protocol.ItemFrame(_asked(chance), b"x"),
    lambda chance: protocol.EndFrame(_asked(chance)),
    lambda chance: protocol.CreditFrame(_number(chance), _number(chance)),
    lambda chance: protocol.PingFrame(_number(chance)),
    lambda chance: protocol.PongFrame(_number(chance)),
]


def _flip(chance: random.Random, stream: bytearray) -> None:
    stream[int(chance.random() * len(stream))] ^= 1 << chance.randint(0, 7)


def _truncate(chance: random.Random, stream: bytearray) -> None:
    del stream[int(chance.random() * len(stream)) :]


def _drop(chance: random.Random, stream: bytearray) -> None:
    del stream[int(chance.random() * len(stream))]


def _repeat(chance: random.Random, stream: bytearray) -> None:
    stream += stream[: int(chance.random() * len(stream))]


def _lengthen(chance: random.Random, stream: bytearray) -> None:
    at = int(chance.random() * len(stream))
    stream[at : at + 4] = struct.pack(">I", chance.choice(ABSURD))


def _terms(chance: random.Random, stream: bytearray) -> None:
    stream += framed([encode(protocol.TermsFrame(1, 1, 1))])


def _goodbye(chance: random.Random, stream: bytearray) -> None:
    stream += framed([encode(protocol.GoodbyeFrame("", is_final=chance.random() < 0.5))])


_BREAKS: list[Callable[[random.Random, bytearray], None]] = [
    _flip,
    _truncate,
    _drop,
    _repeat,
    _lengthen,
    _terms,
    _goodbye,
]


def _pieces(chance: random.Random, stream: bytes) -> list[bytes]:
    if chance.random() < 0.8:
        return [stream]
    step = chance.choice([1, 3, 17, 400])
    return [stream[at : at + step] for at in range(0, len(stream), step)]


def main() -> None:
    """Run and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    tally = fuzz(options.frames, seed=options.seed)
    took_s = time.perf_counter() - began
    print(
        f"{tally.frames:,} frames ({tally.bytes:,} bytes) on {tally.connections:,} connections in {took_s:.1f} s "
        f"({tally.frames / took_s:,.0f}/s), seed {options.seed}; kept at most {tally.kept_most_bytes:,} bytes; "
        f"{tally.echoes:,} echoes on another connection"
    )
    for end, count in tally.ends.most_common(12):
        print(f"  {count:>9,}  {end}")


if __name__ == "__main__":
    main()
