"""Several real processes on one file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import apsw

from tests.unit.sqlite.conftest import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.sqlite.conftest import Child


LEAST = 50
UNFAIR = 20
"""How many times as often as another one a process writes that leaves it no turn."""
WRITTEN = "select count(*) from kv where key like ?"


def go(children: list[Child]) -> None:
    for each in children:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()


def test_several_busy_processes_all_make_progress(path: Path, child: Callable[..., Child]) -> None:
    """SQLite's own waiting served one process and starved the others for the whole run."""
    stop = path.with_name("stop")
    children = [child("write", f"sqlite:///{path}", str(stop)) for _ in range(4)]
    assert [each.line() for each in children] == ["ready"] * 4
    go(children)
    connection = apsw.Connection(str(path))

    def all_have_written() -> bool:
        counts: list[int] = [connection.execute(WRITTEN, (f"{each.pid}:%",)).get for each in children]
        return min(counts) >= LEAST

    until(all_have_written)
    stop.touch()
    counts = sorted(int(each.line()) for each in children)
    assert [each.wait() for each in children] == [0] * 4
    assert counts[-1] < UNFAIR * counts[0], counts
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
