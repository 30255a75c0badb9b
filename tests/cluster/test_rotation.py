"""O6: `coterie payloads rotate` is killed in the middle; begun again it ends, and everything can be read."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster, Encrypted, Entity, rpc
from coterie.storage.encryption.rotation import key_uses

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("rotation_program.py")
KEYS = {"k1": bytes(range(32)), "k2": bytes(range(100, 132))}
FILLED = 230
"""More than two pages of each table."""
MOMENTS = ("during payloads.rewrite 1", "after payloads.rewrite 3", "during payloads.remove_key")
ALL_MOMENTS = tuple(
    f"{when} payloads.{method}"
    for when in ("before", "during", "after")
    for method in (*(f"rewrite {number}" for number in range(1, 7)), "remove_key")
)


class Echo(Entity):
    """Gives back what it gets."""

    @rpc(persisted=True)
    async def echo(self, text: str) -> str:
        """The same text."""
        return text


def cluster(url: str, current: str, *others: str) -> Cluster:
    keys = {name: KEYS[name] for name in (current, *others)}
    cluster = Cluster(url, payloads=Encrypted(keys=keys, current=current), shards=4, http_listen="off")
    cluster.entity(Echo)
    return cluster


async def fill(url: str) -> list[Any]:
    """Values, and calls that wait for a runner. Returns the ids of these."""
    filled = cluster(url, "k1")
    async with filled.connect():
        await asyncio.gather(*(filled.kv.set(f"n{number}", f"value {number}") for number in range(FILLED)))
        return await filled.send_many(filled.ref(Echo, "e").echo(f"call {number}") for number in range(FILLED))


async def read_values(cluster: Cluster) -> None:
    values = {key: value async for key, value in cluster.kv.items()}
    assert values == {f"n{number}": f"value {number}" for number in range(FILLED)}


async def used_keys(cluster: Cluster) -> set[str]:
    return {use.key for use in await key_uses(cluster._acting().storage.payloads) if use.table != "activity"}


def rotate(url: str, moment: str = "") -> subprocess.CompletedProcess[str]:
    """Rotate from k1 to k2, and die at a moment if there is one."""
    variables = {
        "COTERIE_URL": url,
        "COTERIE_PAYLOAD_KEYS": ",".join(f"{name}={base64.b64encode(key).decode()}" for name, key in KEYS.items()),
        "COTERIE_PAYLOAD_CURRENT": "k2",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/src",
    }
    return subprocess.run(
        [sys.executable, PROGRAM, moment],
        env=os.environ | variables, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


async def judge_rotation(url: str, moments: Sequence[str]) -> None:
    """Kill one rotation after the other; each goes on, and the last one ends."""
    calls = await fill(url)
    for moment in moments:
        killed = await asyncio.to_thread(rotate, url, moment)
        assert killed.returncode == -signal.SIGKILL, f"{moment}: {killed.stdout}{killed.stderr}"
        between = cluster(url, "k2", "k1")
        async with between.connect():
            await read_values(between)
    ended = await asyncio.to_thread(rotate, url)
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}"
    assert "could not be read" not in ended.stdout + ended.stderr
    after = cluster(url, "k2")
    async with after:  # k1 is not needed any more
        assert await used_keys(after) == {"k2"}
        await read_values(after)
        replies = await asyncio.gather(*(after.result(call, timeout="2m") for call in calls))
        assert replies == [f"call {number}" for number in range(FILLED)]


async def test_a_rotation_that_is_killed_loses_nothing_and_goes_on(url: str) -> None:
    await judge_rotation(url, MOMENTS)


@pytest.mark.nightly
@pytest.mark.parametrize("moment", ALL_MOMENTS)
async def test_a_rotation_that_is_killed_at_any_moment_loses_nothing(url: str, moment: str) -> None:
    await judge_rotation(url, [moment])
