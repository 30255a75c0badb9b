"""Translates SQLite's errors: what happened, what is known of the outcome, and what to do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import apsw

from coterie.errors import ConfigurationError, CoterieError, PersistenceError

if TYPE_CHECKING:
    from pathlib import Path

    from coterie.errors import Outcome

_HINTS: tuple[tuple[type[Exception], str], ...] = (
    (apsw.BusyError, "another process holds the file; try again"),
    (apsw.LockedError, "another process holds the file; try again"),
    (apsw.FullError, "free space on its disk; writing goes on by itself then"),
    (apsw.IOError, "look at the disk and the kernel's log"),
    (apsw.CorruptError, "the file is damaged: stop all processes, copy it, and restore a backup"),
    (apsw.NotADBError, "the file is damaged: stop all processes, copy it, and restore a backup"),
    (apsw.ReadOnlyError, "make the file and its folder writable for this user"),
    (
        apsw.CantOpenError,
        "make the file and its folder writable for this user, and look at the limit of open files",
    ),
    (apsw.TooBigError, "the value is larger than SQLite takes: store it elsewhere and keep a reference"),
)


def failed(error: Exception, *, doing: str, outcome: Outcome = "refused") -> PersistenceError:
    """The error to raise when SQL fails."""
    hint = next((hint for kind, hint in _HINTS if isinstance(error, kind)), "")
    return PersistenceError(doing=doing, problem=_said(error), outcome=outcome, hint=hint)


def commit_failed(error: Exception, *, doing: str) -> PersistenceError:
    """The error to raise when COMMIT itself failed; the transaction has been rolled back.

    For this process and all others it did not happen, so the outcome is "refused", except in one case: when
    the disk failed (IOERR, as in a failed fsync), the log may hold the whole transaction. If all processes
    die before the next write overwrites it there, recovery would find it: "unknown".
    """
    return failed(error, doing=doing, outcome="unknown" if isinstance(error, apsw.IOError) else "refused")


def cannot_open(error: Exception, path: Path) -> CoterieError:
    """The error to raise when a file cannot be opened."""
    if isinstance(error, apsw.NotADBError):
        return ConfigurationError(
            problem=f"{path} is not a SQLite database",
            hint="give another url, or move that file away",
        )
    if isinstance(error, (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError)):
        return ConfigurationError(
            problem=f"cannot open {path} for writing: {_blocked(path) or _said(error)}",
            hint="make the file and its folder writable for this user, or give another url",
        )
    return failed(error, doing=f"open {path}")


def _blocked(path: Path) -> str:
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return f"the folder {path.parent} is not writable"
    if path.exists() and not os.access(path, os.W_OK):
        return "the file is not writable"
    return ""


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
