"""The files that this process has open: other code here may not open them [C2], and their paths are checked.

POSIX locks belong to the process and are dropped when *any* descriptor of the file is closed. Code that opens and
closes the file through another library (the stdlib's `sqlite3`, a backup script's `open`) drops the locks of this
process, and two processes write at once: committed rows vanish without an error. So Python's own ways of opening
are refused.

An open file outlives its name: after `rm`, `mv` or a restore over it this process would continue with a file that no
other process sees, while new ones create another. So the paths are compared with the open files (`require_in_place`).

Not promised: C extensions that open files by themselves, and `os.open` relative to a `dir_fd`, are not detected.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from coterie.errors import Forked, PersistenceError, StorageReplaced
from coterie.kernel.clock import SystemClock
from coterie.storage.sqlite.file.location import beside
from coterie.storage.sqlite.file.write_lock import write_lock_holder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from coterie.errors import Outcome

    Identity = tuple[int, int]

LOOK_NS = 10_000_000
"""Between two checks of the paths before commits and reads, and between two after commits."""

_ENDINGS = ("", "-wal", "-shm")
_clock = SystemClock()  # real files, real time

_lock = threading.RLock()
_held: dict[Path, GuardedFiles] = {}
_identities: dict[Identity, Path] = {}
_inherited: dict[Path, int] = {}
_hooked = False


@dataclass(slots=True)
class GuardedFiles:
    """A file that this process has open; call the last `release` after its connections are closed."""

    path: Path
    shm: int
    """A descriptor of the -shm file, to query locks. Closing it drops this process's, so it stays to the end."""
    files: tuple[tuple[str, Identity], ...]
    """The main file, -wal and -shm by path, with their identity when opened. SQLite keeps all three while they are
    open."""
    holders: int = 1
    replaced: str = ""
    """What was found wrong with a path. It is permanent: a file that was moved back may have missed commits."""
    looked_ns: dict[Outcome, int] = field(default_factory=dict)

    def find_replaced(self) -> str:
        """What is wrong with a path now; empty: each leads to the open file. Opens nothing [C2]."""
        if not self.replaced:
            self.replaced = next(filter(None, (_difference(*each) for each in self.files)), "")
        return self.replaced

    def find_replaced_lately(self, outcome: Outcome) -> str:
        """Like `find_replaced`, at most `LOOK_NS` old: three checks at each commit cost a fifth of the commits."""
        now_ns = _clock.steady_ns()
        if now_ns - self.looked_ns.get(outcome, 0) < LOOK_NS:
            return self.replaced
        self.looked_ns[outcome] = now_ns
        return self.find_replaced()

    def release(self) -> None:
        """Release the file, after this holder's connections were closed."""
        with _lock:
            self.holders -= 1
            if self.holders == 0:
                _forget(self)


def require_not_inherited(path: Path) -> None:
    """Raise in a child that was forked while its parent had the file open.

    The child has inherited SQLite's table of locks for that file, but not the locks: even a new connection would
    believe that it holds them.
    """
    if path in _inherited:
        raise Forked(what=str(path), parent=_inherited[path], child=os.getpid())


def require_in_place(path: Path, *, outcome: Outcome = "refused", lately: bool = False) -> None:
    """Raise `StorageReplaced` if the path of a file that is open here leads elsewhere.

    Args:
        path: The main file.
        outcome: The outcome of the checked work to report.
        lately: Whether a check of the last milliseconds is enough, one before or one after a commit.
    """
    held = _held.get(path)
    if held is None:
        return
    if problem := held.find_replaced_lately(outcome) if lately else held.find_replaced():
        raise StorageReplaced(doing="go on", problem=problem, outcome=outcome)


@contextmanager
def opening() -> Iterator[None]:
    """Make opening and `hold`, or closing and `release`, atomic within this process."""
    with _lock:
        yield


def lock_holder(path: Path) -> int | None:
    """The id of the other process that holds the write lock of a file that is open here, if visible [C3]."""
    held = _held.get(path)
    return None if held is None else write_lock_holder(held.shm)


def hold(path: Path) -> GuardedFiles:
    """Guard a file (a resolved path) that this process has just opened in WAL mode."""
    with _lock:
        _hook()
        held = _held.get(path)
        if held is not None:
            require_in_place(path)  # else the file just opened is another one than the one held
            held.holders += 1
            return held
        # Opened before its identity is recorded below, so that the hook here lets it pass.
        files = beside(path, _ENDINGS)
        identities = {_identity(file): file for file in files}
        shm = os.open(files[-1], os.O_RDWR | os.O_CLOEXEC)
        held = _held[path] = GuardedFiles(
            path, shm, tuple((str(file), identity) for identity, file in identities.items())
        )
        _identities.update(identities)
        return held


def _forget(held: GuardedFiles) -> None:
    del _held[held.path]
    ours = set(beside(held.path, _ENDINGS))
    for identity in [identity for identity, file in _identities.items() if file in ours]:
        del _identities[identity]
    os.close(held.shm)


def _hook() -> None:
    global _hooked  # a hook cannot be removed, so there is one per process
    if not _hooked:
        _hooked = True
        sys.addaudithook(_audit)
        os.register_at_fork(after_in_child=_forked)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    # Runs at every audited event of the interpreter: the first line nearly always returns.
    if (event != "open" and event != "sqlite3.connect") or not _identities:
        return
    target = args[0]
    if isinstance(target, int) or target is None:
        return
    _refuse(target)
    if event == "sqlite3.connect" and (named := _from_uri(os.fsdecode(target))):
        _refuse(named)


def _refuse(target: Any) -> None:
    try:
        file = _identities.get(_identity(target))
    except (OSError, ValueError, TypeError):
        return  # a file that cannot be found is not guarded
    if file is not None:
        raise PersistenceError(
            doing=f"open {os.fsdecode(target)}",
            problem=f"coterie has {file} open in this process, and closing it elsewhere would drop its locks",
            hint="use self.transaction() for tables of your own, another process to look at or copy the file",
        )


def _from_uri(name: str) -> str | None:
    if not name.startswith("file:"):
        return None
    path = name.removeprefix("file:").partition("#")[0].partition("?")[0]
    if path.startswith("//"):
        path = "/" + path[2:].partition("/")[2]
    return unquote(path)


def _difference(file: str, identity: Identity) -> str:
    try:
        return "" if _identity(file) == identity else f"{file} was replaced by another file while it was in use"
    except FileNotFoundError:
        return f"{file} was deleted or moved away while it was in use"
    except OSError as error:
        return f"{file} cannot be looked at any more: {error.strerror}"


def _identity(file: Any) -> Identity:
    found = os.stat(file)  # noqa: PTH116 a Path would cost more than the call itself
    return found.st_dev, found.st_ino


def _forked() -> None:
    """In a forked child: the parent's locks are not at risk, but the inherited files must not be used [P13]."""
    global _lock  # another thread of the parent may have held it
    _lock = threading.RLock()
    _inherited.update(dict.fromkeys(_held, os.getppid()))
    _held.clear()
    _identities.clear()
