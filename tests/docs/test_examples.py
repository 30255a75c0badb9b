"""README, docs and examples are programs: they are run, in a folder of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")

PROGRAMS = [
    pytest.param(match[1], id=f"{page.name}:{page.read_text()[: match.start()].count(chr(10)) + 1}")
    for page in PAGES
    for match in PROGRAM.finditer(page.read_text())
]


def run(arguments: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("COTERIE_")}
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_in_the_docs_runs(program: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program)
    done = run(["program.py"], tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    is_test = example.name.startswith("test_")
    done = run([*(["-m", "pytest", "-q", "-p", "no:cacheprovider"] if is_test else []), example], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name
)
def test_links_lead_somewhere(page: Path) -> None:
    gone = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert not gone


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 180
