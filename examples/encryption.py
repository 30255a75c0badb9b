"""The key that encrypts what is stored is changed while calls go on, and no call fails.

python examples/encryption.py           # a SQLite file in a temporary folder
COTERIE_URL=postgresql://… python examples/encryption.py
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from coterie import Cluster, Encrypted, Entity, rpc

COTERIE = [sys.executable, "-m", "coterie.cli", "payloads"]
OLD, NEW = (subprocess.check_output([*COTERIE, "new-key"], text=True).strip() for _ in range(2))


@dataclass
class Notes:
    lines: int = 0
    last: str = ""


class Diary(Entity[Notes]):
    @rpc(persisted=True)
    async def write(self, line: str) -> int:
        self.state.lines, self.state.last = self.state.lines + 1, line
        return self.state.lines


def program(url: str, payloads: Encrypted) -> Cluster:
    cluster = Cluster(url, payloads=payloads)
    cluster.entity(Diary)
    return cluster


async def main(url: str) -> None:
    cluster = program(url, Encrypted(keys={"old": OLD, "new": NEW}, current="old"))
    async with cluster:
        for number in range(200):
            await cluster.ref(Diary, f"diary-{number % 20}").write("nobody else can read this")

    cluster = program(url, Encrypted(keys={"old": OLD, "new": NEW}, current="new"))
    async with cluster:
        keys = {"COTERIE_PAYLOAD_KEYS": f"old={OLD},new={NEW}", "COTERIE_PAYLOAD_CURRENT": "new"}
        command = [*COTERIE, "rotate", "--yes", "--url", url]
        rotation = await asyncio.create_subprocess_exec(*command, env={**os.environ, **keys})
        calls = 0
        while rotation.returncode is None:
            await cluster.ref(Diary, f"diary-{calls % 20}").write("while the key is changed")
            calls += 1
        assert rotation.returncode == 0
        print(f"{calls} calls while the key was changed")

    cluster = program(url, Encrypted(keys={"new": NEW}, current="new"))
    async with cluster:  # the old key is gone
        print(await cluster.ref(Diary, "diary-0").write("with the new key alone"), "lines in diary-0")


if __name__ == "__main__":
    if "COTERIE_URL" in os.environ:
        asyncio.run(main(os.environ["COTERIE_URL"]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(main(f"sqlite:///{folder}/diary.db"))
