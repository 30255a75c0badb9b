"""Several real processes on one file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import apsw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.sqlite.conftest import Child


def go(children: list[Child]) -> None:
    for each in children:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()


def test_several_busy_processes_all_make_progress(path: Path, child: Callable[..., Child]) -> None:
    """SQLite's own waiting served one process and starved the others for the whole run."""
    children = [child("write", f"sqlite:///{path}") for _ in range(4)]
    assert [each.line() for each in children] == ["ready"] * 4
    go(children)
    found = [json.loads(each.line()) for each in children]
    go(children)
    assert [each.wait() for each in children] == [0] * 4
    counts = sorted(each["count"] for each in found)
    assert counts[0] >= 20, found
    assert max(each["longest_s"] for each in found) < 0.9, found
    connection = apsw.Connection(str(path))
    assert connection.execute("select count(*) from kv").get == sum(counts)
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


def test_in_a_forked_child_every_use_is_refused_and_nothing_is_closed(path: Path, child: Callable[..., Child]) -> None:
    """P13: a child has SQLite's book of locks, but not the locks."""
    parent = child("fork", f"sqlite:///{path}")
    found = json.loads(parent.line())
    assert parent.wait() == 0
    assert found.pop("parent reads") is True
    assert found.pop("closed") == 0
    assert set(found.values()) == {"Forked"}, found
