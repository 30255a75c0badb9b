"""Which engine a url means."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.errors import ConfigurationError
from coterie.kernel.random import Random
from coterie.settings import Settings
from coterie.storage.engines import file_of, open_storage
from tests.support.manual_clock import ManualClock


def opened(url: str) -> Any:
    settings: Any = SimpleNamespace(url=url)
    if not url.startswith("oracle"):
        settings = Settings.load({"url": url}, environ={})
    return open_storage(settings, incarnation="0" * 32, clock=ManualClock(), chance=Random(1))


@pytest.mark.parametrize(
    ("url", "engine"),
    [
        ("sqlite://", "SqliteStorage"),
        ("sqlite:///a.db", "SqliteStorage"),
        ("postgresql://u@h/d", "PostgresStorage"),
        ("postgres://u@h/d", "PostgresStorage"),
    ],
)
def test_an_engine_is_chosen_by_the_url(url: str, engine: str) -> None:
    assert type(opened(url)).__name__ == engine


def test_another_database_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="begins with 'oracle'"):
        opened("oracle://u@h/d")


def test_without_its_driver_postgresql_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "coterie.storage.postgres", None)
    with pytest.raises(ConfigurationError, match="needs the asyncpg package"):
        opened("postgresql://u@h/d")


@pytest.mark.parametrize(
    ("url", "name"), [("sqlite:///a.db", "a.db"), ("sqlite://", None), ("postgresql://u@h/d", None)]
)
def test_only_a_sqlite_file_is_a_file(url: str, name: str | None) -> None:
    path = file_of(Settings.load({"url": url}, environ={}))
    assert (path and path.name) == name
