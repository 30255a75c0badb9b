"""A runner with accounts to call, which notes each call that a handler began with: `python call_program.py`.

Variables:
    TELLER_JOURNAL: The folder of the journals.
    TELLER_VERSION: 2: a program with one method, one parameter and one entity type more.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from coterie import Cluster, Entity, current, rpc

SHARDS = 12


class Account(Entity):
    """The first version."""

    count = 0

    @rpc
    async def add(self, number: int, think_s: float = 0.0) -> str:
        """Note the call; the runner that did."""
        note(number)
        self.count += 1
        await asyncio.sleep(think_s)
        return current().runner_id or ""


class NewerAccount(Account):
    """The second version."""

    @rpc
    async def add(self, number: int, think_s: float = 0.0, *, shout: bool = False) -> str:
        """The same, louder."""
        answer = await super().add(number, think_s)
        return answer.upper() if shout else answer

    @rpc
    async def counted(self) -> int:
        """How many calls this life has seen."""
        return self.count


class Vault(Entity):
    """What the first version does not have."""

    @rpc
    async def open(self) -> str:
        """Open it."""
        return "open"


def program(cluster: Cluster, *, version: int = 1) -> Cluster:
    """Define what this version knows."""
    if version == 1:
        cluster.entity(Account)
    else:
        cluster.entity(name="Account")(NewerAccount)
        cluster.entity(Vault)
    return cluster


def note(number: int) -> None:
    """Write at once: what was noted before a kill is there."""
    path = Path(os.environ["TELLER_JOURNAL"]) / f"{os.environ['COTERIE_RUNNER_NAME']}.{os.getpid()}.jsonl"
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.write(file, json.dumps(number).encode() + b"\n")
    os.close(file)


def noted(folder: Path) -> list[Any]:
    """The numbers of all calls that handlers began with."""
    return [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]


if __name__ == "__main__":
    program(Cluster(), version=int(os.environ.get("TELLER_VERSION", "1"))).run()
