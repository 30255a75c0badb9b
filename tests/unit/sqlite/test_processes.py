"""Several real processes on one file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import apsw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.sqlite.conftest import Child


ROUNDS = 3


def tell(children: list[Child], order: str) -> None:
    for each in children:
        assert each.stdin is not None
        each.stdin.write(f"{order}\n")
        each.stdin.flush()


def write_together(children: list[Child]) -> list[dict[str, Any]]:
    """What each has written in a second, and the longest that it has waited."""
    tell(children, "go")
    return [json.loads(each.line()) for each in children]


def is_fair(found: list[dict[str, Any]]) -> bool:
    return all(each["count"] >= 20 and each["longest_s"] < 0.9 for each in found)


def test_several_busy_processes_all_make_progress(path: Path, child: Callable[..., Child]) -> None:
    """SQLite's own waiting served one process and starved the others, in each round; a busy machine does in some."""
    children = [child("write", f"sqlite:///{path}") for _ in range(4)]
    assert [each.line() for each in children] == ["ready"] * 4
    rounds = [write_together(children)]
    while not is_fair(rounds[-1]) and len(rounds) < ROUNDS:
        rounds.append(write_together(children))
    tell(children, "stop")
    assert [each.wait() for each in children] == [0] * 4
    assert is_fair(rounds[-1]), rounds
    connection = apsw.Connection(str(path))
    assert connection.execute("select count(*) from kv").get == sum(each["count"] for found in rounds for each in found)
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
