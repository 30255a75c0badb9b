"""The typed face, as mypy strict and basedpyright see it (F1, m12)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
FILES = [str(HERE / name) for name in ("passes.py", "fails.py")]

# Checkers take seconds, and many of them where other tests run beside.


def verdict(*command: str, files: Sequence[str] = FILES) -> str:
    """What a checker says about files; empty if they are as they should be."""
    ended = subprocess.run(
        [sys.executable, "-m", *command, *files], cwd=HERE.parents[1], capture_output=True, text=True, check=False
    )
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


def test_mypy_passes_what_is_right_and_refuses_what_is_wrong(tmp_path: Path) -> None:
    assert verdict("mypy", "--strict", "--no-error-summary", f"--cache-dir={tmp_path}") == ""


def test_basedpyright_passes_what_is_right_and_refuses_what_is_wrong() -> None:
    assert verdict("basedpyright", f"--pythonpath={sys.executable}", "--level=error") == ""
