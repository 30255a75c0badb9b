"""Migrations: numbered SQL files, *pre* or *post* a deploy; which are pending, and which schema is refused. Pure.

A *pre* migration only adds: programs of the previous version keep working, so it is applied before the new version
is deployed. A *post* migration removes: it is applied when no older program runs any more. Hence a schema with a
*post* migration that this program does not know is refused, one with a newer *pre* is not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Literal

from coterie.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Phase = Literal["pre", "post"]

_FILE = re.compile(r"(?P<number>\d{4})_(?P<phase>pre|post)_(?P<name>[a-z0-9_]+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    number: int
    phase: Phase
    name: str
    sql: str = ""

    def __str__(self) -> str:
        return f"{self.number:04}_{self.phase}_{self.name}"


@cache
def load(package: str) -> tuple[Migration, ...]:
    """Load the migrations named `NNNN_phase_name.sql` in a package, by number. Cached per process."""
    found = []
    for file in resources.files(package).iterdir():
        if match := _FILE.fullmatch(file.name):
            phase: Phase = "pre" if match["phase"] == "pre" else "post"
            found.append(Migration(int(match["number"]), phase, match["name"], file.read_text("utf-8")))
    found.sort(key=lambda migration: migration.number)
    numbers = [migration.number for migration in found]
    assert numbers == list(range(1, len(found) + 1)), f"gaps or doubles in {package}: {numbers}"
    return tuple(found)


def pending(known: Iterable[Migration], applied: Iterable[Migration], phase: Phase | None) -> list[Migration]:
    """Return what `known` has and `applied` lacks, in order, of one phase or all."""
    done = {migration.number for migration in applied}
    return [m for m in known if m.number not in done and phase in (None, m.phase)]


def require_usable(known: Sequence[Migration], applied: Sequence[Migration], *, address: str) -> None:
    """Raise unless this program can work with a schema at these migrations."""
    numbers = {migration.number for migration in known}
    beyond = [m for m in applied if m.number not in numbers and m.phase == "post"]
    if beyond:
        raise ConfigurationError(
            problem=f"the schema of {address} is past this program: {beyond[0]} is applied, which it does not know",
            hint="run a newer version of coterie here",
        )
    missing = pending(known, applied, "pre")
    if missing:
        raise ConfigurationError(
            problem=f"the schema of {address} lacks {len(missing)} migrations, first {missing[0]}",
            hint="run: coterie migrate --apply",
        )
