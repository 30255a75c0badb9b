"""C2: nobody else in our process opens the file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coterie.errors import PersistenceError
from coterie.storage.interface import KvPut
from coterie.storage.sqlite.file import file_guard

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.sqlite.conftest import Opener

ENDINGS = ["", "-wal", "-shm", "-leases", "-leases-wal", "-leases-shm"]


def opens(path: Path) -> dict[str, Callable[[], object]]:
    """The ways of Python's own to open a file."""
    return {
        "sqlite3": lambda: sqlite3.connect(path),
        "sqlite3 text": lambda: sqlite3.connect(str(path)),
        "sqlite3 uri": lambda: sqlite3.connect(f"file:{path}?mode=ro", uri=True),
        "sqlite3 long uri": lambda: sqlite3.connect(f"file://{str(path).replace('c', '%63')}#x", uri=True),
        "open": lambda: path.open("rb"),
        "open bytes": lambda: open(os.fsencode(path), "rb"),  # noqa: PTH123 bytes are the point
        "os.open": lambda: os.open(path, os.O_RDONLY),
        "pathlib": path.read_bytes,
        "through /proc": lambda: Path(f"/proc/self/root{path}").open("rb"),
    }


@pytest.mark.parametrize("ending", ENDINGS)
async def test_the_files_cannot_be_opened_from_python_while_they_are_in_use(
    new: Opener, path: Path, ending: str
) -> None:
    """C2: any close would drop our locks, and rows that others committed would vanish."""
    async with new() as storage, storage.ownership("a" * 32):
        target = path.with_name(path.name + ending)
        for way, attempt in opens(target).items():
            with pytest.raises(PersistenceError, match="would drop its locks") as caught:
                attempt()
            assert target.name in str(caught.value), way
            assert "self.transaction()" in caught.value.hint


async def test_names_that_lead_to_the_file_are_refused_too(
    new: Opener, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C2: the same inode counts, not the same name."""
    async with new():
        link, hard = tmp_path / "link.db", tmp_path / "hard.db"
        link.symlink_to(path)
        hard.hardlink_to(path)
        monkeypatch.chdir(tmp_path)
        for name in (link, hard, Path("coterie.db"), Path("./x/../link.db"), Path("link.db")):
            (tmp_path / "x").mkdir(exist_ok=True)
            with pytest.raises(PersistenceError):
                sqlite3.connect(name)
            with pytest.raises(PersistenceError):
                name.read_bytes()


async def test_after_stop_everything_may_be_opened_again(new: Opener, path: Path) -> None:
    """C2."""
    async with new() as storage:
        await storage.kv.put(KvPut("k", b"v", 1))
    connection = sqlite3.connect(path)
    assert connection.execute("select key from kv").fetchall() == [("k",)]
    connection.close()
    assert path.read_bytes().startswith(b"SQLite format 3")


async def test_of_two_storages_on_a_file_the_last_one_lifts_the_guard(new: Opener, path: Path) -> None:
    """C2."""
    first, second = new(), new(name="neighbour")
    await first.start()
    await second.start()
    await first.stop()
    with pytest.raises(PersistenceError):
        path.read_bytes()
    await second.kv.put(KvPut("k", b"v", 1))
    await second.stop()
    path.read_bytes()


async def test_a_start_that_fails_lifts_the_guard(new: Opener, path: Path) -> None:
    with pytest.raises(Exception, match=r"lacks \d+ migrations"):
        await new(migrate=False).start()
    path.read_bytes()


async def test_other_files_other_processes_and_descriptors_are_let_pass(new: Opener, path: Path) -> None:
    async with new() as storage:
        await storage.kv.put(KvPut("k", b"v", 1))
        sqlite3.connect(":memory:").close()
        (path.parent / "coterie.db-journal-of-mine").write_text("x")
        with pytest.raises(FileNotFoundError):
            (path.parent / "absent").read_bytes()
        reading, writing = os.pipe()
        os.close(writing)
        os.fdopen(reading, "rb").close()
        read = "import sys; print(open(sys.argv[1], 'rb').read(15))"
        process = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", read, str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "SQLite format 3" in process.stdout


async def test_opening_other_files_stays_cheap(new: Opener, tmp_path: Path) -> None:
    """C2: a look at the inode, some microseconds at most; a wide bound, since machines are noisy."""
    other = tmp_path / "other"
    other.touch()

    def best_of(rounds: int) -> float:
        found = []
        for _ in range(rounds):
            began = time.perf_counter()
            for _ in range(200):
                os.close(os.open(other, os.O_RDONLY))
            found.append((time.perf_counter() - began) / 200)
        return min(found)

    async with new():
        guarded = best_of(20)
    assert guarded - best_of(20) < 50e-6


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("x.db", None),
        ("file:x.db?mode=ro", "x.db"),
        ("file:///a/b%20c.db#f", "/a/b c.db"),
        ("file://localhost/a.db", "/a.db"),
    ],
)
def test_the_path_that_a_uri_names(name: str, found: str | None) -> None:
    assert file_guard._from_uri(name) == found


def test_the_hook_refuses_a_held_file_under_each_name_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called directly: Python traces nothing inside of an audit hook."""
    ours, other = tmp_path / "ours.db", tmp_path / "other.db"
    ours.touch()
    other.touch()
    monkeypatch.setattr(file_guard, "_identities", {file_guard._identity(ours): ours})
    for event, target in (
        ("open", str(ours)),
        ("sqlite3.connect", ours),
        ("sqlite3.connect", f"file://{ours}?mode=ro"),
    ):
        with pytest.raises(PersistenceError, match="would drop its locks"):
            file_guard._audit(event, (target,))
    harmless: tuple[tuple[str, object], ...] = (
        ("open", 3),
        ("open", None),
        ("open", str(other)),
        ("sqlite3.connect", "x"),
        ("import", ours),
    )
    for event, unwatched in harmless:
        file_guard._audit(event, (unwatched,))
    monkeypatch.setattr(file_guard, "_identities", {})
    file_guard._audit("open", (str(ours),))
