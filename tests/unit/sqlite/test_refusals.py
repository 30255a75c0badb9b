"""A file that cannot be opened: what is wrong with it, in words."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import apsw
import pytest

from coterie.errors import ConfigurationError, CoterieError, PersistenceError
from coterie.storage.sqlite.errors import cannot_open

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (apsw.NotADBError("x"), ConfigurationError, "is not a SQLite database"),
        (apsw.CantOpenError("no such place"), ConfigurationError, "for writing: no such place"),
        (apsw.ReadOnlyError(""), ConfigurationError, "for writing: ReadOnlyError"),
        (apsw.PermissionsError("x"), ConfigurationError, "for writing: x"),
        (apsw.BusyError("x"), PersistenceError, "another process holds the file"),
        (apsw.IOError("x"), PersistenceError, "look at the disk"),
        (apsw.SQLError("x"), PersistenceError, "cannot open"),
    ],
)
def test_each_error_of_opening_says_what_to_do(
    error: Exception, kind: type[CoterieError], says: str, tmp_path: Path
) -> None:
    found = cannot_open(error, tmp_path / "a.db")
    assert isinstance(found, kind)
    assert says in str(found)


@pytest.mark.parametrize(
    ("refused", "says"), [("folder", "is not writable"), ("file", "the file is not writable"), ("neither", "x")]
)
def test_it_is_said_whether_the_folder_or_the_file_is_not_writable(
    refused: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked of the system, which lets root do everything: so it is played."""
    path = tmp_path / "a.db"
    path.touch()
    denied = {"folder": tmp_path, "file": path}.get(refused)
    monkeypatch.setattr(os, "access", lambda asked, _: asked != denied)
    problem = str(cannot_open(apsw.CantOpenError("x"), path))
    assert f"{says}" in problem
    assert ("the folder" in problem) is (refused == "folder")


def test_a_file_that_is_not_there_is_not_said_to_be_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda asked, _: asked == tmp_path)
    assert "the file is not writable" not in str(cannot_open(apsw.CantOpenError("x"), tmp_path / "a.db"))
