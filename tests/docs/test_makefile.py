"""The set-up of a fresh clone: by uv with the system's certificates, by pip where uv cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
echo "certs=$UV_SYSTEM_CERTS $*" >> said
case "$*" in "-m uv "*) exit $UV_ENDS_WITH;; esac
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("uv_ends_with", [0, 2])
def test_what_uv_cannot_install_pip_does(tmp_path: Path, uv_ends_with: int) -> None:
    for name in ("Makefile", "pyproject.toml", "requirements"):
        (tmp_path / name).symlink_to(ROOT / name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    (tmp_path / ".venv" / "uv.stamp").touch()
    os.utime(tmp_path / ".venv" / "uv.stamp")
    subprocess.run(
        ["make", "-s", ".venv/run.stamp"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "UV_ENDS_WITH": str(uv_ends_with)},
        check=True,
        capture_output=True,
        timeout=300,
    )
    said = (tmp_path / "said").read_text()
    assert "certs=1 -m uv pip install --quiet --python .venv/bin/python -r requirements/run.txt\n" in said
    by_pip = "-m pip install --quiet --disable-pip-version-check -r requirements/run.txt\n" in said
    assert by_pip == (uv_ends_with != 0)
    assert (tmp_path / ".venv" / "run.stamp").exists()
