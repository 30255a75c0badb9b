"""The cluster's secret: one value, whoever comes first, durable, and never shown (X1, X4)."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from coterie.storage.interface import SECRET_BYTES
from tests.contract.conftest import new_storage, opened

if TYPE_CHECKING:
    from coterie.storage.interface import Storage

PROCESS = """
import asyncio, sys
from tests.contract.conftest import opened

async def main() -> None:
    async with opened(sys.argv[1]) as storage:
        print("ready", flush=True)
        sys.stdin.readline()                # all begin together
        print((await storage.secret()).hex())

asyncio.run(main())
"""


async def test_it_is_32_random_bytes_and_stays_the_same(storage: Storage) -> None:
    first = await storage.secret()
    assert len(first) == SECRET_BYTES
    assert len(set(first)) > 8
    assert await storage.secret() == first


async def test_tasks_that_ask_first_at_once_get_one_value(storage: Storage) -> None:
    found = await asyncio.gather(*(storage.secret() for _ in range(50)))
    assert len(set(found)) == 1


async def test_clusters_of_one_database_have_their_own(storage: Storage, neighbour: Storage) -> None:
    assert await storage.secret() != await neighbour.secret()


async def test_it_survives_a_restart(url: str) -> None:
    if url == "sqlite://":
        pytest.skip("memory ends with its process")
    async with opened(url) as storage:
        first = await storage.secret()
    async with opened(url) as storage:
        assert await storage.secret() == first


async def test_eight_connections_that_ask_first_at_once_get_one_value_m4(url: str) -> None:
    if not url.startswith("postgresql"):
        pytest.skip("a file has one writer per process; see the test with processes")
    storages = [new_storage(url) for _ in range(8)]
    await asyncio.gather(*(storage.start() for storage in storages))
    try:
        found = await asyncio.gather(*(storage.secret() for storage in storages))
    finally:
        await asyncio.gather(*(storage.stop() for storage in storages))
    assert len(set(found)) == 1


async def test_eight_processes_that_ask_first_at_once_get_one_value_m4(url: str) -> None:
    if url == "sqlite://":
        pytest.skip("memory is one process's")
    command = [sys.executable, "-c", PROCESS, url]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        found = []
        for process in started:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in started:
            found.append(process.communicate(timeout=120)[0].strip())
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert len(set(found)) == 1
    assert len(bytes.fromhex(found[0])) == SECRET_BYTES


async def test_it_is_in_no_log_and_no_repr_x4(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = await storage.secret()
    told = caplog.text + repr(storage) + repr(vars(storage))
    assert secret.hex() not in told
    assert repr(secret)[2:-1] not in told
