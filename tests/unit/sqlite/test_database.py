"""How a file is opened, and files that are refused."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from coterie.errors import ConfigurationError
from coterie.storage.sqlite import database
from coterie.storage.sqlite.database import open_file, open_memory, require_library
from tests.unit.sqlite.child_process import UNPRIVILEGED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.sqlite.conftest import Child, Opener


@pytest.mark.parametrize("version", ["3.40.1", "3.51.2", "3.7.0", "2.8.17"])
def test_a_library_with_the_wal_reset_bug_is_refused(version: str) -> None:
    """Incident 40, P23."""
    with pytest.raises(ConfigurationError, match=version) as caught:
        require_library(version)
    assert "apsw" in caught.value.hint


@pytest.mark.parametrize("version", ["3.51.3", "3.52.0", "3.54.1", "4.0.0"])
def test_a_library_without_it_is_taken(version: str) -> None:
    require_library(version)


async def test_an_old_library_is_refused_at_start_before_the_file_is_touched(
    new: Opener, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Incident 40."""
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.40.1")
    with pytest.raises(ConfigurationError, match=r"3\.51\.3"):
        await new().start()
    assert not path.exists()


@pytest.mark.parametrize("writes", [True, False])
def test_a_file_is_opened_durable_and_without_sqlites_own_waiting(path: Path, writes: bool) -> None:
    """Incident 30: synchronous=FULL verified; SQLite's own waiting starves."""
    connection = open_file(path, writes=writes)
    names = ("journal_mode", "synchronous", "foreign_keys", "mmap_size", "trusted_schema", "busy_timeout")
    assert [connection.pragma(name) for name in names] == ["wal", 2, 1, 0, 0, 0]
    assert connection.pragma("query_only") == (0 if writes else 1)
    connection.close()


def test_memory_has_the_same_rules() -> None:
    connection = open_memory()
    assert [connection.pragma(name) for name in ("synchronous", "foreign_keys", "trusted_schema")] == [
        2,
        1,
        0,
    ]
    connection.close()


def test_a_setting_that_did_not_take_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Incident 30: what durability rests on is read back."""
    monkeypatch.setattr(database, "_configure", lambda connection: connection.pragma("synchronous", "NORMAL"))
    with pytest.raises(ConfigurationError, match="synchronous is 1, not 2"):
        open_file(path)


def test_a_file_in_another_encoding_is_refused_since_keys_would_sort_differently(path: Path) -> None:
    foreign = apsw.Connection(str(path))
    foreign.execute("pragma encoding = 'UTF-16'; create table t (x)")
    foreign.close()
    with pytest.raises(ConfigurationError, match="encoding is UTF-16"):
        open_file(path)


async def test_a_file_that_is_no_database_is_refused_and_left_alone(new: Opener, path: Path) -> None:
    path.write_text("Dear diary, today I was mistaken for a database. " * 50)
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match="is not a SQLite database") as caught:
        await new().start()
    assert path.read_bytes() == before
    assert "another url" in caught.value.hint


async def test_somebody_elses_database_is_refused_and_left_alone(new: Opener, path: Path) -> None:
    foreign = apsw.Connection(str(path))
    foreign.execute("create table migrations (number, phase, name); create table users (name)")
    foreign.close()
    with pytest.raises(ConfigurationError, match="not coterie's") as caught:
        await new().start()
    foreign = apsw.Connection(str(path))
    assert [name for (name,) in foreign.execute("select name from sqlite_schema")] == ["migrations", "users"]
    foreign.close()
    assert "of its own" in caught.value.hint


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users reach too, as those of pytest are not."""
    folder = Path(mkdtemp(prefix="coterie-"))
    folder.chmod(0o755)
    yield folder
    rmtree(folder)


def test_a_folder_that_is_not_writable_is_refused_and_named(public: Path, child: Callable[..., Child]) -> None:
    public.chmod(0o555)
    said = child("unprivileged", f"sqlite:///{public}/coterie.db").line()
    assert said.startswith("ConfigurationError")
    assert f"the folder {public} is not writable" in said


def test_a_read_only_file_is_refused(public: Path, child: Callable[..., Child]) -> None:
    file = public / "coterie.db"
    open_file(file).close()
    public.chmod(0o777)
    file.chmod(0o444)
    if os.geteuid() == 0:
        os.chown(file, UNPRIVILEGED, UNPRIVILEGED)  # else its owner would be the reason
    said = child("unprivileged", f"sqlite:///{file}").line()
    assert said.startswith("ConfigurationError")
    assert "the file is not writable" in said


class Contended:
    """A new file that others turn into WAL mode at the same moment."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals

    def pragma(self, name: str, value: str) -> str:
        self.refusals -= 1
        if self.refusals >= 0:
            raise apsw.BusyError("database is locked")
        return value


def test_a_new_file_that_others_open_at_the_same_moment_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen in 18 of 480 first opens by eight processes at once, in spite of SQLite's own waiting."""
    contended: Any = Contended(3)
    contended_for_ever: Any = Contended(10**9)
    assert database._into_wal(contended) == "wal"
    monkeypatch.setattr(database, "_OPENING_MS", 0)
    with pytest.raises(apsw.BusyError):
        database._into_wal(contended_for_ever)
