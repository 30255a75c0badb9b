"""Which branches of the most consequential packages no test takes: `make coverage` fails below 95 % of one of them.

What stays uncovered is listed in `uncovered.toml`, by file and function, with the reason. Coverage of timing is not the
same in each run, so an entry that is covered after all is no error; one whose function is gone is (tested).
"""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).parents[2] / "src" / "coterie"
LIST = Path(__file__).with_name("uncovered.toml")
LEAST = 95.0

AREAS: dict[str, tuple[str, ...]] = {
    "ownership": ("ownership/",),
    "storage": ("storage/",),
    "the commit path": (
        "entities/persisted/commit.py",
        "storage/group_commit.py",
        "storage/postgres/writer.py",
        "storage/postgres/batch/plan.py",
        "storage/sqlite/message_writes.py",
        "storage/sqlite/user_sql_draft.py",
        "storage/sqlite/store.py",
        "storage/user_transaction.py",
    ),
    "cron": ("cron/",),
    "durable work": ("durable/",),
}
"""What is measured together: files, or folders with all that is in them."""


class Share(NamedTuple):
    """How many branches are taken, of how many."""

    taken: int
    all: int

    @property
    def percent(self) -> float:
        return 100.0 * self.taken / self.all if self.all else 100.0


def listed() -> dict[str, dict[str, str]]:
    """The reasons, by file and function."""
    found: dict[str, dict[str, str]] = tomllib.loads(LIST.read_text("utf-8"))
    return found


def functions(path: Path) -> set[str]:
    """The functions of a file, as `Class.method` or `function`; functions inside of functions belong to those."""
    found: set[str] = set()

    def visit(node: ast.AST, scope: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = (*scope, child.name)
                found.add(".".join(inner))
            visit(child, inner)

    visit(ast.parse(path.read_text("utf-8")), ())
    return found


def shares(report: dict[str, Any]) -> dict[str, Share]:
    """Of each area, by a JSON report of coverage."""
    totals = {area: Share(0, 0) for area in AREAS}
    for path, each in _files(report):
        for area, parts in AREAS.items():
            if path.startswith(parts):
                taken, every = each["summary"]["covered_branches"], each["summary"]["num_branches"]
                totals[area] = Share(totals[area].taken + taken, totals[area].all + every)
    return totals


def unlisted(report: dict[str, Any], reasons: dict[str, dict[str, str]]) -> list[str]:
    """The functions of all areas with branches that are not taken and have no reason."""
    parts = tuple(part for area in AREAS.values() for part in area)
    return [
        f"{path}::{name} at lines {sorted({line for line, _ in each['missing_branches']})}"
        for path, file in _files(report)
        if path.startswith(parts)
        for name, each in file["functions"].items()
        if each["missing_branches"] and name not in reasons.get(path, {})
    ]


def _files(report: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(path.rpartition("src/coterie/")[2], each) for path, each in report["files"].items()]


def main(path: str) -> int:
    """Print what is measured; 1 if that is too little."""
    report = json.loads(Path(path).read_text("utf-8"))
    found = shares(report)
    for area, share in found.items():
        print(f"{area:16} {share.percent:5.1f} % of {share.all} branches")
    for each in unlisted(report, listed()):
        print(f"no test and no reason in {LIST.name}: {each}")
    return int(any(share.percent < LEAST for share in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
