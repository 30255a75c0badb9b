"""kill -9 at random during writes: every acknowledged write is there, and the file is sound (incident 40, INV-L2)."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

from coterie import Cluster

if TYPE_CHECKING:
    from tests.support.postgres import Server

WRITER = Path(__file__).with_name("writer_program.py")
ROUNDS = 6
ROUNDS_NIGHTLY = 200


class Writer:
    """One writing process and what it has said so far."""

    def __init__(self, url: str, name: str) -> None:
        self.said: list[str] = []
        self.process = subprocess.Popen([sys.executable, WRITER, url, name], stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):
                self.said.append(line.strip())

    def wait_until_it_wrote(self, lines: int, *, within_s: float = 120) -> None:
        deadline = time.monotonic() + within_s
        while len(self.said) < lines:
            assert self.process.poll() is None, "the writer ended by itself"
            assert time.monotonic() < deadline, f"only {len(self.said)} lines within {within_s}s"
            time.sleep(0.001)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(120)
        self._reader.join(120)
        assert self.process.stdout is not None
        self.process.stdout.close()


def one_round(url: str, *, number: int, chance: random.Random, fault: Server | None = None) -> list[str]:
    """Two processes write; both are killed, each at a random moment. What they said."""
    with ExitStack() as stack:
        writers = [Writer(url, f"{number}-{n}") for n in range(2)]
        for writer in writers:
            stack.callback(writer.close)
        for writer in writers:
            writer.wait_until_it_wrote(2)
        if fault is not None:
            fault.restart("immediate")
        writers[0].wait_until_it_wrote(chance.randint(2, 150))
        time.sleep(chance.random() * 0.02)
        writers[0].kill()
        writers[1].wait_until_it_wrote(len(writers[1].said) + chance.randint(1, 150))
        writers[1].kill()
    return [line for writer in writers for line in writer.said]


async def judge(url: str, said: list[str]) -> tuple[int, int]:
    """Every acknowledged write is there; the counter has lost none. How many were acknowledged."""
    acknowledged = dict(line.split()[1:] for line in said if line.startswith("set "))
    added = sum(line.startswith("add ") for line in said)
    tried = sum(line.startswith("try ") for line in said)
    cluster = Cluster(url)
    async with cluster.connect():
        found = {key: str(value) async for key, value in cluster.kv.items() if key != "counter"}
        counter = await cluster.kv.get("counter") or 0
        await cluster.kv.clear()
    missing = acknowledged.items() - found.items()
    assert not missing, f"{len(missing)} acknowledged writes are gone, such as {sorted(missing)[:3]}"
    assert added <= counter <= tried, f"{added} additions acknowledged, {tried} tried, the counter says {counter}"
    return len(acknowledged), added


def kill_on_sqlite(folder: Path, rounds: int) -> None:
    chance = random.Random(40)
    url = f"sqlite:///{folder}/kill.db"
    total = 0
    for number in range(rounds):
        said = one_round(url, number=number, chance=chance)
        kept, added = asyncio.run(judge(url, said))
        total += kept + added
        with apsw.Connection(f"{folder}/kill.db") as file:
            assert file.execute("pragma integrity_check").fetchall() == [("ok",)]
        file.close()
    assert total > rounds * 10, "hardly anything was written: the test shows nothing"


def kill_on_postgres(server: Server, url: str, rounds: int) -> None:
    chance = random.Random(40)
    total = 0
    for number in range(rounds):
        said = one_round(url, number=number, chance=chance, fault=server if number % 3 == 2 else None)
        kept, added = asyncio.run(judge(url, said))
        total += kept + added
    assert total > rounds * 10, "hardly anything was written: the test shows nothing"


def test_incident_40_what_was_acknowledged_survives_kill_9_on_sqlite(tmp_path: Path) -> None:
    kill_on_sqlite(tmp_path, ROUNDS)


@pytest.mark.postgres
def test_what_was_acknowledged_survives_kill_9_and_server_crashes_on_postgres(
    postgres_server: Server, postgres_url: str
) -> None:
    kill_on_postgres(postgres_server, postgres_url, ROUNDS)


@pytest.mark.nightly
def test_incident_40_200_rounds_on_sqlite(tmp_path: Path) -> None:
    kill_on_sqlite(tmp_path, ROUNDS_NIGHTLY)


@pytest.mark.nightly
@pytest.mark.postgres
def test_200_rounds_on_postgres(postgres_server: Server, postgres_url: str) -> None:
    kill_on_postgres(postgres_server, postgres_url, ROUNDS_NIGHTLY)
