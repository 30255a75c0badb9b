"""Which migrations are due and which schema is refused: pure decisions, and the files of both engines."""

from __future__ import annotations

import pytest

from coterie.errors import ConfigurationError
from coterie.storage.migrations import Migration, load, pending, require_usable

ONE = Migration(1, "pre", "ground")
TWO = Migration(2, "pre", "more")
THREE = Migration(3, "post", "less")
KNOWN = (ONE, TWO, THREE)


def test_pending_is_what_is_known_and_not_applied_in_order() -> None:
    assert pending(KNOWN, (), None) == [ONE, TWO, THREE]
    assert pending(KNOWN, (ONE,), "pre") == [TWO]
    assert pending(KNOWN, (ONE,), "post") == [THREE]
    assert pending(KNOWN, (ONE, THREE), None) == [TWO]
    assert pending(KNOWN, KNOWN, None) == []


def test_a_missing_post_step_does_not_hinder_a_missing_pre_step_does() -> None:
    require_usable(KNOWN, (ONE, TWO), address="x")
    with pytest.raises(ConfigurationError, match="lacks 1 migrations, first 0002_pre_more") as caught:
        require_usable(KNOWN, (ONE,), address="x")
    assert caught.value.hint == "run: coterie migrate --apply"


def test_a_newer_pre_step_is_tolerated_a_newer_post_step_is_refused() -> None:
    require_usable((ONE,), (ONE, TWO), address="x")
    with pytest.raises(ConfigurationError, match="0003_post_less is applied, which it does not know"):
        require_usable((ONE,), (ONE, TWO, THREE), address="x")


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_the_files_of_an_engine_are_numbered_without_gaps(engine: str) -> None:
    found = load(f"coterie.storage.{engine}.migrations")
    assert [migration.number for migration in found] == list(range(1, len(found) + 1))
    assert all(migration.sql.strip() for migration in found)


def test_both_engines_go_through_the_same_steps() -> None:
    sqlite, postgres = (load(f"coterie.storage.{engine}.migrations") for engine in ("sqlite", "postgres"))
    assert [str(step) for step in sqlite] == [str(step) for step in postgres]
