"""What is refused at start, each with a clear error and what to do (M12, m4, P28, incidents 30 and 32)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import ConfigurationError
from coterie.storage.interface import KvPut
from coterie.storage.postgres.server.server_check import ROUNDS, ServerFacts, judge, lends_sessions, require_grants
from tests.support.postgres import Server
from tests.unit.postgres.conftest import database_of, new_storage
from tests.unit.postgres.silent_proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

SAFE = ServerFacts(standby=False, synchronous_commit="on", fsync="on", full_page_writes="on")


def test_a_server_that_keeps_promises_passes_without_a_word() -> None:
    for level in ("on", "local", "remote_write", "remote_apply"):
        assert judge(ServerFacts(False, level, "on", "on"), address="db") == []


def test_a_server_that_may_lose_data_in_a_crash_is_warned_about() -> None:
    (warning,) = judge(ServerFacts(False, "on", "off", "on"), address="db")
    assert warning.startswith("db has fsync=off")
    (warning,) = judge(ServerFacts(False, "on", "on", "off"), address="db")
    assert warning.startswith("db has full_page_writes=off")


def test_missing_grants_name_the_right_and_the_statement_that_gives_it() -> None:
    """M12: locking a row needs UPDATE."""
    may = {"migrations": ["select"], "kv": ["select", "insert", "delete"], "unknown": []}
    with pytest.raises(ConfigurationError) as caught:
        require_grants(may, enters=True, role="app", address="db")
    assert caught.value.problem == "role app at db may not update on coterie.kv"
    assert "grant select, insert, update, delete on all tables in schema coterie to app" in caught.value.hint


class Script:
    """A session that answers as told, and was greeted by a process; a pooler makes its number up."""

    def __init__(self, *answers: tuple[int, str | None], greeted_by: int = 99) -> None:
        self._answers = iter(answers)
        self.greeted_by = greeted_by

    async def execute(self, script: str, *, over: float) -> None:
        """Nothing to see."""

    async def fetch(self, sql: str, *, over: float) -> list[dict[str, object]]:
        pid, mark = next(self._answers)
        return [{"pid": pid, "mark": mark}]


async def lent(ours: Script, other: Script) -> bool:
    sessions: Any = ours, other
    return await lends_sessions(*sessions, mark="m", over=0.0)


@pytest.mark.parametrize(
    ("before", "others", "after"),
    [
        ((1, "m"), (1, "m"), (2, None)),  # our process went to the other one
        ((1, "m"), (2, None), (2, None)),
        ((1, None), (2, None), (1, None)),  # the same process, but our setting is on another
        ((1, "m"), (1, "m"), (1, "m")),
    ],
)
async def test_a_pooler_that_tracks_statements_is_found_by_its_processes_and_settings(
    before: tuple[int, str | None], others: tuple[int, str | None], after: tuple[int, str | None]
) -> None:
    """P28."""
    assert await lent(Script(before, after), Script(others))


async def test_a_pooler_that_gives_us_the_same_process_by_chance_is_found_in_a_later_round() -> None:
    """P28: it is busy, and others take their turns between ours."""
    same, chance = [(1, "m")] * (ROUNDS - 2), [(2, None)] * (ROUNDS - 2)
    assert await lent(Script(*same, (3, None)), Script(*chance))


async def test_a_pooler_that_keeps_sessions_apart_is_taken_for_the_server() -> None:
    """m8: `pool_mode = session`, or one that keeps a session whose settings were changed for its client."""
    assert not await lent(Script(*[(1, "m")] * (ROUNDS + 1)), Script(*[(2, None)] * ROUNDS))


async def test_the_server_itself_is_known_by_its_greeting_in_one_round() -> None:
    assert not await lent(Script((1, "m"), (1, "m"), greeted_by=1), Script((2, None), greeted_by=2))
    assert await lent(Script((1, "m"), (2, None), greeted_by=1), Script((2, None), greeted_by=2))


@pytest.fixture(scope="module")
def standby() -> Iterator[Server]:
    """A server that waits for a primary which never comes, and answers queries meanwhile."""
    server = Server(options={"hot_standby": "on"})
    signal = server.data / "standby.signal"
    signal.touch()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.mark.postgres
async def test_a_standby_is_refused(standby: Server) -> None:
    """Incident 32."""
    with pytest.raises(ConfigurationError, match="is a standby: it takes no writes") as caught:
        await new_storage(standby.url()).start()
    assert "point the url to the primary" in caught.value.hint


@pytest.mark.postgres
async def test_of_several_hosts_the_primary_is_chosen(standby: Server, own_server: Server) -> None:
    hosts = f"127.0.0.1:{standby.port},127.0.0.1:{own_server.port}"
    async with new_storage(f"postgresql://postgres@{hosts}/postgres", check_schema=False) as storage:
        rows = await storage.pool.read("select pg_is_in_recovery(), current_setting('port')")
    assert tuple(rows[0]) == (False, str(own_server.port))


@pytest.mark.postgres
async def test_lazy_commits_are_refused(postgres_server: Server, postgres_url: str, role: str) -> None:
    """Incident 30."""
    postgres_server.execute(f"alter role {role} set synchronous_commit = off")
    with pytest.raises(ConfigurationError, match="synchronous_commit=off: it acknowledges writes that a crash"):
        await new_storage(postgres_server.url(database_of(postgres_url), user=role)).start()


@pytest.mark.postgres
async def test_a_server_without_fsync_is_warned_about_at_start(
    own_server: Server, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="coterie"):
        async with new_storage(postgres_url):
            pass
    assert sum("fsync=off" in message for message in caplog.messages) == 1


@pytest.mark.postgres
async def test_a_proxy_that_keeps_sessions_apart_passes(own_server: Server, postgres_url: str) -> None:
    async with Proxy(own_server.port) as proxy:
        storage = new_storage(f"postgresql://postgres@127.0.0.1:{proxy.port}/{database_of(postgres_url)}")
        await storage.start()
        await storage.stop()


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("granted", "lacks"),
    [
        ([], "use schema coterie"),
        (["usage on schema coterie"], "select on coterie.migrations"),
        (["usage on schema coterie", "select, insert, delete on all tables in schema coterie"], "update on coterie.kv"),
        (["usage on schema coterie", "select on coterie.migrations"], "select on coterie.kv"),
    ],
)
async def test_a_role_that_lacks_rights_is_told_which_and_how_to_get_them(
    postgres_server: Server, postgres_url: str, role: str, granted: list[str], lacks: str
) -> None:
    """M12."""
    async with new_storage(postgres_url):
        pass
    for grant in granted:
        postgres_server.execute(f"grant {grant} to {role}", database=database_of(postgres_url))
    url = postgres_server.url(database_of(postgres_url), user=role)
    with pytest.raises(ConfigurationError, match=f"role {role} at .* may not {lacks}") as caught:
        await new_storage(url).start()
    statements = caught.value.hint.removeprefix("let the owner of the schema run: ").split("; ")
    postgres_server.execute(*statements, database=database_of(postgres_url))
    async with new_storage(url) as storage:  # what the hint says is enough, and no right to create anything
        await storage.kv.put(KvPut("a", b"", 1, ttl_s=-1))
        assert await storage.kv.get("a") is None
        assert await storage.kv.purge(most=9) == 1
        assert await storage.kv.clear("") == 0
