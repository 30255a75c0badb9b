"""The databases on which payloads are encrypted: what processes can share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """One SQLite file, or one PostgreSQL database."""
    given: str = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    return given or f"sqlite:///{tmp_path}/payloads.db"
