"""The README's program, unchanged: one process and three, a SQLite file and PostgreSQL (B7)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.testing.processes import children
from tests.cluster.cli_process import command

README = Path(__file__).parents[2] / "README.md"
_PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def by_hand(folder: Path, env: dict[str, str]) -> str:
    """What the program prints if somebody runs it beside."""
    done = subprocess.run(
        [sys.executable, "app.py"],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("engine", "processes"),
    [("sqlite", 1), ("sqlite", 3), pytest.param("postgres", 3, marks=pytest.mark.postgres)],
    ids=["sqlite-1", "sqlite-3", "postgres-3"],
)
def test_b7_the_readmes_program_runs_unchanged(
    engine: str, processes: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Run beside runners of the same file, again and again, its gift is given once, also when one of them is killed."""
    (program,) = _PROGRAM.findall(README.read_text())
    (tmp_path / "app.py").write_text(program)
    env = {"COTERIE_HTTP_LISTEN": "127.0.0.1:0"}
    if engine == "postgres":
        env["COTERIE_URL"] = request.getfixturevalue("postgres_url")
    several = ("--workers", str(processes)) if processes > 1 else ()
    with command(tmp_path, "run", "app.py", *several, env=env) as running:
        running.wait_for("joined, ", times=processes)
        running.wait_for("importer: leader, epoch 1")
        assert "1 entity, 1 singleton, 1 cron" in running.said
        assert by_hand(tmp_path, env) == "900\n"
        if processes > 1:
            os.kill(children(running.process.pid)[0], signal.SIGKILL)
            assert by_hand(tmp_path, env) == "900\n"
        running.send(signal.SIGTERM)
        running.ends_with(0)
        assert "left cleanly" in running.said
        assert "Traceback" not in running.said
