"""How the source is laid out: what a reader relies on who looks for something by its name."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "coterie"
MODULES = [path for path in SOURCE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py")]

MODULES_MOST = 16
"""In one folder; a reader sees them at a glance."""
LARGER = {"storage/sqlite": 24, "storage/postgres": 24, "cli/commands": 24}
"""Folders whose modules are all of one kind: parts of an engine, commands."""

SHARED_NAMES = {
    "Patience": "an own one for each of two clients",
    "Runner": "the process, and the handle of the simulator",
    "Transaction": "what handlers see, and the contract of storage",
}
"""Class names that exist twice, and why."""


def test_modules_are_nouns() -> None:
    gerunds = [str(path.relative_to(SOURCE)) for path in MODULES if path.stem.endswith("ing")]
    assert not gerunds, f"name these for what is in them: {gerunds}"


def test_folders_stay_small() -> None:
    counts = Counter(str(path.parent.relative_to(SOURCE)) for path in MODULES)
    full = {folder: count for folder, count in counts.items() if count > LARGER.get(folder, MODULES_MOST)}
    assert not full, f"merge modules, or group them in a package: {full}"


def test_a_class_name_exists_once() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not (new := twice.keys() - SHARED_NAMES.keys()), {name: twice[name] for name in new}
    assert not (gone := SHARED_NAMES.keys() - twice.keys()), f"take these off the list: {gone}"
