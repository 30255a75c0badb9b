"""`coterie payloads`: which keys encrypt what is stored, and the change to another one; without a runner."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from tests.unit.cli.command_runner import Said, coterie

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Command = Callable[..., Said]

KEYS = {name: base64.b64encode(bytes(range(at, at + 32))).decode() for name, at in (("k1", 0), ("k2", 32))}


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Commands on a database of their own, with keys: the first one encrypts."""
    url = f"sqlite:///{tmp_path}/payloads.db"
    assert coterie(capsys, "migrate", "--apply", "--url", url).code == 0

    def run(*args: str, keys: str = "", plain: str = "") -> Said:
        given = keys.split()
        monkeypatch.setenv("COTERIE_PAYLOAD_KEYS", ",".join(f"{name}={KEYS[name]}" for name in given))
        monkeypatch.setenv("COTERIE_PAYLOAD_CURRENT", given[0] if given else "")
        monkeypatch.setenv("COTERIE_PAYLOAD_PLAIN", plain)
        return coterie(capsys, *args, "--url", url)

    return run


def counts(said: Said) -> dict[str, int]:
    return {each["key"]: each["rows"] for each in json.loads(said.out) if each["table"] == "kv"}


def test_a_key_is_changed(command: Command) -> None:
    for number in range(3):
        assert command("kv", "set", f"n{number}", "1", "--yes", keys="k1").code == 0
    assert counts(command("payloads", "status", "--json")) == {"k1": 3}
    said = command("payloads", "rotate", "--yes", "--json", keys="k2 k1")
    assert said.code == 0
    assert json.loads(said.out) == {"changed": 3, "left": 0, "unreadable": {}, "keys_no_longer_needed": ["k1"]}
    assert said.err == "3 rows of key k1 will be encrypted with key k2\n"
    assert counts(command("payloads", "--json")) == {"k2": 3}
    assert command("kv", "get", "n1", keys="k2").out == "1\n"
    (_, act) = command("activity", keys="k2").out.strip().splitlines()[-2:]
    assert "rotate payloads" in act


def test_without_yes_nothing_changes(command: Command) -> None:
    command("kv", "set", "n", "1", "--yes", keys="k1")
    assert command("payloads", "rotate", "--dry-run", keys="k2 k1").code == 0
    assert command("payloads", "rotate", keys="k2 k1").code == 1
    assert counts(command("payloads", "--json")) == {"k1": 1}


def test_rows_that_cannot_be_read_are_counted_and_the_last_one_is_told(command: Command) -> None:
    command("kv", "set", "n", "1", "--yes")
    said = command("payloads", "rotate", "--yes", keys="k1")
    assert said.code == 1
    assert "1 row could not be read" in said.err
    assert "it is not encrypted" in said.err
    assert command("payloads", "rotate", "--yes", keys="k1", plain="on").code == 0
    assert command("kv", "get", "n", keys="k1").out == "1\n"


def test_without_keys_there_is_nothing_to_rotate_with(command: Command) -> None:
    said = command("payloads", "rotate", "--yes")
    assert (said.code, "COTERIE_PAYLOAD_KEYS" in said.err) == (2, True)


def test_a_command_without_the_key_is_refused_by_its_id(command: Command) -> None:
    command("kv", "set", "n", "1", "--yes", keys="k1")
    for keys in ("", "k2"):
        said = command("kv", "get", "n", keys=keys)
        assert (said.code, "'k1'" in said.err, said.out) == (2, True, "")


def test_a_new_key_is_one_that_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    keys = {coterie(capsys, "payloads", "new-key").out.strip() for _ in range(2)}
    assert len(keys) == 2
    assert {len(base64.b64decode(key, validate=True)) for key in keys} == {32}
