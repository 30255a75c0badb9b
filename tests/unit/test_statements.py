"""SQL lives in files, each statement with a name and a line that describes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.storage.statements import load

SOURCE = Path(__file__).parents[2] / "src" / "coterie"
FILES = sorted(SOURCE.glob("storage/*/sql/*.sql"))


@pytest.mark.parametrize("file", FILES, ids=lambda path: f"{path.parts[-3]}/{path.name}")
def test_every_statement_has_a_name_and_a_description(file: Path) -> None:
    package = ".".join(("coterie", *file.parent.relative_to(SOURCE).parts))
    statements = load(package, file.name)
    assert len(statements) == file.read_text().count("-- name:")
    assert all(statements.values())
