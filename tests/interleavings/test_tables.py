"""Every two statements that touch one table are played against each other: the list is read from the `.sql` files."""

from __future__ import annotations

from importlib import resources

import pytest

from tests.interleavings.catalogue import catalogue
from tests.interleavings.database import SQL
from tests.interleavings.exempt_pairs import EXCUSES, FILES
from tests.interleavings.serial_pairs import serial_pairs
from tests.interleavings.steps import Steps
from tests.interleavings.tables import meeting, meetings, played, touches

LOADED = {"ownership", "fenced_writes", "leading", "messages", "ticks", "units", "kv", "machines", "secrets"}


def test_every_two_statements_that_touch_a_table_are_played_against_each_other_or_excused() -> None:
    pairs = played([*catalogue().values(), *serial_pairs(Steps(SQL)).values()], SQL)
    excused = {meeting(each.table, each.one, other) for each in EXCUSES for other in each.others}
    open_ = sorted(each for each in meetings(SQL) - excused if each[1:] not in pairs)
    assert not open_, f"play them (serial_pairs.py, or the catalogue), or give a reason (excuses.py): {open_}"


def test_no_excuse_is_out_of_date() -> None:
    excused = {meeting(each.table, each.one, other) for each in EXCUSES for other in each.others}
    assert excused <= meetings(SQL)


def test_every_file_of_statements_is_looked_at_or_excused() -> None:
    files = {
        each.name for each in resources.files("coterie.storage.postgres.sql").iterdir() if each.name.endswith(".sql")
    }
    assert files == {f"{name}.sql" for name in LOADED} | FILES.keys()


@pytest.mark.parametrize(
    ("statement", "table", "deeds"),
    [
        ("evict", "seats", {"update"}),  # by the foreign key
        ("evict", "leases", {"delete"}),
        ("acquire", "seats", {"lock", "update"}),
        ("acquire", "runners", {"key lock"}),
        ("kv_put", "kv", {"insert", "update"}),
        ("write_states", "states", {"insert", "lock", "update"}),
        ("commit_handlers", "states", {"insert", "update", "delete"}),
        ("add_step", "units", {"key lock"}),
        ("purge_units", "steps", {"delete"}),  # by a function
        ("kv_purge", "kv", {"delete"}),
    ],
)
def test_what_a_statement_does_with_a_table_is_read_from_its_text(statement: str, table: str, deeds: set[str]) -> None:
    (found,) = [each for each in touches(SQL) if (each.statement, each.table) == (statement, table)]
    assert found.deeds == deeds
