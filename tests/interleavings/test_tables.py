"""Every two statements that touch one table are played against each other: the list is read from the `.sql` files."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from coterie.storage import migrations, statements
from tests.interleavings.catalogue import catalogue
from tests.interleavings.database import PACKAGE, SQL
from tests.interleavings.exempt_pairs import EXCUSES, FILES, FRAGMENTS
from tests.interleavings.serial_pairs import serial_pairs
from tests.interleavings.steps import Steps
from tests.interleavings.tables import behind, meeting, meetings, played, touches, writes

LOADED = {
    "ownership",
    "fenced_writes",
    "leading",
    "messages",
    "jobs",
    "queues",
    "pauses",
    "ticks",
    "units",
    "lives",
    "later",
    "incoming",
    "schedules",
    "run_messages",
    "kv",
    "machines",
    "secrets",
}


def test_every_two_statements_that_touch_a_table_are_played_against_each_other_or_excused() -> None:
    pairs = played([*catalogue().values(), *serial_pairs(Steps(SQL)).values()], SQL)
    excused = {meeting(each.table, each.one, other) for each in EXCUSES for other in each.others}
    open_ = sorted(each for each in meetings(SQL) - excused if each[1:] not in pairs)
    assert not open_, f"play them (serial_pairs.py, or the catalogue), or give a reason (excuses.py): {open_}"


def test_no_excuse_is_out_of_date() -> None:
    excused = {meeting(each.table, each.one, other) for each in EXCUSES for other in each.others}
    assert excused <= meetings(SQL)


def test_every_file_of_statements_is_looked_at_or_excused() -> None:
    files = {each.name for each in resources.files(PACKAGE).iterdir() if each.name.endswith(".sql")}
    assert files == {f"{name}.sql" for name in LOADED} | FILES.keys() | {FRAGMENTS}
    for name in LOADED:
        assert set(statements.load(PACKAGE, f"{name}.sql").values()) <= set(SQL.values()), f"{name}.sql is not played"


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_excused_does_no_more_than_its_excuse_says(file: str) -> None:
    found = {(each.table, deed) for each in touches(statements.load(PACKAGE, file)) for deed in each.deeds}
    assert found == FILES[file].deeds


@pytest.mark.parametrize("file", sorted({f"{name}.sql" for name in LOADED} | FILES.keys()))
def test_every_word_of_a_statement_that_writes_is_understood(file: str) -> None:
    """What is written in another way (`merge`, a table without its schema) would meet nothing, and pass."""
    for name, text in statements.load(PACKAGE, file).items():
        bare = re.sub(r"'[^']*'|--.*", "", text)
        bare = re.sub(r"\bfor (no key )?update\b|\bdo update\b", "", bare)
        words = re.findall(r"\b(insert|update|delete|merge|truncate|copy)\b", bare, re.IGNORECASE)
        assert len(words) == len(list(writes(bare))), name


def test_what_the_schema_does_for_a_statement_is_known() -> None:
    """Foreign keys, functions and triggers write, too."""
    schema = "".join(each.sql for each in migrations.load("coterie.storage.postgres.migrations"))
    schema = re.sub(r"--.*", "", schema)
    triggers = re.findall(r"create trigger \w+ (after \w+) on coterie\.(\w+) .*? function coterie\.(\w+)", schema)
    assert triggers == [
        ("after insert", "messages", "store_tags"),
        ("after delete", "messages", "remove_tags"),
        ("after delete", "runners", "lose_jobs"),
        ("after insert", "units", "store_unit_tags"),
        ("after update", "units", "store_unit_tags"),
        ("after delete", "units", "store_unit_tags"),
    ]
    assert schema.count("create trigger") == len(triggers)
    assert "on update" not in schema.replace("after update on", "")
    functions = set(re.findall(r"create (?:or replace )?function coterie\.(\w+)", schema))
    for_sql = {"add_incoming", "send", "start_workflow"}  # called by programs without coterie, they add a row
    reading = {"bucket_at", "claimed_jobs"}
    known = {"overtaken", "forget_units", "forget_runs", "store_tags", "remove_tags", "lose_jobs"}
    known |= {"store_unit_tags"} | for_sql | reading
    assert functions == known, "the first one raises, the others stand in `behind`"
    keys = {
        f"{table}: {parent}, {deed}"
        for table, columns in re.findall(r"create table coterie\.(\w+) \((.*?)\n\);", schema, re.DOTALL)
        for parent, deed in re.findall(r"references coterie\.(\w+) \(\w+\)( on delete [a-z ]+)?", columns)
    }
    assert keys == {"leases: runners,  on delete cascade", "seats: runners,  on delete set null"}
    assert behind("delete runners") == {"leases": "delete", "seats": "update", "jobs": "update"}


@pytest.mark.parametrize(
    ("statement", "table", "deeds"),
    [
        ("evict", "seats", {"update"}),  # by the foreign key
        ("evict", "leases", {"delete"}),
        ("evict", "jobs", {"update"}),  # by the trigger
        ("acquire", "seats", {"lock", "update"}),
        ("acquire", "runners", {"key lock"}),
        ("kv_put", "kv", {"insert", "update"}),
        ("write_states", "states", {"insert", "lock", "update"}),
        ("commit_handlers", "states", {"insert", "update", "delete"}),
        ("add_step", "units", {"key lock"}),
        ("purge_units", "steps", {"delete"}),  # by a function
        ("add_message", "message_tags", {"insert"}),  # by a trigger
        ("purge_messages", "message_tags", {"delete"}),
        ("kv_purge", "kv", {"delete"}),
    ],
)
def test_what_a_statement_does_with_a_table_is_read_from_its_text(statement: str, table: str, deeds: set[str]) -> None:
    (found,) = [each for each in touches(SQL) if (each.statement, each.table) == (statement, table)]
    assert found.deeds == deeds
