"""In which process something was opened: children that inherited it by fork may not use it [P13]."""

from __future__ import annotations

import os

from coterie.errors import Forked


class Origin:
    """The process that opened `what`.

    SQLite keeps its locks per process and its book of them in memory: a child has the book, but not the
    locks. So a child must neither use nor close what its parent opened.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid: int | None = None

    def set(self) -> None:
        """It is opened now, here."""
        self._pid = os.getpid()

    def require_same(self) -> None:
        """Raise `Forked` in a child of the process that opened it."""
        here = os.getpid()
        if self._pid is not None and self._pid != here:
            raise Forked(what=self._what, parent=self._pid, child=here)
