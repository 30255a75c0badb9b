"""`coterie runners`: who takes part, and draining one."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING

from coterie.cli.commands.runners import table
from coterie.observe.view import RunnerLine
from coterie.work.threads import StubbornBody, ThreadUse
from tests.unit.cli.command_runner import SHARDS, coterie, eventually, require_golden, screen, serving, transcript
from tests.unit.observe.cluster_facts import NOW

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from coterie import Cluster
    from tests.unit.cli.command_runner import Served


READY = '"state": "ready"'


def test_runners_of_a_running_cluster(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    said = eventually(capsys, "★ importer", "runners", "--url", served.url)
    assert said.out.splitlines()[2].split()[:5] == ["RUNNER", "SHARDS", "ENTITIES", "CALLS/S", "P99"]
    assert said.out.splitlines()[3].split()[:3] == ["web-1", "12", "1"]
    assert said.out.splitlines()[3].endswith("★ importer")
    (line,) = json.loads(eventually(capsys, READY, "runners", "list", "--url", served.url, "--json").out)
    assert (line["name"], line["state"], line["shards"], line["leads"]) == ("web-1", "ready", 12, ["importer"])
    assert line["crons"] == ["cleanup", "invoices", "nightly"]
    assert 0 < line["lease_left_s"] < 60
    assert line["memory_bytes"] > 1_000_000


def test_one_that_did_not_answer_has_no_figures() -> None:
    """No answer is shown as no answer, never as 0."""
    silent = RunnerLine(
        id="a",
        name="web-3",
        address="",
        groups=("default",),
        weight=1.0,
        started_at=NOW,
        state="no answer",
        missing="",
        shards=33,
        leads=(),
        crons=(),
    )
    (_, line) = table(screen(), [silent]).splitlines()
    assert line.split() == ["web-3", "33", *"-" * 8, "✗", "no", "answer"]


def test_one_runner_by_name_and_id(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    said = eventually(capsys, "✓ ready", "runners", "show", "web-1", "--url", served.url)
    require_golden("runners_show", transcript(said))
    told = json.loads(coterie(capsys, "runners", "show", "web-1", "--url", served.url, "--json").out)
    by_id = coterie(capsys, "runners", "show", told["id"], "--url", served.url, "--json")
    assert json.loads(by_id.out)["name"] == "web-1"


def test_its_threads_and_those_that_are_stuck_are_shown(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = StubbornBody(what="Account/alice.slow", for_s=42.0)
    runner = served.clusters["web-1"]._acting()
    monkeypatch.setattr(runner.threads, "use", lambda: ThreadUse(3, 2, (stuck,)))  # type: ignore[attr-defined]
    said = eventually(capsys, "stuck ", "runners", "show", "web-1", "--url", served.url)
    assert re.search(r"threads +3 of 32 busy, 2 waiting\n", said.out)
    assert re.search(r"stuck +Account/alice.slow, cancelled 42s ago\n", said.out)
    told = json.loads(coterie(capsys, "runners", "show", "web-1", "--url", served.url, "--json").out)
    assert (told["threads_busy"], told["threads_most"], told["threads_waiting"]) == (3, 32, 2)
    assert told["stubborn"] == [{"what": "Account/alice.slow", "for_s": 42.0}]


def test_a_runner_that_is_not_there(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["show"], ["drain", "--yes"]):
        said = coterie(capsys, "runners", verb[0], "web-9", *verb[1:], "--url", served.url)
        assert (said.code, said.out) == (1, "")
        assert said.err.splitlines() == [
            "error: no runner has the name or id web-9; there are: web-1",
            "hint:  coterie runners list shows all of them",
        ]


def test_a_drain_is_not_begun_without_consent(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    tried = coterie(capsys, "runners", "drain", "web-1", "--url", served.url, "--dry-run")
    require_golden("runners_drain_dry", transcript(tried))
    refused = coterie(capsys, "runners", "drain", "web-1", "--url", served.url)
    assert refused.code == 1
    assert "no terminal to ask" in refused.err
    (line,) = json.loads(eventually(capsys, READY, "runners", "--url", served.url, "--json").out)
    assert (line["state"], line["shards"]) == ("ready", SHARDS)


def test_a_runner_is_drained_and_a_leader_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runners: `singletons resign`, then `runners drain`, which returns when all of it is handed over."""
    with serving(tmp_path / "two.db", "web-1", "web-2") as served:
        served.do(served.until_shared())
        before = json.loads(coterie(capsys, "singletons", "show", "importer", "--url", served.url, "--json").out)
        moved = coterie(capsys, "singletons", "resign", "importer", "--url", served.url, "--yes", "--json")
        assert moved.code == 0
        told = json.loads(moved.out)
        assert told["from"] == before["leader"]
        assert told["epoch"] > before["epoch"]
        led = served.do(_led(served.clusters["web-1"], before["epoch"]))
        assert led != before["leader"], "the next one to lead was the other one, whatever the plan does later"
        said = coterie(capsys, "runners", "drain", "web-2", "--url", served.url, "--yes")
        assert (said.code, said.out.splitlines()[0].split()[:3]) == (0, ["✓", "drained", "web-2"])
        assert said.out.splitlines()[1] == "undo: start web-2 again; it takes its share when it joins"
        lines = json.loads(eventually(capsys, READY, "runners", "--url", served.url, "--json").out)
        assert [(each["name"], each["state"], each["shards"]) for each in lines] == [
            ("web-1", "ready", SHARDS),
            ("web-2", "draining", 0),
        ]


async def _led(cluster: Cluster, epoch: int) -> str:
    """Who led after an epoch: each leader of the importer saves its state."""
    async with asyncio.timeout(120):
        while True:
            later = [each for each in await cluster.singletons.history("importer") if each.epoch > epoch]
            if later:
                return later[-1].runner
            await asyncio.sleep(0.05)
