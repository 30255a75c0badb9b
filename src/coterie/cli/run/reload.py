"""Detects changes of a program's files by polling: no notifications of the system, no dependency."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

LOOK_S = 0.5
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}
_FILES_MOST = 10_000
"""A folder with more is not that of a program: further files are ignored."""


class Watched:
    """The Python files under a folder.

    Args:
        folder: The folder of the program. Hidden folders in it and virtual environments are left out.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._look()

    async def changed(self) -> str:
        """Wait until files were changed, added or deleted since the last call; returns one, and how many more."""
        while (now := self._look()) == self._seen:  # noqa: ASYNC110 polls on purpose
            await asyncio.sleep(LOOK_S)
        changes = sorted(str(path.relative_to(self._folder)) for path, _ in now.items() ^ self._seen.items())
        names = list(dict.fromkeys(changes))
        self._seen = now
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"

    def _look(self) -> dict[Path, int]:
        found: dict[Path, int] = {}
        for folder, inner, files in os.walk(self._folder):
            here = Path(folder)
            inner[:] = [name for name in inner if _is_watched(here / name)]
            for name in files:
                if name.endswith(".py") and len(found) < _FILES_MOST:
                    try:
                        found[here / name] = (here / name).stat().st_mtime_ns
                    except OSError:
                        continue  # deleted meanwhile
        return found


def _is_watched(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name in _SKIPPED
    return not hidden and not (folder / "pyvenv.cfg").exists()
