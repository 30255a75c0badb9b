"""Fixtures for all tests: the PostgreSQL server of the test run, and fresh databases on it per test."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from tests.support.postgres import Server, open_server, set_up

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports leave little garbage: to search for it meanwhile is a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What the collection of all tests has made stays for good: no search for garbage need look through it again.

    Tests that end with such a search would take most of a second each.
    """
    _keep_for_good()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """So does what pytest keeps of each test, and what some of them import: that is a tenth of a second again.

    Looked at between modules, when nothing of theirs is in use.
    """
    _over.append(item)
    if len(_over) >= 100 and (nextitem is None or nextitem.path != item.path):
        _keep_for_good()


_over: list[pytest.Item] = []
"""The tests since then."""


def _keep_for_good() -> None:
    _over.clear()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A running PostgreSQL server, stopped when the test run ends, however it ends."""
    server = open_server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: Server) -> Iterator[str]:
    """The name of a database with all tables and no rows, which nobody is connected to."""
    name = postgres_server.create_database()
    set_up(postgres_server.url(name))
    yield name
    postgres_server.drop_database(name)


@pytest.fixture
def postgres_url(postgres_server: Server, postgres_template: str) -> Iterator[str]:
    """The URL of a database that exists for one test, with all tables and no rows: it is copied sooner than set up."""
    name = postgres_server.create_database(template=postgres_template)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture
def empty_postgres_url(postgres_server: Server) -> Iterator[str]:
    """The URL of a database that exists for one test and was never used."""
    name = postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)
