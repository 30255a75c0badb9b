"""The pages under `docs/design/` explain each code that is cited; tests, files and modules that are named exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DESIGN = sorted((ROOT / "docs" / "design").glob("*.md"))

CITED = re.compile(
    r"\[(?:INV-)?[A-Z]{1,5}-?\d+[a-z]?(?:,\s*(?:INV-)?[A-Z]{0,5}-?\d+)*\]|\bINV-[A-Z]\d+|\bincidents? \d+|\bGAP-\d+"
    r"|\((?:F|S|C|K|H|B|M|m|D|W|L|R|E)\d{1,2}\)"
)
CODE = re.compile(r"(?:INV-)?[A-Z]{1,5}-?\d+|[Mm]\d+|incidents? \d+")
TEST = re.compile(r"`(test_\w+)`")
FILE = re.compile(r"`([a-z_]+(?:/[a-z_]+)*/[a-z_]+\.(?:py|sql))`")
MODULE = re.compile(r"`([a-z_]+)(?:\.py)?`")


def codes(text: str) -> set[str]:
    """The codes that a text cites."""
    return {code for found in CITED.findall(text) for code in CODE.findall(found)}


@cache
def explained() -> str:
    return "\n".join(path.read_text("utf-8") for path in DESIGN)


def is_explained(code: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(code)}(?![\w-])", explained()) is not None


def test_each_code_that_is_cited_is_explained() -> None:
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.sql"), *(ROOT / "tests").rglob("*.py")]
    cited = {code: path for path in files for code in codes(path.read_text("utf-8"))}
    assert len(cited) > 50, "the search finds nothing"
    unknown = {code: str(path.relative_to(ROOT)) for code, path in cited.items() if not is_explained(code)}
    assert not unknown, f"explain these in docs/design/, or write what you mean: {unknown}"


@pytest.mark.parametrize("page", DESIGN, ids=lambda path: path.name)
def test_each_test_that_is_named_exists(page: Path) -> None:
    tests = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    files = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    named = set(TEST.findall(page.read_text("utf-8")))
    missing = sorted(name for name in named if f"def {name}(" not in tests and name not in files)
    assert not missing, f"no test has one of these names: {missing}"


def test_an_unknown_code_is_found() -> None:
    unknown = "INV" + "-Z9"
    assert codes(f"see [{unknown}], (S1) and incident 3") == {unknown, "S1", "incident 3"}
    assert not is_explained(unknown)


@pytest.mark.parametrize("page", [ROOT / "ARCHITECTURE.md", *DESIGN], ids=lambda path: path.name)
def test_each_file_that_is_named_exists(page: Path) -> None:
    folders = [ROOT, ROOT / "src/coterie", ROOT / "tests"]
    named = set(FILE.findall(page.read_text("utf-8")))
    missing = sorted(name for name in named if not any((folder / name).exists() for folder in folders))
    assert not missing, f"no file has one of these names: {missing}"


def test_a_package_names_modules_that_exist_in_its_reading_order() -> None:
    missing = []
    for init in (ROOT / "src/coterie").rglob("__init__.py"):
        docstring = ast.get_docstring(ast.parse(init.read_text("utf-8"))) or ""
        order = re.search(r"\bRead(?:ing order)?\b.*", docstring, re.DOTALL)
        named = MODULE.findall(order[0]) if order else []
        found = {path.stem for path in init.parent.rglob("*")}
        missing += [f"{init.parent.name}: {name}" for name in named if name not in found]
    assert not missing
