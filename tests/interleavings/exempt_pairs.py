"""Statements that touch the same table and need not be played against each other, each with the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExemptFile:
    """Why the statements of a file take no part in the interleavings, and all that they do with tables."""

    reason: str
    deeds: frozenset[tuple[str, str]] = frozenset()


FILES = {
    "activity.sql": ExemptFile(
        "inserts, and deletions of old rows that skip what is locked: no row is ever changed",
        frozenset({("activity", "insert"), ("activity", "delete"), ("activity", "lock")}),
    ),
    "audit.sql": ExemptFile("adds rows only, which nothing changes or deletes", frozenset({("audit", "insert")})),
    "inspection.sql": ExemptFile("reads only"),
    "overdue.sql": ExemptFile("reads only: the deletions stand with their tables"),
    "payloads.sql": ExemptFile(
        "what it rewrites waits for no lock and holds none between two statements; a changed row stays as it is",
        frozenset(
            {("agreements", "insert"), ("agreements", "delete"), ("payload_table", "lock"), ("payload_table", "update")}
        ),
    ),
    "server.sql": ExemptFile(
        "reads, and the list of migrations, which one process at a time changes under a lock",
        frozenset({("migrations", "insert")}),
    ),
}
FRAGMENTS = "fragments.sql"
"""Parts of statements that stand in the other files."""


@dataclass(frozen=True, slots=True)
class Exemption:
    """Why these statements cannot disturb each other on a table."""

    table: str
    one: str
    others: tuple[str, ...]
    reason: str


EXCUSES = (Exemption("audit", "note", ("note",), "adds rows only, under numbers that the database draws"),)
