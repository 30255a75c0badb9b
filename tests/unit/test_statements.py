"""SQL lives in files, each statement with a name and a line that describes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coterie.storage.statements import expand, load, texts

SOURCE = Path(__file__).parents[2] / "src" / "coterie"
FILES = sorted(SOURCE.glob("storage/*/sql/*.sql"))


@pytest.mark.parametrize("file", FILES, ids=lambda path: f"{path.parts[-3]}/{path.name}")
def test_every_statement_has_a_name_and_a_description(file: Path) -> None:
    package = ".".join(("coterie", *file.parent.relative_to(SOURCE).parts))
    statements = load(package, file.name)
    assert len(statements) == file.read_text().count("-- name:")
    assert all(statements.values())


POSTGRES = "coterie.storage.postgres.sql"
FENCED = {
    "fenced_writes.sql": {"write_states", "claim_states", "put_kv", "swap_kv", "remove_kv"},
    "leading.sql": {"save_states", "save_state", "set_aside", "begin_execution", "stamp_executions"},
    "messages.sql": {
        "end_messages",
        "end_message",
        "commit_handlers",
        "commit_handlers_and_jobs",
        "set_back",
        "suspect",
        "mark_suspect",
        "cancel_fenced",
    },
    "queues.sql": {"claim_jobs", "define_queue", "mature_jobs", "take_back_jobs", "park_jobs", "unpark_jobs"},
    "ticks.sql": {"take_crons", "claim_ticks", "note_ticks"},
    "units.sql": {"write_steps", "add_steps", "end_units", "open_unit", "suspend_unit"},
}
FENCED_BY_HAND = {"wake_due_units", "retry_stuck_units", "add_step"}
"""Fenced writes whose fence reads other rows beside."""


@pytest.mark.parametrize("file", FENCED)
def test_every_fenced_write_includes_the_fence(file: str) -> None:
    """C1: and the locks on seats stand in one file, with those exceptions."""
    written = texts(POSTGRES, file)
    assert {name for name, text in written.items() if "/* include fence" in text} == FENCED[file]
    by_hand = {name for name, text in written.items() if "holder = $2" in text and "for share" in text}
    assert by_hand <= FENCED_BY_HAND | {"verify"}
    loaded = load(POSTGRES, file)
    for name in FENCED[file]:
        assert "/*" not in loaded[name]
        assert re.search(r"held as materialized \([^;]*?s\.holder = \$2[^;]*?for share of s\n\)", loaded[name]), name


def test_a_fragment_that_is_not_there_is_refused() -> None:
    with pytest.raises(AssertionError, match="no fragment fense"):
        expand("with /* include fense (s.name) */ select 1", POSTGRES)


def test_columns_that_a_fragment_has_no_place_for_are_refused() -> None:
    with pytest.raises(AssertionError, match="the fragment me has no columns"):
        expand("with /* include me (s.name) */ select 1", POSTGRES)
