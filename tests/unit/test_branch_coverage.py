"""The list of what no test covers, and the sums that are made with it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import branch_coverage


def file(taken: int, all: int, **missing: list[list[int]]) -> dict[str, Any]:
    return {
        "summary": {"covered_branches": taken, "num_branches": all},
        "functions": {name: {"missing_branches": each} for name, each in missing.items()},
    }


REPORT = {
    "files": {
        "src/coterie/cron/decide.py": file(9, 10, decide=[[3, 4]], goes_on=[]),
        "/elsewhere/src/coterie/cron/calendar.py": file(10, 10),
        "src/coterie/storage/group_commit.py": file(1, 2, fenced=[[7, 8], [7, 9]]),
        "src/coterie/cli/commands/top.py": file(0, 100, draw=[[1, 2]]),
    }
}


def test_a_share_is_of_all_files_of_an_area() -> None:
    found = branch_coverage.shares(REPORT)
    assert (found["cron"], found["durable work"]) == ((19, 20), (0, 0))
    assert found["storage"] == found["the commit path"] == (1, 2), "a file may be of two areas"
    assert (found["cron"].percent, found["durable work"].percent) == (95.0, 100.0)


def test_each_function_that_is_not_covered_needs_a_reason() -> None:
    assert branch_coverage.unlisted(REPORT, {}) == [
        "cron/decide.py::decide at lines [3]",
        "storage/group_commit.py::fenced at lines [7]",
    ]
    assert len(branch_coverage.unlisted(REPORT, {"cron/decide.py": {"decide": "x"}})) == 1
    assert len(branch_coverage.unlisted(REPORT, {"cron/calendar.py": {"decide": "x"}})) == 2


@pytest.mark.parametrize("path", branch_coverage.listed())
def test_what_is_listed_exists_and_has_a_reason(path: str) -> None:
    known = branch_coverage.functions(branch_coverage.SOURCE / path)
    for name, reason in branch_coverage.listed()[path].items():
        assert name in known, f"{path} has no {name}: take it off the list"
        assert reason.strip()


def test_each_area_has_files() -> None:
    for parts in branch_coverage.AREAS.values():
        for part in parts:
            assert (branch_coverage.SOURCE / part).exists(), part
