"""Statements that touch the same table and need not be played against each other, each with the reason."""

from __future__ import annotations

from dataclasses import dataclass

FILES = {
    "activity.sql": "inserts, and deletions of old rows that skip what is locked: no row is ever changed",
    "audit.sql": "adds rows only, of which nobody changes or deletes one",
    "fragments.sql": "parts of statements that stand in the other files",
    "inspection.sql": "reads only",
    "overdue.sql": "reads only: the deletions stand with their tables",
    "server.sql": "reads, and the list of migrations, which one process at a time changes under a lock",
}
"""Files of statements that take no part in the interleavings."""


@dataclass(frozen=True, slots=True)
class Exemption:
    """Why these statements cannot disturb each other on a table."""

    table: str
    one: str
    others: tuple[str, ...]
    reason: str


EXCUSES = (Exemption("audit", "note", ("note",), "adds rows only, under numbers that the database draws"),)
