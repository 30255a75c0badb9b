"""`cluster.health()` among real processes: a body that hangs, a runner that is frozen or gone (H1, H2, L4)."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie import Cluster
from coterie.testing import processes
from tests.cluster.health_program import INTERVAL_S, NAME
from tests.cluster.seat_cluster import NO_HTTP, STEADY

if TYPE_CHECKING:
    from coterie import Health, Reason
    from coterie.testing import Process

PROGRAM = Path(__file__).with_name("health_program.py")
ROOT = Path(__file__).parents[2]
SINGLETON = f"singleton {NAME}"


def seen_by(folder: Path, process: Process) -> dict[str, Any]:
    """What a process last wrote down about the cluster; nothing, before it has."""
    path = folder / f"{process.name}.json"
    seen: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return seen if seen.get("pid") == process.pid else {}


def about(health: Health, what: str) -> list[Reason]:
    return [reason for reason in health.reasons if reason.what == what]


async def test_h1_a_body_that_hangs_is_seen_by_every_runner_and_by_clients(url_by_day: str, tmp_path: Path) -> None:
    """And only the runner that hosts it is not ready; one that is frozen does not answer, whoever asks."""
    env = {"WATCHED_FOLDER": str(tmp_path), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/src", **NO_HTTP, **STEADY}

    def ready(process: Process) -> bool:
        return "status" in seen_by(tmp_path, process)

    client = Cluster(url_by_day)
    async with processes(PROGRAM, runners=3, url=url_by_day, env=env, ready=ready) as crew, client.connect():
        health = await client.health()

        async def is_well() -> bool:
            nonlocal health
            health = await client.health()
            told = [each for each in health.facts.runners.values() if each is not None]
            is_known = all(each.clock_offset_s is not None for each in told)  # not before the first renewal
            progress = [info.last_heartbeat_at for info in health.facts.singletons]
            seen = [seen_by(tmp_path, each).get("unready", ["?"]) for each in crew.runners]
            return not health.reasons and is_known and None not in progress and not any(seen)

        await crew.wait_until(is_well)
        assert (health.runners, health.healthy_runners, health.shards, health.singletons) == (3, 3, 100, 1)
        for told in health.facts.runners.values():
            assert told is not None
            assert told.storage_s is not None
            assert (told.lease_left_s or 0) > 0
            assert told.memory_bytes > 10_000_000

        hung_s = time.monotonic()
        (tmp_path / "hang").touch()
        silent_s = 0.0

        async def is_named() -> bool:
            nonlocal silent_s
            silent_s = time.monotonic() - hung_s
            return bool(about(await client.health(), SINGLETON))

        await crew.wait_until(is_named)
        assert silent_s > INTERVAL_S, "it is not named for a pause that is allowed"
        health = await client.health()
        (reason,) = about(health, SINGLETON)
        assert (health.status, reason.status) == ("unhealthy", "unhealthy")
        leader = next(each for each in crew.runners if each.name == reason.runner)
        assert leader.name == (await client.singletons.get(NAME)).leader

        def everybody_sees_it() -> bool:
            seen = {each: seen_by(tmp_path, each) for each in crew.runners}
            unready = [each for each in crew.runners if SINGLETON in seen[each].get("unready", ())]
            return all(SINGLETON in each.get("whats", ()) for each in seen.values()) and unready == [leader]

        await crew.wait_until(everybody_sees_it)

        frozen = next(each for each in crew.runners if each is not leader)
        await frozen.freeze()

        async def is_silent() -> bool:
            nonlocal health
            health = await client.health()
            return bool(about(health, f"runner {frozen.name}"))

        await crew.wait_until(is_silent)
        (silent,) = about(health, f"runner {frozen.name}")
        assert (silent.status, silent.problem) == ("degraded", "it does not answer")
        assert health.entities is None
        assert health.healthy_runners < health.runners
        await frozen.thaw()

        (tmp_path / "hang").unlink()
        await client.singletons.resign(NAME, timeout="2m")
        await crew.wait_until(is_well)
