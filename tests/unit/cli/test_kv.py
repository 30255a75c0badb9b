"""`coterie kv`: keys and values, without a runner; each change says how to get back what was there."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest

from tests.unit.cli.command_runner import Said, coterie, require_golden, transcript

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Kv = Callable[..., Said]


@pytest.fixture
def kv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Kv:
    """Commands on a database of their own, where nobody runs."""
    url = f"sqlite:///{tmp_path}/kv.db"
    assert coterie(capsys, "migrate", "--apply", "--url", url).code == 0
    return lambda *args: coterie(capsys, "kv", *args, "--url", url)


def test_what_is_set_is_there(kv: Kv) -> None:
    require_golden("kv_set", transcript(kv("set", "theme", '"dark"', "--yes")))
    assert kv("get", "theme") == (0, '"dark"\n', "")
    require_golden("kv_set_again", transcript(kv("set", "theme", '{"name": "light"}', "--ttl", "30d", "--yes")))
    assert json.loads(kv("get", "theme", "--json").out) == {"key": "theme", "value": {"name": "light"}}


def test_the_command_that_is_told_takes_it_back(kv: Kv) -> None:
    kv("set", "it's", '"a b"', "--yes")
    for change in (("set", "it's", "2", "--yes"), ("remove", "it's", "--yes")):
        undo = kv(*change).out.splitlines()[-1].removeprefix("undo: coterie kv ")
        assert kv(*shlex.split(undo), "--yes").code == 0
        assert kv("get", "it's").out == '"a b"\n'


def test_without_yes_nothing_changes(kv: Kv) -> None:
    require_golden("kv_set_refused", transcript(kv("set", "theme", '"dark"')))
    require_golden("kv_set_dry", transcript(kv("set", "theme", '"dark"', "--dry-run")))
    assert kv("get", "theme").code == 1
    kv("set", "theme", '"dark"', "--yes")
    require_golden("kv_remove_refused", transcript(kv("remove", "theme")))
    assert kv("get", "theme").code == 0
    require_golden("kv_remove", transcript(kv("remove", "theme", "--yes")))
    assert kv("get", "theme").code == 1


def test_a_list_goes_by_prefix(kv: Kv) -> None:
    for key in ("a:1", "a:2", "b:1"):
        kv("set", key, "1", "--yes")
    require_golden("kv_list", transcript(kv("list", "a:")))
    assert [each["key"] for each in json.loads(kv("--json").out)] == ["a:1", "a:2", "b:1"]
    said = kv("list", "--limit", "2", "--json")
    assert (len(json.loads(said.out)), said.err) == (2, "2 of 3 are shown: --limit shows more\n")
    require_golden("kv_list_empty", transcript(kv("list", "c:")))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("json", ("set", "a", "dark", "--yes")),
        ("null", ("set", "a", "null", "--yes")),
        ("ttl", ("set", "a", "1", "--ttl", "30", "--yes")),
        ("reserved", ("set", "singleton-state:importer", "1", "--yes")),
        ("missing", ("get", "a")),
        ("empty", ("get", "")),
        ("remove", ("remove", "a", "--yes")),
    ],
)
def test_what_cannot_be_is_told(kv: Kv, name: str, args: tuple[str, ...]) -> None:
    require_golden(f"kv_wrong_{name}", transcript(kv(*args)))
