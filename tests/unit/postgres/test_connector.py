"""Connections: their settings, their addresses in texts, and what a failed connect says."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

import pytest

from coterie.errors import ConfigurationError, PersistenceError
from coterie.kernel.random import Random
from coterie.storage.postgres import ConnectionLimits
from coterie.storage.postgres.connector import (
    Connector,
    application_name,
    require_version,
    session_settings,
    without_password,
)
from coterie.storage.postgres.session import PostgresSession, deadline
from coterie.testing.proxy import Proxy, free_port
from tests.unit.postgres.conftest import SHORT, database_of, new_storage

if TYPE_CHECKING:
    from tests.support.postgres import Server


def connector(url: str, *, limits: ConnectionLimits = SHORT, incarnation: str = "b" * 32) -> Connector:
    return Connector(url, incarnation=incarnation, chance=Random(1), limits=limits)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:hunter2@db:5432/app",
        "postgresql://app@db:5432/app?password=hunter2&sslmode=require",
        "postgresql://app:hunter2%40x@db:5432/app",
    ],
)
def test_an_address_has_no_password(url: str) -> None:
    assert without_password(url) == "postgresql://app@db:5432/app"


def test_a_session_is_named_after_the_incarnation_and_cannot_smuggle_sql() -> None:
    assert application_name("f" * 32) == "coterie/" + "f" * 32
    assert len(application_name("f" * 99)) == 63
    assert "'" not in session_settings("work", application=application_name("x'; drop"), limits=SHORT).replace(
        " = '", ""
    ).replace("'; set", "; set").removesuffix("'")


def test_a_server_that_is_too_old_is_refused() -> None:
    require_version(14, address="postgresql://db/app")
    with pytest.raises(ConfigurationError, match="runs PostgreSQL 13, coterie needs 14 or newer"):
        require_version(13, address="postgresql://db/app")


async def test_a_refused_connection_says_how_often_and_how_long_it_was_tried() -> None:
    port = free_port()
    storage = new_storage(f"postgresql://app:hunter2@127.0.0.1:{port}/app", limits=SHORT)
    with pytest.raises(PersistenceError) as caught:
        await storage.start()
    error = caught.value
    wanted = rf"cannot connect to postgresql://app@127.0.0.1:{port}/app: connection refused \(3 tries in \d+\.\ds\)"
    assert re.fullmatch(wanted, error.message)
    assert error.outcome == "unreachable"
    assert error.retryable
    assert error.hint.startswith("is the server running?")
    assert "hunter2" not in str(error)


@pytest.mark.postgres
async def test_a_server_that_comes_up_later_is_waited_for_if_somebody_listens(
    own_server: Server, postgres_url: str
) -> None:
    proxy = Proxy("127.0.0.1", own_server.port)
    proxy.start()
    proxy.refuse()

    def told(error: PersistenceError) -> None:
        vain.append(error)
        proxy.heal()

    vain: list[PersistenceError] = []
    storage = new_storage(f"postgresql://postgres@127.0.0.1:{proxy.port}/{database_of(postgres_url)}", limits=SHORT)
    storage.on_unreachable = told
    try:
        async with storage:
            assert [each.outcome for each in vain] == ["unreachable"]
            assert (await storage.now()).tzinfo is not None
    finally:
        proxy.close()


@pytest.mark.postgres
async def test_what_another_try_cannot_mend_is_not_waited_for(own_server: Server) -> None:
    vain: list[PersistenceError] = []
    storage = new_storage(own_server.url("absent"), limits=SHORT)
    storage.on_unreachable = vain.append
    with pytest.raises(PersistenceError, match='database "absent" does not exist'):
        await storage.start()
    assert vain == []


@pytest.mark.postgres
async def test_what_another_try_cannot_mend_is_tried_once(postgres_server: Server) -> None:
    with pytest.raises(PersistenceError, match=r'database "absent" does not exist .*\(1 try in') as caught:
        await connector(postgres_server.url("absent")).connect("work", tries=3)
    assert caught.value.hint == "create the database first, or correct its name in the url"


@pytest.mark.postgres
async def test_every_session_is_set_up(postgres_server: Server, postgres_url: str) -> None:
    """M12, m4, P8: timeouts, isolation level and name on the server, whatever its defaults."""
    database = database_of(postgres_url)
    for setting in ("default_transaction_isolation = 'serializable'", "search_path = 'public'", "timezone = 'Japan'"):
        postgres_server.execute(f"alter database {database} set {setting}")
    limits = ConnectionLimits(call_s=4.0, transaction_s=2.0)
    wanted = {
        "application_name": "coterie/" + "b" * 32,
        "default_transaction_isolation": "read committed",
        "transaction_isolation": "read committed",
        "idle_in_transaction_session_timeout": "2s",
        "search_path": "pg_catalog",
        "timezone": "UTC",
        "jit": "off",
    }
    limited = "statement_timeout", "lock_timeout"
    for role, call, lock in (
        ("work", "3600ms", "2s"),
        ("writer", "3600ms", "250ms"),
        ("dedicated", "1800ms", "250ms"),  # C4
    ):
        session = await connector(postgres_url, limits=limits).connect(role, tries=1)  # type: ignore[arg-type]  # a loop
        sql = "select name, current_setting(name) from unnest($1::text[]) as name"
        found = dict(list(map(tuple, await session.fetch(sql, [*wanted, *limited], over=deadline(5)))))
        assert found == {**wanted, "statement_timeout": call, "lock_timeout": lock}
        assert session._socket is not None
        assert session._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert session._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 8000
        await session.close()


@pytest.mark.postgres
async def test_a_standby_counts_as_a_server_that_cannot_be_reached(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresSession, "standby", True)
    with pytest.raises(PersistenceError, match=r"the server is a standby \(2 tries in") as caught:
        await connector(postgres_url).connect("work", tries=2)
    assert caught.value.outcome == "unreachable"
    session = await connector(postgres_url).connect("work", tries=1, standby=True)
    await session.close()


@pytest.mark.postgres
async def test_a_socket_of_the_file_system_gets_no_tcp_options(own_server: Server, postgres_url: str) -> None:
    url = f"postgresql://postgres@/{database_of(postgres_url)}?host={own_server.directory}&port={own_server.port}"
    session = await connector(url).connect("work", tries=1)
    assert session._socket is not None
    assert session._socket.family == socket.AF_UNIX
    await session.close()


@pytest.mark.postgres
async def test_tcp_options_that_the_system_lacks_are_left_out(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(socket, "TCP_USER_TIMEOUT")  # as on macOS
    session = await connector(postgres_url).connect("work", tries=1)
    assert session._socket is not None
    assert session._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
    await session.close()
