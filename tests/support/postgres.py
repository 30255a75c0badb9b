"""The PostgreSQL server of the test run: our own, or the one that COTERIE_TEST_POSTGRES names."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from coterie.kernel.random import Random
from coterie.storage.postgres.connector import ConnectionLimits, Connector
from coterie.storage.postgres.server.schema import PostgresSchema
from coterie.testing.postgres import Server, run_aside

if TYPE_CHECKING:
    from coterie.testing.postgres import Mode

__all__ = ["ForeignServer", "Server", "open_server", "run_aside", "set_up"]


class ForeignServer(Server):
    """Somebody else's server, named by COTERIE_TEST_POSTGRES: databases, but no verbs that hurt others."""

    owned = False
    _strategy = ""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._numbers = itertools.count(1)

    def url(self, database: str = "postgres", *, user: str = "") -> str:
        place = self._url.netloc
        if user:
            place = f"{user}@{place.rpartition('@')[2]}"
        return urlunsplit(self._url._replace(netloc=place, path=f"/{database}"))

    def execute(self, *statements: str, database: str = "") -> list[Any]:
        return super().execute(*statements, database=database or self._url.path.strip("/") or "postgres")

    def start(self) -> None:
        pytest.skip("COTERIE_TEST_POSTGRES names a server that the tests must not stop")

    def stop(self, mode: Mode = "fast") -> None:
        self.start()

    def kill(self) -> None:
        self.start()

    def freeze(self) -> None:
        self.start()

    def close(self) -> None:
        """Nothing is ours."""


def open_server() -> Server:
    """The server for this test run (each worker process of a parallel run has its own), started."""
    if url := os.environ.get("COTERIE_TEST_POSTGRES"):
        return ForeignServer(url)
    server = Server()
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server


def set_up(url: str) -> None:
    """Make all tables in an empty database."""
    limits = ConnectionLimits()
    connector = Connector(url, incarnation="0" * 32, chance=Random(), limits=limits)
    run_aside(PostgresSchema(connector, limits=limits).apply())
