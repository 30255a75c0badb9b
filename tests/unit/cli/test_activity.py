"""`coterie activity`: the record of acts, of the page and of commands, as text and as JSON."""

from __future__ import annotations

import getpass
import json
import re
import socket
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import PersistenceError
from coterie.storage.contracts.activity import Act
from coterie.web.acts import Acts
from tests.unit.cli.command_runner import Said, coterie
from tests.unit.cli.stored_cluster import Stored, checkout
from tests.unit.web.fake_cluster import FakeWebView

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Alone:
    """A cluster of one test, and commands on it."""

    def __init__(self, stored: Stored, capsys: pytest.CaptureFixture[str]) -> None:
        self.stored = stored
        self._capsys = capsys

    def ask(self, *args: str) -> Said:
        return coterie(self._capsys, *args, "--url", self.stored.url)

    def rows(self) -> list[dict[str, Any]]:
        """The record, the newest first."""
        found: list[dict[str, Any]] = json.loads(self.ask("activity", "--json").out)
        return found


@pytest.fixture
def alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Alone]:
    running = Stored(f"sqlite:///{tmp_path / 'alone.db'}")
    try:
        running.start("web-1")
        yield Alone(running, capsys)
    finally:
        running.close()


def test_what_was_done_is_listed_and_hostile_words_are_text(alone: Alone) -> None:
    said = alone.ask("activity")
    assert (said.code, said.out.endswith("nothing was done\n")) == (0, True)
    storage = alone.stored.cluster._acting().storage
    act = Act(who="mara\x1b[2J", origin="10.0.0.7", act="retry", what="message 7", result="1 dead message runs again")
    alone.stored.do(storage.activity.add(act))
    text = alone.ask("activity").out
    assert "mara\\x1b[2J  10.0.0.7  retry  message 7  1 dead message runs again" in text
    (row,) = alone.rows()
    assert (row["who"], row["from"], row["act"], row["what"]) == ("mara\x1b[2J", "10.0.0.7", "retry", "message 7")


def test_commands_that_act_are_recorded_with_user_and_host(alone: Alone) -> None:
    dead = alone.stored.dead("alice", "charge", "o-1", 5)
    assert alone.ask("messages", "retry", dead).code == 1, "nobody has confirmed it"
    assert alone.ask("messages", "retry", dead, "--dry-run").code == 0
    assert alone.rows() == [], "nothing was done"
    assert alone.ask("messages", "retry", dead, "--yes").code == 0
    (row,) = alone.rows()
    assert (row["act"], row["what"], row["result"]) == ("retry", f"message {dead}", "1 dead message runs again")
    assert (row["who"], row["from"]) == (f"{getpass.getuser()}@{socket.gethostname()}", "command line")

    alone.stored.until_status(dead, "dead")
    assert alone.ask("entities", "reset", "Account/alice", "--yes").code == 0
    alone.stored.until_status(dead, "dead")
    assert alone.ask("messages", "purge", "--filter", "state:dead type:Account", "--yes").code == 0
    alone.stored.do(alone.stored.cluster.start_workflow(checkout, "order", id="o-1"))
    assert alone.ask("workflows", "resume", "checkout/o-1", "--yes").code == 0
    assert alone.ask("workflows", "interrupt", "checkout/o-1", "--yes").code == 0
    assert alone.ask("runners", "drain", "web-1", "--yes").code == 0
    told = [(each["act"], each["what"], each["result"]) for each in alone.rows()]
    assert told[:-1] == [
        ("drain", "runner web-1", "web-1 gives up 12 shards"),
        ("interrupt", "workflow checkout/o-1", "checkout/o-1 is being interrupted"),
        ("resume-workflow", "workflow checkout/o-1", "checkout/o-1 checks whether it can continue"),
        ("purge", "messages: type:Account state:dead", "1 dead message deleted"),
        ("reset", "entity Account/alice", "1 dead message runs again"),
    ]


def test_an_act_that_fails_is_recorded_and_one_that_cannot_be_recorded_is_done(
    alone: Alone, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from coterie.storage.sqlite.audit import SqliteActivity
    from coterie.storage.sqlite.messages import SqliteMessages

    async def full(*_: object, **__: object) -> None:
        raise PersistenceError(doing="write", problem="disk full", outcome="refused")

    dead = alone.stored.dead("bob", "charge", "o-2", 5)
    with monkeypatch.context() as broken:
        broken.setattr(SqliteMessages, "revive", full)
        assert alone.ask("entities", "reset", "Account/bob", "--yes").code != 0
    (row,) = alone.rows()
    assert row["result"].startswith("refused: ")
    assert "disk full" in row["result"]
    with monkeypatch.context() as broken:
        broken.setattr(SqliteActivity, "add", full)
        assert alone.ask("messages", "retry", dead, "--yes").code == 0
    assert "the act retry is in this log only" in caplog.text
    assert len(alone.rows()) == 1


def test_commands_record_the_acts_that_the_page_has() -> None:
    files = resources.files("coterie.cli.commands").iterdir()
    texts = [each.read_text("utf-8") for each in files if each.name.endswith(".py")]
    names = {name for text in texts for name in re.findall(r'ctx\.act\("([a-z-]+)"', text)}
    assert names == set(Acts(FakeWebView(), token="").plans)
