"""What encryption costs: persisted calls from one process to a runner in another, with keys and without, taking turns.

RAW is the same program without keys, on a database of its own; where values are compressed, it is one with keys that
does not compress.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from bench import messages
from bench.measure import Row, compare, compare_alone
from coterie import Encrypted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEYS = Encrypted(keys={"k1": bytes(range(32))}, current="k1")
COMPRESSED = Encrypted(keys=KEYS.keys, current="k1", compress=True)
MANY_GOAL, ALONE_GOAL = 0.7, 0.8
LONG = json.dumps([{"order": f"o-{n * 7919}", "cents": n * 631 % 9973, "name": "alice"} for n in range(100)]).encode()
"""5.5 KB, which compression makes 0.9 KB."""


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """Both engines: in flight, with state, alone; and long values, compressed."""
    for engine in ("postgres", "sqlite"):
        async with (
            messages.databases(engine) as (url, other),
            messages.client(url, payloads=KEYS) as ours,
            messages.client(other) as raw,
        ):
            many = partial(compare, callers=messages.IN_FLIGHT, rounds=rounds, seconds=seconds * 2, goal=MANY_GOAL)
            echo = [messages.spread(cluster, messages.Echo, "echo") for cluster in (ours, raw)]
            count = [messages.spread(cluster, messages.Counter, "count") for cluster in (ours, raw)]
            yield await many(f"encrypted / plain, {engine}", ours=echo[0], raw=echo[1])
            yield await many(f"… with state, {engine}", ours=count[0], raw=count[1])
            times = int(300 * seconds)
            yield await compare_alone(
                f"… lone call, {engine}", ours=echo[0], raw=echo[1], goal=ALONE_GOAL, rounds=rounds, times=times
            )
        async with (
            messages.databases(engine) as (url, other),
            messages.client(url, payloads=COMPRESSED) as ours,
            messages.client(other, payloads=KEYS) as raw,
        ):
            long = [messages.spread(cluster, messages.Echo, "echo", body=LONG) for cluster in (ours, raw)]
            name = f"compressed / encrypted, {engine}"
            yield await compare(
                name,
                ours=long[0],
                raw=long[1],
                callers=messages.IN_FLIGHT,
                rounds=rounds,
                seconds=seconds * 2,
                goal=None,
            )
