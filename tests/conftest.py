"""Fixtures for all tests: the PostgreSQL server of the test run, and a fresh database on it per test."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from tests.postgres import Server, open_server

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_collection_finish() -> None:
    """What the collection of all tests has made stays for good: no search for garbage need look through it again.

    Tests that end with such a search would take most of a second each.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A running PostgreSQL server, stopped when the test run ends, however it ends."""
    server = open_server()
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres_server: Server) -> Iterator[str]:
    """The URL of an empty database that exists for one test."""
    name = postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)
