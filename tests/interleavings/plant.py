"""How a bug is planted: some right statements swapped for wrong ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.interleavings.database import SQL
from tests.interleavings.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Plant:
    """One bug.

    Args:
        name: What is wrong.
        finding: Where its history is told.
        found_by: The first pair of the catalogue that shows it as told there.
        says: Words of the judge who saw it.
        sql: The wrong statements by name; new names may be used by `evict` and `leave`.
        schema: A change of the tables that goes with it.
        evict: What follows the lock when evicting.
        leave: What follows the lock when leaving.
        level: The isolation level that the database has by default, and that our sessions then forget to set.
    """

    name: str
    finding: str
    found_by: str
    says: str
    sql: Mapping[str, str] = field(default_factory=dict)
    schema: str = ""
    evict: tuple[str, ...] = ("evict", "date_losses")
    leave: tuple[str, ...] = ("evict", "date_losses")
    level: str = ""

    def steps(self) -> Steps:
        """The statements with the bug among them."""
        return Steps({**SQL, **self.sql}, evict=self.evict, leave=self.leave)


def swap(sql: str, *changes: tuple[str, str]) -> str:
    """A statement with some texts in place of others, which must be there."""
    for old, new in changes:
        assert old in sql, f"{old!r} is no longer there: bring the plant up to date"
        sql = sql.replace(old, new)
    return sql


def swapped(names: tuple[str, ...], *changes: tuple[str, str]) -> dict[str, str]:
    """Some statements, all changed alike."""
    return {name: swap(SQL[name], *changes) for name in names}
