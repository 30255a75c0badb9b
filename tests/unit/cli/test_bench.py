"""`coterie bench`: figures of this machine, and nothing left behind (B6)."""

from __future__ import annotations

import json
import re
import tempfile
from typing import TYPE_CHECKING

import pytest

from coterie import Cluster
from coterie.cli.bench import NAME, SCENARIOS, TOGETHER
from coterie.storage.contracts.messages import MessageFilter
from tests.unit.cli.command_runner import coterie, require_golden, transcript

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.command_runner import Served

SHORT = ("--seconds", "0.1")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


def test_every_scenario_has_its_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = coterie(capsys, "bench", "--json", *SHORT)
    document = json.loads(said.out)
    assert (said.code, document["seconds"]) == (0, 0.1)
    assert [each["scenario"] for each in document["figures"]] == [*SCENARIOS]
    for each in document["figures"]:
        assert 0 < each["p50_s"] <= each["p99_s"]
        assert each["per_s"] > 0
        assert each["callers"] == (1 if each["scenario"] == "commit" else TOGETHER)
    assert list(folder.iterdir()) == []


def test_one_scenario_as_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = coterie(capsys, "bench", "kv", *SHORT)
    assert said.code == 0
    # Without stderr: whether there is progress to tell depends on how fast it is.
    require_golden("bench", re.sub(r"100 +[\d,]+ ", "100 <number> ", transcript(said._replace(err=""))))
    assert list(folder.iterdir()) == []


def test_other_clusters_of_the_database_are_not_touched(
    served: Served, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = served.do(served.clusters["web-1"].shards())
    said = coterie(capsys, "bench", "kv", "--url", served.url, *SHORT)
    assert said.code == 0
    assert served.url in said.out
    assert list(folder.iterdir()) == []
    assert served.do(served.clusters["web-1"].shards()) == held
    assert served.do(served.clusters["web-1"]._acting().storage.kv.count("bench/")) == 0
    assert served.do(_left(served.url)) == (0, 0)


async def _left(url: str) -> tuple[int, int]:
    """The keys and messages that are left of a benchmark."""
    cluster = Cluster(url, name=NAME, http_listen=None)
    async with cluster.connect():
        storage = cluster._acting().storage
        return await storage.kv.count(""), len(await storage.messages.list(MessageFilter()))


def test_messages_are_removed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str], served: Served) -> None:
    url = f"sqlite:///{tmp_path}/other.db"
    assert coterie(capsys, "bench", "persisted", "--url", url, *SHORT).code == 0
    assert served.do(_left(url)) == (0, 0)


def test_a_scenario_that_does_not_exist_is_a_wrong_question(capsys: pytest.CaptureFixture[str]) -> None:
    said = coterie(capsys, "bench", "nonsense")
    assert (said.code, said.out) == (2, "")


def test_a_database_that_does_not_answer_is_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    said = coterie(capsys, "bench", "commit", "--url", "postgresql://app:hunter2@127.0.0.1:1/app", *SHORT)
    assert (said.code, said.out) == (3, "")
    assert "hunter2" not in said.err
