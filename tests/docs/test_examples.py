"""README, docs and examples are programs: they are run, in a folder of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")

PROGRAMS = [
    pytest.param(
        match[1],
        id=f"{page.name}:{page.read_text()[: match.start()].count(chr(10)) + 1}",
        marks=[pytest.mark.postgres] if "DATABASE_URL" in match[1] else [],
    )
    for page in PAGES
    for match in PROGRAM.finditer(page.read_text())
]


def run(arguments: Sequence[str | Path], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("COTERIE_")} | more
    line = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_in_the_docs_runs(program: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One that has a connection of its own gets a database on PostgreSQL."""
    (tmp_path / "program.py").write_text(program)
    more = {"DATABASE_URL": request.getfixturevalue("postgres_url")} if "DATABASE_URL" in program else {}
    done = run(["program.py"], tmp_path, **more)
    assert done.returncode == 0, done.stderr


SOME_SEEDS = """
import under_faults as example
assert example.first_failure(example.naive), "the mistake was not found"
assert example.first_failure(example.atomic, seeds=5) is None
"""
FEW = {"test_subscription.py": "1"}  # ten years take a while
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SIMULATED = [path for path in EXAMPLES if path.name.startswith("test_") or path.name == "under_faults.py"]
RUNNING = [path for path in EXAMPLES if path not in SIMULATED]


def command(example: Path) -> list[str | Path]:
    """How an example is run by those who read it."""
    is_test = example.name.startswith("test_")
    return [*(["-m", "pytest", "-q", "-p", "no:cacheprovider"] if is_test else []), example]


def test_the_examples_run(tmp_path: Path) -> None:
    """Three at once: each has processes of its own, and mostly waits for what these do."""

    def ran(example: Path) -> str:
        folder = tmp_path / example.stem
        folder.mkdir()
        done = run(command(example), folder)
        return f"{example.name}: {done.stdout}{done.stderr}" if done.returncode else ""

    with ThreadPoolExecutor(3) as aside:
        assert not "".join(aside.map(ran, RUNNING))


@pytest.mark.nightly
@pytest.mark.parametrize("example", SIMULATED, ids=lambda path: path.name)
def test_an_example_with_many_seeds_runs(example: Path, tmp_path: Path) -> None:
    """As they stand there; for each change a few of these, see below."""
    done = run(command(example), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("example", SIMULATED, ids=lambda path: path.name)
def test_a_few_seeds_of_an_example_run(example: Path, tmp_path: Path) -> None:
    few = (
        ["-c", SOME_SEEDS]
        if example.name == "under_faults.py"
        else [*command(example), "--seeds", FEW.get(example.name, "5")]
    )
    done = run(few, tmp_path, PYTHONPATH=str(ROOT / "examples"))
    assert done.returncode == 0, done.stdout + done.stderr


IMPORT = re.compile(r"^\s*(?:from|import) (coterie[\w.]*)", re.MULTILINE)
PUBLIC = {
    "coterie",
    "coterie.django",
    "coterie.django.test",
    "coterie.prometheus",
    "coterie.testing",
    "coterie.web",
}


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=lambda path: path.name)
def test_only_public_modules_are_imported(page: Path) -> None:
    assert set(IMPORT.findall(page.read_text())) <= PUBLIC


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name
)
def test_links_lead_somewhere(page: Path) -> None:
    gone = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert not gone


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 180
