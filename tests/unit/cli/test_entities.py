"""`coterie entities`: what lives where, one entity with its state, freeing one that is stuck (K6)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.unit.cli.command_runner import coterie, require_golden, transcript
from tests.unit.cli.stored_cluster import Account
from tests.unit.cli.test_messages import has_begun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.cli.command_runner import Said
    from tests.unit.cli.stored_cluster import Stored

    Ask = Callable[..., Said]


@pytest.fixture(scope="session")
def busy(stored: Stored) -> str:
    """An entity at work, with state, and with two more calls behind it: the busiest of all."""

    async def deposit() -> None:
        await stored.cluster.ref(Account, "rosa").deposit("o-1", 5)

    stored.do(deposit())
    stored.send("rosa", "hold", "rosa")
    stored.do(stored.until(has_begun("rosa")))
    for _ in range(2):
        stored.send("rosa", "hold", "rosa")

    async def has_queued() -> bool:
        host = stored.cluster._acting().calling.host
        assert host is not None
        mailbox = host.lives("Account")["rosa"].mailbox
        return mailbox is not None and len(mailbox) == 2

    stored.do(stored.until(has_queued))
    return "Account/rosa"


def test_types_are_listed_with_how_many_live(ask: Ask, busy: str) -> None:
    (line,) = json.loads(ask("entities", "--json").out)
    assert (line["type"], line["is_complete"]) == ("Account", True)
    assert line["runners"] == {"web-1": line["resident"]}
    said = ask("entities")
    assert said.out.splitlines()[2].split() == ["TYPE", "RESIDENT", "WHERE"]
    assert said.out.splitlines()[3].split()[0] == "Account"


def test_the_busiest_of_a_type_comes_first(ask: Ask, busy: str) -> None:
    said = ask("entities", "list", "Account", "--json")
    first, *others = json.loads(said.out)
    assert json.loads(ask("entities", "list", "Account", "--limit", "1", "--json").out)[0]["id"] == first["id"]
    assert (first["id"], first["runner"], first["waiting"], first["mailbox"]) == ("rosa", "web-1", 2, 1_000)
    assert (first["running"], first["method"], first["idle_s"]) == (1, "hold", None)
    assert all(each["waiting"] < 2 for each in others)
    shown = ask("entities", "list", "Account", "--limit", "1")
    require_golden("entities_list", transcript(shown._replace(err="")))
    if others:
        assert shown.err == f"1 of {1 + len(others)} are shown: --limit shows more\n"


def test_an_entity_is_shown_with_where_it_lives_and_its_state(ask: Ask, busy: str) -> None:
    require_golden("entities_show", transcript(ask("entities", "show", busy)))
    told = json.loads(ask("entities", "show", busy, "--json").out)
    assert (told["runner"], told["owner"], told["state"]["value"]) == ("web-1", "web-1", {"cents": 5})
    assert (told["life"]["waiting"], told["messages"]) == (2, {"pending": 3, "dead": 0})


def test_one_that_was_never_called_lives_nowhere(ask: Ask) -> None:
    require_golden("entities_show_nowhere", transcript(ask("entities", "show", "Account/nobody")))


def test_a_type_that_nobody_knows_is_a_no(ask: Ask) -> None:
    require_golden("entities_unknown", transcript(ask("entities", "list", "Acount")))
    require_golden("entities_show_unknown", transcript(ask("entities", "show", "Acount/alice")))
    assert ask("entities", "show", "Account").code == 2


def test_what_is_stored_is_shown_while_no_runner_lives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.unit.cli.stored_cluster import Stored

    running = Stored(f"sqlite:///{tmp_path}/alone.db")
    try:
        running.start("web-1")
        running.until_status(running.send("sara", "deposit", "o-1", 7), "done")
    finally:
        running.close()
    said = coterie(capsys, "entities", "show", "Account/sara", "--url", running.url)
    assert said.code == 0
    assert '{"cents": 7}' in said.out
    assert "no runner knows its type" in said.out


def test_a_reset_runs_dead_ones_again_once_that_is_confirmed(ask: Ask, stored: Stored) -> None:
    dead = stored.dead("tina", "slow")
    require_golden("entities_reset_refused", transcript(ask("entities", "reset", "Account/tina")))
    require_golden("entities_reset_dry", transcript(ask("entities", "reset", "Account/tina", "--dry-run")))
    assert stored.do(stored.cluster.messages.show(dead)).status == "dead"
    require_golden("entities_reset", transcript(ask("entities", "reset", "Account/tina", "--yes")))

    async def has_run_again() -> bool:
        return len((await stored.cluster.messages.show(dead)).errors) == 4

    stored.do(stored.until(has_run_again))
    require_golden("entities_reset_nothing", transcript(ask("entities", "reset", "Account/ulla", "--yes")))
