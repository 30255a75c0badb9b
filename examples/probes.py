"""A runner is probed over HTTP while its singleton works, hangs and goes on.

python examples/probes.py
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from coterie import Cluster, Leader


def program() -> Cluster:
    cluster = Cluster()

    @cluster.singleton("importer", every="200ms", expected_interval="2s")
    async def importer(_: Leader[None]) -> None:
        while hangs():
            await asyncio.sleep(0.05)

    return cluster


def hangs() -> bool:
    return Path("hang").exists()


def probe(url: str, path: str) -> tuple[int, dict[str, object]]:
    """The status and what is told."""
    try:
        with urllib.request.urlopen(f"{url}/{path}", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as answer:
        return answer.code, json.load(answer)


def wait(url: str, status: int) -> None:
    """Wait until /ready answers with a status, and show what it tells."""
    until_s = time.perf_counter() + 60
    while (told := probe(url, "ready"))[0] != status:
        if time.perf_counter() > until_s:
            raise SystemExit(f"/ready still says {told}")
        time.sleep(0.05)
    print("  /live ", *probe(url, "live"))
    print("  /ready", *told)


def watch(folder: Path) -> None:
    variables = {"COTERIE_URL": "sqlite:///probes.db", "COTERIE_HTTP_LISTEN": "127.0.0.1:0"}
    command = [sys.executable, str(Path(__file__).resolve()), "--runner"]
    with (folder / "log").open("w") as log:
        runner = subprocess.Popen(command, cwd=folder, env={**os.environ, **variables}, stderr=log)
    try:
        while not (found := re.search(r"http://\S+", (folder / "log").read_text())):
            time.sleep(0.05)
        url = found[0]
        print("it works:")
        wait(url, 200)
        print("its importer hangs:")
        (folder / "hang").touch()
        wait(url, 503)
        print("and goes on:")
        (folder / "hang").unlink()
        wait(url, 200)
    finally:
        runner.terminate()
        print("it has left, exit code", runner.wait(timeout=30))


def main() -> None:
    if "--runner" in sys.argv:
        program().run()
        return
    with tempfile.TemporaryDirectory() as folder:
        watch(Path(folder))


if __name__ == "__main__":
    main()
