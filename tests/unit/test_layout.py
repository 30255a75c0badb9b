"""How source and tests are laid out, and that nothing is declared in vain: what a reader relies on."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from dataclasses import fields
from functools import cache
from pathlib import Path

from coterie import CoterieError, errors
from coterie.settings import Settings

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SOURCE = ROOT / "src" / "coterie"
MODULES = [path for path in SOURCE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py")]

MODULES_MOST = 16
"""In one folder; a reader sees them at a glance."""
LARGER = {"storage/sqlite": 26, "storage/postgres": 26, "cli/commands": 24}
"""Folders whose modules are all of one kind: parts of an engine, commands."""

SHARED_NAMES = {
    "Patience": "an own one for each of two clients",
    "Runner": "the process, and the handle of the simulator",
    "Transaction": "what handlers see, and the contract of storage",
}
"""Class names that exist twice, and why."""

KINDS = {"unit", "contract", "scenario", "simulation", "interleavings", "cluster", "typing", "docs", "support"}
"""The folders of the tests."""
PUBLIC = {"testing", "prometheus", "django", "django.test"}
"""What programs may import beside `coterie` itself."""
ERRORS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, CoterieError)]


@cache
def modules() -> dict[str, tuple[list[str], set[str]]]:
    """The public classes of each module, and the names and attributes that it uses."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        classes = [node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        found[str(path.relative_to(SOURCE))] = classes, attributes | names
    return found


def test_modules_are_nouns() -> None:
    gerunds = [str(path.relative_to(SOURCE)) for path in MODULES if path.stem.endswith("ing")]
    assert not gerunds, f"name these for what is in them: {gerunds}"


def test_folders_stay_small() -> None:
    counts = Counter(str(path.parent.relative_to(SOURCE)) for path in MODULES)
    full = {folder: count for folder, count in counts.items() if count > LARGER.get(folder, MODULES_MOST)}
    assert not full, f"merge modules, or group them in a package: {full}"


def test_a_class_name_exists_once() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for module, (classes, _) in modules().items():
        for name in classes:
            places[name].append(module)
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not (new := twice.keys() - SHARED_NAMES.keys()), {name: twice[name] for name in new}
    assert not (gone := SHARED_NAMES.keys() - twice.keys()), f"take these off the list: {gone}"


# What is declared is used.


def names_used(*, but: tuple[str, ...]) -> set[str]:
    """All names and attributes that the source uses, but for some of its modules."""
    return {name for module, (_, names) in modules().items() if not module.startswith(but) for name in names}


def test_each_setting_is_read_somewhere() -> None:
    read = names_used(but=("settings/",))
    dead = [each.name for each in fields(Settings) if each.init and each.name not in read]
    assert not dead, f"nothing reads these settings: {dead}"


def test_each_error_is_raised_or_caught_somewhere() -> None:
    used = names_used(but=("errors/", "__init__.py"))
    inherited = {base.__name__ for error in ERRORS for base in error.__mro__[1:]}
    dead = [error.__name__ for error in ERRORS if error.__name__ not in used | inherited]
    assert not dead, f"nothing raises these errors: {dead}"


def test_docs_and_examples_import_public_names_only() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    imported = re.compile(r"^\s*(?:from|import) coterie\.([\w.]+)", re.MULTILINE)
    private = {
        str(page.relative_to(ROOT)): found
        for page in pages
        if (found := [name for name in imported.findall(page.read_text("utf-8")) if name not in PUBLIC])
    }
    assert not private, f"import these from coterie itself, or make them public: {private}"


# The tests.


def test_a_kind_of_tests_is_a_folder() -> None:
    folders = {path.name for path in TESTS.iterdir() if any(path.rglob("*.py"))}  # not what an old checkout left
    assert folders == KINDS
    assert {path.name for path in TESTS.glob("*.*")} == {"__init__.py", "conftest.py"}, "helpers stand in tests/support"
    assert not [*(TESTS / "support").rglob("test_*.py")], "no stage runs tests in tests/support"


def test_each_kind_of_tests_is_run_by_make_test() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    not_run = [kind for kind in KINDS - {"support"} if f"tests/{kind}" not in makefile]
    assert not not_run


def test_helpers_of_tests_are_nouns() -> None:
    helpers = [path for path in TESTS.rglob("*.py") if not path.name.startswith("test_")]
    gerunds = [str(path.relative_to(TESTS)) for path in helpers if path.stem.endswith("ing")]
    assert not gerunds, f"name these for what is in them: {gerunds}"


def test_tests_wait_with_deadlines_that_a_busy_machine_keeps() -> None:
    """A minute at least: CI runs eight processes on two cores. Shorter than a second is what is tested itself."""
    timeout = re.compile(r"asyncio\.timeout\((\d+(?:\.\d+)?)\)")
    in_real_time = [path for kind in KINDS - {"simulation", "typing"} for path in (TESTS / kind).rglob("*.py")]
    short = {
        str(path.relative_to(TESTS)): found
        for path in in_real_time
        if (found := [each for each in timeout.findall(path.read_text("utf-8")) if 1 <= float(each) < 60])
    }
    assert not short, f"a wait for a condition may take two minutes: {short}"


def test_the_simulator_runs_the_code_of_production() -> None:
    """Chaos adds points and rare branches; no code is left out or replaced because of it."""
    wrong = []
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        allowed: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "chaos.on" and not node.orelse:
                if all(ast.unparse(each).removeprefix("await ").startswith("chaos.") for each in node.body):
                    allowed.add(id(node.test))
            elif isinstance(node, ast.BoolOp) and ast.unparse(node).startswith("chaos.on and chaos.flip("):
                allowed.add(id(node.values[0]))
        wrong += [
            f"{path.relative_to(SOURCE)}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "chaos.on" and id(node) not in allowed
        ]
    assert [place.partition(":")[0] for place in wrong] == ["kernel/supervisor.py"], (
        wrong
    )  # errors thrown into its work
